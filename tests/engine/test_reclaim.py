"""A disk that is short of room: what nobody wants is freed at once, and publishers go on."""

from engine_worlds import NOW, SMALL, World, roomy

from braidmq.engine.effects import Level, PressureChanged
from braidmq.engine.pressure import Watermarks
from braidmq.storage.disk import MemoryDisk

SIZE = 1_000_000
MARKS = Watermarks(disk_block_bytes=550_000, disk_slow_bytes=600_000)


def stored(disk: MemoryDisk) -> int:
    return sum(
        disk.size(f"{folder}/{name}")
        for folder in ("journal", "segments", "snapshots")
        for name in disk.list(folder)
    )


def full_world() -> World:
    """A queue has filled the disk up to the mark that blocks publishers."""
    world = World(MemoryDisk(), SMALL)
    world.engine.pressure.marks = MARKS
    topic = world.topic(retention={"until_acked": True})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    while world.engine.pressure.level is not Level.BLOCKED:
        world.publish(topic, b"x" * 1000)
        world.engine.store.commit()
        if world.engine.store.wants_checkpoint():
            world.checkpoint()
        look(world)
    return world


def look(world: World) -> None:
    """What a node does twice a second."""
    assert isinstance(world.disk, MemoryDisk)
    world.engine.check_pressure(SIZE - stored(world.disk))
    world.engine.reclaim()
    if world.engine.store.wants_checkpoint():
        world.checkpoint()


def test_a_block_lifts_once_everything_is_acknowledged() -> None:
    """The issue's fault: segments stayed, and publishers were blocked until a restart."""
    world = full_world()
    consumer = world.consumer(world.find(), credits=roomy())
    while got := world.dispatch():
        for each in got:
            world.ack(each)
    assert consumer.in_flight == 0
    for _ in range(3):
        look(world)
    assert world.engine.pressure.level is Level.NORMAL
    changes = [each for each in world.engine.take_effects() if isinstance(each, PressureChanged)]
    assert changes[-1].level is Level.NORMAL
    assert not [name for name in world.disk.list("segments") if name.endswith(".segment")]


def test_a_block_lifts_when_the_topic_is_deleted() -> None:
    world = full_world()
    world.engine.topics.delete(world.find())
    for _ in range(3):
        look(world)
    assert world.engine.pressure.level is Level.NORMAL


def test_nothing_to_free_causes_no_checkpoints() -> None:
    """A checkpoint costs room itself: while nothing is released there is none after another."""
    world = full_world()
    for _ in range(3):
        look(world)
    before = world.engine.store.checkpoints.count
    for _ in range(10):
        look(world)
    assert world.engine.store.checkpoints.count == before
    assert world.engine.pressure.level is Level.BLOCKED


def test_with_room_nothing_is_hurried() -> None:
    world = World(MemoryDisk(), SMALL)
    world.engine.pressure.marks = MARKS
    topic = world.topic(retention={"until_acked": True})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    for _ in range(20):
        world.publish(topic, b"x" * 1000)
    world.checkpoint()
    before = world.engine.store.checkpoints.count
    world.drain(topic)
    for _ in range(3):
        look(world)
    assert world.engine.store.checkpoints.count == before
