"""Waiting by the node's one timer wheel, for who is no part of the engine."""

import asyncio
from collections.abc import Callable
from typing import Final

from braidmq.engine.engine import Engine
from braidmq.engine.state import TimerKind

WAIT_MAX_MS: Final = 3_600_000
"""Whoever waits for longer looks again after that."""


class WheelWaits:
    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        schedule_turn: Callable[[], None],
    ) -> None:
        self._wheel = engine.state.wheel
        self._loop = loop
        self._now_ms = now_ms
        self._schedule_turn = schedule_turn
        self._waiting: dict[int, Callable[[], None]] = {}
        self._last = 0
        engine.timers.register(TimerKind.WAIT, self._due)

    def after(self, wait_ms: int, done: Callable[[], None]) -> None:
        """Once so much time has passed: not at once, whatever the wait."""
        self._last += 1
        self._waiting[self._last] = done
        due_ms = self._now_ms() + min(wait_ms, WAIT_MAX_MS)
        self._wheel.schedule(due_ms, TimerKind.WAIT, self._last)
        self._schedule_turn()  # which sets the loop's timer

    def _due(self, owner: int, _a: int, _b: int, _now_ms: int) -> None:
        # Not here: a socket that is read on would come back to the engine from within it.
        self._loop.call_soon(self._waiting.pop(owner))
