"""One contract, kept by every disk; then what only the real one can show."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model.errors import DirectoryLocked
from braidmq.storage import disk as disk_module
from braidmq.storage.disk import SYNC_EACH_MAX, Disk, File, MemoryDisk, RealDisk
from braidmq.testing.faulty_disk import FaultyDisk
from braidmq.testing.recording_disk import RecordingDisk

DISKS: dict[str, Callable[[Path], Disk]] = {
    "real": RealDisk,
    "memory": lambda _: MemoryDisk(),
    "faulty": lambda _: FaultyDisk(),
    "recording": lambda root: RecordingDisk(RealDisk(root)),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return DISKS[request.param](tmp_path)


def create(disk: Disk, path: str, data: bytes = b"") -> File:
    file = disk.open(path, create=True)
    file.write(data, 0)
    return file


# --- files ---


def test_what_is_written_is_read(disk: Disk) -> None:
    file = create(disk, "a", b"hello world")
    assert file.path == "a"
    assert file.read(5, 6) == b"world"
    assert file.size() == disk.size("a") == 11


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_written(disk: Disk, kind: Callable[[bytes], bytes]) -> None:
    assert create(disk, "a", kind(b"abc")).read(3, 0) == b"abc"


def test_a_read_is_short_only_at_the_end(disk: Disk) -> None:
    file = create(disk, "a", b"abc")
    assert file.read(10, 1) == b"bc"
    assert file.read(10, 3) == b""
    assert file.read(10, 99) == b""
    assert file.read(0, 0) == b""


def test_a_write_overwrites_in_place(disk: Disk) -> None:
    file = create(disk, "a", b"abcdef")
    file.write(b"XY", 2)
    assert file.read(99, 0) == b"abXYef"


def test_a_gap_reads_as_zeros(disk: Disk) -> None:
    file = create(disk, "a", b"ab")
    file.write(b"z", 4)
    assert file.read(99, 0) == b"ab\0\0z"


def test_writing_nothing_beyond_the_end_does_not_grow_the_file(disk: Disk) -> None:
    file = create(disk, "a", b"ab")
    file.write(b"", 100)
    assert file.size() == 2


def test_truncate_shortens_and_extends_with_zeros(disk: Disk) -> None:
    file = create(disk, "a", b"abcdef")
    file.truncate(2)
    file.truncate(4)
    assert file.read(99, 0) == b"ab\0\0"


def test_two_handles_see_one_file(disk: Disk) -> None:
    first = create(disk, "a", b"one")
    second = disk.open("a")
    first.write(b"two", 0)
    assert second.read(3, 0) == b"two"


def test_create_refuses_a_file_that_exists(disk: Disk) -> None:
    create(disk, "a", b"kept")
    with pytest.raises(FileExistsError):
        disk.open("a", create=True)
    assert disk.open("a").read(9, 0) == b"kept"


@pytest.mark.parametrize("path", ["missing", "missing/a"])
def test_a_missing_file_is_not_found(disk: Disk, path: str) -> None:
    for ask in (disk.open, disk.size, disk.remove, lambda old: disk.rename(old, "b")):
        with pytest.raises(FileNotFoundError):
            ask(path)
    assert not disk.exists(path)


def test_a_file_needs_its_directory(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("missing/a", create=True)
    create(disk, "file")
    with pytest.raises(NotADirectoryError):
        disk.open("file/a", create=True)


def test_a_closed_file_refuses_everything_but_close(disk: Disk) -> None:
    file = create(disk, "a", b"abc")
    file.close()
    file.close()
    for use in (
        lambda: file.write(b"x", 0),
        lambda: file.read(1, 0),
        lambda: file.truncate(0),
        file.sync,
        file.map,
        file.size,
        lambda: disk.sync_all([file]),
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            use()
        assert caught.value.errno == errno.EBADF


# --- maps ---


def test_a_map_is_the_whole_file_read_only(disk: Disk) -> None:
    view = create(disk, "a", b"abc").map()
    assert bytes(view) == b"abc"
    assert view.readonly


def test_an_empty_file_has_an_empty_map(disk: Disk) -> None:
    assert len(create(disk, "a").map()) == 0


def test_a_map_outlives_close_remove_and_replacement(disk: Disk) -> None:
    removed, replaced = create(disk, "a", b"removed"), create(disk, "b", b"replaced")
    views = removed.map(), replaced.map()
    removed.close()
    replaced.close()
    disk.remove("a")
    create(disk, "c", b"new")
    disk.rename("c", "b")
    assert [bytes(view) for view in views] == [b"removed", b"replaced"]


def test_a_file_may_grow_while_mapped(disk: Disk) -> None:
    file = create(disk, "a", b"abc")
    view = file.map()
    file.write(b"def", 3)
    assert bytes(view) == b"abc"
    assert bytes(file.map()) == b"abcdef"


# --- names ---


def test_list_is_sorted_and_names_files_and_directories(disk: Disk) -> None:
    disk.make_directory("d/deep")
    for name in ("d/b", "d/a", "top"):
        create(disk, name)
    assert disk.list("d") == ["a", "b", "deep"]
    assert disk.list("") == disk.list(".") == ["d", "top"]
    assert disk.list("missing") == []
    with pytest.raises(NotADirectoryError):
        disk.list("top")


def test_make_directory_makes_parents_and_may_be_repeated(disk: Disk) -> None:
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/c")
    assert disk.exists("a")
    assert disk.exists("a/b/c/")
    disk.sync_directory("a/b")


def test_rename_replaces_and_open_files_follow_the_content(disk: Disk) -> None:
    old, new = create(disk, "old", b"old"), create(disk, "new", b"new")
    disk.rename("old", "new")
    assert disk.list("") == ["new"]
    assert disk.open("new").read(9, 0) == b"old"
    old.write(b"OLD", 0)
    assert disk.open("new").read(9, 0) == b"OLD"
    assert new.read(9, 0) == b"new"


def test_rename_to_itself_changes_nothing(disk: Disk) -> None:
    create(disk, "a", b"abc")
    disk.rename("a", "a")
    assert disk.open("a").read(9, 0) == b"abc"


def test_a_removed_file_is_gone_but_open_handles_work(disk: Disk) -> None:
    file = create(disk, "a", b"abc")
    disk.remove("a")
    assert not disk.exists("a")
    file.write(b"d", 3)
    file.sync()
    assert file.read(9, 0) == b"abcd"


def test_remove_and_open_are_for_files(disk: Disk) -> None:
    disk.make_directory("d")
    for ask in (disk.remove, disk.open):
        with pytest.raises(IsADirectoryError):
            ask("d")


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_no_path_leaves_the_root(disk: Disk, path: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        disk.open(path)


def test_a_missing_directory_cannot_be_synced(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.sync_directory("missing")


# --- syncs, space, locks ---


@pytest.mark.parametrize("count", [0, 1, SYNC_EACH_MAX, SYNC_EACH_MAX + 1])
def test_sync_all_takes_any_number_of_files(disk: Disk, count: int) -> None:
    disk.sync_all([create(disk, f"f{i}", b"x") for i in range(count)])


def test_free_bytes(disk: Disk) -> None:
    assert disk.free_bytes("") > 0


def test_a_second_lock_names_the_holder(disk: Disk) -> None:
    held = disk.lock("lock")
    with pytest.raises(DirectoryLocked, match=f"with pid {os.getpid()}"):
        disk.lock("lock")
    held.release()
    held.release()
    disk.lock("lock").release()
    assert disk.list("") == ["lock"]


def test_releasing_twice_does_not_free_the_next_holder(disk: Disk) -> None:
    first = disk.lock("lock")
    first.release()
    second = disk.lock("lock")
    first.release()
    with pytest.raises(DirectoryLocked):
        disk.lock("lock")
    second.release()


# --- only the real disk ---

LOCK_IN_CHILD = """
import sys
from pathlib import Path
from braidmq.model.errors import DirectoryLocked
from braidmq.storage.disk import RealDisk
try:
    lock = RealDisk(Path(sys.argv[1])).lock("lock")
