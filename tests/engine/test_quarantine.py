"""Damage in one partition: it is quarantined, all others are served, and it can come back."""

from collections.abc import Callable

import pytest
from engine_worlds import DAY, NS, SMALL, World, roomy, values

from braidmq.engine.effects import ConsumerFailed
from braidmq.engine.engine import Engine
from braidmq.engine.topics import Topic
from braidmq.model.errors import PartitionQuarantined
from braidmq.storage import aside, quarantine
from braidmq.storage.quarantine import Skipped
from braidmq.storage.segment import Segment
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll

SIZE = 120
"""Of a record."""

QUEUE = {"retention": {"until_acked": True}}


def contents(name: str, start: int, stop: int) -> list[bytes]:
    return [f"{name}-{number}".encode().ljust(80, b".") for number in range(start, stop)]


def populated(**settings: object) -> World:
    """Two queues, most of them in sealed segments, and nothing of it in memory."""
    world = World(FaultyDisk())
    for name in ("a", "b"):
        topic = world.topic(name, **(QUEUE | settings))
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        for start in range(0, 200, 10):
            world.publish(topic, *contents(name, start, start + 10))
            world.checkpoint()
    world.engine.store.commit()
    return world.crash()


def segments(world: World, name: str = "a") -> list[Segment]:
    return world.find(name).partitions[0].log.segments


def damage(world: World, at: int = 0, name: str = "a") -> Segment:
    """Flip a bit in the value of a segment's third record."""
    found = segments(world, name)[at]
    assert isinstance(world.disk, FaultyDisk)
    world.disk.flip_bit(found.path, 64 + 2 * SIZE + 60)
    return found


def skip(world: World, name: str = "a") -> list[Skipped]:
    told: list[object] = []
    world.engine.store.skip_damage(world.find(name).partitions[0].log, told.append)
    assert world.engine.store.wants_checkpoint()
    world.checkpoint()
    (found,) = told
    assert isinstance(found, list)
    return found


def serves(world: World, name: str) -> None:
    topic = world.find(name)
    world.publish(topic, b"one more")
    assert b"one more" in values(world.drain(topic))


def test_a_consumer_of_what_is_damaged_is_told_and_others_are_served() -> None:
    world = populated()
    damaged = damage(world)
    consumers = [world.consumer(world.find(name), credits=roomy()) for name in ("a", "b")]
    got = []
    while more := world.dispatch():
        got += more
    assert {each.consumer for each in got} <= set(consumers)
    assert sum(each.consumer is consumers[1] for each in got) == 200
    failed = [each for each in world.engine.take_effects() if isinstance(each, ConsumerFailed)]
    assert [each.consumer for each in failed] == [consumers[0]]
    assert (failed[0].error.file, failed[0].error.position) == (damaged.path, 64 + 2 * SIZE)
    serves(world, "b")


READERS: dict[str, Callable[[World, Topic], object]] = {
    "publish": lambda world, topic: world.publish(topic, b"x"),
    "publish to the partition": lambda world, topic: world.publish(topic, b"x", partition=0),
    "read": lambda world, topic: world.engine.reading.read(topic, 0, 150),
    "pull": lambda world, topic: world.drain(topic),
    "find a time": lambda world, topic: world.engine.reading.find_offset(
        topic, 0, f"@{world.now_ms}"
    ),
    "purge": lambda world, topic: world.engine.retention.purge(topic),
}


@pytest.mark.parametrize("what", READERS)
def test_readers_and_writers_get_a_typed_error(what: str) -> None:
    world = populated()
    damaged = damage(world)
    with pytest.raises(PartitionQuarantined):
        world.engine.reading.read(world.find("a"), 0, 2)
    with pytest.raises(PartitionQuarantined) as caught:
        READERS[what](world, world.find("a"))
    assert caught.value.file == damaged.path
    assert caught.value.position == 64 + 2 * SIZE
    serves(world, "b")


def test_a_fan_out_reaches_all_topics_but_the_quarantined() -> None:
    world = populated()
    damage(world)
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"))
    published = world.engine.publishing.fan_out(
        [world.find("a"), world.find("b")], world.batch(b"to both"), now_ms=world.now_ms
    )
    assert published.accepted == 0
    assert values(world.drain(world.find("b")))[-1] == b"to both"
    assert world.engine.state.totals.of(NS).dropped["quarantined"] == 1


def test_a_checkpoint_that_seals_a_damaged_segment_goes_on() -> None:
    """The issue's fault: it failed, and the node said storage-failed for every topic."""
    world = populated()
    damaged = segments(world)[-1]
    assert not damaged.sealed
    assert isinstance(world.disk, FaultyDisk)
    world.disk.flip_bit(damaged.path, 64 + 60)
    for name in ("a", "b"):
        world.publish(world.find(name), *contents(name, 200, 260))
    world.checkpoint()
    log = world.find("a").partitions[0].log
    assert log.damage is not None
    assert (log.damage.file, log.damage.position) == (damaged.path, 64)
    assert log.flushed_offset == log.next_offset == 260
    serves(world, "b")
    world.engine.store.commit()
    # Nothing of it is lost: what was in memory is behind the damaged segment, now and later.
    again = world.crash()
    assert again.find("a").partitions[0].log.damage == log.damage
    lost = sum(each.records for each in skip(again))
    assert lost == 1
    assert len(again.drain(again.find("a"))) == 259


