"""Carrying out flush plans: records still wanted move from memory to segments.

This touches only the disk and the plan's own copies, so it may run beside the thread that owns the
logs. Nothing it writes counts before a snapshot names it: a crash half-way leaves bytes behind a
segment's known size, or a file nobody refers to.

It may have to read segments: to seal one, to write one anew. Damage that it meets there is the
affair of that partition alone (``damages``), whose old files stay as they are; everybody else's
records, and what this partition had in memory, are written all the same.

A message that went to many partitions is written once for all that still want it: its body to the
checkpoint's body file, a reference to each of their segments.
"""

from collections.abc import Sequence
from typing import NamedTuple

from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.model.limits import KIB
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.aside import free_name
from braidmq.storage.blocks import Start, pack
from braidmq.storage.bodies import START, encode_header, fetch_from
from braidmq.storage.disk import Disk, File
from braidmq.storage.partition_log import FlushPlan, FlushResult, PartitionLog
from braidmq.storage.quarantine import Damage, Skipped, damage_of, pieces_of
from braidmq.storage.segment import (
    DIRECTORY,
    SCAN_BYTES,
    OpenFiles,
    Scanned,
    Segment,
    SegmentIndex,
    bodies_path,
    encode_index,
    note_scanned,
    read_header,
    scan_records,
    scan_segment,
    segment_header,
)
from braidmq.storage.segment_keys import encode_keys, has_keys, scan_keys
from braidmq.storage.shared_body import SharedBodies, without

OPEN_FILES_MAX = 128
"""Files are synced and closed this many at a time: partitions may outnumber descriptors."""
WRITE_BYTES = 64 * KIB
"""A message that many partitions get is a batch of its own in each: a write for each would cost
more than all else."""


class Rewrite(NamedTuple):
    """Sealed segments, one after the other, to be written anew as one, without some of their
    records."""

    log: PartitionLog
    segments: tuple[Segment, ...]
    unwanted: OffsetBits


class Rewritten(NamedTuple):
    rewrite: Rewrite
    segment: Segment | None
    """None when nothing was left of it."""


class Salvage(NamedTuple):
    """A segment to be written anew with what of it is intact, sealed or not."""

    log: PartitionLog
    segment: Segment


class Salvaged(NamedTuple):
    salvage: Salvage
    segment: Segment | None
    """None when it was whole: then it stays."""
    skipped: Skipped | None


SMALL_SEGMENTS_MAX = 8
"""So many small segments in a row become one, though nothing is to be taken out of them."""


