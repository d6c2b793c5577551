"""Replay on queues: acknowledged messages that are kept (row C7)."""

import random
from typing import Any

import pytest
from engine_worlds import HOUR, MINUTE, SECOND, World, crashes, values

from braidmq.engine.keeping import kept_of
from braidmq.engine.policy import QUEUE_SETTINGS, IllegalPolicy, merge
from braidmq.engine.topics import Topic


def queue(world: World, name: str = "t", **settings: Any) -> Topic:
    return world.topic(name, **merge(QUEUE_SETTINGS, settings))


def keep(ms: int = 0, size: int = 0) -> dict[str, dict[str, int]]:
    return {"retention": {"keep_acked_ms": ms, "keep_acked_bytes": size}}


def rewind(world: World, to: int | str = "earliest", name: str = "s") -> None:
    subscription = world.find().subscriptions[name]
    world.engine.offsets.rewind(subscription, to, now_ms=world.now_ms)


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_acknowledged_comes_back(checkpointed: bool, restarted: bool) -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 50))
    assert values(world.drain(topic)) == numbers(0, 50)
    assert (topic.depth, topic.depth_bytes) == (0, 0)
    if checkpointed:
        world.checkpoint()
    if restarted:
        world.reopen()
    world.advance(50 * MINUTE)
    assert kept_of(world.find().partitions[0])[0] == 50
    rewind(world)
    assert world.find().depth == 50
    got = world.drain(world.find())
    assert values(got) == numbers(0, 50)
    assert {each.attempts for each in got} == {1}  # fresh


def test_by_offset_and_time_and_for_one_subscription_only() -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    for name in ("s", "other"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    world.publish_each(topic, numbers(0, 10))
    world.now_ms += MINUTE
    world.publish_each(topic, numbers(10, 20))
    for name in ("s", "other"):
        assert len(world.drain(topic, name)) == 20
    rewind(world, 15)
    assert values(world.drain(topic)) == numbers(15, 20)
    rewind(world, f"@{world.now_ms}")
    assert values(world.drain(topic)) == numbers(10, 20)
    assert topic.subscriptions["other"].depth == 0


@pytest.mark.parametrize("checkpointed", [False, True])
def test_they_go_when_they_had_their_time(checkpointed: bool) -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 50))
    world.drain(topic)
    world.advance(30 * MINUTE)
    world.publish_each(topic, numbers(50, 60))
    world.drain(topic)
    if checkpointed:
        world.checkpoint()
    world.advance(29 * MINUTE)
    assert topic.partitions[0].log.start_offset == 0
    world.advance(10 * MINUTE)
    assert topic.partitions[0].log.start_offset == 50
    rewind(world)
    assert values(world.drain(topic)) == numbers(50, 60)
    world.advance(70 * MINUTE)
    assert topic.partitions[0].log.start_offset == 60
    assert kept_of(topic.partitions[0]) == (0, 0)
    if checkpointed:
        world.checkpoint()
        world.checkpoint()
        assert not topic.partitions[0].log.segments


def test_time_counts_from_when_it_was_acknowledged() -> None:
    """However long it had waited for that."""
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish(topic, b"late")
    world.advance(10 * HOUR)
    world.drain(topic)
    world.advance(59 * MINUTE)
    rewind(world)
    assert values(world.drain(topic)) == [b"late"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_and_when_they_take_too_many_bytes(checkpointed: bool) -> None:
    world = World()
    topic = queue(world, **keep(size=20_000))
    for _ in range(100):
        world.publish(topic, *[bytes(100)] * 10)
        world.drain(topic)
        if checkpointed:
            world.checkpoint()
        world.advance(SECOND)
    count, size = kept_of(topic.partitions[0])
    # In batches and segments, of 4 KiB here, as long as their records are on average.
    assert 10_000 < size <= 22_000
    assert 70 < count <= 150
    rewind(world)
    assert topic.depth == count
    assert [each.offset for each in world.drain(topic)] == list(range(1000 - count, 1000))


def test_one_that_nobody_answers_for_does_not_keep_all_behind_it() -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    consumer = world.consumer(topic)
    world.publish(topic, *[bytes(100)] * 200)
    for each in world.pull(consumer, 200)[1:]:
        world.ack(each)
    world.advance(2 * HOUR)
    world.checkpoint()
    segments = topic.partitions[0].log.segments
    assert sum(each.records for each in segments) <= 1
    rewind(world)
    assert [each.offset for each in world.drain(topic)] == [0]


def test_what_is_back_is_not_let_go_before_it_is_acknowledged_again() -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 20))
    world.drain(topic)
    world.advance(55 * MINUTE)
    rewind(world)
    world.advance(3 * HOUR)
    world.checkpoint()
    world.reopen()
    assert values(world.drain(world.find())) == numbers(0, 20)
    world.advance(55 * MINUTE)
    rewind(world)
    assert values(world.drain(world.find())) == numbers(0, 20)


def test_length_limits_do_not_count_them_but_hold_for_what_comes_back() -> None:
    world = World()
    topic = queue(world, max_messages=5, dead_letter={"topic": None}, **keep(HOUR))
    for start in range(0, 20, 5):
        world.publish_each(topic, numbers(start, start + 5))
        assert values(world.drain(topic)) == numbers(start, start + 5)
    rewind(world)
    assert values(world.drain(topic)) == numbers(15, 20)


