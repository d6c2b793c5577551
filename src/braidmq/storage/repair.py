"""Going on without what the journal can't read any more: for an operator who has no backup.

A node refuses to start when an entry that was durable can't be read, because what it said may be
anything: messages, acknowledgements, a topic. Here the first such place is filled with entries that
say nothing, under the numbers of those that are lost, so that everything behind it is read again.
The damaged file is set aside as it is; nothing is deleted.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from secrets import randbits
from typing import NamedTuple

import msgspec

from braidmq.model.errors import CorruptData
from braidmq.storage import aside, directory, journal, snapshot
from braidmq.storage.disk import Disk
from braidmq.storage.journal import ENTRIES_START, Kind, file_header, file_name
from braidmq.storage.journal_entry import (
    ENTRY_HEADER_SIZE,
    MARK_SIZE,
    EntryBuffer,
    first_lsn,
    inspect_tail,
    scan_entries,
)

SALT_AT = 16
"""Where an entry has the number drawn for this use of its file."""


class Dropped(msgspec.Struct, frozen=True):
    """What a journal goes on without."""

    file: str
    aside: str
    """Where the damaged file is now; empty when it was missing."""
    reason: str
    start: int
    stop: int
    """Bytes ``start`` … ``stop - 1`` of it are not read."""
    first_lsn: int
    last_lsn: int
    """The numbers of the entries that stood there; none when the last is below the first."""


def skip_damaged_entry(disk: Disk) -> Dropped | None:
    """Fill the first place that recovery can't read; None when there is none. One at a time: what
    is lost is to be seen, and decided on, each for itself."""
    lock = directory.claim(disk)
    try:
        return _Repair(disk).run()
    finally:
        lock.release()


class _Read(NamedTuple):
    """A file, and where what can be read of it ends."""

    epoch: int
    salt: int
    view: memoryview
    position: int


class _Repair:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        found = snapshot.load_newest(disk, [])
        epochs = journal.journal_epochs(disk)
        self._first_epoch = found.first_epoch if found is not None else min(epochs, default=1)
        self._epochs = [epoch for epoch in epochs if epoch >= self._first_epoch]
        self._next_lsn = found.next_lsn if found is not None else self._first_after(0) or 1

    def run(self) -> Dropped | None:
        """Go through the files as recovery does."""
        expected, following = self._next_lsn, self._first_epoch
        before: _Read | None = None
        for epoch in self._epochs:
            if following and epoch > following:
                return self._make_missing(following, expected)
            path = file_name(epoch)
            view = self._map(path)
            try:
                salt = journal.check_file_header(path, view, epoch)
            except CorruptData as error:
                return self._mend_header(epoch, view, error)
            lsn = first_lsn(view, ENTRIES_START, salt)
            if lsn > expected and before is not None:
                return self._fill(before, expected, lsn)
            position, expected, following = _read(view, salt, expected)
            before = _Read(epoch, salt, view, position)
            was_durable, torn_bytes = inspect_tail(view, position, salt, expected)
            if was_durable or (torn_bytes and self._is_begun_after(epoch)):
                return self._fill(before, expected, self._first_after(epoch))
        if following:
            return self._make_missing(following, expected)
        return None

    def _map(self, path: str) -> memoryview:
        file = self._disk.open(path)
        try:
            return memoryview(file.read(file.size(), 0))
        finally:
            file.close()

    def _later(self, epoch: int) -> Iterator[tuple[memoryview, int]]:
        """The files after this one that were written to, and their salts."""
        for later in [each for each in self._epochs if each > epoch]:
            view = self._map(file_name(later))
            with suppress(CorruptData):
                salt = journal.check_file_header(file_name(later), view, later)
                if inspect_tail(view, ENTRIES_START, salt, 0)[1]:
                    yield view, salt

    def _is_begun_after(self, epoch: int) -> bool:
        """Whether a later file was written to: then this one was on disk to its end."""
        return next(self._later(epoch), None) is not None

    def _first_after(self, epoch: int) -> int:
        """The number of the first entry in the file after this one; 0 when there is none, or it
        can't be read."""
        for view, salt in self._later(epoch):
            return first_lsn(view, ENTRIES_START, salt)
        return 0

    def _fill(self, damaged: "_Read", expected: int, lost_to: int) -> Dropped:
        epoch, salt, view, position = damaged
        stop, lsn = position + 8, 0
        while stop + ENTRY_HEADER_SIZE <= len(view):
            if (lsn := first_lsn(view, stop, salt)) >= expected:
                break
            stop += 8
        if lsn >= expected:
            filler = _filler(salt, position, expected, lsn, stop - position)
            data = bytes(view[:position]) + filler + bytes(view[stop:])
        else:
            # Nothing behind it in this file: what later files begin with says how much is lost.
            stop, lsn = len(view), max(lost_to, expected)
            filler = _filler(salt, position, expected, lsn)
            data = (bytes(view[:position]) + filler).ljust(len(view), b"\0")
        moved = self._replace(file_name(epoch), data)
        reason = "an entry that was durable can't be read"
        return Dropped(file_name(epoch), moved, reason, position, stop, expected, lsn - 1)

    def _mend_header(self, epoch: int, view: memoryview, error: CorruptData) -> Dropped:
        """Its entries still say what the header did. What is cut off is gone."""
        path = file_name(epoch)
        salt = _salt_of(view)
        size = max(len(view), ENTRIES_START + 2 * journal.ROLL_ROOM) + 7 & ~7
        if salt is None:
            salt = randbits(64)
        header = file_header(epoch, salt, size).ljust(ENTRIES_START, b"\0")
        data = (header + bytes(view[ENTRIES_START:])).ljust(size, b"\0")
        moved = self._replace(path, data)
        stop = error.position or ENTRIES_START
        return Dropped(path, moved, error.reason, error.position, stop, 1, 0)

    def _make_missing(self, epoch: int, expected: int) -> Dropped:
        """A file that is gone: an empty one, or one that leads to the entries of the next."""
        path = file_name(epoch)
        salt = randbits(64)
        lsn = self._first_after(epoch) or expected
        filler = _filler(salt, ENTRIES_START, expected, lsn)
        size = ENTRIES_START + len(filler) + 2 * journal.ROLL_ROOM + 7 & ~7
        header = file_header(epoch, salt, size).ljust(ENTRIES_START, b"\0")
        self._write(path, (header + filler).ljust(size, b"\0"))
        reason = "the journal file is missing"
        return Dropped(path, "", reason, 0, 0, expected, lsn - 1)

    def _replace(self, path: str, data: bytes) -> str:
        """Set a file aside and put another in its place. In between there are both."""
        unfinished = path.removesuffix(journal.SUFFIX) + journal.UNFINISHED
        self._write(unfinished, data)
        moved = aside.move(self._disk, path)
        self._disk.rename(unfinished, path)
        self._disk.sync_directory(journal.DIRECTORY)
        return moved

    def _write(self, path: str, data: bytes) -> None:
        if self._disk.exists(path):
            self._disk.remove(path)  # of a repair that was interrupted
        file = self._disk.open(path, create=True)
        try:
            file.write(data, 0)
            file.sync()
        finally:
            file.close()
        self._disk.sync_directory(journal.DIRECTORY)


