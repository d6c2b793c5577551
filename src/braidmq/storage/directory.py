"""The data directory: who may use it, and what may be in it.

    FORMAT              JSON: {"product": "braidmq", "format": 2, "id": "…"}
    LOCK                held by the one node that uses it; its pid
    journal/            0000000000000007.journal        (+ .journal.new while one is made)
    snapshots/          00000000000004d2.snapshot       (+ .snapshot.new)
    segments/           0000002a-00000000000000001000.segment, .index, .keys
                        00000000000004d2.bodies
    aside/              what the state does not know any more, in directories as above

Anything else is somebody else's: the node refuses to start and leaves it as it is.
"""

import re
import secrets

import msgspec

from braidmq.model.errors import ForeignFile
from braidmq.storage import aside, journal, segment, snapshot
from braidmq.storage.disk import DirectoryLock, Disk

FORMAT_FILE = "FORMAT"
LOCK_FILE = "LOCK"
FORMAT = 2
"""What an older one holds is read, and goes on in this format (``carry_over``)."""

AUDIT_DIRECTORY = "audit"
"""Of the audit log, which is no storage of messages."""


KNOWN = {
    AUDIT_DIRECTORY,
    FORMAT_FILE,
    LOCK_FILE,
    journal.DIRECTORY,
    snapshot.DIRECTORY,
    segment.DIRECTORY,
    aside.DIRECTORY,
}
ID_BYTES = 16
FORMAT_REMEDY = (
    "Give the node a directory of its own with --data-dir. If it is BraidMQ's and only this file is"
    " damaged, delete the file: it is made again"
)
FORMAT_UNFINISHED = "FORMAT.new"
IGNORED = {"lost+found", FORMAT_UNFINISHED}  # the first belongs to the file system

JOURNAL_NAME = re.compile(r"[0-9a-f]{16}\.journal(\.new)?")
SNAPSHOT_NAME = re.compile(r"[0-9a-f]{16}\.snapshot(\.new)?")


class FormatFile(msgspec.Struct):
    product: str
    format: int
    id: str = ""
    """Drawn with the directory: one that was wiped is another, whatever the node is called."""


def claim(disk: Disk) -> DirectoryLock:
    """Lock the directory and check that it is ours; an empty one becomes ours."""
    disk.make_directory("")
    _refuse_foreign(disk)
    lock = disk.lock(LOCK_FILE)
    try:
        if disk.exists(FORMAT_FILE):
            _read_format(disk)
        else:
            _write_format(disk)
        for directory in (journal.DIRECTORY, snapshot.DIRECTORY, segment.DIRECTORY):
            disk.make_directory(directory)
        disk.sync_directory("")
        _refuse_foreign_files(disk)
    except BaseException:
        lock.release()
        raise
    return lock


def _refuse_foreign(disk: Disk) -> None:
    names = set(disk.list("")) - IGNORED
    strangers = sorted(names - KNOWN)
    if strangers:
        what = "holds a file that is not BraidMQ's" if FORMAT_FILE in names else "is not empty"
        raise ForeignFile(
            f"the data directory {what}: {strangers[0]}",
            remedy="Give the node a directory of its own with --data-dir, or move that file away",
        )


def _refuse_foreign_files(disk: Disk) -> None:
    for name in disk.list(journal.DIRECTORY):
        _expect(JOURNAL_NAME.fullmatch(name), f"{journal.DIRECTORY}/{name}")
    for name in disk.list(snapshot.DIRECTORY):
        _expect(SNAPSHOT_NAME.fullmatch(name), f"{snapshot.DIRECTORY}/{name}")
    for name in disk.list(segment.DIRECTORY):
        _expect(segment.is_ours(name), f"{segment.DIRECTORY}/{name}")


def _expect(ours: object, path: str) -> None:
    if not ours:
        raise ForeignFile(
            f"{path} is not a file that BraidMQ made", remedy="Move it out of the data directory"
        )


def carry_over(disk: Disk) -> None:
    """All that an older BraidMQ left has been read, and what follows it can't read: it says so."""
    if _read_format(disk).format < FORMAT:
        _write_format(disk)
        disk.sync_directory("")


def identity(disk: Disk) -> bytes:
    """Of a directory that was claimed, and is in this format."""
    return bytes.fromhex(_read_format(disk).id)


def _read_format(disk: Disk) -> FormatFile:
    file = disk.open(FORMAT_FILE)
    try:
        found = msgspec.json.decode(file.read(file.size(), 0), type=FormatFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ForeignFile(f"{FORMAT_FILE} can't be read: {error}", remedy=FORMAT_REMEDY) from None
    finally:
        file.close()
    if found.product != "braidmq":
        raise ForeignFile(
            f"{FORMAT_FILE} says that the data directory belongs to {found.product!r}",
            remedy=FORMAT_REMEDY,
        )
    if found.format > FORMAT:
        raise ForeignFile(
            f"{FORMAT_FILE} says format {found.format}, this BraidMQ reads {FORMAT}",
            remedy="It was written by a newer version of BraidMQ: use that version",
        )
    return found


def _write_format(disk: Disk) -> None:
    if disk.exists(FORMAT_UNFINISHED):
        disk.remove(FORMAT_UNFINISHED)
    file = disk.open(FORMAT_UNFINISHED, create=True)
    try:
        file.write(
            msgspec.json.encode(FormatFile("braidmq", FORMAT, secrets.token_hex(ID_BYTES))), 0
        )
        file.sync()
    finally:
        file.close()
    disk.rename(FORMAT_UNFINISHED, FORMAT_FILE)
