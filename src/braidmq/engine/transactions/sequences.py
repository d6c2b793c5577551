"""How far somebody's numbered publishes have come in each partition.

Whoever wants to publish once numbers its messages. In a partition the numbers rise, with gaps where
messages went elsewhere; a number at or below the highest that a partition has seen was written
before. A restart keeps this true, because the journal loses nothing but its end.

When a topic's partitions become more or fewer, a message that is sent again would go elsewhere. So
marks have generations: each resize begins one, and the layouts before it are kept. A message was
written before if, in any generation, its number is at or below the mark of the partition that it
went to then.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from braidmq.model.ids import PartitionId

WINDOW = 5
"""Of this many batches a partition still knows where they went (catalogue row I1)."""


LAYOUTS_MAX = 8
"""Of older ones it is known how far somebody had come, but not in which partition."""


class Layout(NamedTuple):
    """How the messages of a topic were dealt among its partitions."""

    generation: int
    partitions: list[PartitionId]
    by_key: bool


class Layouts:
    """Of a topic whose partitions became more or fewer."""

    __slots__ = ("current", "generation", "past")

    def __init__(self) -> None:
        self.generation = 0
        self.current: list[PartitionId] = []
        self.past: list[Layout] = []
        """Oldest first."""

    def follow(self, before: list[PartitionId], by_key: bool, after: list[PartitionId]) -> None:
        self.past.append(Layout(self.generation, before, by_key))
        del self.past[:-LAYOUTS_MAX]
        self.generation += 1
        self.current = after

    def remembers(self, partition: PartitionId) -> bool:
        return any(partition in each.partitions for each in self.past)


class Written(NamedTuple):
    """A batch as its publisher numbered it, and where its records went."""

    sequence: int
    first_offset: int
    records: int


class Mark:
    """What one partition has of somebody."""

    __slots__ = ("generation", "highest", "older", "recent")

    def __init__(self, highest: int = -1, generation: int = 0) -> None:
        self.generation = generation
        self.highest = highest
        """In this generation."""
        self.older: list[tuple[int, int]] = []
        """Generations before it, the latest first, and how far each had come."""
        self.recent: deque[Written] = deque(maxlen=WINDOW)

    def begin(self, generation: int) -> None:
        self.older.insert(0, (self.generation, self.highest))
        if len(self.older) > LAYOUTS_MAX + 1:
            (first, highest), (_, before) = self.older[-2:]
            self.older[-2:] = [(first, max(highest, before))]
        self.generation, self.highest = generation, -1

    def highest_in(self, generation: int) -> int:
        if generation == self.generation:
            return self.highest
        for each, highest in self.older:
            if each == generation:
                return highest
        return -1

    def highest_before(self, generation: int) -> int:
        found = [highest for each, highest in self.older if each < generation]
        if self.generation < generation:
            found.append(self.highest)
        return max(found, default=-1)


class Sequences:
    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks: dict[PartitionId, Mark] = {}

    def highest(self, partition: PartitionId) -> int:
        mark = self.marks.get(partition)
        if mark is None:
            return -1
        if not mark.older:
            return mark.highest
        return max(mark.highest, max(highest for _, highest in mark.older))

    def highest_in(self, partition: PartitionId, generation: int) -> int:
        mark = self.marks.get(partition)
        return mark.highest_in(generation) if mark is not None else -1

    def highest_before(self, partition: PartitionId, generation: int) -> int:
        mark = self.marks.get(partition)
        return mark.highest_before(generation) if mark is not None else -1

    def expected(self, partitions: Iterable[PartitionId]) -> int:
        """The number that follows all that these partitions have."""
        return max((self.highest(partition) for partition in partitions), default=-1) + 1

    def note(
        self, partition: PartitionId, last: int, written: Written, generation: int = 0
    ) -> None:
        mark = self.marks.get(partition)
        if mark is None:
            mark = self.marks[partition] = Mark(generation=generation)
        elif mark.generation != generation:
            mark.begin(generation)
        mark.highest = last
        mark.recent.append(written)

    def written(self, partition: PartitionId, sequence: int) -> Written | None:
        """Where a batch went, if that is still known."""
        mark = self.marks.get(partition)
        for each in mark.recent if mark is not None else ():
            if each.sequence == sequence:
                return each
        return None
