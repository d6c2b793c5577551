"""How values are spread, counted in buckets."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """``counts[i]`` values were at most ``bounds[i]`` and above the bound before; the last count
    has what was above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
