"""What tests of the engine share: an engine with a clock of its own, and short ways to use it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from braidmq.engine.engine import Engine
from braidmq.engine.envelope import decode_headers
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.topics import Consumer, Credit, Delivery, Mode, PartitionView, Topic
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.disk import Disk, MemoryContent, MemoryDisk, Node
from braidmq.storage.settings import StorageSettings
from braidmq.testing.faulty_disk import CrashChoice, FaultyDisk, KeepAll, LoseAll, Random

NOW = 1_700_000_000_000
NS = "n"
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

SMALL = StorageSettings(
    segment_bytes_max=4096,
    index_interval_bytes=256,
    journal_file_bytes=65536,
    tail_bytes_max=0,
)
"""Segments seal after some twenty records, and what a checkpoint flushed is read from disk."""


class Got(NamedTuple):
    """One message as it was delivered."""

    consumer: Consumer
    view: PartitionView
    record: Record
    attempts: int

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes:
        assert self.record.value is not None
        return self.record.value

    @property
    def headers(self) -> dict[str, bytes]:
        return dict(decode_headers(self.record.envelope))


def flat(deliveries: Iterable[Delivery]) -> list[Got]:
    return [
        Got(each.consumer, each.view, each.batch.record(index), each.attempts)
        for each in deliveries
        for index in range(each.first_index, each.stop_index)
    ]


def values(got: Iterable[Got]) -> list[bytes]:
    return [each.value for each in got]


def all_records(world: "World", topic: Topic, partition: int = 0) -> list[Record]:
    """By reading the log from its beginning to its end."""
    found: list[Record] = []
    at = 0
    while runs := world.engine.reading.read(topic, partition, at):
        for run in runs:
            found += [run.batch.record(index) for index in range(run.first, run.stop)]
        at = found[-1].offset + 1
    return found


def roomy(messages: int = 1 << 40) -> list[Credit]:
    return [Credit(messages)]


class World:
    """An engine, its disk and its time."""

    def __init__(
        self,
        disk: Disk | None = None,
        settings: StorageSettings = SMALL,
        upkeep: RetentionSettings | None = None,
    ) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.settings = settings
        self.now_ms = NOW
        self.engine = Engine.open(self.disk, self.now_ms, settings, upkeep=upkeep)

    # --- making things ---

    def topic(self, name: str = "t", **settings: Any) -> Topic:
        return self.engine.topics.create(NS, name, {"partitions": 1} | settings, now_ms=self.now_ms)

    def find(self, name: str = "t") -> Topic:
        return self.engine.state.topic(NS, name)

    def consumer(
        self, topic: Topic, name: str = "s", mode: Mode = Mode.SHARED, **options: Any
    ) -> Consumer:
        subscription = self.engine.subscriptions.subscribe(
            topic, name, now_ms=self.now_ms, mode=mode
        )
        return self.engine.consumers.attach(subscription, now_ms=self.now_ms, **options)

    def batch(self, *contents: bytes | None, **fields: Any) -> RecordBatch:
        batch = RecordBatch()
        for content in contents:
            batch.append(content, **({"timestamp_ms": self.now_ms} | fields))
        return batch

    def publish(
        self, topic: Topic, *contents: bytes | None, partition: int | None = None, **fields: Any
    ) -> int:
        """Returns how many were accepted."""
        published = self.engine.publishing.publish(
            topic, self.batch(*contents, **fields), now_ms=self.now_ms, partition=partition
        )
        return published.accepted

    def publish_each(self, topic: Topic, contents: Iterable[bytes], **fields: Any) -> None:
        for content in contents:
            self.publish(topic, content, **fields)

    def delay(self, topic: Topic, value: bytes, delay_ms: int) -> None:
        self.publish(topic, value, due_at_ms=self.now_ms + delay_ms)

    # --- using them ---

    def dispatch(self) -> list[Got]:
        return flat(self.engine.dispatching.dispatch(self.now_ms))

    def pull(self, consumer: Consumer, limit: int = 1 << 20) -> list[Got]:
        return flat(self.engine.dispatching.pull(consumer, limit, now_ms=self.now_ms))

    def drain(self, topic: Topic, name: str = "s") -> list[Got]:
        """Everything a subscription has, acknowledged."""
        consumer = self.consumer(topic, name, credits=roomy())
        found: list[Got] = []
        while got := self.pull(consumer):
            for each in got:
                self.ack(each)
            found += got
        self.engine.consumers.detach(consumer, now_ms=self.now_ms)
        return found

    def ack(self, got: Got) -> int:
        return self.engine.settling.ack(got.consumer, got.view, got.offset, got.offset + 1)

    def nack(self, got: Got, **options: Any) -> int:
        return self.engine.settling.nack(
            got.consumer, got.view, got.offset, got.offset + 1, now_ms=self.now_ms, **options
        )

    def requeue(self, got: Got) -> int:
        return self.engine.settling.requeue(
            got.consumer, got.view, got.offset, got.offset + 1, now_ms=self.now_ms
        )

    def reject(self, got: Got, error: str = "") -> int:
        return self.engine.settling.reject(
            got.consumer, got.view, got.offset, got.offset + 1, now_ms=self.now_ms, error=error
        )

    # --- time, disk ---

    def advance(self, ms: int) -> None:
        """Time passes, and what is due is done when it is, not later."""
        target = self.now_ms + ms
        while (due := self.engine.next_due_ms()) is not None and due <= target:
            self.now_ms = max(self.now_ms, due)
            self.engine.advance(self.now_ms)
        self.now_ms = target
        self.engine.advance(target)

    def checkpoint(self) -> None:
        self.engine.store.checkpoint()

    def reopen(self, after_ms: int = 0) -> "World":
        self.engine.store.commit()
        self.engine.close()
        self.now_ms += after_ms
        self.engine = Engine.open(self.disk, self.now_ms, self.settings)
        return self

    def crash(self, choice: CrashChoice | None = None) -> "World":
        """Another world, which opened what a crash of this one left."""
        assert isinstance(self.disk, FaultyDisk)
        survivor = World.__new__(World)
        survivor.disk = self.disk.crash(choice or KeepAll())
        survivor.settings, survivor.now_ms = self.settings, self.now_ms
        survivor.engine = Engine.open(survivor.disk, self.now_ms, self.settings)
        return survivor

    def depths(self, topic: Topic) -> dict[str, tuple[int, int, int, int]]:
        """What must be as before after an error: depth, bytes, ready, in flight."""
        return {
            name: (sub.depth, sub.depth_bytes, sub.ready, sub.in_flight)
            for name, sub in topic.subscriptions.items()
        }

    def lsn(self) -> int:
        """Moves whenever anything durable changes."""
        return self.engine.store.journal.next_lsn


# --- a crash at every disk operation ---


class Crashing(FaultyDisk):
    """Keeps what a crash before each of its operations would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[FaultyDisk] = []
        self.watching = False

    def _moment(self) -> None:
        if self.watching:
            self.moments += [
                self.crash(KeepAll()),
                self.crash(LoseAll()),
                *(self.crash(Random(seed)) for seed in range(3)),
            ]

    def change_bytes(self, content: MemoryContent, position: int, data: bytes) -> None:
        self._moment()
        super().change_bytes(content, position, data)

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        self._moment()
        super().sync_contents(contents)

    def change_names(self, changes: Mapping[str, Node | None]) -> None:
        self._moment()
        super().change_names(changes)


def crashes(prepare: Callable[[World], None], act: Callable[[World], None]) -> Iterator[World]:
    """The worlds that crashes at every disk operation of ``act`` leave."""
    disk = Crashing()
    world = World(disk, SMALL)
    prepare(world)
    world.engine.store.commit()
    disk.watching = True
    act(world)
    disk.watching = False
    assert disk.moments
    for moment in disk.moments:
        left = World.__new__(World)
        left.disk, left.settings, left.now_ms = moment, SMALL, world.now_ms
        left.engine = type(world.engine).open(moment, world.now_ms, SMALL)
        yield left
