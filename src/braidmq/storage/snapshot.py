"""Snapshots: the state of a node at one LSN, so that only what came after is replayed.

    snapshots/00000000000004d2.snapshot         the number is the LSN of the first entry after it
    byte  0            8         12         16         24             32       40       44
          ┌────────────┬─────────┬──────────┬──────────┬──────────────┬────────┬────────┬─────────
          │ "BRAIDSNP" │ version │ reserved │ next LSN │ first epoch  │ length │ CRC32C │ MsgPack…
          └────────────┴─────────┴──────────┴──────────┴──────────────┴────────┴────────┴─────────

Two are kept. When the newer can't be read, the older and the journal since then give the same
state, so journal files are kept from the older one's first epoch on.
"""

import struct

import msgspec

from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.record.crc32c import crc32c
from braidmq.storage.disk import Disk
from braidmq.storage.segment import Segment

DIRECTORY = "snapshots"
SUFFIX = ".snapshot"
UNFINISHED = ".snapshot.new"
MAGIC = b"BRAIDSNP"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQI")
KEPT = 2


class PartitionState(msgspec.Struct, array_like=True, frozen=True):
    partition: int
    start_offset: int
    next_offset: int
    flushed_offset: int
    segments: list[Segment]


class AcknowledgedState(msgspec.Struct, array_like=True, frozen=True):
    subscription: int
    partition: int
    offsets: bytes


class State(msgspec.Struct, array_like=True, frozen=True):
    """Everything but the records."""

    catalogue: bytes
    acknowledged: list[AcknowledgedState]
    partitions: list[PartitionState]
    sections: dict[str, bytes] = {}
    """What participants keep, by their names."""
    previous: int = 0
    """The number of the snapshot before it, which is kept until there is one after it; 0: none, or
    from a time when this was not noted."""
    terms: list[tuple[int, int]] = []
    """The terms of its leaders, and the LSN of the entry that each began with."""


class Snapshot(msgspec.Struct, frozen=True):
    next_lsn: int
    first_epoch: int
    state: State


def nothing() -> Snapshot:
    """What a store begins with: all that came later is in its journal."""
    return Snapshot(1, 1, State(msgspec.msgpack.encode({}), [], []))


def file_name(next_lsn: int) -> str:
    return f"{DIRECTORY}/{next_lsn:016x}{SUFFIX}"


def encode(snapshot: Snapshot) -> bytes:
    body = msgspec.msgpack.encode(snapshot.state)
    fields = struct.pack(
        "<8sIIQQQ", MAGIC, VERSION, 0, snapshot.next_lsn, snapshot.first_epoch, len(body)
    )
    return fields + struct.pack("<I", crc32c(body, crc32c(fields))) + body


def decode(path: str, data: bytes) -> Snapshot:
    if len(data) < HEADER.size:
        raise CorruptData(path, len(data), "the file ends within its header")
    magic, version, _, next_lsn, first_epoch, length, checksum = HEADER.unpack(data[: HEADER.size])
    body = data[HEADER.size :]
    if len(body) < length and magic == MAGIC:
        raise CorruptData(path, len(data), f"the file ends here, before byte {length}")
    # Before anything it says of itself: a flipped bit must not pass for a newer version.
    if len(body) != length or crc32c(body, crc32c(data[: HEADER.size - 4])) != checksum:
        raise CorruptData(path, 0, "the snapshot does not match its checksum")
    if magic != MAGIC or version > VERSION:
        raise ForeignFile(
            f"{path} has snapshot version {version}, this BraidMQ reads {VERSION}",
            remedy="It was written by a newer version of BraidMQ: use that version",
        )
    try:
        state = msgspec.msgpack.decode(body, type=State)
    except msgspec.DecodeError as error:
        raise CorruptData(path, HEADER.size, f"the snapshot can't be decoded: {error}") from None
    return Snapshot(next_lsn, first_epoch, state)


def write(disk: Disk, snapshot: Snapshot) -> None:
    """Durable under its name, or not there at all."""
    path = file_name(snapshot.next_lsn)
    unfinished = path.removesuffix(SUFFIX) + UNFINISHED
    file = disk.open(unfinished, create=True)
    try:
        file.write(encode(snapshot), 0)
        file.sync()
    finally:
        file.close()
    disk.rename(unfinished, path)
    disk.sync_directory(DIRECTORY)


def names(disk: Disk) -> list[str]:
    """Paths of the snapshots, newest first."""
    found = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(SUFFIX)]
    return sorted(found, reverse=True)


def load_newest(disk: Disk, unreadable: list[CorruptData]) -> Snapshot | None:
    """The newest that can be read; what is wrong with newer ones goes to ``unreadable``."""
    for path in names(disk):
        try:
            return load(disk, path)
        except CorruptData as error:
            unreadable.append(error)
    return None


def load(disk: Disk, path: str) -> Snapshot:
    file = disk.open(path)
    try:
        data = file.read(file.size(), 0)
    except OSError as error:
        raise CorruptData(path, 0, f"it can't be read: {error}") from error
    finally:
        file.close()
    return decode(path, data)


def oldest_epoch(disk: Disk, first_epoch: int) -> int:
    """The first journal epoch that any snapshot needs; ``first_epoch`` is that of the one used."""
    epochs = [first_epoch]
    for path in names(disk):
        file = disk.open(path)
        try:
            header = file.read(HEADER.size, 0)
        finally:
            file.close()
        if len(header) == HEADER.size:
            epochs.append(HEADER.unpack(header)[4])
    return min(epochs)


def remove_old(disk: Disk, keep: int = KEPT) -> None:
    for path in names(disk)[keep:]:
        disk.remove(path)


def unfinished(disk: Disk) -> list[str]:
    """Paths of snapshots that were being written."""
    return [f"{DIRECTORY}/{each}" for each in disk.list(DIRECTORY) if each.endswith(UNFINISHED)]
