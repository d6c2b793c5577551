"""Publishing by those who number their messages, and within transactions.

All or nothing: where a topic that is full would take a part of a plain batch, it refuses this one,
because its publisher could not tell which part.
"""

from collections.abc import Sequence
from typing import NamedTuple

from braidmq.engine.appending import (
    Appending,
    Placed,
    Published,
    require_writable,
    split_by_partition,
)
from braidmq.engine.deduplication import picked
from braidmq.engine.errors import TopicFull
from braidmq.engine.limits import check_size, room
from braidmq.engine.partitioner import places, split
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.coordinator import Coordinator
from braidmq.engine.transactions.entries import Stamp, StampKind
from braidmq.engine.transactions.errors import OutOfOrderSequence
from braidmq.engine.transactions.ledger import Branch, Ledger, Producer
from braidmq.engine.transactions.sequences import Layout
from braidmq.model.ids import Lsn, PartitionId
from braidmq.record.batch import RecordBatch


class Origin(NamedTuple):
    """Who publishes a batch, and the number of its first message."""

    author: Producer | Branch
    sequence: int = -1
    """-1: not numbered."""
    strict: bool = True
    """Numbers are the topic's own, so that none may be missing; otherwise those of all the author
    publishes, wherever it goes."""

    def stamp(self, last: int, records: int) -> Stamp:
        author = self.author
        if isinstance(author, Branch):
            return Stamp(
                kind=StampKind.IN_TRANSACTION,
                branch=author.index,
                transaction=author.transaction.number,
                sequence=self.sequence,
                last=last,
                records=records,
            )
        return Stamp(author.id, author.epoch, sequence=self.sequence, last=last, records=records)


class _Part(NamedTuple):
    """What one partition gets of a publish."""

    target: TopicPartition
    batch: RecordBatch
    last: int
    """The number of its last message."""
    known: int
    """How many of them, from the first, the partition has already."""


