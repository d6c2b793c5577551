"""A node whose wall clock is set while it runs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from braidmq.engine.engine import Engine
from braidmq.engine.topics import Delivery, Topic
from braidmq.model.clock import SystemClock
from braidmq.model.ids import TimestampMs
from braidmq.record.batch import DATED_DUE, RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.storage.disk import MemoryDisk

DAY_MS = 86_400_000
PATIENCE_S = 20
"""Far longer than anything here takes, far shorter than a day."""


class SetClock:
    """The machine's, with a wall clock that the test sets."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.by_ms = 0

    def now_ms(self) -> TimestampMs:
        return self._system.now_ms()

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(self._system.wall_ms() + self.by_ms)


class Inbox:
    """Where deliveries go."""

    def __init__(self) -> None:
        self.came: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def deliver(self, delivery: Delivery) -> None:
        if not self.came.done():
            self.came.set_result(delivery)


@pytest.fixture
async def broker() -> AsyncIterator[NodeLoop]:
    clock = SetClock()
    engine = Engine.open(MemoryDisk(), clock.now_ms())
    made = NodeLoop(engine, clock, asyncio.get_running_loop())
    yield made
    made.stop()
    engine.close()


def consumed(broker: NodeLoop) -> tuple[Topic, Inbox]:
    engine, now_ms = broker.engine(), broker.now_ms()
    topic = engine.topics.create("n", "t", {"partitions": 1}, now_ms=now_ms)
    inbox = Inbox()
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=now_ms)
    engine.consumers.attach(subscription, now_ms=now_ms, receiver=inbox)
    return topic, inbox


def publish(broker: NodeLoop, topic: Topic, due_at_ms: int, dated: int = 0) -> None:
    batch = RecordBatch()
    batch.append(b"x", timestamp_ms=broker.now_ms(), due_at_ms=due_at_ms, dated=dated)
    broker.engine().publishing.publish(topic, batch, now_ms=broker.now_ms())
    broker.schedule_turn()


@pytest.mark.parametrize("by_ms", [-DAY_MS, DAY_MS])
async def test_a_delay_does_not_wait_for_the_wall_clock(broker: NodeLoop, by_ms: int) -> None:
    topic, inbox = consumed(broker)
    due = broker.now_ms() + 700
    publish(broker, topic, due)
    broker.clock.by_ms = by_ms  # type: ignore[attr-defined]
    await asyncio.wait_for(inbox.came, PATIENCE_S)
    assert broker.now_ms() >= due


async def test_a_date_comes_with_the_wall_clock(broker: NodeLoop) -> None:
    topic, inbox = consumed(broker)
    publish(broker, topic, broker.wall_ms() + DAY_MS, DATED_DUE)
    broker.clock.by_ms = DAY_MS  # type: ignore[attr-defined]
    delivery = await asyncio.wait_for(inbox.came, PATIENCE_S)
    assert delivery.batch.record(delivery.first_index).value == b"x"
    # And what is published from now on is stamped by it.
    publish(broker, topic, 0)
    (run,) = broker.engine().reading.read(topic, 0, 1)
    stamped = run.batch.record(run.first).timestamp_ms
    assert abs(stamped - broker.wall_ms()) < PATIENCE_S * 1000
