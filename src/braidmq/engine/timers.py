"""What time does: retries, overdue deliveries, delayed and expiring messages, idle topics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from braidmq.engine.administration import TIME_MAX_MS, Administration
from braidmq.engine.errors import NotDelayed
from braidmq.engine.record_times import RecordClock
from braidmq.engine.settling import Settling
from braidmq.engine.state import CANCELLED, EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import PartitionId
from braidmq.record.batch import DATED_DUE, DATED_EXPIRY, FLAG_TIMED, Record
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.partition_log import Run

TIMERS_PER_TURN = 1000
"""Timers handled in one go: a million that are due together must not stop the loop."""

IN_FLIGHT_LOOK_MS = 1000
"""Messages at a consumer don't expire; when they come back too old it is noticed within this."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message published for later."""

    partition: int
    offset: int
    due_ms: int
    record: Record


class Timers:
    def __init__(
        self, state: EngineState, settling: Settling, administration: Administration
    ) -> None:
        self._state = state
        self._settling = settling
        self._administration = administration
        self.on_sweep: Callable[[int], None] = lambda now_ms: None
        self.on_compaction: Callable[[Topic, int], None] = lambda topic, now_ms: None
        self.on_group: Callable[[int, int], None] = lambda number, now_ms: None
        self.on_lease: Callable[[int, int], None] = lambda number, now_ms: None
        self.on_transaction: Callable[[int, int], None] = lambda number, now_ms: None
        self._handlers: dict[int, Callable[[int, int, int, int], None]] = {
            TimerKind.RETRY: self._retry,
            TimerKind.VISIBILITY: self._overdue,
            TimerKind.DUE: self._due,
            TimerKind.EXPIRY: self._expiry,
            TimerKind.HEAD: self._head,
            TimerKind.IDLE: self._idle,
            TimerKind.SWEEP: self._sweep,
            TimerKind.GROUP: self._group,
            TimerKind.LEASE: self._lease,
            TimerKind.TRANSACTION: self._transaction,
            TimerKind.COMPACTION: self._compaction,
        }

    def advance(self, now_ms: int) -> None:
        """Do what is due by now. Call again at once if ``next_due_ms`` is not in the future."""
        for kind, owner, a, b in self._state.wheel.advance(now_ms, TIMERS_PER_TURN):
            try:
                self._handlers[kind](owner, a, b, now_ms)
            except PartitionQuarantined:
                continue  # the timers of its partition are set anew when that is over

    def _retry(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        view = self._state.views.get(owner)
        if view is not None:
            self._settling.retry_due(view, start, stop, now_ms)

    def _overdue(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        view = self._state.views.get(owner)
        if view is not None:
            self._settling.timed_out(view, start, stop, now_ms)

    def _due(self, owner: int, offset: int, _: int, now_ms: int) -> None:
        partition = self._state.partitions.get(PartitionId(owner))
        for view in partition.views if partition is not None else ():
            if view.state.apply(Event.DUE, offset, offset + 1, not_after_ms=now_ms)[1]:
                self._state.mark_dirty(view.subscription)
        if partition is not None and partition.topic.policy.ttl_ms:
            self._state.wheel.schedule(now_ms, TimerKind.EXPIRY, owner, offset)

    def _expiry(self, owner: int, offset: int, _: int, now_ms: int) -> None:
        """A record with times of its own may have expired. What its topic's TTL makes of it is
        known only now: that may have changed since the timer was set."""
        partition = self._state.partitions.get(PartitionId(owner))
        if partition is None or offset < partition.log.start_offset:
            return
        for run in list(self._settling.runs(partition, offset, offset + 1)):
            clock = partition.clock_at(offset)
            expires = clock.expiry_of(run.batch, run.first, partition.topic.policy.ttl_ms)
            if expires > now_ms:
                self._state.wheel.schedule(expires, TimerKind.EXPIRY, owner, offset)
            elif expires:
                for view in list(partition.views):
                    self._settling.expire(view, run, now_ms)
                if any(_in_flight(view, offset) for view in partition.views):
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
            due = min(due, now_ms + IN_FLIGHT_LOOK_MS)
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
            for found in self._settling.runs(partition, at, min(stop, partition.stable_offset)):
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
            self._settling.expire(view, old, now_ms)
        if living == run.stop:
            return 0
        return max(clock.stamp_of(run.batch, living) + ttl_ms, now_ms + 1)

    def _follow_delayed(self, partition: TopicPartition, now_ms: int) -> None:
        """The TTL is new: messages whose delay is over have no timer for it. Those still delayed
        get one when it is."""
        if not partition.topic.policy.ttl_ms:
            return
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        for offset, due, _, _ in timed_between(partition, floor, partition.stable_offset):
            if 0 < due <= now_ms:
                self._state.wheel.schedule(now_ms, TimerKind.EXPIRY, partition.log.id, offset)

    def _idle(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        topic = self._state.topics_by_id.get(owner)
        if topic is not None:
            self._administration.idle(topic, now_ms)

    def _sweep(self, _owner: int, _a: int, _b: int, now_ms: int) -> None:
        self.on_sweep(now_ms)

    def _compaction(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        topic = self._state.topics_by_id.get(owner)
        if topic is not None:
            self.on_compaction(topic, now_ms)

    def _group(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        self.on_group(owner, now_ms)

    def _lease(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        self.on_lease(owner, now_ms)

    def _transaction(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        self.on_transaction(owner, now_ms)

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
                    self.set_dates(partition, now_ms)
                except PartitionQuarantined:
                    partition.has_dates = True  # they are set when that is over

    def set_dates(self, partition: TopicPartition, now_ms: int) -> None:
        """Timers for all records whose time is a date; those set before find nothing to do."""
        wheel, log = self._state.wheel, partition.log
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        partition.has_dates = False
        for offset, due, expires, dated in timed_between(partition, floor, log.next_offset):
            if not dated:
                continue
            partition.has_dates = True
            if due and dated & DATED_DUE:
                for view in partition.views:
                    view.state.delay(offset, due)
                wheel.schedule(due, TimerKind.DUE, log.id, offset)
            if expires and dated & DATED_EXPIRY:
                wheel.schedule(expires, TimerKind.EXPIRY, log.id, offset)

    # --- delayed messages ---

    def delayed(
        self, topic: Topic, now_ms: int, limit: int = 100, after: tuple[int, int] = (0, -1)
    ) -> list[Delayed]:
        """Messages that wait for their time, by partition and offset; those ``after`` one."""
        found: list[Delayed] = []
        for partition in topic.partitions[after[0] :]:
            first = after[1] + 1 if partition.number == after[0] else 0
            for start, stop in self._pending(partition):
                if stop <= first:
                    continue
                start = max(start, first)
                for run in self._settling.runs(partition, start, stop):
                    for index in range(run.first, run.stop):
                        if not self._is_due_after(now_ms, partition, run, index):
                            continue
                        record = run.batch.record(index)
                        found.append(
                            Delayed(partition.number, record.offset, record.due_at_ms, record)
                        )
                        if len(found) == limit:
                            return found
        return found

    def _pending(self, partition: TopicPartition) -> list[tuple[int, int]]:
        """Where to look for delayed messages: those of any subscription, or without one the log."""
        if len(partition.views) == 1:
            return partition.views[0].state.in_state(State.DELAYED)
        found = OffsetBits()
        for view in partition.views:
            for start, stop in view.state.in_state(State.DELAYED):
                found.add(start, stop)
        if not partition.views:
            found.add(partition.log.start_offset, partition.stable_offset)
            cancelled = self._state.cancelled(partition)
            if cancelled is not None:
                for start, stop in [(0, cancelled.floor), *cancelled.ranges_above_floor()]:
                    found.discard(start, stop)
        return found.ranges()

    def count_delayed(self, topic: Topic, now_ms: int) -> int:
        return sum(self._count_pending(partition, now_ms) for partition in topic.partitions)

    def _count_pending(self, partition: TopicPartition, now_ms: int) -> int:
        """The subscriptions know. Without one the log is read, but only what has times of its own
        is looked at."""
        if len(partition.views) == 1:
            return partition.views[0].state.delayed
        ranges = self._pending(partition)
        if partition.views:
            return sum(stop - start for start, stop in ranges)
        return sum(
            self._is_due_after(now_ms, partition, run, index)
            for start, stop in ranges
            for run in self._settling.runs(partition, start, stop)
            if run.batch.summary & FLAG_TIMED
            for index in range(run.first, run.stop)
        )

    def _is_due_after(self, time_ms: int, partition: TopicPartition, run: Run, index: int) -> bool:
        clock = partition.clock
        if partition.older_clocks:
            clock = partition.clock_at(run.batch.offset_at(index))
        return clock.due_of(run.batch, index) > time_ms

    def cancel(self, topic: Topic, number: int, offset: int) -> None:
        """A delayed message is not delivered after all."""
        partition = self._state.partition(topic, number)
        if not self._is_pending(partition, offset):
            raise NotDelayed(
                f"offset {offset} of {topic.name}/{number} is not waiting for its time"
            )
        store, log = self._state.store, partition.log
        # Also for subscriptions that do not exist yet.
        if topic.durable:
            store.acknowledge(CANCELLED, log.id, [(offset, offset + 1)])
        else:
            store.offsets_of(CANCELLED, log.id).add(offset, offset + 1)
        for view in partition.views:
            self._cancel_in(view, offset)

    def _is_pending(self, partition: TopicPartition, offset: int) -> bool:
        if not 0 <= offset < partition.stable_offset:
            return False
        if partition.views:
            found = (view.state.look(offset) for view in partition.views)
            return any(each is not None and each[0] == State.DELAYED for each in found)
        cancelled = self._state.store.acknowledged.get((CANCELLED, partition.log.id), ())
        return offset not in cancelled and any(
            self._is_due_after(self._state.wheel.now_ms, partition, run, run.first)
            for run in self._settling.runs(partition, offset, offset + 1)
        )

    def _cancel_in(self, view: PartitionView, offset: int) -> int:
        ranges, count, _ = view.state.apply(Event.CANCEL, offset, offset + 1)
        if count:
            self._settling.settle(view, ranges)
        return count


def timed_between(
    partition: TopicPartition, at: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """``(offset, due, expires, dated)`` of the records at ``at`` … ``end - 1`` that have either."""
    log = partition.log
    at = max(at, log.start_offset)
    while at < end:
        for segment in log.segments:
            if segment.base_offset <= at < segment.end_offset and not segment.summary & FLAG_TIMED:
                at = segment.end_offset
        found = log.read(at)
        if not found:
            return
        for run in found:
            if run.batch.summary & FLAG_TIMED:
                for clock, part in partition.by_clock(run):
                    first = max(at, part.batch.offset_at(part.first))
                    last = min(end - 1, part.batch.offset_at(part.stop - 1))
                    for each in clock.timed(part.batch):
                        if first <= each[0] <= last:
                            yield each
            at = run.batch.offset_at(run.stop - 1) + 1


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


def _in_flight(view: PartitionView, offset: int) -> bool:
    found = view.state.look(offset)
    return found is not None and found[0] == State.IN_FLIGHT
