"""Plain-Python twins of the storage kernels, written from their byte diagrams.

Slow and obvious on purpose, and never by calling a kernel: a kernel is right when it agrees with
these on random input.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

# --- CRC32C ---

CRC32C_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def crc32c_bitwise(data: bytes, crc: int = 0) -> int:
    """The definition, one bit at a time."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CRC32C_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# The bitwise step is linear, so what it does to each value of the low byte can be looked up.
CRC32C_TABLE = [crc32c_bitwise(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)]


def crc32c(data: bytes, crc: int = 0) -> int:
    """The same a byte at a time, for oracles that check many records."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def aligned(size: int) -> int:
    return -(-size // 8) * 8


# --- records ---

RECORD_HEADER_AFTER_CRCS = struct.Struct("<BBBBBBHqqII")
RECORD_HEADER_BYTES = 40
RECORD_TIMING_BYTES = 16
RECORD_REFERENCE_BYTES = 16
CONTROL, COMMIT, TRANSACTIONAL, TIMED, KEYED, TOMBSTONE, TRANSIENT, SHARED = (
    1 << n for n in range(8)
)
DERIVED_FLAGS = (
    TIMED | KEYED | TOMBSTONE | SHARED
)  # follow from the fields; the caller cannot set them


class Message(NamedTuple):
    """What is given to ``RecordBatch.append``."""

    value: bytes | None
    key: bytes | None = None
    envelope: bytes = b""
    envelope_format: int = 0
    flags: int = 0
    priority: int = 0
    timestamp_ms: int = 0
    expires_at_ms: int = 0
    due_at_ms: int = 0

    @property
    def stored_flags(self) -> int:
        flags = self.flags & ~DERIVED_FLAGS
        flags |= KEYED if self.key is not None else 0
        flags |= TOMBSTONE if self.value is None else 0
        flags |= TIMED if self.expires_at_ms or self.due_at_ms else 0
        return flags

    @property
    def body(self) -> bytes:
        return (self.key or b"") + self.envelope + (self.value or b"")

    @property
    def header_bytes(self) -> int:
        return RECORD_HEADER_BYTES + (RECORD_TIMING_BYTES if self.stored_flags & TIMED else 0)

    def fields(self, offset: int) -> tuple[object, ...]:
        """The fields of the ``Record`` this is read back as."""
        return (
            offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.envelope,
            self.envelope_format,
            self.stored_flags,
            self.priority,
            self.expires_at_ms,
            self.due_at_ms,
            0,
        )


def encode_record(message: Message, offset: int) -> bytes:
    timing = b""
    if message.stored_flags & TIMED:
        timing = struct.pack("<qq", message.expires_at_ms, message.due_at_ms)
    covered = (
        struct.pack("<I", crc32c(message.body))
        + RECORD_HEADER_AFTER_CRCS.pack(
            0xB4,
            1,
            message.stored_flags,
            message.priority,
            message.envelope_format,
            0,
            len(message.key or b""),
            offset,
            message.timestamp_ms,
            len(message.envelope),
            len(message.value or b""),
        )
        + timing
    )
    record = struct.pack("<I", crc32c(covered)) + covered + message.body
    return record.ljust(aligned(len(record)), b"\0")


def encode_batch(messages: Iterable[Message]) -> bytes:
    """As in memory and in the journal: the offset field is the place in the batch."""
    return b"".join(encode_record(message, place) for place, message in enumerate(messages))


def encode_segment(rows: Iterable[tuple[int, Message]]) -> bytes:
    """As in a segment: each record has its own offset."""
    return b"".join(encode_record(message, offset) for offset, message in rows)


def scan_records(data: bytes) -> tuple[list[int], int, str]:
    """Where the whole, intact records at the beginning begin, where they end, and what is wrong
    with the one that follows: nothing where the data just ends."""
    starts: list[int] = []
    at = 0
    while len(data) - at >= RECORD_HEADER_BYTES:
        magic, version, flags, _, _, _, key, _, _, envelope, value = (
            RECORD_HEADER_AFTER_CRCS.unpack_from(data, at + 8)
        )
        if magic != 0xB4:
            return starts, at, "not the beginning of a record"
        if version not in (1, 2):
            return starts, at, f"record version {version}, this BraidMQ reads 2"
        header = RECORD_HEADER_BYTES + (RECORD_TIMING_BYTES if flags & TIMED else 0)
        header_crc, body_crc = struct.unpack_from("<II", data, at)
        if version == 2:
            if not flags & SHARED:
                return starts, at, "a reference that does not say so"
            end = at + header + RECORD_REFERENCE_BYTES
            reference = bytearray(data[at:end])
            if flags & TIMED and len(data) < end:
                del reference[RECORD_HEADER_BYTES + RECORD_REFERENCE_BYTES :]
                reference[10] &= ~TIMED
            is_whole = len(reference) >= RECORD_HEADER_BYTES + RECORD_REFERENCE_BYTES
            intact = is_whole and crc32c(bytes(reference[4:])) == header_crc
            if len(data) < end:
                return starts, at, "header checksum differs" if intact else ""
            if not intact:
                return starts, at, "header checksum differs"
            starts.append(at)
            at = end
            continue
        if len(data) - at < header:
            untimed = bytearray(data[at : at + RECORD_HEADER_BYTES])
            untimed[10] &= ~TIMED
            damaged = crc32c(bytes(untimed[4:])) == header_crc
            return starts, at, "header checksum differs" if damaged else ""
        if crc32c(data[at + 4 : at + header]) != header_crc:
            return starts, at, "header checksum differs"
        end = at + header + key + envelope + value
        if len(data) < at + aligned(end - at):
            break
        if crc32c(data[at + header : end]) != body_crc:
            return starts, at, "body checksum differs"
        starts.append(at)
        at += aligned(end - at)
    return starts, at, ""


SHARED_BYTES_MIN = 64


def encode_reference(message: Message, offset: int, file: int, position: int) -> bytes:
    """A record of a segment whose body stands in a body file."""
    record = bytearray(encode_record(message, offset)[: message.header_bytes])
    record[9] = 2
    record[10] |= SHARED
    record += struct.pack("<qq", file, position)
    record[:4] = struct.pack("<I", crc32c(bytes(record[4:])))
    return bytes(record)


def encode_sharing(
    partitions: Sequence[Sequence[tuple[int, Message]]], file: int, start: int
) -> tuple[list[bytes], bytes]:
    """The records of each partition's segment, and the body file that they refer to."""
    wanted_by: dict[bytes, set[int]] = {}
    for owner, rows in enumerate(partitions):
        for _, message in rows:
            wanted_by.setdefault(message.body, set()).add(owner)
    places: dict[bytes, int] = {}
    bodies, segments = b"", []
    for rows in partitions:
        segment = b""
        for offset, message in rows:
            body = message.body
            if len(body) < SHARED_BYTES_MIN or len(wanted_by[body]) < 2:
                segment += encode_record(message, offset)
                continue
            if body not in places:
                places[body] = start + len(bodies)
                bodies += body
            segment += encode_reference(message, offset, file, places[body])
        segments.append(segment)
    return segments, bodies


