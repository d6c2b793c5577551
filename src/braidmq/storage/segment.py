"""Segments: a partition's records on disk, in files that are sealed at a certain size.

    segments/0000002a-00000000000000001000.segment      partition 42, first offset 1000
    byte  0            8         12              16          24            32           36       40
          ┌────────────┬─────────┬───────────────┬───────────┬─────────────┬────────────┬────────┐
          │ "BRAIDSEG" │ version │ header length │ partition │ base offset │label length│ CRC32C │
          ├────────────┴─────────┴───────┬───────┴───────────┴─────────────┴────────────┴────────┘
       40 │ label (UTF-8), zeros to 64   │ records, end to end, each with its own offset
          └──────────────────────────────┴───────────────────────────────────────────────────────

    …-00000000000000001000.index            beside each sealed segment
          ┌────────────┬─────────┬───────┬───────────────┬────────┬─────────┬──────────┬────────┐
          │ "BRAIDIDX" │ version │ count │ segment bytes │  end   │ records │ max time │ CRC32C │
          └────────────┴─────────┴───────┴───────────────┴────────┴─────────┴──────────┴────────┘
          then `count` offsets, `count` positions, `count` times: the highest before the position

Records may be packed together in compressed blocks (``blocks``), which stand where they would.

A record may refer to its body in a body file (``bodies``), which has it for several partitions; a
segment says which of those it needs.

The index is both the offset index and the time index, because timestamps are looked up by the
highest one so far, which never falls. It is only a shortcut: one that is missing or does not match
its segment is built again from the records.
"""

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.model.limits import MIB
from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.record.crc32c import crc32c
from braidmq.storage.blocks import OFFSET_MAX, Start, expand, is_block
from braidmq.storage.disk import Disk, File
from braidmq.storage.shared_body import body_files

DIRECTORY = "segments"
SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
KEYS_SUFFIX = ".keys"
BODIES_SUFFIX = ".bodies"
MAGIC = b"BRAIDSEG"
INDEX_MAGIC = b"BRAIDIDX"
VERSION = 1
HEADER = struct.Struct("<8sIIQqI")
INDEX_HEADER = struct.Struct("<8sIIQqqq")
CHECKSUM = struct.Struct("<I")
SCAN_BYTES = 4 * MIB


NAME = re.compile(r"([0-9a-f]{8,})-([0-9]{20})(?:-([0-9a-f]{4,}))?\.(?:segment|index|keys)")
BODIES_NAME = re.compile(r"([0-9a-f]{16})\.bodies")


def segment_name(partition: int, base_offset: int, generation: int = 0) -> str:
    """Compaction writes a segment anew under a name of its own: the old one stays until a snapshot
    names the new."""
    suffix = f"-{generation:04x}{SUFFIX}" if generation else SUFFIX
    return f"{DIRECTORY}/{partition:08x}-{base_offset:020d}{suffix}"


def bodies_path(number: int) -> str:
    return f"{DIRECTORY}/{number:016x}{BODIES_SUFFIX}"


def is_ours(name: str) -> bool:
    return (NAME.fullmatch(name) or BODIES_NAME.fullmatch(name)) is not None


