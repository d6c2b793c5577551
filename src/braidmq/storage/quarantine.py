"""Damage in one partition's files: what it is, what of them is intact, and what may be skipped.

A partition whose files are damaged is quarantined (ADR 0017): nobody reads or writes it, and none
of its files is changed or removed, until an operator has restored them, has the damage skipped, or
deletes its topic.
"""

from collections.abc import Iterator, Sequence

import msgspec

from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.model.limits import KIB
from braidmq.record.batch import RecordBatch
from braidmq.storage.bodies import Fetch, fetch_from, resolve
from braidmq.storage.disk import Disk, File
from braidmq.storage.segment import (
    DIRECTORY,
    NAME,
    SCAN_BYTES,
    SUFFIX,
    OpenFiles,
    Scanned,
    Segment,
    SegmentIndex,
    note_scanned,
    read_header,
    scan_records,
    segment_header,
    segment_name,
)

QUARANTINE = "quarantine"
"""The catalogue's table of quarantined partitions: number → ``Damage``."""

SHIFT = 8
"""Records are multiples of so many bytes: behind damage the next one stands at one of them."""
RECORD_MAGIC = b"\xb4"
MAGIC_AT = 8
LOOK_BYTES = 256 * KIB
OFFSET_MAX = (1 << 63) - 1


class Damage(msgspec.Struct, frozen=True):
    """The first place where a partition's files are not as they were written."""

    file: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} is damaged at byte {self.position}: {self.reason}"


def damage_of(error: CorruptData | ForeignFile, file: str) -> Damage:
    """``file`` is what was read: of one that is not ours any more nothing else is known."""
    if isinstance(error, CorruptData):
        return Damage(error.file, error.position, error.reason)
    return Damage(file, 0, str(error.args[0]))


def encode_damage(damage: Damage) -> bytes:
    return msgspec.msgpack.encode(damage)


def decode_damage(data: bytes) -> Damage:
    return msgspec.msgpack.decode(data, type=Damage)


class Piece(msgspec.Struct, frozen=True):
    """Bytes ``start`` … ``stop - 1`` of a segment: intact records, or none."""

    start: int
    stop: int
    batch: RecordBatch | None
    damage: Damage | None = None
    """Of the first byte of a piece without records."""


def check(disk: Disk, segments: Sequence[Segment], label: str) -> Damage | None:
    """Read all records of some segments with their bodies; the first damage, if there is any."""
    files = OpenFiles(disk)
    try:
        for each in segments:
            for piece in pieces_of(files, each, label):
                if piece.damage is not None:
                    return piece.damage
    finally:
        files.close()
    return None


def pieces_of(files: OpenFiles, segment: Segment, label: str) -> Iterator[Piece]:
    """All bytes of a segment that count, in order."""
    try:
        file = files.get(segment.path)
        size = file.size()
    except FileNotFoundError:
        yield Piece(0, segment.size, None, Damage(segment.path, 0, "the segment is missing"))
        return
    # As it was written, whatever it says now.
    at = len(segment_header(segment.partition, segment.base_offset, label))
    problem = _header_damage(file, segment)
    if problem is not None:
        yield Piece(0, min(at, size), None, problem)
    fetch = fetch_from(files)
    end, following = min(size, segment.size), segment.base_offset
    while at < end:
        found, problem = _records_at(file, at, end, following, segment)
        if found is None:
            stop = _next_record(file, at + SHIFT, end, following, segment)
            yield Piece(at, stop, None, problem)
            at = stop
            continue
        yield from _with_bodies(found, at, fetch)
        at += found.stored
        following = found.batch.next_offset
    if size < segment.size:
        reason = f"the file ends here, before byte {segment.size}"
        yield Piece(size, segment.size, None, Damage(segment.path, size, reason))


def describe_all(disk: Disk) -> Iterator[tuple[str, Segment, Damage | None]]:
    """Label, extent and first damage of all segments that are there, by partition and offset: of
    each the newest generation. Raises CorruptData or ForeignFile where a header can't be read."""
    newest: dict[tuple[int, int], int] = {}
    for name in disk.list(DIRECTORY):
        parts = NAME.fullmatch(name)
        if parts is not None and name.endswith(SUFFIX):
            key = int(parts[1], 16), int(parts[2])
            newest[key] = max(newest.get(key, 0), int(parts[3] or "0", 16))
    for (partition, base_offset), generation in sorted(newest.items()):
        file = disk.open(segment_name(partition, base_offset, generation))
        try:
            label, size = read_header(file).label, file.size()
        finally:
            file.close()
        if label:  # others are of partitions that ended with the process
            named = Segment(partition, base_offset, OFFSET_MAX, size, 0, 0, True)
            named.generation = generation
            yield label, *_describe(disk, named, label)


