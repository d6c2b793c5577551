"""A disk that does what another does and remembers what it was asked, in order.

A write is recorded when it has returned and a sync when it begins, so in ``operations`` a write
above a ``sync`` of its file is certainly covered by it. ``synced`` follows when the sync returned
without an error; a failed one has none. Questions (exists, list, size, free_bytes) are not
recorded.
"""

import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple

from braidmq.record.buffer import Buffer
from braidmq.storage.disk import DirectoryLock, Disk, File, Names

OperationKind = Literal[
    "open",
    "create",
    "write",
    "read",
    "map",
    "truncate",
    "sync",
    "synced",
    "close",
    "make_directory",
    "rename",
    "remove",
    "sync_directory",
    "sync_all",
    "lock",
]


class Operation(NamedTuple):
    kind: OperationKind
    path: str
    position: int = 0
    data: bytes = b""
    size: int = 0
    """Bytes asked of a read, the new size of a truncate, the number of files of a sync_all."""
    new_path: str = ""


class RecordingFile:
    def __init__(self, disk: "RecordingDisk", inner: File) -> None:
        self.path = inner.path
        self.inner = inner
        self._disk = disk

    def write(self, data: Buffer, position: int) -> None:
        self.inner.write(data, position)
        self._disk.record(Operation("write", self.path, position, bytes(data)))

    def write_all(self, pieces: Sequence[Buffer], position: int) -> None:
        self.inner.write_all(pieces, position)
        self._disk.record(Operation("write", self.path, position, b"".join(pieces)))

    def write_durably(self, pieces: Sequence[Buffer], position: int) -> None:
        self.write_all(pieces, position)
        self.sync()

    def sync(self) -> None:
        self._disk.record(Operation("sync", self.path))
        self.inner.sync()
        self._disk.record(Operation("synced", self.path))

    def read(self, length: int, position: int) -> bytes:
        data = self.inner.read(length, position)
        self._disk.record(Operation("read", self.path, position, data, length))
        return data

    def map(self) -> memoryview:
        view = self.inner.map()
        self._disk.record(Operation("map", self.path))
        return view

    def reserve(self, size: int) -> None:
        self.inner.reserve(size)
        self._disk.record(Operation("truncate", self.path, size=size))

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)
        self._disk.record(Operation("truncate", self.path, size=size))

    def size(self) -> int:
        return self.inner.size()

    def close(self) -> None:
        self.inner.close()
        self._disk.record(Operation("close", self.path))


class RecordingDisk:
    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self._operations: list[Operation] = []
        self._mutex = threading.Lock()

    @property
    def operations(self) -> Sequence[Operation]:
        """A copy: threads may go on recording while a test looks."""
        with self._mutex:
            return list(self._operations)

    def record(self, *operations: Operation) -> None:
        with self._mutex:
            self._operations.extend(operations)

    def count(self, kind: OperationKind, path: str | None = None) -> int:
        return sum(op.kind == kind and path in (None, op.path) for op in self.operations)

    def clear(self) -> None:
        with self._mutex:
            self._operations.clear()

    def open(self, path: str, *, create: bool = False) -> File:
        file = self.inner.open(path, create=create)
        self.record(Operation("create" if create else "open", path))
        return RecordingFile(self, file)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list(self, directory: str) -> Names:
        return self.inner.list(directory)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)
        self.record(Operation("make_directory", path))

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)
        self.record(Operation("rename", old, new_path=new))

    def remove(self, path: str) -> None:
        self.inner.remove(path)
        self.record(Operation("remove", path))

    def sync_directory(self, path: str) -> None:
        self.inner.sync_directory(path)
        self.record(Operation("sync_directory", path))

    def sync_all(self, files: Sequence[File]) -> None:
        """Recorded as one sync_all, and for each file a sync and a synced."""
        paths = [file.path for file in files]
        begun = [Operation("sync", path) for path in paths]
        self.record(Operation("sync_all", "", size=len(paths)), *begun)
        self.inner.sync_all([_unwrap(file) for file in files])
        self.record(*(Operation("synced", path) for path in paths))

    def lock(self, path: str) -> DirectoryLock:
        held = self.inner.lock(path)
        self.record(Operation("lock", path))
        return held

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)


def _unwrap(file: File) -> File:
    assert isinstance(file, RecordingFile)
    return file.inner
