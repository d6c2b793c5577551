"""How long records stay: by time, size, count, or until acknowledged.

Offsets never change: retention moves the start of a log. Compaction is in ``compacting``.
"""

from collections.abc import Callable

from braidmq.engine.appending import Appending
from braidmq.engine.keeping import Keeping
from braidmq.engine.offsets import Offsets
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event
from braidmq.engine.timers import Timers
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined

LOOK_EVERY_MS = 1000
"""Retention by time is looked at this often at most, however much is published."""

LOOKS_PER_LIMIT = 16
"""Retention by bytes is looked at again when what was left is used up, but not before this part of
the limit was published."""

LOOSE = 32
"""Retention by count cuts once there are this part of the limit too many."""

NEVER = 1 << 62


class Retention:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        settlement: Settlement,
        keeping: Keeping,
        appending: Appending,
        offsets: Offsets,
        now_ms: int,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._keeping = keeping
        self._appending = appending
        self._offsets = offsets
        self.records_retired = 0
        self._sweep_timer = self._schedule_sweep(now_ms)
        timers.register(TimerKind.SWEEP, self._sweep)

    def run_due(self, now_ms: int) -> None:
        """Topics that have grown enough since the last look."""
        due, self._appending.grown = self._appending.grown, {}
        for topic in due:
            if not topic.deleted and topic.limited:
                for partition in topic.partitions:
                    if partition.may_exceed(now_ms) and partition.log.damage is None:
                        self._enforce(partition, self._start_if_grown, now_ms)

    def _start_if_grown(self, partition: TopicPartition, now_ms: int) -> int:
        """As ``_wanted_start``, but a look is taken only where it is worth its price: publishing
        must not feel retention (row M3). Until the next sweep, limits may be exceeded by a small
        part of them."""
        rule, log = partition.topic.policy.retention, partition.log
        start = log.start_offset
        if rule.time_ms and now_ms >= partition.look_ms:
            start = max(start, partition.first_since(now_ms - rule.time_ms))
        if rule.messages and log.next_offset >= partition.look_offset:
            start = max(start, self._start_for_messages(partition, rule.messages))
            left = rule.messages - self._messages_from(partition, start)
            partition.look_offset = log.next_offset + left + rule.messages // LOOSE + 1
        if rule.bytes and log.appended_bytes >= partition.look_size:
            wanted, left = log.start_for_bytes(rule.bytes)
            start = max(start, wanted)
            partition.look_size = log.appended_bytes + max(left, rule.bytes // LOOKS_PER_LIMIT)
        partition.look_ms = now_ms + LOOK_EVERY_MS if rule.time_ms else NEVER
        if not rule.messages:
            partition.look_offset = NEVER
        if not rule.bytes:
            partition.look_size = NEVER
        partition.check_offset = log.next_offset + self._state.upkeep.check_messages
        return start

    def _messages_from(self, partition: TopicPartition, start: int) -> int:
        """How many there are from an offset on: marks of transactions, and what was aborted or
        cancelled, are none."""
        end, cancelled = partition.log.next_offset, self._state.cancelled(partition)
        return end - start - (cancelled.count(start, end) if cancelled is not None else 0)

    def _start_for_messages(self, partition: TopicPartition, most: int) -> int:
        """The offset from which on there are so many messages, or the start of the log."""
        log = partition.log
        start = max(log.next_offset - most, log.start_offset)
        while start > log.start_offset:
            missing = most - self._messages_from(partition, start)
            if missing <= 0:
                break
            start = max(start - missing, log.start_offset)
        return start

    def _sweep(self, _owner: int, _a: int, _b: int, now_ms: int) -> None:
        for topic in list(self._state.topics.values()):
            self.enforce(topic, now_ms)
        self._sweep_timer = self._schedule_sweep(now_ms)

    def _schedule_sweep(self, now_ms: int) -> int:
        due = now_ms + self._state.upkeep.check_interval_ms
        return self._state.wheel.schedule(due, TimerKind.SWEEP, 0)

    def replace(self, upkeep: RetentionSettings, now_ms: int) -> None:
        """Look as these say from now on. Compactions that have their time keep it once."""
        self._state.upkeep = upkeep
        self._state.wheel.cancel(self._sweep_timer)
        self._sweep_timer = self._schedule_sweep(now_ms)

    def has_due(self) -> bool:
        return bool(self._appending.grown)

    # --- retention ---

    def enforce(self, topic: Topic, now_ms: int) -> None:
        if not topic.limited:
            return
        for partition in topic.partitions:
            self._enforce(partition, self._wanted_start, now_ms)

    def _enforce(
        self,
        partition: TopicPartition,
        wanted_start: Callable[[TopicPartition, int], int],
        now_ms: int,
    ) -> None:
        """Nothing of a quarantined partition goes, whatever its age."""
        if partition.log.damage is not None:
            return
        try:
            self._advance(partition, wanted_start(partition, now_ms))
        except PartitionQuarantined:
            return  # whoever met the damage has said so

    def unpinned(self, partition: TopicPartition, now_ms: int) -> None:
        """Nobody, or somebody further on, reads a partition in bulk: what had its time may go."""
        self._settlement.release(partition)
        if partition.topic.limited:
            self._enforce(partition, self._wanted_start, now_ms)

    def _advance(self, partition: TopicPartition, start: int) -> None:
        # What is not decided stays, or a transaction would not be whole; so does what is leased.
        start = min(start, partition.stable_offset, partition.log.pinned_offset)
        if start > partition.log.start_offset:
            self.cut(partition, start)

    def _wanted_start(self, partition: TopicPartition, now_ms: int) -> int:
        rule, log = partition.topic.policy.retention, partition.log
        start = log.start_offset
        if rule.time_ms:
            start = max(start, partition.first_since(now_ms - rule.time_ms))
        if rule.messages:
            start = max(start, self._start_for_messages(partition, rule.messages))
        if rule.bytes:
            start = max(start, log.start_for_bytes(rule.bytes)[0])
        return start

    def cut(self, partition: TopicPartition, start: int) -> None:
        """Forget a partition's records below ``start``, read or not."""
        for view in partition.views:
            # Others may have waited behind one that waited for its retry.
            self._offsets.settle_up_to(view, start)
        if partition.log.damage is not None:
            return  # nothing of it goes
        self.records_retired += start - partition.log.start_offset
        self._state.store.advance_start(partition.log, start)

    # --- purge ---

    def purge(self, topic: Topic) -> int:
        """Take out every message that is not in flight, and what was kept of acknowledged ones;
        returns how many the fullest subscription lost."""
        topic.require_existing()
        if topic.quarantined:
            raise topic.quarantine_error()
        most = 0
        for subscription in topic.subscriptions.values():
            lost = sum(self._purge_view(view) for view in subscription.views)
            most = max(most, lost)
        if not topic.subscriptions:
            for partition in topic.partitions:
                most += self._messages_from(partition, partition.log.start_offset)
                self.cut(partition, partition.stable_offset)
        self._keeping.forget(topic)
        return most

    def _purge_view(self, view: PartitionView) -> int:
        ranges, count, _ = view.state.take_out_all_fresh()
        if ranges:
            self._settlement.settle(view, ranges)
        explicit, more, _ = view.state.apply(Event.DROP, 0, view.state.end)
        if explicit:
            self._settlement.settle(view, explicit)
        return count + more
