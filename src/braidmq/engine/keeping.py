"""Acknowledged messages that a queue keeps, so that a subscription can be set back to them.

What all subscriptions have settled would go at once. Here it goes when it has had its time, or
when what is kept takes too many bytes; whichever comes first. When each message was settled is not
known: now and then what is settled is looked at, and what was settled then goes once that look is
old enough. Looks are not durable: after a restart, or when a subscription is set back, time begins
anew.
"""

from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.timers import Timers
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.model.ids import PartitionId
from braidmq.record.offset_set import OffsetBits, OffsetSet, in_all

LOOKS = 16
"""Looks within the time that messages are kept."""
LOOK_MS_MIN, LOOK_MS_MAX = 100, 60_000
BYTES_LOOK_MS = 1000
"""Where only bytes limit what is kept."""


class Keeping:
    def __init__(self, state: EngineState, timers: Timers) -> None:
        self._state = state
        timers.register(TimerKind.KEPT, self._due)

    def _due(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        partition = self._state.partitions.get(PartitionId(owner))
        if partition is None or partition.kept is None:
            return
        partition.kept.timer = 0
        self.look(partition, now_ms)

    def look(self, partition: TopicPartition, now_ms: int) -> None:
        """Let go of what has been kept long enough, or is too much."""
        kept = partition.kept
        if kept is None or not partition.views or partition.log.damage is not None:
            return
        rule = partition.topic.policy.retention
        settled = [view.state.settled for view in partition.views]
        if rule.keep_acked_ms:
            kept.looks.append((now_ms, [each.copy() for each in settled]))
            old: list[OffsetSet] = []
            while kept.looks and kept.looks[0][0] <= now_ms - rule.keep_acked_ms:
                old = kept.looks.popleft()[1]
            if old:
                end = partition.log.next_offset
                kept.released.update(in_all([*old, *settled], kept.released.floor, end))
        if rule.keep_acked_bytes:
            self._keep_bytes(partition, rule.keep_acked_bytes)
        self._let_go(partition)
        if rule.keep_acked_ms and is_any_kept(partition):
            self.arm(partition, now_ms)

    def _keep_bytes(self, partition: TopicPartition, room: int) -> None:
        """The newest stay. How long a single record is nobody looks at: as long as those around
        it."""
        assert partition.kept is not None
        kept, released = _kept_offsets(partition), partition.kept.released
        settled = [view.state.settled for view in partition.views]
        for start, stop, count, size in reversed(_pieces(partition, kept)):
            if size <= room:
                room -= size
                continue
            surplus, room = count - count * room // size, 0
            end = min(kept.after(start, surplus), stop)
            released.update(in_all(settled, start, end, released))

    def _let_go(self, partition: TopicPartition) -> None:
        assert partition.kept is not None
        log = partition.log
        start = min(partition.kept.released.floor, log.pinned_offset)
        if start > log.start_offset:
            self._state.store.advance_start(log, start)

    def arm(self, partition: TopicPartition, now_ms: int) -> None:
        """Something was settled: look at it later."""
        kept = partition.kept
        if kept is None or kept.timer:
            return
        keep_ms = partition.topic.policy.retention.keep_acked_ms
        wait = min(max(keep_ms // LOOKS, LOOK_MS_MIN), LOOK_MS_MAX) if keep_ms else BYTES_LOOK_MS
        due = now_ms + wait
        kept.timer = self._state.wheel.schedule(due, TimerKind.KEPT, partition.log.id)

    def forget(self, topic: Topic) -> None:
        """A purge: what was kept goes too, for those who are set back or come later as well."""
        for partition in topic.partitions:
            kept = partition.kept
            if kept is None:
                continue
            log = partition.log
            settled = [view.state.settled for view in partition.views]
            purged = in_all(settled, kept.released.floor, log.next_offset)
            kept.released.update(purged)
            kept.looks.clear()
            self._let_go(partition)
            # Behind what is still in somebody's hands: the log's start does not say it.
            self._state.cancel(partition, purged.ranges(log.start_offset))


def kept_of(partition: TopicPartition) -> tuple[int, int]:
    """Messages that all subscriptions have settled and that can be brought back, and about how many
    bytes they take."""
    count = total = 0
    if partition.kept is not None and partition.log.damage is None:
        for _, _, number, size in _pieces(partition, _kept_offsets(partition)):
            count += number
            total += size
    return count, total


def is_any_kept(partition: TopicPartition) -> bool:
    return partition.kept is not None and bool(_kept_offsets(partition))


def _kept_offsets(partition: TopicPartition) -> OffsetBits:
    """What all subscriptions have settled and can be brought back."""
    assert partition.kept is not None
    released, end = partition.kept.released, partition.log.next_offset
    settled = [view.state.settled for view in partition.views]
    return in_all(settled, released.floor, end, released) if settled else OffsetBits()


def _pieces(partition: TopicPartition, kept: OffsetBits) -> list[tuple[int, int, int, int]]:
    """Batches and segments with something that is kept, from the oldest to the newest: first
    offset, the one after the last, how many are kept, and about how many bytes these take."""
    found = []
    for start, stop, size in partition.log.pieces():
        count = kept.count(start, stop)
        if count:
            found.append((start, stop, count, size * count // (stop - start)))
    return found
