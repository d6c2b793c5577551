"""What tests of the client share."""

import asyncio
from collections.abc import AsyncIterator

import braidmq
from braidmq.testing.live import LiveNode

WAIT_S = 30.0
"""Only ever reached by a test that fails."""


def url_of(node: LiveNode, user: str = "guest:guest") -> str:
    return f"amqp://{user}@127.0.0.1:{node.ports['amqp_port']}/"


async def taken(consumer: braidmq.Consumer, count: int) -> list[braidmq.Message]:
    """The next messages, not answered."""
    async with asyncio.timeout(WAIT_S):
        return [await anext(consumer) for _ in range(count)]


async def drained(broker: braidmq.Broker, queue: str, count: int) -> list[bytes]:
    """The values of the next messages, acknowledged."""
    async with broker.consume(queue, auto_ack=True) as consumer:
        return [message.value for message in await taken(consumer, count)]


async def nothing_left(broker: braidmq.Broker, queue: str) -> bool:
    """Whether the queue is empty: a marker published now is the first to come."""
    await broker.publish(queue, b"marker")
    async with broker.consume(queue, auto_ack=True) as consumer:
        return (await taken(consumer, 1))[0].value == b"marker"


async def collect(messages: AsyncIterator[braidmq.StoredMessage]) -> list[bytes | None]:
    return [message.value async for message in messages]
