"""Messages that were published before, told by their message ids, within a topic's window.

For publishers that do not number their messages. Only topics that ask for it pay. What was seen is
in the log itself: after a restart it is read from there when the topic is first published to.
"""

from braidmq.engine.envelope import message_id
from braidmq.engine.hooks import Hooks
from braidmq.engine.reading import Reading
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.record.batch import RecordBatch


class Seen:
    """Ids and when they came, the oldest first."""

    def __init__(self) -> None:
        self.at_ms: dict[bytes, int] = {}

    def forget(self, before_ms: int) -> None:
        for each, at_ms in list(self.at_ms.items()):
            if at_ms > before_ms:
                return
            del self.at_ms[each]


class Deduplication:
    def __init__(self, hooks: Hooks, reading: Reading) -> None:
        self._reading = reading
        """What was aborted is not in it, and may come again."""
        hooks.topic_deleted.append(self.forget)
        hooks.policy_changed.append(self._policy_changed)
        self._seen: dict[Topic, Seen] = {}

    def new_ones(
        self, topic: Topic, batch: RecordBatch, now_ms: int
    ) -> list[tuple[int, bytes | None]]:
        """Places in the batch and ids of those that were not published in the window before."""
        seen = self._seen_in(topic, now_ms)
        seen.forget(now_ms - topic.policy.deduplication_window_ms)
        found: list[tuple[int, bytes | None]] = []
        here: set[bytes] = set()
        for index in range(batch.count):
            name = message_id(batch.record(index))
            if name is not None:
                if name in seen.at_ms or name in here:
                    continue
                here.add(name)
            found.append((index, name))
        return found

    def note(self, topic: Topic, names: list[bytes | None], now_ms: int) -> None:
        """They were published now."""
        at_ms = self._seen[topic].at_ms
        for name in names:
            if name is not None:
                at_ms[name] = now_ms

    def forget(self, topic: Topic) -> None:
        """What is needed again is read again."""
        self._seen.pop(topic, None)

    def _policy_changed(self, topic: Topic, _now_ms: int) -> None:
        self.forget(topic)

    def _seen_in(self, topic: Topic, now_ms: int) -> Seen:
        seen = self._seen.get(topic)
        if seen is None:
            seen = self._seen[topic] = Seen()
            since_ms = now_ms - topic.policy.deduplication_window_ms
            found = [
                each for partition in topic.partitions for each in self._read(partition, since_ms)
            ]
            for at_ms, name in sorted(found):
                seen.at_ms[name] = at_ms
        return seen

    def _read(self, partition: TopicPartition, since_ms: int) -> list[tuple[int, bytes]]:
        start = partition.first_since(since_ms)
        found = []
        for each in self._reading.visible_runs(partition, start, partition.stable_offset):
            for clock, run in partition.by_clock(each):
                for index in range(run.first, run.stop):
                    stamped_ms = clock.stamp_of(run.batch, index)
                    name = None
                    if stamped_ms > since_ms:
                        name = message_id(run.batch.record(index))
                    if name is not None:
                        found.append((stamped_ms, name))
        return found


def picked(batch: RecordBatch, places: list[int]) -> RecordBatch:
    """Some records of a batch, as a batch of their own."""
    if len(places) == batch.count:
        return batch
    chosen = RecordBatch()
    for index in places:
        record = batch.record(index)
        chosen.append(
            record.value,
            key=record.key,
            envelope=record.envelope,
            envelope_format=record.envelope_format,
            flags=record.flags,
            priority=record.priority,
            timestamp_ms=record.timestamp_ms,
            expires_at_ms=record.expires_at_ms,
            due_at_ms=record.due_at_ms,
            dated=record.dated,
        )
    return chosen
