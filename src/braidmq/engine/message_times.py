"""Messages that have times of their own, or a topic's TTL: when they are due, when they expire."""

from collections.abc import Iterator

from braidmq.engine.delay_ends import DelayEnd, DelayEnds
from braidmq.engine.later import forget_later, later_in
from braidmq.engine.reading import TIME_MAX_MS
from braidmq.engine.record_times import RecordClock
from braidmq.engine.removal import Removal
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.timers import Timers
from braidmq.engine.topics import PartitionView, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import PartitionId
from braidmq.record.batch import DATED_DUE, DATED_EXPIRY, FLAG_TIMED
from braidmq.storage.partition_log import Run

IN_FLIGHT_LOOK_MS = 1000
"""Messages at a consumer don't expire; when they come back too old it is noticed within this."""

IN_FLIGHT_LOOK_MS_MIN = 10


class MessageTimes:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        removal: Removal,
        subscriptions: Subscriptions,
        delay_ends: DelayEnds,
    ) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._removal = removal
        self._delay_ends = delay_ends
        timers.register(TimerKind.DUE, self._due)
        timers.register(TimerKind.EXPIRY, self._expiry)
        timers.register(TimerKind.HEAD, self._head)

    def _due(self, owner: int, offset: int, due_ms: int, now_ms: int) -> None:
        partition = self._state.partitions.get(PartitionId(owner))
        if partition is None:
            return
        is_visible = not partition.views and self._is_for_readers(partition, offset, due_ms)
        for view in partition.views:
            if view.state.apply(Event.DUE, offset, offset + 1, not_after_ms=now_ms)[1]:
                self._state.mark_dirty(view.subscription)
                is_visible = True
        if is_visible:
            self._delay_ends.note(partition, offset, due_ms, DelayEnd.DELIVERED, now_ms)
        if partition.topic.policy.ttl_ms:
            self._state.wheel.schedule(now_ms, TimerKind.EXPIRY, owner, offset)

    def _is_for_readers(self, partition: TopicPartition, offset: int, due_ms: int) -> bool:
        """Whether a record that nobody subscribes to is due by this timer, and waits no more: it
        was not cancelled, and if the clock was set its date is still the one the timer was set
        for."""
        if offset not in later_in(partition):
            return False
        if partition.has_dates and len(self._state.clocks) > 1:
            try:
                found = partition.timed_between(offset, offset + 1)
                if all(at[1] != due_ms for at in found):
                    return False
            except PartitionQuarantined:
                return False
        return forget_later(partition, offset, offset + 1)

    def _expiry(self, owner: int, offset: int, _: int, now_ms: int) -> None:
        """A record with times of its own may have expired. What its topic's TTL makes of it is
        known only now: that may have changed since the timer was set."""
        partition = self._state.partitions.get(PartitionId(owner))
        if partition is None or offset < partition.log.start_offset:
            return
        for run in list(partition.runs(offset, offset + 1)):
            clock = partition.clock_at(offset)
            expires = clock.expiry_of(run.batch, run.first, partition.topic.policy.ttl_ms)
            if expires > now_ms:
                self._state.wheel.schedule(expires, TimerKind.EXPIRY, owner, offset)
            elif expires:
                if not partition.views:
                    self._subscriptions.set_stand_in(partition.topic, now_ms, expiring=True)
                due = clock.due_of(run.batch, run.first)
                if due > now_ms and any(
                    _is_in(State.DELAYED, view, offset) for view in partition.views
                ):
                    self._delay_ends.note(partition, offset, due, DelayEnd.EXPIRED, now_ms)
                for view in list(partition.views):
                    self._removal.expire(view, run, now_ms)
                if any(_is_in(State.IN_FLIGHT, view, offset) for view in partition.views):
                    due = now_ms + IN_FLIGHT_LOOK_MS
                    self._state.wheel.schedule(due, TimerKind.EXPIRY, owner, offset)

    def _head(self, owner: int, changed: int, _: int, now_ms: int) -> None:
        partition = self._state.partitions.get(PartitionId(owner))
        if partition is not None:
            partition.head_timer = 0
            self._expire_head(partition, now_ms)
            if changed:
                self._follow_delayed(partition, now_ms)

    def _expire_head(self, partition: TopicPartition, now_ms: int) -> None:
        """Take out everything older than the topic's TTL, and look again when the next one is."""
        if not partition.topic.policy.ttl_ms or not partition.views:
            return
        due = min(self._expire_old(view, now_ms) for view in list(partition.views))
        if any(view.state.in_flight for view in partition.views):
            # What arrives before the next look is not to outlive its time for it.
            look_ms = max(partition.topic.policy.ttl_ms, IN_FLIGHT_LOOK_MS_MIN)
            due = min(due, now_ms + min(look_ms, IN_FLIGHT_LOOK_MS))
        if due < TIME_MAX_MS:
            partition.head_timer = self._state.wheel.schedule(due, TimerKind.HEAD, partition.log.id)

    def _expire_old(self, view: PartitionView, now_ms: int) -> int:
        """Returns when the next one will be too old. Only what is not settled is looked at: one
        message that somebody holds must not make the way through all that came after it longer
        each time."""
        partition, settled = view.partition, view.state.settled
        at = partition.log.start_offset
        while (at := settled.first_missing(at)) < partition.stable_offset:
            following = settled.first(at)
            stop = partition.stable_offset if following < 0 else following
            for found in partition.runs(at, min(stop, partition.stable_offset)):
                for clock, run in partition.by_clock(found):
                    due = self._expire_run(view, run, clock, now_ms)
                    if due:
                        return due
            at = stop
        return TIME_MAX_MS

    def _expire_run(self, view: PartitionView, run: Run, clock: RecordClock, now_ms: int) -> int:
        """Returns when the first that is left will be too old; 0 when none is."""
        ttl_ms = view.partition.topic.policy.ttl_ms
        living = clock.first_since(run.batch, run.first, run.stop, now_ms - ttl_ms + 1)
        for old in _expired(Run(run.batch, run.first, living), clock, now_ms, ttl_ms):
            self._removal.expire(view, old, now_ms)
        if living == run.stop:
            return 0
        return max(clock.stamp_of(run.batch, living) + ttl_ms, now_ms + 1)

    def _follow_delayed(self, partition: TopicPartition, now_ms: int) -> None:
        """The TTL is new: messages whose delay is over have no timer for it. Those still delayed
        get one when it is."""
        if not partition.topic.policy.ttl_ms:
            return
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        for offset, due, _, _ in partition.timed_between(floor, partition.stable_offset):
            if 0 < due <= now_ms:
                self._state.wheel.schedule(now_ms, TimerKind.EXPIRY, partition.log.id, offset)

    # --- the wall clock ---

    def clock_set(self, lead_ms: int, now_ms: int) -> None:
        """The wall clock was set: it is so far ahead of the engine's time from now on. Durations
        go on as they were; dates come when that clock says so."""
        state = self._state
        state.clock = RecordClock(lead_ms)
        state.clocks.append(state.clock)
        for clock in state.clocks:
            clock.date_lead_ms = lead_ms
        for partition in state.partitions.values():
            partition.follow_clock(state.clock)
            if partition.has_dates:
                try:
                    self._set_dates(partition, now_ms)
                except PartitionQuarantined:
                    partition.has_dates = True  # they are set when that is over

    def _set_dates(self, partition: TopicPartition, now_ms: int) -> None:
        """Timers for all records whose time is a date; those set before find nothing to do."""
        wheel, log = self._state.wheel, partition.log
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        partition.has_dates = False
        for offset, due, expires, dated in partition.timed_between(floor, log.next_offset):
            if not dated:
                continue
            partition.has_dates = True
            if due and dated & DATED_DUE:
                for view in partition.views:
                    view.state.delay(offset, due)
                wheel.schedule(due, TimerKind.DUE, log.id, offset, due)
            if expires and dated & DATED_EXPIRY:
                wheel.schedule(expires, TimerKind.EXPIRY, log.id, offset)


def _expired(run: Run, clock: RecordClock, now_ms: int, ttl_ms: int) -> Iterator[Run]:
    """The parts of a run that are expired: some of it may have been delayed."""
    if not run.batch.summary & FLAG_TIMED:
        if run.stop > run.first:
            yield run
        return
    at = run.first
    while at < run.stop:
        count = clock.live_prefix(run.batch, at, run.stop, now_ms, ttl_ms)
        if count < 0:
            yield Run(run.batch, at, at - count)
        at += abs(count)


def _is_in(state: State, view: PartitionView, offset: int) -> bool:
    found = view.state.look(offset)
    return found is not None and found[0] == state
