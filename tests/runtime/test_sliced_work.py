"""Long work in slices: others are served between two of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from braidmq.engine.engine import Engine
from braidmq.engine.errors import UnknownTemplate
from braidmq.engine.policy import Template
from braidmq.model.clock import SystemClock
from braidmq.record.batch import RecordBatch
from braidmq.runtime import sliced_work as slicing
from braidmq.runtime.node_loop import NodeLoop
from braidmq.storage.disk import MemoryDisk

NS = "n"


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeLoop]:
    # One step a slice: so it is however long a step takes.
    monkeypatch.setattr(slicing, "SLICE_S", 0.0)
    clock = SystemClock()
    engine = Engine.open(MemoryDisk(), clock.now_ms())
    made = NodeLoop(engine, clock, asyncio.get_running_loop())
    yield made
    made.stop()
    engine.close()


def make_topics(broker: NodeLoop, count: int) -> None:
    for number in range(count):
        broker.engine().topics.create(NS, f"t{number}", {"partitions": 1}, now_ms=broker.now_ms())


async def test_others_are_served_between_two_slices(broker: NodeLoop) -> None:
    make_topics(broker, 50)
    probe = broker.engine().topics.create(
        "other", "probe", {"partitions": 1}, now_ms=broker.now_ms()
    )
    template = Template("p", ".*", {"max_messages": 7})
    steps = broker.engine().templates.putting(NS, template, now_ms=broker.now_ms())
    work = asyncio.ensure_future(broker.work(steps))
    served = 0
    while not work.done():
        batch = RecordBatch()
        batch.append(b"x", timestamp_ms=broker.now_ms())
        broker.engine().publishing.publish(probe, batch, now_ms=broker.now_ms())
        served += 1
        await asyncio.sleep(0)  # the others' turn
    await work
    # A step for each topic to see whether it can follow, and one in which it does.
    assert served >= 100
    limits = {topic.policy.max_messages for topic in broker.engine().state.topics_of(NS)}
    assert limits == {7}


async def test_two_take_turns(broker: NodeLoop) -> None:
    seen: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for _ in range(3):
            seen.append(name)
            yield

    await asyncio.gather(broker.work(steps("a")), broker.work(steps("b")))
    assert seen == ["a", "b"] * 3


async def test_who_asked_is_told_what_went_wrong(broker: NodeLoop) -> None:
    with pytest.raises(UnknownTemplate):
        await broker.work(broker.engine().templates.deleting(NS, "none", now_ms=broker.now_ms()))
    await broker.work(iter(()))


async def test_what_is_set_while_others_follow_holds(broker: NodeLoop) -> None:
    """Two templates at once, one of them more important: all topics end with that one."""
    make_topics(broker, 20)
    engine, now_ms = broker.engine(), broker.now_ms()
    low, high = (
        Template("a", ".*", {"max_messages": 1}),
        Template("b", ".*", {"max_messages": 2}, 9),
    )
    await asyncio.gather(
        broker.work(engine.templates.putting(NS, low, now_ms=now_ms)),
        broker.work(engine.templates.putting(NS, high, now_ms=now_ms)),
    )
    assert {topic.policy.max_messages for topic in engine.state.topics_of(NS)} == {2}


async def test_a_namespace_is_gone_at_once_and_its_names_are_free(broker: NodeLoop) -> None:
    make_topics(broker, 20)
    engine, now_ms = broker.engine(), broker.now_ms()
    steps = engine.namespaces.deleting(NS, now_ms=now_ms)
    next(steps)
    assert engine.state.topics_of(NS) == []
    again = engine.topics.create(NS, "t3", {"partitions": 1}, now_ms=now_ms)
    await broker.work(steps)
    assert engine.state.topics_of(NS) == [again]
    assert not again.deleted
    assert len(engine.store.logs) == 1
