"""Lines of one kind in numbered files: ``login-00000007.jsonl``.

Files are never renamed: a place in them stays what it is. The newest is written; once it is full
the next begins, and the oldest goes. A line that could not be written whole is cut off again.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BLOCK_BYTES = 64 * 1024
NAME = re.compile(r"([a-z]+)-(\d{8,})\.jsonl")


class Place(NamedTuple):
    """The beginning of a line."""

    file: int
    byte: int


def numbers_in(directory: Path, kind: str) -> list[int]:
    """Of the files that are there, the oldest first."""
    try:
        found = [NAME.fullmatch(each.name) for each in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(each[2]) for each in found if each is not None and each[1] == kind)


def path_of(directory: Path, kind: str, number: int) -> Path:
    return directory / f"{kind}-{number:08d}.jsonl"


class LineWriter:
    """Raises OSError, and then what it was given is not in the file."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._kind = kind
        self._number = 0
        self._fd = -1
        self._size = 0

    def write(self, lines: bytes, file_bytes_max: int, files_max: int) -> None:
        if self._fd < 0:
            self._open((numbers_in(self._directory, self._kind) or [1])[-1])
        if self._size >= file_bytes_max:
            self._open(self._number + 1)
        for number in numbers_in(self._directory, self._kind)[:-files_max]:
            path_of(self._directory, self._kind, number).unlink(missing_ok=True)
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(lines)

    def _open(self, number: int) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path_of(self._directory, self._kind, number), flags, 0o600)
        self.close()
        self._fd, self._number, self._size = fd, number, os.fstat(fd).st_size
        if self._size and os.pread(fd, 1, self._size - 1) != b"\n":
            # A crash came while its last line was written.
            self._size += os.write(fd, b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1


def lines_before(directory: Path, kind: str, before: Place | None) -> Iterator[tuple[Place, bytes]]:
    """Whole lines and where they begin, the newest first; all of them, or those before a place."""
    for number in reversed(numbers_in(directory, kind)):
        if before is not None and number > before.file:
            continue
        end = before.byte if before is not None and number == before.file else None
        try:
            with path_of(directory, kind, number).open("rb") as file:
                for start, line in _backwards(file.fileno(), end):
                    yield Place(number, start), line
        except FileNotFoundError:
            continue  # it was the oldest, and went meanwhile


def _backwards(fd: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """What is behind the last end of a line is half of one: it is left out."""
    size = os.fstat(fd).st_size
    at = size if end is None else min(end, size)
    buffer, is_whole = b"", False
    while at > 0:
        begin = max(at - BLOCK_BYTES, 0)
        buffer = os.pread(fd, at - begin, begin) + buffer
        at = begin
        stop = buffer.rfind(b"\n") + 1
        if not stop:
            continue
        is_whole = True
        while (start := buffer.rfind(b"\n", 0, stop - 1) + 1) > 0:
            yield at + start, buffer[start : stop - 1]
            stop = start
        buffer = buffer[:stop]
    if is_whole:
        yield 0, buffer[:-1]
