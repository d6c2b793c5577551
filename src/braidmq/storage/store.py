"""The store: a node's journal, partition logs, catalogue and snapshots behind one door.

One thread owns a store and makes every change through it. What waits for the disk happens
elsewhere: ``commit`` and ``Checkpoint.carry_out`` may run in other threads, and ``workers`` has
the threads that do it in a node. Tests call them in line.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from braidmq.model.errors import CorruptData, NoSnapshot, NotFound, StorageFailed
from braidmq.model.ids import Lsn, PartitionId, SubscriptionId
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits, OffsetSet
from braidmq.storage import directory, journal, quarantine, segment, snapshot
from braidmq.storage.bodies import BodyFiles
from braidmq.storage.catalogue import COUNTERS, IN_MEMORY, PARTITIONS, Change, encode_changes
from braidmq.storage.checkpoint import Checkpoint, CheckpointWork
from braidmq.storage.disk import DirectoryLock, Disk
from braidmq.storage.entries import (
    LOG_START,
    RESET,
    TERM,
    Ranges,
    Settled,
    encode_acknowledged,
    encode_checkpoint,
    encode_records_meta,
)
from braidmq.storage.flush import Rewrite, Salvage, to_rewrite
from braidmq.storage.journal import Journal, Kind, Progress, Waiter
from braidmq.storage.leftovers import Leftovers, find_missing
from braidmq.storage.participant import Participant
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.quarantine import QUARANTINE, Damage, Skipped
from braidmq.storage.segment import OpenFiles, bodies_path
from braidmq.storage.settings import StorageSettings
from braidmq.storage.state import StoreState

logger = logging.getLogger(__name__)

# Looking a member up in its enum costs more than all else that an append does in Python.
RECORDS: Final = Kind.RECORDS
ACKNOWLEDGED: Final = Kind.ACKNOWLEDGED

CHECKPOINT_FILL = 0.75
"""A checkpoint begins when a journal file is this full: the rest takes what arrives meanwhile."""


OFFSETS_RESERVED = 1 << 16
"""How many offsets a log in memory reserves at a time: half of them are left when it asks for more,
so that it seldom has to wait for the disk, and a restart wastes no more."""

Told = Callable[[list[Skipped] | StorageFailed], None]
"""What of a partition's segments was skipped, or why nothing was."""


