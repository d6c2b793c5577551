"""Compressed blocks: records of a segment, packed together by zstd.

    byte  0         4         8     9       10    11       12       16             24
          ┌─────────┬─────────┬─────┬───────┬─────┬────────┬────────┬──────────────┬──────────────┐
          │ header  │ frame   │magic│version│ 0   │ codec  │records │ first offset │ highest      │
          │ CRC32C  │ CRC32C  │ B4  │ 3     │     │ 1      │        │              │ timestamp    │
          ├─────────┼─────────┼─────┴───────┴─────┴────────┼────────┴──────┬───────┴──────────────┘
       32 │ bytes   │ frame   │ next offset                │ zstd frame    │ zeros to a multiple
          │ expanded│ bytes   │                            │               │ of 8
          └─────────┴─────────┴────────────────────────────┴───────────────┘

A block stands where its records would, begins as a record does and is a record to whoever looks for
the next one behind damage. Expanded it is what the segment would hold without it, references to
body files included. A segment may have blocks and plain records in any order, so that the setting
may change at any time and nobody who reads has to know it.

The header's CRC covers bytes 4 to 47. How long the records are is believed only with that, within
limits, and if the frame says the same: no block, damaged or forged, takes more memory than it may.
"""

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from braidmq.model.limits import KIB, MIB
from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.record.buffer import Buffer
from braidmq.record.crc32c import crc32c

MAGIC = 0xB4
VERSION = 3
ZSTD = 1
HEADER = struct.Struct("<IIBBBBIqqIIq")
ALIGNMENT = 8
LEVEL = 3
"""zstd's own default: what it packs tighter above costs a checkpoint more than a disk saves."""
BLOCK_BYTES_MAX = 64 * KIB
"""Of records in a block, unless it is one alone. Whoever wants one record expands them all."""
OFFSET_MAX = (1 << 63) - 1
RECORD_BYTES_MAX = 16 * MIB
"""A longer record is stored as it is: what is expanded has to be in memory at once."""


class BlockHeader(NamedTuple):
    records: int
    first_offset: int
    max_timestamp_ms: int
    expanded: int
    """Bytes of its records."""
    frame: int
    frame_crc: int
    next_offset: int

    @property
    def stored(self) -> int:
        """Bytes that the block takes."""
        return _aligned(HEADER.size + self.frame)


class Start(NamedTuple):
    """Where a block stands, counted from the first of some, and what an index says of it."""

    position: int
    first_offset: int
    max_timestamp_ms: int


class Expanded(NamedTuple):
    """Records of consecutive blocks."""

    batch: RecordBatch
    stored: int
    starts: list[Start]


class _Decompressors(threading.local):
    """One for each thread: they keep a window each, and can't be shared."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_decompressors = _Decompressors()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def is_block(data: Buffer) -> bool:
    """Whether a block begins here, damaged or not."""
    return len(data) > 9 and data[8] == MAGIC and data[9] == VERSION


# --- writing ---


def pack(data: bytes) -> Iterator[tuple[bytes, RecordBatch]]:
    """Records as a segment stores them, cut into blocks; where that saves nothing they stay as they
    are. Each piece comes with its records."""
    batch = RecordBatch.scan(data, verify=False)
    assert batch.size == len(data)
    packer = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False)
    first = 0
    while first < batch.count:
        begin = batch.position_at(first)
        ends = range(batch.count + 1)
        behind = bisect_right(ends, begin + BLOCK_BYTES_MAX, lo=first + 1, key=batch.position_at)
        stop = max(behind - 1, first + 1)
        piece = data[begin : batch.position_at(stop)]
        part = RecordBatch.scan(piece, verify=False)
        yield (_pack(packer, piece, part) or piece), part
        first = stop


def _pack(packer: zstandard.ZstdCompressor, piece: bytes, part: RecordBatch) -> bytes | None:
    if len(piece) > RECORD_BYTES_MAX:
        return None
    frame = packer.compress(piece)
    size = _aligned(HEADER.size + len(frame))
    if size >= len(piece):
        return None
    fields = HEADER.pack(
        0,
        crc32c(frame),
        MAGIC,
        VERSION,
        0,
        ZSTD,
        part.count,
        part.base_offset,
        part.max_timestamp_ms,
        len(piece),
        len(frame),
        part.next_offset,
    )
    checksum = struct.pack("<I", crc32c(fields[4:]))
    return (checksum + fields[4:] + frame).ljust(size, b"\0")


# --- reading ---


def block_header(data: Buffer, at: int = 0) -> BlockHeader | None:
    """None when ``data`` ends within it. Raises BadRecord where it is damaged."""
    if len(data) - at < HEADER.size:
        return None
    fields = bytes(data[at : at + HEADER.size])
    (crc, frame_crc, _, _, _, codec, records, first, latest, expanded, frame, following) = (
        HEADER.unpack(fields)
    )
    if crc != crc32c(fields[4:]):
        raise BadRecord(at, "block header checksum differs")
    if codec != ZSTD:
        raise BadRecord(at, f"a block of codec {codec}, this BraidMQ reads {ZSTD}")
    if not records or expanded > (BLOCK_BYTES_MAX if records > 1 else RECORD_BYTES_MAX):
        raise BadRecord(at, f"a block of {records} records can't have {expanded} bytes")
    return BlockHeader(records, first, latest, expanded, frame, frame_crc, following)


def expand(data: Buffer, bytes_max: int, stop: int = OFFSET_MAX) -> Expanded | int:
    """The records of the blocks at the beginning of ``data``: about ``bytes_max`` bytes of them and
    none that begins at the offset ``stop`` or behind it, but at least one block. A damaged one
    behind the first ends them; BadRecord when it is the first. Where not even the first is whole,
    how many bytes it takes."""
    batches: list[RecordBatch] = []
    starts: list[Start] = []
    at = expanded = 0
    needed = HEADER.size
    while expanded < bytes_max and is_block(memoryview(data)[at : at + HEADER.size]):
        try:
            header = block_header(data, at)
            if header is None:
                break
            needed = header.stored
            if len(data) - at < needed or (batches and header.first_offset >= stop):
                break
            batch = _expand(data, at, header)
        except BadRecord:
            if not batches:
                raise
            break
        batches.append(batch)
        starts.append(Start(at, header.first_offset, header.max_timestamp_ms))
        expanded += batch.size
        at += needed
    if not batches:
        return needed
    if len(batches) > 1:
        whole = b"".join([memoryview(each) for each in batches])
        return Expanded(RecordBatch.scan(whole, verify=False), at, starts)
    return Expanded(batches[0], at, starts)


def _expand(data: Buffer, at: int, header: BlockHeader) -> RecordBatch:
    frame = memoryview(data)[at + HEADER.size : at + HEADER.size + header.frame]
    if crc32c(frame) != header.frame_crc:
        raise BadRecord(at, "block checksum differs")
    try:
        said = zstandard.get_frame_parameters(frame).content_size
        if said != header.expanded:
            raise BadRecord(at, f"a block of {header.expanded} bytes whose frame says {said}")
        piece = _decompressors.zstd.decompress(frame, max_output_size=header.expanded)
    except zstandard.ZstdError as error:
        raise BadRecord(at, f"a block that can't be expanded: {error}") from None
    try:
        batch = RecordBatch.scan(piece)
    except BadRecord as error:
        raise BadRecord(at, f"byte {error.position} of a block: {error.reason}") from None
    found = (batch.size, batch.count, batch.base_offset, batch.next_offset)
    if found != (header.expanded, header.records, header.first_offset, header.next_offset):
        raise BadRecord(at, "a block that is not of the records it says")
    return batch
