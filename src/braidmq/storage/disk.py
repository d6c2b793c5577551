"""The disk seam: everything storage asks of a disk, so that a test can be the disk.

Paths are strings relative to the root of the disk; ``""`` is the root itself. Names and bytes are
made durable apart: ``File.sync`` for the bytes, ``Disk.sync_directory`` for the name.
"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from braidmq.model.errors import DirectoryLocked
from braidmq.model.limits import GIB
from braidmq.record.buffer import Buffer
from braidmq.storage.copying import copy_into
from braidmq.storage.writing import write_pieces

Names = list[str]  # inside a class with a method ``list``, that word is the method

SYNC_EACH_MAX = 16
"""Up to this many files are synced one by one; beyond it one syncfs waits for the disk once."""

FILE_MODE = 0o640
"""Messages are nobody's business but the broker's and, for backups, its group's."""


class File(Protocol):
    """An open file. After ``close`` every method but ``close`` raises OSError (EBADF)."""

    path: str

    def write(self, data: Buffer, position: int) -> None:
        """Write all of ``data``; after an OSError any part of it may have been written."""

    def write_all(self, pieces: Sequence[Buffer], position: int) -> None:
        """``write`` for pieces that stand end to end in the file."""

    def write_durably(self, pieces: Sequence[Buffer], position: int) -> None:
        """``write_all`` and ``sync``, in one step for other threads."""

    def sync(self) -> None:
        """Make every write that returned before this call durable."""

    def read(self, length: int, position: int) -> bytes:
        """Short only at the end of the file."""

    def map(self) -> memoryview:
        """The whole file as it is now, read-only, valid after ``close`` and ``Disk.remove``.

        Later writes may or may not show. Never ``truncate`` a mapped file below what is read: on a
        real disk that is SIGBUS.
        """

    def truncate(self, size: int) -> None: ...
    def reserve(self, size: int) -> None:
        """Give a new file its size and room on the disk, all zeros, without writing them."""

    def size(self) -> int: ...
    def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open to read and write; ``create`` makes an empty file and refuses one that exists."""

    def exists(self, path: str) -> bool: ...
    def list(self, directory: str) -> Names:
        """Sorted names of files and directories; empty when ``directory`` is missing."""

    def size(self, path: str) -> int: ...
    def make_directory(self, path: str) -> None:
        """With its parents; fine when it exists."""

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` in one step. For files only."""

    def remove(self, path: str) -> None:
        """For files only."""

    def sync_directory(self, path: str) -> None:
        """Make names made, renamed and removed in it durable; not those in directories below."""

    def sync_all(self, files: Sequence[File]) -> None:
        """``sync`` for many files. After an OSError none of them may be believed."""

    def lock(self, path: str) -> DirectoryLock:
        """Raises DirectoryLocked at once, naming the holder, when another has it."""

    def free_bytes(self, path: str) -> int: ...


