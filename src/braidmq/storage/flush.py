"""Carrying out flush plans: records still wanted move from memory to segments.

This touches only the disk and the plan's own copies, so it may run beside the thread that owns the
logs. Nothing it writes counts before a snapshot names it: a crash half-way leaves bytes behind a
segment's known size, or a file nobody refers to.

A message that went to many partitions is written once for all that still want it: its body to the
checkpoint's body file, a reference to each of their segments.
"""

from collections.abc import Sequence
from typing import NamedTuple

from braidmq.model.limits import KIB
from braidmq.storage.bodies import START, encode_header, fetch_from
from braidmq.storage.disk import Disk, File
from braidmq.storage.offset_set import OffsetBits
from braidmq.storage.partition_log import FlushPlan, FlushResult, PartitionLog
from braidmq.storage.record import RecordBatch
from braidmq.storage.segment import (
    DIRECTORY,
    SCAN_BYTES,
    OpenFiles,
    Segment,
    SegmentIndex,
    bodies_path,
    encode_index,
    note_batch,
    read_header,
    scan_records,
    scan_segment,
    segment_header,
)
from braidmq.storage.segment_keys import encode_keys, has_keys, scan_keys
from braidmq.storage.shared_body import SharedBodies

OPEN_FILES_MAX = 128
"""Files are synced and closed this many at a time: partitions may outnumber descriptors."""
WRITE_BYTES = 64 * KIB
"""A message that many partitions get is a batch of its own in each: a write for each would cost
more than all else."""


class Rewrite(NamedTuple):
    """A sealed segment to be written anew, without some of its records."""

    log: PartitionLog
    segment: Segment
    unwanted: OffsetBits


class Rewritten(NamedTuple):
    rewrite: Rewrite
    segment: Segment | None
    """None when nothing was left of it."""


def first_offset(data: bytes) -> int:
    return RecordBatch.scan(data, verify=False).base_offset


