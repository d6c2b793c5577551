"""Disks under a node that is to end at a given operation."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from braidmq.record.buffer import Buffer
from braidmq.storage.disk import (
    File,
    MemoryContent,
    MemoryDirectory,
    Node,
    RealDisk,
    RealFile,
)
from braidmq.testing.crash.faults import Fault, Moment
from braidmq.testing.faulty_disk import FaultyDisk, Random


class Trigger:
    """Counts operations at the fault's place and pulls when it is time."""

    def __init__(self, fault: Fault, pull: Callable[[], None]) -> None:
        self._fault = fault
        self._pull = pull
        self._left = fault.nth
        self._is_armed = fault.in_start
        self._mutex = threading.Lock()

    def arm(self) -> None:
        """The node is up."""
        self._is_armed = not self._fault.in_start

    def moment(self, operation: str, path: str) -> Moment | None:
        """When in this operation the end comes, if it comes in it."""
        fault = self._fault
        if not self._is_armed or operation != fault.operation:
            return None
        if path.partition("/")[0] != fault.directory:
            return None
        with self._mutex:
            self._left -= 1
            return fault.moment if self._left == 0 else None

    def pull(self) -> None:
        self._pull()

    @contextmanager
    def around(self, operation: str, path: str) -> Iterator[None]:
        moment = self.moment(operation, path)
        if moment == "before":
            self._pull()
        yield
        if moment is not None:
            self._pull()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- kill -9: the page cache survives ---


class TriggeredFile(RealFile):
    __slots__ = ("trigger",)

    def __init__(self, path: str, fd: int, trigger: Trigger) -> None:
        super().__init__(path, fd)
        self.trigger = trigger

    def _write(self, pieces: Sequence[Buffer], position: int, *, durably: bool) -> None:
        moment = self.trigger.moment("write", self.path)
        if moment == "before":
            self.trigger.pull()
        if moment == "during":
            whole = b"".join(pieces)
            super()._write([whole[: len(whole) // 2]], position, durably=False)
            self.trigger.pull()
        super()._write(pieces, position, durably=durably)
        if moment == "after":
            self.trigger.pull()

    def sync(self) -> None:
        with self.trigger.around("sync", self.path):
            super().sync()


class TriggeredDisk(RealDisk):
    """The real one, for commits by the compiled thread too."""

    def __init__(self, root: Path, trigger: Trigger) -> None:
        super().__init__(root)
        self._trigger = trigger

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            with self._trigger.around("create", path):
                file = super().open(path, create=True)
        else:
            file = super().open(path)
        assert isinstance(file, RealFile)
        return TriggeredFile(path, file.fd, self._trigger)

    def rename(self, old: str, new: str) -> None:
        with self._trigger.around("rename", new):
            super().rename(old, new)

    def remove(self, path: str) -> None:
        with self._trigger.around("remove", path):
            super().remove(path)

    def sync_directory(self, path: str) -> None:
        with self._trigger.around("sync_directory", path):
            super().sync_directory(path)

    def sync_all(self, files: Sequence[File]) -> None:
        with self._trigger.around("sync", files[0].path if files else ""):
            super().sync_all(files)


# --- a power cut: what was not synced is left to chance ---


class PowerCutDisk(FaultyDisk):
    """Holds the directory in memory and knows what is synced; at the cut it leaves in the directory
    what a power loss would."""

    def __init__(self, root: Path, fault: Fault) -> None:
        super().__init__()
        self.root = root
        self._paths: dict[MemoryContent, str] = {}
        self._seed = fault.seed
        self._trigger = Trigger(fault, self.cut)
        self._load()

    @property
    def trigger(self) -> Trigger:
        return self._trigger

    def _load(self) -> None:
        for path in sorted(self.root.rglob("*")) if self.root.exists() else ():
            name = path.relative_to(self.root).as_posix()
            node: Node = MemoryDirectory()
            if path.is_file():
                node = MemoryContent(path.read_bytes())
                self._durable[node] = bytearray(node.data)
                self._paths[node] = name
            self._names[name] = node
        self._durable_names = dict(self._names)

    def cut(self) -> None:
        with self._mutex:  # whoever wants to write or sync waits here for the end
            left = self.crash(Random(self._seed))
            fresh = self.root.with_name(self.root.name + ".fresh")
            _write_out(left, fresh)
            old = self.root.with_name(self.root.name + ".old")
            if self.root.exists():
                self.root.rename(old)
            fresh.rename(self.root)
            kill_self()

    # operations that may be the last

    def open(self, path: str, *, create: bool = False) -> File:
        if not create:
            return super().open(path)
        with self._trigger.around("create", path):
            return super().open(path, create=True)

    def rename(self, old: str, new: str) -> None:
        with self._trigger.around("rename", new):
            super().rename(old, new)

    def remove(self, path: str) -> None:
        with self._trigger.around("remove", path):
            super().remove(path)

    def sync_directory(self, path: str) -> None:
        with self._trigger.around("sync_directory", path):
            super().sync_directory(path)

    def change_bytes(self, content: MemoryContent, position: int, data: Buffer) -> None:
        with self._trigger.around("write", self._path_of(content)):
            super().change_bytes(content, position, data)

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        path = self._path_of(contents[0]) if contents else ""
        with self._trigger.around("sync", path):
            super().sync_contents(contents)

    def _path_of(self, content: MemoryContent) -> str:
        return self._paths.get(content, "")

    def change_names(self, changes: Mapping[str, Node | None]) -> None:
        super().change_names(changes)
        for path, node in changes.items():
            if isinstance(node, MemoryContent):
                self._paths[node] = path


def _write_out(disk: FaultyDisk, root: Path) -> None:
    root.mkdir()
    for name, node in sorted(disk.names.items()):
        if isinstance(node, MemoryDirectory):
            (root / name).mkdir(exist_ok=True)
        else:
            (root / name).write_bytes(node.data)
