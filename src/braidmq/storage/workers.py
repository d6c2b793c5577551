"""What a store does beside the thread that owns it: one thread writes commits, one carries out
checkpoints.

Results come back to the owner, which is an event loop or something like one.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from braidmq.model.errors import BraidError
from braidmq.storage.checkpoint import Checkpoint
from braidmq.storage.disk import Disk, RealDisk, RealFile
from braidmq.storage.journal import Journal, Write, carry_out
from braidmq.storage.store import Store
from braidmq.storage.writing import WritingThread

if TYPE_CHECKING:
    from braidmq.storage.writing import Step


class Owner(Protocol):
    """The loop of the thread that owns the store."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...
    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object: ...
    def remove_reader(self, fd: int, /) -> object: ...


class PlainThread:
    """Does what ``WritingThread`` does, for disks that are not made of files of the system."""

    def __init__(self, name: str, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._work: SimpleQueue[list[Write] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[OSError | None, float]] = SimpleQueue()
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)
        self._worker.start()

    def start(self, writes: list[Write]) -> None:
        self._work.put(writes)

    def take_done(self) -> tuple[OSError | None, float] | None:
        return None if self._done.empty() else self._done.get()

    def stop(self) -> None:
        self._work.put(None)
        self._worker.join()

    def _run(self) -> None:
        while (writes := self._work.get()) is not None:
            started = time.perf_counter()
            error: OSError | None = None
            try:
                carry_out(writes)
            except OSError as raised:
                error = raised
            self._done.put((error, time.perf_counter() - started))
            self._tell()


class Committer:
    """Group commit: everything appended while one sync runs goes out with the next.

    What nobody waits for, as acknowledgements, does not cause one: a sync of its own would be in
    the way of the next publish. The thread that writes never needs the interpreter, so neither
    waits for the other.
    """

    def __init__(self, journal: Journal, disk: Disk, owner: Owner) -> None:
        self._journal = journal
        self._owner = owner
        self._is_woken = self._is_writing = self._is_stopped = False
        self._is_committing = False
        """The other thing to be written is the mark of an idle journal."""
        self._native: WritingThread | None = None
        self._plain: PlainThread | None = None
        if isinstance(disk, RealDisk):
            self._native = WritingThread("braid-commit")
            owner.add_reader(self._native.fd, self._told)
        else:
            self._plain = PlainThread(
                "braid-commit", lambda: owner.call_soon_threadsafe(self._told)
            )

    def wake(self) -> None:
        """Something was appended. Cheap, and enough to call once for many appends. After ``stop``
        it does nothing: what is appended then goes to disk when the journal is closed."""
        self._is_woken = True
        if not self._is_writing and not self._is_stopped:
            self._commit()

    def _commit(self) -> None:
        journal, self._is_woken = self._journal, False
        writes = journal.begin_commit()
        if writes:
            self._is_committing = True
            self._start(writes)
        elif journal.failure is not None:
            self._owner.call_soon_threadsafe(journal.release)

    def _start(self, writes: list[Write]) -> None:
        self._is_writing = True
        if self._native is not None:
            self._native.start([_step(write) for write in writes])
        elif self._plain is not None:
            self._plain.start(writes)

    def _told(self) -> None:
        """The thread has written, or had nothing to write for a while. A pause is what the journal
        leaves its mark in: between commits that follow each other it would only be in the way."""
        if self._is_stopped:
            return  # it was told before, and is heard only now
        journal = self._journal
        is_done = self._take_done()
        is_pausing = self._native is not None and self._native.take_pause()
        if is_done:
            if self._is_woken or journal.is_awaited:
                self._commit()
            journal.release()
        if is_pausing and not self._is_writing:
            mark = journal.idle_mark()
            if mark is not None:
                self._start([mark])

    def _take_done(self) -> bool:
        error, seconds = None, 0.0
        if self._native is not None:
            told = self._native.take_done()
            if told is None:
                return False
            number, seconds = told
            error = OSError(number, os.strerror(number)) if number else None
        elif self._plain is not None:
            done = self._plain.take_done()
            if done is None:
                return False
            error, seconds = done
        self._is_writing = False
        is_committed, self._is_committing = self._is_committing, False
        if error is not None:
            self._journal.fail(error)
        elif is_committed:
            self._journal.end_commit(seconds)
        return True

    def stop(self) -> None:
        """After the commit that is under way."""
        self._is_stopped = True
        if self._native is not None:
            self._owner.remove_reader(self._native.fd)
            self._native.stop()
            self._take_done()
            self._native.close()
        elif self._plain is not None:
            self._plain.stop()
            self._take_done()
        self._native = self._plain = None


def _step(write: Write) -> "Step":
    assert isinstance(write.file, RealFile)
    return write.file.fd, write.pieces, write.position, write.durably


class Checkpointer:
    """Carries out one checkpoint at a time."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._work: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._worker = threading.Thread(target=self._run, name="braid-checkpoint", daemon=True)
        self._worker.start()

    def submit(self, checkpoint: Checkpoint) -> None:
        self._work.put(checkpoint)

    def stop(self) -> None:
        """After what was submitted is done."""
        self._work.put(None)
        self._worker.join()

    def _run(self) -> None:
        store = self._store
        try:
            store.journal.prepare()
            while (checkpoint := self._work.get()) is not None:
                checkpoint.carry_out(store.disk, store.journal, store.settings)
                self._owner.call_soon_threadsafe(partial(store.finish_checkpoint, checkpoint))
        except (OSError, BraidError) as error:
            store.journal.fail(error)
            self._owner.call_soon_threadsafe(store.checkpoint_failed)


class Workers:
    """Both threads, and the rule for when they have something to do."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store = store
        self._committer = Committer(store.journal, store.disk, owner)
        self._checkpointer = Checkpointer(store, owner)

    def wake(self) -> None:
        """Call after appending, once for as much as convenient."""
        self._committer.wake()
        if self._store.wants_checkpoint():
            self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        checkpoint = self._store.begin_checkpoint()
        # A snapshot may name only what is durable: it starts once its own entry is.
        self._store.wait(
            checkpoint.journaled_lsn,
            lambda failure: None if failure else self._checkpointer.submit(checkpoint),
        )
        self._committer.wake()

    def stop(self) -> None:
        self._checkpointer.stop()
        self._committer.stop()
