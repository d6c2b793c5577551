"""Where the messages of a publish went, for channels that ask (``confirm.places``).

Found by what the logs say before and after it: each record's partition is known before, and a
partition that grew by just what was for it has it at its end. Where that is not so (messages that
were published before, or staged in a transaction) nothing is said: a place is exact, or not told.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.engine.partitioner import places
from braidmq.engine.topics import Topic
from braidmq.gateways.amqp.confirms import Placed
from braidmq.record.batch import RecordBatch
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.amqp.methods import ConfirmPlaces

if TYPE_CHECKING:
    from braidmq.gateways.amqp.channel import Channel

RUNS_MAX = 10_000
"""Of one publish: of what would be more nothing is told."""
PLACE_BYTES = 200
"""What one takes until it is told, about: it counts for how far a publisher may be ahead."""


def ask(_: object, channel: "Channel", method: ConfirmPlaces) -> None:
    """From here on the channel is told."""
    channel.publisher.tell_places()


class Places:
    def __init__(
        self, topics: Sequence[Topic], batch: RecordBatch, partition: int | None, sequence: int
    ) -> None:
        """Before it is published. ``sequence``: of the first message of who numbers them, or -1."""
        self._count = batch.count
        self._topics = [
            (topic, numbers, ends(topic, numbers))
            for topic in topics
            for numbers in [chosen(topic, batch, partition, sequence)]
            if not topic.deduplicates and len(topic.name.encode()) <= SHORT_STRING_BYTES_MAX
        ]

    def found(self) -> list[Placed]:
        """After all of it was taken."""
        every: list[Placed] = []
        for topic, numbers, before in self._topics:
            if has_grown(topic, numbers, before, self._count):
                every += runs(topic.name, numbers, before, self._count)
        return every if len(every) <= RUNS_MAX else []


def chosen(
    topic: Topic, batch: RecordBatch, partition: int | None, sequence: int
) -> int | Sequence[int]:
    """The partition of all its records, or of each."""
    if partition is not None:
        return partition
    if topic.width == 1:
        return 0
    if sequence >= 0:
        return places(batch, topic.width, sequence, topic.by_key)
    return places(batch, topic.width, topic.round_robin, topic.by_key, by_place=False)


def ends(topic: Topic, numbers: int | Sequence[int]) -> dict[int, int]:
    """Of the partitions that get something; a named one may not be there."""
    wanted = {numbers} if isinstance(numbers, int) else set(numbers)
    every = topic.partitions
    return {number: every[number].log.next_offset for number in wanted if number < len(every)}


def has_grown(
    topic: Topic, numbers: int | Sequence[int], before: dict[int, int], count: int
) -> bool:
    shares = {numbers: count} if isinstance(numbers, int) else Counter(numbers)
    after = ends(topic, numbers)
    return all(after[number] - before[number] == share for number, share in shares.items())


def runs(
    name: str, numbers: int | Sequence[int], before: dict[int, int], count: int
) -> list[Placed]:
    """Neighbours that went to one partition are one run."""
    if isinstance(numbers, int):
        return [(0, count, name, numbers, before[numbers])]
    found: list[Placed] = []
    offsets = dict(before)
    first = 0
    while first < count:
        number = numbers[first]
        last = first + 1
        while last < count and numbers[last] == number:
            last += 1
        found.append((first, last - first, name, number, offsets[number]))
        offsets[number] += last - first
        first = last
    return found