def segment_header(partition: int, base_offset: int, label: str) -> bytes:
    text = label.encode()
    length = -(-(HEADER.size + CHECKSUM.size + len(text)) // 64) * 64
    fields = HEADER.pack(MAGIC, VERSION, length, partition, base_offset, len(text))
    checksum = CHECKSUM.pack(crc32c(text, crc32c(fields)))
    return (fields + checksum + text).ljust(length, b"\0")


class SegmentHeader(msgspec.Struct, frozen=True):
    length: int
    partition: int
    base_offset: int
    label: str


def read_header(file: File) -> SegmentHeader:
    start = file.read(HEADER.size + CHECKSUM.size, 0)
    if len(start) < HEADER.size + CHECKSUM.size or start[:8] != MAGIC:
        raise ForeignFile(
            f"{file.path} is not a segment", remedy="Move it out of the data directory"
        )
    _, version, length, partition, base_offset, label_length = HEADER.unpack(start[: HEADER.size])
    if version > VERSION:
        raise ForeignFile(
            f"{file.path} has segment version {version}, this BraidMQ reads {VERSION}",
            remedy="It was written by a newer version of BraidMQ: use that version",
        )
    text = file.read(label_length, len(start)) if label_length <= length else b""
    if CHECKSUM.unpack(start[HEADER.size :])[0] != crc32c(text, crc32c(start[: HEADER.size])):
        raise CorruptData(file.path, 0, "the segment header does not match its checksum")
    return SegmentHeader(length, partition, base_offset, text.decode())


class SegmentIndex:
    """Where in a segment to begin looking for an offset or a time."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def extend(self, points: list[tuple[int, int, int]]) -> None:
        for offset, position, time in points:
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(time)

    @property
    def last_position(self) -> int:
        return self.positions[-1] if self.positions else -1

    def position_of(self, offset: int) -> int:
        """No record at or after ``offset`` stands before this position; -1 for an empty index."""
        at = max(bisect_right(self.offsets, offset) - 1, 0)
        return self.positions[at] if self.positions else -1

    def position_after(self, offset: int, end: int) -> int:
        """Every record below ``offset`` stands before this position, ``end`` being the last."""
        at = bisect_left(self.offsets, offset)
        return self.positions[at] if at < len(self.positions) else end

    def position_of_time(self, timestamp_ms: int) -> int:
        """No record stamped at or after ``timestamp_ms`` stands before this position."""
        at = max(bisect_left(self.times, timestamp_ms) - 1, 0)
        return self.positions[at] if self.positions else -1

    def append(self, more: "SegmentIndex") -> None:
        self.offsets.extend(more.offsets)
        self.positions.extend(more.positions)
        self.times.extend(more.times)


class Segment(msgspec.Struct):
    """What is known of one segment: kept in snapshots, so that start-up need not open it.

    By the names of its fields: mypyc, which compiles this module, passes no options on to msgspec,
    and a snapshot has to be the same from a build without it.
    """

    partition: int
    base_offset: int
    end_offset: int
    """The offset after the last record's."""
    size: int
    """Bytes of the file that count; what stands behind them is left from an interrupted flush."""
    records: int
    max_timestamp_ms: int
    sealed: bool
    summary: int = 0
    """All flags that its records have between them."""
    value_bytes: int = 0
    generation: int = 0
    """How often compaction has written it anew."""
    first_timestamp_ms: int = 0
    time_ordered: bool = False
    """Whether no record is stamped before the one in front of it; False where nobody looked."""
    bodies: tuple[int, ...] = ()
    """Numbers of the body files that its records refer to."""
    shared_bytes: int = 0
    """How much longer it would be with those bodies in it."""
    packed_bytes: int = 0
    """How much longer it would be with its blocks expanded."""
    salvaged: bool = False
    """Whether it was written around damage: what it stands for is set aside, never removed."""

    @property
    def whole_size(self) -> int:
        """As if no body were elsewhere and nothing compressed: what limits by bytes go by, which
        can't tell who shares."""
        return self.size + self.shared_bytes + self.packed_bytes

    @property
    def path(self) -> str:
        return segment_name(self.partition, self.base_offset, self.generation)

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(SUFFIX) + INDEX_SUFFIX

    @property
    def keys_path(self) -> str:
        return self.path.removesuffix(SUFFIX) + KEYS_SUFFIX


def encode_index(segment: Segment, index: SegmentIndex) -> bytes:
    fields = INDEX_HEADER.pack(
        INDEX_MAGIC,
        VERSION,
        len(index.offsets),
        segment.size,
        segment.end_offset,
        segment.records,
        segment.max_timestamp_ms,
    )
    points = b"".join((index.offsets.tobytes(), index.positions.tobytes(), index.times.tobytes()))
    return fields + CHECKSUM.pack(crc32c(points, crc32c(fields))) + points


def decode_index(segment: Segment, data: bytes) -> SegmentIndex | None:
    """The index in ``data``, or None when it is not this segment's, whole and intact."""
    start = INDEX_HEADER.size + CHECKSUM.size
    if len(data) < start or data[:8] != INDEX_MAGIC:
        return None
    fields, checksum, points = (
        data[: INDEX_HEADER.size],
        data[INDEX_HEADER.size : start],
        data[start:],
    )
    _, version, count, size, end_offset, records, max_time = INDEX_HEADER.unpack(fields)
    expected = (segment.size, segment.end_offset, segment.records, segment.max_timestamp_ms)
    if version != VERSION or (size, end_offset, records, max_time) != expected:
        return None
    if len(points) != 24 * count or CHECKSUM.unpack(checksum)[0] != crc32c(points, crc32c(fields)):
        return None
    index = SegmentIndex()
    for column, at in ((index.offsets, 0), (index.positions, 1), (index.times, 2)):
        column.frombytes(points[8 * count * at : 8 * count * (at + 1)])
    return index


RECENT_READS = 16
"""Pieces of segments kept between reads, of about a megabyte each."""


class OpenFiles:
    """The segment files most recently used, kept open: partitions may outnumber descriptors.

    And what was last read of a few of them: whoever drains a backlog takes less at a time than one
    read brings, and should not verify the rest twice.
    """

    def __init__(self, disk: Disk, limit: int = 256) -> None:
        self._disk = disk
        self._limit = limit
        self._open: OrderedDict[str, File] = OrderedDict()
        self._recent: OrderedDict[str, RecordBatch] = OrderedDict()

    def recent(self, path: str, offset: int) -> RecordBatch | None:
        """What was last read of a segment, when ``offset`` is in it."""
        batch = self._recent.get(path)
        if batch is None or not batch.base_offset <= offset < batch.next_offset:
            return None
        self._recent.move_to_end(path)
        return batch

    def keep(self, path: str, batch: RecordBatch) -> None:
        self._recent[path] = batch
        self._recent.move_to_end(path)
        if len(self._recent) > RECENT_READS:
            self._recent.popitem(last=False)

    def has(self, path: str) -> bool:
        """Whether the file is open now."""
        return path in self._open

    def get(self, path: str) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._disk.open(path)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    def forget(self, path: str) -> None:
        self._recent.pop(path, None)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)


