"""The journal: one write-ahead log for everything a node stores.

    journal/0000000000000007.journal        the number is the file's epoch, in hex
    byte  0            8         12         16      24     32       36                4096
          ┌────────────┬─────────┬──────────┬───────┬──────┬────────┬─────────────────┬─────────
          │ "BRAIDWAL" │ version │ size / 8 │ epoch │ salt │ CRC32C │ zeros           │ entries…
          └────────────┴─────────┴──────────┴───────┴──────┴────────┴─────────────────┴─────────

Files are made at their full size and used again, because syncing a file whose size and blocks do
not change is about twice as fast. Entries stand end to end (``journal_entry`` owns their format)
and carry the salt of this use of the file: a number drawn for it, so that neither what an earlier
use left behind nor what a client wrote into a message can pass for an entry.

What is gone must not pass for what never was: a file says how long it is, and one that is full says
in its last entry (``ROLL``) which file it goes on in.

Group commit: ``append`` only lays entries out in memory, and leaves large batches where they are.
``commit`` writes all that waits with one write and makes it durable with one fdatasync, however
many topics it is for. It may be done in two halves, ``begin_commit`` and ``end_commit``, with the
writing between them in another thread; what is appended meanwhile goes out with the next one.
"""

import logging
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from braidmq.model.errors import CorruptData, ForeignFile, StorageFailed
from braidmq.model.histogram import Histogram
from braidmq.model.ids import Epoch, Lsn
from braidmq.model.limits import KIB, MIB
from braidmq.record.buffer import Buffer
from braidmq.record.crc32c import crc32c
from braidmq.storage.disk import Disk, File
from braidmq.storage.journal_entry import (
    ENTRY_HEADER_SIZE,
    ENTRY_VERSION,
    MARK_SIZE,
    EntryBuffer,
    first_lsn,
    inspect_tail,
    scan_entries,
)
from braidmq.storage.replication import Group, Replication

logger = logging.getLogger(__name__)

DIRECTORY = "journal"
SUFFIX = ".journal"
UNFINISHED = ".journal.new"
FILE_MAGIC = b"BRAIDWAL"
FILE_VERSION = 2
FILE_HEADER = struct.Struct("<8sIIQQ")
ENTRIES_START = 4096
"""Entries begin on a page of their own: a torn write of theirs can't take the header along."""

ROLL = struct.Struct("<Q")
ROLL_ROOM = ENTRY_HEADER_SIZE + ROLL.size + MARK_SIZE
"""At the end of every file; what writes entries leaves room for a mark behind each."""

ENTRIES_PER_SCAN = 4096
BYTES_PER_SCAN = 256 * KIB
"""Recovered entries become Python objects: as many at a time as stay in the processor's cache
between being verified and being indexed."""


COMMIT_BOUNDS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)


class Kind(IntEnum):
    """What an entry says. ``MARK`` and ``ROLL`` belong to the journal itself."""

    MARK = 1
    RECORDS = 2
    ACKNOWLEDGED = 3
    CATALOGUE = 4
    LOG_START = 5
    TRANSACTION = 6
    CHECKPOINT = 7
    DELIVERY = 8
    RESET = 9
    ROLL = 10
    TERM = 11


KINDS = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Entry:
    """One recovered entry; ``payload`` is a view of the mapped file."""

    lsn: int
    kind: int
    meta: bytes
    payload: Buffer


Waiter = Callable[[StorageFailed | None], None]


def file_name(epoch: int) -> str:
    return f"{DIRECTORY}/{epoch:016x}{SUFFIX}"


