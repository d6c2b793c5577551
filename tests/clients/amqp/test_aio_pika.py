"""aio-pika: the asyncio client, and its connection that comes back by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    QueueEmpty,
)
from aio_pika.patterns import RPC

from braidmq.testing.live import LiveNode, free_ports, live_node

WAIT_S = 20


def url_of(node: LiveNode) -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"


@pytest.fixture
async def connection(node: LiveNode) -> AsyncIterator[aio_pika.RobustConnection]:
    connection = await aio_pika.connect_robust(url_of(node), timeout=WAIT_S)
    async with connection:
        yield connection


@pytest.fixture
async def channel(connection: Any) -> AbstractChannel:
    return await connection.channel()


async def take(queue: AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    taken: list[AbstractIncomingMessage] = []
    async with queue.iterator(timeout=WAIT_S) as messages:
        async for message in messages:
            await message.ack()
            taken.append(message)
            if len(taken) == count:
                break
    return taken


async def publish(channel: AbstractChannel, key: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        message = aio_pika.Message(body, **properties)
        await channel.default_exchange.publish(message, routing_key=key, timeout=WAIT_S)


async def test_publish_get_and_consume(channel: AbstractChannel, name: str) -> None:
    queue = await channel.declare_queue(name, durable=True)
    await publish(channel, name, b"1", b"2", b"", delivery_mode=2)
    first = await queue.get(timeout=WAIT_S)
    assert (first.body, first.redelivered, first.message_count) == (b"1", False, 2)
    await first.ack()
    assert [message.body for message in await take(queue, 2)] == [b"2", b""]
    with pytest.raises(QueueEmpty):
        await queue.get(timeout=WAIT_S)


async def test_properties_and_headers(channel: AbstractChannel, name: str) -> None:
    queue = await channel.declare_queue(name)
    headers = {
        "text": "grüße",
        "int": 7,
        "big": 2**40,
        "float": 0.5,
        "bool": True,
        "none": None,
        "list": [1, "two", [3]],
        "table": {"deep": {"deeper": 1}},
        "time": datetime(2024, 2, 29, tzinfo=UTC),
    }
    await publish(
        channel,
        name,
        b"x",
        headers=headers,
        content_type="a/b",
        correlation_id="c",
        priority=3,
        expiration=60,
        timestamp=datetime(2024, 1, 1, tzinfo=UTC),
        app_id="a",
        message_id="m",
        type="t",
    )
    (message,) = await take(queue, 1)
    assert message.headers == headers
    assert (message.content_type, message.correlation_id, message.priority) == ("a/b", "c", 3)
    assert (message.app_id, message.message_id, message.type) == ("a", "m", "t")
    assert message.timestamp == datetime(2024, 1, 1, tzinfo=UTC)
    assert message.expiration == 60


async def test_a_large_body(channel: AbstractChannel, name: str) -> None:
    queue = await channel.declare_queue(name)
    body = bytes(range(256)) * 20_000
    await publish(channel, name, body)
    (message,) = await take(queue, 1)
    assert message.body == body


async def test_hundreds_of_publishes_at_once(channel: AbstractChannel, name: str) -> None:
    queue = await channel.declare_queue(name, durable=True)
    bodies = [b"%d" % number for number in range(500)]
    await asyncio.gather(*(publish(channel, name, body, delivery_mode=2) for body in bodies))
    assert sorted(message.body for message in await take(queue, 500)) == sorted(bodies)


async def test_an_unroutable_message_comes_back(connection: Any, name: str) -> None:
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(DeliveryError):
        await publish(channel, name, b"x")


async def test_a_full_queue_nacks(channel: AbstractChannel, name: str) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await channel.declare_queue(name, arguments=arguments)
    await publish(channel, name, b"1")
    with pytest.raises(DeliveryError):
        await publish(channel, name, b"2")


async def test_exchanges_and_bindings(channel: AbstractChannel, name: str) -> None:
    topic = await channel.declare_exchange(f"{name}.t", aio_pika.ExchangeType.TOPIC)
    fanout = await channel.declare_exchange(f"{name}.f", aio_pika.ExchangeType.FANOUT)
    queue = await channel.declare_queue(name, auto_delete=True)
    await fanout.bind(topic, "a.*")
    await queue.bind(fanout)
    for key in ("a.b", "b.b", "a.c"):
        await topic.publish(aio_pika.Message(key.encode()), key, mandatory=False, timeout=WAIT_S)
    assert [message.body for message in await take(queue, 2)] == [b"a.b", b"a.c"]


async def test_nack_reject_and_dead_letters(channel: AbstractChannel, name: str) -> None:
    dead = await channel.declare_queue(f"{name}.dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    queue = await channel.declare_queue(name, arguments=arguments)
    await publish(channel, name, b"x")
    await (await queue.get(timeout=WAIT_S)).nack(requeue=True)
    again = await queue.get(timeout=WAIT_S)
    assert again.redelivered
    await again.reject(requeue=False)
    (message,) = await take(dead, 1)
    (death,) = message.headers["x-death"]
    assert (death["reason"], death["queue"]) == ("rejected", name)


async def test_prefetch(channel: AbstractChannel, name: str) -> None:
    await channel.set_qos(prefetch_count=2)
    queue = await channel.declare_queue(name)
    await publish(channel, name, b"1", b"2", b"3")
    arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await queue.consume(arrived.put)
    first = await asyncio.wait_for(arrived.get(), WAIT_S)
    await asyncio.wait_for(arrived.get(), WAIT_S)
    wire = await channel.get_underlay_channel()
    assert (await wire.queue_declare(name, passive=True)).message_count == 1
    assert arrived.empty()
    await first.ack()
    assert (await asyncio.wait_for(arrived.get(), WAIT_S)).body == b"3"


async def test_a_transaction(connection: Any, name: str) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(name)
    async with channel.transaction():
        await publish(channel, name, b"kept")
    with contextlib.suppress(ZeroDivisionError):
        async with channel.transaction():
            await publish(channel, name, b"undone")
            raise ZeroDivisionError
    assert [message.body for message in await take(queue, 1)] == [b"kept"]
    with pytest.raises(QueueEmpty):
        await queue.get(timeout=WAIT_S)


async def test_rpc(connection: Any, name: str) -> None:
    async def double(*, number: int) -> int:
        return 2 * number

    server = await RPC.create(await connection.channel())
    client = await RPC.create(await connection.channel())
    await server.register(name, double, auto_delete=True)
    answers = await asyncio.gather(*(client.call(name, {"number": n}) for n in range(20)))
    assert answers == [2 * number for number in range(20)]
    await client.close()
    await server.close()


async def test_errors(connection: Any, name: str) -> None:
    channel = await connection.channel()
    with pytest.raises(ChannelNotFoundEntity):
        await channel.declare_queue(name, passive=True)
    channel = await connection.channel()
    await channel.declare_queue(name, durable=True)
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_queue(name, durable=False)


async def test_a_robust_connection_comes_back_after_a_restart(tmp_path: Path, name: str) -> None:
    """The node is killed and started again; topology, consumer and publisher go on."""
    (port,) = free_ports(1)
    arrived: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()

    async def received(message: AbstractIncomingMessage) -> None:
        arrived.put_nowait((message.body, bool(message.redelivered)))
        if message.body != b"held":
            await message.ack()

    with live_node(tmp_path, amqp_port=port) as node:
        connection = await aio_pika.connect_robust(url_of(node), reconnect_interval=0.1)
        lost, back = asyncio.Event(), asyncio.Event()
        connection.close_callbacks.add(lambda *_: lost.set())
        connection.reconnect_callbacks.add(lambda *_: back.set())
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, "direct")  # transient: it must be redone
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, "k")
        await queue.consume(received)
        await exchange.publish(aio_pika.Message(b"held", delivery_mode=2), "k")
        assert await asyncio.wait_for(arrived.get(), WAIT_S) == (b"held", False)
        node.kill()
        await asyncio.wait_for(lost.wait(), WAIT_S)
    with live_node(tmp_path, amqp_port=port):
        await asyncio.wait_for(back.wait(), WAIT_S)
        assert (await asyncio.wait_for(arrived.get(), WAIT_S))[0] == b"held"
        await exchange.publish(aio_pika.Message(b"new"), "k", timeout=WAIT_S)
        assert await asyncio.wait_for(arrived.get(), WAIT_S) == (b"new", False)
        await connection.close()
