"""The Python client beside pika and aio-pika: ``python -m bench.client``.

One process publishes and consumes 128-byte messages on one broker, all confirmed and acknowledged,
each library in the way that is fastest for it, in turns:

- ours: ``put`` and ``async for … ack``, one call a message; and ``put_many`` with ``batches``
- pika: SelectConnection, as BlockingConnection waits for each confirm by itself
- aio-pika: publishes gathered up to the window, ``prefetch`` the same

Each side acknowledges every message (pika and aio-pika, too, may say so for several at once).
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import aio_pika
import pika
import uvloop
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

import braidmq
from bench.harness import Context, Measure, Seconds, alternate, at_least, main, paired_ratio
from braidmq.testing.live import LiveNode, live_node

BODY = b"b" * 128
WINDOW = 10_000
"""Unconfirmed at most, for all three: enough that none waits for the disk where it could work."""
PREFETCH = 1000
ACK_EVERY = 100
ROUNDS = 7
MANY = 500

OURS, OURS_MANY = "braidmq, one by one", "braidmq, batches"
OURS_SYNC = "braidmq, sync"
PIKA, AIO_PIKA = "pika", "aio-pika"


def url_of(node: LiveNode) -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"


# --- ours ---


async def ours(url: str, queue: str, count: int) -> Seconds:
    async with braidmq.connect(url) as broker:
        await broker.declare_queue(queue)
        async with (
            broker.consume(queue, prefetch=PREFETCH) as consumer,
            broker.producer(window=WINDOW) as producer,
        ):

            async def publish() -> None:
                for _ in range(count):
                    await producer.put(queue, BODY)
                await producer.flush()

            began = time.perf_counter()
            publishing = asyncio.create_task(publish())
            left = count
            async for message in consumer:
                assert message.value == BODY
                await message.ack()
                left -= 1
                if not left:
                    break
            await publishing
            return time.perf_counter() - began


async def ours_many(url: str, queue: str, count: int) -> Seconds:
    async with braidmq.connect(url) as broker:
        await broker.declare_queue(queue)
        async with (
            broker.consume(queue, prefetch=PREFETCH) as consumer,
            broker.producer(window=WINDOW) as producer,
        ):

            async def publish() -> None:
                for _ in range(count // MANY):
                    await producer.put_many(queue, [BODY] * MANY)
                await producer.flush()

            began = time.perf_counter()
            publishing = asyncio.create_task(publish())
            left = count // MANY * MANY
            async for batch in consumer.batches():
                assert all(value == BODY for value in batch.values)
                await batch.ack()
                left -= len(batch)
                if not left:
                    break
            await publishing
            return time.perf_counter() - began


def ours_sync(url: str, queue: str, count: int) -> Seconds:
    with braidmq.connect_sync(url) as broker:
        broker.declare_queue(queue)
        with (
            broker.consume(queue, prefetch=PREFETCH) as consumer,
            broker.producer(window=WINDOW) as producer,
        ):
            began = time.perf_counter()
            left = count
            for _ in range(count // WINDOW):
                for _ in range(WINDOW):
                    producer.put(queue, BODY)
                for _ in range(WINDOW):
                    message = next(consumer)
                    assert message.value == BODY
                    message.ack()
                left -= WINDOW
            producer.flush()
            return time.perf_counter() - began


# --- pika ---


class PikaRun:
    """SelectConnection: a channel that publishes with a window, and one that consumes."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        self._queue = queue
        self._count = count
        self._published = self._confirmed = self._received = 0
        self._began = self.seconds = 0.0
        self._connection = SelectConnection(pika.URLParameters(url), on_open_callback=self._opened)
        self._properties = BasicProperties(delivery_mode=2)

    def run(self) -> Seconds:
        self._connection.ioloop.start()
        return self.seconds

    def _opened(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._consume)

    def _consume(self, channel: Channel) -> None:
        self._consumer = channel
        channel.queue_declare(self._queue, durable=True, callback=self._declared)

    def _declared(self, _: object) -> None:
        self._consumer.basic_qos(prefetch_count=PREFETCH, callback=self._limited)

    def _limited(self, _: object) -> None:
        self._consumer.basic_consume(self._queue, self._on_message)
        self._connection.channel(on_open_callback=self._publish_with)

    def _publish_with(self, channel: Channel) -> None:
        self._producer = channel
        channel.confirm_delivery(self._on_confirm, callback=self._begin)

    def _begin(self, _: object) -> None:
        self._began = time.perf_counter()
        self._publish()

    def _publish(self) -> None:
        until = min(self._count, self._confirmed + WINDOW)
        while self._published < until:
            self._published += 1
            self._producer.basic_publish("", self._queue, BODY, self._properties)

    def _on_confirm(self, frame: object) -> None:
        method = frame.method  # type: ignore[attr-defined]
        assert isinstance(method, Basic.Ack)
        self._confirmed = method.delivery_tag
        self._publish()
        self._end()

    def _on_message(
        self, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        assert body == BODY
        self._received += 1
        if self._received % ACK_EVERY == 0 or self._received == self._count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        self._end()

    def _end(self) -> None:
        if self._received == self._confirmed == self._count:
            self.seconds = time.perf_counter() - self._began
            self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
            self._connection.close()


# --- aio-pika ---


async def with_aio_pika(url: str, queue: str, count: int) -> Seconds:
    async with await aio_pika.connect(url) as connection:
        consuming, publishing = await connection.channel(), await connection.channel()
        await consuming.set_qos(prefetch_count=PREFETCH)
        declared = await consuming.declare_queue(queue, durable=True)
        received, done = 0, asyncio.Event()

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            nonlocal received
            assert message.body == BODY
            received += 1
            if received % ACK_EVERY == 0 or received == count:
                await message.ack(multiple=True)
            if received == count:
                done.set()

        await declared.consume(on_message)
        exchange = publishing.default_exchange
        message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        window = asyncio.Semaphore(WINDOW)

        async def publish() -> None:
            async with window:
                await exchange.publish(message, queue)

        began = time.perf_counter()
        for first in range(0, count, WINDOW):
            await asyncio.gather(*(publish() for _ in range(min(WINDOW, count - first))))
        await done.wait()
        return time.perf_counter() - began


# --- in turns ---


def client(context: Context) -> Iterator[Measure]:
    counts = {
        OURS: context.size(200_000, 20_000),
        OURS_MANY: context.size(500_000, 50_000),
        OURS_SYNC: context.size(100_000, 10_000),
        PIKA: context.size(20_000, 3_000),
        AIO_PIKA: context.size(20_000, 3_000),
    }
    with live_node(context.directory()) as node:
        url = url_of(node)

        def on_loop(run: Callable[[str, str, int], Awaitable[Seconds]], name: str) -> Seconds:
            return uvloop.run(run(url, name, counts[name]))  # type: ignore[arg-type]

        cases: dict[str, Callable[[], Seconds]] = {
            OURS: partial(on_loop, ours, OURS),
            OURS_MANY: partial(on_loop, ours_many, OURS_MANY),
            OURS_SYNC: lambda: ours_sync(url, OURS_SYNC, counts[OURS_SYNC]),
            PIKA: lambda: PikaRun(url, PIKA, counts[PIKA]).run(),
            AIO_PIKA: partial(on_loop, with_aio_pika, AIO_PIKA),
        }
        for case in cases.values():
            case()  # warm: imports, the journal's first files
        seconds = alternate(cases, context.rounds(ROUNDS))
    rates = {name: [counts[name] / each for each in seconds[name]] for name in cases}
    for name in cases:
        for other, bar in BARS.get(name, {"": None}).items():
            yield Measure(
                name,
                statistics.median(rates[name]),
                "msg/s",
                bar,
                paired_ratio(rates[name], rates[other]) if other else None,
                statistics.median(rates[other]) if other else None,
                against=other,
                guide="300 000 msg/s" if name == OURS else "",
                note=f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}",
            )


BARS = {
    OURS: {PIKA: at_least(10), AIO_PIKA: at_least(5)},
    OURS_MANY: {PIKA: at_least(10), AIO_PIKA: at_least(5)},
}

if __name__ == "__main__":
    main("client", {"client": client})
