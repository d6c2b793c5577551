"""Holding publishers back before memory or disk runs out: slow down, then block, then release.

Consumers keep draining throughout. Between two levels lies a gap, so that a value that hovers
around a mark does not switch back and forth.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.engine.effects import Level, PressureChanged
from braidmq.model.limits import GIB, MIB

RELEASE = 0.9
"""A level is left once the value is below this part of its mark."""


class Watermarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where publishers are slowed and blocked."""

    memory_slow_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Records, unfinished input and unsent output in memory at which publishers"
            " are slowed.",
        ),
    ] = 768 * MIB
    memory_block_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Records, unfinished input and unsent output in memory at which publishers"
            " are blocked; not below `memory_slow_bytes`. Unfinished input may be half of it, and"
            " at least 64 MiB; of one connection half of that. Output that clients do not read may"
            " be an eighth of it, and at least 64 MiB: above that, those are cut off who have read"
            " nothing for longest.",
        ),
    ] = 1 * GIB
    disk_slow_bytes: Annotated[
        int, Meta(ge=0, description="Free disk space at which publishers are slowed.")
    ] = 2 * GIB
    disk_block_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Free disk space at which publishers are blocked; not above"
            " `disk_slow_bytes`.",
        ),
    ] = 512 * MIB

    def __post_init__(self) -> None:
        if self.memory_slow_bytes > self.memory_block_bytes:
            raise ValueError("memory_slow_bytes is above memory_block_bytes")
        if self.disk_slow_bytes < self.disk_block_bytes:
            raise ValueError("disk_slow_bytes is below disk_block_bytes")


class Pressure:
    def __init__(self, marks: Watermarks | None = None) -> None:
        self.marks = marks or Watermarks()
        self.level = Level.NORMAL
        self.reason = ""
        self.input_bytes: Callable[[], int] = _none
        """Input that is not complete: memory too, and only who reads sockets knows of it."""
        self.unsent_bytes: Callable[[], int] = _none
        """The same of output that peers do not take."""
        # Each has its own: low disk space must not make memory wait for its lower mark.
        self._memory = self._disk = Level.NORMAL

    @property
    def disk_is_low(self) -> bool:
        """Whether publishers are slowed or blocked because of the disk."""
        return self._disk is not Level.NORMAL

    @property
    def disk_is_blocked(self) -> bool:
        """Whether it is the disk that holds publishers back; memory may, too."""
        return self._disk is Level.BLOCKED

    def update(self, memory_bytes: int, disk_free_bytes: int) -> PressureChanged | None:
        """The new level when it changes."""
        marks = self.marks
        memory = self._memory = _rising(
            memory_bytes, marks.memory_slow_bytes, marks.memory_block_bytes, self._memory
        )
        disk = self._disk = _falling(
            disk_free_bytes, marks.disk_slow_bytes, marks.disk_block_bytes, self._disk
        )
        level = max(memory, disk)
        if level is self.level:
            return None
        self.level = level
        self.reason = _reason(level, memory, disk)
        return PressureChanged(level, self.reason)


def _none() -> int:
    return 0


def _rising(value: int, slow: int, block: int, before: Level) -> Level:
    """A level already reached is kept until well below its mark."""
    if value >= block or (before is Level.BLOCKED and value >= block * RELEASE):
        return Level.BLOCKED
    if value >= slow or (before >= Level.SLOW and value >= slow * RELEASE):
        return Level.SLOW
    return Level.NORMAL


def _falling(value: int, slow: int, block: int, before: Level) -> Level:
    """The same for values whose danger is to be low."""
    if value <= block or (before is Level.BLOCKED and value <= block / RELEASE):
        return Level.BLOCKED
    if value <= slow or (before >= Level.SLOW and value <= slow / RELEASE):
        return Level.SLOW
    return Level.NORMAL


def _reason(level: Level, memory: Level, disk: Level) -> str:
    if level is Level.NORMAL:
        return "memory and disk have room again"
    return "disk space is low" if disk >= memory else "memory is low"
