"""Taking back the end of a journal that nobody has confirmed: before ``recover``, on a directory
that is claimed and not in use.

A follower whose leader died has entries that the next leader never got. Snapshots wait until what
is in them is confirmed, so it is always the journal's tail that goes, and nothing that was applied.

After each step the directory is that of a journal which ends earlier than before, or where it did.
The file that the cut is in is replaced whole: overwritten in place, groups would go one after the
other, and one that is still there would say that those before it were durable.
"""

from collections.abc import Callable

from braidmq.model.errors import CutBelowSnapshot
from braidmq.model.ids import Lsn
from braidmq.storage import journal, snapshot
from braidmq.storage.disk import Disk
from braidmq.storage.journal import ENTRIES_START, Kind, file_name
from braidmq.storage.journal_entry import first_lsn, scan_entries


def cut_after(disk: Disk, lsn: Lsn) -> None:
    """The last entry of the journal is ``lsn`` at most. To be done again when it is interrupted.

    Raises CutBelowSnapshot, having changed nothing, when a snapshot stands on entries after it."""
    newest = next(iter(snapshot.names(disk)), None)
    held = snapshot.load(disk, newest).next_lsn - 1 if newest is not None else 0
    if lsn < held:
        raise CutBelowSnapshot(lsn, held)
    epochs = journal.journal_epochs(disk)
    while len(epochs) > 1 and not _begins_at_most(disk, epochs[-1], lsn):
        _Cut(disk, epochs[-2]).end_without_roll()
        disk.remove(file_name(epochs.pop()))
        disk.sync_directory(journal.DIRECTORY)
    if epochs:
        _Cut(disk, epochs[-1]).end_after(lsn)


def _begins_at_most(disk: Disk, epoch: int, lsn: int) -> bool:
    """Whether a file has entries that stay."""
    begins = _Cut(disk, epoch).begins
    return 0 < begins <= lsn


class _Cut:
    """One file that may end earlier than it did."""

    def __init__(self, disk: Disk, epoch: int) -> None:
        self._disk = disk
        self._path = file_name(epoch)
        file = disk.open(self._path)
        try:
            self._view = memoryview(file.read(file.size(), 0))
        finally:
            file.close()
        self._salt = journal.check_file_header(self._path, self._view, epoch)
        self.begins = first_lsn(self._view, ENTRIES_START, self._salt)

    def end_after(self, lsn: int) -> None:
        self._end_before(lambda kind, number: number > lsn)

    def end_without_roll(self) -> None:
        self._end_before(lambda kind, number: kind == Kind.ROLL)

    def _end_before(self, is_gone: Callable[[int, int], bool]) -> None:
        position, expected = ENTRIES_START, self.begins
        while True:
            found, position, expected = scan_entries(self._view, position, self._salt, expected)
            for kind, _, number, start, *_ in found:
                if is_gone(kind, number):
                    self._replace(start)
                    return
            if not found:
                return

    def _replace(self, end: int) -> None:
        unfinished = self._path.removesuffix(journal.SUFFIX) + journal.UNFINISHED
        if self._disk.exists(unfinished):
            self._disk.remove(unfinished)  # of a cut that was interrupted
        file = self._disk.open(unfinished, create=True)
        try:
            file.write(bytes(self._view[:end]).ljust(len(self._view), b"\0"), 0)
            file.sync()
        finally:
            file.close()
        self._disk.rename(unfinished, self._path)
        self._disk.sync_directory(journal.DIRECTORY)