def _read(view: memoryview, salt: int, expected: int) -> tuple[int, int, int]:
    """Where the readable entries of a file end, the next number, and where the file goes on."""
    position, following = ENTRIES_START, 0
    while True:
        found, position, expected = scan_entries(view, position, salt, expected)
        for kind, _, _, _, meta_start, meta_end, _ in found:
            if kind == Kind.ROLL:
                (following,) = journal.ROLL.unpack(view[meta_start:meta_end])
        if not found:
            return position, expected, following


def _salt_of(view: memoryview) -> int | None:
    """From the first entry, whatever the header says."""
    if len(view) < ENTRIES_START + ENTRY_HEADER_SIZE:
        return None
    (salt,) = struct.unpack_from("<Q", view, ENTRIES_START + SALT_AT)
    return int(salt) if first_lsn(view, ENTRIES_START, salt) else None


def _filler(salt: int, position: int, first: int, stop: int, length: int = 0) -> bytes:
    """Entries with the numbers ``first`` … ``stop - 1`` that do nothing, ``length`` bytes in all,
    or as few as it takes."""
    least = ENTRY_HEADER_SIZE * max(stop - first, 0)
    length = length or least
    assert length >= least, "entries are no shorter than their headers"
    entries = EntryBuffer(salt, first, length + MARK_SIZE, position)
    if length and not least:
        # What stood there had no number: neither has a mark, and this one says nothing.
        entries.append(Kind.MARK, bytes(length - ENTRY_HEADER_SIZE))
    for lsn in range(first, stop):
        written = entries.append(Kind.CHECKPOINT, bytes(length - least if lsn == first else 0))
        assert written == lsn
    return b"".join(bytes(piece) for piece in entries.pieces())
