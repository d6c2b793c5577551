"""One partition's log: recent records in memory, older ones in segments.

    start_offset          flushed_offset              next_offset
        ▼                       ▼                          ▼
    ────┬───────────┬───────────┬──────────────────────────┬───
        │ segment   │ segment   │ only in memory           │
    ────┴───────────┴────┬──────┴──────────────────────────┴───
                         │  tail: batches in memory        │
                         └─────────────────────────────────┘

What lies above ``flushed_offset`` is safe in the journal and read from memory. A checkpoint moves
it into segments; from then on its memory may be given back. Records that are no longer wanted by
then are never written a second time.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

from braidmq.model.errors import CorruptData, ForeignFile, OffsetOutOfRange, PartitionQuarantined
from braidmq.model.ids import Offset, PartitionId
from braidmq.model.limits import KIB
from braidmq.record.batch import LEDGER_KEPT, LEDGER_RESIDENT, LEDGER_UNFLUSHED, RecordBatch
from braidmq.record.offset_set import OffsetBits, OffsetSet
from braidmq.storage.bodies import bytes_to_scan, fetch_from, resolve
from braidmq.storage.disk import File
from braidmq.storage.quarantine import Damage, damage_of
from braidmq.storage.segment import (
    OpenFiles,
    Segment,
    SegmentIndex,
    bodies_path,
    decode_index,
    scan_records,
    scan_segment,
)

ABSORBED_BYTES_MAX = 16 * KIB
"""Batches smaller than this are copied together: one object for many single messages."""
TAIL_BATCH_BYTES = 64 * KIB
READ_BYTES = 256 * KIB
REST_BYTES_MIN = 32 * KIB
"""Less than this that an earlier read left is read again with what follows it: handing it out as a
run of its own costs more."""
SWEEP_BATCHES_MIN = 64
UNPINNED = (1 << 63) - 1
NO_STOP = (1 << 63) - 1
GONE = RecordBatch()
"""Where a batch was that a log no longer holds: until its slot goes too, nobody holds its bytes."""


class Run:
    """Records ``first`` … ``stop - 1`` of a batch."""

    __slots__ = ("batch", "first", "stop")

    def __init__(self, batch: RecordBatch, first: int, stop: int) -> None:
        self.batch = batch
        self.first = first
        self.stop = stop


class Memory:
    """What all partitions of a node hold in memory together, in bytes. What several hold counts
    once, for as long as one of them does."""

    __slots__ = ("index_interval", "kept", "resident", "unflushed")

    def __init__(self) -> None:
        self.index_interval = 0
        """Not a size: a setting that all logs share, and a word in each of them adds up."""
        self.resident = 0
        self.unflushed = 0
        self.kept = 0
        """Of what is resident: records of logs in memory, which no checkpoint takes away."""

    def hold(self, batch: RecordBatch) -> None:
        self.resident += batch.hold(LEDGER_RESIDENT)
        self.unflushed += batch.hold(LEDGER_UNFLUSHED)

    def grown(self, by: int) -> None:
        """By so much did a batch that is not flushed."""
        self.resident += by
        self.unflushed += by

    def flushed(self, batch: RecordBatch) -> None:
        self.unflushed -= batch.release(LEDGER_UNFLUSHED)

    def release(self, batch: RecordBatch) -> None:
        self.resident -= batch.release(LEDGER_RESIDENT)

    # --- of logs that are in memory only ---

    def keep(self, batch: RecordBatch) -> None:
        self.resident += batch.hold(LEDGER_RESIDENT)
        self.kept += batch.hold(LEDGER_KEPT)

    def kept_grown(self, by: int) -> None:
        self.resident += by
        self.kept += by

    def let_go(self, batch: RecordBatch) -> None:
        self.kept -= batch.release(LEDGER_KEPT)
        self.resident -= batch.release(LEDGER_RESIDENT)


class Kept:
    """What a log in memory has beside others: most are not, and each may cost little."""

    __slots__ = ("reserved_offset", "sweep_at")

    def __init__(self) -> None:
        self.reserved_offset = 0
        self.sweep_at = SWEEP_BATCHES_MIN


class Packed:
    """What is written of a log is compressed."""

    __slots__ = ()


PACKED = Packed()


class FlushPlan(NamedTuple):
    """What one checkpoint does for one partition; made by its owner, carried out elsewhere."""

    log: "PartitionLog"
    batches: list[RecordBatch]
    start_offset: int
    end_offset: int
    acknowledged: tuple[OffsetSet, ...]
    kept: list[Segment]
    """Sealed segments, which stay as they are."""
    last: Segment | None
    last_index: SegmentIndex | None
    """If it is in memory; nobody changes it while the plan is carried out."""
    shares: bool
    """Whether other partitions may want the same bodies."""
    compressed: bool


class FlushResult(NamedTuple):
    plan: FlushPlan
    segments: list[Segment]
    indexes: list[SegmentIndex]
    """Of the first segment only what was added to it, when it was there before."""


class PartitionLog:
    __slots__ = (
        "_extending",
        "_files",
        "_form",
        "_head",
        "_indexes",
        "_memory",
        "_sealed",
        "_shares",
        "_tail",
        "acknowledged",
        "appended_bytes",
        "damage",
        "durable",
        "flushed_offset",
        "id",
        "label",
        "next_offset",
        "on_damage",
        "pinned_offset",
        "segments",
        "start_offset",
    )

    def __init__(
        self,
        partition: PartitionId,
        label: str,
        *,
        memory: Memory,
        files: OpenFiles,
        index_interval: int,
    ) -> None:
        self.id = partition
        self.label = label
        memory.index_interval = index_interval
        self.durable = True
        """Whether it is there after a restart."""
        self.start_offset = 0
        self.flushed_offset = 0
        self.next_offset = 0
        self.segments: list[Segment] = []
        self.acknowledged: tuple[OffsetSet, ...] = ()
        """Sets that all have to cover a record before it is unwanted; empty: all are wanted."""
        self.pinned_offset = UNPINNED
        """Somebody reads from here on: what is there does not go, though it had its time."""
        self.appended_bytes = 0
        """Since it was opened."""
        self.damage: Damage | None = None
        """Why it is quarantined, if it is."""
        self.on_damage: Callable[[PartitionLog, Damage], None] = _quarantine
        self._indexes: dict[int, SegmentIndex] = {}
        self._memory = memory
        self._files = files
        self._tail: list[RecordBatch] = []
        self._extending = False
        self._head = 0
        self._sealed = False
        self._shares = False
        self._form: Kept | Packed | None = None

    # --- appending ---

    def append(self, batch: RecordBatch) -> None:
        """Take a batch whose first offset is ``next_offset`` or, after a loss, beyond it."""
        assert batch.base_offset >= self.next_offset
        assert batch.count
        size, following = batch.size, batch.next_offset
        if batch.shared:
            self._shares = True
        if size >= ABSORBED_BYTES_MAX or not self._absorb(batch, size):
            self._tail.append(batch)
            self._sealed = False
            if self.in_memory:
                self._memory.keep(batch)
                self._sweep()
            else:
                self._memory.hold(batch)
        self.next_offset = Offset(following)
        self.appended_bytes += size

    def _absorb(self, batch: RecordBatch, size: int) -> bool:
        """Copy a small batch to the end of the last one, where that can grow."""
        if self._sealed or len(self._tail) == self._head:
            return False
        last = self._tail[-1]
        if last.size + size > TAIL_BATCH_BYTES or not last.can_absorb(batch):
            return False
        before = last.memory_bytes
        last.absorb(batch)
        if self.in_memory:
            self._memory.kept_grown(last.memory_bytes - before)
        else:
            self._memory.grown(last.memory_bytes - before)
        return True

    def _sweep(self) -> None:
        """Of a log in memory: let go of batches that nobody wants though older ones are wanted. A
        flush leaves them out elsewhere. Looked at when the tail has doubled, so that a batch costs
        the same however many there are."""
        kept = self._form
        assert isinstance(kept, Kept)
        if len(self._tail) - self._head < kept.sweep_at:
            return
        if self.acknowledged and self.pinned_offset == UNPINNED:
            wanted = self._tail[self._head : -1]
            gone = [batch for batch in wanted if self._nobody_wants(batch)]
            for batch in gone:
                self._memory.let_go(batch)
            if gone:
                ids = {id(batch) for batch in gone}
                self._tail = [each for each in self._tail[self._head :] if id(each) not in ids]
                self._head = 0
        kept.sweep_at = max(SWEEP_BATCHES_MIN, 2 * (len(self._tail) - self._head))

    def _nobody_wants(self, batch: RecordBatch) -> bool:
        start, end = batch.base_offset, batch.next_offset
        return all(each.first_missing(start) >= end for each in self.acknowledged)

    def begin_anew(self) -> None:
        """Of a log in memory, after a restart: it is empty, and no offset comes to mean another
        record than before."""
        self.pass_over(self.reserved_offset)
        self.start_offset = self.flushed_offset = self.next_offset

    def pass_over(self, offset: int) -> None:
        """Records that were never journaled had the offsets below, which are not used again."""
        if offset > self.next_offset:
            self.next_offset = Offset(offset)

    @property
    def index_interval(self) -> int:
        return self._memory.index_interval

    @property
    def in_memory(self) -> bool:
        """Whether its records are in memory only: never in a segment, and gone after a restart."""
        return isinstance(self._form, Kept)

    @property
    def compressed(self) -> bool:
        """Whether what a checkpoint writes of it is packed into blocks."""
        return self._form is PACKED

    @compressed.setter
    def compressed(self, value: bool) -> None:
        if not isinstance(self._form, Kept):
            self._form = PACKED if value else None

    @property
    def reserved_offset(self) -> int:
        """Of one in memory: no record has had an offset from here on, before a restart or since."""
        return self._form.reserved_offset if isinstance(self._form, Kept) else 0

    def keep_in_memory(self, reserved_offset: int) -> None:
        if not isinstance(self._form, Kept):
            self._form = Kept()
        self._form.reserved_offset = reserved_offset

    @property
    def is_kept(self) -> bool:
        """Whether its records, and what was done with them, are there after a restart."""
        return self.durable and not self.in_memory

    @property
    def header_label(self) -> str:
        """In the headers of its segments: empty for those that nobody has after a restart."""
        return self.label if self.durable else ""

    @property
    def unflushed_bytes(self) -> int:
        """What is not in segments yet, as it lies in memory."""
        tail, flushed = self._tail[self._head :], self.flushed_offset
        return sum(batch.memory_bytes for batch in tail if batch.next_offset > flushed)

    # --- reading ---

    def read(self, offset: int, bytes_max: int = READ_BYTES, stop: int = NO_STOP) -> list[Run]:
        """Runs of records from ``offset`` on, about ``bytes_max`` of them but at least one record;
        fewer where segments end and memory begins. Nothing is read or looked at only for the sake
        of records from ``stop`` on, which may come all the same.

        Empty at the end of the log. Records that are gone (retention, compaction, acknowledged by
        all) are skipped.
        """
        if self.damage is not None:
            raise self.quarantined()
        if not 0 <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"{self.label}: offset {offset} is not between 0 and {self.next_offset}",
                remedy="Read from an offset the partition has, or from its beginning or end",
            )
        if offset < self.start_offset:
            offset = self.start_offset
        if self.segments and self._first_in_memory() > offset:
            found = self._read_segments(offset, bytes_max, stop)
            if found:
                return found
        return self._read_tail(offset, bytes_max, stop)

    def _read_segments(self, offset: int, bytes_max: int, stop: int) -> list[Run]:
        """What an earlier read brought and nobody took comes first, and more only if that is not
        enough: who drains a backlog gets as much at a time as from memory."""
        found: list[Run] = []
        end = min(self._first_in_memory(), stop)
        for segment in self.segments[self._segment_at(offset) :]:
            while bytes_max > 0 and offset < segment.end_offset:
                try:
                    run = self._read_segment(segment, offset, bytes_max, stop)
                except (CorruptData, ForeignFile) as error:
                    if found:
                        return found  # what is before the damage comes before the error
                    raise self._damaged(error, segment) from error
                if run is None:
                    break
                found.append(run)
                batch = run.batch
                offset = batch.offset_at(run.stop - 1) + 1
                if run.stop < batch.count or offset >= end:
                    return found
                bytes_max -= batch.size - batch.position_at(run.first)
        return found

    # --- damage ---

    def _damaged(self, error: CorruptData | ForeignFile, segment: Segment) -> PartitionQuarantined:
        """Somebody met damage: what everybody is told from now on."""
        self.on_damage(self, damage_of(error, segment.path))
        return self.quarantined()

    def quarantined(self) -> PartitionQuarantined:
        damage = self.damage
        assert damage is not None
        return PartitionQuarantined(self.label, damage.file, damage.position, damage.reason)

    def forget_read(self) -> None:
        """Its files are others than before, under the same names."""
        self._indexes.clear()
        for each in self.segments:
            self._files.forget(each.path)
            self._files.forget(each.index_path)
            for number in each.bodies:
                self._files.forget(bodies_path(number))

    def _open(self, segment: Segment) -> File:
        try:
            return self._files.get(segment.path)
        except FileNotFoundError:
            raise CorruptData(segment.path, 0, "the segment is missing") from None

    # --- reading on ---

    def _first_in_memory(self) -> int:
        if len(self._tail) > self._head:
            return self._tail[self._head].base_offset
        return self.next_offset

    def _read_tail(self, offset: int, bytes_max: int, stop: int) -> list[Run]:
        found: list[Run] = []
        at = self._head
        if len(self._tail) - at > 1 and self._tail[at + 1].base_offset <= offset:
            at = bisect_right(self._tail, offset, lo=at, key=lambda b: b.base_offset) - 1
            at = max(at, self._head)
        while at < len(self._tail):
            batch = self._tail[at]
            at += 1
            first, count = batch.find(offset), batch.count
            if first == count:
                continue
            run = cut_run(batch, first, bytes_max)
            found.append(run)
            if run.stop < count or at == len(self._tail):
                break
            bytes_max -= batch.size - batch.position_at(first)
            if bytes_max <= 0 or batch.next_offset >= stop:
                break
        return found

    def _segment_at(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda s: s.end_offset)

    def _read_segment(self, segment: Segment, offset: int, bytes_max: int, stop: int) -> Run | None:
        """The run at or after ``offset``, or None when the rest of the segment has no record."""
        path = segment.path
        recent = self._files.recent(path, offset)
        if recent is not None:
            first = recent.find(offset)
            if (
                recent.next_offset >= min(stop, segment.end_offset)
                or recent.size - recent.position_at(first) >= REST_BYTES_MIN
            ):
                return cut_run(recent, first, bytes_max)
        file = self._open(segment)
        index = self._index(segment)
        position = index.position_of(offset)
        # The index leads to at most one interval before the record.
        whole_max = bytes_max + self.index_interval
        length = whole_max
        if segment.bodies or segment.packed_bytes:
            length = bytes_to_scan(segment, whole_max) + self.index_interval
        if stop < segment.end_offset:
            wanted = index.position_after(stop, segment.size) - position
            length = min(length, max(wanted, READ_BYTES))
        while 0 <= position < segment.size:
            found = scan_records(
                file, position, length, segment.size, expanded_max=whole_max, stop=stop
            )
            if found is None:
                raise CorruptData(path, position, "the file ends within a record")
            batch = found.batch
            if not (segment.base_offset <= batch.base_offset < segment.end_offset):
                # Intact, but a block that belongs elsewhere.
                raise CorruptData(path, position, f"offset {batch.base_offset} is not of this file")
            first = batch.find(offset)
            if first < batch.count:
                if batch.shared_bytes:
                    batch, first = resolve(batch, first, whole_max, fetch_from(self._files)), 0
                self._files.keep(path, batch)
                return cut_run(batch, first, bytes_max)
            position += found.stored
        return None

    @property
    def latest_ms(self) -> int:
        """The latest timestamp of its records; 0 without any."""
        stamps = [segment.max_timestamp_ms for segment in self.segments]
        stamps += [batch.max_timestamp_ms for batch in self._tail[self._head :]]
        return max(stamps, default=0)

    def find_time(self, timestamp_ms: int) -> Offset:
        """The offset of the first record stamped at or after a time; ``next_offset`` for none."""
        for segment in self.segments:
            if segment.max_timestamp_ms >= timestamp_ms and segment.end_offset > self.start_offset:
                found = self._find_time_in(segment, timestamp_ms)
                if found >= 0:
                    return Offset(found)
        for batch in self._tail[self._head :]:
            if batch.max_timestamp_ms >= timestamp_ms and batch.next_offset > self.start_offset:
                found = self._find_time_from_start(batch, timestamp_ms)
                if found >= 0:
                    return Offset(found)
        return Offset(self.next_offset)

    def find_time_end(self, timestamp_ms: int) -> Offset:
        """An offset from which on every record is stamped at or after a time: the lowest there is
        where the log is in the order of time, else a higher one."""
        end = self.next_offset
        for batch in reversed(self._tail[self._head :]):
            if batch.next_offset <= self.flushed_offset:
                break
            at = batch.find_time_end(timestamp_ms)
            if at:
                return Offset(batch.offset_at(at - 1) + 1)
            end = batch.base_offset
        for segment in reversed(self.segments):
            if not segment.time_ordered:
                return Offset(max(segment.end_offset, self.start_offset))
            if segment.first_timestamp_ms < timestamp_ms:
                if segment.max_timestamp_ms < timestamp_ms:
                    return Offset(max(end, self.start_offset))
                found = self._find_time_in(segment, timestamp_ms)
                return Offset(found if found >= 0 else segment.end_offset)
            end = segment.base_offset
        return Offset(max(end, self.start_offset))

    def _find_time_in(self, segment: Segment, timestamp_ms: int) -> int:
        if self.damage is not None:
            raise self.quarantined()
        try:
            return self._find_time_intact(segment, timestamp_ms)
        except (CorruptData, ForeignFile) as error:
            raise self._damaged(error, segment) from error

    def _find_time_intact(self, segment: Segment, timestamp_ms: int) -> int:
        file = self._open(segment)
        position = self._index(segment).position_of_time(timestamp_ms)
        while 0 <= position < segment.size:
            scanned = scan_records(
                file, position, READ_BYTES, segment.size, expanded_max=READ_BYTES
            )
            if scanned is None:
                raise CorruptData(segment.path, position, "the file ends within a record")
            found = self._find_time_from_start(scanned.batch, timestamp_ms)
            if found >= 0:
                return found
            position += scanned.stored
        return -1

    def _find_time_from_start(self, batch: RecordBatch, timestamp_ms: int) -> int:
        """As ``find_time`` within one batch, or -1. It may begin below the start of the log."""
        at = batch.find_time(timestamp_ms, batch.find(self.start_offset))
        return batch.offset_at(at) if at < batch.count else -1

    def index(self, segment: Segment) -> SegmentIndex:
        """Of one of its segments, sealed or not."""
        if self.damage is not None:
            raise self.quarantined()
        try:
            return self._index(segment)
        except (CorruptData, ForeignFile) as error:
            raise self._damaged(error, segment) from error

    def _index(self, segment: Segment) -> SegmentIndex:
        index = self._indexes.get(segment.base_offset)
        if index is None:
            index = self._indexes[segment.base_offset] = self._load_index(segment)
        return index

    def _load_index(self, segment: Segment) -> SegmentIndex:
        """From its file; from the records when that is missing, damaged or not there yet."""
        if segment.sealed:
            try:
                file = self._files.get(segment.index_path)
                index = decode_index(segment, file.read(file.size(), 0))
            except OSError:
                index = None
            if index is not None:
                return index
        file = self._open(segment)
        found, index = scan_segment(file, self.id, self.index_interval, segment.size)
        if found.size < segment.size:
            # Without all of it nobody could tell records that are gone from those behind damage.
            raise CorruptData(segment.path, found.size, "the file ends within a record")
        return index

    # --- forgetting ---

    def advance_start(self, offset: int) -> list[Segment]:
        """Forget everything below ``offset``; returns the segments that hold nothing else."""
        assert offset <= self.next_offset
        if offset <= self.start_offset:
            return []
        self.start_offset = offset
        self._drop_tail(offset)
        flushed = min(offset, self._first_in_memory())
        if flushed > self.flushed_offset:
            self.flushed_offset = flushed
        return self.drop_obsolete() if self.segments else []

    def drop_obsolete(self) -> list[Segment]:
        """Take out the segments that end at or below the start, and return them."""
        gone = self._segment_at(self.start_offset)
        if self._extending:
            # A flush is adding records to the last one, which may be wanted.
            gone = min(gone, len(self.segments) - 1)
        dropped, self.segments = self.segments[:gone], self.segments[gone:]
        for segment in dropped:
            self._indexes.pop(segment.base_offset, None)
        return dropped

    def drop_unwanted(self) -> list[Segment]:
        """Take out the segments of which nobody wants a record, and return them: one message that
        is never answered must not keep all that came after it."""
        if not self.acknowledged or self.pinned_offset != UNPINNED or self.damage is not None:
            return []
        dropped = [each for each in self.segments if each.sealed and self._is_unwanted(each)]
        if dropped:
            self.segments = [each for each in self.segments if each not in dropped]
            for segment in dropped:
                self._indexes.pop(segment.base_offset, None)
        return dropped

    def _is_unwanted(self, segment: Segment) -> bool:
        start, end = segment.base_offset, segment.end_offset
        return all(each.first_missing(start) >= end for each in self.acknowledged)

    def seal_for(self, unwanted: OffsetBits) -> None:
        """The last segment is about to be written anew without some of its records, if it has any
        of them: nothing is added to it any more."""
        last = self.segments[-1] if self.segments else None
        if last is not None and unwanted.count(last.base_offset, last.end_offset):
            last.sealed = True

    def replace(self, old: Sequence[Segment], new: Segment | None) -> bool:
        """Put what adjacent segments were written anew as in their place; False when the last of
        them is no longer there. The first may have gone since with the start of the log."""
        if old[-1] not in self.segments:
            return False
        gone = [each for each in old if each in self.segments]
        at = self.segments.index(gone[0])
        self.segments[at : at + len(gone)] = [new] if new is not None else []
        for each in gone:
            self._indexes.pop(each.base_offset, None)
            self._files.forget(each.path)
            self._files.forget(each.index_path)
        # Batches still in memory have the records that are gone from disk: both must agree.
        self._drop_tail(min(old[-1].end_offset, self.flushed_offset))
        return True

    def pieces(self) -> list[tuple[int, int, int]]:
        """Batches and segments from the start on: first offset, the one after the last, bytes."""
        found = [
            (max(each.base_offset, self.start_offset), each.end_offset, each.whole_size)
            for each in self.segments
            if each.end_offset > self.start_offset
        ]
        found += [
            (max(each.base_offset, self.start_offset), each.next_offset, each.size)
            for each in self._tail[self._head :]
            if each.next_offset > max(self.flushed_offset, self.start_offset)
        ]
        return found

    def retained(self) -> tuple[int, int]:
        """Records that it still has, settled or not, and the bytes they take as limits count
        them."""
        records = size = 0
        for segment in self.segments:
            if segment.end_offset > self.start_offset:
                span = segment.end_offset - max(segment.base_offset, self.start_offset)
                records += min(segment.records, span)
                size += segment.whole_size
        begins = max(self.flushed_offset, self.start_offset)
        for batch in self._tail[self._head :]:
            if batch.next_offset > begins:
                span = batch.next_offset - max(batch.base_offset, self.start_offset)
                records += min(batch.count, span)
                size += batch.size
        return records, size

    def start_for_bytes(self, bytes_max: int) -> tuple[int, int]:
        """The lowest offset from which on the log takes at most ``bytes_max`` bytes, in whole
        batches and segments, and how many bytes would be left; the newest of them always stays."""
        start = self.next_offset
        for batch in reversed(self._tail[self._head :]):
            if batch.next_offset <= self.flushed_offset:
                break
            bytes_max -= batch.size
            if bytes_max < 0 and start < self.next_offset:
                return start, 0
            start = batch.base_offset
        for segment in reversed(self.segments):
            bytes_max -= segment.whole_size
            if bytes_max < 0 and start < self.next_offset:
                return start, 0
            start = segment.base_offset
        return min(start, self.start_offset), max(bytes_max, 0)

    def evict(self) -> None:
        """Give back the memory of what is in segments too."""
        self._drop_tail(self.flushed_offset)

    def _drop_tail(self, offset: int) -> None:
        """Drop batches that end at or below ``offset``."""
        head, tail, memory = self._head, self._tail, self._memory
        while head < len(tail):
            batch = tail[head]
            following = batch.next_offset
            if following > offset:
                break
            if self.in_memory:
                memory.let_go(batch)
            else:
                if following > self.flushed_offset:
                    memory.flushed(batch)
                memory.release(batch)
            tail[head] = GONE
            head += 1
        self._head = head
        if head == len(tail):
            tail.clear()
            self._head = 0
        elif head * 2 >= len(tail):
            # Moving only once half is gone keeps the cost constant per batch.
            del tail[:head]
            self._head = 0

    # --- flushing: begin and finish where the log lives, carry out anywhere ---

    def begin_flush(self, unwanted: OffsetBits | None = None) -> FlushPlan | None:
        """What has to move to segments; batches already planned grow no more. ``unwanted`` are
        records that compaction takes out; nothing else of such a log goes."""
        first = bisect_right(
            self._tail, self.flushed_offset, lo=self._head, key=lambda b: b.next_offset
        )
        batches = self._tail[first:]
        if not batches:
            return None
        self._sealed = True
        shares, self._shares = self._shares, False
        if self.damage is not None and self.segments:
            self.segments[-1].sealed = True  # nothing is added to what may be damaged
        last = self.segments[-1] if self.segments and not self.segments[-1].sealed else None
        self._extending = last is not None
        return FlushPlan(
            self,
            batches,
            self.start_offset,
            self.next_offset,
            (_covering(unwanted, self.next_offset),) if unwanted is not None else self._unwanted(),
            self.segments[:] if last is None else self.segments[:-1],
            None if last is None else copy(last),
            None if last is None else self._indexes.get(last.base_offset),
            shares,
            self.compressed,
        )

    def _unwanted(self) -> tuple[OffsetSet, ...]:
        """What need not be written. While somebody reads, everything is."""
        if self.pinned_offset != UNPINNED:
            return ()
        return tuple(OffsetSet.from_bytes(each.to_bytes()) for each in self.acknowledged)

    def finish_flush(self, result: FlushResult) -> None:
        plan = result.plan
        if plan.last is not None:
            self.segments.pop()  # the result has it again, longer
        self._extending = False
        for segment, index in zip(result.segments, result.indexes, strict=True):
            self.segments.append(segment)
            if segment is not plan.last:
                self._indexes[segment.base_offset] = index
            elif plan.last_index is not None:
                plan.last_index.append(index)
        for batch in self._tail[self._head :]:
            if self.flushed_offset < batch.next_offset <= plan.end_offset:
                self._memory.flushed(batch)
        self.flushed_offset = max(self.flushed_offset, plan.end_offset)


def _covering(offsets: OffsetBits, end: int) -> OffsetSet:
    found = OffsetSet()
    for start, stop in offsets.ranges(0, end):
        found.add(start, stop)
    return found


def _quarantine(log: PartitionLog, damage: Damage) -> None:
    """What a log without a store does."""
    log.damage = damage


def cut_run(batch: RecordBatch, first: int, bytes_max: int) -> Run:
    """Records from ``first`` on that fit in ``bytes_max``, but at least one."""
    if batch.size <= bytes_max:
        return Run(batch, first, batch.count)
    limit = batch.position_at(first) + bytes_max
    if batch.size <= limit:
        return Run(batch, first, batch.count)
    low, high = first + 1, batch.count
    while low < high:
        middle = (low + high + 1) // 2
        if batch.position_at(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return Run(batch, first, low)