class SegmentWriter:
    """Writes for many partitions, then syncs for all of them at once.

    ``body_file`` is the number of the body file, should there be one: ``bodies_written`` tells.
    """

    def __init__(self, disk: Disk, segment_bytes_max: int, body_file: int) -> None:
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        self._unsynced: list[File] = []
        self._segment_file: File | None = None
        self._body_file = body_file
        self._bodies: File | None = None
        self._shared: SharedBodies | None = None
        self.bytes_written = 0
        self.bodies_written = 0

    def find_shared(self, plans: Sequence[FlushPlan]) -> None:
        """Learn which bodies several of the plans want, before the first is carried out."""
        sharing = [plan for plan in plans if plan.shares]
        if len(sharing) < 2:
            return
        shared = SharedBodies(self._body_file, START)
        for owner, plan in enumerate(sharing):
            for batch in plan.batches:
                shared.note(batch, plan.acknowledged, plan.start_offset, owner)
        if shared.count:
            self._shared = shared

    def carry_out(self, plan: FlushPlan) -> FlushResult:
        """Small batches are written together, but segments end where they would without that."""
        result = FlushResult(plan, [], [])
        pieces: list[bytes] = []
        waiting = waiting_whole = 0
        if plan.last is not None:
            result.segments.append(plan.last)
            result.indexes.append(SegmentIndex())
        for batch in plan.batches:
            data, whole = self._stamped(plan, batch)
            if not whole:
                continue
            last = result.segments[-1] if result.segments else None
            if last is not None and (
                last.whole_size + waiting_whole + whole > self._segment_bytes_max
            ):
                self._write(result, pieces)
                pieces, waiting, waiting_whole = [], 0, 0
                self._seal(plan, last, result.indexes[-1])
            if last is None or last.sealed:
                result.segments.append(self._create(plan, first_offset(data)))
                result.indexes.append(SegmentIndex())
            pieces.append(data)
            waiting += len(data)
            waiting_whole += whole
            if waiting >= WRITE_BYTES:
                self._write(result, pieces)
                pieces, waiting, waiting_whole = [], 0, 0
        self._write(result, pieces)
        self._segment_file = None
        if len(self._unsynced) >= OPEN_FILES_MAX:
            self._sync()
        return result

    def _write(self, result: FlushResult, pieces: list[bytes]) -> None:
        """Add records to the last segment."""
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        segment = result.segments[-1]
        if self._segment_file is None:
            self._segment_file = self._opened(self._disk.open(segment.path))
        self._segment_file.write(data, segment.size)
        self.bytes_written += len(data)
        stamped = RecordBatch.scan(data, verify=False)
        note_batch(segment, result.indexes[-1], stamped, result.plan.log.index_interval)

    def _stamped(self, plan: FlushPlan, batch: RecordBatch) -> tuple[bytes, int]:
        """What is wanted of a batch as a segment stores it, and how long that is with all bodies:
        segments end where they would if none were shared, as limits go by whole segments."""
        if self._shared is None or not plan.shares:
            data, _ = batch.stamped(plan.acknowledged, plan.start_offset)
            return data, len(data)
        position = self._shared.end
        data, whole, bodies = self._shared.stamped(batch, plan.acknowledged, plan.start_offset)
        if bodies:
            self._write_bodies(bodies, position)
        return data, whole

    def _write_bodies(self, bodies: bytes, position: int) -> None:
        if self._bodies is None:
            self._bodies = self._new_file(
                bodies_path(self._body_file), encode_header(self._body_file)
            )
            self._unsynced.remove(self._bodies)  # it stays open until the end
            self.bodies_written = START
        self._bodies.write(bodies, position)
        self.bodies_written += len(bodies)
        self.bytes_written += len(bodies)

    def _create(self, plan: FlushPlan, base_offset: int) -> Segment:
        header = segment_header(plan.log.id, base_offset, plan.log.label)
        segment = Segment(plan.log.id, base_offset, base_offset, len(header), 0, 0, False)
        self._segment_file = self._new_file(segment.path, header)
        return segment

    def _seal(self, plan: FlushPlan, segment: Segment, index: SegmentIndex) -> None:
        segment.sealed = True
        if segment is plan.last:
            index = self._whole_index(plan, index)
        self._new_file(segment.index_path, encode_index(segment, index))
        self._write_keys(segment)

    def _write_keys(self, segment: Segment) -> None:
        blocks = None
        if has_keys(segment):
            files = OpenFiles(self._disk)
            try:
                blocks = scan_keys(files.get(segment.path), segment, fetch_from(files))
            finally:
                files.close()
        if blocks is not None:
            self._new_file(segment.keys_path, encode_keys(segment, blocks))
        elif self._disk.exists(segment.keys_path):
            self._disk.remove(segment.keys_path)  # of other records, before a crash

    def _whole_index(self, plan: FlushPlan, added: SegmentIndex) -> SegmentIndex:
        """Of a segment that an earlier flush began; read again when it was not in memory."""
        assert plan.last is not None
        if plan.last_index is None:
            file = self._disk.open(plan.last.path)
            try:
                return scan_segment(file, plan.log.id, plan.log.index_interval, plan.last.size)[1]
            finally:
                file.close()
        whole = SegmentIndex()
        whole.append(plan.last_index)
        whole.append(added)
        return whole

    def rewrite(self, plan: Rewrite) -> Rewritten:
        """Copy the wanted records of a segment into a new generation of it."""
        old = plan.segment
        new: Segment | None = None
        index = SegmentIndex()
        source = self._disk.open(old.path)
        try:
            position = read_header(source).length
            while position < old.size:
                batch = scan_records(source, position, SCAN_BYTES, old.size)
                if batch is None:
                    break
                position += batch.size
                data, count = batch.without(plan.unwanted)
                if not count:
                    continue
                if new is None:
                    new, file = self._next_generation(plan)
                file.write(data, new.size)
                self.bytes_written += len(data)
                note_batch(
                    new, index, RecordBatch.scan(data, verify=False), plan.log.index_interval
                )
        finally:
            source.close()
        if new is not None:
            # The gap that compaction leaves at the end belongs to the segment all the same.
            new.end_offset = old.end_offset
            new.sealed = True
            self._new_file(new.index_path, encode_index(new, index))
            self._write_keys(new)
        return Rewritten(plan, new)

    def _next_generation(self, plan: Rewrite) -> tuple[Segment, File]:
        old = plan.segment
        header = segment_header(plan.log.id, old.base_offset, plan.log.label)
        segment = Segment(plan.log.id, old.base_offset, old.base_offset, len(header), 0, 0, False)
        segment.generation = old.generation + 1
        return segment, self._new_file(segment.path, header)

    def _new_file(self, path: str, data: bytes) -> File:
        if self._disk.exists(path):
            self._disk.remove(path)  # left from a flush that a crash interrupted
        file = self._opened(self._disk.open(path, create=True))
        file.write(data, 0)
        return file

    def _opened(self, file: File) -> File:
        self._unsynced.append(file)
        return file

    def sync(self) -> None:
        """Make everything written durable, names included. There is no more to come."""
        if self._bodies is not None:
            self._unsynced.append(self._bodies)
        self._sync()

    def _sync(self) -> None:
        files, self._unsynced = self._unsynced, []
        if files:
            self._disk.sync_all(files)
            self._disk.sync_directory(DIRECTORY)
        for file in files:
            file.close()
