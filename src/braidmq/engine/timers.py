"""What time does: whoever sets timers of a kind registers what is done when they fire."""

from collections.abc import Callable

from braidmq.engine.state import EngineState, TimerKind
from braidmq.model.errors import PartitionQuarantined

TIMERS_PER_TURN = 1000
"""Timers handled in one go: a million that are due together must not stop the loop."""

Handler = Callable[[int, int, int, int], None]
"""The owner of a timer, its two numbers (see ``TimerKind``), and the time."""


class Timers:
    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._handlers: dict[int, list[Handler]] = {}

    def register(self, kind: TimerKind, handler: Handler) -> None:
        self._handlers.setdefault(kind, []).append(handler)

    def advance(self, now_ms: int) -> None:
        """Do what is due by now. Call again at once if ``next_due_ms`` is not in the future."""
        for kind, owner, a, b in self._state.wheel.advance(now_ms, TIMERS_PER_TURN):
            try:
                for handler in self._handlers[kind]:
                    handler(owner, a, b, now_ms)
            except PartitionQuarantined:
                continue  # the timers of its partition are set anew when that is over
