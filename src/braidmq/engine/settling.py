"""What becomes of messages after a delivery: acknowledged, tried again, given up.

Every answer goes through the table of ``states``: the kernel changes only what the table allows,
and only messages that are in flight at whoever answers.
"""

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from braidmq.engine.core import Core, Timer
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.effects import DeadLettered
from braidmq.engine.envelope import Death
from braidmq.engine.states import Event, State
from braidmq.engine.topics import Consumer, PartitionView, Subscription, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.storage.journal import Kind
from braidmq.storage.partition_log import Run
from braidmq.storage.record import Record, RecordBatch
from braidmq.storage.store import Settled

if TYPE_CHECKING:
    from braidmq.engine.dead_letters import DeadLetterTargets
    from braidmq.engine.publishing import Publishing

logger = logging.getLogger(__name__)

NOTE = struct.Struct("<QQqqHBq")
"""subscription, partition, start, stop, attempts, state, deadline"""

RESET_NOTE = 255
"""Instead of a state: the subscription was moved, and what was noted before no longer holds."""

# Looking a member up in its enum costs more than the kernel takes for a whole run.
ACK: Final = int(Event.ACK)
EXPIRE: Final = int(Event.EXPIRE)
DROP: Final = int(Event.DROP)
DELIVERY: Final = Kind.DELIVERY

READ_BYTES = 1 << 20
OFFSET_MAX = (1 << 63) - 1

Ranges = Iterable[tuple[int, int]]
Head = tuple[int, int, int, Run]
"""What is first to go of a view: lane, time, partition, records."""


