"""A journal is cut after any of its entries, and a crash at any moment of that takes no other."""

import random
from collections.abc import Mapping, Sequence

import pytest
from worlds import SMALL, World, files

from braidmq.model.errors import CutBelowSnapshot
from braidmq.model.ids import Lsn
from braidmq.storage import journal, snapshot
from braidmq.storage.cutting import cut_after
from braidmq.storage.disk import MemoryContent, Node
from braidmq.storage.journal import Entry
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll, Random


class Crashing(FaultyDisk):
    """Keeps what a crash before each of its operations would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[FaultyDisk] = []

    def _moment(self) -> None:
        choices = [KeepAll(), LoseAll(), *(Random(seed) for seed in range(3))]
        self.moments += [self.crash(choice) for choice in choices]

    def change_bytes(self, content: MemoryContent, position: int, data: bytes) -> None:
        self._moment()
        super().change_bytes(content, position, data)

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        self._moment()
        super().sync_contents(contents)

    def change_names(self, changes: Mapping[str, Node | None]) -> None:
        self._moment()
        super().change_names(changes)


def written(*, idle: bool = False) -> World:
    """Entries in several groups and files, behind a checkpoint."""
    world = World()
    rng = random.Random(5)
    world.create()
    world.append(rng)
    world.take_checkpoint()
    for at in range(14):
        world.append(rng)
        if at % 3 == 1:
            world.store.commit()
        if at in (4, 5, 11):
            world.store.journal.roll()
    world.store.commit()
    if idle:
        world.store.journal.note_idle()
    return world


def entries_of(disk: FaultyDisk) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []

    def note(entry: Entry) -> None:
        found.append((entry.lsn, entry.kind, entry.meta + bytes(entry.payload)))

    copy = disk.crash(KeepAll())
    first = journal.journal_epochs(copy)[0]
    journal.recover(copy, first_epoch=first, next_lsn=journal.oldest_lsn(copy), apply=note)
    return found


@pytest.mark.parametrize("idle", [False, True])
def test_it_is_cut_after_every_entry(idle: bool) -> None:
    world = written(idle=idle)
    disk = world.disk.crash(KeepAll())
    every = entries_of(disk)
    held = snapshot.load(disk, snapshot.names(disk)[0]).next_lsn - 1
    assert every[0][0] <= held
    for lsn, _, _ in every[held:]:
        cut = disk.crash(KeepAll())
        cut_after(cut, Lsn(lsn))
        assert entries_of(cut) == [each for each in every if each[0] <= lsn]
        store = Store.open(cut, SMALL)
        assert store.journal.next_lsn == lsn + 1
        # The numbers of those that are gone are given again.
        log = store.create_partition("new")
        store.commit()
        again = Store.open(cut.crash(LoseAll()), SMALL)
        assert log.id in again.logs
        assert again.journal.next_lsn == lsn + 2


def test_a_crash_at_every_moment_of_a_cut() -> None:
    whole = written().disk.crash(KeepAll())
    every = entries_of(whole)
    for lsn, _, _ in every[3::2]:
        disk = Crashing()
        for directory in ("journal", "snapshots", "segments"):
            disk.make_directory(directory)
        for path, data in files(whole).items():
            disk.open(path, create=True).write(data, 0)
        for path in list(files(whole)):
            disk.open(path).sync()
        for directory in ("", "journal", "snapshots", "segments"):
            disk.sync_directory(directory)
        disk.moments.clear()
        cut_after(disk, Lsn(lsn))
        assert disk.moments
        for moment in disk.moments:
            left = entries_of(moment)
            assert left == every[: len(left)], "what is left is a beginning"
            assert left[-1][0] >= lsn
            cut_after(moment, Lsn(lsn))
            assert entries_of(moment) == [each for each in every if each[0] <= lsn]


def test_nothing_is_done_where_nothing_comes_after() -> None:
    disk = written().disk.crash(KeepAll())
    before = files(disk)
    last = entries_of(disk)[-1][0]
    for lsn in (last, last + 5):
        cut_after(disk, Lsn(lsn))
        assert files(disk) == before


def test_what_a_snapshot_stands_on_stays() -> None:
    disk = written().disk.crash(KeepAll())
    before = files(disk)
    with pytest.raises(CutBelowSnapshot):
        cut_after(disk, Lsn(1))
    assert files(disk) == before
