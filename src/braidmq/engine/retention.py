"""How long records stay: by time, size, count, until acknowledged, or the latest of each key.

Offsets never change. Retention moves the start of a log; compaction writes sealed segments anew
without the records that later ones replace, in the next checkpoint.
"""

from collections.abc import Callable

from braidmq.engine.appending import Appending
from braidmq.engine.compaction import mark_superseded, note_latest
from braidmq.engine.envelope import NATIVE, decode_headers
from braidmq.engine.hooks import Hooks
from braidmq.engine.offsets import Offsets
from braidmq.engine.reading import Reading
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.timers import Timers
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.partition_log import Run

SWEEP_MS = 5 * 60 * 1000
"""Background retention (catalogue row M1)."""

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
        hooks: Hooks,
        settlement: Settlement,
        reading: Reading,
        appending: Appending,
        offsets: Offsets,
        now_ms: int,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._reading = reading
        self._appending = appending
        self._offsets = offsets
        self._marked: dict[int, OffsetBits] = {}
        """By partition, what the last compaction found: gone with the next checkpoint."""
        self.records_compacted = 0
        self.records_retired = 0
        state.wheel.schedule(now_ms + SWEEP_MS, TimerKind.SWEEP, 0)
        timers.register(TimerKind.SWEEP, self._sweep)
        timers.register(TimerKind.COMPACTION, self._compaction_due)
        hooks.topic_deleted.append(self._forget)

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
            start = max(start, log.next_offset - rule.messages)
        if rule.bytes and log.appended_bytes >= partition.look_size:
            wanted, left = log.start_for_bytes(rule.bytes)
            start = max(start, wanted)
            partition.look_size = log.appended_bytes + max(left, rule.bytes // LOOKS_PER_LIMIT)
        partition.look_ms = now_ms + LOOK_EVERY_MS if rule.time_ms else NEVER
        too_many = start + rule.messages + rule.messages // LOOSE + 1
        partition.look_offset = too_many if rule.messages else NEVER
        if not rule.bytes:
            partition.look_size = NEVER
        return start

    def _sweep(self, _owner: int, _a: int, _b: int, now_ms: int) -> None:
        for topic in list(self._state.topics.values()):
            self.enforce(topic, now_ms)
        self._state.wheel.schedule(now_ms + SWEEP_MS, TimerKind.SWEEP, 0)

    def has_due(self) -> bool:
        return bool(self._appending.grown)

    def _forget(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self._marked.pop(partition.log.id, None)

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
            start = max(start, log.next_offset - rule.messages)
        if rule.bytes:
            start = max(start, log.start_for_bytes(rule.bytes)[0])
        return start

    def cut(self, partition: TopicPartition, start: int) -> None:
        """Forget a partition's records below ``start``, read or not."""
        for view in partition.views:
            self._offsets.leave_behind(view, start)
        if partition.log.damage is not None:
            return  # nothing of it goes
        self.records_retired += start - partition.log.start_offset
        self._state.store.advance_start(partition.log, start)

    # --- purge ---

    def purge(self, topic: Topic) -> int:
        """Take out every message that is not in flight; returns how many the fullest subscription
        lost."""
        topic.require_existing()
        if topic.quarantined:
            raise topic.quarantine_error()
        most = 0
        for subscription in topic.subscriptions.values():
            lost = sum(self._purge_view(view) for view in subscription.views)
            most = max(most, lost)
        if not topic.subscriptions:
            for partition in topic.partitions:
                stop = partition.stable_offset
                most += stop - partition.log.start_offset
                self._state.store.advance_start(partition.log, stop)
        return most

    def _purge_view(self, view: PartitionView) -> int:
        ranges, count, _ = view.state.take_out_all_fresh()
        if ranges:
            self._settlement.settle(view, ranges)
        explicit, more, _ = view.state.apply(Event.DROP, 0, view.state.end)
        if explicit:
            self._settlement.settle(view, explicit)
        return count + more

    # --- compaction ---

    def _compaction_due(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        """Its timer fired: each topic is compacted at its own interval."""
        topic = self._state.topics_by_id.get(owner)
        if topic is None:
            return
        topic.compaction_timer = 0
        rule = topic.policy.compaction
        if rule.enabled and not topic.deleted:
            due = now_ms + rule.period_ms
            topic.compaction_timer = self._state.wheel.schedule(due, TimerKind.COMPACTION, topic.id)
            self.compact(topic, now_ms)

    def compact(self, topic: Topic, now_ms: int) -> None:
        for partition in topic.partitions:
            stamped_ms = self._state.wall_ms(now_ms - topic.policy.compaction.lag_ms)
            try:
                self._compact(partition, stamped_ms)
            except PartitionQuarantined:
                continue

    def _compact(self, partition: TopicPartition, stamped_until_ms: int) -> None:
        log = partition.log
        if not any(segment.sealed for segment in log.segments):
            return
        header = partition.topic.policy.compaction.header
        latest: dict[bytes, int] = {}
        marked = OffsetBits()
        sealed_end = max(segment.end_offset for segment in log.segments if segment.sealed)
        sealed_end = min(sealed_end, partition.stable_offset)
        for run in self._reading.visible_runs(partition, log.start_offset, partition.stable_offset):
            if header:
                _note_latest_by_header(run, header, latest)
            else:
                note_latest(run.batch, run.first, run.stop, latest)
        for run in self._reading.visible_runs(partition, log.start_offset, sealed_end):
            if header:
                _mark_by_header(run, header, latest, stamped_until_ms, marked)
            else:
                mark_superseded(run.batch, run.first, run.stop, latest, stamped_until_ms, marked)
        cancelled = self._state.cancelled(partition)
        for start, stop in cancelled.ranges(log.start_offset, sealed_end) if cancelled else ():
            marked.add(start, stop)
        for view in partition.views:
            # A consumer that has a superseded message may still answer for it: it stays this time.
            for start, stop in view.state.in_state(State.IN_FLIGHT):
                marked.discard(start, stop)
        if log.pinned_offset < sealed_end:
            marked.discard(log.pinned_offset, sealed_end)
        if not marked:
            return
        for view in partition.views:
            self._drop_marked(view, marked, sealed_end)
        before = self._marked.get(log.id, OffsetBits())
        self.records_compacted += len(marked) - sum(
            before.count(start, stop) for start, stop in marked.ranges()
        )
        self._marked[log.id] = marked
        self._state.store.rewrite(log, marked)

    def _drop_marked(self, view: PartitionView, marked: OffsetBits, sealed_end: int) -> None:
        for start, stop in marked.ranges(0, sealed_end):
            for run in view.partition.runs(start, stop):
                ranges, _, _ = view.state.take_out(Event.DROP, run.batch, run.first, run.stop)
                if ranges:
                    self._settlement.settle(view, ranges)


def _header_key(run: Run, index: int, header: str) -> tuple[int, int, bytes | None, bool]:
    record = run.batch.record(index)
    headers = dict(decode_headers(record.envelope)) if record.envelope_format == NATIVE else {}
    return record.offset, record.timestamp_ms, headers.get(header), record.value is None


def _note_latest_by_header(run: Run, header: str, latest: dict[bytes, int]) -> None:
    for index in range(run.first, run.stop):
        offset, _, key, _ = _header_key(run, index, header)
        if key is not None:
            latest[key] = offset


def _mark_by_header(
    run: Run, header: str, latest: dict[bytes, int], stamped_until_ms: int, marked: OffsetBits
) -> None:
    for index in range(run.first, run.stop):
        offset, stamped, key, tombstone = _header_key(run, index, header)
        if key is not None and stamped <= stamped_until_ms and (latest[key] > offset or tombstone):
            marked.add(offset, offset + 1)
