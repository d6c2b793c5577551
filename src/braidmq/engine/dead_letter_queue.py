"""What happens to dead letters where they lie: they are looked at, brought back, or removed.

A dead-letter topic is a log like others. A letter that was brought back or removed is settled for
everybody, subscriptions to come included (``CANCELLED``), in one step with its second life.
"""

from collections.abc import Iterator
from typing import NamedTuple

from braidmq.engine.appending import Appending, split_by_partition
from braidmq.engine.removal import Removal
from braidmq.engine.state import CANCELLED, EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.record.batch import FLAG_CONTROL, Record, RecordBatch


class Revived(NamedTuple):
    """A dead letter, with the envelope for its second life."""

    record: Record
    envelope_format: int
    envelope: bytes


class DeadLetterQueue:
    def __init__(self, state: EngineState, appending: Appending, removal: Removal) -> None:
        self._state = state
        self._appending = appending
        self._removal = removal

    def topic_for(self, topic: Topic) -> Topic | None:
        """Where a topic's dead letters go; None while there are none, or no topic of their own."""
        name = self.name_for(topic)
        return None if name is None else self._state.topics.get((topic.namespace, name))

    def name_for(self, topic: Topic) -> str | None:
        """The name of that topic, whether it is there or not."""
        rule = topic.dead_letter
        if rule.topic is None or rule.exchange is not None:
            return None
        return rule.topic.replace("{topic}", topic.name)

    def letters(self, dead: Topic, start: int) -> Iterator[Record]:
        """Those from an offset on that are still there."""
        partition = dead.partitions[0]
        gone = self._state.store.acknowledged.get((CANCELLED, partition.log.id), ())
        start = max(start, partition.log.start_offset)
        for record in partition.records(start, partition.stable_offset):
            if record.offset not in gone and not record.flags & FLAG_CONTROL:
                yield record

    def count(self, dead: Topic) -> int:
        """How many are there."""
        log = dead.partitions[0].log
        gone = self._state.store.acknowledged.get((CANCELLED, log.id))
        if gone is None:
            return log.next_offset - log.start_offset
        start = max(log.start_offset, gone.floor)
        ranges = gone.ranges_above_floor()
        taken = sum(stop - max(first, start) for first, stop in ranges if stop > start)
        return log.next_offset - start - taken

    def remove(self, dead: Topic, start: int, stop: int, now_ms: int) -> None:
        """Letters ``start`` … ``stop - 1`` are delivered to nobody any more."""
        partition = dead.partitions[0]
        if dead.durable:
            self._state.store.acknowledge(CANCELLED, partition.log.id, [(start, stop)])
        else:
            self._state.store.offsets_of(CANCELLED, partition.log.id).add(start, stop)
        self._take_out(partition, start, stop, now_ms)

    def bring_back(self, dead: Topic, target: Topic, revived: Revived, now_ms: int) -> None:
        """Publish a letter again where it died. Limits of the topic do not hold it up."""
        partition = dead.partitions[0]
        record = revived.record
        batch = RecordBatch()
        batch.append(
            record.value,
            key=record.key,
            envelope=revived.envelope,
            envelope_format=revived.envelope_format,
            flags=record.flags & ~FLAG_CONTROL,
            priority=record.priority,
            timestamp_ms=now_ms,
        )
        settled = [(CANCELLED, partition.log.id, record.offset, record.offset + 1)]
        ((to, part),) = split_by_partition(target, batch)
        self._appending.append([to], part, now_ms, settled=settled)
        self._take_out(partition, record.offset, record.offset + 1, now_ms)

    def _take_out(self, partition: TopicPartition, start: int, stop: int, now_ms: int) -> None:
        for view in list(partition.views):
            for run in partition.runs(start, stop):
                self._removal.drop(view, run, now_ms, "removed", dead_letter=False)
