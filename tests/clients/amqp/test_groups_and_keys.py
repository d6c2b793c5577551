"""What AMQP lacks, for any AMQP client: groups, keys and delays by arguments and headers."""

import time
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from braidmq.testing.live import LiveNode

WAIT_S = 20


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def publish(channel: BlockingChannel, queue: str, body: bytes, **headers: object) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers, delivery_mode=2))


def consumed(channel: BlockingChannel, queue: str, count: int, **arguments: object) -> list[bytes]:
    """The next messages of a group, acknowledged."""
    found: list[bytes] = []
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    for method, _, body in channel.consume(queue, arguments=named, inactivity_timeout=WAIT_S):
        assert method is not None, f"{len(found)} of {count} messages"
        channel.basic_ack(method.delivery_tag)
        found.append(body)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_groups_do_not_take_from_each_other(channel, name):
    channel.queue_declare(name, durable=True)
    for number in range(5):
        publish(channel, name, b"%d" % number)
    everything = [b"0", b"1", b"2", b"3", b"4"]
    assert consumed(channel, name, 2, x_group="a") == everything[:2]
    assert consumed(channel, name, 5, x_group="b") == everything
    assert consumed(channel, name, 3, x_group="a") == everything[2:]
    assert consumed(channel, name, 2, x_group="c", x_group_offset=3) == everything[3:]
    assert consumed(channel, name, 5) == everything


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"x-group": 5}, "x-group"),
        ({"x-group": ""}, "x-group"),
        ({"x-group": "g", "x-group-mode": "alone"}, "x-group-mode"),
        ({"x-group": "g", "x-group-mode": 1}, "x-group-mode"),
        ({"x-group": "g", "x-group-offset": True}, "x-group-offset"),
        ({"x-group": "g", "x-group-offset": "sometime"}, "sometime"),
        ({"x-group": "g", "x-group-offset": 99}, "99"),
        ({"x-group": "g", "x-group-member": "m"}, "not assigned"),
        ({"x-group-mode": "assigned"}, "names no group"),
        ({"x-group-member": "m"}, "names no group"),
        ({"x-group-offset": 0}, "names no group"),
    ],
)
def test_groups_that_are_none(channel, name, arguments, complaint):
    channel.queue_declare(name)
    with pytest.raises(ChannelClosedByBroker, match=complaint) as caught:
        channel.basic_consume(name, lambda *_: None, arguments=arguments)
    assert caught.value.reply_code == 406


def test_a_group_of_no_topic(channel):
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_consume("nowhere", lambda *_: None, arguments={"x-group": "g"})
    assert caught.value.reply_code == 404


def test_a_delayed_message_on_any_exchange(channel, name):
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", "a.*")
    began = time.monotonic()
    headers = pika.BasicProperties(headers={"x-delay": 400})
    channel.basic_publish("amq.topic", "a.b", b"delayed", headers)
    publish(channel, name, b"at", **{"x-deliver-at": int(time.time() * 1000) + 200})
    publish(channel, name, b"now")
    assert consumed(channel, name, 3) == [b"now", b"at", b"delayed"]
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("key", [17, None, "k" * 65_536])
def test_a_key_that_is_none_is_refused(channel, name, key):
    """Without it the order would be lost, and nobody would know."""
    channel.queue_declare(name)
    with pytest.raises(ChannelClosedByBroker, match="x-key") as caught:
        publish(channel, name, b"x", **{"x-key": key})
    assert caught.value.reply_code == 406


def test_a_key_comes_back_as_it_was(channel, name):
    channel.queue_declare(name)
    publish(channel, name, b"x", **{"x-key": "customer", "other": 1})
    _, properties, _ = channel.basic_get(name, auto_ack=True)
    assert properties.headers == {"x-key": "customer", "other": 1}
