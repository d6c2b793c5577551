"""How far somebody's numbered publishes have come in each partition.

Whoever wants to publish once numbers its messages. In a partition the numbers rise, with gaps where
messages went elsewhere; a number at or below the highest that a partition has seen was written
before. A restart keeps this true, because the journal loses nothing but its end.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from braidmq.model.ids import PartitionId

WINDOW = 5
"""Of this many batches a partition still knows where they went (catalogue row I1)."""


class Written(NamedTuple):
    """A batch as its publisher numbered it, and where its records went."""

    sequence: int
    first_offset: int
    records: int


class Mark:
    """What one partition has of somebody."""

    __slots__ = ("highest", "recent")

    def __init__(self, highest: int = -1) -> None:
        self.highest = highest
        self.recent: deque[Written] = deque(maxlen=WINDOW)


class Sequences:
    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks: dict[PartitionId, Mark] = {}

    def highest(self, partition: PartitionId) -> int:
        mark = self.marks.get(partition)
        return mark.highest if mark is not None else -1

    def expected(self, partitions: Iterable[PartitionId]) -> int:
        """The number that follows all that these partitions have."""
        return max(self.highest(partition) for partition in partitions) + 1

    def note(self, partition: PartitionId, last: int, written: Written) -> None:
        mark = self.marks.get(partition)
        if mark is None:
            mark = self.marks[partition] = Mark()
        mark.highest = last
        mark.recent.append(written)

    def written(self, partition: PartitionId, sequence: int) -> Written | None:
        """Where a batch went, if that is still known."""
        mark = self.marks.get(partition)
        for each in mark.recent if mark is not None else ():
            if each.sequence == sequence:
                return each
        return None
