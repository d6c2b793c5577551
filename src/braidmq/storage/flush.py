"""Carrying out flush plans: records still wanted move from memory to segments.

This touches only the disk and the plan's own copies, so it may run beside the thread that owns the
logs. Nothing it writes counts before a snapshot names it: a crash half-way leaves bytes behind a
segment's known size, or a file nobody refers to.
"""

from braidmq.storage.disk import Disk, File
from braidmq.storage.partition_log import FlushPlan, FlushResult
from braidmq.storage.record import RecordBatch
from braidmq.storage.segment import (
    DIRECTORY,
    Segment,
    SegmentIndex,
    encode_index,
    note_batch,
    segment_header,
)

OPEN_FILES_MAX = 128
"""Files are synced and closed this many at a time: partitions may outnumber descriptors."""


class SegmentWriter:
    """Writes for many partitions, then syncs for all of them at once."""

    def __init__(self, disk: Disk, segment_bytes_max: int) -> None:
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        self._unsynced: list[File] = []
        self.bytes_written = 0

    def carry_out(self, plan: FlushPlan) -> FlushResult:
        result = FlushResult(plan, [], [])
        file: File | None = None
        if plan.last is not None and plan.last_index is not None:
            result.segments.append(plan.last)
            result.indexes.append(plan.last_index)
        for batch in plan.batches:
            data, count = batch.stamped(plan.acknowledged, plan.start_offset)
            if not count:
                continue
            stamped = RecordBatch.scan(data, verify=False)
            if result.segments and result.segments[-1].size + len(data) > self._segment_bytes_max:
                self._seal(result.segments[-1], result.indexes[-1])
            if not result.segments or result.segments[-1].sealed:
                segment, file = self._create(plan, stamped.base_offset)
                result.segments.append(segment)
                result.indexes.append(SegmentIndex())
            segment = result.segments[-1]
            file = file or self._opened(self._disk.open(segment.path))
            file.write(data, segment.size)
            self.bytes_written += len(data)
            note_batch(segment, result.indexes[-1], stamped, plan.log.index_interval)
        if len(self._unsynced) >= OPEN_FILES_MAX:
            self.sync()
        return result

    def _create(self, plan: FlushPlan, base_offset: int) -> tuple[Segment, File]:
        header = segment_header(plan.log.id, base_offset, plan.log.label)
        segment = Segment(plan.log.id, base_offset, base_offset, len(header), 0, 0, False)
        return segment, self._new_file(segment.path, header)

    def _seal(self, segment: Segment, index: SegmentIndex) -> None:
        segment.sealed = True
        self._new_file(segment.index_path, encode_index(segment, index))

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
        """Make everything written so far durable, names included."""
        files, self._unsynced = self._unsynced, []
        if files:
            self._disk.sync_all(files)
            self._disk.sync_directory(DIRECTORY)
        for file in files:
            file.close()