except DirectoryLocked as error:
    sys.exit(str(error))
sys.stdout.write("locked\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def child_locking(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOCK_IN_CHILD, str(root)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_second_process_is_refused_at_once_and_told_our_pid(tmp_path: Path) -> None:
    held = RealDisk(tmp_path).lock("lock")
    # stdin stays open: only a refusal lets the child end.
    with child_locking(tmp_path) as child:
        assert child.wait(timeout=30) == 1
        assert child.stderr is not None
        message = child.stderr.read()
    assert f"{tmp_path} is in use by the BraidMQ node with pid {os.getpid()}" in message
    held.release()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    with child_locking(tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryLocked, match=f"with pid {child.pid}\\b"):
            RealDisk(tmp_path).lock("lock")
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
    RealDisk(tmp_path).lock("lock").release()


def test_a_longer_stale_pid_leaves_no_digits_behind(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999999999\n")
    held = RealDisk(tmp_path).lock("lock")
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    held.release()


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    RealDisk(tmp_path / "x" / "y").make_directory("")
    assert (tmp_path / "x" / "y").is_dir()


def test_files_are_closed_to_the_world_and_to_children(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).open("a", create=True)
    assert not os.get_inheritable(file.fd)  # type: ignore[attr-defined]
    assert (tmp_path / "a").stat().st_mode & 0o007 == 0


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 2), at))
    file = create(RealDisk(tmp_path), "a", b"0123456789")
    assert file.read(9, 1) == b"123456789"
    assert file.read(99, 4) == b"456789"