def scan_segment(
    file: File, partition: int, interval: int, size: int | None = None
) -> tuple[Segment, SegmentIndex]:
    """Read a segment from its first record to ``size``, or as far as whole records go."""
    header = read_header(file)
    segment = Segment(partition, header.base_offset, header.base_offset, header.length, 0, 0, False)
    index = SegmentIndex()
    limit = file.size() if size is None else size
    while segment.size < limit:
        wanted = min(SCAN_BYTES, limit - segment.size)
        found = scan_records(file, segment.size, wanted, limit)
        if found is None:
            break
        note_scanned(segment, index, found, interval)
    return segment, index


class Scanned(NamedTuple):
    """Records that were read from a segment."""

    batch: RecordBatch
    stored: int
    """How many bytes of the file they took."""
    starts: Sequence[Start] = ()
    """The blocks they were in, if any."""


def scan_records(
    file: File,
    position: int,
    length: int,
    end: int,
    *,
    expanded_max: int = SCAN_BYTES,
    stop: int = OFFSET_MAX,
) -> Scanned | None:
    """Whole records from ``position`` on: as many as fit in ``length`` bytes, but at least one. Of
    blocks at least one is expanded, more up to ``expanded_max`` bytes and the offset ``stop``.

    None when not even one is whole before ``end``; CorruptData when the first is damaged. A later
    one that is damaged ends the scan before it.
    """
    while True:
        length = min(length, end - position)
        try:
            data = file.read(length, position)
        except OSError as error:
            raise CorruptData(file.path, position, f"it can't be read: {error}") from error
        needed = 4 * length
        try:
            if is_block(data):
                found = expand(data, expanded_max, stop)
                if not isinstance(found, int):
                    return Scanned(found.batch, found.stored, found.starts)
                needed = found
            batch = RecordBatch() if is_block(data) else RecordBatch.scan(data)
        except BadRecord as error:
            if not error.position:
                raise CorruptData(file.path, position, error.reason) from None
            batch = RecordBatch.scan(data[: error.position], verify=False)
        if batch.count:
            return Scanned(batch, batch.size)
        if len(data) < length or position + length >= end:
            return None
        length = needed


def note_scanned(segment: Segment, index: SegmentIndex, added: Scanned, interval: int) -> None:
    """Records were added to the end of ``segment``: keep the descriptor and the index true."""
    batch = added.batch
    if added.starts:
        index.extend(_block_points(segment, index, added.starts, interval))
    else:
        index.extend(
            batch.index_points(
                segment.size, interval, index.last_position, segment.max_timestamp_ms
            )
        )
    if not segment.records:
        segment.first_timestamp_ms = batch.first_timestamp_ms
        segment.time_ordered = batch.time_ordered
    elif batch.first_timestamp_ms < segment.max_timestamp_ms or not batch.time_ordered:
        segment.time_ordered = False
    segment.size += added.stored
    segment.packed_bytes += batch.size - added.stored
    segment.end_offset = batch.next_offset
    segment.records += batch.count
    segment.max_timestamp_ms = max(segment.max_timestamp_ms, batch.max_timestamp_ms)
    segment.summary |= batch.summary
    segment.value_bytes += batch.value_bytes
    if batch.shared_bytes:
        segment.shared_bytes += batch.shared_bytes
        segment.bodies = tuple(sorted({*segment.bodies, *body_files(batch)}))


def _block_points(
    segment: Segment, index: SegmentIndex, starts: Sequence[Start], interval: int
) -> list[tuple[int, int, int]]:
    """Only the beginnings of blocks can be pointed at."""
    points = []
    last, time = index.last_position, segment.max_timestamp_ms
    for start in starts:
        at = segment.size + start.position
        if last < 0 or at - last >= interval:
            points.append((start.first_offset, at, time))
            last = at
        time = max(time, start.max_timestamp_ms)
    return points
