"""Counting the messages of a subscription again: after a restart, a rewind, a quarantine."""

from braidmq.engine.later import note_later
from braidmq.engine.settlement import leave_out
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import State
from braidmq.engine.topics import Mode, PartitionView, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import PartitionId
from braidmq.record.batch import FLAG_TIMED
from braidmq.storage.partition_log import Run

Note = tuple[int, int, int, int, int]
"""start, stop, attempts, state, deadline"""


class Rebuilding:
    def __init__(self, state: EngineState, kept: dict[tuple[int, int], list[Note]]) -> None:
        self._state = state
        self._kept = kept
        """By subscription and partition, what was noted of messages that can't be read for now."""
        self._timed_from: dict[PartitionId, int] = {}
        """From where on the records of a partition that have times of their own have timers."""

    def kept_notes(self, view: PartitionView) -> list[Note]:
        """What was noted of deliveries before its partition was quarantined at start-up."""
        return self._kept.pop((view.subscription.id, view.partition_id), [])

    def rebuild(self, view: PartitionView, now_ms: int, notes: list[Note] | None = None) -> None:
        """Count the messages of a view again, from the log and what was noted of deliveries. Of
        what is quarantined that is done when it can be read."""
        try:
            self._rebuild(view, now_ms, notes)
        except PartitionQuarantined:
            if notes:
                self._kept[view.subscription.id, view.partition_id] = notes

    def _rebuild(self, view: PartitionView, now_ms: int, notes: list[Note] | None) -> None:
        state, log = view.state, view.log
        lane_of = view.partition.topic.lane_of
        if view.partition.topic.policy.retention.until_acked:
            # Memory may hold settled records that no flush has written: they are as good as gone.
            log.evict()
        state.recount()
        timed_from = self._timed_from.get(log.id, 0)
        if notes is None and state.settled.floor < timed_from:
            # Since the restart nobody wanted these: a rewind, or somebody new, does.
            self._timed_from[log.id] = state.settled.floor
            self._schedule_timed(view.partition, state.settled.floor, timed_from, now_ms)
        view.set_lanes(now_ms)
        for start, stop, attempts, was, deadline in notes or ():
            if view.partition.older_clocks:
                deadline -= max(log.latest_ms - now_ms, 0)
            waits = was in (State.WAITING, State.IN_FLIGHT) and deadline > now_ms
            self._restore_notes(
                view,
                start,
                stop,
                attempts,
                deadline,
                lane_of,
                waits=waits,
                was_in_flight=was == State.IN_FLIGHT,
            )
        state.settle_early(state.cursor, state.settled.floor)
        at, end = max(state.settled.floor, log.start_offset), view.visible_end
        while at < end:
            skipped = self._skip_plain_segment(view, at)
            if skipped:
                at = skipped
                continue
            found = log.read(at)
            if not found:
                break
            for run in found:
                stop = min(run.stop, run.batch.find(end))
                if stop <= run.first:
                    leave_out(self._state, view, at, end)
                    at = end
                    break
                first = run.batch.offset_at(run.first)
                leave_out(self._state, view, at, first)
                for clock, part in view.partition.by_clock(Run(run.batch, run.first, stop)):
                    state.rebuild(run.batch, part.first, part.stop, now_ms, lane_of, clock)
                last = run.batch.offset_at(stop - 1) + 1
                if last - first != stop - run.first:
                    for index in range(run.first + 1, stop):
                        behind = run.batch.offset_at(index - 1) + 1
                        leave_out(self._state, view, behind, run.batch.offset_at(index))
                at = last
        leave_out(self._state, view, at, end)
        # What was left out may have closed the gap above the floor, which then passed the cursor.
        state.settle_early(state.cursor, state.settled.floor)
        for start, stop in state.settled.ranges_above_floor():
            state.settle_early(start, stop)
        state.rebuild_done()

    def _restore_notes(
        self,
        view: PartitionView,
        start: int,
        stop: int,
        attempts: int,
        deadline: int,
        lane_of: bytes | None,
        *,
        waits: bool,
        was_in_flight: bool,
    ) -> None:
        # Who had it in flight on a connection is gone. Without one nobody can tell: it comes again
        # at its deadline. What waited for its retry goes on waiting.
        # Where order counts it waits like a retry, so that nothing overtakes it.
        state = State.READY
        if waits:
            state = (
                State.IN_FLIGHT
                if was_in_flight and view.subscription.mode is Mode.SHARED
                else State.WAITING
            )
        at = max(start, view.log.start_offset)
        while at < stop:
            found = view.log.read(at)
            if not found:
                return
            for run in found:
                end = min(run.stop, run.batch.find(stop))
                if end > run.first:
                    view.state.restore(
                        run.batch, run.first, end, attempts, state, deadline, lane_of
                    )
                at = run.batch.offset_at(run.stop - 1) + 1
        if waits:
            kind = TimerKind.VISIBILITY if state == State.IN_FLIGHT else TimerKind.RETRY
            self._state.wheel.schedule(deadline, kind, view.id, start, stop)

    def _skip_plain_segment(self, view: PartitionView, at: int) -> int:
        """The end of the segment that begins at ``at``, when it need not be looked into: all its
        records are fresh, with neither time nor priority of their own."""
        state = view.state
        if at < state.cursor or state.settled.size or view.partition.topic.lane_of is not None:
            return 0
        for segment in view.log.segments:
            if segment.base_offset == at:
                dense = segment.records == segment.end_offset - segment.base_offset
                decided = segment.end_offset <= view.visible_end
                if dense and decided and not segment.summary & FLAG_TIMED:
                    state.rebuild_fresh(segment.value_bytes)
                    return segment.end_offset
        return 0

    def set_timers(self, partition: TopicPartition, now_ms: int) -> None:
        """Timers of records that have times of their own, and of the topic's TTL."""
        try:
            self._set_timers(partition, now_ms)
        except PartitionQuarantined:
            return  # they are set when it is over

    def _set_timers(self, partition: TopicPartition, now_ms: int) -> None:
        log = partition.log
        if log.next_offset > log.start_offset:
            self._state.arm_head(partition, now_ms)
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        at = max(floor, log.start_offset)
        self._timed_from[log.id] = at
        self._schedule_timed(partition, at, partition.stable_offset, now_ms)

    def _schedule_timed(self, partition: TopicPartition, at: int, end: int, now_ms: int) -> None:
        log, wheel = partition.log, self._state.wheel
        cancelled = self._state.cancelled(partition)
        for offset, due, expires, dated in partition.timed_between(at, end):
            if dated:
                partition.has_dates = True
            if due > now_ms:
                wheel.schedule(due, TimerKind.DUE, log.id, offset, due)
                if cancelled is None or offset not in cancelled:
                    note_later(partition, offset)
            elif due and partition.topic.policy.ttl_ms:
                wheel.schedule(now_ms, TimerKind.EXPIRY, log.id, offset)
            if expires:
                wheel.schedule(expires, TimerKind.EXPIRY, log.id, offset)

    def left(self, partition: TopicPartition, now_ms: int) -> None:
        """The last view is gone: what waits for its time is what the log has."""
        try:
            self._left(partition, now_ms)
        except PartitionQuarantined:
            return

    def _left(self, partition: TopicPartition, now_ms: int) -> None:
        start, end = partition.log.start_offset, partition.stable_offset
        timed_from = self._timed_from.get(partition.log.id, 0)
        if start < timed_from:
            self._timed_from[partition.log.id] = start
            self._schedule_timed(partition, start, timed_from, now_ms)
        cancelled = self._state.cancelled(partition)
        for offset, due, expires, _ in partition.timed_between(max(start, timed_from), end):
            is_gone = 0 < expires <= now_ms or (cancelled is not None and offset in cancelled)
            if due > now_ms and not is_gone:
                note_later(partition, offset)
