"""A disk in memory that forgets, tears, fails and lingers as real ones do.

Bytes and names each have two states: what a reader sees, and what a power loss leaves. Between
them lies one ordered list of unsynced operations. ``File.sync`` moves a file's writes and
truncates from that list to the durable state, ``sync_directory`` a directory's names. A power
loss is a choice of which unsynced operations, or pieces of them, had reached the disk by then.
This is the pessimistic reading of ext4: syncing a new file does not make its name durable.
"""

import copy
import errno
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from braidmq.record.buffer import Buffer
from braidmq.storage.disk import (
    MemoryContent,
    MemoryDirectory,
    MemoryDisk,
    Node,
    parent,
    put,
    relative,
    resize,
)

SECTOR_BYTES = 512
"""The least a disk writes in one piece."""

FaultKind = Literal["write", "sync", "sync_directory"]


@dataclass(eq=False)
class UnsyncedWrite:
    content: MemoryContent
    position: int
    data: bytearray

    def piece(self, start: int, stop: int) -> "UnsyncedWrite":
        """The part from ``start`` to ``stop``, counted in the file."""
        data = self.data[start - self.position : stop - self.position]
        return UnsyncedWrite(self.content, start, data)

    @property
    def end(self) -> int:
        return self.position + len(self.data)


@dataclass(eq=False)
class UnsyncedTruncate:
    content: MemoryContent
    size: int


@dataclass(eq=False)
class UnsyncedNames:
    """One atomic change of names; None is a name removed."""

    changes: Mapping[str, Node | None]

    @property
    def directories(self) -> set[str]:
        return set(map(parent, self.changes))

    @property
    def home(self) -> str:
        """Whose sync makes it durable: for a rename, the directory of the new name."""
        return parent(list(self.changes)[-1])


Unsynced = UnsyncedWrite | UnsyncedTruncate | UnsyncedNames


# --- what a crash leaves ---


class CrashChoice(Protocol):
    def survivors(self, unsynced: Sequence[Unsynced]) -> Iterable[Unsynced]:
        """Of the unsynced operations, oldest first, those (or pieces) that reached the disk."""


@dataclass(frozen=True)
class LoseAll:
    """Only what was synced survives."""

    def survivors(self, unsynced: Sequence[Unsynced]) -> Iterable[Unsynced]:
        return ()


@dataclass(frozen=True)
class KeepAll:
    """kill -9: the process is gone, the machine and its page cache are not.

    What was unsynced is still there to read and still unsynced: a power loss may yet follow. For a
    power loss that happened to keep everything, cut at ``disk.unsynced_bytes``.
    """

    def survivors(self, unsynced: Sequence[Unsynced]) -> Iterable[Unsynced]:
        return unsynced


@dataclass(frozen=True)
class CutAt:
    """Operations are kept in order up to this many written bytes; the next byte and all that
    follows is lost. Truncates and names cost no bytes."""

    byte_count: int

    def survivors(self, unsynced: Sequence[Unsynced]) -> Iterator[Unsynced]:
        left = self.byte_count
        for operation in unsynced:
            if isinstance(operation, UnsyncedWrite):
                if len(operation.data) > left:
                    if left > 0:
                        yield operation.piece(operation.position, operation.position + left)
                    return
                left -= len(operation.data)
            yield operation


@dataclass(frozen=True)
class Random:
    """Each sector of each write, and each truncate, is kept or lost on its own; of the names, a
    prefix is kept."""

    seed: int

    def survivors(self, unsynced: Sequence[Unsynced]) -> Iterator[Unsynced]:
        rng = random.Random(self.seed)
        # Fair coins alone would hardly ever keep all of a large write, or nothing of it.
        odds = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        names_left = rng.randint(0, sum(isinstance(op, UnsyncedNames) for op in unsynced))
        for operation in unsynced:
            if isinstance(operation, UnsyncedWrite):
                yield from _torn(operation, lambda: rng.random() < odds)
            elif isinstance(operation, UnsyncedTruncate):
                if rng.random() < odds:
                    yield operation
            elif names_left > 0:
                names_left -= 1
                yield operation


