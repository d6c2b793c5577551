"""Group commit: nothing is confirmed before the disk has answered, and never after it failed."""

import asyncio
import errno
import os
import random
import select
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.model.errors import CorruptData, StorageFailed
from braidmq.model.ids import Lsn
from braidmq.storage import journal as journal_module
from braidmq.storage.disk import MemoryDisk, RealDisk
from braidmq.storage.journal import (
    ENTRIES_START,
    Entry,
    Journal,
    Kind,
    check_file_header,
    file_name,
    recover,
)
from braidmq.storage.journal_entry import inspect_tail, scan_entries
from braidmq.storage.replication import Group
from braidmq.storage.workers import Committer
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll
from braidmq.testing.recording_disk import RecordingDisk

FILE_BYTES = 8192
LSN = struct.Struct("<QQ")


def new_journal(disk) -> Journal:
    disk.make_directory("journal")
    disk.sync_directory("")
    return Journal(disk, FILE_BYTES)


def append(journal: Journal, size: int = 0, kind: Kind = Kind.RECORDS) -> int:
    return journal.append(kind, b"meta", bytes(size // 8 * 8) if size else None)


def recovered(disk, first_epoch: int = 1, next_lsn: int = 1) -> list[Entry]:
    found: list[Entry] = []
    recover(disk, first_epoch=first_epoch, next_lsn=next_lsn, apply=found.append)
    return found


# --- who is released when ---


def lsns_in(data: bytes) -> list[int]:
    """LSNs of the entries in one write to a journal file."""
    found, at = [], 0
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 4)[0]
        found.append(LSN.unpack_from(data, at + 16)[1])
        at += length
    return found


def durable_at(disk: RecordingDisk) -> dict[int, int]:
    """For each LSN, the place in ``operations`` where the sync that covers it returned."""
    written: defaultdict[str, list[int]] = defaultdict(list)
    syncing: defaultdict[str, list[int]] = defaultdict(list)
    durable: dict[int, int] = {}
    for at, op in enumerate(disk.operations):
        if op.kind == "write" and op.position >= ENTRIES_START and any(op.data):
            written[op.path] += lsns_in(op.data)
        elif op.kind == "sync":
            syncing[op.path], written[op.path] = syncing[op.path] + written[op.path], []
        elif op.kind == "synced":
            durable |= dict.fromkeys(syncing.pop(op.path, []), at)
    return durable


class Waiters:
    """Notes who was released, in which order, and how far the disk was by then."""

    def __init__(self, journal: Journal, disk: RecordingDisk) -> None:
        self.journal = journal
        self.disk = disk
        self.asked: list[int] = []
        self.released: list[tuple[int, int]] = []

    def wait(self, lsn: int) -> None:
        ticket = len(self.asked)
        self.asked.append(lsn)
        self.journal.wait(lsn, lambda failure: self._release(ticket, failure))

    def _release(self, ticket: int, failure: StorageFailed | None) -> None:
        assert failure is None
        self.released.append((ticket, len(self.disk.operations)))

    def check(self) -> None:
        durable = durable_at(self.disk)
        assert [ticket for ticket, _ in self.released] == list(range(len(self.released)))
        for ticket, operations in self.released:
            assert durable[self.asked[ticket]] < operations


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 600)),
    st.tuples(st.just("append"), st.integers(0, 600)),
    st.tuples(st.just("append"), st.just(FILE_BYTES * 2)),
    st.tuples(st.just("wait"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["commit", "release", "idle", "roll", "prepare"]), st.just(0)),
)


def act(journal: Journal, waiters: Waiters, name: str, number: int, commit) -> None:
    match name:
        case "append":
            append(journal, number)
        case "wait":
            waiters.wait(max(1, journal.next_lsn - 1 - number) if journal.next_lsn > 1 else 0)
        case "roll":
            journal.roll()
        case "prepare":
            journal.prepare()
        case "release":
            journal.release()
        case _:
            commit(name)


