"""Going on without what the journal can't read: what is said to be lost, and nothing else."""

import pytest
from worlds import SMALL, read_all, value_batch

from braidmq.model.errors import CorruptData
from braidmq.storage import journal
from braidmq.storage.repair import skip_damaged_entry
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll


def written(count: int = 12, *, checkpoint: bool = False) -> tuple[FaultyDisk, list[int]]:
    """One partition with a record an entry, in two files; returns the entries' numbers."""
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("p")
    if checkpoint:
        store.checkpoint()
    lsns = []
    for number in range(count):
        lsns.append(store.append(value_batch(b"%d" % number * 30), [log]))
        store.commit()
        if number == count // 2:
            store.journal.roll()
    store.close()
    return disk.crash(KeepAll()), lsns


def entries(disk: FaultyDisk, path: str) -> list[tuple[int, int, int]]:
    """LSN, start and end of the entries of a file but marks and rolls, which have none."""
    view = disk.open(path).map()
    salt = journal.check_file_header(path, view, int(path[8:24], 16))
    lsn = journal.first_lsn(view, journal.ENTRIES_START, salt)
    found, _, _ = journal.scan_entries(view, journal.ENTRIES_START, salt, lsn)
    return [
        (lsn, start, end) for kind, _, lsn, start, _, _, end in found if kind != journal.Kind.ROLL
    ]


def kept(disk: FaultyDisk) -> set[bytes]:
    store = Store.open(disk, SMALL)
    try:
        return {record.value or b"" for record in read_all(store.logs[1])}
    finally:
        store.close()


def everything(count: int = 12) -> set[bytes]:
    return {b"%d" % number * 30 for number in range(count)}


def test_nothing_is_done_to_a_whole_journal() -> None:
    disk, _ = written()
    assert skip_damaged_entry(disk) is None
    assert kept(disk) == everything()


@pytest.mark.parametrize("number", [0, 3, 5, 6, 7, 11])
def test_one_entry_is_lost_and_named(number: int) -> None:
    disk, lsns = written()
    paths = [journal.file_name(epoch) for epoch in journal.journal_epochs(disk)]
    path, start, end = next(
        (path, start, end)
        for path in paths
        for lsn, start, end in entries(disk, path)
        if lsn == lsns[number]
    )
    disk.flip_bit(path, end - 3)
    before = disk.open(path).read(1 << 20, 0)
    with pytest.raises(CorruptData):
        Store.open(disk, SMALL)
    dropped = skip_damaged_entry(disk)
    assert dropped is not None
    assert (dropped.file, dropped.start, dropped.stop) == (path, start, end)
    assert (dropped.first_lsn, dropped.last_lsn) == (lsns[number], lsns[number])
    assert disk.open(dropped.aside).read(1 << 20, 0) == before
    assert kept(disk) == everything() - {b"%d" % number * 30}
    assert skip_damaged_entry(disk) is None


def test_only_the_first_entry_of_a_file_between_others_is_lost() -> None:
    disk, lsns = written()
    store = Store.open(disk, SMALL)
    lsns.append(store.append(value_batch(b"12" * 30), [store.logs[1]]))
    store.close()
    path = journal.file_name(journal.journal_epochs(disk)[1])
    number, start, end = entries(disk, path)[0]
    disk.flip_bit(path, end - 3)
    dropped = skip_damaged_entry(disk)
    assert dropped is not None
    assert (dropped.file, dropped.start, dropped.stop) == (path, start, end)
    assert (dropped.first_lsn, dropped.last_lsn) == (number, number)
    left = everything() | {b"12" * 30}
    assert kept(disk) == left - {b"%d" % lsns.index(number) * 30}


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_damaged_mark_takes_no_entry_along(at: int) -> None:
    disk, _ = written()
    path = journal.file_name(journal.journal_epochs(disk)[0])
    mark = entries(disk, path)[at + 1][1] - journal.MARK_SIZE
    disk.flip_bit(path, mark + 34)
    with pytest.raises(CorruptData):
        Store.open(disk, SMALL)
    dropped = skip_damaged_entry(disk)
    assert dropped is not None
    assert (dropped.start, dropped.stop) == (mark, mark + journal.MARK_SIZE)
    assert dropped.last_lsn < dropped.first_lsn
    assert skip_damaged_entry(disk) is None
    assert kept(disk) == everything()


def test_two_damaged_entries_take_two_steps() -> None:
    disk, lsns = written()
    path = journal.file_name(journal.journal_epochs(disk)[0])
    for lsn, _, end in entries(disk, path):
        if lsn in (lsns[1], lsns[4]):
            disk.flip_bit(path, end - 3)
    found = [skip_damaged_entry(disk), skip_damaged_entry(disk)]
    assert [each and each.first_lsn for each in found] == [lsns[1], lsns[4]]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].aside != found[1].aside
    assert kept(disk) == everything() - {b"1" * 30, b"4" * 30}


def test_a_damaged_header_loses_nothing() -> None:
    disk, _ = written()
    for epoch in journal.journal_epochs(disk):
        if entries_of(disk, epoch):
            disk.flip_bit(journal.file_name(epoch), 3)
            dropped = skip_damaged_entry(disk)
            assert dropped is not None
            assert dropped.last_lsn < dropped.first_lsn
    assert kept(disk) == everything()


def entries_of(disk: FaultyDisk, epoch: int) -> bool:
    return bool(entries(disk, journal.file_name(epoch)))


def test_a_missing_file_is_made_and_what_it_had_is_named() -> None:
    disk, lsns = written(checkpoint=True)
    first = journal.journal_epochs(disk)[1]
    had = [lsn for lsn, _, _ in entries(disk, journal.file_name(first))]
    disk.remove(journal.file_name(first))
    with pytest.raises(CorruptData):
        Store.open(disk, SMALL)
    dropped = skip_damaged_entry(disk)
    assert dropped is not None
    assert dropped.aside == ""
    assert dropped.first_lsn <= min(had)
    assert dropped.last_lsn >= max(had)
    assert kept(disk) == {b"%d" % number * 30 for number, lsn in enumerate(lsns) if lsn > max(had)}


def test_a_repair_that_is_interrupted_is_begun_again() -> None:
    disk, lsns = written()
    path = journal.file_name(journal.journal_epochs(disk)[0])
    end = next(end for lsn, _, end in entries(disk, path) if lsn == lsns[2])
    disk.flip_bit(path, end - 3)
    unfinished = path.removesuffix(".journal") + ".journal.new"
    disk.open(unfinished, create=True).write(b"half", 0)
    assert skip_damaged_entry(disk) is not None
    assert kept(disk) == everything() - {b"2" * 30}
