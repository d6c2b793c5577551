"""Visibility timeouts of AMQP consumers: a late answer settles nothing."""

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from braidmq.testing.live import LiveNode

WAIT_S = 20


@pytest.fixture
def connection(node: LiveNode) -> Iterator[BlockingConnection]:
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(where) as connection:
        yield connection


def consume(channel: BlockingChannel, queue: str, **arguments: Any) -> Iterator[tuple[Any, ...]]:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return channel.consume(queue, arguments=given, inactivity_timeout=WAIT_S)


def depth(connection: BlockingConnection, queue: str) -> int:
    """Messages that nobody has, once all that was said before is done."""
    with connection.channel() as channel:
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        return count


def test_a_message_that_is_not_answered_in_time_goes_to_others(
    connection: BlockingConnection, name: str
) -> None:
    slow, other = connection.channel(), connection.channel()
    slow.queue_declare(name)
    slow.basic_publish("", name, b"x")
    slow.basic_qos(prefetch_count=1)
    first, _, _ = next(consume(slow, name, x_visibility_timeout=300))
    again, _, body = next(consume(other, name))
    assert (first.redelivered, again.redelivered, body) == (False, True, b"x")
    slow.basic_ack(first.delivery_tag)
    with pytest.raises(ChannelClosedByBroker, match="visibility timeout is over") as refused:
        slow.queue_declare(name, passive=True)
    assert refused.value.reply_code == 406
    # The late answer did not settle what the other has.
    other.close()
    assert depth(connection, name) == 1


@pytest.mark.parametrize("answer", ["ack", "ack multiple", "nack", "reject"])
def test_a_late_answer_does_not_settle_the_same_consumers_next_delivery(
    connection: BlockingConnection, name: str, answer: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    messages = consume(channel, name, x_visibility_timeout=300)
    first, again = next(messages)[0], next(messages)[0]
    assert first.delivery_tag < again.delivery_tag
    if answer == "nack":
        channel.basic_nack(first.delivery_tag, requeue=False)
    elif answer == "reject":
        channel.basic_reject(first.delivery_tag, requeue=False)
    else:
        channel.basic_ack(first.delivery_tag, multiple=answer.endswith("multiple"))
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare(name, passive=True)
    assert depth(connection, name) == 1


def test_an_answer_in_time_counts(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    for body in (b"a", b"b"):
        channel.basic_publish("", name, body)
    for method, _, body in consume(channel, name, x_visibility_timeout=20_000):
        channel.basic_ack(method.delivery_tag)
        if body == b"b":
            break
    channel.close()
    assert depth(connection, name) == 0


@pytest.mark.parametrize("given", [0, -1, "soon", True, 1 << 40])
def test_what_is_no_time_is_refused(
    connection: BlockingConnection, name: str, given: object
) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    with pytest.raises(ChannelClosedByBroker, match="invalid visibility timeout") as refused:
        next(consume(channel, name, x_visibility_timeout=given))
    assert refused.value.reply_code == 406


def test_it_is_for_those_who_acknowledge(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    arguments = {"x-visibility-timeout": 1000}
    with pytest.raises(ChannelClosedByBroker):
        channel.basic_consume(name, lambda *_: None, auto_ack=True, arguments=arguments)
    transactional = connection.channel()
    transactional.tx_select()
    with pytest.raises(ChannelClosedByBroker):
        transactional.basic_consume(name, lambda *_: None, arguments=arguments)
    consuming = connection.channel()
    consuming.basic_consume(name, lambda *_: None, arguments=arguments)
    with pytest.raises(ChannelClosedByBroker):
        consuming.tx_select()