def test_what_outlived_the_ttl_does_not_come_back_nor_become_a_dead_letter() -> None:
    world = World()
    topic = queue(
        world, ttl_ms=10 * MINUTE, dead_letter={"topic": "dead", "expired": True}, **keep(HOUR)
    )
    world.publish_each(topic, numbers(0, 5))
    world.drain(topic)
    world.advance(8 * MINUTE)
    world.publish_each(topic, numbers(5, 10))
    world.drain(topic)
    world.advance(3 * MINUTE)
    rewind(world)
    assert values(world.drain(topic)) == numbers(5, 10)
    world.advance(MINUTE)
    assert ("n", "dead") not in world.engine.state.topics


def test_a_purge_is_for_good() -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 5))
    world.drain(topic)
    world.publish_each(topic, numbers(5, 8))
    assert world.engine.retention.purge(topic) == 3
    rewind(world)
    assert world.drain(topic) == []
    assert world.reopen().find().partitions[0].log.start_offset == 8


def test_a_purge_is_for_good_behind_what_is_in_flight() -> None:
    """For who is set back, through a restart, and for who comes later."""
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 5))
    assert len(world.pull(world.consumer(topic), 1)) == 1
    assert world.engine.retention.purge(topic) == 4
    rewind(world)
    assert [each.value for each in world.drain(topic)] == numbers(0, 1)
    world.reopen()
    rewind(world)
    assert [each.value for each in world.drain(world.find())] == numbers(0, 1)


def test_the_setting_can_come_and_go() -> None:
    world = World()
    topic = queue(world)
    world.publish_each(topic, numbers(0, 5))
    world.drain(topic)
    alter = world.engine.topics.alter
    alter(topic, merge(QUEUE_SETTINGS, keep(HOUR)), now_ms=world.now_ms)
    world.publish_each(topic, numbers(5, 10))
    world.drain(topic)
    world.reopen()
    rewind(world)
    assert values(world.drain(world.find())) == numbers(5, 10)
    alter(world.find(), QUEUE_SETTINGS, now_ms=world.now_ms)
    assert world.find().partitions[0].log.start_offset == 10
    rewind(world)
    assert world.drain(world.find()) == []


def test_only_queues_keep_what_is_acknowledged() -> None:
    with pytest.raises(IllegalPolicy, match="queues"):
        World().topic(**keep(HOUR))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_unsettled_is_ever_let_go(seed: int) -> None:
    """Whatever happens, what is not acknowledged is there."""
    world, rng = World(), random.Random(seed)
    queue(world, partitions=2, **keep(10 * MINUTE, rng.choice([0, 3000])))
    names = ["s", "u"]
    for name in names:
        world.engine.subscriptions.subscribe(world.find(), name, now_ms=world.now_ms)
    unsettled: dict[str, set[bytes]] = {name: set() for name in names}
    count = 0
    for _ in range(120):
        what, name = rng.randrange(8), rng.choice(names)
        topic = world.find()
        if what == 0:
            world.checkpoint()
        elif what == 1:
            world.reopen()
        elif what == 2:
            world.advance(rng.randrange(8) * MINUTE)
        elif what == 3:
            rewind(world, name=name)
            unsettled[name] = None  # type: ignore[assignment]
        elif what in (4, 5):
            new = [b"%d" % n for n in range(count, count + rng.randrange(1, 9))]
            count += len(new)
            world.publish_each(topic, new)
            for each in names:
                if unsettled[each] is not None:
                    unsettled[each].update(new)
        else:
            consumer = world.consumer(topic, name)
            got = world.pull(consumer, 1000)
            expected = unsettled[name]
            if expected is not None:
                assert {each.value for each in got} == expected
            acked = [each for each in got if rng.random() < 0.7]
            for each in acked:
                world.ack(each)
            world.engine.consumers.detach(consumer, now_ms=world.now_ms)
            unsettled[name] = {each.value for each in got} - {each.value for each in acked}


def test_a_crash_anywhere_loses_nothing_unsettled_and_repeats_nothing() -> None:
    def prepare(world: World) -> None:
        topic = queue(world, **keep(HOUR))
        world.publish_each(topic, numbers(0, 30))
        consumer = world.consumer(topic)
        for each in world.pull(consumer, 20):
            world.ack(each)
        world.engine.consumers.detach(consumer, now_ms=world.now_ms)

    def act(world: World) -> None:
        world.advance(2 * HOUR)
        world.engine.store.commit()
        world.checkpoint()

    for world in crashes(prepare, act):
        assert values(world.drain(world.find())) == numbers(20, 30)


def test_time_begins_anew_when_it_is_acknowledged_again() -> None:
    world = World()
    topic = queue(world, **keep(HOUR))
    world.publish_each(topic, numbers(0, 5))
    world.drain(topic)
    world.advance(50 * MINUTE)
    rewind(world)
    assert len(world.drain(topic)) == 5
    world.advance(50 * MINUTE)
    rewind(world)
    assert values(world.drain(topic)) == numbers(0, 5)
