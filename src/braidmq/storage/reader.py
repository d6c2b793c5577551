"""Reading sealed records in bulk, with no broker: segments in, Arrow record batches out.

Give it a data directory or one segment file and a range of offsets or of time. Records are
verified and decoded by the record kernel straight into Arrow's buffers. A broker may be running on
the directory: what it has not flushed to segments yet is not seen.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from braidmq.model.errors import CorruptData, NotFound, SetupError
from braidmq.model.limits import MIB
from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.record.buffer import Buffer
from braidmq.record.columns import EVERY_COLUMN, decode_columns
from braidmq.record.offset_set import OffsetBits
from braidmq.storage import segment, snapshot
from braidmq.storage.blocks import expand, is_block
from braidmq.storage.bodies import START, Fetch, check_header, resolve_all
from braidmq.storage.disk import RealDisk
from braidmq.storage.segment import Segment, SegmentIndex
from braidmq.storage.shared_body import is_reference

if TYPE_CHECKING:
    from braidmq.record.columns import Column  # a name for types alone: the kernel has none


class ArrowMissing(SetupError):
    code = "arrow-missing"
    remedy = "pip install 'braidmq[arrow]'"


try:
    import pyarrow as pa  # 170 MB that a node has no use for
except ImportError:
    raise ArrowMissing("segments are read into Arrow, and pyarrow is not installed") from None

COLUMNS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field("envelope_format", pa.uint8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("envelope", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("expires_at", pa.timestamp("us", tz="UTC")),
        pa.field("due_at", pa.timestamp("us", tz="UTC")),
    ]
)

T = TypeVar("T")

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
    newest = snapshot.load_newest(disk, [])
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
    if file.size <= file.header_bytes:
        return
    mapped = map_segment(file.path, file.size)
    start, stop = span(file.descriptor, _index(file), file.header_bytes, file.size, window)
    for rows, columns in decode_span(
        str(file.path),
        lambda at, length: mapped[at : at + length],
        start,
        stop,
        window,
        bodies=MappedBodies(file.path.parent).fetch,
    ):
        yield record_batch(rows, columns)


def map_segment(path: Path, size: int) -> memoryview:
    """The first ``size`` bytes of a segment, without reading them yet."""
    with path.open("rb") as handle:
        on_disk = os.fstat(handle.fileno()).st_size
        if on_disk < size:
            raise CorruptData(str(path), on_disk, f"the file ends before byte {size}")
        return memoryview(mmap.mmap(handle.fileno(), size, prot=mmap.PROT_READ))


class MappedBodies:
    """The body files beside some segments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[int, memoryview] = {}

    def fetch(self, number: int, at: int, length: int) -> memoryview:
        if number not in self._mapped:
            self._mapped[number] = self._map(number)
        return self._mapped[number][at : at + length]

    def _map(self, number: int) -> memoryview:
        path = self._directory / segment.bodies_path(number).rpartition("/")[2]
        try:
            mapped = map_segment(path, path.stat().st_size)
        except FileNotFoundError:
            raise NotFound(f"there is no body file {path}") from None
        check_header(str(path), mapped[:START], number)
        return mapped


def span(
    descriptor: Segment | None,
    index: SegmentIndex | None,
    header_bytes: int,
    size: int,
    window: Window,
) -> tuple[int, int]:
    """From where to where in a segment a window's records can be; by its index, if it has one."""
    if index is None or not index.positions:
        return header_bytes, size
    start = max(
        header_bytes,
        index.position_of(window.offset_min),
        index.position_of_time(window.time_min_ms),
    )
    after = bisect_left(index.offsets, window.offset_max)
    if descriptor is not None and descriptor.time_ordered:
        # A point says the highest time before it: from there on all are at least that.
        after = min(after, bisect_left(index.times, window.time_max_ms))
    stop = index.positions[after] if after < len(index.positions) else size
    return start, max(start, stop)