def to_rewrite(
    segments: Sequence[Segment], unwanted: OffsetBits, segment_bytes_max: int
) -> list[tuple[Segment, ...]]:
    """The segments that have unwanted records, together with small ones beside them as far as one
    segment holds them all: compaction seals segments before they are full, which must not become
    ever more of them."""
    found: list[tuple[Segment, ...]] = []
    group: list[Segment] = []
    size = dirty = 0
    for each in segments:
        count = unwanted.count(each.base_offset, each.end_offset)
        joins = each.sealed and (count > 0 or each.whole_size <= segment_bytes_max // 8)
        if group and (not joins or size + each.whole_size > segment_bytes_max):
            if dirty or len(group) >= SMALL_SEGMENTS_MAX:
                found.append(tuple(group))
            group, size, dirty = [], 0, 0
        if joins:
            group.append(each)
            size += each.whole_size
            dirty += count
    if dirty or len(group) >= SMALL_SEGMENTS_MAX:
        found.append(tuple(group))
    return found


def first_offset(data: bytes) -> int:
    return RecordBatch.scan(data, verify=False).base_offset


def stored_form(data: bytes, *, compressed: bool) -> tuple[bytes, list[Scanned]]:
    """Records as they are written, and what is to be noted of them."""
    if not compressed:
        batch = RecordBatch.scan(data, verify=False)
        return data, [Scanned(batch, batch.size)]
    pieces, added = [], []
    for piece, batch in pack(data):
        starts: tuple[Start, ...] = ()
        if len(piece) < batch.size:
            starts = (Start(0, batch.base_offset, batch.max_timestamp_ms),)
        pieces.append(piece)
        added.append(Scanned(batch, len(piece), starts))
    return b"".join(pieces), added


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
        self.damages: list[tuple[PartitionLog, Damage]] = []
        """What it met on its way, by partition."""

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
            if last is not None and last is plan.last and self._segment_file is None:
                self._open_last(plan, last)
            if (
                last is not None
                and not last.sealed
                and (last.whole_size + waiting_whole + whole > self._segment_bytes_max)
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

    def _open_last(self, plan: FlushPlan, last: Segment) -> None:
        """Go on in the segment of the last flush, unless it is not there any more as it was."""
        try:
            file = self._disk.open(last.path)
        except FileNotFoundError:
            problem = Damage(last.path, 0, "the segment is missing")
        else:
            size = file.size()
            if size >= last.size:
                self._segment_file = self._opened(file)
                return
            file.close()
            problem = Damage(last.path, size, f"the file ends here, before byte {last.size}")
        last.sealed = True
        self.damages.append((plan.log, problem))

    def _write(self, result: FlushResult, pieces: list[bytes]) -> None:
        """Add records to the last segment."""
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        data, added = stored_form(data, compressed=result.plan.compressed)
        segment = result.segments[-1]
        assert self._segment_file is not None
        self._segment_file.write(data, segment.size)
        self.bytes_written += len(data)
        for each in added:
            note_scanned(segment, result.indexes[-1], each, result.plan.log.index_interval)

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
        header = segment_header(plan.log.id, base_offset, plan.log.header_label)
        segment = Segment(plan.log.id, base_offset, base_offset, len(header), 0, 0, False)
        self._segment_file = self._new_file(segment.path, header)
        return segment

    def _seal(self, plan: FlushPlan, segment: Segment, index: SegmentIndex) -> None:
        segment.sealed = True
        try:
            if segment is plan.last:
                index = self._whole_index(plan, index)
            keys = self._keys_of(segment)
        except (CorruptData, ForeignFile) as error:
            # It goes without its index, which is only a shortcut.
            self.damages.append((plan.log, damage_of(error, segment.path)))
            return
        self._new_file(segment.index_path, encode_index(segment, index))
        self._write_keys(segment, keys)

    def _keys_of(self, segment: Segment) -> bytes | None:
        """The filter of its keys. Raises CorruptData or ForeignFile: all of it is read."""
        if not has_keys(segment):
            return None
        files = OpenFiles(self._disk)
        try:
            return scan_keys(_source(files, segment), segment, fetch_from(files))
        finally:
            files.close()

    def _write_keys(self, segment: Segment, blocks: bytes | None) -> None:
        if blocks is not None:
            self._new_file(segment.keys_path, encode_keys(segment, blocks))
        elif self._disk.exists(segment.keys_path):
            self._disk.remove(segment.keys_path)  # of other records, before a crash

    def _whole_index(self, plan: FlushPlan, added: SegmentIndex) -> SegmentIndex:
        """Of a segment that an earlier flush began; read again when it was not in memory."""
        assert plan.last is not None
        whole = SegmentIndex()
        if plan.last_index is None:
            files = OpenFiles(self._disk)
            try:
                file = _source(files, plan.last)
                found, whole = scan_segment(
                    file, plan.log.id, plan.log.index_interval, plan.last.size
                )
            finally:
                files.close()
            if found.size < plan.last.size:
                raise CorruptData(plan.last.path, found.size, "the file ends within a record")
            return whole
        whole.append(plan.last_index)
        whole.append(added)
        return whole

    def rewrite(self, plan: Rewrite) -> Rewritten | None:
        """Copy the wanted records of segments into a new generation of the first; None where one
        is damaged and all stay as they are."""
        target = _Generation(self, plan.log, plan.segments)
        files = OpenFiles(self._disk)
        old = plan.segments[0]
        try:
            for old in plan.segments:
                self._copy_wanted(_source(files, old), old, plan.unwanted, target)
            return Rewritten(plan, target.seal())
        except (CorruptData, ForeignFile) as error:
            self.damages.append((plan.log, damage_of(error, old.path)))
            target.discard()
            return None
        finally:
            files.close()

    def _copy_wanted(
        self, source: File, old: Segment, unwanted: OffsetBits, target: "_Generation"
    ) -> None:
        position = read_header(source).length
        while position < old.size:
            found = scan_records(source, position, SCAN_BYTES, old.size)
            if found is None:
                raise CorruptData(old.path, position, "the file ends within a record")
            position += found.stored
            data, count = without(found.batch, unwanted)
            if count:
                target.write(data)

    def salvage(self, plan: Salvage) -> Salvaged | None:
        """Write a damaged segment anew with what of it is intact. One is written even where
        nothing is: that tells what became of the old one. None when it could not be done."""
        old = plan.segment
        target = _Generation(self, plan.log, (old,))
        ranges: list[tuple[int, int]] = []
        files = OpenFiles(self._disk)
        try:
            for piece in pieces_of(files, old, plan.log.header_label):
                if piece.batch is not None:
                    target.write(bytes(memoryview(piece.batch)))
                elif ranges and ranges[-1][1] == piece.start:
                    ranges[-1] = (ranges[-1][0], piece.stop)
                else:
                    ranges.append((piece.start, piece.stop))
            if not ranges:
                target.discard()
                return Salvaged(plan, None, None)
            target.begin()
            new = target.seal()
        except (CorruptData, ForeignFile) as error:
            self.damages.append((plan.log, damage_of(error, old.path)))
            target.discard()
            return None
        finally:
            files.close()
        assert new is not None
        new.salvaged = True
        aside = free_name(self._disk, old.path) if self._disk.exists(old.path) else ""
        return Salvaged(plan, new, Skipped(old.path, aside, ranges, old.records - new.records))

    def new_segment(self, segment: Segment, label: str) -> File:
        header = segment_header(segment.partition, segment.base_offset, label)
        return self._new_file(segment.path, header)

    def finish_segment(self, segment: Segment, index: SegmentIndex) -> None:
        """Of one that was written whole: its index and its filter of keys."""
        keys = self._keys_of(segment)
        self._new_file(segment.index_path, encode_index(segment, index))
        self._write_keys(segment, keys)

    def drop(self, file: File) -> None:
        """A file that this checkpoint made and that nobody knows of."""
        self._unsynced.remove(file)
        file.close()
        self._disk.remove(file.path)

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


class _Generation:
    """Segments on their way to being written anew: the next generation of the first, under a name
    of its own."""

    def __init__(self, writer: SegmentWriter, log: PartitionLog, old: tuple[Segment, ...]) -> None:
        self._writer = writer
        self._log = log
        self._end_offset = old[-1].end_offset
        self._index = SegmentIndex()
        self._file: File | None = None
        base_offset = old[0].base_offset
        header = segment_header(log.id, base_offset, log.header_label)
        self._segment = Segment(
            log.id,
            base_offset,
            base_offset,
            len(header),
            0,
            0,
            False,
            generation=old[0].generation + 1,
            salvaged=any(each.salvaged for each in old),
        )

    def begin(self) -> None:
        if self._file is None:
            self._file = self._writer.new_segment(self._segment, self._log.header_label)

    def write(self, data: bytes) -> None:
        self.begin()
        assert self._file is not None
        data, added = stored_form(data, compressed=self._log.compressed)
        self._file.write(data, self._segment.size)
        self._writer.bytes_written += len(data)
        for each in added:
            note_scanned(self._segment, self._index, each, self._log.index_interval)

    def seal(self) -> Segment | None:
        """The segment; None if nothing was written."""
        if self._file is None:
            return None
        # The gap at the end belongs to the segment all the same.
        self._segment.end_offset = self._end_offset
        self._segment.sealed = True
        self._writer.finish_segment(self._segment, self._index)
        return self._segment

    def discard(self) -> None:
        if self._file is not None:
            self._writer.drop(self._file)
            self._file = None


def _source(files: OpenFiles, segment: Segment) -> File:
    try:
        return files.get(segment.path)
    except FileNotFoundError:
        raise CorruptData(segment.path, 0, "the segment is missing") from None
