"""Which keys a sealed segment may hold, in a file beside it: who looks for some reads few segments.

    …-00000000000000001000.keys             beside each sealed segment that has keys
          ┌────────────┬─────────┬────────┬───────────────┬────────┬─────────┬────────┐
          │ "BRAIDKEY" │ version │ blocks │ segment bytes │  end   │ records │ CRC32C │
          └────────────┴─────────┴────────┴───────────────┴────────┴─────────┴────────┘
          then the `blocks` of the filter, as key_filter has them

It is only a shortcut: a segment without one, or with one that does not match it, is read.
"""

import struct

from braidmq.model.errors import CorruptData
from braidmq.record.batch import FLAG_KEYED
from braidmq.record.buffer import Buffer
from braidmq.record.crc32c import crc32c
from braidmq.storage.bodies import Fetch, resolve_all
from braidmq.storage.disk import File
from braidmq.storage.key_filter import BLOCK_BYTES, KeyFilter
from braidmq.storage.segment import SCAN_BYTES, Segment, read_header, scan_records

MAGIC = b"BRAIDKEY"
VERSION = 1
HEADER = struct.Struct("<8sIIQqq")
CHECKSUM = struct.Struct("<I")
START = HEADER.size + CHECKSUM.size


def has_keys(segment: Segment) -> bool:
    return bool(segment.summary & FLAG_KEYED)


def scan_keys(file: File, segment: Segment, fetch: Fetch) -> bytes:
    """The filter of all keys of a segment, whose records are read again: raises CorruptData or
    ForeignFile where they can't be."""
    found = KeyFilter(segment.records)
    position = read_header(file).length
    while position < segment.size:
        scanned = scan_records(file, position, SCAN_BYTES, segment.size)
        if scanned is None:
            raise CorruptData(file.path, position, "the file ends within a record")
        batch = scanned.batch
        pieces = resolve_all(batch, SCAN_BYTES, fetch) if batch.shared_bytes else (batch,)
        for piece in pieces:
            found.add(piece)
        position += scanned.stored
    return found.folded()


def encode_keys(segment: Segment, blocks: bytes) -> bytes:
    fields = HEADER.pack(
        MAGIC,
        VERSION,
        len(blocks) // BLOCK_BYTES,
        segment.size,
        segment.end_offset,
        segment.records,
    )
    return fields + CHECKSUM.pack(crc32c(blocks, crc32c(fields))) + blocks


def decode_keys(segment: Segment, data: Buffer) -> memoryview | None:
    """The filter in ``data``, or None when it is not this segment's, whole and intact."""
    view = memoryview(data)
    if len(view) < START or view[:8] != MAGIC:
        return None
    fields, blocks = view[: HEADER.size], view[START:]
    _, version, count, size, end_offset, records = HEADER.unpack(fields)
    if version != VERSION or not count or len(blocks) != count * BLOCK_BYTES:
        return None
    if (size, end_offset, records) != (segment.size, segment.end_offset, segment.records):
        return None
    (checksum,) = CHECKSUM.unpack(view[HEADER.size : START])
    return blocks if checksum == crc32c(blocks, crc32c(fields)) else None
