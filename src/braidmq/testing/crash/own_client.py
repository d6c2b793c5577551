"""Traffic of our own Python client: an idempotent producer, and what it published moved on in
transactions."""

import asyncio
import threading

import braidmq
from braidmq.testing.crash.clients import Client, World
from braidmq.testing.crash.history import Promise, Publisher, Reader, Strand

BATCH = 50
PAUSE_S = 0.03
SESSION_MS = 5000
IN, OUT, GROUP = "client-in", "client-out", "client-mover"

LOGS: dict[str, tuple[str, ...]] = {"client-once": (IN,), "client-once/moved": (OUT,)}


def clients(world: World) -> tuple[list[Strand], list[Client]]:
    strand = Strand("client-once")
    strand.new_publishers(1)
    strand.new_reader("log", Promise(once=True, order="place"))
    strand.new_reader("moved", Promise(once=True))
    moved = Reader()
    return [strand], [OncePublisher(world, strand, moved), Mover(world, strand, moved)]


class OwnClient(Client):
    gone = (braidmq.BraidError, OSError, *Client.gone)

    def __init__(self, world: World, strand: Strand, name: str, moved: Reader) -> None:
        super().__init__(world, strand, name)
        self.moved = moved

    def work(self) -> None:
        asyncio.run(self.live())

    async def live(self) -> None:
        address = f"amqp://guest:guest@127.0.0.1:{self.world.ports['amqp_port']}/"
        async with braidmq.connect(address) as broker:
            await self.use(broker)

    async def use(self, broker: braidmq.Broker) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        """It went with its loop."""


class OncePublisher(OwnClient):
    """The client sends again by itself what a kill left unconfirmed."""

    publishes = True

    def __init__(self, world: World, strand: Strand, moved: Reader) -> None:
        super().__init__(world, strand, "publisher", moved)

    async def use(self, broker: braidmq.Broker) -> None:
        publisher: Publisher = self.strand.publishers[0]
        async with broker.producer(idempotent=True) as producer:
            while self.world.publishing.is_set():
                await asyncio.to_thread(self.wait_for_turn, self.moved)
                numbers = [publisher.send() for _ in range(BATCH)]
                values = [self.strand.body(0, number) for number in numbers]
                # Through as many lives as it takes: the client's pauses between two attempts to
                # connect may be longer than a life.
                await producer.send_many(IN, values)
                for number in numbers:
                    publisher.confirm(number)
                await asyncio.sleep(PAUSE_S)
        self.is_finished = True


class Mover(OwnClient):
    """Publishes what it consumes and acknowledges it, in one transaction."""

    def __init__(self, world: World, strand: Strand, moved: Reader) -> None:
        super().__init__(world, strand, "mover", moved)

    async def use(self, broker: braidmq.Broker) -> None:
        async with broker.consume(IN, group=GROUP, prefetch=4 * BATCH) as consumer:
            moving = asyncio.create_task(self._move(broker, consumer))
            ended = asyncio.create_task(asyncio.to_thread(_wait, self.world.ended, moving))
            await asyncio.wait({moving, ended}, return_when=asyncio.FIRST_COMPLETED)
            moving.cancel()
            await asyncio.gather(moving, ended, return_exceptions=True)

    async def _move(self, broker: braidmq.Broker, consumer: braidmq.Consumer) -> None:
        async for batch in consumer.batches():
            for value in batch.values:
                self.moved.arrived(self.strand.name, value)
            try:
                async with broker.transaction(session_ms=SESSION_MS) as transaction:
                    await transaction.publish_many(OUT, batch.values)
                    transaction.ack(batch)
            except braidmq.BraidError:
                continue  # nothing of it happened: what it had comes again
            self.strand.other_operations += 1


def _wait(ended: threading.Event, moving: "asyncio.Task[None]") -> None:
    while not ended.wait(0.1) and not moving.done():
        pass
