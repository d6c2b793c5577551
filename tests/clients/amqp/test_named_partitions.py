"""Messages that name their partition with ``x-partition``, and what deliveries say of theirs."""

from collections.abc import Iterator

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from braidmq.testing.live import LiveNode

FACTS = {"x-delivery-facts": True}


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture
def spread(node: LiveNode, channel: BlockingChannel, name: str) -> str:
    """A topic of three partitions that is a queue, too."""
    auth = ("guest", "guest")
    url = f"{node.http_url}/v1/topics/{name}"
    httpx.put(url, json={"settings": {"partitions": 3}}, auth=auth).raise_for_status()
    channel.queue_declare(name, durable=True)
    return name


def publish(channel: BlockingChannel, key: str, body: bytes, exchange="", **headers: object):
    named = {each.replace("_", "-"): value for each, value in headers.items()}
    said = pika.BasicProperties(headers=named or None, delivery_mode=2)
    channel.basic_publish(exchange, key, body, said)


def places(channel: BlockingChannel, queue: str, count: int) -> dict[bytes, int]:
    """Which partition each of the next messages is in."""
    found: dict[bytes, int] = {}
    for method, properties, body in channel.consume(queue, arguments=FACTS, inactivity_timeout=20):
        assert method is not None, f"{len(found)} of {count} messages"
        channel.basic_ack(method.delivery_tag)
        found[body] = properties.headers["x-partition"]
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_runs_are_cut_where_the_partition_changes(channel, spread):
    """Without confirms in between, so that they come in one piece."""
    wanted = {b"%d" % number: number // 5 % 3 for number in range(60)}
    sender = channel.connection.channel()
    for body, partition in wanted.items():
        publish(sender, spread, body, x_partition=partition, x_key="the same")
    assert places(channel, spread, len(wanted)) == wanted


def test_an_exchange_takes_it_if_all_its_topics_have_the_partition(channel, spread):
    channel.exchange_declare(spread, "fanout")
    channel.queue_bind(spread, spread)
    channel.queue_declare(f"{spread}-one")
    channel.queue_bind(f"{spread}-one", spread)
    publish(channel, "", b"both", spread, x_partition=0)
    with pytest.raises(ChannelClosedByBroker, match="unknown-partition") as caught:
        publish(channel, "", b"neither", spread, x_partition=2)
    assert caught.value.reply_code == 404
    again = channel.connection.channel()
    again.confirm_delivery()
    publish(again, "", b"last", spread)
    assert set(places(again, spread, 2)) == {b"both", b"last"}
    assert set(places(again, f"{spread}-one", 2)) == {b"both", b"last"}


@pytest.mark.parametrize("partition", [-1, 70_000, "1", None, True])
def test_what_is_no_partition_is_refused(channel, spread, partition):
    with pytest.raises(ChannelClosedByBroker, match="x-partition") as caught:
        publish(channel, spread, b"nowhere", x_partition=partition)
    assert caught.value.reply_code == 406


def test_in_a_transaction(channel, spread):
    sender = channel.connection.channel()
    sender.tx_select()
    publish(sender, spread, b"a", x_partition=2)
    publish(sender, spread, b"b", x_partition=1)
    sender.tx_commit()
    assert places(channel, spread, 2) == {b"a": 2, b"b": 1}
    publish(sender, spread, b"c", x_partition=9)
    with pytest.raises(ChannelClosedByBroker, match="unknown-partition"):
        sender.tx_commit()


@pytest.mark.parametrize("wish", ["yes", 1, None])
def test_a_wish_for_facts_is_a_boolean(channel, spread, wish):
    with pytest.raises(ChannelClosedByBroker, match="x-delivery-facts") as caught:
        channel.basic_consume(spread, lambda *_: None, arguments={"x-delivery-facts": wish})
    assert caught.value.reply_code == 406


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_who_does_not_ask_sees_what_rabbitmq_says(channel, name, kind):
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    channel.basic_qos(prefetch_count=10)
    publish(channel, name, b"plain")
    for delivery in range(2):
        method, properties, _ = next(channel.consume(name, inactivity_timeout=20))
        channel.cancel()
        channel.basic_nack(method.delivery_tag, requeue=True)
        said = {"quorum": {"x-delivery-count": 1} if delivery else None}
        said["stream"] = {"x-stream-offset": 0}
        assert properties.headers == said.get(kind)
