"""Members of groups through the client: partitions that come and go, and commits left to it."""

import asyncio
from collections.abc import Callable

import pytest
from talking import taken

import braidmq

pytestmark = pytest.mark.timeout(60)


class Seen:
    """What a member was told."""

    def __init__(self) -> None:
        self.has: set[int] = set()
        self._changed = asyncio.Event()

    def came(self, partitions: frozenset[int]) -> None:
        assert not partitions & self.has
        self.has |= partitions
        self._changed.set()

    def went(self, partitions: frozenset[int]) -> None:
        assert partitions <= self.has
        self.has -= partitions
        self._changed.set()

    async def until(self, done: Callable[[set[int]], bool]) -> None:
        while not done(self.has):
            self._changed.clear()
            await self._changed.wait()


async def topic_of(broker: braidmq.Broker, name: str, partitions: int) -> str:
    await broker.admin.create_topic(name, partitions=partitions)
    return name


async def test_partitions_come_and_go(broker, queue):
    topic = await topic_of(broker, f"{queue}-assigned", 4)
    one, two = Seen(), Seen()
    async with broker.consume(
        topic, group="g", mode="assigned", on_assigned=one.came, on_revoked=one.went
    ) as first:
        await one.until(lambda has: has == {0, 1, 2, 3})
        async with broker.consume(
            topic, group="g", mode="assigned", on_assigned=two.came, on_revoked=two.went
        ) as second:
            await two.until(lambda has: len(has) == 2)
            await one.until(lambda has: len(has) == 2)
            assert first.partitions == one.has
            assert second.partitions == two.has == {0, 1, 2, 3} - one.has
            for number in range(8):
                await broker.publish(topic, b"%d" % number)
            got = 0
            while got < 8:
                for consumer in (first, second):
                    while (message := await consumer.get(0.05)) is not None:
                        await message.ack()
                        got += 1
        await one.until(lambda has: has == {0, 1, 2, 3})
        assert second.partitions == two.has == set()


async def test_who_stops_leaves_its_group(broker, queue):
    topic = await topic_of(broker, f"{queue}-named", 4)
    one, two = Seen(), Seen()
    async with (
        broker.consume(
            topic, group="g", mode="assigned", on_assigned=one.came, on_revoked=one.went
        ),
        broker.consume(
            topic, group="g", mode="assigned", member="m", on_assigned=two.came, on_revoked=two.went
        ),
    ):
        await two.until(lambda has: len(has) == 2)
        await one.until(lambda has: len(has) == 2)
    assert (await broker.admin.describe_group("g"))["members"] == []


async def test_what_the_program_came_back_for_is_committed(broker, queue):
    for number in range(4):
        await broker.publish(queue, b"%d" % number)
    async with broker.consume(queue, auto_commit_s=0.01) as consumer:
        for _ in range(3):
            await anext(consumer)
        while (await depth(broker, queue)) != 2:
            await asyncio.sleep(0)
        batch = await consumer.next_batch(0.01)
        assert batch is None or len(batch) <= 1
    async with broker.consume(queue) as consumer:
        again = await taken(consumer, 1)
        assert again[0].value == b"3"


async def depth(broker: braidmq.Broker, queue: str) -> int:
    found = await broker.admin.describe_subscription(queue, "queue")
    return int(found["lag"])


async def test_what_makes_no_sense_is_refused(broker, queue):
    with pytest.raises(braidmq.BraidError):
        broker.consume(queue, auto_ack=True, auto_commit_s=5)
    with pytest.raises(braidmq.BraidError):
        broker.consume(queue, group="g", member="m")
    with pytest.raises(braidmq.BraidError):
        broker.consume(queue, mode="shared")
    for seconds in (0, -1):
        with pytest.raises(braidmq.BraidError):
            broker.consume(queue, group="g", auto_commit_s=seconds)
