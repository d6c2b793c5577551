"""Body files: bodies of one checkpoint that several partitions want, each once.

    segments/00000000000004d2.bodies        the number is that of the snapshot that names it first
    byte  0            8         12         16       24       28
          ┌────────────┬─────────┬──────────┬────────┬────────┬────────────────────
          │ "BRAIDBDY" │ version │ reserved │ number │ CRC32C │ bodies, end to end
          └────────────┴─────────┴──────────┴────────┴────────┴────────────────────

A body is key, envelope and value as a record has them, without length or checksum of its own: those
are in every record that refers to it (``record``). A file is written by one checkpoint and never
again. It goes when no segment refers to it any more, together with the last that did.
"""

import struct
from collections.abc import Callable, Iterator, Sequence

from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.record.batch import RecordBatch
from braidmq.record.buffer import Buffer
from braidmq.record.crc32c import crc32c
from braidmq.storage.disk import Disk, File
from braidmq.storage.segment import OpenFiles, Segment, bodies_path
from braidmq.storage.shared_body import BadBody, References

MAGIC = b"BRAIDBDY"
VERSION = 1
HEADER = struct.Struct("<8sIIQ")
CHECKSUM = struct.Struct("<I")
START = HEADER.size + CHECKSUM.size

Fetch = Callable[[int, int, int], Buffer]
"""Bytes of a body file: its number, a position, a length; fewer where it ends."""


def encode_header(number: int) -> bytes:
    fields = HEADER.pack(MAGIC, VERSION, 0, number)
    return fields + CHECKSUM.pack(crc32c(fields))


def check_header(path: str, start: Buffer, number: int) -> None:
    """Raises ForeignFile or CorruptData unless ``start`` begins the body file with this number."""
    if len(start) < START or start[:8] != MAGIC:
        raise ForeignFile(f"{path} is not a body file", remedy="Move it out of the data directory")
    _, version, _, found = HEADER.unpack(start[: HEADER.size])
    if version > VERSION:
        raise ForeignFile(
            f"{path} has body file version {version}, this BraidMQ reads {VERSION}",
            remedy="It was written by a newer version of BraidMQ: use that version",
        )
    checksum = CHECKSUM.unpack(start[HEADER.size : START])[0]
    if checksum != crc32c(start[: HEADER.size]) or found != number:
        raise CorruptData(path, 0, "the header of the body file does not match its checksum")


def fetch_from(files: OpenFiles) -> Fetch:
    """From the disk of a store."""

    def fetch(number: int, position: int, length: int) -> bytes:
        file = _open(files, number)
        try:
            return file.read(length, position)
        except OSError as error:
            raise CorruptData(file.path, position, f"it can't be read: {error}") from error

    return fetch


def _open(files: OpenFiles, number: int) -> File:
    path = bodies_path(number)
    known = files.has(path)
    try:
        file = files.get(path)
    except FileNotFoundError:
        raise CorruptData(path, 0, "the body file is missing") from None
    if not known:
        try:
            check_header(path, file.read(START, 0), number)
        except ForeignFile as error:
            raise CorruptData(path, 0, str(error.args[0])) from None
    return file


def resolve(batch: RecordBatch, first: int, bytes_max: int, fetch: Fetch) -> RecordBatch:
    """The records of a segment from ``first`` on with their bodies: about ``bytes_max`` in all, but
    at least one. Where a body is damaged they end before it; CorruptData when it is the first."""
    references = References(batch, first, bytes_max)
    pieces = [fetch(number, at, stop - at) for number, at, stop in references.ranges]
    try:
        return references.resolved(pieces)
    except BadBody as error:
        raise CorruptData(bodies_path(error.file), error.position, error.reason) from None


def resolve_all(batch: RecordBatch, bytes_max: int, fetch: Fetch) -> Iterator[RecordBatch]:
    """All records of a batch in pieces of about ``bytes_max``."""
    at = 0
    while at < batch.count:
        piece = resolve(batch, at, bytes_max, fetch)
        yield piece
        at += piece.count


class BodyFiles:
    """The body files that a store has: ``sizes`` in bytes, by their numbers."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def find(self, disk: Disk, segments: Sequence[Segment], present: set[str]) -> set[int]:
        """Take the names of the files that segments refer to out of ``present``; returns the
        numbers of those that are missing."""
        missing = set()
        for number in _referenced(segments):
            path = bodies_path(number)
            name = path.rpartition("/")[2]
            if name in present:
                present.discard(name)
                self.sizes[number] = disk.size(path)
            else:
                missing.add(number)
        return missing

    def unwanted(self, segments: Sequence[Segment]) -> list[int]:
        """Those that none of the segments refers to."""
        referenced = _referenced(segments)
        return [number for number in self.sizes if number not in referenced]

    def new_number(self, next_lsn: int) -> int:
        """The snapshot's, which no other had; but who lost the journal and all snapshots begins to
        count anew."""
        while next_lsn in self.sizes:
            next_lsn += 1
        return next_lsn

    def change(self, number: int, size: int, gone: Sequence[int]) -> None:
        """A checkpoint has written a file, unless ``size`` is 0, and removed others."""
        if size:
            self.sizes[number] = size
        for each in gone:
            self.sizes.pop(each, None)


def _referenced(segments: Sequence[Segment]) -> set[int]:
    return {number for each in segments for number in each.bodies}


def bytes_to_scan(segment: Segment, bytes_max: int) -> int:
    """How much of a segment makes about ``bytes_max`` with the bodies: references are short, and
    what is not resolved now would be verified again for the next read."""
    return bytes_max * segment.size // segment.whole_size
