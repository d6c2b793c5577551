"""Bringing the engine back: topics and subscriptions from the catalogue, delivery state from the
notes, messages from the logs."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from braidmq.engine.administration import Administration
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.policy import Template
from braidmq.engine.record_times import RecordClock
from braidmq.engine.records import SubscriptionRecord, TopicRecord
from braidmq.engine.settling import NOTE, RESET_NOTE, leave_out
from braidmq.engine.state import CANCELLED, TEMPLATES, TOPICS, EngineState, TimerKind
from braidmq.engine.states import State
from braidmq.engine.timers import timed_between
from braidmq.engine.topics import Mode, PartitionView, Subscription, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.record.batch import FLAG_TIMED
from braidmq.storage.catalogue import SUBSCRIPTIONS
from braidmq.storage.journal import Kind, Progress
from braidmq.storage.partition_log import Run

Note = tuple[int, int, int, int, int]
"""start, stop, attempts, state, deadline"""

_HEAD = struct.Struct("<QQqI")
_RUN = struct.Struct("<qqHBq")


@dataclass(slots=True)
class Noted:
    """What is noted of a subscription's deliveries from a partition."""

    cursor: int = 0
    runs: list[Note] = field(default_factory=list)

    def note(self, start: int, stop: int, attempts: int, state: int, deadline: int) -> None:
        if state == RESET_NOTE:
            self.cursor = start
            self.runs.clear()
        else:
            self.cursor = max(self.cursor, stop)
            self.runs.append((start, stop, attempts, state, deadline))


