"""Answers kept until something they depend on changes."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Per namespace: about a hundred thousand short keys, or far fewer that go to thousands of topics.
Counted in bytes, since peers choose how long keys are and how many targets an answer has."""

ENTRY_BYTES = 160
"""Roughly what the dict, the key's and the answer's own objects take besides their contents."""

REFERENCE_BYTES = 8
"""One target in an answer's tuple."""


class BoundedCache(Generic[K, V]):
    """A dict that is emptied when it is full.

    Dropping everything keeps a hit at one look-up with nothing to note down: an order of use costs
    more at every hit than a cache of this size can lose by starting again.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._entries: dict[K, V] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        self.get: Callable[[K], V | None] = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V, *, key_bytes: int, targets: int) -> bool:
        """Keep an answer; False if it alone would take an unfair share of the room."""
        size = ENTRY_BYTES + key_bytes + REFERENCE_BYTES * targets
        if size > self._bytes_max // 8:
            return False
        if self._bytes + size > self._bytes_max:
            self.clear()
        self._entries[key] = value
        self._bytes += size
        return True

    def discard(self, key: K) -> None:
        """Forget one answer. Its room is counted as taken until the next ``clear``."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
