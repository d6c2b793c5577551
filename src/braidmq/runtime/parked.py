"""Publishes that wait while memory or disk is low, so that what comes behind them can be read.

An acknowledgement makes room, and may be behind a publish that there is no room for: whoever is not
read until there is room would keep both from happening. So a connection is read on, its publishes
wait here, and what frees memory overtakes them. They are input that is not complete, and count as
that (``intake``). How much may wait is bounded: then the connection is not read any more, and if it
still has deliveries to answer for after a while it is closed, so that others get them.
"""

from collections import deque
from typing import Generic, TypeVar

from braidmq.model.limits import KIB
from braidmq.net.input_budget import InputShare

PARKED_BYTES_MAX = 256 * KIB
"""Of one connection. What was read together with the last of it may be more."""

PARKED_RECEIVE_BYTES = 64 * KIB
"""What is read at once of a connection whose publishes wait."""

PARKED_S = 30.0
"""A connection that is not read for so long while it has deliveries to answer for is closed."""

Item = TypeVar("Item")


class Parked(Generic[Item]):
    """Those of one connection, in order."""

    def __init__(self, share: InputShare) -> None:
        self._share = share
        self._items: deque[tuple[Item, int]] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        return self.bytes > PARKED_BYTES_MAX or self._share.input_budget.is_crowded

    def add(self, item: Item, size: int) -> None:
        self._items.append((item, size))
        self._count(size)

    def take(self) -> Item:
        item, size = self._items.popleft()
        self._count(-size)
        return item

    def clear(self) -> None:
        self._items.clear()
        self._count(-self.bytes)

    def _count(self, change: int) -> None:
        self.bytes += change
        self._share.hold(change)
