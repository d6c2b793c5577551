"""Appending: batches written into the logs of partitions, and their subscriptions told.

Whatever is published goes through here, and so does what the broker itself has to put somewhere:
dead letters, marks of transactions. No limits are checked: that is publishing's.
"""

from collections.abc import Sequence

from braidmq.engine.hooks import Hooks
from braidmq.engine.later import note_later
from braidmq.engine.partitioner import split
from braidmq.engine.reading import Reading
from braidmq.engine.record_times import RecordClock, shifted
from braidmq.engine.settlement import Settlement, leave_out
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.topics import PartitionView, Subscription, Topic, TopicPartition
from braidmq.engine.transactions.entries import Stamp
from braidmq.engine.transactions.stability import Stability
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import Lsn
from braidmq.record.batch import FLAG_TIMED, RecordBatch
from braidmq.storage.entries import Settled
from braidmq.storage.partition_log import Run

OFFSET_MAX = (1 << 63) - 1

Placed = tuple[int, int, int]
"""Partition, first offset, count."""


class Published:
    """What became of a batch."""

    __slots__ = ("accepted", "lsn", "placed")

    def __init__(self, lsn: Lsn | None, accepted: int, placed: Sequence[Placed] = ()) -> None:
        self.lsn = lsn
        """When this is durable the batch is; None when it needs no disk."""
        self.accepted = accepted
        """Records taken, from the first; fewer than given when the topic became full."""
        self.placed = placed
        """Where those of one topic went."""


def require_writable(target: TopicPartition) -> None:
    if target.log.damage is not None:
        raise target.log.quarantined()


def split_by_partition(
    topic: Topic, batch: RecordBatch, partition: int | None = None
) -> list[tuple[TopicPartition, RecordBatch]]:
    if partition is not None:
        target = topic.open_partition(partition)
        require_writable(target)
        return [(target, batch)]
    if topic.width == 1:
        return [(topic.partitions[0], batch)]
    parts, topic.round_robin = split(batch, topic.width, topic.round_robin, by_key=topic.by_key)
    pairs = zip(topic.partitions[: topic.width], parts, strict=True)
    found = [(target, part) for target, part in pairs if part is not None]
    if topic.quarantined:
        for target, _ in found:
            require_writable(target)
    return found


