"""Numbered files of lines: read backwards from any place, bounded, whole after a crash."""

import errno
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.audit import files
from braidmq.audit.files import LineWriter, lines_before, numbers_in, path_of

LINES = st.lists(st.binary(min_size=1, max_size=40).map(lambda each: each.replace(b"\n", b"x")))


@settings(deadline=None)
@given(LINES, st.integers(1, 200), st.integers(1, 30), st.data())
def test_what_is_written_is_read_backwards_from_any_line(
    lines: list[bytes], file_bytes: int, block: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block)
        directory = Path(name)
        writer = LineWriter(directory, "login")
        for line in lines:
            writer.write(line + b"\n", file_bytes, 1000)
        writer.close()
        found = list(lines_before(directory, "login", None))
        assert [line for _, line in found] == lines[::-1]
        if found:
            at = data.draw(st.integers(0, len(found) - 1))
            later = list(lines_before(directory, "login", found[at][0]))
            assert later == found[at + 1 :]


@given(st.integers(1, 5), st.integers(0, 40))
@settings(deadline=None)
def test_files_are_bounded_in_size_and_number(files_max: int, count: int) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        writer = LineWriter(directory, "login")
        other = LineWriter(directory, "refused")
        other.write(b"stays\n", 10, 1)
        for number in range(count):
            writer.write(b"%09d\n" % number, 25, files_max)
        writer.close()
        other.close()
        numbers = numbers_in(directory, "login")
        assert len(numbers) <= files_max
        assert all(path_of(directory, "login", each).stat().st_size <= 30 for each in numbers)
        kept = [int(line) for _, line in lines_before(directory, "login", None)]
        assert kept == list(range(count))[::-1][: len(kept)]
        assert len(kept) >= min(count, 3 * (files_max - 1))
        assert [line for _, line in lines_before(directory, "refused", None)] == [b"stays"]


def test_only_the_node_may_read_them(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "audit", "login")
    writer.write(b"x\n", 100, 1)
    writer.close()
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(tmp_path / "audit", "login", 1).stat().st_mode) == 0o600


def test_half_a_line_of_a_crash_spoils_no_other(tmp_path: Path) -> None:
    path_of(tmp_path, "login", 3).write_bytes(b"whole\nhal")
    assert [line for _, line in lines_before(tmp_path, "login", None)] == [b"whole"]
    writer = LineWriter(tmp_path, "login")
    writer.write(b"next\n", 100, 1)
    writer.close()
    assert [line for _, line in lines_before(tmp_path, "login", None)] == [
        b"next",
        b"hal",
        b"whole",
    ]


def test_what_a_full_disk_took_half_of_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LineWriter(tmp_path, "login")
    writer.write(b"first\n", 100, 1)
    real = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="no space"):
            writer.write(b"does not fit\n", 100, 1)
    assert path_of(tmp_path, "login", 1).read_bytes() == b"first\n"
    writer.write(b"third\n", 100, 1)
    assert path_of(tmp_path, "login", 1).read_bytes() == b"first\nthird\n"
