"""The store: a node's journal, partition logs, catalogue and snapshots behind one door.

One thread owns a store and makes every change through it. What waits for the disk happens
elsewhere: ``commit`` and ``Checkpoint.carry_out`` may run in other threads, and ``workers`` has
the threads that do it in a node. Tests call them in line.
"""

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from braidmq.model.errors import CorruptData, NotFound, StorageFailed
from braidmq.model.ids import Lsn, PartitionId, SubscriptionId
from braidmq.storage import directory, journal, segment, snapshot
from braidmq.storage.catalogue import Catalogue, Change, decode_changes, encode_changes
from braidmq.storage.disk import DirectoryLock, Disk, File
from braidmq.storage.flush import SegmentWriter
from braidmq.storage.journal import Entry, Journal, Kind, Waiter
from braidmq.storage.offset_set import OffsetSet
from braidmq.storage.partition_log import FlushPlan, FlushResult, Memory, PartitionLog
from braidmq.storage.record import RecordBatch
from braidmq.storage.segment import OpenFiles, Segment, scan_segment
from braidmq.storage.settings import StorageSettings
from braidmq.storage.snapshot import AcknowledgedState, PartitionState, Snapshot, State

PARTITIONS = "partitions"
"""The catalogue's table of partitions: number → label."""

TARGET = struct.Struct("<Qq")
RANGE = struct.Struct("<qq")
ACKNOWLEDGED_HEAD = struct.Struct("<QQ")
LOG_START = struct.Struct("<Qq")

CHECKPOINT_FILL = 0.75
"""A checkpoint begins when a journal file is this full: the rest takes what arrives meanwhile."""

Ranges = Sequence[tuple[int, int]]


@dataclass
class RecoveryReport:
    """What opening a directory found."""

    entries: int = 0
    records: int = 0
    partitions: int = 0
    torn_bytes: int = 0
    elapsed_ms: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass
class Checkpoint:
    """State at one LSN on its way to disk: begun by the owner, carried out anywhere, finished by
    the owner."""

    journaled_lsn: Lsn
    """Everything this state stands on is durable once this is."""
    next_lsn: int
    first_epoch: int
    retire_below: int
    plans: list[FlushPlan]
    catalogue: bytes
    acknowledged: list[AcknowledgedState]
    untouched: list[PartitionState]
    obsolete: list[Segment]
    results: list[FlushResult] = field(default_factory=list)

    def carry_out(self, disk: Disk, target: Journal, settings: StorageSettings) -> None:
        """Segments first, then the snapshot that names them, then what neither needs."""
        writer = SegmentWriter(disk, settings.segment_bytes_max)
        self.results = [writer.carry_out(plan) for plan in self.plans]
        writer.sync()
        snapshot.write(disk, Snapshot(self.next_lsn, self.first_epoch, self._state()))
        snapshot.remove_old(disk)
        for old in self.obsolete:
            remove_segment(disk, old)
        target.retire(self.retire_below)
        target.prepare()

    def _state(self) -> State:
        touched = [
            PartitionState(
                result.plan.log.id,
                result.plan.start_offset,
                result.plan.end_offset,
                result.plan.end_offset,
                [*result.plan.kept, *result.segments],
            )
            for result in self.results
        ]
        return State(self.catalogue, self.acknowledged, self.untouched + touched)


