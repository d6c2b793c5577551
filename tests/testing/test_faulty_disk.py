"""What a crash keeps, what a failed sync loses; and the smaller test tools."""

import errno
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.storage.disk import File, MemoryDisk
from braidmq.testing.clock import FakeClock
from braidmq.testing.faulty_disk import (
    SECTOR_BYTES,
    CrashChoice,
    CutAt,
    FaultyDisk,
    KeepAll,
    LoseAll,
    Random,
)
from braidmq.testing.recording_disk import Operation, RecordingDisk

POWER_LOSSES: list[CrashChoice] = [LoseAll(), CutAt(0), CutAt(1), CutAt(10**9)]
POWER_LOSSES += [Random(seed) for seed in range(30)]
CRASHES: list[CrashChoice] = [*POWER_LOSSES, KeepAll()]


def durable_file(disk: FaultyDisk, path: str, data: bytes = b"") -> File:
    file = disk.open(path, create=True)
    file.write(data, 0)
    file.sync()
    disk.sync_directory("")
    return file


def content(disk: FaultyDisk, path: str) -> bytes:
    return bytes(disk.open(path).map())


# --- bytes ---


@pytest.mark.parametrize("choice", CRASHES, ids=str)
def test_synced_bytes_with_a_synced_name_survive(choice: CrashChoice) -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"abc").write(b"x" * 2000, 3)
    assert content(disk.crash(choice), "a")[:3] == b"abc"


def test_a_power_loss_may_lose_what_was_not_synced() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"abc").write(b"XYZ", 0)
    assert content(disk, "a") == b"XYZ"
    assert content(disk.crash(LoseAll()), "a") == b"abc"


def test_a_kill_loses_nothing_but_makes_nothing_durable() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"abc").write(b"XYZ", 0)
    killed = disk.crash(KeepAll())
    assert content(killed, "a") == b"XYZ"
    assert content(killed.crash(LoseAll()), "a") == b"abc"
    killed.open("a").sync()
    assert content(killed.crash(LoseAll()), "a") == b"XYZ"


def test_a_crash_leaves_the_crashed_disk_alone() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a", b"abc")
    file.write(b"XYZ", 0)
    for choice in CRASHES:
        after = disk.crash(choice)
        after.open("a").write(b"other", 0)
        after.remove("a")
    assert content(disk, "a") == b"XYZ"
    assert disk.unsynced_bytes == 3


def test_a_cut_keeps_bytes_in_order_across_files() -> None:
    disk = FaultyDisk()
    a, b = durable_file(disk, "a"), durable_file(disk, "b")
    a.write(b"one", 0)
    b.write(b"two", 0)
    a.write(b"three", 3)
    kept = [disk.crash(CutAt(n)) for n in range(disk.unsynced_bytes + 1)]
    states = [content(after, "a") + b"|" + content(after, "b") for after in kept]
    assert states[:4] == [b"|", b"o|", b"on|", b"one|"]
    assert states[5:8] == [b"one|tw", b"one|two", b"onet|two"]
    assert states[-1] == b"onethree|two"


def test_a_truncate_is_durable_only_when_synced() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a", b"abcdef")
    file.truncate(2)
    assert content(disk.crash(LoseAll()), "a") == b"abcdef"
    file.sync()
    assert content(disk.crash(LoseAll()), "a") == b"ab"


def test_sectors_persist_out_of_order_but_whole() -> None:
    disk = FaultyDisk()
    size = 4 * SECTOR_BYTES
    durable_file(disk, "a", b"-" * size).write(b"x" * (size - 100), 100)
    seen = set()
    for seed in range(1000):
        after = content(disk.crash(Random(seed)), "a")
        sectors = [after[i : i + SECTOR_BYTES] for i in range(0, size, SECTOR_BYTES)]
        assert sectors[0] in (b"-" * SECTOR_BYTES, b"-" * 100 + b"x" * (SECTOR_BYTES - 100))
        assert all(len(set(sector)) == 1 for sector in sectors[1:])
        seen.add(tuple(sector[-1:] for sector in sectors))
    assert len(seen) == 2**4


