"""When log-ins end that had an end from their start: tokens expire. On the node's timer wheel."""

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from braidmq.engine.engine import Engine
from braidmq.engine.state import TimerKind
from braidmq.model.clock import Clock

if TYPE_CHECKING:
    from braidmq.runtime.node_loop import NodeLoop

LOOK_MS_MAX = 60_000
"""Tokens end by the wall clock and timers run by the machine's: so soon a clock that was set is
noticed."""

NEVER = 0


class LoginEnds:
    def __init__(self, node_loop: "NodeLoop", engine: Engine, clock: Clock) -> None:
        self._node_loop = node_loop
        self._wheel = engine.state.wheel
        self._clock = clock
        self._numbers = count(1)
        self._waiting: dict[int, tuple[int, Callable[[], None], int]] = {}
        """When it is by the wall clock, who is told, and the timer."""
        engine.timers.register(TimerKind.LOGIN, self._due)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, expires_ms: int | None, over: Callable[[], None]) -> int:
        """Have ``over`` called then; what comes back cancels that."""
        if expires_ms is None:
            return NEVER
        number = next(self._numbers)
        self._arm(number, expires_ms, over)
        return number

    def cancel(self, number: int) -> None:
        found = self._waiting.pop(number, None)
        if found is not None:
            self._wheel.cancel(found[2])

    def _arm(self, number: int, expires_ms: int, over: Callable[[], None]) -> None:
        left_ms = min(max(expires_ms - self._clock.wall_ms(), 0), LOOK_MS_MAX)
        due_ms = self._clock.now_ms() + left_ms
        timer = self._wheel.schedule(due_ms, TimerKind.LOGIN, 0, number)
        self._waiting[number] = (expires_ms, over, timer)
        self._node_loop.schedule_turn()

    def _due(self, owner: int, number: int, b: int, now_ms: int) -> None:
        found = self._waiting.pop(number, None)
        if found is None:
            return
        expires_ms, over, _ = found
        if self._clock.wall_ms() < expires_ms:
            self._arm(number, expires_ms, over)
        else:
            # Not from within: whoever goes gives back what it had to the engine.
            self._node_loop.loop.call_soon(over)
