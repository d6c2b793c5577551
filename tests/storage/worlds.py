"""What tests of the store share: random batches, what a store shows, a plain model of it."""

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from braidmq.record.batch import FLAG_TIMED, HEADER_SIZE, Record, RecordBatch
from braidmq.storage.checkpoint import Checkpoint
from braidmq.storage.disk import Disk
from braidmq.storage.partition_log import PartitionLog, Run
from braidmq.storage.segment import Segment, read_header
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk

SMALL = StorageSettings(
    segment_bytes_max=4096,
    index_interval_bytes=256,
    journal_file_bytes=16384,
    tail_bytes_max=4096,
)
"""Everything rolls, seals and is evicted after a handful of batches."""

Content = tuple[object, ...]
"""A record without its offset."""


def random_message(rng: random.Random, value_max: int = 60) -> dict[str, object]:
    message: dict[str, object] = {
        "value": None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, value_max)),
        "key": rng.randbytes(rng.randint(0, 9)) if rng.random() < 0.5 else None,
        "envelope": rng.randbytes(rng.randint(0, 20)),
        "envelope_format": rng.randint(0, 3),
        "priority": rng.randint(0, 9),
        "timestamp_ms": rng.randint(0, 1000),
    }
    if rng.random() < 0.3:
        message |= {"expires_at_ms": rng.randint(1, 99), "due_at_ms": rng.randint(0, 99)}
    return message


def random_batch(rng: random.Random, count_max: int = 6, value_max: int = 60) -> RecordBatch:
    batch = RecordBatch()
    for _ in range(rng.randint(1, count_max)):
        batch.append(**random_message(rng, value_max))  # type: ignore[arg-type]
    return batch


def value_batch(*values: bytes, timestamp_ms: int = 0) -> RecordBatch:
    batch = RecordBatch()
    for value in values:
        batch.append(value, timestamp_ms=timestamp_ms)
    return batch


def resident_bytes(log: PartitionLog) -> int:
    """What it has in memory."""
    return sum(batch.memory_bytes for batch in log._tail[log._head :])


def contents(batch: RecordBatch) -> list[Content]:
    return [tuple(record[1:]) for record in batch.records()]


def run_records(runs: Iterable[Run]) -> list[Record]:
    return [run.batch.record(index) for run in runs for index in range(run.first, run.stop)]


def read_all(log: PartitionLog, bytes_max: int = 1024, start: int = 0) -> list[Record]:
    """Everything from ``start`` on, in pieces."""
    found: list[Record] = []
    offset = start
    while records := run_records(log.read(offset, bytes_max)):
        assert records[0].offset >= offset
        found += records
        offset = records[-1].offset + 1
    return found


# --- what a store shows, in plain values ---


class PartitionView(NamedTuple):
    label: str
    start_offset: int
    next_offset: int
    records: tuple[tuple[int, Content], ...] = ()

    def from_start(self, offset: int) -> "PartitionView":
        kept = tuple(row for row in self.records if row[0] >= offset)
        return self._replace(start_offset=max(offset, self.start_offset), records=kept)


class View(NamedTuple):
    partitions: Mapping[int, PartitionView]
    acknowledged: Mapping[tuple[int, int], frozenset[int]]
    facts: Mapping[str, bytes]


NOTHING = View({}, {}, {})


def view(store: Store) -> View:
    return View(
        {log.id: view_log(log) for log in store.logs.values()},
        {key: frozenset(found) for key in store.acknowledged if (found := _offsets(store, key))},
        dict(store.catalogue.table("facts")),
    )


def view_log(log: PartitionLog) -> PartitionView:
    records = tuple((record.offset, tuple(record[1:])) for record in read_all(log))
    return PartitionView(log.label, log.start_offset, log.next_offset, records)


def _offsets(store: Store, key: tuple[int, int]) -> list[int]:
    log = store.logs.get(key[1])
    return [n for n in range(log.next_offset if log else 0) if n in store.acknowledged[key]]