class Settling:
    publishing: "Publishing"
    targets: "DeadLetterTargets"

    def __init__(self, core: Core) -> None:
        self._core = core

    # --- answers of consumers ---

    def ack(self, consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
        """Settle messages in flight at a consumer; returns how many were."""
        ranges, count, size = view.state.apply(ACK, start, stop, consumer.id)
        if count:
            self.give_back(consumer, count, size)
            view.subscription.acked += count
            self.settle(view, ranges)
            self._core.touch(view.subscription)
        return count

    def nack(
        self,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        stop: int,
        now_ms: int,
        *,
        error: str = "",
        delay_ms: int | None = None,
    ) -> int:
        """Try again later: after the topic's back-off, or after ``delay_ms``."""
        count = self._fail(view, Event.NACK, start, stop, now_ms, consumer, error, delay_ms)
        view.subscription.nacked += count
        return count

    def requeue(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, now_ms: int
    ) -> int:
        """Ready again at once, in the old place."""
        return self.nack(consumer, view, start, stop, now_ms, delay_ms=0)

    def reject(
        self,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        stop: int,
        now_ms: int,
        error: str = "",
    ) -> int:
        """Give up at once."""
        count = self._give_up(view, Event.REJECT, start, stop, consumer, "rejected", error, now_ms)
        view.subscription.rejected += count
        return count

    def extend(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, until_ms: int
    ) -> int:
        """More time for deliveries still in flight."""
        ranges, count, _ = view.state.apply(Event.EXTEND, start, stop, consumer.id, until_ms)
        for low, high in ranges:
            self._core.wheel.schedule(until_ms, Timer.VISIBILITY, view.id, low, high)
        return count

    def disconnect(self, consumer: Consumer, now_ms: int) -> None:
        """Everything in flight at a consumer becomes ready again, in its old place."""
        for view in consumer.subscription.views:
            try:
                for start, stop in view.state.held_by(consumer.id):
                    self._fail(view, Event.DISCONNECT, start, stop, now_ms, consumer, "", 0)
            except PartitionQuarantined:
                continue  # what it had of that is counted again when the quarantine is over

    def timed_out(self, view: PartitionView, start: int, stop: int, now_ms: int) -> None:
        """A visibility timer fired: those deliveries that are still the same are over."""
        for low, high, holder in view.state.overdue_runs(start, stop, now_ms):
            consumer = self._core.consumers.get(holder)
            self._fail(view, Event.TIMEOUT, low, high, now_ms, consumer, "timeout", None)

    def retry_due(self, view: PartitionView, start: int, stop: int, now_ms: int) -> None:
        _, count, _ = view.state.apply(Event.RETRY_DUE, start, stop, not_after_ms=now_ms)
        if count:
            self._core.touch(view.subscription)

    def _fail(
        self,
        view: PartitionView,
        event: Event,
        start: int,
        stop: int,
        now_ms: int,
        consumer: Consumer | None,
        error: str,
        delay_ms: int | None,
    ) -> int:
        retry = view.partition.topic.policy.retry
        holder = consumer.id if consumer is not None else 0
        failed = 0
        for low, high, attempts in view.state.attempt_runs(start, stop, holder):
            if retry.attempts and attempts >= retry.attempts:
                failed += self._give_up(
                    view, Event.EXHAUST, low, high, consumer, "max-attempts", error, now_ms
                )
                continue
            young = low
            if retry.total_ms:
                young = self._first_stamped_after(view, low, high, now_ms - retry.total_ms)
                failed += self._give_up(
                    view, Event.EXHAUST, low, young, consumer, "max-age", error, now_ms
                )
            delay = retry.delay_ms(attempts) if delay_ms is None else delay_ms
            failed += self._wait(view, event, young, high, attempts, consumer, now_ms, delay)
        policy = view.partition.topic.policy
        if failed and policy.limits_count == "ready":
            # They count again now that nobody has them.
            self.drop_overflow(view.partition.topic, now_ms)
        return failed

    def _wait(
        self,
        view: PartitionView,
        event: Event,
        start: int,
        stop: int,
        attempts: int,
        consumer: Consumer | None,
        now_ms: int,
        delay_ms: int,
    ) -> int:
        holder = consumer.id if consumer is not None else 0
        due = now_ms + delay_ms
        ranges, count, size = view.state.apply(event, start, stop, holder, due)
        if consumer is not None:
            self.give_back(consumer, count, size)
        for low, high in ranges:
            self.note(view, low, high, attempts, State.WAITING, due)
            if delay_ms:
                self._core.wheel.schedule(due, Timer.RETRY, view.id, low, high)
            else:
                view.state.apply(Event.RETRY_DUE, low, high)
        self._core.touch(view.subscription)
        return count

    def _first_stamped_after(self, view: PartitionView, start: int, stop: int, time_ms: int) -> int:
        """The first of some offsets whose record is younger than a time; ``stop`` for none."""
        for run in self.runs(view.partition, start, stop):
            young = max(run.batch.find_time(time_ms + 1), run.first)
            if young < run.stop:
                return run.batch.offset_at(young)
        return stop

    def give_back(self, consumer: Consumer, count: int, size: int) -> None:
        """Messages a consumer had are answered: whoever waited for its credit has room."""
        consumer.gave_back(count, size)
        for credit in consumer.credits:
            if credit.awaited:
                awaited, credit.awaited = credit.awaited, {}
                for subscription in awaited:
                    self._core.touch(subscription)

    # --- settling ---

    def settle(self, view: PartitionView, ranges: Sequence[tuple[int, int]]) -> None:
        """Make settled ranges durable in their time, and let go of records nobody wants."""
        if view.subscription.durable:
            self._core.store.acknowledge(view.subscription.id, view.partition_id, ranges)
        else:
            for start, stop in ranges:
                view.state.settled.add(start, stop)
        self.release(view.partition)
        if view.subscription.keys is not None:
            forget_keys(view, ranges)

    def release(self, partition: TopicPartition) -> None:
        """A queue forgets what all its subscriptions have settled."""
        views = partition.views
        if not partition.topic.until_acked or not views:
            return
        floor = views[0].state.settled.floor
        if len(views) > 1:
            floor = min(view.state.settled.floor for view in views)
        if floor > partition.log.start_offset:
            self._core.store.release(partition.log, floor)

    def note(
        self, view: PartitionView, start: int, stop: int, attempts: int, state: int, due: int
    ) -> None:
        """Journal how a message was last handed out, so that a restart goes on from there."""
        subscription = view.subscription
        if subscription.durable:
            meta = NOTE.pack(subscription.id, view.partition_id, start, stop, attempts, state, due)
            self._core.store.note(DELIVERY, meta)

    def skip(self, view: PartitionView, start: int, stop: int) -> None:
        """No record stands at these offsets any more: nobody will ever answer for them."""
        view.state.apply(Event.DROP, start, stop)
        view.state.settle_early(start, stop)
        self.settle(view, [(start, stop)])

    # --- giving up ---

    def _give_up(
        self,
        view: PartitionView,
        event: Event,
        start: int,
        stop: int,
        consumer: Consumer | None,
        reason: str,
        error: str,
        now_ms: int,
    ) -> int:
        holder = consumer.id if consumer is not None else 0
        runs = view.state.attempt_runs(start, stop, holder)
        _, count, size = view.state.apply(event, start, stop, holder)
        if not count:
            return 0
        if consumer is not None:
            self.give_back(consumer, count, size)
        for low, high, attempts in runs:
            self._bury(view, [(low, high)], reason, attempts, error, now_ms)
        self._core.touch(view.subscription)
        return count

    def expire(self, view: PartitionView, run: Run, now_ms: int) -> int:
        """Records that outlived their time, in so far as nobody has them."""
        if view.subscription.keeps_sent:
            return sum(self._expire(view, one, now_ms) for one in _never_sent(view, run))
        return self._expire(view, run, now_ms)

    def _expire(self, view: PartitionView, run: Run, now_ms: int) -> int:
        wanted = view.partition.topic.policy.dead_letter.expired
        count = self._take_out(view, EXPIRE, run, now_ms, "expired", dead_letter=wanted)
        view.subscription.expired += count
        return count

    def drop(
        self, view: PartitionView, run: Run, now_ms: int, reason: str, *, dead_letter: bool
    ) -> int:
        """Records taken out by a limit, in so far as nobody has them."""
        return self._take_out(view, DROP, run, now_ms, reason, dead_letter=dead_letter)

    def _take_out(
        self,
        view: PartitionView,
        event: int,
        run: Run,
        now_ms: int,
        reason: str,
        *,
        dead_letter: bool,
    ) -> int:
        state, batch = view.state, run.batch
        # Asked before they are out, because then nobody knows any more.
        delivered = state.delivery_runs(batch, run.first, run.stop) if dead_letter else []
        ranges, count, _ = state.take_out(event, batch, run.first, run.stop)
        if not count:
            return 0
        if dead_letter:
            for start, stop in ranges:
                for low, high, attempts in delivered:
                    if low < stop and start < high:
                        part = (max(start, low), min(stop, high))
                        self._bury(view, [part], reason, attempts, "", now_ms)
        else:
            self._core.totals.of(view.partition.topic.namespace).dropped[reason] += count
            self.settle(view, ranges)
        return count

    def _bury(
        self,
        view: PartitionView,
        ranges: Sequence[tuple[int, int]],
        reason: str,
        attempts: int,
        error: str,
        now_ms: int,
    ) -> None:
        """Move messages to where the topic wants its dead, in one step with settling them."""
        topic = view.partition.topic
        totals = self._core.totals.of(topic.namespace)
        death = Death(
            reason=reason,
            namespace=topic.namespace,
            topic=topic.name,
            partition=view.partition.number,
            attempts=attempts,
            subscription=view.subscription.name,
            at_ms=now_ms,
            error=error,
        )
        for start, stop in ranges:
            settled = (view.subscription.id, view.partition_id, start, stop)
            records = list(self.records(view.partition, start, stop))
            buried = self.move_dead(topic, records, death, now_ms, [settled], view)
            if logger.isEnabledFor(logging.DEBUG):
                _log_deaths(view, start, stop, reason, buried)
            if buried:
                view.subscription.dead_lettered += len(records)
                totals.buried[reason] += len(records)
                if not view.subscription.durable:
                    view.state.settled.add(start, stop)
                self.release(view.partition)
                if view.subscription.keys is not None:
                    forget_keys(view, [(start, stop)])
            else:
                totals.dropped[reason] += len(records)
                self.settle(view, [(start, stop)])

    def move_dead(
        self,
        topic: Topic,
        records: Sequence[Record],
        death: Death,
        now_ms: int,
        settled: Sequence[Settled],
        view: PartitionView | None,
    ) -> bool:
        """Publish dead copies; False when there is nowhere to put them."""
        durable = view is None or view.subscription.durable
        groups = self.targets.group(topic, records, death, now_ms)
        if not groups:
            return False
        # Each settles its own share: a crash between two of them repeats neither.
        cuts = [group.first_offset for group in groups[1:]]
        for group, share in zip(groups, _shares(settled, cuts), strict=True):
            self.publishing.append(
                group.targets, group.batch, now_ms, settled=share if durable else ()
            )
        webhook = topic.policy.dead_letter.alert_webhook
        if webhook is not None:
            for group in groups:
                names = tuple([target.topic.name for target in group.targets])
                self._core.effects.append(
                    DeadLettered(webhook, death, names, group.first_offset, group.batch.count)
                )
        return True

    def dead_letter_unpublished(
        self, topic: Topic, batch: RecordBatch, first: int, now_ms: int
    ) -> None:
        """Records that the topic refuses because it is full."""
        death = Death(
            reason="maxlen",
            namespace=topic.namespace,
            topic=topic.name,
            partition=-1,
            attempts=0,
            subscription="",
            at_ms=now_ms,
        )
        records = [batch.record(index) for index in range(first, batch.count)]
        if self.move_dead(topic, records, death, now_ms, [], None):
            self._core.totals.of(topic.namespace).buried[death.reason] += len(records)

    def records(self, partition: TopicPartition, start: int, stop: int) -> Iterator[Record]:
        for run in self.runs(partition, start, stop):
            for index in range(run.first, run.stop):
                yield run.batch.record(index)

    def runs(self, partition: TopicPartition, start: int, stop: int) -> Iterator[Run]:
        """What the log still has of offsets ``start`` … ``stop - 1``."""
        while start < stop:
            found = partition.log.read(start, READ_BYTES)
            if not found:
                return
            for run in found:
                end = min(run.stop, run.batch.find(stop))
                if end > run.first:
                    yield Run(run.batch, run.first, end)
                start = run.batch.offset_at(run.stop - 1) + 1

    # --- limits ---

    def drop_overflow(self, topic: Topic, now_ms: int, *, arriving: bool = False) -> None:
        """Take out the oldest ready messages until the topic is within its limits.

        Where only ready messages count, ``arriving`` ones are first offered to the consumers that
        wait for them: the limit is for what those leave, and waits for the next dispatch.
        """
        policy = topic.policy
        if policy.overflow != "drop-head":
            return
        for subscription in topic.subscriptions.values():
            if arriving and policy.limits_count == "ready" and subscription.awaited:
                self._core.crowded[subscription] = None
            else:
                self.drop_beyond_limits(subscription, now_ms)

    def drop_beyond_limits(self, subscription: Subscription, now_ms: int) -> None:
        """Nothing of a topic that is quarantined: nobody knows what its oldest messages are."""
        if subscription.topic.quarantined:
            return
        try:
            self._drop_beyond_limits(subscription, now_ms)
        except PartitionQuarantined:
            return

    def _drop_beyond_limits(self, subscription: Subscription, now_ms: int) -> None:
        policy, views = subscription.topic.policy, subscription.views
        has_place = bool(policy.dead_letter.topic or policy.dead_letter.exchange is not None)
        # From one partition as many at once as have to go; of several, the oldest each time.
        alone = len(views) == 1
        heads: list[Head] = []
        while excess := over_limit(subscription):
            if not heads:
                limit = excess if alone else 1
                heads = [head for view in views for head in self._droppable(view, limit)]
                heapify(heads)
                if not heads:
                    return
            _, _, number, run = heappop(heads)
            view = views[number]
            self.drop(view, run, now_ms, "maxlen", dead_letter=has_place)
            if not alone:
                for head in self._droppable(view, 1):
                    heappush(heads, head)

    def _droppable(self, view: PartitionView, limit: int) -> list[Head]:
        """What of a view is dropped first, if anything, at most ``limit`` records: in the order in
        which views are asked, the least important lane, then the oldest, then the partition."""
        state = view.state
        while state.ready:
            lane = state.ready_lanes()[-1]
            found = state.next_run(lane, limit)
            assert found is not None
            for run in self.runs(view.partition, found[0], found[1]):
                stamped = run.batch.timestamp_at(run.first)
                return [(-lane, stamped, view.partition.number, run)]
            self.skip(view, found[0], found[1])
        return []


def _log_deaths(view: PartitionView, start: int, stop: int, reason: str, buried: bool) -> None:
    topic = view.partition.topic
    facts = {
        "namespace": topic.namespace,
        "topic": topic.name,
        "partition": view.partition.number,
        "first_offset": start,
        "last_offset": stop - 1,
        "subscription": view.subscription.name,
        "reason": reason,
    }
    logger.debug("messages dead-lettered" if buried else "messages given up", extra=facts)


def _shares(settled: Sequence[Settled], cuts: Sequence[int]) -> Iterator[Sequence[Settled]]:
    """Settled ranges, cut in pieces at some offsets."""
    for low, high in pairwise([0, *cuts, OFFSET_MAX]):
        yield [
            (subscription, partition, max(start, low), min(stop, high))
            for subscription, partition, start, stop in settled
            if start < high and low < stop
        ]


def over_limit(subscription: Subscription) -> int:
    """How many messages have to go at least; 0: it is within its limits.

    Each for itself: one that keeps up loses nothing because another does not.
    """
    policy = subscription.topic.policy
    count, size = subscription.load
    if policy.max_messages is not None and count > policy.max_messages:
        return count - policy.max_messages
    return int(policy.max_bytes is not None and size > policy.max_bytes)


def forget_keys(view: PartitionView, ranges: Ranges) -> None:
    """Key-ordered delivery: a slot with nothing left in it may move to another consumer."""
    keys = view.subscription.keys
    assert keys is not None
    for start, stop in ranges:
        for offset in range(start, stop):
            keys.settled(view.partition.number, offset)


def leave_out(state: DeliveryState, start: int, stop: int) -> None:
    """No record stands at these offsets: they count as settled, or the floor would stay below
    them for ever. Whoever counts again finds the same, so that it need not be journaled."""
    if start < stop:
        state.vacate(start, stop)
        state.settled.add(start, stop)


def _never_sent(view: PartitionView, run: Run) -> Iterator[Run]:
    """The records of a run that no consumer has had, one by one."""
    for index in range(run.first, run.stop):
        found = view.state.look(run.batch.offset_at(index))
        if found is None or not found[1]:
            yield Run(run.batch, index, index + 1)
