"""The one way to the engine: what was gathered goes first, and a turn follows."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from braidmq.engine.engine import Engine
from braidmq.engine.topics import Delivery, Topic
from braidmq.model.clock import SystemClock
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.storage.disk import MemoryDisk

PATIENCE_S = 20


class Inbox:
    """Where deliveries go."""

    def __init__(self) -> None:
        self.values: asyncio.Queue[bytes | None] = asyncio.Queue()

    def deliver(self, delivery: Delivery) -> None:
        for index in range(delivery.first_index, delivery.stop_index):
            self.values.put_nowait(delivery.batch.record(index).value)


@pytest.fixture
async def node_loop() -> AsyncIterator[NodeLoop]:
    clock = SystemClock()
    engine = Engine.open(MemoryDisk(), clock.now_ms())
    made = NodeLoop(engine, clock, asyncio.get_running_loop())
    yield made
    made.stop()
    engine.close()


@pytest.fixture
def topic(node_loop: NodeLoop) -> Topic:
    topics, now_ms = node_loop.engine().topics, node_loop.now_ms()
    return topics.create("n", "t", {"partitions": 1}, now_ms=now_ms)


def batch_of(value: bytes) -> RecordBatch:
    batch = RecordBatch()
    batch.append(value, timestamp_ms=1)
    return batch


async def nothing_due(node_loop: NodeLoop) -> None:
    while node_loop.turns.is_due:
        await asyncio.sleep(0)


async def test_what_was_gathered_is_appended_before_anything_is_done(
    node_loop: NodeLoop, topic: Topic
) -> None:
    node_loop.publish_batched(topic, True, batch_of(b"first"), None)
    assert topic.published == 0
    now_ms = node_loop.now_ms()
    node_loop.engine().publishing.publish(topic, batch_of(b"second"), now_ms=now_ms)
    runs = node_loop.engine().reading.read(topic, 0, 0)
    values = [run.batch.record(at).value for run in runs for at in range(run.first, run.stop)]
    assert values == [b"first", b"second"]


async def test_whoever_acts_gets_a_turn(node_loop: NodeLoop, topic: Topic) -> None:
    inbox = Inbox()
    engine, now_ms = node_loop.engine(), node_loop.now_ms()
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=now_ms)
    engine.consumers.attach(subscription, now_ms=now_ms, receiver=inbox)
    await nothing_due(node_loop)
    node_loop.engine().publishing.publish(topic, batch_of(b"x"), now_ms=node_loop.now_ms())
    # Nobody else does anything.
    assert await asyncio.wait_for(inbox.values.get(), PATIENCE_S) == b"x"


async def test_whoever_looks_disturbs_nobody(node_loop: NodeLoop, topic: Topic) -> None:
    await nothing_due(node_loop)
    assert node_loop.view.state.topic("n", "t") is topic
    assert not node_loop.turns.is_due
    node_loop.publish_batched(topic, True, batch_of(b"x"), None)
    assert node_loop.view.state.topic("n", "t").published == 0


async def test_all_that_was_done_so_far_is_what_was_gathered_too(
    node_loop: NodeLoop, topic: Topic
) -> None:
    await node_loop.durable(node_loop.pending_lsn())
    assert node_loop.pending_lsn() is None
    node_loop.publish_batched(topic, True, batch_of(b"x"), None)
    lsn = node_loop.pending_lsn()
    assert lsn is not None
    await node_loop.durable(lsn)
    assert topic.published == 1