def test_a_file_may_come_back_long_but_empty() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a").write(b"x" * SECTOR_BYTES, 0)
    states = {content(disk.crash(Random(seed)), "a") for seed in range(100)}
    assert states == {b"", bytes(SECTOR_BYTES), b"x" * SECTOR_BYTES}


def test_a_random_crash_can_be_repeated() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a").write(bytes(range(256)) * 20, 0)
    for seed in range(20):
        assert content(disk.crash(Random(seed)), "a") == content(disk.crash(Random(seed)), "a")


# --- names ---


def test_a_synced_file_is_lost_with_its_name() -> None:
    disk = FaultyDisk()
    file = disk.open("a", create=True)
    file.write(b"abc", 0)
    file.sync()
    assert not disk.crash(LoseAll()).exists("a")


def test_a_synced_name_without_synced_bytes_is_an_empty_file() -> None:
    disk = FaultyDisk()
    disk.open("a", create=True).write(b"abc", 0)
    disk.sync_directory("")
    assert content(disk.crash(LoseAll()), "a") == b""


def test_a_rename_is_atomic_and_durable_with_its_directory() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"old")
    durable_file(disk, "a.new", b"new")
    disk.rename("a.new", "a")
    for choice in POWER_LOSSES:
        after = disk.crash(choice)
        assert (after.list(""), content(after, "a")) in [
            (["a", "a.new"], b"old"),
            (["a"], b"new"),
        ]
    assert content(disk.crash(LoseAll()), "a") == b"old"
    disk.sync_directory("")
    assert content(disk.crash(LoseAll()), "a") == b"new"


def test_a_removed_name_may_come_back() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"abc")
    disk.remove("a")
    assert content(disk.crash(LoseAll()), "a") == b"abc"
    disk.sync_directory("")
    assert not disk.crash(LoseAll()).exists("a")


def test_a_directory_needs_its_own_name_synced() -> None:
    disk = FaultyDisk()
    disk.make_directory("d")
    file = disk.open("d/a", create=True)
    file.sync()
    disk.sync_directory("d")
    after = disk.crash(LoseAll())
    assert not after.exists("d")
    assert not after.exists("d/a")
    disk.sync_directory("")
    assert disk.crash(LoseAll()).list("d") == ["a"]


def test_names_are_kept_as_a_prefix() -> None:
    disk = FaultyDisk()
    for name in "abcd":
        disk.open(name, create=True)
    states = {tuple(disk.crash(Random(seed)).list("")) for seed in range(200)}
    assert states == {tuple("abcd"[:count]) for count in range(5)}


def test_a_rename_between_directories_is_durable_with_the_new_one() -> None:
    disk = FaultyDisk()
    disk.make_directory("d")
    durable_file(disk, "a", b"abc")
    disk.rename("a", "d/a")
    disk.sync_directory("")
    assert disk.crash(LoseAll()).exists("a")
    disk.sync_directory("d")
    after = disk.crash(LoseAll())
    assert (after.exists("a"), content(after, "d/a")) == (False, b"abc")


def test_a_reused_name_never_costs_the_file_renamed_away() -> None:
    disk = FaultyDisk()
    disk.make_directory("d")
    durable_file(disk, "a", b"first")
    disk.rename("a", "d/a")
    disk.open("a", create=True)
    disk.sync_directory("")
    assert content(disk.crash(LoseAll()), "d/a") == b"first"


def test_locks_do_not_survive() -> None:
    disk = FaultyDisk()
    disk.lock("lock")
    for choice in CRASHES:
        disk.crash(choice).lock("lock")


# --- faults ---


def test_a_failed_sync_is_not_mended_by_the_next() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a", b"abc")
    file.write(b"XYZ", 0)
    disk.fail_next("sync")
    with pytest.raises(OSError, match="injected") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.write(b"def", 3)
    file.sync()
    assert content(disk, "a") == b"XYZdef"
    assert content(disk.crash(KeepAll()), "a") == b"XYZdef"
    for choice in POWER_LOSSES:
        assert content(disk.crash(choice), "a") == b"abcdef"


