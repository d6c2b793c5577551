"""pika's BlockingConnection: the client most Python programs talk to RabbitMQ with."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from braidmq.testing.live import LiveNode

WAIT_S = 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(node: LiveNode, **settings: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(port=node.ports["amqp_port"], **settings)
    )


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    with connect(node) as connection:
        yield connection.channel()


def take(channel: BlockingChannel, queue: str, count: int, **how: Any) -> list[tuple[Any, ...]]:
    """Consume exactly ``count`` messages and acknowledge them."""
    taken: list[tuple[Any, ...]] = []
    for found in channel.consume(queue, inactivity_timeout=WAIT_S, **how):
        assert found[0] is not None, f"only {len(taken)} of {count} came"
        taken.append(found)
        if not how.get("auto_ack"):
            channel.basic_ack(found[0].delivery_tag)
        if len(taken) == count:
            break
    channel.cancel()
    return taken


def bodies(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    return [body for _, _, body in take(channel, queue, count)]


def ready(channel: BlockingChannel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count


def test_publish_and_get(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"one", PERSISTENT)
    channel.basic_publish("", name, b"two", PERSISTENT)
    method, _, body = channel.basic_get(name)
    assert (body, method.redelivered, method.message_count) == (b"one", False, 1)
    assert (method.exchange, method.routing_key) == ("", name)
    channel.basic_ack(method.delivery_tag)
    _, _, body = channel.basic_get(name, auto_ack=True)
    assert body == b"two"
    assert channel.basic_get(name) == (None, None, None)


def test_all_properties_come_back(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1},
        delivery_mode=1,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="cl",
    )
    channel.basic_publish("", name, b"x", sent)
    ((_, received, _),) = take(channel, name, 1)
    assert received == sent


def test_headers_of_every_type(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    headers = {
        "bool": True,
        "negative": -1,
        "int": 2**31 - 1,
        "long": 2**40,
        "decimal": Decimal("3.14"),
        "time": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "none": None,
        "text": "grüße",
        "bytes": b"\x00\xff",
        "list": [1, "two", [3, None], {"four": 4}],
        "table": {"deep": {"deeper": [True, False]}},
        "empty": "",
        "": "no name",
    }
    channel.basic_publish("", name, b"", pika.BasicProperties(headers=headers))
    ((_, received, _),) = take(channel, name, 1)
    assert received.headers == headers


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 300_000, 5_000_000])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_bodies_of_every_size(
    channel: BlockingChannel, name: str, size: int, delivery_mode: int
) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    properties = pika.BasicProperties(delivery_mode=delivery_mode)
    for _ in range(2):
        channel.basic_publish("", name, body, properties)
    assert bodies(channel, name, 1) == [body]
    assert channel.basic_get(name, auto_ack=True)[2] == body


def test_a_small_frame_max_splits_bodies(node: LiveNode, name: str) -> None:
    body = bytes(range(256)) * 100
    with connect(node, frame_max=4096) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        channel.basic_publish("", name, body)
        assert bodies(channel, name, 1) == [body]


def test_an_unroutable_mandatory_message_comes_back(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as raised:
        channel.basic_publish("", name, b"lost", pika.BasicProperties(type="t"), mandatory=True)
    (returned,) = raised.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.routing_key, returned.body) == (name, b"lost")
    assert returned.properties.type == "t"
    channel.basic_publish("", name, b"dropped")  # not mandatory: confirmed and forgotten


def test_a_full_queue_that_rejects_nacks_and_keeps_what_it_has(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"3")
    assert bodies(channel, name, 1) == [b"1"]
    channel.basic_publish("", name, b"4")
    assert bodies(channel, name, 2) == [b"2", b"4"]


def test_a_full_queue_drops_its_head(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 2})
    channel.confirm_delivery()
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    assert bodies(channel, name, 2) == [b"2", b"3"]


@pytest.mark.parametrize(
    ("kind", "binding", "key", "matches"),
    [
        ("direct", "k", "k", True),
        ("direct", "k", "other", False),
        ("fanout", "", "anything", True),
        ("topic", "a.*.c.#", "a.b.c", True),
        ("topic", "a.*.c.#", "a.b.c.d.e", True),
        ("topic", "a.*.c.#", "a.c", False),
    ],
)
def test_exchange_types(
    channel: BlockingChannel, name: str, kind: str, binding: str, key: str, matches: bool
) -> None:
    channel.exchange_declare(name, kind)
    channel.queue_declare(name)
    channel.queue_bind(name, name, binding)
    channel.confirm_delivery()
    channel.basic_publish(name, key, b"x")
    assert ready(channel, name) == int(matches)
    channel.queue_unbind(name, name, binding)
    channel.basic_publish(name, key, b"x")
    assert ready(channel, name) == int(matches)


@pytest.mark.parametrize(("match", "expected"), [("all", [b"both"]), ("any", [b"one", b"both"])])
def test_the_headers_exchange(
    channel: BlockingChannel, name: str, match: str, expected: list[bytes]
) -> None:
    channel.exchange_declare(name, "headers")
    channel.queue_declare(name)
    channel.queue_bind(name, name, arguments={"x-match": match, "a": 1, "b": "two"})
    channel.confirm_delivery()
    for body, headers in ((b"none", {}), (b"one", {"a": 1}), (b"both", {"a": 1, "b": "two"})):
        channel.basic_publish(name, "", body, pika.BasicProperties(headers=headers))
    assert ready(channel, name) == len(expected)
    assert bodies(channel, name, len(expected)) == expected


def test_exchanges_bound_to_exchanges_and_an_alternate(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}.else", "fanout")
    channel.exchange_declare(
        f"{name}.in", "topic", arguments={"alternate-exchange": f"{name}.else"}
    )
    channel.exchange_declare(f"{name}.out", "fanout", internal=True)
    channel.exchange_bind(f"{name}.out", f"{name}.in", "to.#")
    for queue, exchange in ((f"{name}.1", f"{name}.out"), (f"{name}.2", f"{name}.else")):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange)
    channel.basic_publish(f"{name}.in", "to.you", b"bound")
    channel.basic_publish(f"{name}.in", "away", b"else")
    assert bodies(channel, f"{name}.1", 1) == [b"bound"]
    assert bodies(channel, f"{name}.2", 1) == [b"else"]
    channel.exchange_unbind(f"{name}.out", f"{name}.in", "to.#")
    channel.basic_publish(f"{name}.in", "to.you", b"else again")
    assert bodies(channel, f"{name}.2", 1) == [b"else again"]


def test_prefetch_holds_back_until_an_ack(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=2)
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    arrived: list[tuple[int, bytes]] = []

    def received(_: Any, method: Any, __: Any, body: bytes) -> None:
        arrived.append((method.delivery_tag, body))

    channel.basic_consume(name, received)
    wait_for(channel, lambda: len(arrived) == 2)
    assert ready(channel, name) == 3  # an answer after the deliveries: no third is under way
    assert len(arrived) == 2
    channel.basic_ack(arrived[1][0], multiple=True)
    wait_for(channel, lambda: len(arrived) == 4)
    assert ready(channel, name) == 1
    assert [body for _, body in arrived] == [b"0", b"1", b"2", b"3"]


def wait_for(channel: BlockingChannel, condition: Any) -> None:
    rounds = 0
    while not condition():
        assert rounds < WAIT_S * 10
        rounds += 1
        channel.connection.process_data_events(time_limit=0.1)


def test_nack_and_reject_requeue_in_place_with_the_flag(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    first, _, _ = channel.basic_get(name)
    second, _, _ = channel.basic_get(name)
    channel.basic_reject(first.delivery_tag, requeue=True)
    channel.basic_nack(second.delivery_tag, requeue=True)
    taken = take(channel, name, 3)
    assert [(body, method.redelivered) for method, _, body in taken] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]


def test_nack_multiple_and_recover(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    for number in range(4):
        channel.basic_publish("", name, b"%d" % number)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[1], multiple=True, requeue=True)
    assert ready(channel, name) == 3
    channel.basic_recover(requeue=True)
    assert ready(channel, name) == 4
    assert bodies(channel, name, 4) == [b"0", b"1", b"2", b"3"]


def test_rejected_messages_go_to_the_dead_letter_exchange(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(f"{name}.dlx", "topic")
    channel.queue_declare(f"{name}.dead")
    channel.queue_bind(f"{name}.dead", f"{name}.dlx", "#")
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": f"{name}.dlx"})
    channel.basic_publish("", name, b"bad")
    method, _, _ = channel.basic_get(name)
    channel.basic_nack(method.delivery_tag, requeue=False)
    ((method, properties, body),) = take(channel, f"{name}.dead", 1)
    assert (method.exchange, method.routing_key, body) == (f"{name}.dlx", name, b"bad")
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["count"], death["queue"]) == ("rejected", 1, name)
    assert (death["exchange"], death["routing-keys"]) == ("", [name])
    assert properties.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize("by", ["queue", "message"])
def test_expired_messages_go_to_the_dead_letter_exchange(
    channel: BlockingChannel, name: str, by: str
) -> None:
    channel.queue_declare(f"{name}.dead")
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{name}.dead",
    }
    if by == "queue":
        arguments["x-message-ttl"] = 30
    channel.queue_declare(name, arguments=arguments)
    expiration = "30" if by == "message" else None
    channel.basic_publish("", name, b"old", pika.BasicProperties(expiration=expiration))
    ((_, properties, body),) = take(channel, f"{name}.dead", 1)
    assert body == b"old"
    assert properties.expiration is None
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"]) == ("expired", name)
    assert death.get("original-expiration") == expiration
    assert ready(channel, name) == 0


def test_priorities(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-priority": 5})
    channel.confirm_delivery()
    for priority in (None, 1, 5, 3, 9, 1):
        body = str(priority).encode()
        channel.basic_publish("", name, body, pika.BasicProperties(priority=priority))
    assert bodies(channel, name, 6) == [b"5", b"9", b"3", b"1", b"1", b"None"]


def test_exclusive_queues_are_locked_and_go_with_their_connection(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    with connect(node) as owner:
        owner.channel().queue_declare(name, exclusive=True)
        with pytest.raises(ChannelClosedByBroker) as raised:
            channel.queue_declare(name, passive=True)
        assert raised.value.reply_code == 405
    with connect(node) as other, pytest.raises(ChannelClosedByBroker) as raised:
        other.channel().queue_declare(name, passive=True)
    assert raised.value.reply_code == 404


def test_auto_delete_goes_with_the_last_consumer(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_declare(name, auto_delete=True)
    channel.queue_bind(name, name)
    channel.basic_publish(name, "", b"x")
    take(channel, name, 1)
    with pytest.raises(ChannelClosedByBroker) as raised:
        channel.queue_declare(name, passive=True)
    assert raised.value.reply_code == 404
    with pytest.raises(ChannelClosedByBroker) as raised:
        channel.connection.channel().exchange_declare(name, passive=True)
    assert raised.value.reply_code == 404


def test_an_idle_queue_expires(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 50})
    cancelled: list[str] = []
    channel.queue_declare(f"{name}.used", arguments={"x-expires": 50})
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(f"{name}.used", lambda *_: None)
    # Publishing does not count as use, so it can be asked for without keeping it alive.
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        publish_while_routed(channel, name)
    assert not cancelled
    assert ready(channel, f"{name}.used") == 0


def publish_while_routed(channel: BlockingChannel, queue: str) -> None:
    for _ in range(WAIT_S * 20):
        channel.basic_publish("", queue, b"", mandatory=True)
        channel.connection.process_data_events(time_limit=0.05)


def test_a_deleted_queue_cancels_its_consumers(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(name, lambda *_: None, consumer_tag="told")
    with connect(node) as other:
        other.channel().queue_delete(name)
    wait_for(channel, lambda: cancelled)
    assert cancelled == ["told"]


def test_transactions(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.tx_select()
    channel.basic_publish("", name, b"undone", PERSISTENT)
    channel.tx_rollback()
    channel.basic_publish("", name, b"done", PERSISTENT)
    assert ready(channel, name) == 0
    channel.tx_commit()
    assert ready(channel, name) == 1
    method, _, body = channel.basic_get(name)
    assert body == b"done"
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    assert channel.basic_get(name) == (None, None, None)


def test_direct_reply_to(node: LiveNode, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    answers: list[tuple[str, bytes]] = []

    def answered(_: Any, __: Any, properties: pika.BasicProperties, body: bytes) -> None:
        answers.append((properties.correlation_id, body))

    channel.basic_consume("amq.rabbitmq.reply-to", answered, auto_ack=True)
    for number in range(3):
        channel.basic_publish(
            "",
            name,
            b"%d" % number,
            pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)),
        )
    with connect(node) as server:
        serving = server.channel()
        for _, request, body in take(serving, name, 3):
            assert request.reply_to.startswith("amq.rabbitmq.reply-to.")
            properties = pika.BasicProperties(correlation_id=request.correlation_id)
            serving.basic_publish("", request.reply_to, b"re " + body, properties)
        wait_for(channel, lambda: len(answers) == 3)
    assert answers == [("0", b"re 0"), ("1", b"re 1"), ("2", b"re 2")]


def test_single_active_consumer_and_consumer_priority(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-single-active-consumer": True})
    got: list[str] = []

    def consumer(tag: str) -> Any:
        def received(_: Any, method: Any, __: Any, ___: bytes) -> None:
            got.append(tag)
            channel.basic_ack(method.delivery_tag)

        return received

    channel.basic_consume(name, consumer("first"), consumer_tag="first")
    channel.basic_consume(name, consumer("second"), consumer_tag="second")
    channel.basic_publish("", name, b"")
    channel.basic_publish("", name, b"")
    wait_for(channel, lambda: len(got) == 2)
    channel.basic_cancel("first")
    channel.basic_publish("", name, b"")
    wait_for(channel, lambda: len(got) == 3)
    assert got == ["first", "first", "second"]


def test_purge_and_delete_say_how_many(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"")
    assert channel.queue_purge(name).method.message_count == 3
    channel.basic_publish("", name, b"")
    assert channel.queue_delete(name).method.message_count == 1


@pytest.mark.parametrize(
    ("does", "code"),
    [
        (lambda channel, name: channel.queue_declare(name, passive=True), 404),
        (lambda channel, name: channel.basic_get(name), 404),
        (lambda channel, name: channel.queue_declare("amq.mine"), 403),
        (lambda channel, name: channel.exchange_delete("amq.topic"), 403),
        (lambda channel, name: channel.exchange_declare("amq.topic", "fanout"), 406),
        (lambda channel, name: channel.tx_commit(), 406),
        (lambda channel, name: channel.queue_declare(name, arguments={"x-max-length": "?"}), 406),
    ],
)
def test_channel_errors(channel: BlockingChannel, name: str, does: Any, code: int) -> None:
    with pytest.raises(ChannelClosedByBroker) as raised:
        does(channel, name)
    assert raised.value.reply_code == code
    channel.connection.channel().queue_declare(name)  # the connection lives on


def test_an_unknown_delivery_tag_closes_the_channel(channel: BlockingChannel) -> None:
    channel.basic_ack(99)
    with pytest.raises(ChannelClosedByBroker) as raised:
        channel.queue_declare("")
    assert raised.value.reply_code == 406


def test_publishing_to_no_exchange_closes_the_channel(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as raised:
        channel.basic_publish(name, "", b"")
    assert raised.value.reply_code == 404


def test_connection_errors(node: LiveNode, name: str) -> None:
    with pytest.raises(ConnectionClosedByBroker) as raised:
        connect(node).channel().exchange_declare(name, "no-such-type")
    assert raised.value.reply_code == 503
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        connect(node, virtual_host="nowhere")


def test_a_wrong_password_is_refused(node: LiveNode) -> None:
    with pytest.raises((AuthenticationError, ProbableAuthenticationError)):
        connect(node, credentials=pika.PlainCredentials("guest", "wrong"))


def test_heartbeats_come_and_keep_a_quiet_connection(node: LiveNode) -> None:
    with connect(node, heartbeat=1) as connection:
        checker = connection._impl._heartbeat_checker
        rounds = 0
        while checker._heartbeat_frames_received < 3:
            assert rounds < WAIT_S * 10
            rounds += 1
            connection.process_data_events(time_limit=0.1)
        connection.channel().queue_declare("", exclusive=True)


def test_messages_survive_a_restart_of_their_consumer(node: LiveNode, name: str) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"x", PERSISTENT)
        assert channel.basic_get(name)[2] == b"x"
    with connect(node) as connection:
        ((method, _, body),) = take(connection.channel(), name, 1)
        assert (method.redelivered, body) == (True, b"x")