def _describe(disk: Disk, named: Segment, label: str) -> tuple[Segment, Damage | None]:
    """A segment of which only the name and the size of the file are known: how far its records go,
    and the first damage before the last of them. What follows that was never finished."""
    found = Segment(named.partition, named.base_offset, named.base_offset, 0, 0, 0, True)
    found.generation = named.generation
    damage = waiting = None
    files, index = OpenFiles(disk), SegmentIndex()
    try:
        for piece in pieces_of(files, named, label):
            if piece.batch is None:
                waiting = waiting or piece.damage
                continue
            damage = damage or waiting
            stored = min(piece.stop - piece.start, piece.batch.size)
            note_scanned(found, index, Scanned(piece.batch, stored), SCAN_BYTES)
            found.size = piece.stop
    finally:
        files.close()
    found.size = found.size or len(segment_header(named.partition, named.base_offset, label))
    return found, damage


def _header_damage(file: File, segment: Segment) -> Damage | None:
    try:
        header = read_header(file)
    except (CorruptData, ForeignFile) as error:
        return damage_of(error, segment.path)
    if (header.partition, header.base_offset) != (segment.partition, segment.base_offset):
        return Damage(segment.path, 0, "the header is that of another segment")
    return None


def _records_at(
    file: File, at: int, end: int, following: int, segment: Segment, length: int = SCAN_BYTES
) -> tuple[Scanned | None, Damage | None]:
    """Intact records from ``at`` on whose offsets go on from ``following``."""
    try:
        found = scan_records(file, at, length, end)
    except CorruptData as error:
        return None, damage_of(error, segment.path)
    if found is None:
        return None, Damage(segment.path, at, "the file ends within a record")
    batch = found.batch
    if batch.base_offset < following or batch.next_offset > segment.end_offset:
        # Whole and intact, but not at its place: a block of this or of another file.
        return None, Damage(segment.path, at, f"offset {batch.base_offset} does not belong here")
    return found, None


def _next_record(file: File, at: int, end: int, following: int, segment: Segment) -> int:
    """Where intact records go on behind damage; ``end`` if they don't."""
    first = at
    while at < end:
        try:
            data = file.read(LOOK_BYTES, at)
        except OSError:
            data = b""
        found = data.find(RECORD_MAGIC)
        while found >= 0:
            here = at + found - MAGIC_AT
            if (
                here >= first
                and not (here - first) % SHIFT
                and _records_at(file, here, end, following, segment, KIB)[0] is not None
            ):
                return here
            found = data.find(RECORD_MAGIC, found + 1)
        at += LOOK_BYTES
    return end


def _with_bodies(found: Scanned, at: int, fetch: Fetch) -> Iterator[Piece]:
    """The pieces of what was read whose records refer to intact bodies, and those whose don't. Of
    records in blocks only the blocks have a place in the file."""
    batch = found.batch
    if not batch.shared_bytes:
        yield Piece(at, at + found.stored, batch)
        return
    first = 0
    data = memoryview(batch)
    while first < batch.count:
        begin = batch.position_at(first)
        try:
            stop = first + resolve(batch, first, SCAN_BYTES, fetch).count
            problem = None
        except (CorruptData, ForeignFile) as error:
            stop, problem = first + 1, damage_of(error, "a body file")
        end = batch.position_at(stop) if stop < batch.count else batch.size
        part = RecordBatch.scan(data[begin:end], verify=False) if problem is None else None
        where = (at, at + found.stored) if found.starts else (at + begin, at + end)
        yield Piece(*where, part, problem)
        first = stop


class Skipped(msgspec.Struct, frozen=True):
    """What was left out of a segment that was written anew around its damage."""

    file: str
    aside: str
    """Where it is now; empty when it was missing."""
    ranges: list[tuple[int, int]]
    """Bytes of it that were passed over."""
    records: int
    """How many of its records are lost with them."""
