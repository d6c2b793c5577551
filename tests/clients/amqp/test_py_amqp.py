"""py-amqp: the library under kombu and Celery."""

import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from amqp.exceptions import (
    AccessRefused,
    MessageNacked,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

import amqp
from braidmq.testing.live import LiveNode

WAIT_S = 20


def connect(node: LiveNode, **settings: Any) -> amqp.Connection:
    connection = amqp.Connection(
        f"127.0.0.1:{node.ports['amqp_port']}", read_timeout=WAIT_S, **settings
    )
    connection.connect()
    return connection


@pytest.fixture
def channel(node: LiveNode) -> Iterator[amqp.Channel]:
    with connect(node) as connection:
        yield connection.channel()


@pytest.fixture
def confirming(node: LiveNode) -> Iterator[amqp.Channel]:
    with connect(node, confirm_publish=True) as connection:
        yield connection.channel()


def publish(channel: amqp.Channel, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish(amqp.Message(body, **properties), "", queue, timeout=WAIT_S)


def take(channel: amqp.Channel, queue: str, count: int) -> list[amqp.Message]:
    taken: list[amqp.Message] = []
    tag = channel.basic_consume(queue, callback=taken.append)
    while len(taken) < count:
        channel.connection.drain_events(timeout=WAIT_S)
    channel.basic_cancel(tag)
    for message in taken:
        channel.basic_ack(message.delivery_tag)
    return taken


def count(channel: amqp.Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).message_count)


def test_publish_get_and_consume(confirming: amqp.Channel, name: str) -> None:
    confirming.queue_declare(name, durable=True, auto_delete=False)
    publish(confirming, name, b"1", b"", b"3", delivery_mode=2)
    message = confirming.basic_get(name)
    assert (message.body, message.delivery_info["redelivered"]) == (b"1", False)
    assert message.delivery_info["message_count"] == 2
    confirming.basic_ack(message.delivery_tag)
    assert [each.body for each in take(confirming, name, 2)] == [
        "",
        b"3",
    ]  # py-amqp's word for nothing
    assert confirming.basic_get(name) is None


@pytest.mark.parametrize("size", [131_064, 131_065, 5_000_000])
def test_large_bodies(confirming: amqp.Channel, name: str, size: int) -> None:
    confirming.queue_declare(name)
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    publish(confirming, name, body)
    assert take(confirming, name, 1)[0].body == body


def test_headers_of_every_type(channel: amqp.Channel, name: str) -> None:
    headers = {
        "text": "grüße",
        "bytes": b"\x00\xff",
        "int": 7,
        "negative": -7,
        "long": 2**40,
        "double": 0.1,
        "bool": True,
        "none": None,
        "decimal": Decimal("3.14"),
        "time": datetime(2024, 2, 29, 12),
        "list": [1, "two", [3.5, None]],
        "table": {"deep": {"deeper": [True]}},
    }
    channel.queue_declare(name)
    publish(channel, name, b"", application_headers=headers, correlation_id="c", priority=4)
    (message,) = take(channel, name, 1)
    received = dict(message.headers)
    received["time"] = received["time"].replace(tzinfo=None)
    assert received == headers
    assert (message.properties["correlation_id"], message.properties["priority"]) == ("c", 4)


def test_nacked_and_returned(confirming: amqp.Channel, name: str) -> None:
    returned: list[int] = []
    confirming.events["basic_return"].add(lambda error, *_: returned.append(error.reply_code))
    confirming.basic_publish_confirm(amqp.Message(b""), "", name, mandatory=True, timeout=WAIT_S)
    assert returned == [312]
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    confirming.queue_declare(name, arguments=arguments)
    publish(confirming, name, b"1")
    with pytest.raises(MessageNacked):
        publish(confirming, name, b"2")


def test_exchanges(channel: amqp.Channel, name: str) -> None:
    channel.exchange_declare(f"{name}.t", "topic", auto_delete=False)
    channel.exchange_declare(f"{name}.h", "headers", auto_delete=False)
    channel.exchange_bind(f"{name}.h", f"{name}.t", "a.#")
    channel.queue_declare(name)
    channel.queue_bind(name, f"{name}.h", arguments={"x-match": "any", "x": 1, "y": 2})
    for key, headers in (("a.b", {"x": 1}), ("a.b", {"x": 2}), ("b", {"x": 1}), ("a", {"y": 2})):
        message = amqp.Message(key, application_headers=headers)
        channel.basic_publish(message, f"{name}.t", key)
    assert count(channel, name) == 2
    assert [each.body for each in take(channel, name, 2)] == ["a.b", "a"]
    channel.exchange_unbind(f"{name}.h", f"{name}.t", "a.#")
    channel.exchange_delete(f"{name}.t")
    channel.exchange_delete(f"{name}.h")


def test_qos_and_answers(channel: amqp.Channel, name: str) -> None:
    channel.queue_declare(name)
    publish(channel, name, b"1", b"2", b"3")
    channel.basic_qos(0, 2, False)
    got: list[amqp.Message] = []
    channel.basic_consume(name, callback=got.append)
    while len(got) < 2:
        channel.connection.drain_events(timeout=WAIT_S)
    assert count(channel, name) == 1
    channel.basic_reject(got[0].delivery_tag, requeue=True)
    channel.basic_ack(got[1].delivery_tag)
    while len(got) < 4:
        channel.connection.drain_events(timeout=WAIT_S)
    again = [(each.body, each.delivery_info["redelivered"]) for each in got[2:]]
    assert again == [(b"1", True), (b"3", False)]


def test_recover(channel: amqp.Channel, name: str) -> None:
    channel.queue_declare(name)
    publish(channel, name, b"x")
    assert not channel.basic_get(name).delivery_info["redelivered"]
    channel.basic_recover(requeue=True)
    assert channel.basic_get(name).delivery_info["redelivered"]


def test_transactions(channel: amqp.Channel, name: str) -> None:
    channel.queue_declare(name, auto_delete=False)
    channel.tx_select()
    publish(channel, name, b"undone")
    channel.tx_rollback()
    publish(channel, name, b"done")
    channel.tx_commit()
    assert [each.body for each in take(channel, name, 1)] == [b"done"]
    channel.tx_commit()
    assert count(channel, name) == 0


def test_a_cancelled_consumer_is_told(channel: amqp.Channel, name: str) -> None:
    told: list[str] = []
    channel.queue_declare(name)
    channel.basic_consume(name, consumer_tag="c", on_cancel=told.append)
    channel.connection.channel().queue_delete(name)
    while not told:
        channel.connection.drain_events(timeout=WAIT_S)
    assert told == ["c"]


def test_errors(node: LiveNode, channel: amqp.Channel, name: str) -> None:
    connection = channel.connection
    with pytest.raises(NotFound):
        connection.channel().queue_declare(name, passive=True)
    with pytest.raises(AccessRefused):
        connection.channel().exchange_delete("amq.direct")
    with pytest.raises(PreconditionFailed):
        connection.channel().exchange_declare("amq.direct", "fanout", durable=True)
    channel.queue_declare(name, exclusive=True)
    with connect(node) as other, pytest.raises(ResourceLocked):
        other.channel().queue_declare(name, exclusive=True)
    with pytest.raises(AccessRefused):
        connect(node, password="wrong")


def test_amqplain_login(node: LiveNode) -> None:
    with connect(node, login_method="AMQPLAIN") as connection:
        assert connection.channel().queue_declare("").queue.startswith("amq.gen-")


def test_heartbeats(node: LiveNode) -> None:
    with connect(node, heartbeat=1) as connection:
        received = connection.bytes_recv
        deadline = time.monotonic() + WAIT_S
        while connection.bytes_recv < received + 3:
            assert time.monotonic() < deadline
            connection.heartbeat_tick()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
        connection.channel().queue_declare("")