class Appending:
    def __init__(
        self,
        state: EngineState,
        hooks: Hooks,
        settlement: Settlement,
        reading: Reading,
        stability: Stability,
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._settlement = settlement
        self._reading = reading
        self._stability = stability
        self.grown: dict[Topic, None] = {}
        """Topics that may have more than their retention allows; whoever looks empties it."""

    def append(
        self,
        targets: Sequence[TopicPartition],
        batch: RecordBatch,
        now_ms: int,
        *,
        durable: bool = True,
        settled: Sequence[Settled] = (),
        stamp: Stamp | None = None,
        only: Subscription | None = None,
    ) -> Lsn | None:
        """Append to partitions and tell their subscriptions. No limits are checked.

        With ``only`` one of their subscriptions gets it: for the others it is settled in the same
        step. No transaction may be open there.
        """
        store = self._state.store
        if only is not None:
            settled = [*settled, *_settled_for_others(targets, batch.count, only)]
        if self._state.clock.lead_ms:
            # Stamped with the engine's time; people are shown the wall clock's.
            batch = shifted(batch, self._state.clock.lead_ms)
        on_disk: list[TopicPartition] = []
        in_memory: list[TopicPartition] = []
        waits = False
        for target in targets:
            topic = target.topic
            if topic.journaled and (durable or topic.keeps_transient):
                on_disk.append(target)
                waits = waits or topic.policy.durability == "disk"
            else:
                in_memory.append(target)
            if not target.views:
                for hook in self._hooks.unattended:
                    hook(target.topic, now_ms)
        bases = [target.log.next_offset for target in targets]
        # Before it is in a log: that is to know that it shares the batch with others.
        twins = [
            batch.at_offset(target.log.next_offset) for target in in_memory[0 if on_disk else 1 :]
        ]
        lsn: Lsn | None = None
        if on_disk:
            meta = stamp.encode() if stamp is not None else b""
            lsn = store.append(batch, [t.log for t in on_disk], settled, meta)
        elif settled:
            for subscription, partition, start, stop in settled:
                store.acknowledge(subscription, partition, [(start, stop)])
        copies = twins if on_disk else [batch, *twins]
        for index, target in enumerate(in_memory):
            reserved = store.append_transient(copies[index], target.log)
            if reserved is not None:
                lsn, waits = reserved, True
        if stamp is not None:
            self._stability.stamped(targets, bases, stamp)
        for index, target in enumerate(targets):
            self._arrived(target, batch, bases[index], now_ms, only)
        # Only now: what one topic can't hold may go to another of them.
        for target in targets:
            if target.topic.bounded and target.topic.drops_head:
                for hook in self._hooks.overflowing:
                    hook(target.topic, now_ms)
        return lsn if waits else None

    def _arrived(
        self,
        target: TopicPartition,
        batch: RecordBatch,
        base_offset: int,
        now_ms: int,
        only: Subscription | None = None,
    ) -> None:
        topic, state = target.topic, self._state
        topic.published += batch.count
        topic.last_used_ms = now_ms
        if target.open_transactions:
            self._stability.undecided(target, batch, base_offset, now_ms)
        else:
            if batch.summary & FLAG_TIMED:
                self._schedule(target, batch, base_offset, now_ms)
            for view in target.views:
                if only is not None and view.subscription is not only:
                    stop = base_offset + batch.count
                    leave_out(state, view, min(view.state.end, base_offset), stop)
                    continue
                view.state.published(batch, base_offset, now_ms, topic.lane_of, target.clock)
                state.mark_dirty(view.subscription)
        policy = topic.policy
        if policy.ttl_ms and not target.head_timer:
            due = now_ms + policy.ttl_ms
            target.head_timer = state.wheel.schedule(due, TimerKind.HEAD, target.log.id)
        if topic.limited and target.may_exceed(now_ms):
            self.grown[topic] = None

    def _schedule(
        self,
        target: TopicPartition,
        batch: RecordBatch,
        base_offset: int,
        now_ms: int,
        start: int = 0,
        stop: int = OFFSET_MAX,
        clock: RecordClock | None = None,
    ) -> None:
        """Timers for records that become visible or expire at times of their own, in so far as
        they stand at offsets ``start`` … ``stop - 1``."""
        wheel, ahead = self._state.wheel, base_offset - batch.base_offset
        for offset, due, expires, dated in (clock or target.clock).timed(batch):
            offset += ahead
            if start <= offset < stop:
                if due > now_ms:
                    wheel.schedule(due, TimerKind.DUE, target.log.id, offset, due)
                    note_later(target, offset)
                if expires:
                    wheel.schedule(expires, TimerKind.EXPIRY, target.log.id, offset)
                if dated:
                    target.has_dates = True

    # --- transactions ---

    def decided(self, partition: TopicPartition, transaction: int, now_ms: int) -> None:
        """A transaction is over here: subscriptions are told what has become stable."""
        before = partition.stable_offset
        self._stability.let_go(partition, transaction)
        stable = partition.stable_offset
        if stable > before:
            self._tell(partition, before, stable, now_ms)
            self._stability.count_undecided(partition)

    def _tell(self, partition: TopicPartition, start: int, stable: int, now_ms: int) -> None:
        """Subscriptions of what is quarantined are told when it can be read again."""
        try:
            self._tell_views(partition, start, stable, now_ms)
        except PartitionQuarantined:
            return

    def _tell_views(self, partition: TopicPartition, start: int, stable: int, now_ms: int) -> None:
        views = [view for view in partition.views if not view.subscription.uncommitted]
        for clock, run in [
            part
            for found in self._reading.visible_runs(partition, start, stable)
            for part in partition.by_clock(found)
        ]:
            batch = run.batch
            first, stop = batch.offset_at(run.first), batch.offset_at(run.stop - 1) + 1
            if batch.summary & FLAG_TIMED:
                base = batch.base_offset
                self._schedule(partition, batch, base, now_ms, first, stop, clock)
            for view in views:
                self._tell_view(view, run, now_ms, clock)
        for view in views:
            leave_out(self._state, view, view.state.end, stable)
            self._state.mark_dirty(view.subscription)
        self._settlement.release(partition)
        if partition.topic.bounded and partition.topic.drops_head:
            for hook in self._hooks.overflowing:
                hook(partition.topic, now_ms)

    def _tell_view(self, view: PartitionView, run: Run, now_ms: int, clock: RecordClock) -> None:
        """One run without gaps, unless the subscription began behind it."""
        batch, state = run.batch, view.state
        first = max(run.first, batch.find(state.end))
        if first < run.stop:
            leave_out(self._state, view, state.end, batch.offset_at(first))
            lane_of = view.partition.topic.lane_of
            state.told(batch, first, run.stop, now_ms, lane_of, clock)


def _settled_for_others(
    targets: Sequence[TopicPartition], count: int, only: Subscription
) -> list[Settled]:
    """What is about to be appended, for all subscriptions but one."""
    found: list[Settled] = []
    for target in targets:
        start = target.log.next_offset
        for view in target.views:
            subscription = view.subscription
            if subscription is not only and subscription.durable:
                found.append((subscription.id, target.log.id, start, start + count))
    return found
