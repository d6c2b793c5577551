"""Publishing by those who number their messages, and within transactions.

All or nothing: where a topic that is full would take a part of a plain batch, it refuses this one,
because its publisher could not tell which part.
"""

from collections.abc import Sequence
from typing import NamedTuple

from braidmq.engine.appending import (
    Appending,
    Published,
    require_writable,
    split_by_partition,
)
from braidmq.engine.errors import TopicFull
from braidmq.engine.limits import check_size, room
from braidmq.engine.partitioner import places, split
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.coordinator import Coordinator
from braidmq.engine.transactions.entries import Stamp, StampKind
from braidmq.engine.transactions.errors import OutOfOrderSequence
from braidmq.engine.transactions.ledger import Branch, Producer
from braidmq.model.ids import Lsn
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
    def __init__(self, state: EngineState, appending: Appending, transactions: Coordinator) -> None:
        self._state = state
        self._appending = appending
        self._transactions = transactions

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
        parts = self._parts(topic, batch, origin, partition)
        self._check_room(topic, parts, batch)
        lsn: Lsn | None = None
        placed = []
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
        if any(part.known for part in parts):
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
        for topic in topics:
            first = topic.partitions[0]
            fresh = origin.sequence < 0 or origin.author.highest(first.log.id) < origin.sequence
            if len(topic.partitions) == 1 and fresh:
                together.append(first)
                continue
            copy = RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
            lsn = self.publish(topic, copy, now_ms, origin, durable=durable).lsn or lsn
        if together:
            stamp = origin.stamp(last, batch.count)
            lsn = (
                self._appending.append(together, batch, now_ms, durable=durable, stamp=stamp) or lsn
            )
        return Published(lsn, batch.count)

    def _check_gap(self, topic: Topic, origin: Origin, partition: int | None) -> None:
        if origin.sequence < 0:
            return
        targets = topic.partitions if partition is None else [topic.partition(partition)]
        expected = origin.author.expected(each.log.id for each in targets)
        if origin.sequence > expected:
            raise OutOfOrderSequence(
                f"topic {topic.name!r} expects message {expected} of this producer, "
                f"not {origin.sequence}",
                remedy="Send the messages in between first, or begin again with a new epoch",
            )

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
        if partition is not None or len(topic.partitions) == 1:
            target = topic.partition(partition or 0)
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
        count, sequence = len(topic.partitions), origin.sequence
        parts, _ = split(batch, count, sequence, by_place=True)
        chosen = places(batch, count, sequence)
        backwards = chosen[::-1]
        found = []
        for target, part in zip(topic.partitions, parts, strict=True):
            if part is None:
                continue
            last = sequence + batch.count - 1 - backwards.index(target.number)
            known = origin.author.highest(target.log.id) - sequence + 1
            known = chosen[: min(max(known, 0), batch.count)].count(target.number)
            found.append(_Part(target, part, last, known))
        return found


def _without_first(batch: RecordBatch, count: int) -> RecordBatch:
    if not count:
        return batch
    rest = bytes(memoryview(batch)[batch.position_at(count) :])
    return RecordBatch.scan(rest, base_offset=0, verify=False)


def _full(topic: Topic) -> TopicFull:
    return TopicFull(f"topic {topic.name!r} has {topic.depth} unsettled messages and takes no more")