class StampedPublishing:
    def __init__(
        self,
        state: EngineState,
        appending: Appending,
        transactions: Coordinator,
        ledger: Ledger,
    ) -> None:
        self._state = state
        self._appending = appending
        self._transactions = transactions
        self._ledger = ledger

    def publish(
        self,
        topic: Topic,
        batch: RecordBatch,
        now_ms: int,
        origin: Origin,
        *,
        partition: int | None = None,
        durable: bool = True,
    ) -> Published:
        """What was written before is answered as if it had been written now."""
        self._transactions.require_writable(origin.author, now_ms)
        check_size(topic, batch)
        if topic.is_quarantined:
            require_writable(topic.partitions[0])
        if origin.strict:
            self._check_gap(topic, origin, partition)
        lsn: Lsn | None = None
        placed: list[Placed] = []
        if self._came_before_a_resize(topic, origin):
            parts, placed = self._parts_not_written(topic, batch, origin, partition)
        else:
            parts = self._parts(topic, batch, origin, partition)
        self._check_room(topic, parts, batch)
        for part in parts:
            number, log = part.target.number, part.target.log
            if part.known == part.batch.count:
                before = origin.author.written(log.id, origin.sequence)
                if before is not None:
                    placed.append((number, before.first_offset, before.records))
                continue
            rest = _without_first(part.batch, part.known)
            placed.append((number, log.next_offset, rest.count))
            stamp = origin.stamp(part.last, rest.count)
            lsn = (
                self._appending.append([part.target], rest, now_ms, durable=durable, stamp=stamp)
                or lsn
            )
        if sum(part.batch.count - part.known for part in parts) < batch.count:
            # What was written before may still be on its way to the disk.
            lsn = self._state.store.journal.last_lsn
        return Published(lsn, batch.count, tuple(placed))

    def fan_out(
        self,
        topics: Sequence[Topic],
        batch: RecordBatch,
        now_ms: int,
        origin: Origin,
        *,
        partition: int | None = None,
        durable: bool = True,
    ) -> Published:
        """One batch for many topics; its bytes are written once where they all take it whole and
        for the first time."""
        self._transactions.require_writable(origin.author, now_ms)
        lsn: Lsn | None = None
        together: list[TopicPartition] = []
        last = origin.sequence + batch.count - 1 if origin.sequence >= 0 else -1
        for topic in topics:
            check_size(topic, batch)
            if topic.is_quarantined:
                require_writable(topic.partitions[0])
            if topic.bounded and room(topic, batch) < batch.count:
                raise _full(topic)
            if partition is not None and not self._came_before_a_resize(topic, origin):
                topic.open_partition(partition)
        for topic in topics:
            first = topic.partition(partition or 0)
            fresh = origin.sequence < 0 or origin.author.highest(first.log.id) < origin.sequence
            fresh = fresh and not self._came_before_a_resize(topic, origin)
            if (partition is not None or topic.width == 1) and fresh:
                together.append(first)
                continue
            copy = RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
            one = self.publish(topic, copy, now_ms, origin, partition=partition, durable=durable)
            lsn = one.lsn or lsn
        if together:
            stamp = origin.stamp(last, batch.count)
            lsn = (
                self._appending.append(together, batch, now_ms, durable=durable, stamp=stamp) or lsn
            )
        return Published(lsn, batch.count)

    def _check_gap(self, topic: Topic, origin: Origin, partition: int | None) -> None:
        if origin.sequence < 0:
            return
        expected = origin.author.expected(self._logs_of(topic, partition))
        if origin.sequence > expected:
            raise OutOfOrderSequence(
                f"topic {topic.name!r} expects message {expected} of this producer, "
                f"not {origin.sequence}",
                remedy="Send the messages in between first, or begin again with a new epoch",
            )

    def _logs_of(self, topic: Topic, partition: int | None) -> list[PartitionId]:
        """The logs that messages to a topic, or to one of its partitions, went to at any time."""
        layouts = self._ledger.layouts.get(topic.id)
        before = [each.partitions for each in layouts.past] if layouts is not None else []
        every = [*before, [each.log.id for each in topic.partitions]]
        if partition is None:
            return [each for logs in every for each in logs]
        found = [logs[partition] for logs in every if partition < len(logs)]
        if not found:
            topic.partition(partition)
        return found

    def _came_before_a_resize(self, topic: Topic, origin: Origin) -> bool:
        """Whether messages may have been written when they were dealt in another way."""
        layouts = self._ledger.layouts.get(topic.id)
        if layouts is None or origin.sequence < 0:
            return False
        return origin.sequence < origin.author.expected(self._logs_of(topic, None))

    def _parts_not_written(
        self, topic: Topic, batch: RecordBatch, origin: Origin, partition: int | None
    ) -> tuple[list[_Part], list[Placed]]:
        """What is left to write of a batch that was sent before, and where the rest went."""
        layouts = self._ledger.layouts.get(topic.id)
        assert layouts is not None
        author, first = origin.author, origin.sequence
        current = [each.log.id for each in topic.partitions[: topic.width]]
        oldest = layouts.past[0].generation
        forgotten = max(author.highest_before(each, oldest) for each in current)
        written = [first + index <= forgotten for index in range(batch.count)]
        went: dict[tuple[int, PartitionId], None] = {}
        now = Layout(-1, current, topic.by_key)
        chosen: Sequence[int] = []
        for layout in [*layouts.past, now]:
            chosen = _places_in(layout, batch, first, partition)
            for index, place in enumerate(chosen):
                if place >= len(layout.partitions):
                    continue
                log = layout.partitions[place]
                generation = layout.generation
                if layout is now:
                    generation = self._ledger.generation_of(log)
                if first + index <= author.highest_in(log, generation):
                    written[index] = True
                    went[place, log] = None
        placed = []
        for place, log in went:
            before = author.written(log, first)
            if before is not None:
                placed.append((place, before.first_offset, before.records))
        rest: dict[int, list[int]] = {}
        for index, place in enumerate(chosen):
            if not written[index]:
                rest.setdefault(place, []).append(index)
        parts = []
        for place, indexes in rest.items():
            target = topic.open_partition(place)
            require_writable(target)
            parts.append(_Part(target, picked(batch, indexes), first + indexes[-1], 0))
        return parts, placed

    def _check_room(self, topic: Topic, parts: Sequence[_Part], batch: RecordBatch) -> None:
        if not topic.bounded:
            return
        unknown = sum(part.batch.count - part.known for part in parts)
        if unknown == batch.count and room(topic, batch) < batch.count:
            raise _full(topic)

    def _parts(
        self, topic: Topic, batch: RecordBatch, origin: Origin, partition: int | None
    ) -> list[_Part]:
        author, sequence = origin.author, origin.sequence
        if partition is not None or topic.width == 1:
            target = topic.open_partition(partition or 0)
            if sequence < 0:
                return [_Part(target, batch, -1, 0)]
            known = author.highest(target.log.id) - sequence + 1
            last = sequence + batch.count - 1
            return [_Part(target, batch, last, min(max(known, 0), batch.count))]
        if sequence < 0:
            split_parts = split_by_partition(topic, batch)
            return [_Part(target, part, -1, 0) for target, part in split_parts]
        return self._numbered_parts(topic, batch, origin)

    def _numbered_parts(self, topic: Topic, batch: RecordBatch, origin: Origin) -> list[_Part]:
        """A message without key goes where its number says: to the same partition each time."""
        count, sequence = topic.width, origin.sequence
        parts, _ = split(batch, count, sequence, by_place=True, by_key=topic.by_key)
        chosen = places(batch, count, sequence, topic.by_key)
        backwards = chosen[::-1]
        found = []
        for target, part in zip(topic.partitions[:count], parts, strict=True):
            if part is None:
                continue
            last = sequence + batch.count - 1 - backwards.index(target.number)
            known = origin.author.highest(target.log.id) - sequence + 1
            known = chosen[: min(max(known, 0), batch.count)].count(target.number)
            found.append(_Part(target, part, last, known))
        return found


def _places_in(
    layout: Layout, batch: RecordBatch, sequence: int, partition: int | None
) -> Sequence[int]:
    if partition is not None:
        return [partition] * batch.count
    return places(batch, len(layout.partitions), sequence, layout.by_key)


def _without_first(batch: RecordBatch, count: int) -> RecordBatch:
    if not count:
        return batch
    rest = bytes(memoryview(batch)[batch.position_at(count) :])
    return RecordBatch.scan(rest, base_offset=0, verify=False)


def _full(topic: Topic) -> TopicFull:
    return TopicFull(f"topic {topic.name!r} has {topic.depth} unsettled messages and takes no more")