@settings(deadline=None, max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
def test_no_waiter_is_released_before_its_sync_returned(actions) -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    waiters = Waiters(journal, disk)
    append(journal)

    def commit(name: str) -> None:
        if name == "commit":
            journal.commit()
        else:
            journal.note_idle()

    for name, number in actions:
        act(journal, waiters, name, number, commit)
    waiters.check()
    append(journal)
    assert journal.commit()
    journal.release()
    assert len(waiters.released) == len(waiters.asked)
    waiters.check()


@settings(deadline=None, max_examples=40)
@given(st.lists(ACTIONS, max_size=40))
def test_no_waiter_is_released_before_it_is_durable_with_a_thread_that_writes(actions) -> None:
    with TemporaryDirectory() as directory, running_loop() as loop:
        disk = RealDisk(Path(directory))
        journal = new_journal(disk)
        committer = Committer(journal, disk, loop)
        asked: list[int] = []
        released: list[int] = []

        def released_at(lsn: int, failure: object) -> None:
            assert failure is None
            assert lsn <= journal.durable_lsn
            released.append(lsn)

        def wait(lsn: int) -> None:
            asked.append(lsn)
            journal.wait(lsn, partial(released_at, lsn))

        append(journal)
        for name, number in actions:
            waiters = SimpleNamespace(wait=wait)
            act(journal, waiters, name, number, lambda _: committer.wake())  # type: ignore[arg-type]
            turn(loop)
        last = append(journal)
        wait(last)
        committer.wake()
        while len(released) < len(asked):
            turn(loop, wait_s=10)
        assert released == asked
        committer.stop()
        journal.close()
        assert recovered(disk)[-1].lsn == last


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def turn(loop: asyncio.AbstractEventLoop, wait_s: float = 0) -> None:
    """What is ready now; or, with a time, the next thing that becomes so."""
    if wait_s:
        fds = [key.fd for key in loop._selector.get_map().values()]  # type: ignore[attr-defined]
        assert select.select(fds, [], [], wait_s)[0], "nothing happened"
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_nobody_is_released_while_the_sync_runs() -> None:
    journal = new_journal(FaultyDisk())
    released: list[int] = []
    first = append(journal)
    journal.wait(first, lambda _: released.append(first))
    assert journal.begin_commit()
    # These come too late for the sync that runs.
    second = append(journal)
    journal.wait(second, lambda _: released.append(second))
    journal.release()
    assert released == []
    assert journal.durable_lsn < first
    journal.end_commit(0.0)
    journal.release()
    assert released == [first]
    assert journal.commit()
    journal.release()
    assert released == [first, second]
    assert journal.commits == 2


def test_what_nobody_waits_for_causes_no_sync_of_its_own(tmp_path) -> None:
    disk = RealDisk(tmp_path)
    journal = new_journal(disk)
    with running_loop() as loop:
        committer = Committer(journal, disk, loop)
        first = append(journal)
        told: list[object] = []
        journal.wait(first, told.append)
        assert journal.is_awaited
        committer.wake()
        assert not journal.is_awaited
        left = append(journal)
        while not told:
            turn(loop, wait_s=10)
        committer.stop()
    assert journal.commits == 1
    assert first <= journal.durable_lsn < left
    # It goes with the next one, for whoever that is.
    assert journal.commit()
    assert journal.durable_lsn >= left
    journal.close()


def test_who_is_woken_while_it_writes_commits_once_more(tmp_path) -> None:
    disk = RealDisk(tmp_path)
    journal = new_journal(disk)
    with running_loop() as loop:
        committer = Committer(journal, disk, loop)
        append(journal)
        committer.wake()
        unawaited = append(journal)
        committer.wake()
        while journal.durable_lsn < unawaited:
            turn(loop, wait_s=10)
        committer.stop()
    assert journal.commits == 2
    journal.close()


def test_a_pause_leaves_the_mark_of_an_idle_journal(tmp_path) -> None:
    disk = RealDisk(tmp_path)
    journal = new_journal(disk)
    with running_loop() as loop:
        committer = Committer(journal, disk, loop)
        last = append(journal)
        committer.wake()
        while journal.durable_lsn < last:
            turn(loop, wait_s=10)
        assert not is_marked_durable(disk, journal)
        while not is_marked_durable(disk, journal):
            turn(loop, wait_s=10)
        committer.stop()
    journal.close()


@pytest.mark.parametrize("kind", ["real", "memory"])
def test_what_comes_after_the_committer_stopped_goes_to_disk_with_the_journal(
    kind: str, tmp_path: Path
) -> None:
    disk = RealDisk(tmp_path) if kind == "real" else MemoryDisk()
    journal = new_journal(disk)
    answers: list[object] = []
    with running_loop() as loop:
        committer = Committer(journal, disk, loop)
        journal.wait(append(journal), answers.append)
        committer.wake()
        committer.stop()
        last = append(journal)
        journal.wait(last, answers.append)
        committer.wake()
        turn(loop)
    journal.close()
    assert answers == [None, None]
    assert recovered(disk)[-1].lsn == last


def is_marked_durable(disk: RealDisk, journal: Journal) -> bool:
    """Whether the file itself says that its first entry is, for whoever finds it."""
    file = disk.open(file_name(journal.epoch))
    try:
        view = file.map()
        salt = check_file_header(file.path, view, journal.epoch)
        return inspect_tail(view, ENTRIES_START, salt, 1)[0]
    finally:
        file.close()


def test_an_error_of_the_thread_that_writes_fails_the_journal(tmp_path) -> None:
    disk = RealDisk(tmp_path)
    journal = new_journal(disk)
    answers: list[object] = []
    with running_loop() as loop:
        committer = Committer(journal, disk, loop)
        journal.wait(append(journal), answers.append)
        read_only = os.open(tmp_path / file_name(journal.epoch), os.O_RDONLY)
        file = journal._file.file
        os.dup2(read_only, file.fd)  # type: ignore[attr-defined]
        committer.wake()
        while not answers:
            turn(loop, wait_s=10)
        assert answers == [journal.failure]
        assert isinstance(journal.failure, StorageFailed)
        assert journal.failure.__cause__.errno == errno.EBADF
        # Who comes later is told, too.
        journal.wait(1, answers.append)
        committer.wake()
        while len(answers) < 2:
            turn(loop, wait_s=10)
        assert answers[1] is journal.failure
        committer.stop()
    os.close(read_only)
    journal.close()


class Others:
    """Whoever else is to have the entries, and is slower than this disk."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.durable_lsns: list[int] = []

    def shipped(self, group: Group) -> None:
        self.groups.append(group)

    def durable(self, lsn: Lsn) -> None:
        self.durable_lsns.append(lsn)


def test_clients_wait_for_others_and_who_is_content_with_this_disk_does_not() -> None:
    journal = new_journal(FaultyDisk())
    others = journal.replication = Others()
    told: list[str] = []
    first = journal.append(Kind.CATALOGUE, b"1")
    second = journal.append(Kind.CATALOGUE, b"2")
    journal.wait(first, lambda failure: told.append("first"))
    journal.wait(second, lambda failure: told.append("second"))
    journal.wait(second, lambda failure: told.append("local"), local=True)
    assert (journal.waiting, journal.is_awaited) == (3, True)
    journal.commit()
    assert others.durable_lsns == [second]
    journal.release()
    assert told == ["local"]
    assert (journal.durable_lsn, journal.confirmed_lsn) == (second, 0)
    journal.confirm(first)
    journal.release()
    assert told == ["local", "first"]
    journal.confirm(second)
    journal.release()
    assert told == ["local", "first", "second"]
    with pytest.raises(AssertionError):
        journal.confirm(Lsn(second + 1))


def test_whoever_waits_for_others_is_told_of_a_failure() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    journal.replication = Others()
    told: list[StorageFailed | None] = []
    lsn = journal.append(Kind.CATALOGUE, b"1")
    journal.wait(lsn, told.append)
    journal.commit()
    journal.fail(OSError(errno.EIO, "gone"))
    journal.wait(lsn, told.append, local=True)
    journal.release()
    assert told == [journal.failure, None]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30))
def test_others_get_every_entry_once_in_whatever_files_they_came_to_stand(sizes) -> None:
    journal = new_journal(FaultyDisk())
    others = journal.replication = Others()
    lsns = []
    for at, size in enumerate(sizes):
        lsns.append(append(journal, size))
        if at % 3 == 2:
            journal.commit()
            journal.note_idle()
        if at % 7 == 5:
            journal.roll()
    journal.commit()
    found = []
    for group in others.groups:
        data = b"".join(group.pieces)
        entries, end, following = scan_entries(data, 0, group.salt, group.first)
        assert (end, following) == (len(data), group.last + 1)
        found += [lsn for kind, _, lsn, *_ in entries if kind != Kind.ROLL]
    assert found == lsns == list(range(1, len(sizes) + 1))


def test_many_entries_one_write_one_sync() -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    disk.clear()
    for _ in range(50):
        append(journal, 16)
    assert journal.commit()
    assert (disk.count("write"), disk.count("sync")) == (1, 1)
    assert not journal.commit()
    assert disk.count("sync") == 1


def test_a_file_is_synced_before_the_next_is_written() -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    append(journal, 100)
    journal.roll()
    append(journal, 100)
    disk.clear()
    assert journal.commit()
    assert [(op.kind, op.path) for op in disk.operations] == [
        ("write", file_name(1)),
        *((kind, file_name(epoch)) for epoch in (1, 2) for kind in ("write", "sync", "synced")),
    ]


def test_a_file_with_only_an_idle_mark_unsynced_is_synced_before_the_next_is_written() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    append(journal)
    journal.commit()
    journal.note_idle()
    journal.roll()
    last = append(journal)
    journal.commit()
    assert [entry.lsn for entry in recovered(disk.crash(LoseAll()))] == [1, last]


# --- after a failure ---

ERRORS = [errno.EIO, errno.ENOSPC]


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("partial", [0, 1, 30, 100])
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_nothing_is_confirmed_after_a_failure(kind, partial, number) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    answers: list[object] = []
    safe = append(journal, 40)
    journal.commit()
    journal.wait(safe, answers.append)
    lost = append(journal, 40)
    journal.wait(lost, answers.append)
    disk.fail_next(kind, error=OSError(number, "injected"), partial=partial)
    assert not journal.commit()
    assert journal.durable_lsn < lost
    journal.release()
    assert answers == [None, journal.failure]
    assert isinstance(journal.failure, StorageFailed)
    assert journal.failure.__cause__.errno == number
    # Linux forgets that pages could not be written: a second sync succeeds and means nothing.
    written = journal.bytes_written, journal.commits
    assert not journal.commit()
    journal.note_idle()
    assert (journal.bytes_written, journal.commits) == written
    assert journal.durable_lsn < lost
    with pytest.raises(StorageFailed):
        append(journal)
    journal.wait(lost, answers.append)
    journal.release()
    assert answers[2:] == [journal.failure]
    journal.close()
    assert journal.durable_lsn < lost


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ACTIONS, max_size=25),
    st.sampled_from(["write", "sync", "sync_directory"]),
    st.integers(1, 12),
    st.integers(0, 200),
    st.sampled_from(ERRORS),
)
def test_whatever_fails_only_durable_entries_are_confirmed(
    actions, kind, after, partial, number
) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    confirmed, refused = [], []
    disk.fail_next(kind, after=after, partial=partial, error=OSError(number, "injected"))

    def ask(lsn: int) -> None:
        journal.wait(lsn, lambda failure: (refused if failure else confirmed).append(lsn))

    for name, size in actions:
        try:
            match name:
                case "append":
                    ask(append(journal, size))
                case "commit":
                    journal.commit()
                case "idle":
                    journal.note_idle()
                case "roll":
                    journal.roll()
                case "prepare":
                    journal.prepare()
                case _:
                    journal.release()
        except StorageFailed:
            assert journal.failure is not None
        except OSError:
            assert name == "prepare"  # whoever prepares in the background passes it to fail()
    journal.commit()
    journal.release()
    assert not journal.waiting
    assert not refused or journal.failure is not None
    found = {entry.lsn for entry in recovered(disk.crash(LoseAll()))}
    assert found.issuperset(confirmed)


def test_the_committer_hands_the_error_to_those_who_wait() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    loop = asyncio.new_event_loop()
    committer = Committer(journal, disk, loop)
    answers: list[object] = []
    disk.fail_next("sync")
    journal.wait(append(journal), answers.append)
    committer.wake()
    while not answers:
        turn(loop, wait_s=10)
    assert answers == [journal.failure]
    assert journal.failure is not None
    # One who asks later is told as soon as somebody wakes the committer.
    journal.wait(1, answers.append)
    committer.wake()
    while len(answers) < 2:
        turn(loop, wait_s=10)
    committer.stop()
    loop.close()
    assert answers == [journal.failure] * 2


@pytest.mark.parametrize("kind", ["write", "sync", "sync_directory"])
def test_a_file_that_can_not_be_made_is_a_failure(kind) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    append(journal)
    disk.fail_next(kind, error=OSError(errno.ENOSPC, "injected"))
    with pytest.raises(StorageFailed):
        journal.roll()
    with pytest.raises(StorageFailed):
        append(journal)
    assert not journal.commit()


# --- files ---


def test_entries_go_on_in_the_next_file() -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    sizes = [random.Random(n).randint(0, 900) for n in range(60)]
    lsns = [append(journal, size) for size in sizes]
    journal.commit()
    assert journal.epoch > 3
    assert all(disk.size(f"journal/{name}") == FILE_BYTES for name in disk.list("journal"))
    found = recovered(disk)
    assert [entry.lsn for entry in found] == lsns
    assert [len(entry.payload) for entry in found] == [size // 8 * 8 for size in sizes]


@pytest.mark.parametrize("prepared", [False, True])
def test_an_entry_larger_than_a_file_gets_one_of_its_own_size(prepared: bool) -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    if prepared:
        journal.prepare()
    lsns = [append(journal, 10), append(journal, 5 * FILE_BYTES), append(journal, 10)]
    journal.commit()
    assert [entry.lsn for entry in recovered(disk)] == lsns
    assert max(disk.size(f"journal/{name}") for name in disk.list("journal")) > 5 * FILE_BYTES


def fill(journal: Journal) -> list[int]:
    """Entries until the journal is in another file, then a commit."""
    before, lsns = journal.epoch, []
    while journal.epoch == before:
        lsns.append(append(journal, 200))
    journal.commit()
    return lsns


def test_retired_files_are_used_again() -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    fill(journal)
    journal.retire(journal.epoch)
    disk.clear()
    journal.prepare()
    assert disk.count("create") == 0, "the retired file, under a new name"
    fill(journal)
    assert disk.count("create") == 0
    assert disk.list("journal") == [f"{epoch:016x}.journal" for epoch in (2, 3)]


def test_one_file_is_kept_for_reuse_and_the_others_removed() -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    for _ in range(4):
        fill(journal)
    journal.retire(journal.epoch)
    assert len(disk.list("journal")) == 2
    journal.prepare()
    assert len(disk.list("journal")) == 2


def test_a_prepared_file_too_small_for_an_entry_is_used_later() -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    journal.prepare()
    append(journal, 5 * FILE_BYTES)
    disk.clear()
    journal.prepare()
    assert disk.count("create") == 0
    assert disk.list("journal") == [f"{epoch:016x}.journal" for epoch in (1, 3, 4)]


def test_a_larger_file_is_not_kept() -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    append(journal, 5 * FILE_BYTES)
    journal.roll()
    journal.commit()
    journal.retire(journal.epoch)
    journal.prepare()
    assert all(disk.size(f"journal/{name}") == FILE_BYTES for name in disk.list("journal"))


def test_retiring_keeps_what_is_asked_for() -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    fill(journal)
    kept, first = journal.roll(), journal.next_lsn
    lsns = fill(journal)
    journal.retire(kept)
    assert journal_module.journal_epochs(disk)[-2:] == [kept, journal.epoch]
    assert [entry.lsn for entry in recovered(disk, kept, first)] == lsns


def test_entries_of_an_earlier_use_are_never_read() -> None:
    """A file comes back full of old entries, and only part of it is written again."""
    disk = MemoryDisk()
    journal = new_journal(disk)
    fill(journal)
    journal.retire(journal.epoch)
    journal.prepare()
    used_again = journal.epoch + 1
    first = journal.roll() and journal.next_lsn
    new = [append(journal, 16) for _ in range(3)]
    journal.commit()
    assert journal.epoch == used_again
    view = disk.open(file_name(used_again)).map()
    assert any(view[ENTRIES_START + 1024 :]), "the old entries are still behind the new ones"
    assert [entry.lsn for entry in recovered(disk, used_again, first)] == new


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 1500), st.booleans()), min_size=1, max_size=80))
def test_recycled_files_show_only_what_was_written_last(rounds) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    since: list[tuple[int, int, int]] = []  # epoch, next LSN, entries from there on
    lsns: list[int] = []
    for size, retire in rounds:
        lsns.append(append(journal, size))
        if retire:
            epoch = journal.roll()
            since.append((epoch, journal.next_lsn, len(lsns)))
            journal.commit()
            journal.retire(since[-2][0] if len(since) > 1 else 1)
            journal.prepare()
    journal.commit()
    for crash in (LoseAll(), KeepAll()):
        for epoch, next_lsn, kept in since[-2:] or [(1, 1, 0)]:
            found = recovered(disk.crash(crash), epoch, next_lsn)
            assert [entry.lsn for entry in found] == lsns[kept:]


def test_prepare_makes_one_file_and_roll_takes_it() -> None:
    disk = RecordingDisk(MemoryDisk())
    journal = new_journal(disk)
    journal.prepare()
    journal.prepare()
    assert disk.list("journal") == [f"{epoch:016x}.journal" for epoch in (1, 2)]
    disk.clear()
    assert journal.roll() == 2
    assert disk.operations == []


def test_a_missing_file_in_the_middle_is_named() -> None:
    disk = MemoryDisk()
    journal = new_journal(disk)
    for _ in range(3):
        fill(journal)
    disk.remove(file_name(2))
    with pytest.raises(CorruptData) as caught:
        recovered(disk)
    assert caught.value.file == file_name(2)


def test_a_missing_last_file_is_named() -> None:
    """The one before it says that there is another."""
    disk = MemoryDisk()
    journal = new_journal(disk)
    for _ in range(3):
        fill(journal)
    append(journal)
    journal.commit()
    disk.remove(file_name(journal.epoch))
    with pytest.raises(CorruptData) as caught:
        recovered(disk)
    assert caught.value.file == file_name(journal.epoch)


@pytest.mark.parametrize("left", [0, 10, 4096, 4096 + 60, FILE_BYTES - 1])
def test_a_file_that_was_cut_is_named(left: int) -> None:
    """Where it ends no entry would tell that there were more."""
    disk = MemoryDisk()
    journal = new_journal(disk)
    for _ in range(3):
        append(journal)
        journal.commit()
    journal.close()
    disk.open(file_name(1)).truncate(left)
    with pytest.raises(CorruptData) as caught:
        recovered(disk)
    assert (caught.value.file, caught.value.position) == (file_name(1), left)


def test_fill_and_live_bytes_follow_what_is_appended() -> None:
    journal = new_journal(MemoryDisk())
    assert journal.fill == ENTRIES_START / FILE_BYTES
    assert not journal.has_closed_since(1)
    append(journal, 2000)
    assert journal.fill > 0.7
    journal.commit()
    live = journal.live_bytes
    assert journal.roll() == 2
    assert journal.has_closed_since(1)
    assert not journal.has_closed_since(2)
    assert journal.live_bytes == live + 40 + ENTRIES_START  # where it goes on is an entry
