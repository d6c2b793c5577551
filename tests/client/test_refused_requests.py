"""What is wrong with a request is raised at once, typed: only a lost connection is retried."""

import asyncio

import pytest
from talking import WAIT_S, drained, url_of

import braidmq
from braidmq.client.topology import Topology
from braidmq.testing.live import LiveNode
from braidmq.wire.amqp.methods import ExchangeDeclare

pytestmark = pytest.mark.timeout(60)

LONG = "x" * 256
LARGE = "y" * 200_000
"""More than a frame."""


async def consuming(broker: braidmq.Broker, topic: str, **options) -> None:
    async with broker.consume(topic, **options):
        pass


async def producing(broker: braidmq.Broker, **options) -> None:
    async with broker.producer(**options) as producer:
        await producer.send("q", b"x")


async def transacting(broker: braidmq.Broker, name: str = "", **options) -> None:
    async with broker.transaction(name, **options) as tx:
        await tx.publish("q", b"x")


async def sending_many(broker: braidmq.Broker) -> None:
    async with broker.producer() as producer:
        await producer.send_many("q", [b"x"] * 3, headers={"a": LARGE})


APPLICATION = {"name": "a", "epoch": -1, "sequence": 1}

AT_FAULT = {
    "the broker closes the connection over it": (
        lambda broker: broker.declare_exchange("e", "bogus"),
        braidmq.BadRequest,
    ),
    "it closes the channel over it": (
        lambda broker: broker.declare_queue("q2", arguments={"x-message-ttl": "soon"}),
        braidmq.Conflict,
    ),
    "arguments larger than a frame": (
        lambda broker: broker.declare_queue("q", arguments={"x": LARGE}),
        braidmq.BadRequest,
    ),
    "headers larger than a frame": (
        lambda broker: broker.publish("q", b"x", headers={"a": LARGE}),
        braidmq.BadRequest,
    ),
    "of many messages": (sending_many, braidmq.BadRequest),
    "of a call": (
        lambda broker: broker.call("q", b"x", headers={"a": LARGE}),
        braidmq.BadRequest,
    ),
    "a name too long": (lambda broker: broker.declare_queue(LONG), braidmq.BadRequest),
    "text that is none": (lambda broker: broker.declare_queue("\udcff"), braidmq.BadRequest),
    "a number too large": (
        lambda broker: broker.declare_queue("q", arguments={"x": 1 << 70}),
        braidmq.BadRequest,
    ),
    "an argument of no type": (
        lambda broker: broker.declare_queue("q", arguments={"x": object()}),
        braidmq.BadRequest,
    ),
    "a consumer's topic too long": (lambda broker: consuming(broker, LONG), braidmq.BadRequest),
    "a prefetch too large": (
        lambda broker: consuming(broker, "q", prefetch=70_000),
        braidmq.BadRequest,
    ),
    "no such queue": (lambda broker: consuming(broker, "nowhere"), braidmq.NotFound),
    "a producer's name too long": (lambda broker: producing(broker, name=LONG), braidmq.BadRequest),
    "a transaction's name too long": (lambda broker: transacting(broker, LONG), braidmq.BadRequest),
    "a transaction's time": (
        lambda broker: transacting(broker, timeout_ms=-1),
        braidmq.BadRequest,
    ),
    "a transaction's application": (
        lambda broker: transacting(broker, application=APPLICATION),
        braidmq.BadRequest,
    ),
}


@pytest.mark.parametrize("what", AT_FAULT)
async def test_it_is_raised_at_once(broker: braidmq.Broker, what):
    request, error = AT_FAULT[what]
    await broker.declare_queue("q")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(error):
            await request(broker)
        # What comes next is served, on this connection or another.
        await broker.publish("q", b"next")
        assert await drained(broker, "q", 1) == [b"next"]


async def test_an_error_to_keep_that_is_too_long_leaves_the_connection(broker, queue):
    """It would be said again with each delivery."""
    connection = broker._link._connection
    await broker.publish(queue, b"x")
    async with broker.consume(queue) as consumer:
        message = await anext(consumer)
        await message.reject(error="e" * 300_000)
        await broker.publish(queue, b"y")
        await (await anext(consumer)).ack()
    assert broker._link._connection is connection


@pytest.mark.parametrize("delay_ms", [-1, 1.5, True, "1s", 1 << 64])
async def test_an_answer_that_is_none_leaves_the_message_unanswered(broker, queue, delay_ms):
    await broker.publish(queue, b"x")
    async with broker.consume(queue) as consumer:
        message = await anext(consumer)
        for error in ("", "why"):
            with pytest.raises(braidmq.BadRequest, match="delay_ms"):
                await message.nack(delay_ms=delay_ms, error=error)
        await message.ack()
    assert (await broker.declare_queue(queue)).message_count == 0


async def test_only_who_is_at_fault_is_refused(broker, name):
    """Requests under way at the same time are lost with the connection, and asked again."""
    requests = [
        broker.declare_exchange(f"{name}-{number}", "bogus" if number in (3, 7) else "fanout")
        for number in range(10)
    ]
    async with asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert [number for number, answer in enumerate(answers) if answer is not None] == [3, 7]
        assert all(isinstance(answers[number], braidmq.BadRequest) for number in (3, 7))
        for number in (0, 9):
            await broker.delete_exchange(f"{name}-{number}")


async def test_what_else_uses_the_connection_goes_on(broker, queue):
    async with broker.producer() as producer, broker.consume(queue) as consumer:
        await producer.put(queue, b"1")
        with pytest.raises(braidmq.BadRequest, match="bogus"):
            await broker.declare_exchange("e", "bogus")
        await producer.put(queue, b"2")
        await producer.flush()
        found = set()
        async with asyncio.timeout(WAIT_S):
            while found != {b"1", b"2"}:
                message = await anext(consumer)
                found.add(message.value)
                await message.ack()


async def test_the_most_that_headers_can_be(broker, queue):
    """To the byte: what is said to fit does, and nothing that does is refused."""
    connection = broker._link._connection
    with pytest.raises(braidmq.BadRequest) as caught:
        await broker.publish(queue, b"x", headers={"a": LARGE})
    size, most = (
        int(word) for word in str(caught.value).replace(".", " ").split() if word.isdigit()
    )
    fits = len(LARGE) - (size - most)
    await broker.publish(queue, b"fits", headers={"a": "y" * fits})
    with pytest.raises(braidmq.BadRequest):
        await broker.publish(queue, b"x", headers={"a": "y" * (fits + 1)})
    async with broker.consume(queue, auto_ack=True) as consumer:
        message = await anext(consumer)
        assert message.value == b"fits"
        assert len(message.headers["a"]) == fits
    assert broker._link._connection is connection


async def test_what_can_not_be_restored_is_given_up(node: LiveNode, caplog):
    """Or each connection would end over it."""
    async with braidmq.connect(url_of(node)) as broker:
        await broker.declare_queue("stays", exclusive=True)
        topology: Topology = broker._link.topology
        topology.declared(ExchangeDeclare("of-a-plugin", "gone", durable=False))
        before = broker._link._connection
        before._transport.abort()
        async with asyncio.timeout(WAIT_S):
            await before.lost
            await broker.publish("stays", b"x")
        assert "exchange.declare could not be restored" in caplog.text
