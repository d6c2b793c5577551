"""Topics in memory: nothing of their records reaches the disk, all of it counts, and after a
restart the topic is there, empty, with offsets that never meant another record."""

import pytest
from engine_worlds import NS, SMALL, World, all_records, crashes, roomy, values

from braidmq.engine.errors import StorageIsFixed
from braidmq.engine.policy import IllegalPolicy
from braidmq.engine.state import NAMESPACE_STORAGE
from braidmq.engine.topics import Topic
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import OFFSETS_RESERVED
from braidmq.testing.faulty_disk import FaultyDisk, LoseAll
from braidmq.testing.recording_disk import RecordingDisk

QUEUE = {"retention": {"until_acked": True}}


def in_memory(world: World, name: str = "t", **settings: object) -> Topic:
    return world.topic(name, durability="memory", **settings)


def memory_namespace(world: World, name: str = NS) -> None:
    world.engine.store.change([(NAMESPACE_STORAGE, name, b"memory")])


def test_no_record_reaches_the_disk_whatever_is_done_with_it() -> None:
    disk = RecordingDisk(MemoryDisk())
    world = World(disk)
    topic = in_memory(world, **QUEUE)
    consumer = world.consumer(topic, credits=roomy())
    world.engine.store.commit()
    disk.clear()
    lsn = world.lsn()
    for number in range(200):
        world.publish(topic, b"secret %d" % number)
    got = world.pull(consumer)
    for each in got[:50]:
        world.ack(each)
    world.nack(got[50])
    assert len(got) == 200
    assert world.lsn() == lsn, "nothing was journaled"
    world.checkpoint()
    written = b"".join(each.data for each in disk.operations if each.kind == "write")
    assert b"secret" not in written
    assert not [each for each in disk.operations if each.path.startswith("segments/")]
    assert topic.partitions[0].log.segments == []


def test_a_publish_needs_no_disk() -> None:
    world = World()
    topic = in_memory(world)
    published = world.engine.publishing.publish(topic, world.batch(b"x"), now_ms=world.now_ms)
    assert published.lsn is None


@pytest.mark.parametrize("settings", [{}, QUEUE], ids=["topic", "queue"])
def test_after_a_restart_it_is_there_and_empty(settings: dict[str, object]) -> None:
    world = World()
    topic = in_memory(world, **settings)
    consumer = world.consumer(topic, credits=roomy())
    world.publish_each(topic, [b"a", b"b", b"c"])
    world.ack(world.pull(consumer)[0])
    before = topic.partitions[0].log.next_offset
    for _ in range(2):
        world.reopen()
        topic = world.find()
        log = topic.partitions[0].log
        assert topic.in_memory
        assert topic.policy.durability == "memory"
        assert log.start_offset == log.next_offset > before, "no offset means another record"
        before = log.next_offset
        assert topic.subscriptions["s"].depth == 0
        world.publish(topic, b"new")
        assert topic.subscriptions["s"].depth == 1
        assert values(world.drain(topic)) == [b"new"]