@pytest.mark.parametrize("harm", ["remove", "cut"])
def test_a_segment_that_goes_while_the_node_runs(harm: str) -> None:
    world = populated()
    damaged = segments(world)[-1]
    if harm == "remove":
        world.disk.remove(damaged.path)
    else:
        world.disk.open(damaged.path).truncate(damaged.size - 50)
    for name in ("a", "b"):
        world.publish(world.find(name), b"new")
    world.checkpoint()
    log = world.find("a").partitions[0].log
    assert log.damage is not None
    assert log.damage.file == damaged.path
    serves(world, "b")
    skipped = skip(world)
    assert [each.file for each in skipped] == [damaged.path]
    assert values(world.drain(world.find("a")))[-1] == b"new"


def test_compaction_that_meets_damage_leaves_the_segment_as_it_is() -> None:
    rule = {"compaction": {"enabled": True}, "retention": {"until_acked": False}}
    world = World(FaultyDisk())
    for name in ("a", "b"):
        topic = world.topic(name, **rule)
        for start in range(0, 100, 10):
            for content in contents(name, start, start + 10):
                world.publish(topic, content, key=b"%d" % (start % 3))
            world.checkpoint()
    world = world.crash()
    for name in ("a", "b"):
        list(world.engine.compacting.compact(world.find(name), world.now_ms + DAY))
    damaged = damage(world)
    before = world.disk.open(damaged.path).read(1 << 20, 0)
    world.checkpoint()
    log = world.find("a").partitions[0].log
    assert log.damage is not None
    assert log.damage.file == damaged.path
    assert world.disk.open(damaged.path).read(1 << 20, 0) == before
    assert not [
        name
        for name in world.disk.list("segments")
        if name.startswith("00000001-0000") and "-0001." in name and damaged.path[9:38] in name
    ]
    assert any(each.generation for each in segments(world, "b"))
    world.checkpoint()
    assert world.disk.exists(damaged.path)


def test_skipping_loses_the_damaged_record_and_no_other() -> None:
    world = populated()
    damaged = damage(world, at=1)
    base = damaged.base_offset
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"))
    (skipped,) = skip(world)
    assert skipped.file == damaged.path
    assert skipped.aside == f"aside/{damaged.path}"
    assert skipped.ranges == [(64 + 2 * SIZE, 64 + 3 * SIZE)]
    assert skipped.records == 1
    assert world.disk.exists(skipped.aside)
    assert not world.disk.exists(damaged.path)
    expected = contents("a", 0, 200)
    del expected[base + 2]
    for each in (world, world.crash()):
        topic = each.find("a")
        assert topic.partitions[0].log.damage is None
        assert not topic.quarantined
        consumer = each.consumer(topic, credits=roomy(), passive=True)
        # What was acknowledged before the damage was met is not delivered again.
        left = values(each.pull(consumer))
        assert left == expected[len(expected) - len(left) :]
        assert len(left) >= 200 - base - 3


def test_after_a_restart_it_is_still_quarantined_until_the_file_is_restored() -> None:
    world = populated()
    damaged = damage(world)
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"), "s")
    world.engine.store.commit()
    again = world.crash()
    assert again.find("a").is_quarantined
    assert any("is quarantined" in note for note in again.engine.store.recovery.notes)
    serves(again, "b")
    assert isinstance(again.disk, FaultyDisk)
    again.disk.flip_bit(damaged.path, 64 + 2 * SIZE + 60)
    log = again.find("a").partitions[0].log
    assert quarantine.check(again.disk, log.segments, log.label) is None
    again.engine.store.lift(log)
    assert len(again.drain(again.find("a"))) >= 198
    # Or with a restart alone.
    world.disk.flip_bit(damaged.path, 64 + 2 * SIZE + 60)  # type: ignore[attr-defined]
    restarted = world.crash()
    assert not restarted.find("a").quarantined
    assert len(restarted.drain(restarted.find("a"))) >= 198


@pytest.mark.parametrize("harm", ["remove", "cut"])
def test_a_missing_or_short_segment_at_start_quarantines_its_partition(harm: str) -> None:
    world = populated()
    disk = world.disk
    assert isinstance(disk, FaultyDisk)
    damaged = segments(world)[1]
    disk = disk.crash(KeepAll())
    if harm == "remove":
        disk.remove(damaged.path)
    else:
        disk.open(damaged.path).truncate(damaged.size - 100)
    again = World.__new__(World)
    again.disk, again.settings, again.now_ms = disk, SMALL, world.now_ms
    again.engine = Engine.open(disk, world.now_ms, SMALL)
    log = again.find("a").partitions[0].log
    assert log.damage is not None
    assert log.damage.file == damaged.path
    serves(again, "b")
    (skipped,) = skip(again)
    assert skipped.records == (damaged.records if harm == "remove" else 1)
    assert len(again.drain(again.find("a"))) == 200 - skipped.records


