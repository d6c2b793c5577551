"""Packet ids of QoS 2 that stand in the middle of an exchange, as runs of consecutive ones.

Clients count their packet ids up, so a window of a thousand is one run or two, and costs no more to
change or to write down than one id.
"""

from bisect import bisect_left

Anchor = tuple[int, int]
"""A partition, and the offset its next record would get: the place of a message not yet written."""
NO_ANCHOR: Anchor = (0, 0)

IdRun = tuple[int, int, int, int]
"""First id, the one behind the last, and the place of the first one's message. A run whose first
message is at offset 7 has its second at 8."""


class IdRuns:
    __slots__ = ("_count", "_runs")

    def __init__(self, runs: list[IdRun] | None = None) -> None:
        self._runs: list[IdRun] = sorted(runs) if runs else []
        self._count = sum(stop - first for first, stop, _, _ in self._runs)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return self.overlaps(number, number + 1)

    def runs(self) -> list[IdRun]:
        return self._runs

    def overlaps(self, first: int, stop: int) -> bool:
        """Whether any of ``first`` … ``stop - 1`` is here."""
        at = bisect_left(self._runs, (stop,)) - 1
        return at >= 0 and self._runs[at][1] > first

    def covers(self, first: int, stop: int) -> bool:
        """Whether each of ``first`` … ``stop - 1`` is here."""
        while first < stop:
            at = bisect_left(self._runs, (first + 1,)) - 1
            if at < 0 or self._runs[at][1] <= first:
                return False
            first = self._runs[at][1]
        return True

    def put(self, first: int, stop: int, anchor: Anchor = NO_ANCHOR) -> None:
        """Take ids in; those that were here have the new anchor."""
        self.discard(first, stop)
        runs = self._runs
        partition, offset = anchor
        at = bisect_left(runs, (first,))
        self._count += stop - first
        if at and _continues(runs[at - 1], first, partition, offset):
            at -= 1
            runs[at] = (runs[at][0], stop, partition, runs[at][3])
        else:
            runs.insert(at, (first, stop, partition, offset))

    def discard(self, first: int, stop: int) -> None:
        """Forget what there is of ``first`` … ``stop - 1``."""
        self.cut(first, stop)

    def cut(self, first: int, stop: int) -> list[IdRun]:
        """Take out what there is of ``first`` … ``stop - 1``."""
        runs = self._runs
        end = bisect_left(runs, (stop,))
        begin = end
        while begin and runs[begin - 1][1] > first:
            begin -= 1
        if begin == end:
            return []
        out = [_part(each, max(each[0], first), min(each[1], stop)) for each in runs[begin:end]]
        left = [_part(runs[begin], runs[begin][0], first)] if runs[begin][0] < first else []
        right = [_part(runs[end - 1], stop, runs[end - 1][1])] if runs[end - 1][1] > stop else []
        self._count -= sum(each[1] - each[0] for each in out)
        runs[begin:end] = left + right
        return out

    def clear(self) -> None:
        self._runs.clear()
        self._count = 0


def _continues(run: IdRun, first: int, partition: int, offset: int) -> bool:
    if run[1] != first or run[2] != partition:
        return False
    return not partition or run[3] + first - run[0] == offset


def _part(run: IdRun, first: int, stop: int) -> IdRun:
    partition, offset = run[2], run[3]
    return first, stop, partition, offset + (first - run[0] if partition else 0)