def test_offsets_are_reserved_before_they_are_used_up() -> None:
    """The publish that asks for more waits for the disk, which half of them gives time for."""
    disk = FaultyDisk()
    world = World(disk, SMALL)
    topic = in_memory(world, retention={"messages": 10})
    world.engine.store.commit()
    log = topic.partitions[0].log
    waited = 0
    for _ in range(3 * OFFSETS_RESERVED // 1000):
        published = world.engine.publishing.publish(
            topic, world.batch(*[b"x"] * 1000), now_ms=world.now_ms
        )
        if published.lsn is not None:
            waited += 1
            world.engine.store.commit()
        assert log.next_offset <= log.reserved_offset
        left = world.crash(LoseAll()).find().partitions[0].log if waited < 3 else None
        assert left is None or left.next_offset >= log.next_offset
    assert 4 <= waited <= 8


def test_a_batch_larger_than_what_is_reserved() -> None:
    world = World()
    topic = in_memory(world)
    world.publish(topic, *[b"x"] * (OFFSETS_RESERVED + 10))
    log = topic.partitions[0].log
    assert log.reserved_offset > log.next_offset
    assert world.reopen().find().partitions[0].log.next_offset >= OFFSETS_RESERVED + 10


def test_its_memory_counts_and_is_given_back() -> None:
    world = World(settings=StorageSettings(tail_bytes_max=1 << 20))
    memory = world.engine.store.memory
    topic, stays = in_memory(world, **QUEUE), world.topic("on-disk")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(stays, b"y" * 1000)
    for _ in range(64):
        world.publish(topic, b"x" * 32_000)
    assert memory.kept > 64 * 32_000
    assert memory.resident > memory.kept
    assert not world.engine.store.wants_checkpoint(), "a checkpoint could not free any of it"
    world.checkpoint()
    assert stays.partitions[0].log.read(0)[0].batch.count == 1
    assert memory.resident > memory.kept, "others are not pushed out of memory by it"
    assert len(world.drain(topic)) == 64
    assert memory.kept == 0
    world.engine.topics.delete(stays)
    assert memory.resident == 0


def test_publishers_are_blocked_by_the_watermark() -> None:
    world = World()
    marks = world.engine.pressure.marks
    topic = in_memory(world)
    world.engine.pressure.marks = type(marks)(memory_slow_bytes=50_000, memory_block_bytes=100_000)
    world.publish(topic, *[b"x" * 1000] * 200)
    changed = world.engine.pressure.update(world.engine.store.memory.resident, 1 << 60)
    assert changed is not None
    assert changed.level.name == "BLOCKED"


def test_a_message_that_is_never_answered_does_not_keep_all_behind_it() -> None:
    world = World()
    topic = in_memory(world, **QUEUE)
    consumer = world.consumer(topic, credits=roomy())
    for number in range(1000):
        world.publish(topic, b"%d" % number * 20_000)
        got = world.pull(consumer)
        if number:
            world.ack(got[0])
    assert world.engine.store.memory.kept < 400 * 60_000
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    assert values(world.drain(topic)) == [b"0" * 20_000]


def test_of_deleted_topics_nothing_is_left() -> None:
    world = World()
    topic = in_memory(world)
    world.publish(topic, b"x" * 1000)
    world.engine.topics.delete(topic)
    assert world.engine.store.memory.kept == 0
    world.reopen()
    assert not list(world.engine.store.catalogue.items("in-memory"))
    assert not world.engine.store.logs


def test_a_crash_while_it_is_made_leaves_all_or_nothing() -> None:
    def act(world: World) -> None:
        in_memory(world)
        world.engine.store.commit()

    for world in crashes(lambda world: None, act):
        assert len(world.engine.store.logs) == len(world.engine.state.topics)


def test_one_fan_out_to_memory_and_disk() -> None:
    world = World()
    topics = [in_memory(world, "m"), world.topic("d"), in_memory(world, "m2")]
    for topic in topics:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    fanned = world.engine.publishing.fan_out(topics, world.batch(b"x"), now_ms=world.now_ms)
    assert fanned.lsn is not None, "one of them is on disk"
    assert [values(world.drain(topic)) for topic in topics] == [[b"x"]] * 3
    world.engine.publishing.fan_out(topics, world.batch(b"y"), now_ms=world.now_ms)
    world.reopen()
    assert [values(world.drain(world.find(name))) for name in ("m", "d", "m2")] == [[], [b"y"], []]


def test_dead_letters_of_a_topic_in_memory_go_to_disk_unless_the_namespace_is_in_memory() -> None:
    world = World()
    topic = in_memory(world, **QUEUE)
    world.publish(topic, b"x")
    consumer = world.consumer(topic, credits=roomy())
    world.reject(world.pull(consumer)[0])
    assert world.engine.store.memory.kept == 0
    world.reopen()
    assert len(all_records(world, world.find("t.dlq"))) == 1
    assert world.find().subscriptions["s"].depth == 0


def test_refused_combinations() -> None:
    world = World()
    with pytest.raises(IllegalPolicy, match="in memory can't be compacted"):
        in_memory(world, compaction={"enabled": True})
    memory, disk = in_memory(world, "m"), world.topic("d")
    with pytest.raises(StorageIsFixed, match="in memory"):
        world.engine.topics.alter(memory, {"durability": "disk"}, now_ms=world.now_ms)
    with pytest.raises(StorageIsFixed, match="on disk"):
        world.engine.topics.alter(disk, {"durability": "memory"}, now_ms=world.now_ms)
    world.engine.topics.alter(disk, {"partitions": 1, "durability": "os"}, now_ms=world.now_ms)
    assert disk.policy.durability == "os"


def test_a_template_moves_no_records() -> None:
    world = World()
    disk, memory = world.topic("d"), in_memory(world, "m")
    world.publish(disk, b"x")
    world.engine.templates.put(NS, "p", ".*", {"durability": "memory"}, now_ms=world.now_ms)
    assert (disk.policy.durability, memory.policy.durability) == ("disk", "memory")
    assert world.topic("new").in_memory
    world.reopen()
    assert not world.find("d").in_memory
    assert values(world.drain(world.find("d"))) == [b"x"]
    with pytest.raises(IllegalPolicy, match="compacted"):
        world.engine.templates.put(
            NS, "q", "m", {"compaction": {"enabled": True}}, now_ms=world.now_ms, priority=1
        )


def test_everything_in_a_namespace_in_memory_is() -> None:
    world = World()
    memory_namespace(world)
    topic = world.topic("t", partitions=2)
    assert topic.in_memory
    assert topic.durable
    with pytest.raises(IllegalPolicy, match="keeps its records in memory") as refused:
        world.topic("x", durability="disk")
    assert refused.value.remedy
    world.publish(topic, b"x")
    consumer = world.consumer(topic, credits=roomy())
    world.reject(world.pull(consumer)[0])
    dead = world.find("t.dlq")
    assert dead.in_memory
    world.engine.topics.alter(topic, {"partitions": 4}, now_ms=world.now_ms)
    assert all(each.log.in_memory for each in topic.partitions)
    other = world.engine.topics.create("other", "t", {}, now_ms=world.now_ms)
    assert not other.in_memory
    world.reopen()
    assert world.find("t").in_memory
    assert world.engine.state.topic("other", "t").in_memory is False


def test_one_that_ends_with_its_connection_is_in_memory_there_too() -> None:
    world = World()
    memory_namespace(world)
    topic = world.engine.topics.create(NS, "e", {}, now_ms=world.now_ms, durable=False)
    for _ in range(50):
        world.publish(topic, b"x" * 1000, partition=0)
    world.checkpoint()
    assert not any(each.log.segments for each in topic.partitions)
    assert world.engine.store.memory.kept > 50_000
    world.engine.topics.delete(topic)
    assert world.engine.store.memory.kept == 0