class Store:
    """Use ``Store.open``."""

    def __init__(self, disk: Disk, settings: StorageSettings, lock: DirectoryLock) -> None:
        self.disk = disk
        self.settings = settings
        self.catalogue = Catalogue()
        self.memory = Memory()
        self.recovery = RecoveryReport()
        self.logs: dict[PartitionId, PartitionLog] = {}
        self.acknowledged: dict[tuple[SubscriptionId, PartitionId], OffsetSet] = {}
        self.transaction_entries: list[bytes] = []
        self.journal: Journal
        self._lock = lock
        self._files = OpenFiles(disk)
        self._next_partition = 1
        self._dirty: dict[PartitionId, PartitionLog] = {}
        self._evictable: deque[PartitionLog] = deque()
        self._obsolete: list[Segment] = []
        self._first_epoch = 1
        self._checkpoint: Checkpoint | None = None
        self._closed = False

    # --- opening ---

    @classmethod
    def open(cls, disk: Disk, settings: StorageSettings | None = None) -> "Store":
        """Lock the directory and recover what it holds. Raises SetupError or CorruptData."""
        started = time.perf_counter()
        store = cls(disk, settings or StorageSettings(), directory.claim(disk))
        try:
            store._recover()
        except BaseException:
            store._files.close()
            store._lock.release()
            raise
        store.recovery.elapsed_ms = (time.perf_counter() - started) * 1000
        return store

    def _recover(self) -> None:
        report = self.recovery
        self._first_epoch, next_lsn = self._restore()
        recovered = journal.recover(
            self.disk, first_epoch=self._first_epoch, next_lsn=next_lsn, apply=self._apply
        )
        report.entries = recovered.entries
        report.torn_bytes = recovered.torn_bytes
        report.partitions = len(self.logs)
        if recovered.torn_bytes:
            report.notes.append(
                f"cut {recovered.torn_bytes} bytes that were never confirmed off the journal's end"
            )
        self._check_segments()
        snapshot.remove_unfinished(self.disk)
        journal.remove_leftovers(self.disk, self._first_epoch)
        self.journal = Journal(
            self.disk,
            self.settings.journal_file_bytes,
            next_epoch=recovered.next_epoch,
            next_lsn=recovered.next_lsn,
            closed=recovered.files,
        )

    def _restore(self) -> tuple[int, int]:
        """State before the journal is replayed; returns the first epoch and LSN to replay."""
        found = snapshot.load_newest(self.disk, self.recovery.notes)
        if found is not None:
            self._load(found.state)
            return found.first_epoch, found.next_lsn
        epochs = journal.journal_epochs(self.disk)
        if self.disk.list(segment.DIRECTORY) or min(epochs, default=1) > 1:
            self.recovery.notes.append("no snapshot can be read: rebuilding from segments")
            self._rebuild_from_segments()
            return min(epochs, default=1), journal.oldest_lsn(self.disk) or 1
        return 1, 1

    def _load(self, state: State) -> None:
        self.catalogue.load(state.catalogue)
        for key, label in self.catalogue.items(PARTITIONS):
            self._add_log(PartitionId(int(key)), label.decode())
        for each in state.partitions:
            log = self.logs.get(PartitionId(each.partition))
            if log is not None:
                log.start_offset = each.start_offset
                log.next_offset = each.next_offset
                log.flushed_offset = each.flushed_offset
                log.segments = list(each.segments)
        for acknowledged in state.acknowledged:
            key_pair = (
                SubscriptionId(acknowledged.subscription),
                PartitionId(acknowledged.partition),
            )
            self.acknowledged[key_pair] = OffsetSet.from_bytes(acknowledged.offsets)

    def _rebuild_from_segments(self) -> None:
        """What the segments say of themselves has to do. Labels are in their headers."""
        for name in self.disk.list(segment.DIRECTORY):
            if not name.endswith(segment.SUFFIX):
                continue
            file = self.disk.open(f"{segment.DIRECTORY}/{name}")
            try:
                header = segment.read_header(file)
                found = scan_segment(file, header.partition, self.settings.index_interval_bytes)[0]
            except CorruptData as error:
                found = self._salvage(file, header.partition, error)
            finally:
                file.close()
            self._adopt(header.label, found)

    def _salvage(self, file: File, partition: int, error: CorruptData) -> Segment:
        """The records before the damage: behind them a flush may have been interrupted, and then
        the journal still has the rest."""
        self.recovery.notes.append(f"{error}: what stands before it is kept")
        interval = self.settings.index_interval_bytes
        return scan_segment(file, partition, interval, error.position)[0]

    def _adopt(self, label: str, found: Segment) -> None:
        partition = PartitionId(found.partition)
        if partition not in self.logs:
            self.catalogue.apply([(PARTITIONS, str(partition), label.encode())])
            self._add_log(partition, label)
        log = self.logs[partition]
        if log.segments:
            log.segments[-1].sealed = True
        else:
            log.start_offset = found.base_offset
        log.segments.append(found)
        log.flushed_offset = log.next_offset = found.end_offset

    def _check_segments(self) -> None:
        """Every segment the state names must be there; others are left from interrupted work."""
        present = set(self.disk.list(segment.DIRECTORY))
        for log in self.logs.values():
            for each in log.segments:
                name = each.path.rpartition("/")[2]
                if name not in present:
                    raise CorruptData(each.path, 0, "the segment is missing")
                present.discard(name)
                present.discard(each.index_path.rpartition("/")[2])
        for name in present:
            self.disk.remove(f"{segment.DIRECTORY}/{name}")

    # --- replay: one method a kind ---

    def _apply(self, entry: Entry) -> None:
        _REPLAY[Kind(entry.kind)](self, entry)

    def _replay_records(self, entry: Entry) -> None:
        targets = list(TARGET.iter_unpack(entry.meta))
        # The entry's own checksum has vouched for these bytes.
        batch = RecordBatch.scan(entry.payload, base_offset=targets[0][1], verify=False)
        twins = [batch.at_offset(base_offset) for _, base_offset in targets[1:]]
        for (partition, _), each in zip(targets, (batch, *twins), strict=True):
            self._replay_batch(PartitionId(partition), each)

    def _replay_batch(self, partition: PartitionId, batch: RecordBatch) -> None:
        log = self.logs.get(partition)
        if log is None:
            self.recovery.notes.append(f"partition {partition} has records but no name any more")
            self.catalogue.apply([(PARTITIONS, str(partition), f"partition-{partition}".encode())])
            log = self._add_log(partition, f"partition-{partition}")
        if batch.base_offset < log.flushed_offset:
            # Rebuilt without a snapshot: the segments may hold some of these already.
            rest = batch.slice(log.flushed_offset, batch.next_offset)
            batch = RecordBatch.scan(rest, base_offset=log.flushed_offset, verify=False)
        if batch.count:
            log.append(batch)
            self._dirty[log.id] = log
            self.recovery.records += batch.count

    def _replay_acknowledged(self, entry: Entry) -> None:
        subscription, partition = ACKNOWLEDGED_HEAD.unpack_from(entry.meta)
        offsets = self.offsets_of(SubscriptionId(subscription), PartitionId(partition))
        log = self.logs.get(PartitionId(partition))
        for start, stop in RANGE.iter_unpack(entry.meta[ACKNOWLEDGED_HEAD.size :]):
            offsets.add(start, stop)
            if log is not None:
                # Transient records are not in the journal, but their offsets are never used again.
                log.next_offset = max(log.next_offset, stop)

    def _replay_catalogue(self, entry: Entry) -> None:
        self._apply_changes(decode_changes(entry.meta))

    def _replay_log_start(self, entry: Entry) -> None:
        partition, offset = LOG_START.unpack(entry.meta)
        log = self.logs.get(PartitionId(partition))
        if log is not None:
            log.next_offset = max(log.next_offset, offset)
            self._obsolete.extend(log.advance_start(offset))

    def _replay_transaction(self, entry: Entry) -> None:
        self.transaction_entries.append(entry.meta)

    def _replay_checkpoint(self, entry: Entry) -> None:
        """Only says that a snapshot was begun here; whether it was finished, the file tells."""

    # --- partitions and the catalogue ---

    def _add_log(self, partition: PartitionId, label: str) -> PartitionLog:
        log = self.logs[partition] = PartitionLog(
            partition,
            label,
            memory=self.memory,
            files=self._files,
            index_interval=self.settings.index_interval_bytes,
        )
        self._next_partition = max(self._next_partition, partition + 1)
        return log

    def create_partition(self, label: str) -> PartitionLog:
        partition = PartitionId(self._next_partition)
        self.change([(PARTITIONS, str(partition), label.encode())])
        return self.logs[partition]

    def delete_partition(self, partition: PartitionId) -> Lsn:
        self.log(partition)
        return self.change([(PARTITIONS, str(partition), None)])

    def log(self, partition: PartitionId) -> PartitionLog:
        try:
            return self.logs[partition]
        except KeyError:
            raise NotFound(f"there is no partition {partition}") from None

    def change(self, changes: Sequence[Change]) -> Lsn:
        """Change the catalogue; all of it or, after a crash, nothing."""
        lsn = self.journal.append(Kind.CATALOGUE, encode_changes(changes))
        self._apply_changes(changes)
        return lsn

    def _apply_changes(self, changes: Sequence[Change]) -> None:
        self.catalogue.apply(changes)
        for table, key, value in changes:
            if table == PARTITIONS:
                self._apply_partition(PartitionId(int(key)), value)

    def _apply_partition(self, partition: PartitionId, label: bytes | None) -> None:
        if label is not None:
            if partition not in self.logs:
                self._add_log(partition, label.decode())
            return
        log = self.logs.pop(partition, None)
        if log is not None:
            self._obsolete.extend(log.advance_start(log.next_offset))
            self._dirty.pop(partition, None)
        for key in [key for key in self.acknowledged if key[1] == partition]:
            del self.acknowledged[key]

    # --- records and acknowledgements ---

    def append(self, batch: RecordBatch, logs: Sequence[PartitionLog]) -> Lsn:
        """Append a batch to one partition, or to many with its bytes written once."""
        assert batch.count
        meta = b"".join(TARGET.pack(log.id, log.next_offset) for log in logs)
        lsn = self.journal.append(Kind.RECORDS, meta, batch)
        batch.place(logs[0].next_offset)
        twins = [batch.at_offset(log.next_offset) for log in logs[1:]]
        for log, each in zip(logs, (batch, *twins), strict=True):
            log.append(each)
            self._dirty[log.id] = log
        return lsn

    def append_transient(self, batch: RecordBatch, log: PartitionLog) -> None:
        """Append without the journal: gone after a restart."""
        batch.place(log.next_offset)
        log.append(batch)
        self._dirty[log.id] = log

    def offsets_of(self, subscription: SubscriptionId, partition: PartitionId) -> OffsetSet:
        """What a subscription has acknowledged of a partition."""
        key = (subscription, partition)
        if key not in self.acknowledged:
            self.acknowledged[key] = OffsetSet()
        return self.acknowledged[key]

    def acknowledge(
        self, subscription: SubscriptionId, partition: PartitionId, ranges: Ranges
    ) -> Lsn:
        head = ACKNOWLEDGED_HEAD.pack(subscription, partition)
        meta = head + b"".join(RANGE.pack(start, stop) for start, stop in ranges)
        lsn = self.journal.append(Kind.ACKNOWLEDGED, meta)
        offsets = self.offsets_of(subscription, partition)
        for start, stop in ranges:
            offsets.add(start, stop)
        return lsn

    def advance_start(self, log: PartitionLog, offset: int) -> Lsn:
        """Forget a partition's records below ``offset``: retention, purge."""
        lsn = self.journal.append(Kind.LOG_START, LOG_START.pack(log.id, offset))
        self._obsolete.extend(log.advance_start(offset))
        return lsn

    def note_transaction(self, mark: bytes) -> Lsn:
        """Journal a transaction mark; recovery hands it back in ``transaction_entries``."""
        return self.journal.append(Kind.TRANSACTION, mark)

    # --- durability ---

    def commit(self) -> None:
        """Make everything so far durable and release those who wait for it."""
        self.journal.commit()
        self.journal.release()

    def wait(self, lsn: Lsn, waiter: Waiter) -> None:
        self.journal.wait(lsn, waiter)

    def failure(self) -> StorageFailed | None:
        return self.journal.failure

    # --- checkpoints ---

    def wants_checkpoint(self) -> bool:
        """Whether the journal or the memory not yet flushed has grown enough for one."""
        if self._checkpoint is not None or self.journal.failure is not None:
            return False
        unflushed_max = max(self.settings.tail_bytes_max // 2, 1)
        return (
            self.journal.fill >= CHECKPOINT_FILL
            or self.journal.has_closed_since(self._first_epoch)
            or self.memory.unflushed >= unflushed_max
        )

    def begin_checkpoint(self) -> Checkpoint:
        assert self._checkpoint is None
        plans = [plan for log in self._dirty.values() if (plan := log.begin_flush()) is not None]
        planned = {plan.log.id for plan in plans}
        self._dirty.clear()
        journaled_lsn = self.journal.append(Kind.CHECKPOINT, b"")
        retire_below, self._first_epoch = self._first_epoch, self.journal.roll()
        obsolete, self._obsolete = self._obsolete, []
        self._checkpoint = Checkpoint(
            journaled_lsn=journaled_lsn,
            next_lsn=self.journal.next_lsn,
            first_epoch=self._first_epoch,
            retire_below=retire_below,
            plans=plans,
            catalogue=self.catalogue.dump(),
            acknowledged=[
                AcknowledgedState(subscription, partition, offsets.to_bytes())
                for (subscription, partition), offsets in self.acknowledged.items()
            ],
            untouched=[
                PartitionState(
                    log.id, log.start_offset, log.next_offset, log.flushed_offset, log.segments[:]
                )
                for log in self.logs.values()
                if log.id not in planned
            ],
            obsolete=obsolete,
        )
        return self._checkpoint

    def finish_checkpoint(self, checkpoint: Checkpoint) -> None:
        assert checkpoint is self._checkpoint
        self._checkpoint = None
        for result in checkpoint.results:
            log = result.plan.log
            log.finish_flush(result)
            if log.id in self.logs:
                self._evictable.append(log)
                self._obsolete.extend(log.drop_obsolete())
            else:
                self._obsolete.extend(log.segments)
        for old in checkpoint.obsolete:
            self._files.forget(old.path)
            self._files.forget(old.index_path)
        self.evict()

    def checkpoint(self) -> None:
        """All of it in line. The entries must be durable before a snapshot claims them."""
        checkpoint = self.begin_checkpoint()
        self.commit()
        if self.journal.failure is not None:
            raise self.journal.failure
        try:
            checkpoint.carry_out(self.disk, self.journal, self.settings)
        except OSError as error:
            self.journal.fail(error)
            raise self.journal.failure from error  # type: ignore[misc]
        self.finish_checkpoint(checkpoint)

    def evict(self) -> None:
        """Give back memory of flushed records, oldest first, until within the limit."""
        while self._evictable and self.memory.resident > self.settings.tail_bytes_max:
            self._evictable.popleft().evict()

    # --- closing ---

    def close(self) -> None:
        """Commit, checkpoint when there is reason to, let go of the directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.journal.close()
        self._files.close()
        self._lock.release()


def remove_segment(disk: Disk, old: Segment) -> None:
    for path in (old.path, old.index_path):
        if disk.exists(path):
            disk.remove(path)


_REPLAY: dict[Kind, Callable[[Store, Entry], None]] = {
    Kind.RECORDS: Store._replay_records,
    Kind.ACKNOWLEDGED: Store._replay_acknowledged,
    Kind.CATALOGUE: Store._replay_catalogue,
    Kind.LOG_START: Store._replay_log_start,
    Kind.TRANSACTION: Store._replay_transaction,
    Kind.CHECKPOINT: Store._replay_checkpoint,
}