class Store:
    """Use ``Store.open``."""

    def __init__(
        self,
        disk: Disk,
        settings: StorageSettings,
        lock: DirectoryLock,
        participants: Sequence[Participant],
    ) -> None:
        self.disk = disk
        self.settings = settings
        self.checkpoints = CheckpointWork()
        self.bodies = BodyFiles()
        self.journal: Journal
        self._lock = lock
        self._files = OpenFiles(disk)
        self.state = StoreState(
            self._files, settings.index_interval_bytes, self.quarantine, participants
        )
        # Its parts stay the same objects, so that they may have short names here.
        self.catalogue: Final = self.state.catalogue
        self.logs: Final = self.state.logs
        self.acknowledged: Final = self.state.acknowledged
        self.memory: Final = self.state.memory
        self.recovery: Final = self.state.recovery
        self._rewrites: dict[PartitionId, tuple[PartitionLog, OffsetBits]] = {}
        self._compacted: dict[PartitionId, tuple[PartitionLog, OffsetBits]] = {}
        """Those of the checkpoint that is under way."""
        self._salvages: dict[PartitionId, tuple[PartitionLog, Told]] = {}
        self._salvaging: dict[PartitionId, tuple[PartitionLog, Told]] = {}
        self._kept_bodies: set[int] = set()
        """Body files of segments that were written around damage: set aside, not removed."""
        self._unreadable: list[CorruptData] = []
        self._damages: list[tuple[PartitionLog, Damage]] = []
        """What recovery found, for when there is a journal to note it in."""
        self._used: snapshot.Snapshot | None = None
        self._snapshot = 0
        """The number of the newest; 0: there is none."""
        self._wanted = False
        """Whether somebody wants a checkpoint, however little there is to do."""
        self.on_quarantined: Callable[[PartitionLog], None] = lambda log: None
        self.on_lifted: Callable[[PartitionLog], None] = lambda log: None
        self._first_epoch = 1
        self._checkpoint: Checkpoint | None = None
        self._closed = False

    # --- opening ---

    @classmethod
    def open(
        cls,
        disk: Disk,
        settings: StorageSettings | None = None,
        participants: Sequence[Participant] = (),
        progress: Progress = lambda what, done, total: None,
        *,
        rebuild: bool = False,
    ) -> "Store":
        """Lock the directory and recover what it holds. Raises SetupError or CorruptData.

        Without a snapshot that can be read only what segments and journal say of themselves is
        left; ``rebuild`` says that this will do.
        """
        started = time.perf_counter()
        store = cls(disk, settings or StorageSettings(), directory.claim(disk), participants)
        try:
            store._recover(progress, rebuild=rebuild)
        except BaseException:
            store._files.close()
            store._lock.release()
            raise
        store.recovery.elapsed_ms = (time.perf_counter() - started) * 1000
        return store

    def _recover(self, progress: Progress, *, rebuild: bool) -> None:
        report = self.recovery
        self._first_epoch, next_lsn = self._restore(rebuild=rebuild)
        recovered = journal.recover(
            self.disk,
            first_epoch=self._first_epoch,
            next_lsn=next_lsn,
            apply=self.state.apply,
            progress=progress,
        )
        self.state.begin_anew()
        report.entries = recovered.entries
        report.torn_bytes = recovered.torn_bytes
        report.partitions = len(self.logs)
        report.messages = sum(log.retained()[0] for log in self.logs.values())
        if recovered.torn_bytes:
            report.notes.append(
                f"cut {recovered.torn_bytes} bytes that were never confirmed off the journal's end"
            )
        oldest_epoch = self._tidy()
        directory.carry_over(self.disk)
        self.journal = Journal(
            self.disk,
            self.settings.journal_file_bytes,
            next_epoch=recovered.next_epoch,
            next_lsn=recovered.next_lsn,
            closed=[
                *journal.older_files(self.disk, oldest_epoch, self._first_epoch),
                *recovered.files,
            ],
        )
        self._look_at_quarantined()
        self._note_damages([*self._damages, *find_missing(self.disk, self.logs.values())])
        self._damages.clear()

    def _tidy(self) -> int:
        """Deal with files that the state does not name; returns the oldest epoch that is needed."""
        leftovers = Leftovers(self.disk, None if self._unreadable else self._used)
        unnamed = set(self.disk.list(segment.DIRECTORY))
        for each in self.state.segments():
            for path in (each.path, each.index_path, each.keys_path):
                unnamed.discard(path.rpartition("/")[2])
        self.bodies.find(self.disk, self.state.segments(), unnamed)
        leftovers.tidy_segments(unnamed)
        leftovers.tidy_snapshots([each.file for each in self._unreadable])
        oldest_epoch = snapshot.oldest_epoch(self.disk, self._first_epoch)
        leftovers.tidy_journal(oldest_epoch)
        self.state.obsolete.clear()
        self.recovery.set_aside = leftovers.set_aside
        self.recovery.notes += [
            f"set {path} aside: the state does not name it" for path in leftovers.set_aside
        ]
        return oldest_epoch

    def _restore(self, *, rebuild: bool) -> tuple[int, int]:
        """State before the journal is replayed; returns the first epoch and LSN to replay."""
        found = self._used = snapshot.load_newest(self.disk, self._unreadable)
        self.recovery.notes += [
            f"{each.file} can't be read (byte {each.position}: {each.reason}): using an older state"
            for each in self._unreadable
        ]
        if found is not None:
            # It was there before the snapshot: without it, what came after would just be gone.
            needed = journal.file_name(found.first_epoch)
            if not self.disk.exists(needed):
                raise CorruptData(needed, 0, "the journal file is missing")
            self._snapshot = found.next_lsn
            self.state.load(found.state)
            return found.first_epoch, found.next_lsn
        first_epoch = min(journal.journal_epochs(self.disk), default=1)
        oldest_lsn = journal.oldest_lsn(self.disk)
        # While the very first entry is there, so are all: no snapshot is needed.
        if oldest_lsn != 1 and (first_epoch > 1 or self.disk.list(segment.DIRECTORY)):
            if not rebuild:
                raise self._no_snapshot()
            self.recovery.notes.append("no snapshot can be read: rebuilding from segments")
            self._rebuild_from_segments()
        else:
            self._used = snapshot.nothing()
        return first_epoch, oldest_lsn or 1

    def _no_snapshot(self) -> NoSnapshot:
        if self._unreadable:
            first = self._unreadable[0]
            return NoSnapshot(first.file, first.position, first.reason)
        return NoSnapshot(snapshot.DIRECTORY, 0, "there is no snapshot")

    def _rebuild_from_segments(self) -> None:
        """What the segments say of themselves has to do. Labels are in their headers."""
        for label, found, damage in quarantine.describe_all(self.disk):
            log = self.state.adopt(label, found)
            if damage is not None:
                self._damages.append((log, damage))

    # --- partitions and the catalogue ---

    def create_partition(
        self, label: str, *, durable: bool = True, in_memory: bool = False
    ) -> PartitionLog:
        """One that is not durable leaves nothing behind: it is never journaled. Of one in memory
        there is nothing but the partition after a restart."""
        partition = PartitionId(self.state.next_partition)
        if durable:
            # The counter is kept too: a number once used never means another partition.
            following = str(partition + 1).encode()
            self.change(
                [
                    (PARTITIONS, str(partition), label.encode()),
                    (COUNTERS, PARTITIONS, following),
                    *(self._reservation(partition, 0) if in_memory else ()),
                ]
            )
        else:
            log = self.state.add_log(partition, label)
            log.durable = False
            if in_memory:
                log.keep_in_memory(0)
        return self.logs[partition]

    def _reservation(self, partition: PartitionId, next_offset: int) -> list[Change]:
        return [(IN_MEMORY, str(partition), str(next_offset + OFFSETS_RESERVED).encode())]

    def delete_partition(self, partition: PartitionId) -> None:
        if self.log(partition).durable:
            self.change([(PARTITIONS, str(partition), None)])
        else:
            self.state.drop_log(partition)

    def log(self, partition: PartitionId) -> PartitionLog:
        try:
            return self.logs[partition]
        except KeyError:
            raise NotFound(f"there is no partition {partition}") from None

    def change(self, changes: Sequence[Change]) -> Lsn:
        """Change the catalogue; all of it or, after a crash, nothing."""
        lsn = self.journal.append(Kind.CATALOGUE, encode_changes(changes))
        self.state.change(changes)
        return lsn

    # --- records and acknowledgements ---

    def append(
        self,
        batch: RecordBatch,
        logs: Sequence[PartitionLog],
        settled: Sequence[Settled] = (),
        stamp: bytes = b"",
    ) -> Lsn:
        """Append a batch to one partition, or to many with its bytes written once.

        ``settled`` are acknowledgements that happen in the same step, or not at all: a message
        moves from one topic to another exactly once. ``stamp`` says whose records they are to the
        participant that takes ``Kind.RECORDS``.
        """
        assert batch.count
        lsn = self.journal.append(RECORDS, encode_records_meta(logs, settled, stamp), batch)
        self.state.append(batch, logs, settled)
        return lsn

    def append_transient(self, batch: RecordBatch, log: PartitionLog) -> Lsn | None:
        """Append without the journal: gone after a restart. Where the log is not one in memory a
        checkpoint may page it out. Returns what has to be durable first, if anything."""
        batch.place(log.next_offset)
        log.append(batch)
        if not log.in_memory:
            self.state.dirty[log.id] = self.state.unsaid[log.id] = log
        elif log.durable and log.next_offset > log.reserved_offset - OFFSETS_RESERVED // 2:
            return self.change(self._reservation(log.id, log.next_offset))
        return None

    def offsets_of(self, subscription: SubscriptionId, partition: PartitionId) -> OffsetSet:
        """What a subscription has acknowledged of a partition."""
        return self.state.offsets_of(subscription, partition)

    def acknowledge(
        self, subscription: SubscriptionId, partition: PartitionId, ranges: Ranges
    ) -> Lsn:
        meta = encode_acknowledged(subscription, partition, ranges)
        lsn = self.journal.append(ACKNOWLEDGED, meta)
        self.state.acknowledge(subscription, partition, ranges)
        return lsn

    def forget_offsets(self, subscription: SubscriptionId, partition: PartitionId) -> None:
        """Of a subscription that never came to be: a crash left what it began with."""
        self.state.forget_offsets(subscription, partition)

    def release(self, log: PartitionLog, offset: int) -> None:
        """Everything below ``offset`` is settled by all: memory goes at once, and segments with
        the next checkpoint. Acknowledgements are journaled already, so this seldom is."""
        offset = min(offset, log.pinned_offset)
        if offset <= log.start_offset or log.damage is not None:
            return
        if log.segments and log.segments[0].end_offset <= offset:
            self.advance_start(log, offset)
        else:
            log.advance_start(offset)
            self.state.unsaid[log.id] = log

    def keep_start(self, log: PartitionLog) -> None:
        """The acknowledgements that say how far a log was released are about to go, or to count no
        more: what was released does not come back for that."""
        if log.durable and log.acknowledged and log.start_offset:
            self.advance_start(log, log.start_offset)

    def advance_start(self, log: PartitionLog, offset: int) -> Lsn:
        """Forget a partition's records below ``offset``: retention, purge."""
        lsn = self.journal.append(Kind.LOG_START, LOG_START.pack(log.id, offset))
        self.state.advance_start(log, offset)
        return lsn

    def reset_offsets(
        self, subscription: SubscriptionId, partition: PartitionId, floor: int
    ) -> Lsn:
        """A subscription is moved: everything below ``floor`` is settled, nothing else."""
        lsn = self.journal.append(Kind.RESET, RESET.pack(subscription, partition, floor))
        self.state.reset(subscription, partition, floor)
        return lsn

    def rewrite(self, log: PartitionLog, unwanted: OffsetBits) -> None:
        """Have the next checkpoint write segments anew without some of their records, the last one
        too; and what it moves from memory."""
        self._rewrites[log.id] = (log, unwanted)

    def note(self, kind: Kind, meta: bytes) -> Lsn:
        """Journal what a participant's state has come to; its ``replay`` gets it back."""
        assert kind in self.state.by_kind
        return self.journal.append(kind, meta)

    def begin_term(self, term: int, leader: bytes, now_ms: int) -> Lsn:
        """The first entry of a leadership: it says from where on all are of this one. A node that
        is alone leads for ever, and has none."""
        assert term > self.state.term
        lsn = self.journal.append(Kind.TERM, TERM.pack(term, leader, now_ms))
        self.state.begin_term(term, lsn)
        return lsn

    # --- quarantine ---

    def quarantine(self, log: PartitionLog, damage: Damage) -> None:
        """Damage was met in a partition's files: nobody reads or writes it from here on, and its
        segments stay as they are. Everybody else goes on."""
        if log.damage is not None or self.logs.get(log.id) is not log:
            log.damage = log.damage or damage
            return
        logger.error(
            "partition quarantined",
            extra={
                "partition": log.label,
                "file": damage.file,
                "byte": damage.position,
                "reason": damage.reason,
            },
        )
        if log.durable and self.journal.failure is None:
            self.change([(QUARANTINE, str(log.id), quarantine.encode_damage(damage))])
        else:
            log.damage = damage
        self.on_quarantined(log)

    def _note_damages(self, damages: Sequence[tuple[PartitionLog, Damage]]) -> None:
        for log, damage in damages:
            self.quarantine(log, damage)

    def note_damage(self, log: PartitionLog, damage: Damage) -> None:
        """Of one that is quarantined: somebody looked again."""
        if log.durable:
            self.change([(QUARANTINE, str(log.id), quarantine.encode_damage(damage))])
        else:
            log.damage = damage

    def quarantined(self) -> list[PartitionLog]:
        """In the order of their numbers."""
        return [log for log in self.logs.values() if log.damage is not None]

    def _look_at_quarantined(self) -> None:
        """At start-up: somebody may have restored what was damaged."""
        for log in self.quarantined():
            found = quarantine.check(self.disk, log.segments, log.header_label)
            if found is None:
                self.recovery.notes.append(f"{log.label} is whole again: its quarantine is over")
                self.lift(log)
            else:
                self.recovery.notes.append(f"{log.label} is quarantined: {found}")

    def lift(self, log: PartitionLog) -> None:
        """Its files are whole again, or go on without what was damaged."""
        log.forget_read()
        if log.durable:
            self.change([(QUARANTINE, str(log.id), None)])
        else:
            log.damage = None
        logger.warning("quarantine lifted", extra={"partition": log.label})
        self.on_lifted(log)

    def skip_damage(self, log: PartitionLog, told: Told) -> None:
        """Have the next checkpoint write a partition's segments anew around what is damaged; the
        damaged files are set aside."""
        assert log.damage is not None
        if self.journal.failure is not None:
            told(self.journal.failure)
            return
        self._salvages[log.id] = (log, told)
        self.want_checkpoint()

    def checkpoint_failed(self) -> None:
        """Who waits for one is told."""
        failure = self.journal.failure
        assert failure is not None
        for _, told in [*self._salvages.values(), *self._salvaging.values()]:
            told(failure)
        self._salvages.clear()
        self._salvaging.clear()
        self.journal.release()

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
            self._wanted
            or self.journal.fill >= CHECKPOINT_FILL
            or self.journal.has_closed_since(self._first_epoch)
            or self.memory.unflushed >= unflushed_max
        )

    def want_checkpoint(self) -> None:
        """Have one as soon as can be."""
        self._wanted = True

    def reclaim(self) -> None:
        """The disk is short of room: have a checkpoint if that frees any. Segments that nobody
        wants go with the next one, journal files with the one after the snapshot before."""
        if self.state.obsolete or self.journal.closed_files > 1:
            self.want_checkpoint()
        self.journal.drop_spare()

    def begin_checkpoint(self) -> Checkpoint:
        assert self._checkpoint is None
        self._wanted = False
        for log, unwanted in self._rewrites.values():
            log.seal_for(unwanted)
        plans = [
            plan
            for log in self.state.dirty.values()
            if (plan := log.begin_flush(self._unwanted_of(log))) is not None
        ]
        planned = {plan.log.id for plan in plans}
        self.state.dirty.clear()
        for subscription, partition, ranges in self.state.take_left_out():
            self.journal.append(ACKNOWLEDGED, encode_acknowledged(subscription, partition, ranges))
        ends = self.state.ends()
        digest = self.state.digest() if self.journal.replication is not None else b""
        journaled_lsn = self.journal.append(Kind.CHECKPOINT, encode_checkpoint(ends, digest))
        self.state.checkpoint(ends)
        retire_below, self._first_epoch = self._first_epoch, self.journal.roll()
        obsolete, self.state.obsolete = self.state.obsolete, []
        self._checkpoint = Checkpoint(
            journaled_lsn=journaled_lsn,
            next_lsn=self.journal.next_lsn,
            first_epoch=self._first_epoch,
            retire_below=retire_below,
            plans=plans,
            catalogue=self.catalogue.dump(),
            acknowledged=self.state.dump_acknowledged(),
            untouched=self.state.dump_logs(planned),
            obsolete=obsolete,
            obsolete_bodies=self.bodies.unwanted(self.state.segments())
            if self.bodies.sizes
            else [],
            kept_bodies=self._kept_bodies,
            body_file=self.bodies.new_number(self.journal.next_lsn),
            rewrites=self._plan_rewrites(),
            salvages=self._plan_salvages(),
            previous=self._snapshot,
            sections=self.state.dump_sections(),
            terms=self.state.terms[:],
        )
        return self._checkpoint

    def _unwanted_of(self, log: PartitionLog) -> OffsetBits | None:
        """What compaction takes out of a log."""
        found = self._rewrites.get(log.id)
        return found[1] if found is not None and log.damage is None else None

    def _plan_rewrites(self) -> list[Rewrite]:
        self._compacted, self._rewrites = self._rewrites, {}
        return [
            Rewrite(log, group, unwanted)
            for log, unwanted in self._compacted.values()
            if log.id in self.logs and log.damage is None
            for group in to_rewrite(log.segments, unwanted, self.settings.segment_bytes_max)
        ]

    def _plan_salvages(self) -> list[Salvage]:
        """Of segments that were there before this checkpoint: what it adds is whole."""
        self._salvaging, self._salvages = self._salvages, {}
        return [
            Salvage(log, each)
            for log, _ in self._salvaging.values()
            if log.id in self.logs
            for each in log.segments
        ]

    def finish_checkpoint(self, checkpoint: Checkpoint) -> None:
        assert checkpoint is self._checkpoint
        self._checkpoint = None
        self._snapshot = checkpoint.next_lsn
        self._count(checkpoint)
        for result in checkpoint.results:
            log = result.plan.log
            log.finish_flush(result)
            if log.id in self.logs:
                self.state.evictable.setdefault(log.id, log)
                self.state.obsolete.extend(log.drop_obsolete())
                self.state.obsolete.extend(log.drop_unwanted())
            else:
                self.state.obsolete.extend(log.segments)
        for each in checkpoint.rewritten:
            self.state.obsolete.extend(each.rewrite.segments)
            is_replaced = each.rewrite.log.replace(each.rewrite.segments, each.segment)
            if not is_replaced and each.segment is not None:
                self.state.obsolete.append(each.segment)
        for log, _ in self._compacted.values():
            log.evict()  # memory has records that were left out of the segments
        self._compacted = {}
        self._finish_salvages(checkpoint)
        self._note_damages(checkpoint.damages)
        for old in checkpoint.obsolete:
            self._files.forget(old.path)
            self._files.forget(old.index_path)
        for number in checkpoint.obsolete_bodies:
            self._files.forget(bodies_path(number))
        self.bodies.change(
            checkpoint.body_file, checkpoint.bodies_written, checkpoint.obsolete_bodies
        )
        self.evict()

    def _finish_salvages(self, checkpoint: Checkpoint) -> None:
        failed = {log.id for log, _ in checkpoint.damages}
        waiting, self._salvaging = self._salvaging, {}
        for log, told in waiting.values():
            done = [each for each in checkpoint.salvaged if each.salvage.log is log]
            for each in done:
                if each.segment is not None:
                    log.replace([each.salvage.segment], each.segment)
                    self._kept_bodies.update(each.salvage.segment.bodies)
            if log.id in self.logs and log.id not in failed:
                self.lift(log)
            told([each.skipped for each in done if each.skipped is not None])

    def _count(self, done: Checkpoint) -> None:
        work = self.checkpoints
        work.count += 1
        work.seconds += done.seconds
        work.bytes_written += done.bytes_written
        work.segments_rewritten += len(done.rewritten)
        work.segments_removed += len(done.obsolete)
        logger.debug(
            "checkpoint",
            extra={
                "partitions": len(done.plans),
                "bytes": done.bytes_written,
                "ms": round(done.seconds * 1000, 1),
            },
        )

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
        """Give back memory of flushed records, oldest first, until half of it is free: as much as
        may come before the next checkpoint is wanted."""
        memory, share = self.memory, self.settings.tail_bytes_max // 2
        while self.state.evictable and memory.resident - memory.kept > share:
            _, log = self.state.evictable.popitem(last=False)
            log.evict()

    # --- closing ---

    def close(self) -> None:
        """Commit and let go of the directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.journal.close()
        self._files.close()
        self._lock.release()