def test_a_failed_sync_may_have_written_a_part() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a", b"abc")
    file.write(b"XYZ", 0)
    disk.fail_next("sync", partial=2)
    with pytest.raises(OSError, match="injected"):
        file.sync()
    assert content(disk.crash(LoseAll()), "a") == b"XYc"


def test_a_failed_sync_of_one_file_spares_the_others() -> None:
    disk = FaultyDisk()
    a, b = durable_file(disk, "a"), durable_file(disk, "b")
    a.write(b"a", 0)
    b.write(b"b", 0)
    disk.fail_next("sync")
    with pytest.raises(OSError, match="injected"):
        a.sync()
    b.sync()
    assert content(disk.crash(LoseAll()), "b") == b"b"


def test_a_failed_sync_all_drops_the_writes_of_all() -> None:
    disk = FaultyDisk()
    files = [durable_file(disk, name) for name in "ab"]
    for file in files:
        file.write(b"x", 0)
    disk.fail_next("sync")
    with pytest.raises(OSError, match="injected"):
        disk.sync_all(files)
    disk.sync_all(files)
    after = disk.crash(LoseAll())
    assert (content(after, "a"), content(after, "b")) == (b"", b"")


def test_the_nth_write_fails_once_with_the_given_error() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a")
    full = OSError(errno.ENOSPC, "full")
    disk.fail_next("write", error=full, after=2, partial=1)
    file.write(b"one", 0)
    with pytest.raises(OSError, match="full") as caught:
        file.write(b"two", 3)
    assert caught.value is full
    assert content(disk, "a") == b"onet"
    file.write(b"two", 3)
    file.sync()
    assert content(disk.crash(LoseAll()), "a") == b"onetwo"


def test_a_failed_write_writes_nothing_unless_told() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a", b"abc")
    disk.fail_next("write")
    with pytest.raises(OSError, match="injected"):
        file.write(b"XYZ", 0)
    assert content(disk, "a") == b"abc"
    assert disk.unsynced_bytes == 0


def test_a_failed_directory_sync_makes_no_name_durable() -> None:
    disk = FaultyDisk()
    disk.open("a", create=True)
    disk.fail_next("sync_directory")
    with pytest.raises(OSError, match="injected"):
        disk.sync_directory("")
    assert not disk.crash(LoseAll()).exists("a")


def test_a_slow_sync_covers_only_what_was_written_before_it() -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a")
    begun, go_on = threading.Event(), threading.Event()

    def linger() -> None:
        begun.set()
        go_on.wait()

    disk.slow_sync = linger
    file.write(b"before", 0)
    syncing = threading.Thread(target=file.sync)
    syncing.start()
    begun.wait()
    file.write(b"during", 6)
    assert content(disk.crash(LoseAll()), "a") == b""
    go_on.set()
    syncing.join()
    assert content(disk.crash(LoseAll()), "a") == b"before"


def test_a_flipped_bit_is_flipped_everywhere() -> None:
    disk = FaultyDisk()
    durable_file(disk, "a", b"\0\0").write(b"\0", 2)
    disk.flip_bit("a", 1)
    disk.flip_bit("a", 2, bit=7)
    assert content(disk, "a") == b"\0\x01\x80"
    assert content(disk.crash(LoseAll()), "a") == b"\0\x01"
    disk.open("a").sync()
    assert content(disk.crash(LoseAll()), "a") == b"\0\x01\x80"


# --- any history ---

choices = st.one_of(
    st.just(LoseAll()),
    st.just(KeepAll()),
    st.builds(CutAt, st.integers(0, 6000)),
    st.builds(Random, st.integers(0, 2**32)),
)
writes = st.tuples(st.just("write"), st.integers(0, 3000), st.binary(min_size=1, max_size=1500))
steps = st.lists(st.one_of(writes, st.just(("sync",)), st.just(("fail",))), max_size=12)