def relative(path: str) -> str:
    """The one spelling of ``path``; refuses what would leave the root."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{path!r} leads out of the data directory")
    return str(pure)


def parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _refuse(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


# --- the real disk ---

_libc = ctypes.CDLL(None, use_errno=True)
_open_order = itertools.count()


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


# Before Linux 5.8 syncfs(2) answers 0 even when writing back failed: it cannot be believed.
_SYNCFS_REPORTS_ERRORS = hasattr(_libc, "syncfs") and _kernel_version() >= (5, 8)


def _syncfs(fd: int) -> None:
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class RealFile:
    __slots__ = ("_fd", "opened", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.opened = next(_open_order)
        self._fd = fd

    @property
    def fd(self) -> int:
        if self._fd < 0:  # some of os.* would answer ValueError, which nobody expects of a disk
            raise _refuse(errno.EBADF, self.path)
        return self._fd

    def write(self, data: Buffer, position: int) -> None:
        self._write([data], position, durably=False)

    def write_all(self, pieces: Sequence[Buffer], position: int) -> None:
        self._write(pieces, position, durably=False)

    def write_durably(self, pieces: Sequence[Buffer], position: int) -> None:
        self._write(pieces, position, durably=True)

    def _write(self, pieces: Sequence[Buffer], position: int, *, durably: bool) -> None:
        failed = write_pieces(self.fd, pieces, position, durably)
        if failed:
            raise _refuse(failed, self.path)

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def read(self, length: int, position: int) -> bytes:
        chunk = os.pread(self.fd, length, position)
        if len(chunk) == length:
            return chunk
        chunks = []
        while chunk:
            chunks.append(chunk)
            length -= len(chunk)
            position += len(chunk)
            chunk = os.pread(self.fd, length, position)
        return b"".join(chunks)

    def map(self) -> memoryview:
        if self.size() == 0:  # mmap(2) refuses an empty file
            return memoryview(b"")
        return memoryview(mmap.mmap(self.fd, 0, prot=mmap.PROT_READ))

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def reserve(self, size: int) -> None:
        os.posix_fallocate(self.fd, 0, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def device(self) -> int:
        return os.fstat(self.fd).st_dev

    def sync_filesystem(self) -> None:
        _syncfs(self.fd)

    def close(self) -> None:
        # The number is forgotten first: closing it twice would close a stranger's file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDirectoryLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Unlocked by name: a forked child that shares the descriptor would keep it locked.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


class RealDisk:
    def __init__(self, root: Path) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        return self.root / relative(path)

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(path, os.open(self._at(path), flags, FILE_MODE))

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def list(self, directory: str) -> Names:
        try:
            return sorted(entry.name for entry in self._at(directory).iterdir())
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def make_directory(self, path: str) -> None:
        self._make_root()
        self._at(path).mkdir(parents=True, exist_ok=True)

    def _make_root(self) -> None:
        # Nobody above can name the parents of the root, so they are made durable here.
        missing = itertools.takewhile(lambda p: not p.exists(), (self.root, *self.root.parents))
        for directory in reversed(tuple(missing)):
            directory.mkdir(exist_ok=True)
            _sync_directory(directory.parent)

    def rename(self, old: str, new: str) -> None:
        self._at(old).replace(self._at(new))

    def remove(self, path: str) -> None:
        self._at(path).unlink()

    def sync_directory(self, path: str) -> None:
        _sync_directory(self._at(path))

    def sync_all(self, files: Sequence[File]) -> None:
        devices: defaultdict[int, list[RealFile]] = defaultdict(list)
        for file in files:
            assert isinstance(file, RealFile)
            devices[file.device()].append(file)
        for group in devices.values():
            self._sync_group(group)

    def _sync_group(self, files: Sequence[RealFile]) -> None:
        if len(files) > SYNC_EACH_MAX and _SYNCFS_REPORTS_ERRORS:
            # A descriptor hears only of failures after it was opened: the oldest hears of all.
            min(files, key=lambda file: file.opened).sync_filesystem()
            return
        for file in files:
            file.sync()

    def lock(self, path: str) -> DirectoryLock:
        fd = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            self._claim(fd)
        except BaseException:
            os.close(fd)
            raise
        return RealDirectoryLock(fd)

    def _claim(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Empty for the moment between the holder's truncate and its write.
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise DirectoryLocked(
                f"{self.root} is in use by the BraidMQ node with pid {pid}"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(self._at(path))
        return status.f_bavail * status.f_frsize


# --- a disk of memory ---


class MemoryDirectory:
    """Marks a name as a directory's."""


class MemoryContent:
    """What a name leads to; lives on while a file is open, whatever happens to the name."""

    def __init__(self, data: Buffer = b"") -> None:
        self.data = bytearray(data)


Node = MemoryContent | MemoryDirectory


def put(data: bytearray, position: int, chunk: Buffer) -> None:
    """As pwrite: a gap before ``position`` becomes zeros."""
    end = position + len(chunk)
    if end <= len(data):
        copy_into(data, position, chunk)
        return
    data.extend(bytes(max(0, position - len(data))))
    data[position:end] = chunk


def resize(data: bytearray, size: int) -> None:
    """As ftruncate: shorter, or longer with zeros."""
    del data[size:]
    data.extend(bytes(size - len(data)))


class MemoryFile:
    def __init__(self, disk: "MemoryDisk", path: str, content: MemoryContent) -> None:
        self.path = path
        self._disk = disk
        self._content: MemoryContent | None = content

    @property
    def content(self) -> MemoryContent:
        if self._content is None:
            raise _refuse(errno.EBADF, self.path)
        return self._content

    def write(self, data: Buffer, position: int) -> None:
        self._disk.change_bytes(self.content, position, data)

    def write_all(self, pieces: Sequence[Buffer], position: int) -> None:
        for piece in pieces:
            self.write(piece, position)
            position += len(piece)

    def write_durably(self, pieces: Sequence[Buffer], position: int) -> None:
        self.write_all(pieces, position)
        self.sync()

    def sync(self) -> None:
        self._disk.sync_contents([self.content])

    def read(self, length: int, position: int) -> bytes:
        return bytes(self.content.data[position : position + length])

    def map(self) -> memoryview:
        return memoryview(bytes(self.content.data))

    def truncate(self, size: int) -> None:
        self._disk.change_size(self.content, size)

    def reserve(self, size: int) -> None:
        self.truncate(size)

    def size(self) -> int:
        return len(self.content.data)

    def close(self) -> None:
        self._content = None


class MemoryDirectoryLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path: str | None = path

    def release(self) -> None:
        if self._path is not None:
            self._held.discard(self._path)
            self._path = None


class MemoryDisk:
    """For tests and throw-away namespaces. All changes pass through the four methods
    ``change_names``, ``change_bytes``, ``change_size`` and ``sync_contents``: FaultyDisk listens
    there."""

    def __init__(self, *, capacity_bytes: int = 1024 * GIB) -> None:
        self.capacity_bytes = capacity_bytes
        self._names: dict[str, Node] = {".": MemoryDirectory()}
        self._held: set[str] = set()
        self._mutex = threading.RLock()

    def change_names(self, changes: Mapping[str, Node | None]) -> None:
        """None removes the name."""
        for path, node in changes.items():
            if node is None:
                del self._names[path]
            else:
                self._names[path] = node

    def change_bytes(self, content: MemoryContent, position: int, data: Buffer) -> None:
        if len(data):  # as on a real disk, writing nothing beyond the end does not grow a file
            with self._mutex:
                put(content.data, position, data)

    def change_size(self, content: MemoryContent, size: int) -> None:
        with self._mutex:
            resize(content.data, size)

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        """Memory has nothing more durable to offer."""

    def _content(self, path: str) -> MemoryContent:
        node = self._names.get(relative(path))
        if node is None:
            raise _refuse(errno.ENOENT, path)
        if isinstance(node, MemoryDirectory):
            raise _refuse(errno.EISDIR, path)
        return node

    def _require_directory(self, path: str) -> None:
        node = self._names.get(relative(path))
        if node is None:
            raise _refuse(errno.ENOENT, path)
        if not isinstance(node, MemoryDirectory):
            raise _refuse(errno.ENOTDIR, path)

    def open(self, path: str, *, create: bool = False) -> File:
        with self._mutex:
            if create:
                self._create(path)
            return MemoryFile(self, path, self._content(path))

    def _create(self, path: str) -> None:
        if self.exists(path):
            raise _refuse(errno.EEXIST, path)
        self._require_directory(parent(relative(path)))
        self.change_names({relative(path): MemoryContent()})

    def exists(self, path: str) -> bool:
        return relative(path) in self._names

    def list(self, directory: str) -> Names:
        with self._mutex:
            if not self.exists(directory):
                return []
            self._require_directory(directory)
            inside = relative(directory)
            names = (name for name in self._names if name != "." and parent(name) == inside)
            return sorted(PurePosixPath(name).name for name in names)

    def size(self, path: str) -> int:
        return len(self._content(path).data)

    def make_directory(self, path: str) -> None:
        pure = PurePosixPath(relative(path))
        with self._mutex:
            for directory in map(str, (*reversed(pure.parents), pure)):
                if directory not in self._names:
                    self.change_names({directory: MemoryDirectory()})
                self._require_directory(directory)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            content = self._content(old)
            self._require_directory(parent(relative(new)))
            if self.exists(new):
                self._content(new)
            if relative(old) != relative(new):
                self.change_names({relative(old): None, relative(new): content})

    def remove(self, path: str) -> None:
        with self._mutex:
            self._content(path)
            self.change_names({relative(path): None})

    def sync_directory(self, path: str) -> None:
        self._require_directory(path)

    def sync_all(self, files: Sequence[File]) -> None:
        contents = []
        for file in files:
            assert isinstance(file, MemoryFile)
            contents.append(file.content)
        self.sync_contents(contents)

    def lock(self, path: str) -> DirectoryLock:
        with self._mutex:
            if relative(path) in self._held:
                raise DirectoryLocked(
                    f"memory is in use by the BraidMQ node with pid {os.getpid()}"
                )
            if not self.exists(path):
                self._create(path)
            self._held.add(relative(path))
            return MemoryDirectoryLock(self._held, relative(path))

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            self._require_directory(path)
            nodes = self._names.values()
            used = sum(len(node.data) for node in nodes if isinstance(node, MemoryContent))
            return max(0, self.capacity_bytes - used)