def test_a_write_that_ends_early_is_continued_and_where_it_can_not_be_an_error(
    tmp_path: Path,
) -> None:
    file = create(RealDisk(tmp_path), "a", b"")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            file.write_durably([b"01234", b"", b"56789abc", b"def"], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert file.read(99, 0) == b"0123456789"


@given(st.lists(st.binary(max_size=5), max_size=20), st.integers(0, 20), st.booleans())
def test_pieces_stand_end_to_end(pieces: list[bytes], position: int, durably: bool) -> None:
    written = [*pieces, b""] * 150  # more than one call of the kernel takes
    with TemporaryDirectory() as directory:
        file = create(RealDisk(Path(directory)), "a", bytes(position))
        if durably:
            file.write_durably(written, position)
        else:
            file.write_all(written, position)
        assert file.read(1 << 20, position) == b"".join(written)
        file.close()


class Syncs:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[int] = []
        self.filesystems: list[int] = []
        monkeypatch.setattr(os, "fdatasync", self.files.append)
        monkeypatch.setattr(disk_module, "_syncfs", self.filesystems.append)


def test_many_files_are_one_syncfs_through_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_SYNCFS_REPORTS_ERRORS", True)
    syncs = Syncs(monkeypatch)
    files = [create(RealDisk(tmp_path), f"f{i}") for i in range(SYNC_EACH_MAX + 1)]
    RealDisk(tmp_path).sync_all(files[::-1])
    assert syncs.files == []
    assert syncs.filesystems == [files[0].fd]  # type: ignore[attr-defined]


def test_few_files_are_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    files = [create(RealDisk(tmp_path), f"f{i}") for i in range(SYNC_EACH_MAX)]
    RealDisk(tmp_path).sync_all(files)
    assert len(syncs.files) == SYNC_EACH_MAX
    assert syncs.filesystems == []


def test_a_kernel_whose_syncfs_hides_errors_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_SYNCFS_REPORTS_ERRORS", False)
    syncs = Syncs(monkeypatch)
    files = [create(RealDisk(tmp_path), f"f{i}") for i in range(SYNC_EACH_MAX + 1)]
    RealDisk(tmp_path).sync_all(files)
    assert len(syncs.files) == SYNC_EACH_MAX + 1


def test_a_failed_syncfs_raises() -> None:
    with pytest.raises(OSError, match="syncfs") as caught:
        disk_module._syncfs(-1)
    assert caught.value.errno == errno.EBADF


def test_memory_has_the_capacity_it_was_given() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    create(disk, "a", b"abc")
    assert disk.free_bytes("") == 7
