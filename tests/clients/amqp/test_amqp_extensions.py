"""RabbitMQ's plugins, streams and limits: delayed and hashing exchanges, reading by offset, how
much a vhost may have, consumers that never answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError
from raw_client import RawClient

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m

WAIT_S = 20
GUEST = ("guest", "guest")


@contextmanager
def opened(node: LiveNode, vhost: str = "/") -> Iterator[BlockingChannel]:
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], vhost, heartbeat=0)
    connection = pika.BlockingConnection(at)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    with opened(node) as channel:
        yield channel


Message = tuple[bytes, dict[str, object]]


def consumed(
    channel: BlockingChannel, queue: str, count: int, **arguments: object
) -> list[Message]:
    found: list[Message] = []
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    for method, properties, body in channel.consume(
        queue, arguments=named, inactivity_timeout=WAIT_S
    ):
        assert method is not None, f"{len(found)} of {count} messages"
        channel.basic_ack(method.delivery_tag)
        found.append((body, properties.headers or {}))
        if len(found) == count:
            break
    channel.cancel()
    return found


# --- exchanges ---


def test_a_delayed_message_is_overtaken(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": "topic"})
    channel.queue_declare(name)
    channel.queue_bind(name, name, "a.*")
    late = pika.BasicProperties(headers={"x-delay": 300})
    channel.basic_publish(name, "a.b", b"late", late)
    channel.basic_publish(name, "a.c", b"now")
    channel.basic_publish(name, "b.c", b"nowhere", late)
    assert [body for body, _ in consumed(channel, name, 2)] == [b"now", b"late"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": "soon"},
        {"x-delay": True},
        {"x-deliver-at": "2030-01-31"},
        {"x-delay": 5, "x-deliver-at": 1 << 41},
    ],
)
def test_a_time_that_is_none_is_refused(
    channel: BlockingChannel, name: str, headers: dict[str, Any]
) -> None:
    channel.queue_declare(name)
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker, match="x-delay") as refused:
        channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
    assert refused.value.reply_code == 406


def test_a_hashing_exchange_gives_a_key_to_one_queue_and_all_queues_some(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "x-consistent-hash")
    queues = {f"{name}-{weight}": weight for weight in ("1", "3")}
    for queue, weight in queues.items():
        channel.queue_declare(queue)
        channel.queue_bind(queue, name, weight)
    for number in range(200):
        channel.basic_publish(name, f"key-{number % 100}", b"%d" % (number % 100))
    found = {}
    for queue in queues:
        depth = channel.queue_declare(queue, passive=True).method.message_count
        assert depth > 0
        found[queue] = [body for body, _ in consumed(channel, queue, depth)]
    small, large = found.values()
    assert len(small) + len(large) == 200
    assert len(small) < len(large)
    assert not set(small) & set(large)


# --- streams ---


def subscriptions(node: LiveNode, topic: str) -> list[str]:
    answer = httpx.get(f"{node.http_url}/v1/topics/{topic}/subscriptions", auth=GUEST)
    return [each["name"] for each in answer.raise_for_status().json()]


def test_readers_of_a_stream_begin_where_they_like_and_leave_nothing_behind(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    everything = [(b"%d" % number, {"x-stream-offset": number}) for number in range(5)]
    assert consumed(channel, name, 5, x_stream_offset="first") == everything
    assert consumed(channel, name, 2, x_stream_offset=3) == everything[3:]
    assert consumed(channel, name, 1, x_stream_offset="last") == everything[4:]
    assert consumed(channel, name, 5, x_stream_offset="1h") == everything
    with opened(node) as other:
        other.basic_consume(name, lambda *_: None, arguments={"x-stream-offset": "next"})
        assert len(subscriptions(node, name)) == 2
    assert subscriptions(node, name) == ["queue"]
    with pytest.raises(ChannelClosedByBroker, match="x-stream-offset"):
        channel.basic_consume(name, lambda *_: None, arguments={"x-stream-offset": "soon"})


def test_a_topic_of_another_protocol_is_read_like_a_stream(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    place = f"{node.http_url}/v1/topics/{name}"
    httpx.put(place, json={"settings": {"partitions": 1}}, auth=GUEST).raise_for_status()
    for number in range(3):
        message = {"value": str(number)}
        httpx.post(f"{place}/messages", json=message, auth=GUEST).raise_for_status()
    everything = [(b"%d" % number, {"x-stream-offset": number}) for number in range(3)]
    assert consumed(channel, name, 3, x_stream_offset="first") == everything
    assert consumed(channel, name, 1, x_stream_offset=2) == everything[2:]
    assert subscriptions(node, name) == []
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        channel.basic_consume(name, lambda *_: None)


def test_a_stream_forgets_what_its_policy_has_no_room_for(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number + bytes(1000))
    with httpx.Client(base_url=node.http_url, auth=GUEST) as admin:
        policy = {"pattern": f"^{name}$", "definition": {"max-length-bytes": 5000}}
        admin.put(f"/v1/policies/%2F/{name}", json=policy).raise_for_status()
    for number in range(20, 220):
        channel.basic_publish("", name, b"%d" % number + bytes(1000))
    (_, headers), *_ = consumed(channel, name, 1, x_stream_offset="first")
    assert int(str(headers["x-stream-offset"])) > 0


# --- limits ---


def test_a_vhost_takes_as_many_connections_and_queues_as_it_is_allowed(
    node: LiveNode, name: str
) -> None:
    with httpx.Client(base_url=node.http_url, auth=GUEST) as admin:
        admin.put(f"/v1/namespaces/{name}").raise_for_status()
        limits = {"max_connections": 1, "max_queues": 1}
        admin.put(f"/v1/namespaces/{name}/limits", json=limits).raise_for_status()
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        admin.put(f"/v1/permissions/{name}/guest", json=everything).raise_for_status()
    with opened(node, name) as channel:
        with pytest.raises(ProbableAccessDeniedError, match=r"\(530\).*connection limit"):
            opened(node, name).__enter__()
        channel.queue_declare("one")
        channel.queue_declare("one")
        with pytest.raises(ChannelClosedByBroker, match="queue limit") as full:
            channel.queue_declare("two")
        assert full.value.reply_code == 406


def test_a_consumer_that_never_answers_loses_its_channel_and_its_messages(
    tmp_path: Path, name: str
) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[amqp]\nconsumer_timeout_s = 0.5\n")
    with live_node(tmp_path / "data", config=str(config)) as node, opened(node) as channel:
        channel.queue_declare(name)
        channel.basic_publish("", name, b"m")
        with pytest.raises(ChannelClosedByBroker, match="timed out") as closed:
            for _ in channel.consume(name, inactivity_timeout=WAIT_S):
                pass  # it is delivered, and then nothing comes but the close
        assert closed.value.reply_code == 406
        again = channel.connection.channel()
        method, _, body = again.basic_get(name, auto_ack=True)
        assert method is not None
        assert (body, method.redelivered) == (b"m", True)


# --- why a message failed ---


@pytest.mark.parametrize(
    ("in_tx", "error", "text"),
    [(False, b"x" * 4097, "at most 4096"), (True, b"x", "no part of a transaction")],
)
def test_an_error_that_is_not_taken(
    node: LiveNode, name: str, in_tx: bool, error: bytes, text: str
) -> None:
    with RawClient(node) as client:
        client.open(1)
        client.declare(name)
        client.publish(1, name, b"x")
        client.ask(1, m.BasicConsume(name, "tag"), m.BasicConsumeOk)
        client.expect(m.BasicDeliver)
        client.content()
        if in_tx:
            client.ask(1, m.TxSelect(), m.TxSelectOk)
        client.method(1, m.BasicFail(1, 1, True, False, 0, error))
        closed = client.expect(m.ChannelClose)
        assert closed.reply_code == 406
        assert text in closed.reply_text
