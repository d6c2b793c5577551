"""The thread that writes: in order, up to the first error, and telling of it."""

import errno
import os
import select
from pathlib import Path

import pytest

from braidmq.storage.writing import WritingThread


@pytest.fixture
def thread():
    made = WritingThread("test")
    yield made
    made.stop()
    made.close()


def outcome(thread: WritingThread) -> int:
    """The error number of the job that runs."""
    while True:
        assert select.select([thread.fd], [], [], 10)[0], "the thread said nothing"
        done = thread.take_done()
        if done is not None:
            assert done[1] >= 0
            return done[0]


def test_pieces_of_several_steps_stand_where_they_belong(
    thread: WritingThread, tmp_path: Path
) -> None:
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    assert thread.take_done() is None
    many = [bytes([number % 256]) * 3 for number in range(3000)]
    thread.start([(files[0], many, 4, True), (files[1], [b"x", b"", bytearray(b"yz")], 0, False)])
    assert outcome(thread) == 0
    assert (tmp_path / "a").read_bytes() == bytes(4) + b"".join(many)
    assert (tmp_path / "b").read_bytes() == b"xyz"
    # A step may be a sync alone.
    thread.start([(files[0], (), 0, True)])
    assert outcome(thread) == 0
    for file in files:
        os.close(file)


def test_after_an_error_nothing_more_is_written(thread: WritingThread, tmp_path: Path) -> None:
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    read_only = os.open(tmp_path / "a", os.O_RDONLY)
    thread.start([(file, [b"1"], 0, False), (read_only, [b"2"], 1, True), (file, [b"3"], 2, True)])
    assert outcome(thread) == errno.EBADF
    assert (tmp_path / "a").read_bytes() == b"1"
    thread.start([(file, [b"4"], 1, True)])
    assert outcome(thread) == 0
    for each in (file, read_only):
        os.close(each)


def test_what_is_being_written_stays_in_place(thread: WritingThread, tmp_path: Path) -> None:
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    piece = bytearray(b"piece")
    thread.start([(file, [piece], 0, True)])
    with pytest.raises(BufferError):
        piece.append(0)
    assert outcome(thread) == 0
    piece.append(0)
    os.close(file)


def test_a_pause_after_a_sync_is_told_once(thread: WritingThread, tmp_path: Path) -> None:
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    thread.start([(file, [b"1"], 0, True)])
    assert outcome(thread) == 0
    assert not thread.take_pause()
    assert select.select([thread.fd], [], [], 10)[0]
    assert thread.take_done() is None
    assert thread.take_pause()
    assert not thread.take_pause()
    os.close(file)


def test_stopping_waits_for_what_is_being_written(tmp_path: Path) -> None:
    thread = WritingThread("test")
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    thread.start([(file, [bytes(1 << 20)] * 8, 0, True)])
    thread.stop()
    done = thread.take_done()
    assert done is not None
    assert done[0] == 0
    assert (tmp_path / "a").stat().st_size == 8 << 20
    thread.close()
    os.close(file)