class ByteModel:
    """For every position, the values that a power loss may leave there."""

    def __init__(self) -> None:
        self.current = bytearray()
        self.possible: dict[int, set[int]] = {}
        self.unsynced: set[int] = set()
        self.dropped: set[int] = set()

    def write(self, position: int, data: bytes) -> None:
        self.current.extend(bytes(max(0, position + len(data) - len(self.current))))
        self.current[position : position + len(data)] = data
        for at, value in enumerate(data, position):
            self.possible.setdefault(at, {0}).add(value)
            self.unsynced.add(at)
            self.dropped.discard(at)

    def sync(self) -> None:
        for at in self.unsynced:
            self.possible[at] = {self.current[at]}
        self.unsynced.clear()

    def fail(self) -> None:
        self.dropped |= self.unsynced
        self.unsynced.clear()

    def certain(self) -> dict[int, int]:
        loose = self.unsynced | self.dropped
        return {at: self.current[at] for at in self.possible if at not in loose}


def perform(step: tuple[object, ...], disk: FaultyDisk, file: File, model: ByteModel) -> None:
    match step:
        case ("write", int(position), bytes(data)):
            file.write(data, position)
            model.write(position, data)
        case ("sync",):
            file.sync()
            model.sync()
        case _:
            disk.fail_next("sync")
            with pytest.raises(OSError, match="injected"):
                file.sync()
            model.fail()


@given(steps, choices)
def test_synced_bytes_survive_any_crash(
    history: list[tuple[object, ...]], choice: CrashChoice
) -> None:
    disk, model = FaultyDisk(), ByteModel()
    file = durable_file(disk, "a")
    for step in history:
        perform(step, disk, file, model)
    assert content(disk, "a") == model.current

    after = content(disk.crash(choice), "a")
    for at, value in model.certain().items():
        assert after[at] == value
    for at, value in enumerate(after):
        assert value in model.possible.get(at, {0})
    if isinstance(choice, KeepAll):
        assert after == model.current


@given(steps, choices)
def test_a_crash_that_follows_a_power_loss_changes_nothing(
    history: list[tuple[object, ...]], choice: CrashChoice
) -> None:
    disk = FaultyDisk()
    file = durable_file(disk, "a")
    for step in history:
        perform(step, disk, file, ByteModel())
    survived = disk.crash(CutAt(disk.unsynced_bytes // 2))
    assert content(survived.crash(choice), "a") == content(survived, "a")


# --- the recording disk and the clock ---


def test_operations_are_recorded_in_order() -> None:
    disk = RecordingDisk(MemoryDisk())
    file = disk.open("a", create=True)
    file.write(b"abc", 4)
    file.sync()
    file.truncate(5)
    disk.rename("a", "b")
    disk.sync_directory("")
    assert disk.operations == [
        Operation("create", "a"),
        Operation("write", "a", position=4, data=b"abc"),
        Operation("sync", "a"),
        Operation("synced", "a"),
        Operation("truncate", "a", size=5),
        Operation("rename", "a", new_path="b"),
        Operation("sync_directory", ""),
    ]
    assert (disk.count("sync"), disk.count("write", "a"), disk.count("write", "b")) == (1, 1, 0)
    disk.clear()
    assert disk.operations == []


def test_a_failed_sync_begins_and_never_ends() -> None:
    faulty = FaultyDisk()
    disk = RecordingDisk(faulty)
    file = disk.open("a", create=True)
    faulty.fail_next("sync")
    with pytest.raises(OSError, match="injected"):
        file.sync()
    assert (disk.count("sync"), disk.count("synced")) == (1, 0)


def test_sync_all_is_recorded_once_and_for_each_file() -> None:
    disk = RecordingDisk(MemoryDisk())
    disk.sync_all([disk.open(name, create=True) for name in "ab"])
    assert [op.kind for op in disk.operations[2:]] == ["sync_all", "sync", "sync"] + ["synced"] * 2


def test_threads_lose_no_record() -> None:
    disk = RecordingDisk(MemoryDisk())
    file = disk.open("a", create=True)

    def write_many() -> None:
        for position in range(200):
            file.write(b"x", position)

    threads = [threading.Thread(target=write_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.count("write") == 1600


def test_time_passes_when_told() -> None:
    clock = FakeClock(now_ms=1000)
    clock.advance(5)
    assert clock.now_ms() == 1005
    with pytest.raises(AssertionError):
        clock.advance(-1)
