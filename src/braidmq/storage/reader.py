"""Reading sealed records in bulk, with no broker: segments in, Arrow record batches out.

Give it a data directory or one segment file and a range of offsets or of time. Records are
verified and decoded by the record kernel straight into Arrow's buffers. A broker may be running on
the directory: what it has not flushed to segments yet is not seen.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from braidmq.model.errors import CorruptData, NotFound
from braidmq.model.limits import MIB
from braidmq.storage import segment, snapshot
from braidmq.storage.disk import RealDisk
from braidmq.storage.record import BadRecord, decode_columns
from braidmq.storage.segment import Segment, SegmentIndex

if TYPE_CHECKING:
    from braidmq.storage.record import Column  # a name for types alone: the kernel has none

COLUMNS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("priority", pa.uint8(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
        pa.field("envelope_format", pa.uint8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("envelope", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)

EARLIEST, LATEST = 0, (1 << 63) - 1
ROWS_MAX = 65_536
CHUNK_BYTES = 16 * MIB


@dataclass(frozen=True)
class Window:
    """Half-open ranges: a record is in when its offset and its time both are."""

    offset_min: int = EARLIEST
    offset_max: int = LATEST
    time_min_ms: int = EARLIEST
    time_max_ms: int = LATEST


@dataclass(frozen=True)
class SegmentFile:
    """One segment and how much of its file counts."""

    path: Path
    partition: int
    label: str
    base_offset: int
    header_bytes: int
    size: int
    start_offset: int = 0
    """The partition's: records below it are gone, though the file still has them."""
    descriptor: Segment | None = None

    def may_hold(self, window: Window) -> bool:
        """Whether the range could touch this segment, by what is known without opening it."""
        if self.base_offset >= window.offset_max:
            return False
        known = self.descriptor
        return known is None or (
            known.end_offset > window.offset_min and known.max_timestamp_ms >= window.time_min_ms
        )


def open_segment(path: Path) -> SegmentFile:
    """A segment file on its own; all of it counts."""
    disk = RealDisk(path.parent)
    try:
        file = disk.open(path.name)
    except FileNotFoundError:
        raise NotFound(f"there is no segment {path}") from None
    try:
        header = segment.read_header(file)
        size = file.size()
    finally:
        file.close()
    return SegmentFile(
        path, header.partition, header.label, header.base_offset, header.length, size
    )


def find_segments(data_dir: Path, label: str | None = None) -> list[SegmentFile]:
    """The segments of a data directory, of one label or all, by partition and offset.

    The newest snapshot says how much of each file counts.
    """
    disk = RealDisk(data_dir)
    notes: list[str] = []
    newest = snapshot.load_newest(disk, notes)
    if newest is None:
        raise NotFound(
            f"{data_dir} has no readable snapshot, so nothing is sealed there yet",
            remedy="Read through the broker, or wait for its first checkpoint",
        )
    found = []
    for state in newest.state.partitions:
        for each in state.segments:
            opened = open_segment(data_dir / each.path)
            if label is None or opened.label == label:
                found.append(
                    SegmentFile(
                        opened.path,
                        opened.partition,
                        opened.label,
                        opened.base_offset,
                        opened.header_bytes,
                        each.size,
                        state.start_offset,
                        each,
                    )
                )
    return sorted(found, key=lambda file: (file.partition, file.base_offset))


def read_directory(
    data_dir: Path, label: str | None = None, window: Window | None = None
) -> Iterator[pa.RecordBatch]:
    """Record batches of all matching segments, one partition after the other, in offset order."""
    window = window or Window()
    for file in find_segments(data_dir, label):
        if file.may_hold(window):
            yield from read_segment(file, window)


def read_segment(file: SegmentFile, window: Window | None = None) -> Iterator[pa.RecordBatch]:
    """Record batches of one segment: verified, filtered, at most ``ROWS_MAX`` rows each."""
    window = window or Window()
    if window.offset_min < file.start_offset:
        window = replace(window, offset_min=file.start_offset)
    with file.path.open("rb") as handle:
        if file.size <= file.header_bytes:
            return
        on_disk = os.fstat(handle.fileno()).st_size
        if on_disk < file.size:
            raise CorruptData(str(file.path), on_disk, f"the file ends before byte {file.size}")
        mapped = memoryview(mmap.mmap(handle.fileno(), file.size, prot=mmap.PROT_READ))
    position = _first_position(file, window)
    while position < file.size:
        chunk = mapped[position : min(position + CHUNK_BYTES, file.size)]
        consumed, rows, columns = _decode(file, chunk, position, window)
        if not consumed and len(chunk) == file.size - position:
            raise CorruptData(str(file.path), position, "the file ends within a record")
        if not consumed:
            # One record larger than a chunk: take all the rest.
            chunk = mapped[position : file.size]
            consumed, rows, columns = _decode(file, chunk, position, window, rows_max=1)
        if rows:
            yield record_batch(rows, columns)
        position += consumed


def _decode(
    file: SegmentFile,
    chunk: memoryview,
    position: int,
    window: Window,
    rows_max: int = ROWS_MAX,
) -> "tuple[int, int, tuple[Column, ...]]":
    try:
        return decode_columns(
            chunk,
            window.offset_min,
            window.offset_max,
            window.time_min_ms,
            window.time_max_ms,
            rows_max,
        )
    except BadRecord as error:
        raise CorruptData(str(file.path), position + error.position, error.reason) from None


def _first_position(file: SegmentFile, window: Window) -> int:
    """Where to begin: by the index when the segment has one that matches it."""
    index = _index(file)
    if index is None:
        return file.header_bytes
    return max(
        file.header_bytes,
        index.position_of(window.offset_min),
        index.position_of_time(window.time_min_ms),
    )


def _index(file: SegmentFile) -> SegmentIndex | None:
    if file.descriptor is None or not file.descriptor.sealed:
        return None
    path = file.path.with_suffix(segment.INDEX_SUFFIX)
    try:
        return segment.decode_index(file.descriptor, path.read_bytes())
    except FileNotFoundError:
        return None


def record_batch(rows: int, columns: "tuple[Column, ...]") -> pa.RecordBatch:
    """Arrow arrays over the kernel's buffers, without a copy."""
    arrays = [
        pa.Array.from_buffers(
            column.type, rows, [None if b is None else pa.py_buffer(b) for b in buffers]
        )
        for column, buffers in zip(COLUMNS, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)