def decode_span(
    name: str,
    fetch: Callable[[int, int], memoryview],
    position: int,
    stop: int,
    window: Window,
    keys: frozenset[bytes] | None = None,
    hidden: OffsetBits | None = None,
    bodies: Fetch | None = None,
    wanted: int = EVERY_COLUMN,
    share: tuple[int, int] = (0, 1),
) -> "Iterator[tuple[int, tuple[Column | None, ...]]]":
    """Rows and their columns between two positions of a segment; ``fetch`` gives its bytes, and
    ``bodies`` those of the body files it refers to. Columns whose bit is not set in ``wanted``
    (the first's is the lowest) are not made, and None. ``share``: which of how many.

    Both positions are beginnings of records, or the end.
    """

    def decoded(data: Buffer) -> "tuple[int, int, tuple[Column | None, ...]]":
        return decode_columns(
            data,
            window.offset_min,
            window.offset_max,
            window.time_min_ms,
            window.time_max_ms,
            ROWS_MAX,
            keys,
            hidden,
            wanted,
            *share,
        )

    length = CHUNK_BYTES
    while position < stop:
        chunk = fetch(position, min(length, stop - position))
        try:
            rows = 0
            if is_block(chunk):
                found = expand(chunk, CHUNK_BYTES)
                consumed = 0 if isinstance(found, int) else found.stored
                if not isinstance(found, int):
                    yield from _decoded_all(memoryview(found.batch), decoded, bodies)
            elif bodies is not None and is_reference(chunk):
                batch = _until_block(RecordBatch.scan, chunk)
                consumed = batch.size
                yield from _decoded_all(memoryview(batch), decoded, bodies)
            else:
                consumed, rows, columns = _until_block(decoded, chunk)
        except BadRecord as error:
            raise CorruptData(name, position + error.position, error.reason) from None
        if not consumed:
            if length >= stop - position:
                raise CorruptData(name, position, "the file ends within a record")
            length *= 4  # one record larger than a chunk, or a block of one
            continue
        length = CHUNK_BYTES
        position += consumed
        if rows:
            yield rows, columns


def _until_block(take: "Callable[[Buffer], T]", chunk: Buffer) -> "T":
    """What ``take`` makes of the plain records at the beginning of a chunk."""
    try:
        return take(chunk)
    except BadRecord as error:
        if not error.position or not is_block(chunk[error.position :]):
            raise
        return take(chunk[: error.position])


def _decoded_all(
    left: memoryview,
    decoded: "Callable[[Buffer], tuple[int, int, tuple[Column | None, ...]]]",
    bodies: Fetch | None,
) -> "Iterator[tuple[int, tuple[Column | None, ...]]]":
    """Of records that are all there, but for the bodies that some refer to."""
    while left:
        if bodies is not None and is_reference(left):
            for whole in resolve_all(RecordBatch.scan(left, verify=False), CHUNK_BYTES, bodies):
                yield from _decoded_all(memoryview(whole), decoded, None)
            return
        consumed, rows, columns = decoded(left)
        if not consumed:
            raise BadRecord(0, "the body of a record is in another file")
        left = left[consumed:]
        if rows:
            yield rows, columns


def _index(file: SegmentFile) -> SegmentIndex | None:
    if file.descriptor is None or not file.descriptor.sealed:
        return None
    path = file.path.with_suffix(segment.INDEX_SUFFIX)
    try:
        return segment.decode_index(file.descriptor, path.read_bytes())
    except FileNotFoundError:
        return None


def record_batch(rows: int, columns: "tuple[Column | None, ...]") -> pa.RecordBatch:
    """Arrow arrays over the kernel's buffers, without a copy."""
    arrays = [
        pa.Array.from_buffers(
            column.type, rows, [None if b is None else pa.py_buffer(b) for b in buffers]
        )
        for column, buffers in zip(COLUMNS, columns, strict=True)
        if buffers is not None
    ]
    assert len(arrays) == len(columns), "some columns were not asked for"
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)
