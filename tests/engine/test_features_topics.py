"""Topics as a whole: templates (B7), partition scaling (B5), fan-out, thousands of idle ones."""

import gc
import logging
import tracemalloc
from collections import defaultdict

import pytest
from engine_worlds import HOUR, MINUTE, NS, SECOND, World, all_records, values

from braidmq.engine.effects import Level, PressureChanged
from braidmq.engine.errors import UnknownTemplate
from braidmq.engine.policy import IllegalPolicy, make_policy
from braidmq.engine.pressure import Pressure, Watermarks
from braidmq.engine.topics import Topic
from braidmq.record.key_hash import partition_for
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.testing.recording_disk import RecordingDisk

# --- templates ---


def template(world: World, name: str, pattern: str, priority: int = 0, **settings: object) -> None:
    world.engine.templates.put(NS, name, pattern, settings, now_ms=world.now_ms, priority=priority)


def plain(world: World, name: str, **settings: object) -> Topic:
    return world.engine.topics.create(NS, name, settings, now_ms=world.now_ms)


def test_a_template_gives_settings_to_topics_by_name() -> None:
    world = World()
    template(world, "orders", r"^orders\.", ttl_ms=HOUR, partitions=2)
    matching, other = plain(world, "orders.new"), plain(world, "other")
    elsewhere = world.engine.topics.create("m", "orders.new", {}, now_ms=world.now_ms)
    assert (matching.policy.ttl_ms, len(matching.partitions)) == (HOUR, 2)
    assert (other.policy.ttl_ms, len(other.partitions)) == (0, 3)
    assert elsewhere.policy.ttl_ms == 0


def test_the_highest_priority_wins_alone_and_the_name_decides_among_equals() -> None:
    world = World()
    template(world, "low", "t", 1, ttl_ms=1000, max_messages=5)
    template(world, "high", "t", 2, ttl_ms=2000)
    topic = plain(world, "t")
    assert (topic.policy.ttl_ms, topic.policy.max_messages) == (2000, None)
    template(world, "zzz", "t", 2, ttl_ms=3000)
    assert topic.policy.ttl_ms == 3000


def test_explicit_settings_win_one_by_one() -> None:
    world = World()
    template(world, "all", ".*", retry={"attempts": 7, "base_ms": 5}, ttl_ms=1000)
    topic = plain(world, "t", retry={"attempts": 2})
    assert (topic.policy.retry.attempts, topic.policy.retry.base_ms) == (2, 5)
    assert topic.policy.ttl_ms == 1000


def test_setting_and_deleting_applies_to_existing_topics_and_survives() -> None:
    world = World()
    topic = world.topic(overflow="drop-head", dead_letter={"topic": None})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, *[b"%d" % number for number in range(10)])
    template(world, "short", "^t$", max_messages=3, ttl_ms=MINUTE)
    assert topic.depth == 3
    world.reopen()
    assert world.find().policy.max_messages == 3
    world.advance(MINUTE + 10)
    assert world.find().depth == 0
    world.engine.templates.delete(NS, "short", now_ms=world.now_ms)
    assert world.find().policy.max_messages is None
    world.reopen()
    assert (world.find().policy.max_messages, world.find().policy.ttl_ms) == (None, 0)


def test_a_template_adds_partitions_and_never_takes_them_away() -> None:
    world = World()
    topic = plain(world, "t")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    template(world, "wide", "t", partitions=5)
    assert len(topic.partitions) == 5
    world.publish(topic, b"x", partition=4)
    world.reopen()
    topic = world.find()
    assert len(topic.partitions) == 5
    assert values(world.drain(topic)) == [b"x"]
    world.engine.templates.delete(NS, "wide", now_ms=world.now_ms)
    assert len(world.reopen().find().partitions) == 5


@pytest.mark.parametrize(
    ("pattern", "settings"),
    [
        ("(", {}),
        ("t", {"ttl_ms": -1}),
        ("t", {"ttl_ms": 10**30}),
        ("t", {"nonsense": 1}),
        ("t", {"retry": {"factor": 1e300}}),
        ("t", {"ordering": "strict", "partitions": 1}),  # legal alone, not with what the topic says
    ],
)
def test_an_illegal_template_changes_nothing(pattern: str, settings: dict[str, object]) -> None:
    world = World()
    topic = plain(world, "t", partitions=3)
    policy, before = topic.policy, world.lsn()
    with pytest.raises(IllegalPolicy):
        template(world, "bad", pattern, **settings)
    assert (topic.policy, world.lsn()) == (policy, before)
    assert not world.engine.state.templates
    with pytest.raises(UnknownTemplate):
        world.engine.templates.delete(NS, "bad", now_ms=world.now_ms)


