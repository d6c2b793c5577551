"""Time is an argument. Shells read a clock; cores are told what it said."""

import time
from typing import Protocol

from braidmq.model.ids import TimestampMs


class Clock(Protocol):
    def now_ms(self) -> TimestampMs: ...


class SystemClock:
    """Wall time that never runs backwards: a clock stepped back by NTP holds still instead.

    Deadlines and retention compare stored timestamps with this clock, so it is wall time and not
    monotonic time; but a step back must not make the log's timestamps go down.
    """

    __slots__ = ("_latest_ms",)

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> TimestampMs:
        self._latest_ms = max(self._latest_ms, time.time_ns() // 1_000_000)
        return TimestampMs(self._latest_ms)