def test_deleting_the_topic_always_works() -> None:
    world = populated()
    damaged = damage(world)
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"))
    world.engine.topics.delete(world.find("a"))
    assert not world.engine.store.quarantined()
    world.checkpoint()
    assert not world.disk.exists(damaged.path)
    world.engine.store.commit()
    again = world.crash()
    assert [topic.name for topic in again.engine.state.topics_of()] == ["b"]
    assert not again.engine.store.quarantined()
    assert aside.found(again.disk) == []
    world.topic("a", **QUEUE)
    serves(world, "a")


def test_attempts_survive_a_restart_in_quarantine() -> None:
    """What was noted of deliveries is kept through checkpoints that can't read the messages."""
    world = populated()
    consumer = world.consumer(world.find("a"), credits=roomy(2))
    first, second = world.dispatch()
    world.requeue(first)
    world.requeue(second)
    assert consumer.in_flight == 0
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    world.engine.store.commit()
    damaged = damage(world)
    again = world.crash()
    with pytest.raises(PartitionQuarantined):
        again.engine.reading.read(again.find("a"), 0, 2)
    again.engine.store.commit()
    again.checkpoint()
    again.checkpoint()
    third = again.crash()
    assert third.find("a").is_quarantined
    third.checkpoint()
    assert isinstance(third.disk, FaultyDisk)
    third.disk.flip_bit(damaged.path, 64 + 2 * SIZE + 60)
    fourth = third.crash()
    consumer = fourth.consumer(fourth.find("a"), credits=roomy(3))
    got = fourth.dispatch()
    assert [each.attempts for each in got] == [2, 2, 1]


def test_dead_letters_for_a_quarantined_topic_are_kept() -> None:
    world = populated()
    source = world.topic("source", dead_letter={"topic": "a"}, **QUEUE)
    damage(world)
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"))
    consumer = world.consumer(source, credits=roomy())
    world.publish(source, b"dies")
    (got,) = world.dispatch()
    world.reject(got)
    world.checkpoint()
    assert consumer.in_flight == 0
    assert source.depth == 0
    skip(world)
    assert values(world.drain(world.find("a")))[-1] == b"dies"


def test_one_quarantined_partition_of_several() -> None:
    world = World(FaultyDisk())
    topic = world.topic("t", partitions=3, **QUEUE)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(3):
        for start in range(0, 100, 10):
            world.publish(topic, *contents(str(number), start, start + 10), partition=number)
            world.checkpoint()
    world = world.crash()
    topic = world.find("t")
    assert isinstance(world.disk, FaultyDisk)
    world.disk.flip_bit(topic.partitions[1].log.segments[0].path, 64 + 60)
    got = values(world.drain(topic))
    assert {each[:1] for each in got} == {b"0", b"2"}
    assert len(got) == 200
    assert topic.quarantined == 1
    assert not topic.is_quarantined
    world.publish(topic, b"fine", partition=0)
    with pytest.raises(PartitionQuarantined):
        world.publish(topic, b"refused", partition=1)
    assert values(world.drain(topic)) == [b"fine"]


def test_timers_and_limits_of_a_quarantined_topic_do_no_harm() -> None:
    world = populated(ttl_ms=60_000, max_messages=1000, overflow="drop-head")
    damage(world)
    with pytest.raises(PartitionQuarantined):
        world.drain(world.find("a"))
    before = len(world.disk.list("segments"))
    world.advance(3_600_000)
    assert world.find("b").depth == 0
    world.checkpoint()
    assert 0 < len(segments(world)) <= before
    assert all(world.disk.exists(each.path) for each in segments(world))


def test_offsets_of_a_quarantined_partition_can_be_committed() -> None:
    """Nothing is read for it: a transaction that commits some must not fail, nor a start."""
    world = populated()
    damage(world)
    with pytest.raises(PartitionQuarantined):
        world.engine.reading.read(world.find("a"), 0, 2)
    (view,) = world.find("a").subscriptions["s"].views
    world.engine.offsets.commit(view, 150)
    world.engine.store.commit()
    again = world.crash()
    skip(again)
    assert values(again.drain(again.find("a"))) == contents("a", 150, 200)


def test_an_unused_topic_is_not_deleted_while_it_is_quarantined() -> None:
    world = populated(idle_expires_ms=60_000)
    damage(world)
    with pytest.raises(PartitionQuarantined):
        world.engine.reading.read(world.find("a"), 0, 2)
    world.advance(3_600_000)
    assert [topic.name for topic in world.engine.state.topics_of()] == ["a"]
    skip(world)
    world.advance(3_600_000)
    assert world.engine.state.topics_of() == []
