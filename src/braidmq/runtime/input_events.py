"""What a connection sent, handled in its order and within its share of time.

One read may bring thousands of events, and one event may take long: a client decides both. So they
are handled for a while (``READ_S``); the rest, and what is done in steps, is work in slices, and
the connection is not read from until all of it is done.
"""

from collections.abc import Generator, Iterator
from time import monotonic
from typing import Any

from braidmq.model.errors import BraidError
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.sliced_work import Steps

Event = tuple[Any, ...]


class InputEvents:
    """Of one connection; its gateway says how an event is handled and what follows from errors."""

    def __init__(self, node_loop: NodeLoop, peer: str) -> None:
        self._node_loop = node_loop
        self._peer = peer
        self._events: list[Event] = []
        """What was read last, while some of it is not handled."""
        self._at = 0
        self._steps: Steps | None = None
        """The rest of an event that takes long."""
        self._is_stepping = False
        self.is_late = False
        """Some of it is done in slices now: what comes next comes after it."""

    @property
    def is_behind(self) -> bool:
        """Whether something that was sent is not done."""
        return bool(self._events) or self._steps is not None

    def handle(self, events: list[Event], until: float) -> None:
        """Handle events in their order; from then on the rest is done a slice at a time."""
        self._events, self._at = events, 0
        self._handle_some(until)
        if self.is_behind:
            self.put_off()

    def _handle_some(self, until: float) -> None:
        """Until it is time for others, or somebody has to wait."""
        events, last = self._events, len(self._events) - 1
        while self._at <= last:
            at = self._at
            self._at = at + 1
            if at < last and self._is_overtaken(events[at], events[at + 1]):
                continue
            self._handle_one(events[at])
            if self._is_over():
                self._at = last + 1
                self._ended(events, at + 1)
            elif (
                self._steps is not None or self._must_wait() or (at < last and monotonic() >= until)
            ):
                break
        if self._at > last:
            self._events = []

    def do(self, steps: Steps) -> None:
        """Have the event that is handled done in steps; what comes after it waits."""
        self._steps = steps

    def put_off(self) -> None:
        """Go on with it a slice at a time."""
        self.is_late = True
        self._node_loop.work_in_background(self._catch_up(), f"what {self._peer} asked for")

    def _catch_up(self) -> Iterator[None]:
        try:
            while self.is_behind and not self._is_over() and not self._is_held():
                self._catch_up_some()
                yield
        except Exception:
            self._abort()
            raise
        finally:
            self.is_late = False
        if self._is_over():
            self.forget()
        if self.is_behind:
            self.put_off()
        else:
            self._caught_up()

    def _catch_up_some(self) -> None:
        if self._steps is None:
            self._handle_some(0.0)
        else:
            self._step(self._steps)

    def _step(self, steps: Steps) -> None:
        self._is_stepping = True
        try:
            if next(steps, self) is self:
                self._steps = None
        except BraidError as error:
            self._steps = None
            self._step_failed(error)
        finally:
            self._is_stepping = False

    def forget(self) -> None:
        """The connection is over: nothing of it counts any more."""
        self._events = []
        if self._is_stepping:
            return  # a step that ended the connection is left first: ``_catch_up`` comes back here
        steps, self._steps = self._steps, None
        if isinstance(steps, Generator):
            steps.close()

    # --- what a gateway says ---

    def _handle_one(self, event: Event) -> None:
        raise NotImplementedError

    def _is_overtaken(self, event: Event, following: Event) -> bool:
        """Whether the next one says all that this one does."""
        return False

    def _is_over(self) -> bool:
        """Whether nothing that the connection sent counts any more."""
        raise NotImplementedError

    def _ended(self, events: list[Event], first: int) -> None:
        """It is over, and these are left."""

    def _must_wait(self) -> bool:
        """Whether nothing more may be done until the peer has read its answers."""
        return False

    def _is_held(self) -> bool:
        """Whether what is left has to wait, too."""
        return False

    def _step_failed(self, error: BraidError) -> None:
        raise error

    def _abort(self) -> None:
        """What it sent could not be handled, by a mistake of ours."""
        raise NotImplementedError

    def _caught_up(self) -> None:
        """Everything it sent is done: it is heard again."""
        raise NotImplementedError