@dataclass
class DeliveryNotes:
    """What the journal knows of deliveries: the engine's participant in the store.

    The first time a kernel decides and does in one step, and what came of it is noted: while the
    node runs the kernels hold the truth, and ``dump`` asks them. This gathers what is replayed,
    until the records are there too and ``Recovery`` can give both to the kernels. That this comes
    to the same is what tests/engine/test_engine_redo.py checks.
    """

    name: str = "deliveries"
    kinds: frozenset[Kind] = frozenset({Kind.DELIVERY})
    state: EngineState | None = None
    replayed: dict[int, dict[int, Noted]] = field(default_factory=dict)
    """By partition and subscription."""
    kept: dict[tuple[int, int], list[Note]] = field(default_factory=dict)
    """Of quarantined partitions, whose messages the kernels could not be told of."""

    def of(self, subscription: int, partition: int) -> Noted:
        subscriptions = self.replayed.setdefault(partition, {})
        found = subscriptions.get(subscription)
        if found is None:
            found = subscriptions[subscription] = Noted()
        return found

    def restore(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            subscription, partition, cursor, count = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            runs: list[Note] = [
                _RUN.unpack_from(data, at + index * _RUN.size) for index in range(count)
            ]
            at += count * _RUN.size
            self.replayed.setdefault(partition, {})[subscription] = Noted(cursor, runs)

    def replay(self, kind: Kind, meta: bytes) -> None:
        subscription, partition, *note = NOTE.unpack(meta)
        self.of(subscription, partition).note(*note)

    def forget_partition(self, partition: PartitionId) -> None:
        self.replayed.pop(partition, None)

    def dump(self) -> bytes:
        assert self.state is not None
        parts: list[bytes] = []
        for view in self.state.views.values():
            if not view.subscription.durable:
                continue
            key = (view.subscription.id, view.partition_id)
            notes = self.kept.get(key) or view.state.notes()
            parts.append(
                _HEAD.pack(view.subscription.id, view.partition_id, view.state.cursor, len(notes))
            )
            lead_ms = self.state.clock.lead_ms
            parts += [_RUN.pack(*note[:4], note[4] and note[4] + lead_ms) for note in notes]
        return b"".join(parts)

    def forget(self) -> None:
        """The kernels know."""
        self.replayed.clear()

    def keep(self, subscription: int, partition: int, notes: list[Note]) -> None:
        """Of messages that can't be read for now."""
        self.kept[subscription, partition] = notes


class Recovery:
    def __init__(self, state: EngineState, notes: DeliveryNotes) -> None:
        self._state = state
        self._notes = notes
        self.administration: Administration
        self.before_subscriptions: Callable[[], None] = lambda: None
        self._timed_from: dict[PartitionId, int] = {}
        """From where on the records of a partition that have times of their own have timers."""

    def run(self, now_ms: int, progress: Progress) -> None:
        catalogue = self._state.store.catalogue
        for key, value in catalogue.items(TEMPLATES):
            namespace, _, name = key.partition("\0")
            template = msgspec.msgpack.decode(value, type=Template)
            self._state.templates[namespace, name] = template
        self._pass_lost_records()
        for _, value in catalogue.items(TOPICS):
            self._restore_topic(msgspec.msgpack.decode(value, type=TopicRecord), now_ms)
        self.before_subscriptions()
        subscriptions = list(catalogue.items(SUBSCRIPTIONS))
        for done, (_, value) in enumerate(subscriptions):
            progress("subscriptions", done, len(subscriptions))
            self._restore_subscription(
                msgspec.msgpack.decode(value, type=SubscriptionRecord), now_ms
            )
        self._forget_strangers()
        for partition in self._state.partitions.values():
            self.set_timers(partition, now_ms)
        self._notes.forget()

    def _pass_lost_records(self) -> None:
        """Records that were never journaled are gone, but what was journaled of their deliveries
        is not: their offsets must not come to mean other messages."""
        logs = self._state.store.logs
        for partition, subscriptions in self._notes.replayed.items():
            if (log := logs.get(PartitionId(partition))) is not None:
                log.pass_over(max(each.cursor for each in subscriptions.values()))

    def _clock_ahead(self, now_ms: int) -> RecordClock:
        """Reads records that are stamped with times to come as if it had been now."""
        if len(self._state.clocks) == 1:
            self._state.clocks.append(RecordClock(0, now_ms))
        return self._state.clocks[1]

    def _restore_topic(self, record: TopicRecord, now_ms: int) -> None:
        administration = self.administration
        topic = Topic(
            record.id,
            record.namespace,
            record.name,
            record.settings,
            administration.policy(record.namespace, record.name, record.settings, record.kind),
            durable=True,
            now_ms=record.created_ms,
            kind=record.kind,
            attributes=record.attributes,
        )
        for number in record.partitions:
            log = self._state.store.log(PartitionId(number))
            partition = administration.add_partition(topic, log)
            if log.latest_ms > now_ms:
                # The clock was set back while the node was down. Nothing takes longer for that.
                partition.older_clocks.append((log.next_offset, self._clock_ahead(now_ms)))
        administration.register(topic)

    def _restore_subscription(self, record: SubscriptionRecord, now_ms: int) -> None:
        topic = self._state.topics_by_id.get(record.topic)
        if topic is None:
            return
        subscription = Subscription(
            SubscriptionId(record.id),
            topic,
            record.name,
            Mode(record.mode),
            durable=True,
            uncommitted=record.uncommitted,
        )
        self.administration.register_subscription(subscription)
        for partition in topic.partitions:
            self._restore_view(subscription, partition, now_ms)

    def _restore_view(
        self, subscription: Subscription, partition: TopicPartition, now_ms: int
    ) -> None:
        log = partition.log
        settled = self._state.store.offsets_of(subscription.id, log.id)
        if settled.floor < log.start_offset:
            # Retention moved the start of the log over unread records.
            settled.add(settled.floor, log.start_offset)
        self.administration.settle_cancelled(subscription, partition, settled, journaled=False)
        noted = self._notes.of(subscription.id, log.id)
        cursor = max(noted.cursor, settled.floor)
        end = log.next_offset if subscription.uncommitted else partition.stable_offset
        state = DeliveryState(settled, cursor, max(cursor, end))
        # Receipts of an earlier life must not name deliveries of this one.
        state.nonce = (now_ms << 8) & 0xFFFFFFFF
        view = self.administration.attach_view(subscription, partition, state, now_ms)
        self.rebuild(view, now_ms, noted.runs)

    def kept_notes(self, view: PartitionView) -> list[Note]:
        """What was noted of deliveries before its partition was quarantined at start-up."""
        return self._notes.kept.pop((view.subscription.id, view.partition_id), [])

    def rebuild(self, view: PartitionView, now_ms: int, notes: list[Note] | None = None) -> None:
        """Count the messages of a view again, from the log and what was noted of deliveries. Of
        what is quarantined that is done when it can be read."""
        try:
            self._rebuild(view, now_ms, notes)
        except PartitionQuarantined:
            if notes:
                self._notes.keep(view.subscription.id, view.partition_id, notes)

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
        self.administration.set_lanes(view, now_ms)
        for start, stop, attempts, was, deadline in notes or ():
            if view.partition.older_clocks:
                deadline -= max(log.latest_ms - now_ms, 0)
            waits = was == State.WAITING and deadline > now_ms
            self._restore_notes(view, start, stop, attempts, deadline, lane_of, waits=waits)
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
                    leave_out(state, at, end)
                    at = end
                    break
                first = run.batch.offset_at(run.first)
                leave_out(state, at, first)
                for clock, part in view.partition.by_clock(Run(run.batch, run.first, stop)):
                    state.rebuild(run.batch, part.first, part.stop, now_ms, lane_of, clock)
                last = run.batch.offset_at(stop - 1) + 1
                if last - first != stop - run.first:
                    for index in range(run.first + 1, stop):
                        leave_out(
                            state, run.batch.offset_at(index - 1) + 1, run.batch.offset_at(index)
                        )
                at = last
        leave_out(state, at, end)
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
    ) -> None:
        # Whoever had it in flight is gone; what waited for its retry goes on waiting.
        state = State.WAITING if waits else State.READY
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
            self._state.wheel.schedule(deadline, TimerKind.RETRY, view.id, start, stop)

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
            self.administration.arm_head(partition, now_ms)
        floor = min((view.state.settled.floor for view in partition.views), default=0)
        at = max(floor, log.start_offset)
        self._timed_from[log.id] = at
        self._schedule_timed(partition, at, partition.stable_offset, now_ms)

    def _schedule_timed(self, partition: TopicPartition, at: int, end: int, now_ms: int) -> None:
        log, wheel = partition.log, self._state.wheel
        for offset, due, expires, dated in timed_between(partition, at, end):
            if dated:
                partition.has_dates = True
            if due > now_ms:
                wheel.schedule(due, TimerKind.DUE, log.id, offset)
            elif due and partition.topic.policy.ttl_ms:
                wheel.schedule(now_ms, TimerKind.EXPIRY, log.id, offset)
            if expires:
                wheel.schedule(expires, TimerKind.EXPIRY, log.id, offset)

    def _forget_strangers(self) -> None:
        """Acknowledgements of subscriptions that were deleted after they were journaled."""
        store = self._state.store
        for subscription, partition in list(store.acknowledged):
            if subscription != CANCELLED and subscription not in self._state.subscriptions:
                store.forget_offsets(subscription, partition)