def boundaries(pieces: Iterable[bytes]) -> list[int]:
    """Where each piece begins once they are joined, and where the last one ends."""
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return ends


def select_rows(
    rows: Sequence[tuple[int, Message]],
    offsets: tuple[int, int],
    times: tuple[int, int],
    rows_max: int,
) -> tuple[int, list[tuple[int, Message]]]:
    """What ``decode_columns`` takes of whole records: how many it passed, and which it chose."""
    chosen: list[tuple[int, Message]] = []
    for passed, (offset, message) in enumerate(rows):
        if len(chosen) == rows_max:
            return passed, chosen
        if (
            offsets[0] <= offset < offsets[1]
            and times[0] <= message.timestamp_ms < times[1]
            and not message.flags & CONTROL
        ):
            chosen.append((offset, message))
    return len(rows), chosen


# --- sets of offsets ---


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as ``(first, after_last)`` pairs, in order."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def first_missing(members: set[int], at: int = 0) -> int:
    while at in members:
        at += 1
    return at


def varint(value: int) -> bytes:
    """Base 128, low digits first, the high bit set on all but the last."""
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def encode_offset_set(floor: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    out = varint(floor)
    position = floor
    for low, high in ranges:
        out += varint(low - position) + varint(high - low)
        position = high
    return out


# --- journal entries ---

ENTRY_AFTER_CRC = struct.Struct("<I2sBBIQQ")
ENTRY_HEADER_BYTES = 32
MARK = 1
ROLL = 10
MARK_BYTES = 40


def takes_lsn(kind: int, version: int = 2) -> bool:
    return version == 1 or kind not in (MARK, ROLL)


def encode_entry(
    kind: int, meta: bytes, payload: bytes, epoch: int, lsn: int, version: int = 2
) -> bytes:
    rest = meta.ljust(aligned(len(meta)), b"\0") + payload
    length = ENTRY_HEADER_BYTES + len(rest)
    covered = ENTRY_AFTER_CRC.pack(length, b"BJ", kind, version, len(meta), epoch, lsn) + rest
    return struct.pack("<I", crc32c(covered)) + covered


def encode_mark(durable: int, epoch: int, lsn: int, version: int = 2) -> bytes:
    return encode_entry(MARK, struct.pack("<Q", durable), b"", epoch, lsn, version)


def flip(data: bytes, bit: int) -> bytearray:
    """A copy with one bit turned over, counted from the low bit of the first byte."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return damaged
