"""A node whose disk is full of what nobody wants any more: the block lifts by itself."""

import asyncio

from braidmq.engine.effects import Level, PressureChanged
from braidmq.engine.engine import Engine
from braidmq.engine.pressure import Watermarks
from braidmq.model.clock import SystemClock
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings

ROOM = 1_000_000
MARKS = Watermarks(disk_block_bytes=500_000, disk_slow_bytes=550_000)
SMALL = StorageSettings(segment_bytes_max=8192, journal_file_bytes=65536, tail_bytes_max=8192)


class SmallDisk(MemoryDisk):
    """What is stored on it takes from its room."""

    def free_bytes(self, path: str) -> int:
        folders = ("journal", "segments", "snapshots")
        paths = [f"{each}/{name}" for each in folders for name in self.list(each)]
        return ROOM - sum(map(self._size_if_there, paths))

    def _size_if_there(self, path: str) -> int:
        """The checkpointer, in its thread, removes files meanwhile."""
        try:
            return self.size(path)
        except FileNotFoundError:
            return 0


async def test_a_disk_block_lifts_when_everything_is_acknowledged() -> None:
    clock = SystemClock()
    engine = Engine.open(SmallDisk(), clock.now_ms(), SMALL, MARKS)
    broker = NodeLoop(engine, clock, asyncio.get_running_loop())
    levels: asyncio.Queue[Level] = asyncio.Queue()

    def heard(changed: PressureChanged) -> None:
        levels.put_nowait(changed.level)

    broker.on_pressure(heard)
    settings = {"partitions": 1, "retention": {"until_acked": True}}
    topic = engine.topics.create("/", "q", settings, now_ms=broker.now_ms())
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=broker.now_ms())
    try:
        while engine.pressure.level is not Level.BLOCKED:
            batch = RecordBatch()
            batch.append(b"x" * 4000, timestamp_ms=clock.now_ms())
            await broker.durable(
                engine.publishing.publish(topic, batch, now_ms=broker.now_ms()).lsn
            )
            engine.check_pressure(engine.store.disk.free_bytes(""))
        broker.schedule_turn()
        while await levels.get() is not Level.BLOCKED:
            pass
        consumer = engine.consumers.attach(subscription, now_ms=broker.now_ms(), passive=True)
        while found := engine.dispatching.pull(consumer, 1000, now_ms=broker.now_ms()):
            for each in found:
                engine.settling.ack(consumer, each.view, each.start_offset, each.end_offset)
        broker.schedule_turn()
        # Nobody publishes, nobody restarts: only time passes.
        while await levels.get() is not Level.NORMAL:
            pass
        assert engine.store.failure() is None
    finally:
        broker.stop()
        engine.close()
