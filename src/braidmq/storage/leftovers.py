"""What start-up finds in a data directory: files that the state does not name, or does not find.

Nothing may be removed because something else could not be read. A file goes only if the state that
was recovered, whole, proves that nobody needs it; every other is set aside and reported:

- While the newest snapshot is the one in use and the journal behind it is whole, records from a
  partition's flushed offset on are in the journal: a segment that begins there is left from a
  checkpoint that was interrupted, as is a new generation of a segment that is there itself, and a
  body file with a number that only a later snapshot could have.
- Segments without a label are of partitions that end with the process: nobody has them after it.
- What the snapshot names and the recovered state does not was dropped by an entry of the journal: a
  topic was deleted, retention moved on.
- What the snapshot before named and the newest does not was dropped by that checkpoint, which was
  interrupted before it came to remove it; unless it was written anew around damage.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from braidmq.model.errors import BraidError
from braidmq.storage import aside, journal, segment, snapshot
from braidmq.storage.catalogue import COUNTERS, PARTITIONS, Catalogue
from braidmq.storage.disk import Disk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.quarantine import Damage
from braidmq.storage.segment import BODIES_NAME, NAME, Segment, bodies_path
from braidmq.storage.snapshot import PartitionState, Snapshot


@dataclass
class RecoveryReport:
    """What opening a directory found."""

    entries: int = 0
    records: int = 0
    partitions: int = 0
    messages: int = 0
    """In the logs of all partitions, from segments and journal together."""
    torn_bytes: int = 0
    elapsed_ms: float = 0.0
    notes: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    """Files that the state does not know, where they are now."""


def find_missing(disk: Disk, logs: Iterable[PartitionLog]) -> list[tuple[PartitionLog, Damage]]:
    """Segments and body files that logs need and that are not there, or too short."""
    present = {f"{segment.DIRECTORY}/{name}" for name in disk.list(segment.DIRECTORY)}
    found = []
    for log in logs:
        for each in log.segments:
            needed = [each.path, *map(bodies_path, each.bodies)]
            missing = [path for path in needed if path not in present]
            found += [(log, Damage(path, 0, "the file is missing")) for path in missing]
            if not missing and (size := disk.size(each.path)) < each.size:
                reason = f"the file ends here, before byte {each.size}"
                found.append((log, Damage(each.path, size, reason)))
    return found


class Leftovers:
    """``used`` is the snapshot that recovery began with, if it was the newest there was and none
    was unreadable: then, and only then, files can be proved to be dead."""

    def __init__(self, disk: Disk, used: Snapshot | None) -> None:
        self._disk = disk
        if used is not None and used.state.previous:
            # It stays until a newer one is written: where it is gone, so may be a newer one.
            previous = snapshot.file_name(used.state.previous)
            used = used if disk.exists(previous) else None
        self._used = used
        self.set_aside: list[str] = []
        """Where files are that were moved."""
        self._states: dict[int, PartitionState] = {}
        if used is not None:
            self._states = {each.partition: each for each in used.state.partitions}

    def tidy_segments(self, unnamed: Iterable[str]) -> None:
        """``unnamed``: names in the directory of segments that the state does not have."""
        unnamed = sorted(unnamed)
        if not unnamed:
            return
        dropped = self._dropped()
        for name in unnamed:
            dead = name in dropped or self._is_interrupted(name) or self._is_transient(name)
            self._let_go(f"{segment.DIRECTORY}/{name}", dead=dead)

    def tidy_snapshots(self, unreadable: Iterable[str]) -> None:
        for path in snapshot.unfinished(self._disk):
            # It never got its name: no state was ever built on it.
            self._let_go(path, dead=self._used is not None)
        for path in unreadable:
            self._let_go(path, dead=False)

    def tidy_journal(self, oldest_epoch: int) -> None:
        for path in journal.leftovers(self._disk, oldest_epoch):
            self._let_go(path, dead=self._used is not None)

    def _let_go(self, path: str, *, dead: bool) -> None:
        if dead:
            self._disk.remove(path)
        else:
            self.set_aside.append(aside.move(self._disk, path))

    def _is_interrupted(self, name: str) -> bool:
        """Whether a checkpoint that was not finished made this file."""
        used = self._used
        if used is None:
            return False
        if found := BODIES_NAME.fullmatch(name):
            return int(found[1], 16) >= used.next_lsn
        found = NAME.fullmatch(name)
        if found is None:
            return False
        partition, base_offset = int(found[1], 16), int(found[2])
        generation = int(found[3], 16) if found[3] else 0
        state = self._states.get(partition)
        if state is None:
            # One that came after the snapshot: all it ever had is in the journal.
            return partition >= self._next_partition()
        if base_offset >= state.flushed_offset:
            return True
        return any(
            each.base_offset == base_offset
            and each.generation < generation
            and self._disk.exists(each.path)
            for each in state.segments
        )

    def _next_partition(self) -> int:
        assert self._used is not None
        catalogue = Catalogue()
        catalogue.load(self._used.state.catalogue)
        return int(catalogue.get(COUNTERS, PARTITIONS) or 1)

    def _is_transient(self, name: str) -> bool:
        found = NAME.fullmatch(name)
        if found is None:
            return False
        # Names are in order: an index or a filter of keys comes before its segment.
        path = f"{segment.DIRECTORY}/{name.rpartition('.')[0]}{segment.SUFFIX}"
        if not self._disk.exists(path):
            return False
        file = self._disk.open(path)
        try:
            header = segment.read_header(file)
        except BraidError:
            return False
        finally:
            file.close()
        return not header.label and header.partition == int(found[1], 16)

    def _dropped(self) -> set[str]:
        """Names that the snapshot in use has, or one before it had, of what is not wanted."""
        if self._used is None:
            return set()
        used = _segments(self._used)
        salvaged = {(each.partition, each.base_offset) for each in used if each.salvaged}
        before = [
            each
            for older in self._older()
            for each in _segments(older)
            if (each.partition, each.base_offset) not in salvaged
        ]
        found: set[str] = set()
        for each in (*used, *before):
            found |= _names(each)
        return found

    def _older(self) -> Iterator[Snapshot]:
        """Usually one. A crash may bring back those that were removed before it, together with the
        files that they name."""
        for path in snapshot.names(self._disk)[1:]:
            with suppress(BraidError):
                yield snapshot.load(self._disk, path)


def _segments(found: Snapshot) -> list[Segment]:
    return [each for state in found.state.partitions for each in state.segments]


def _names(each: Segment) -> set[str]:
    """Of all files that it needs."""
    paths = (each.path, each.index_path, each.keys_path, *map(bodies_path, each.bodies))
    return {path.rpartition("/")[2] for path in paths}