def test_a_template_others_stand_on_can_not_be_deleted() -> None:
    world = World()
    template(world, "one", "t", partitions=1)
    topic = plain(world, "t", ordering="strict")
    before = world.lsn()
    with pytest.raises(IllegalPolicy):
        world.engine.templates.delete(NS, "one", now_ms=world.now_ms)
    assert world.lsn() == before
    assert world.reopen().find().policy.ordering == topic.policy.ordering


def test_strict_ordering_is_refused_for_a_topic_with_several_partitions() -> None:
    world = World()
    topic = plain(world, "t")
    with pytest.raises(IllegalPolicy):
        template(world, "strict", "t", ordering="strict", partitions=1)
    assert topic.policy.ordering == "partition"


# --- partition scaling ---


def test_scaling_moves_no_record_and_keeps_the_order_of_keys() -> None:
    """Records published before the switch stay where they are, those after it go where the new
    count says; whoever consumes gets the old ones of a key first."""
    world = World()
    topic = plain(world, "t", partitions=2)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    keys = [b"key-%d" % number for number in range(50)]
    for number in range(200):
        world.publish(topic, b"old-%d" % number, key=keys[number % 50])
    world.engine.topics.alter(topic, {"partitions": 5}, now_ms=world.now_ms)
    for number in range(200):
        world.publish(topic, b"new-%d" % number, key=keys[number % 50])
    world.reopen()
    topic = world.find()
    assert len(topic.partitions) == 5
    places: defaultdict[tuple[bytes, bytes], list[tuple[int, int]]] = defaultdict(list)
    for partition in range(5):
        for record in all_records(world, topic, partition):
            side, _, number = (record.value or b"").partition(b"-")
            places[record.key or b"", side].append((partition, int(number)))
    for (key, side), found in places.items():
        assert {each for each, _ in found} == {partition_for(key, 2 if side == b"old" else 5)}
        assert [number for _, number in found] == sorted(number for _, number in found)
        assert len(found) == 4
    got = world.drain(topic)
    assert len(got) == 400
    for key in keys:
        mine = [each.value for each in got if each.record.key == key]
        assert [value[:3] for value in mine] == [b"old"] * 4 + [b"new"] * 4


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_every_subscription_sees_new_partitions_from_their_beginning(start: str) -> None:
    world = World()
    topic = plain(world, "t", partitions=1)
    world.publish(topic, b"old")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms, start=start)
    world.engine.topics.alter(topic, {"partitions": 2}, now_ms=world.now_ms)
    world.publish(topic, b"new", partition=1)
    expected = [b"new"] if start == "latest" else [b"new", b"old"]
    assert sorted(values(world.drain(topic))) == expected


# --- pressure ---

MARKS = Watermarks(
    memory_slow_bytes=800, memory_block_bytes=1000, disk_slow_bytes=200, disk_block_bytes=100
)


def levels(*steps: tuple[int, int]) -> list[Level]:
    pressure = Pressure(MARKS)
    found = []
    for memory, disk in steps:
        pressure.update(memory, disk)
        found.append(pressure.level)
    return found


def test_memory_slows_blocks_and_releases_with_a_gap() -> None:
    n, s, b = Level.NORMAL, Level.SLOW, Level.BLOCKED
    assert levels(*((each, 999) for each in (0, 799, 800, 730, 720, 719, 799))) == [
        *(n, n, s, s, s, n, n)
    ]
    assert levels(*((each, 999) for each in (1000, 950, 900, 899, 720, 719))) == [
        *(b, b, b, s, s, n)
    ]


def test_disk_slows_blocks_and_releases_with_a_gap() -> None:
    n, s, b = Level.NORMAL, Level.SLOW, Level.BLOCKED
    assert levels(*((0, each) for each in (999, 201, 200, 222, 223, 100, 111, 112, 250))) == [
        *(n, n, s, s, n, b, b, s, n)
    ]


def test_one_resource_does_not_hold_the_other_to_its_lower_mark() -> None:
    assert levels((750, 999), (750, 150), (750, 999)) == [Level.NORMAL, Level.SLOW, Level.NORMAL]


