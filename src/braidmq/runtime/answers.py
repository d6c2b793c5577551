"""One way to answer, in every gateway (docs/adr/0018).

An answer belongs to somebody, a channel or a connection, and to what has to be on disk before it
is given. Those of one owner are given in the order in which they were owed, whatever each of them
waits for. When the disk fails, the protocol's own error is given instead, and nothing after it. An
owner that is gone is given nothing more, though others may have its number by then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from braidmq.model.errors import StorageError
from braidmq.model.ids import Lsn
from braidmq.runtime.node_loop import NodeLoop


class Answer:
    """Something that is owed, or a run of the like; ``done`` when it waits for nothing more."""

    __slots__ = ("done", "failure")

    def __init__(self) -> None:
        self.done = False
        self.failure: StorageError | None = None


class Reply(Answer):
    """An answer that is encoded already, and what may be done only after it was given."""

    __slots__ = ("data", "then")

    def __init__(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.data = data
        self.then = then


A = TypeVar("A", bound=Answer)


class Answers(Generic[A]):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.waiting: deque[A] = deque()
        """For the disk, or for those before them."""
        self.is_over = False
        """Their owner is gone."""
        self._send = send

    def give_once_durable(self, node_loop: NodeLoop, lsn: Lsn | None, answer: A) -> None:
        """Owe an answer that an entry of the journal comes before; none: only what is owed."""
        self.waiting.append(answer)
        node_loop.when_durable(lsn, partial(self.settle, answer))

    def settle(self, answer: A, failure: StorageError | None) -> None:
        """What it waited for is on disk, or never will be."""
        answer.failure = failure
        answer.done = True
        self.give()

    def settle_all(self, answers: Sequence[A], failure: StorageError | None) -> None:
        for answer in answers:
            answer.failure = failure
            answer.done = True
        self.give()

    def give(self) -> None:
        """All that waits for nothing, up to the first that does."""
        if self.is_over:
            return
        data = self.ready()
        if data:
            self._send(data)

    def ready(self) -> bytes:
        """Take what can be given from the front, as it goes over the wire."""
        parts: list[bytes] = []
        waiting = self.waiting
        while waiting and waiting[0].done:
            answer = waiting.popleft()
            if answer.failure is not None:
                self._give_up(parts, answer.failure)
                return b""
            parts.append(self.encode(answer))
            if isinstance(answer, Reply) and answer.then is not None:
                self._give_parts(parts)
                answer.then()
                if self.is_over:
                    return b""
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _give_parts(self, parts: list[bytes]) -> None:
        data = b"".join(parts)
        parts.clear()
        if data:
            self._send(data)

    def _give_up(self, parts: list[bytes], failure: StorageError) -> None:
        self._give_parts(parts)
        self.end()
        self.fail(failure)

    def encode(self, answer: A) -> bytes:
        assert isinstance(answer, Reply)
        return answer.data

    def fail(self, failure: StorageError) -> None:
        """Say what the protocol has for it: an answer can't be given, nor any after it."""
        raise NotImplementedError

    def end(self) -> None:
        self.is_over = True
        self.waiting.clear()