def file_header(epoch: int, salt: int, size: int = 0, version: int = FILE_VERSION) -> bytes:
    """``size`` of 0: not known, as in files that were made before it was noted."""
    fields = FILE_HEADER.pack(FILE_MAGIC, version, size // 8, epoch, salt)
    return fields + struct.pack("<I", crc32c(fields))


class JournalFile:
    """One file on disk in one use of it."""

    __slots__ = ("durable", "epoch", "file", "position", "reusable", "salt", "size")

    def __init__(
        self, epoch: int, salt: int, file: File, size: int, *, reusable: bool = True
    ) -> None:
        self.epoch = epoch
        self.salt = salt
        self.file = file
        self.size = size
        self.position = self.durable = ENTRIES_START
        """``durable``: through which byte a sync of it has returned."""
        self.reusable = reusable


class Span:
    """Entries of one group that go to one file."""

    __slots__ = ("entries", "target")

    def __init__(self, target: JournalFile, entries: EntryBuffer) -> None:
        self.target = target
        self.entries = entries


def _buffer_for(file: JournalFile, next_lsn: int) -> EntryBuffer:
    room = file.size - file.position - ROLL_ROOM
    return EntryBuffer(file.salt, next_lsn, room, file.position)


def encode_roll(salt: int, lsn: int, position: int, following: int) -> EntryBuffer:
    """The last entry of a full file."""
    entry = EntryBuffer(salt, lsn, ROLL_ROOM, position)
    written = entry.append(Kind.ROLL, ROLL.pack(following))
    assert written == lsn
    return entry


class Write(NamedTuple):
    """One step of a commit."""

    file: File
    pieces: Sequence[Buffer]
    position: int
    durably: bool
    """Whether the file is synced after it."""


def carry_out(writes: list[Write]) -> None:
    for write in writes:
        if write.durably:
            write.file.write_durably(write.pieces, write.position)
        else:
            write.file.write_all(write.pieces, write.position)


class Journal:
    """Appending and committing. ``recover`` (below) makes one from what a directory holds."""

    def __init__(
        self,
        disk: Disk,
        file_bytes: int,
        *,
        next_epoch: int = 1,
        next_lsn: int = 1,
        closed: list[JournalFile] | None = None,
    ) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._preparing = threading.Lock()
        self._next_epoch = next_epoch
        self._spare: File | None = None
        self._prepared: JournalFile | None = None
        self._closed: deque[JournalFile] = deque(closed or ())
        self._waiters: deque[tuple[int, Waiter]] = deque()
        self._local: deque[tuple[int, Waiter]] = deque()
        """Those who wait for this disk alone."""
        self._spans: list[Span] = []
        self._committing: list[Span] = []
        self._idle_marked: JournalFile | None = None
        self._awaited_lsn = self._taken_lsn = next_lsn - 1
        self.failure: StorageFailed | None = None
        self.replication: Replication | None = None
        """Who else is to have every entry. On a single node nobody is, which costs a comparison a
        commit."""
        self.durable_lsn = Lsn(next_lsn - 1)
        """Through which entry all is on this disk."""
        self.confirmed_lsn = self.durable_lsn
        """Through which entry all is safe, so that clients may be told: where others follow, on the
        disks of as many as there have to be. On a single node both are the same."""
        self.last_lsn = self.durable_lsn
        """Of the last entry appended."""
        self.commits = 0
        self.bytes_written = 0
        self.syncs = 0
        self.commit_seconds = Histogram(COMMIT_BOUNDS_S)
        """How long writing and syncing took, commit by commit."""
        self._file = self._take_prepared(0)
        self._buffer = _buffer_for(self._file, next_lsn)

    # --- appending: the engine's thread ---

    def append(self, kind: Kind, meta: bytes, payload: object = None) -> Lsn:
        """Lay out one entry for the next commit. It is safe once ``confirmed_lsn`` reaches it."""
        if self.failure is not None:
            raise self.failure
        lsn = self._buffer.append(kind, meta, payload)
        if not lsn:
            lsn = self._append_to_next_file(kind, meta, payload)
        self.last_lsn = Lsn(lsn)
        return self.last_lsn

    def _append_to_next_file(self, kind: Kind, meta: bytes, payload: object) -> int:
        length = 0 if payload is None else memoryview(payload).nbytes  # type: ignore[arg-type]
        size = ENTRIES_START + ENTRY_HEADER_SIZE + len(meta) + 8 + length + 2 * MARK_SIZE
        self.roll(size + ROLL_ROOM)
        lsn = self._buffer.append(kind, meta, payload)
        assert lsn, "a file was made large enough for this entry"
        return lsn

    @property
    def next_lsn(self) -> Lsn:
        return Lsn(self._buffer.next_lsn)

    @property
    def epoch(self) -> Epoch:
        """Of the file that entries are appended to now."""
        return Epoch(self._file.epoch)

    @property
    def fill(self) -> float:
        """How full the current file is, from 0 to 1."""
        return (self._buffer.position + self._buffer.size) / self._file.size

    def has_closed_since(self, epoch: int) -> bool:
        """Whether a file of ``epoch`` or later is full already."""
        return bool(self._closed) and self._closed[-1].epoch >= epoch

    def roll(self, size_min: int = 0) -> Epoch:
        """Go on in a new file; returns its epoch. Everything appended so far is in older ones."""
        following = self._take_prepared(size_min)
        self._set_span_aside(self._buffer.take())
        before = self._buffer
        last = encode_roll(self._file.salt, before.next_lsn, before.position, following.epoch)
        self._set_span_aside(last)
        self._file.position = last.position + last.size
        self._closed.append(self._file)
        self._file = following
        self._buffer = _buffer_for(following, last.next_lsn)
        return Epoch(following.epoch)

    def _set_span_aside(self, entries: EntryBuffer | None) -> None:
        """What waited in the buffer becomes a span of the coming commit."""
        if entries is not None:
            self._spans.append(Span(self._file, entries))

    # --- committing ---

    def commit(self) -> bool:
        """Write and sync everything appended before this call. False when nothing waited."""
        writes = self.begin_commit()
        if not writes:
            return False
        started = time.perf_counter()
        try:
            carry_out(writes)
        except OSError as error:
            self.fail(error)
            return False
        self.end_commit(time.perf_counter() - started)
        return True

    def begin_commit(self) -> list[Write]:
        """The first half of a commit: what is to be written, and in which order. Empty when nothing
        waits, or after a failure. The other half is ``end_commit`` or ``fail``."""
        if self.failure is not None:
            return []
        assert not self._committing, "another commit is not over"
        if self._buffer.size or self._spans:
            self._set_span_aside(self._buffer.take(self._file.durable))
        spans, self._spans = self._spans, []
        if not spans:
            return []
        if self.replication is not None:
            self._ship(self.replication, spans)
        # Of the spans, not of the buffer, which will have more by the end.
        self._taken_lsn = spans[-1].entries.next_lsn - 1
        self._committing = spans
        return self._writes(spans)

    def _ship(self, replication: Replication, spans: list[Span]) -> None:
        before = self._taken_lsn
        for span in spans:
            last = span.entries.next_lsn - 1
            if last > before:  # else a mark or a roll alone, which are this journal's own
                pieces = span.entries.pieces()
                replication.shipped(Group(span.target.salt, Lsn(before + 1), Lsn(last), pieces))
                before = last

    def _writes(self, spans: list[Span]) -> list[Write]:
        """A span is written only after the files before it are synced: recovery relies on it."""
        writes: list[Write] = []
        marked, self._idle_marked = self._idle_marked, None
        if marked is not None and marked is not spans[0].target:
            writes.append(Write(marked.file, (), 0, True))
            self.syncs += 1
        last = len(spans) - 1
        for index, span in enumerate(spans):
            durably = index == last or spans[index + 1].target is not span.target
            self.syncs += durably
            entries = span.entries
            writes.append(Write(span.target.file, entries.pieces(), entries.position, durably))
        return writes

    def end_commit(self, seconds: float) -> None:
        """All of it is on disk."""
        spans, self._committing = self._committing, []
        self.commit_seconds.observe(seconds)
        self.commits += 1
        for span in spans:
            entries = span.entries
            self.bytes_written += entries.size
            span.target.durable = entries.position + entries.size
        self.durable_lsn = Lsn(spans[-1].entries.next_lsn - 1)
        if self.replication is None:
            self.confirmed_lsn = self.durable_lsn
        else:
            self.replication.durable(self.durable_lsn)

    def confirm(self, lsn: Lsn) -> None:
        """Where others follow: everything up to this entry is safe. ``release`` tells who waits."""
        assert self.confirmed_lsn <= lsn <= self.durable_lsn
        self.confirmed_lsn = lsn

    def note_idle(self) -> None:
        """Nothing waits: leave a mark behind the last group."""
        mark = self.idle_mark()
        if mark is not None:
            try:
                mark.file.write_all(mark.pieces, mark.position)
            except OSError as error:
                self.fail(error)

    def idle_mark(self) -> Write | None:
        """The mark, to be written but not synced.

        With it the last synced group, too, can be told from a torn one after the process dies.
        """
        if self.failure is not None or self._idle_marked is not None or self._spans:
            return None
        entries = self._buffer.take_idle(self._file.durable)
        if entries is None:
            return None
        self._idle_marked = self._file
        return Write(self._file.file, entries.pieces(), entries.position, False)

    def fail(self, error: Exception) -> None:
        """A write or sync failed: what the disk holds is unknown, and nothing is believed again."""
        if self.failure is None:
            self.failure = StorageFailed(f"the journal could not be written: {error}")
            self.failure.__cause__ = error
            logger.error("storage failed", extra={"reason": str(self.failure)})

    # --- waiting ---

    def wait(self, lsn: Lsn, waiter: Waiter, *, local: bool = False) -> None:
        """Have ``waiter`` called by ``release`` once ``lsn`` is confirmed, or on this disk for who
        is content with that, in the order of asking."""
        (self._local if local else self._waiters).append((lsn, waiter))
        self._awaited_lsn = max(self._awaited_lsn, lsn)

    def release(self) -> None:
        """Call the waiters whose entries are confirmed; all of them, with the error, after a
        failure.

        Runs in the thread that appends, so that waiters need no locks. One that raises keeps nobody
        behind it from being told.
        """
        raised = self._release(self._waiters, self.confirmed_lsn)
        if self._local:
            raised = self._release(self._local, self.durable_lsn) or raised
        if raised is not None:
            raise raised

    def _release(self, waiters: deque[tuple[int, Waiter]], through: Lsn) -> Exception | None:
        failure = self.failure
        raised: Exception | None = None
        while waiters and (failure or waiters[0][0] <= through):
            lsn, waiter = waiters.popleft()
            try:
                waiter(None if lsn <= through else failure)
            except Exception as error:
                raised = raised or error
        return raised

    @property
    def waiting(self) -> int:
        return len(self._waiters) + len(self._local)

    @property
    def is_awaited(self) -> bool:
        """Whether a commit is due: somebody waits for an entry that none has taken up, or to be
        told of a failure."""
        if self.failure is not None:
            return self.waiting > 0
        return self._awaited_lsn > self._taken_lsn

    # --- files ---

    def prepare(self) -> None:
        """Have the next file ready before it is needed. Slow: for a background thread."""
        with self._preparing:
            if self._prepared is None and self.failure is None:
                self._prepared = self._make_file(0, filled=True)

    def _take_prepared(self, size_min: int) -> JournalFile:
        with self._preparing:
            prepared, self._prepared = self._prepared, None
            if prepared is not None and prepared.size >= size_min:
                return prepared
            if prepared is not None:
                self._discard(prepared)
            try:
                return self._make_file(size_min, filled=False)
            except OSError as error:
                self.fail(error)
                raise self.failure from error  # type: ignore[misc]

    def _make_file(self, size_min: int, *, filled: bool) -> JournalFile:
        """A file of full size with the next epoch in its header, all of it durable.

        Filled with zeros it syncs faster later, but that takes time now: where somebody waits, its
        room is only reserved.
        """
        epoch, salt = self._next_epoch, secrets.randbits(64)
        self._next_epoch += 1
        size = max(size_min, self._file_bytes)
        unfinished = f"{DIRECTORY}/{epoch:016x}{UNFINISHED}"
        if self._spare is not None and self._spare.size() >= size:
            file, self._spare = self._spare, None
            self._disk.rename(file.path, unfinished)
            # Its old name must be gone before its header changes: they would contradict.
            self._disk.sync_directory(DIRECTORY)
        else:
            file = self._disk.open(unfinished, create=True)
            file.reserve(size)
            zeros = bytes(MIB)
            for position in range(0, size, MIB) if filled else ():
                file.write(zeros[: size - position], position)
        file.write(file_header(epoch, salt, file.size()), 0)
        file.sync()
        self._disk.rename(unfinished, file_name(epoch))
        self._disk.sync_directory(DIRECTORY)
        file.path = file_name(epoch)
        return JournalFile(epoch, salt, file, size)

    def retire(self, below: int) -> None:
        """Files of older epochs are no longer needed: keep one for reuse, remove the others."""
        with self._preparing:
            while self._closed and self._closed[0].epoch < below:
                self._discard(self._closed.popleft())

    def _discard(self, old: JournalFile) -> None:
        if old.reusable and self._spare is None and old.size == self._file_bytes:
            self._spare = old.file
        else:
            old.file.close()
            self._disk.remove(old.file.path)

    @property
    def closed_files(self) -> int:
        """Full ones, kept for what is not in segments or for the snapshot before the newest."""
        return len(self._closed)

    def drop_spare(self) -> None:
        """Give back the room of a file that was kept to be used again."""
        if not self._preparing.acquire(blocking=False):
            return  # a file is being made, perhaps of it
        try:
            spare, self._spare = self._spare, None
            if spare is not None:
                spare.close()
                self._disk.remove(spare.path)
        finally:
            self._preparing.release()

    @property
    def live_bytes(self) -> int:
        """Bytes of entries in all files that recovery would read."""
        closed = sum(old.position for old in tuple(self._closed))
        return closed + self._buffer.position + self._buffer.size

    def close(self) -> None:
        """Commit what waits, then let go of the files."""
        self.commit()
        self.note_idle()
        self.release()
        for each in (*self._closed, self._file, self._prepared):
            if each is not None:
                each.file.close()
        if self._spare is not None:
            self._spare.close()


# --- recovery ---


@dataclass(slots=True)
class Recovered:
    """Where the journal of a directory ends."""

    next_lsn: int
    next_epoch: int
    files: list[JournalFile]
    entries: int = 0
    torn_bytes: int = 0
    following: int = 0
    """The epoch in which the last file read goes on; 0: it was not full."""


Progress = Callable[[str, int, int], None]
"""What is being gone through, how much of it is done, and how much there is."""


def recover(
    disk: Disk,
    *,
    first_epoch: int,
    next_lsn: int,
    apply: Callable[[Entry], None],
    progress: Progress = lambda what, done, total: None,
) -> Recovered:
    """Apply every entry from ``next_lsn``, the first in the file of ``first_epoch``, in order.

    Raises CorruptData, having changed nothing on disk, when an entry that was once durable can't
    be read. What a crash left half-written behind the last entry is cut off.
    """
    epochs = journal_epochs(disk)
    recovered = Recovered(next_lsn, max([first_epoch - 1, *epochs]) + 1, [])
    torn: list[tuple[JournalFile, int]] = []
    before = ""
    files = [disk.open(file_name(epoch)) for epoch in epochs if epoch >= first_epoch]
    sizes = [file.size() for file in files]
    for index, file in enumerate(files):
        epoch = epochs[index - len(files)]
        done_bytes = sum(sizes[:index])
        view = file.map()
        salt = check_file_header(file.path, view, epoch)
        lsn = first_lsn(view, ENTRIES_START, salt)
        if lsn and lsn != recovered.next_lsn:
            raise CorruptData(
                before or file.path,
                recovered.files[-1].position if before else ENTRIES_START,
                f"entries {recovered.next_lsn} to {lsn - 1} are missing before {file.path}",
            )
        journal_file = JournalFile(epoch, salt, file, len(view), reusable=False)
        recovered.files.append(journal_file)

        def told(position: int, before: int = done_bytes) -> None:
            progress("bytes of journal", before + position, sum(sizes))

        journal_file.position = _apply_file(file.path, view, salt, recovered, apply, told)
        was_durable, torn_bytes = inspect_tail(
            view, journal_file.position, salt, recovered.next_lsn
        )
        # A file is begun only when those before it are on disk.
        was_durable |= torn_bytes > 0 and any(map(is_begun, files[index + 1 :]))
        if was_durable:
            raise CorruptData(
                file.path,
                journal_file.position,
                f"entry {recovered.next_lsn} was durable and can't be read",
            )
        if torn_bytes:
            recovered.torn_bytes += torn_bytes
            torn.append((journal_file, torn_bytes))
        if recovered.following and recovered.following not in epochs:
            raise CorruptData(file_name(recovered.following), 0, "the journal file is missing")
        before = file.path
    _settle(recovered.files, torn)
    return recovered


def _apply_file(
    path: str,
    view: memoryview,
    salt: int,
    recovered: Recovered,
    apply: Callable[[Entry], None],
    told: Callable[[int], None],
) -> int:
    """Apply the entries of one file; returns the position after the last."""
    position = ENTRIES_START
    while True:
        found, position, recovered.next_lsn = scan_entries(
            view, position, salt, recovered.next_lsn, ENTRIES_PER_SCAN, BYTES_PER_SCAN
        )
        for kind, version, lsn, start, meta_start, meta_end, end in found:
            if version > ENTRY_VERSION or kind not in KINDS:
                raise ForeignFile(
                    f"{path}: the entry at byte {start} is of kind {kind}, version {version}, "
                    f"which this BraidMQ does not know",
                    remedy="It was written by a newer version of BraidMQ: use that version",
                )
            if kind == Kind.ROLL:
                (recovered.following,) = ROLL.unpack(view[meta_start:meta_end])
                continue
            payload_start = meta_start + (meta_end - meta_start + 7 & ~7)
            apply(Entry(lsn, kind, bytes(view[meta_start:meta_end]), view[payload_start:end]))
        recovered.entries += len(found)
        told(position)
        if not found:
            return position


def _settle(files: list[JournalFile], torn: list[tuple[JournalFile, int]]) -> None:
    """Make what was just read durable, and the torn tails unreadable.

    After a mere kill the entries may have come from the page cache: nothing may stand on them
    before they are on disk.
    """
    try:
        for journal_file, length in torn:
            journal_file.file.write(bytes(length), journal_file.position)
        for journal_file in files:
            journal_file.file.sync()
    except OSError as error:
        raise StorageFailed(f"the recovered journal could not be synced: {error}") from error


def journal_epochs(disk: Disk) -> list[int]:
    """Epochs of the files in the journal directory, in order."""
    names = disk.list(DIRECTORY)
    return sorted(int(name.removesuffix(SUFFIX), 16) for name in names if name.endswith(SUFFIX))


def is_begun(file: File) -> bool:
    """Whether anything of an entry was written to it in this use."""
    view = file.map()
    salt = check_file_header(file.path, view, int(file.path[-24:].removesuffix(SUFFIX), 16))
    return inspect_tail(view, ENTRIES_START, salt, 0)[1] > 0


def oldest_lsn(disk: Disk) -> int:
    """LSN of the first entry in the oldest file, or 0."""
    for epoch in journal_epochs(disk):
        file = disk.open(file_name(epoch))
        try:
            view = file.map()
            return first_lsn(view, ENTRIES_START, check_file_header(file.path, view, epoch))
        finally:
            file.close()
    return 0


def older_files(disk: Disk, oldest_epoch: int, first_epoch: int) -> list[JournalFile]:
    """Files that only an older snapshot needs: kept until there is a newer one."""
    return [
        JournalFile(epoch, 0, file := disk.open(file_name(epoch)), file.size(), reusable=False)
        for epoch in journal_epochs(disk)
        if oldest_epoch <= epoch < first_epoch
    ]


def leftovers(disk: Disk, first_epoch: int) -> list[str]:
    """Paths of files that were being made when the node stopped, or that no snapshot needs."""
    return [
        f"{DIRECTORY}/{name}"
        for name in disk.list(DIRECTORY)
        if name.endswith(UNFINISHED) or int(name.removesuffix(SUFFIX), 16) < first_epoch
    ]


def check_file_header(path: str, view: memoryview, epoch: int) -> int:
    """The salt of a file that is ours, readable by us and intact."""
    header = bytes(view[: FILE_HEADER.size + 4])
    if len(view) < ENTRIES_START:
        raise CorruptData(path, len(view), "the file ends within its header")
    magic, version, eighths, _, salt = FILE_HEADER.unpack(header[:-4])
    size = 8 * eighths
    if header == file_header(epoch, salt, size, max(1, min(version, FILE_VERSION))):
        if len(view) < size:
            raise CorruptData(path, len(view), f"the file ends here, before byte {size}")
        return int(salt)
    fields, checksum = header[:-4], struct.unpack("<I", header[-4:])[0]
    # Only with a right checksum: a flipped bit must not pass for a newer version.
    if magic == FILE_MAGIC and version > FILE_VERSION and checksum == crc32c(fields):
        raise ForeignFile(
            f"{path} has journal version {version}, this BraidMQ reads {FILE_VERSION}",
            remedy="It was written by a newer version of BraidMQ: use that version",
        )
    raise CorruptData(path, 0, "the file header does not match its checksum and name")