def test_a_change_is_told_once() -> None:
    world = World()
    world.engine.pressure.marks = MARKS
    for _ in range(3):
        world.engine.check_pressure(50)
    (effect,) = world.engine.take_effects()
    assert isinstance(effect, PressureChanged)
    assert (effect.level, effect.reason) == (Level.BLOCKED, "disk space is low")
    world.engine.check_pressure(5000)
    (effect,) = world.engine.take_effects()
    assert isinstance(effect, PressureChanged)
    assert effect.level is Level.NORMAL


def test_consumers_drain_while_publishers_are_blocked() -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"x")
    world.engine.check_pressure(0)
    assert values(world.drain(topic)) == [b"x"]


# --- many topics ---


def test_fan_out_to_a_thousand_topics_writes_the_body_once() -> None:
    disk = RecordingDisk(MemoryDisk())
    world = World(disk, StorageSettings())
    topics = [world.topic(f"t{number}") for number in range(1000)]
    for topic in topics:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.engine.store.commit()
    disk.clear()
    body = bytes(range(256)) * 400
    world.engine.publishing.fan_out(topics, world.batch(body), now_ms=world.now_ms)
    world.engine.store.commit()
    written = b"".join(each.data for each in disk.operations if each.kind == "write")
    assert written.count(body) == 1
    assert len(written) < len(body) + 1000 * 20
    assert all(values(world.drain(topic)) == [body] for topic in topics[::100])
    world.reopen()
    assert values(world.drain(world.find("t1"))) == [body]


@pytest.mark.parametrize("transient", [0, 4, 20], ids=["durable", "both", "transient"])
def test_a_checkpoint_writes_the_body_of_a_fan_out_once(transient: int) -> None:
    """Topics of every kind share it."""
    disk = RecordingDisk(MemoryDisk())
    world = World(disk, StorageSettings())
    topics = [
        world.engine.topics.create(
            NS, f"t{number}", {"partitions": 1}, now_ms=world.now_ms, durable=number >= transient
        )
        for number in range(20)
    ]
    for topic in topics:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    body = bytes(range(256)) * 20
    world.engine.publishing.fan_out(topics, world.batch(body), now_ms=world.now_ms)
    world.engine.store.commit()
    disk.clear()
    world.engine.store.checkpoint()
    segments = [each for each in disk.operations if each.path.startswith("segments/")]
    written = b"".join(each.data for each in segments if each.kind == "write")
    assert written.count(body) == 1
    for topic in topics:
        topic.partitions[0].log.evict()
        assert values(world.drain(topic)) == [body]


def test_fan_out_passes_by_topics_that_are_full() -> None:
    world = World()
    full, free, wide = (
        world.topic("full", max_messages=0),
        world.topic("free"),
        plain(world, "wide"),
    )
    for topic in (full, free, wide):
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    done = world.engine.publishing.fan_out(
        [full, free, wide], world.batch(b"a", b"b"), now_ms=world.now_ms
    )
    assert done.accepted == 0
    assert [topic.depth for topic in (full, free, wide)] == [0, 2, 2]


def test_ten_thousand_idle_topics_cost_little_and_do_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "braidmq")  # pytest would keep a line for each
    world = World(settings=StorageSettings())
    world.engine.store.commit()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            topic = world.topic(f"topic-{number}", ttl_ms=HOUR, idle_expires_ms=0)
            world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
            if number % 1000 == 0:
                world.engine.store.commit()
        world.engine.store.commit()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / 10_000 < 4096, used / 10_000
    world.advance(SECOND)
    # Nothing but the background sweep is due, however long one waits.
    assert len(world.engine.state.wheel) == 1
    handled = []
    sweep = world.engine.timers._handlers
    for kind, (handler, *_) in list(sweep.items()):
        sweep[kind] = [lambda *a, kind=kind, handler=handler: (handled.append(kind), handler(*a))]
    world.advance(4 * MINUTE)
    assert handled == []
    assert world.engine.dispatching.dispatch(world.now_ms) == []


@pytest.mark.parametrize(
    "settings",
    [{"max_messages": 1 << 63}, {"retry": {"max_backoff_ms": 1 << 70}}, {"ttl_ms": -(1 << 80)}],
)
def test_numbers_that_no_record_of_a_topic_could_have(settings: dict[str, object]) -> None:
    with pytest.raises(IllegalPolicy, match="can be at most"):
        make_policy(settings)
