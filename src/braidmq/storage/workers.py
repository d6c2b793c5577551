"""The threads of a store: one that commits, one that carries out checkpoints.

They hand results back through ``post``, which runs a call in the thread that owns the store (in a
node, ``loop.call_soon_threadsafe``).
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from braidmq.model.errors import StorageError
from braidmq.storage.store import Checkpoint, Store

IDLE_S = 0.02

Post = Callable[[Callable[[], None]], object]


class Committer:
    """Group commit: everything appended while one sync runs goes out with the next.

    What nobody waits for, as acknowledgements, does not cause one: a sync of its own would be in
    the way of the next publish.
    """

    def __init__(self, store: Store, post: Post) -> None:
        self._store = store
        self._post = post
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="braid-commit", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was appended. Cheap, and enough to call once for many appends."""
        if self._wakes.empty():
            self._wakes.put(True)

    def stop(self) -> None:
        self._wakes.put(False)
        self._thread.join()

    def _run(self) -> None:
        journal = self._store.journal
        while self._next_wake():
            while journal.commit():
                self._post(journal.release)
                if not journal.is_awaited:
                    break
            if journal.failure is not None:
                self._post(journal.release)

    def _next_wake(self) -> bool:
        """False at the end. A pause is what the journal leaves its mark in: between commits that
        follow each other it would only be in the way."""
        try:
            return self._wakes.get(timeout=IDLE_S)
        except Empty:
            self._store.journal.note_idle()
            return self._wakes.get()


class Checkpointer:
    """Carries out one checkpoint at a time."""

    def __init__(self, store: Store, post: Post) -> None:
        self._store = store
        self._post = post
        self._work: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="braid-checkpoint", daemon=True)
        self._thread.start()

    def submit(self, checkpoint: Checkpoint) -> None:
        self._work.put(checkpoint)

    def stop(self) -> None:
        """After what was submitted is done."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        store = self._store
        try:
            store.journal.prepare()
            while (checkpoint := self._work.get()) is not None:
                checkpoint.carry_out(store.disk, store.journal, store.settings)
                self._post(lambda done=checkpoint: store.finish_checkpoint(done))  # type: ignore[misc]
        except (OSError, StorageError) as error:
            store.journal.fail(error)
            self._post(store.journal.release)


class Workers:
    """Both threads, and the rule for when they have something to do."""

    def __init__(self, store: Store, post: Post) -> None:
        self._store = store
        self._committer = Committer(store, post)
        self._checkpointer = Checkpointer(store, post)

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