def files(disk: Disk) -> dict[str, bytes]:
    """Every file but the lock and its bytes."""
    found = {}
    for directory in ("", "journal", "snapshots", "segments"):
        for name in disk.list(directory):
            path = f"{directory}/{name}".lstrip("/")
            if path in ("LOCK", "journal", "snapshots", "segments"):
                continue
            file = disk.open(path)
            found[path] = file.read(file.size(), 0)
            file.close()
    return found


def record_spans(disk: Disk, each: Segment) -> list[tuple[int, int]]:
    """Where each record begins and where its checksums' reach ends: padding is not covered.

    Of a segment that has no references."""
    file = disk.open(each.path)
    start = read_header(file).length
    batch = RecordBatch.scan(file.read(each.size - start, start))
    spans = []
    for at, record in enumerate(batch.records()):
        body = len(record.key or b"") + len(record.envelope) + len(record.value or b"")
        timing = 16 if record.flags & FLAG_TIMED else 0
        begin = start + batch.position_at(at)
        spans.append((begin, begin + HEADER_SIZE + timing + body))
    return spans


# --- a store and its model, changed together ---


class World:
    """A store beside the plain values it ought to show, after each of its journal entries."""

    def __init__(
        self,
        disk: Disk | None = None,
        settings: StorageSettings = SMALL,
        *,
        compressed: bool = False,
    ) -> None:
        self.compressed = compressed
        self.disk = FaultyDisk() if disk is None else disk
        self.settings = settings
        self.store = Store.open(self.disk, settings)
        self.history: list[tuple[int, View]] = [(0, NOTHING)]
        self.checkpoint: Checkpoint | None = None
        self.recovered_lsn = 0

    @property
    def now(self) -> View:
        return self.history[-1][1]

    def note(self, **changes: object) -> None:
        self.history.append((self.store.journal.next_lsn - 1, self.now._replace(**changes)))

    # changes

    def create(self) -> None:
        log = self.store.create_partition(f"topic/{self.store.journal.next_lsn}")
        log.compressed = self.compressed
        self.note(partitions={**self.now.partitions, log.id: PartitionView(log.label, 0, 0)})

    def delete(self, rng: random.Random) -> None:
        gone = rng.choice(list(self.store.logs))
        self.store.delete_partition(gone)
        left = {key: part for key, part in self.now.partitions.items() if key != gone}
        acks = {key: offsets for key, offsets in self.now.acknowledged.items() if key[1] != gone}
        self.note(partitions=left, acknowledged=acks)

    def append(self, rng: random.Random, value_max: int = 60, logs_min: int = 1) -> None:
        logs = list(self.store.logs.values())
        targets = rng.sample(logs, rng.randint(min(logs_min, len(logs)), len(logs)))
        batch = random_batch(rng, value_max=value_max)
        rows = contents(batch)
        self.store.append(batch, targets)
        partitions = dict(self.now.partitions)
        for log in targets:
            part = partitions[log.id]
            placed = tuple(enumerate(rows, part.next_offset))
            partitions[log.id] = part._replace(
                next_offset=part.next_offset + len(rows), records=part.records + placed
            )
        self.note(partitions=partitions)

    def acknowledge(self, rng: random.Random) -> None:
        partition, part = rng.choice(list(self.now.partitions.items()))
        if not part.next_offset:
            return
        start = rng.randrange(part.next_offset)
        stop = rng.randint(start + 1, part.next_offset)
        key = (rng.randint(1, 2), partition)
        self.store.acknowledge(*key, [(start, stop)])
        offsets = self.now.acknowledged.get(key, frozenset()) | frozenset(range(start, stop))
        self.note(acknowledged={**self.now.acknowledged, key: offsets})

    def change(self, rng: random.Random) -> None:
        key, value = f"k{rng.randint(0, 3)}", rng.randbytes(8)
        if rng.random() < 0.3:
            self.store.change([("facts", key, None)])
            self.note(facts={k: v for k, v in self.now.facts.items() if k != key})
        else:
            self.store.change([("facts", key, value), ("facts", "both", value)])
            self.note(facts={**self.now.facts, key: value, "both": value})

    def advance(self, rng: random.Random) -> None:
        partition, part = rng.choice(list(self.now.partitions.items()))
        offset = rng.randint(part.start_offset, part.next_offset)
        self.store.advance_start(self.store.logs[partition], offset)
        self.note(partitions={**self.now.partitions, partition: part.from_start(offset)})

    # disk work

    def begin(self) -> None:
        if self.checkpoint is None:
            self.checkpoint = self.store.begin_checkpoint()

    def finish(self) -> None:
        if self.checkpoint is not None:
            done, self.checkpoint = self.checkpoint, None
            self.store.commit()
            done.carry_out(self.store.disk, self.store.journal, self.settings)
            self.store.finish_checkpoint(done)

    def take_checkpoint(self) -> None:
        self.begin()
        self.finish()

    def step(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        if (
            name in ("append", "fan out", "large", "acknowledge", "advance", "delete")
            and not self.store.logs
        ):
            self.create()
        if name == "create" and len(self.store.logs) >= 3:
            name = "append"
        match name:
            case "append":
                self.append(rng)
            case "fan out":  # bodies large enough to be shared
                self.append(rng, value_max=300, logs_min=2)
            case "large":  # more than a journal file holds
                self.append(rng, value_max=20_000)
            case "create":
                self.create()
            case "commit":
                self.store.commit()
            case "idle":
                self.store.commit()
                self.store.journal.note_idle()
            case "prepare":
                self.store.journal.prepare()
            case "begin":
                self.begin()
            case "finish":
                self.finish()
            case "checkpoint":
                self.take_checkpoint()
            case "acknowledge":
                self.acknowledge(rng)
            case "advance":
                self.advance(rng)
            case "change":
                self.change(rng)
            case "delete":
                self.delete(rng)

    # after a crash

    def candidates(self) -> list[tuple[int, View]]:
        """What may be found after a crash: all that is durable, and any number more in order."""
        durable = self.store.journal.durable_lsn
        last_durable = max(i for i, (lsn, _) in enumerate(self.history) if lsn <= durable)
        return self.history[last_durable:]

    def check_recovered(self, disk: FaultyDisk) -> "World":
        """Open what a crash left; the world that goes on from there."""
        reopened = World(disk, self.settings, compressed=self.compressed)
        for log in reopened.store.logs.values():
            log.compressed = self.compressed
        if not any("can't be read" in note for note in reopened.store.recovery.notes):
            # What an interrupted checkpoint left is proved dead: only damage sets files aside.
            assert reopened.store.recovery.set_aside == []
        shown = view(reopened.store)
        matches = [each for each in self.candidates() if each[1] == shown]
        assert matches, explain(shown, self.candidates(), reopened.store)
        reopened.recovered_lsn = matches[-1][0]
        reopened.history = [(0, shown)]
        return reopened


STEPS = [
    *["append"] * 6,
    *["fan out"] * 2,
    *["commit"] * 4,
    *["acknowledge"] * 2,
    *["checkpoint"] * 2,
    *["begin", "finish", "create", "change", "advance", "idle", "prepare", "large", "delete"],
]


def explain(shown: View, candidates: list[tuple[int, View]], store: Store) -> str:
    lines = [f"found {brief(shown)}", f"notes {store.recovery.notes}", "but expected one of"]
    return "\n".join([*lines, *(f"  {lsn}: {brief(each)}" for lsn, each in candidates)])


def brief(shown: View) -> str:
    parts = {
        key: (part.start_offset, part.next_offset, len(part.records))
        for key, part in shown.partitions.items()
    }
    acks = {key: sorted(offsets) for key, offsets in shown.acknowledged.items()}
    return f"partitions {parts}, acknowledged {acks}, facts {dict(shown.facts)}"