def _torn(write: UnsyncedWrite, kept: Callable[[], bool]) -> Iterator[UnsyncedWrite]:
    start = write.position
    while start < write.end:
        stop = min(write.end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if kept():
            yield write.piece(start, stop)
        start = stop
    # The new size is metadata and may arrive without the bytes: the file then ends in zeros.
    if kept():
        yield write.piece(write.end, write.end)


# --- the disk ---


@dataclass
class _Fault:
    kind: FaultKind
    error: OSError
    operations_left: int
    partial: int


class FaultyDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.slow_sync: Callable[[], None] | None = None
        """Called inside every sync of files, when it is decided what the sync covers but nothing
        is durable yet. Writers are not held up meanwhile."""
        self._durable_names = dict(self._names)
        self._durable: dict[MemoryContent, bytearray] = {}
        self._unsynced: dict[Unsynced, None] = {}  # an ordered set
        self._faults: list[_Fault] = []

    # what tests ask for

    @property
    def names(self) -> Mapping[str, Node]:
        """All that is there to read."""
        return self._names

    @property
    def unsynced_bytes(self) -> int:
        with self._mutex:
            return sum(len(op.data) for op in self._unsynced if isinstance(op, UnsyncedWrite))

    def fail_next(
        self, kind: FaultKind, *, error: OSError | None = None, after: int = 1, partial: int = 0
    ) -> None:
        """Raise ``error`` (EIO unless told) on the ``after``-th operation of this kind from now.

        ``partial`` bytes get through all the same: of the write's data, or of the unsynced writes
        that the sync covered. ``sync_all`` counts as one sync.
        """
        assert after >= 1
        assert partial >= 0
        failure = error or OSError(errno.EIO, "injected fault")
        with self._mutex:
            self._faults.append(_Fault(kind, failure, after, partial))

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit wherever it is kept: to read, durable, and on its way there."""
        with self._mutex:
            content = self._content(path)
            content.data[position] ^= 1 << bit
            durable = self._durable.get(content, bytearray())
            if position < len(durable):
                durable[position] ^= 1 << bit
            for op in self._unsynced_of([content]):
                if isinstance(op, UnsyncedWrite) and op.position <= position < op.end:
                    op.data[position - op.position] ^= 1 << bit

    def crash(self, choice: CrashChoice) -> "FaultyDisk":
        """The disk the next process finds: no locks, no faults. This one stays as it is, so one
        moment can be crashed in many ways."""
        with self._mutex:
            if isinstance(choice, KeepAll):
                return self._left_by_kill()
            return self._left_by_power_loss(choice.survivors(tuple(self._unsynced)))

    def _left_by_kill(self) -> "FaultyDisk":
        disk = FaultyDisk()
        disk._names, disk._durable_names, disk._durable, disk._unsynced = copy.deepcopy(
            (self._names, self._durable_names, self._durable, self._unsynced)
        )
        return disk

    def _left_by_power_loss(self, survivors: Iterable[Unsynced]) -> "FaultyDisk":
        names = dict(self._durable_names)
        durable = {content: bytearray(data) for content, data in self._durable.items()}
        for operation in survivors:
            _apply(operation, names, durable)
        disk = FaultyDisk()
        for path in filter(lambda path: _reachable(path, names), names):
            node = names[path]
            if isinstance(node, MemoryDirectory):
                disk._names[path] = MemoryDirectory()
                continue
            content = MemoryContent(durable.get(node, b""))
            disk._names[path] = content
            disk._durable[content] = bytearray(content.data)
        disk._durable_names = dict(disk._names)
        return disk

    # what MemoryDisk tells

    def change_names(self, changes: Mapping[str, Node | None]) -> None:
        super().change_names(changes)
        self._unsynced[UnsyncedNames(changes)] = None

    def change_bytes(self, content: MemoryContent, position: int, data: Buffer) -> None:
        with self._mutex:
            fault = self._due("write")
            data = bytes(data)
            through = data if fault is None else data[: fault.partial]
            super().change_bytes(content, position, through)
            if through:
                self._unsynced[UnsyncedWrite(content, position, bytearray(through))] = None
            if fault is not None:
                raise fault.error

    def change_size(self, content: MemoryContent, size: int) -> None:
        with self._mutex:
            super().change_size(content, size)
            self._unsynced[UnsyncedTruncate(content, size)] = None

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        with self._mutex:
            fault = self._due("sync")
            covered = self._unsynced_of(contents)
        if self.slow_sync is not None:
            self.slow_sync()
        with self._mutex:
            # A sync that overtook this one may have settled some of them.
            covered = [op for op in covered if op in self._unsynced]
            self._settle(covered if fault is None else CutAt(fault.partial).survivors(covered))
            # Linux marks pages clean even when writing them failed: no later sync tries again.
            for op in covered:
                del self._unsynced[op]
        if fault is not None:
            raise fault.error

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            super().sync_directory(path)
            fault = self._due("sync_directory")
            if fault is not None:
                raise fault.error
            covered = self._unsynced_names_of(relative(path))
            self._settle(covered)
            for op in covered:
                del self._unsynced[op]

    def _settle(self, operations: Iterable[Unsynced]) -> None:
        for operation in operations:
            _apply(operation, self._durable_names, self._durable)

    def _unsynced_of(self, contents: Sequence[MemoryContent]) -> Sequence[Unsynced]:
        wanted = set(contents)
        data = (op for op in self._unsynced if not isinstance(op, UnsyncedNames))
        return [op for op in data if op.content in wanted]

    def _unsynced_names_of(self, directory: str) -> Sequence[Unsynced]:
        """Those at home in ``directory``, and older ones that they stand on: a rename between two
        directories ties the order of both."""
        covered: list[Unsynced] = []
        touched: set[str] = set()
        for op in reversed(self._unsynced):
            if isinstance(op, UnsyncedNames) and (op.home == directory or op.directories & touched):
                covered.append(op)
                touched |= op.directories
        covered.reverse()
        return covered

    def _due(self, kind: FaultKind) -> _Fault | None:
        counted = [fault for fault in self._faults if fault.kind == kind]
        for fault in counted:
            fault.operations_left -= 1
        due = next((fault for fault in counted if fault.operations_left <= 0), None)
        if due is not None:
            self._faults.remove(due)
        return due


def _apply(
    operation: Unsynced, names: dict[str, Node], durable: dict[MemoryContent, bytearray]
) -> None:
    if isinstance(operation, UnsyncedWrite):
        put(durable.setdefault(operation.content, bytearray()), operation.position, operation.data)
    elif isinstance(operation, UnsyncedTruncate):
        resize(durable.setdefault(operation.content, bytearray()), operation.size)
    else:
        for path, node in operation.changes.items():
            if node is None:
                names.pop(path, None)
            else:
                names[path] = node


def _reachable(path: str, names: Mapping[str, Node]) -> bool:
    """A file synced into a directory whose own name was lost is lost with it."""
    while path != ".":
        path = parent(path)
        if not isinstance(names.get(path), MemoryDirectory):
            return False
    return True
