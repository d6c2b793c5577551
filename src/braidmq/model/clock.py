"""Time is an argument. Shells read a clock; cores are told what it said."""

import time
from typing import Protocol

from braidmq.model.ids import TimestampMs


class Clock(Protocol):
    def now_ms(self) -> TimestampMs:
        """Runs on whatever becomes of the wall clock: all durations are by this one."""

    def wall_ms(self) -> TimestampMs:
        """What people call the time. It may be set, forwards and back."""


class SystemClock:
    """Its time is the wall clock's when it is made, and runs on by the machine's uptime: who sets
    the wall clock changes no duration, and a machine that slept has not stopped the time."""

    __slots__ = ("_booted_ms",)

    def __init__(self) -> None:
        self._booted_ms = self.wall_ms() - _uptime_ms()

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._booted_ms + _uptime_ms())

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)


def _uptime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
