"""What becomes of messages after a delivery: acknowledged, tried again, given up.

Every answer goes through the table of ``states``: the kernel changes only what the table allows,
and only messages that are in flight at whoever answers.
"""

import logging
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.effects import DeadLettered
from braidmq.engine.envelope import Death
from braidmq.engine.record_times import RecordClock
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.topics import Consumer, PartitionView, Subscription, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.entries import Settled
from braidmq.storage.journal import Kind
from braidmq.storage.partition_log import Run

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

BURIED_AT_ONCE = 250
"""Dead letters are written one by one, each with its history. More of them would hold up others
too long: they take turns with those."""

Ranges = Iterable[tuple[int, int]]
Head = tuple[int, int, int, int, int]
"""What is first to go of a view: lane, time, partition, offsets from and to."""

OFFSET_MAX = (1 << 63) - 1


class Settling:
    publishing: "Publishing"
    targets: "DeadLetterTargets"

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._burials: dict[int, deque[Burial]] = {}
        """By view, dead messages that are still to be moved."""

    # --- answers of consumers ---

    def ack(self, consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
        """Settle messages in flight at a consumer; returns how many were."""
        ranges, count, size = view.state.apply(ACK, start, stop, consumer.id)
        if count:
            self.give_back(consumer, count, size)
            view.subscription.acked += count
            self.settle(view, ranges)
            self._state.mark_dirty(view.subscription)
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
            self._state.wheel.schedule(until_ms, TimerKind.VISIBILITY, view.id, low, high)
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
            consumer = self._state.consumers.get(holder)
            self._fail(view, Event.TIMEOUT, low, high, now_ms, consumer, "timeout", None)

    def retry_due(self, view: PartitionView, start: int, stop: int, now_ms: int) -> None:
        _, count, _ = view.state.apply(Event.RETRY_DUE, start, stop, not_after_ms=now_ms)
        if count:
            self._state.mark_dirty(view.subscription)

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
                self._state.wheel.schedule(due, TimerKind.RETRY, view.id, low, high)
            else:
                view.state.apply(Event.RETRY_DUE, low, high)
        self._state.mark_dirty(view.subscription)
        return count

    def _first_stamped_after(self, view: PartitionView, start: int, stop: int, time_ms: int) -> int:
        """The first of some offsets whose record is younger than a time; ``stop`` for none."""
        for found in self.runs(view.partition, start, stop):
            for clock, run in view.partition.by_clock(found):
                young = clock.first_since(run.batch, run.first, run.stop, time_ms + 1)
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
                    self._state.mark_dirty(subscription)

    # --- settling ---

    def settle(self, view: PartitionView, ranges: Sequence[tuple[int, int]]) -> None:
        """Make settled ranges durable in their time, and let go of records nobody wants."""
        if view.subscription.durable:
            self._state.store.acknowledge(view.subscription.id, view.partition_id, ranges)
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
            self._state.store.release(partition.log, floor)
            for view in views:
                if view.subscription.gate is not None:
                    self._state.mark_dirty(view.subscription)

    def note(
        self, view: PartitionView, start: int, stop: int, attempts: int, state: int, due: int
    ) -> None:
        """Journal how a message was last handed out, so that a restart goes on from there."""
        subscription = view.subscription
        if subscription.durable:
            due = self._state.wall_ms(due) if due else 0
            meta = NOTE.pack(subscription.id, view.partition_id, start, stop, attempts, state, due)
            self._state.store.note(DELIVERY, meta)

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
            self._bury(Burial(view, low, high, reason, attempts, error, now_ms))
        self._state.mark_dirty(view.subscription)
        return count

    def expire(self, view: PartitionView, run: Run, now_ms: int) -> None:
        """Records that outlived their time, in so far as nobody has them."""
        out = self.expiring(view)
        self.expire_into(out, run)
        self.expired(out, now_ms)

    def expiring(self, view: PartitionView) -> "TakenOut":
        """For records that ``expire_into`` it one after the other, and ``expired`` settles."""
        return TakenOut(view, dead_letter=view.partition.topic.policy.dead_letter.expired)

    def expire_into(self, out: "TakenOut", run: Run) -> None:
        """They are out of the view at once, but not settled yet."""
        if out.view.subscription.keeps_sent:
            for one in _never_sent(out.view, run):
                out.take(EXPIRE, one)
        else:
            out.take(EXPIRE, run)

    def expired(self, out: "TakenOut", now_ms: int) -> None:
        out.view.subscription.expired += out.count
        self._put_away(out, "expired", now_ms)

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
        out = TakenOut(view, dead_letter=dead_letter)
        count, _ = out.take(event, run)
        self._put_away(out, reason, now_ms)
        return count

    def _put_away(self, out: "TakenOut", reason: str, now_ms: int) -> None:
        """What was taken out of a view becomes durably gone, in one step for all of it; dead
        letters in one for each run that was delivered equally often."""
        if not out.parts:
            return
        if out.dead_letter:
            for start, stop, attempts in out.parts:
                self._bury(Burial(out.view, start, stop, reason, attempts, "", now_ms))
        else:
            ranges = [(start, stop) for start, stop, _ in out.parts]
            topic = out.view.partition.topic
            self._state.totals.of(topic.namespace).dropped[reason] += out.count
            self.settle(out.view, ranges)

    def _bury(self, burial: "Burial") -> None:
        """Move messages to where their topic wants its dead, in one step with settling them; many
        of them in slices, and those of a view in the order in which they died.

        Until then they are in no state, but not settled either: a crash brings them back.
        """
        view, count = burial.view, burial.stop - burial.start
        if not view.partition.topic.policy.dead_letter.has_place:
            # Nobody reads what goes nowhere.
            self._give_away(burial, count)
        elif count > BURIED_AT_ONCE or view.id in self._burials:
            self._burials.setdefault(view.id, deque()).append(burial)
        else:
            self._bury_now(burial)

    @property
    def has_burials(self) -> bool:
        """Whether messages wait to be moved: ``bury_some`` does."""
        return bool(self._burials)

    def bury_some(self) -> None:
        """A slice of what waits; each view has its turn."""
        left = BURIED_AT_ONCE
        while self._burials and left > 0:
            number = next(iter(self._burials))
            waiting = self._burials.pop(number)
            burial = waiting[0]
            # A view may have gone with its subscription, and with it whoever wanted its dead.
            if self._state.views.get(number) is not burial.view:
                continue
            stop = min(burial.stop, burial.start + left)
            left -= stop - burial.start
            self._bury_now(burial.cut(stop))
            burial.start = stop
            if burial.start == burial.stop:
                waiting.popleft()
            if waiting:
                self._burials[number] = waiting

    def finish_burials(self, view: PartitionView) -> None:
        """Before the messages of a view are counted again."""
        for burial in self._burials.pop(view.id, ()):
            self._bury_now(burial)

    def _bury_now(self, burial: "Burial") -> None:
        view, start, stop = burial.view, burial.start, burial.stop
        topic, reason = view.partition.topic, burial.reason
        death = Death(
            reason=reason,
            namespace=topic.namespace,
            topic=topic.name,
            partition=view.partition.number,
            attempts=burial.attempts,
            subscription=view.subscription.name,
            at_ms=self._state.wall_ms(burial.now_ms),
            error=burial.error,
        )
        settled = (view.subscription.id, view.partition_id, start, stop)
        runs = list(self.runs(view.partition, start, stop))
        count = sum([run.stop - run.first for run in runs])
        if not self.move_dead(topic, runs, death, burial.now_ms, [settled], view):
            self._give_away(burial, count)
            return
        if logger.isEnabledFor(logging.DEBUG):
            _log_deaths(view, start, stop, reason, buried=True)
        view.subscription.dead_lettered += count
        self._state.totals.of(topic.namespace).buried[reason] += count
        if not view.subscription.durable:
            view.state.settled.add(start, stop)
        self.release(view.partition)
        if view.subscription.keys is not None:
            forget_keys(view, [(start, stop)])

    def _give_away(self, burial: "Burial", count: int) -> None:
        """There is nowhere to put them."""
        view = burial.view
        if logger.isEnabledFor(logging.DEBUG):
            _log_deaths(view, burial.start, burial.stop, burial.reason, buried=False)
        self._state.totals.of(view.partition.topic.namespace).dropped[burial.reason] += count
        self.settle(view, [(burial.start, burial.stop)])

    def move_dead(
        self,
        topic: Topic,
        runs: Sequence[Run],
        death: Death,
        now_ms: int,
        settled: Sequence[Settled],
        view: PartitionView | None,
    ) -> bool:
        """Publish dead copies; False when there is nowhere to put them."""
        durable = view is None or view.subscription.durable
        groups = self.targets.group(topic, runs, death, now_ms)
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
                self._state.effects.append(
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
            at_ms=self._state.wall_ms(now_ms),
        )
        if self.move_dead(topic, [Run(batch, first, batch.count)], death, now_ms, [], None):
            buried = self._state.totals.of(topic.namespace).buried
            buried[death.reason] += batch.count - first

    def records(self, partition: TopicPartition, start: int, stop: int) -> Iterator[Record]:
        for run in self.runs(partition, start, stop):
            for index in range(run.first, run.stop):
                yield run.batch.record(index)

    def runs(self, partition: TopicPartition, start: int, stop: int) -> Iterator[Run]:
        """What the log still has of offsets ``start`` … ``stop - 1``."""
        while start < stop:
            found = partition.log.read(start, READ_BYTES, stop)
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
        if not topic.drops_head:
            return
        for subscription in topic.subscriptions.values():
            if arriving and topic.counts_ready and subscription.awaited:
                self._state.crowded[subscription] = None
            else:
                self.drop_beyond_limits(subscription, now_ms)

    def drop_beyond_limits(self, subscription: Subscription, now_ms: int) -> None:
        """Nothing of a topic that is quarantined: nobody knows what its oldest messages are."""
        topic, policy = subscription.topic, subscription.topic.policy
        count, size = subscription.load
        most, most_bytes = policy.max_messages, policy.max_bytes
        is_within = (most is None or count <= most) and (most_bytes is None or size <= most_bytes)
        if is_within or topic.quarantined:
            return
        excess = Excess(subscription)
        try:
            if len(subscription.views) == 1:
                self._drop_oldest(subscription.views[0], excess, now_ms)
            else:
                self._drop_oldest_of_all(subscription, excess, now_ms)
        except PartitionQuarantined:
            return

    def _drop_oldest(self, view: PartitionView, excess: "Excess", now_ms: int) -> None:
        """Take out what is too much, oldest first, and settle it in one step.

        Only what goes is looked at, so that what it costs does not grow with the queue: the heads
        are known by their offsets, and the log is read as far as has to be dropped.
        """
        out = TakenOut(view, dead_letter=view.partition.topic.policy.dead_letter.has_place)
        try:
            while excess.remains:
                found = view.state.next_to_drop()
                if found is None:
                    return
                self._drop_head(out, (0, 0, 0, found[1], found[2]), None, excess)
        finally:
            # Also what was taken out before a read failed: nobody else would settle it.
            self._put_away(out, "maxlen", now_ms)

    def _drop_oldest_of_all(
        self, subscription: Subscription, excess: "Excess", now_ms: int
    ) -> None:
        """The same for several partitions, with one step for each."""
        policy, views = subscription.topic.policy, subscription.views
        out: dict[int, TakenOut] = {}
        heads = [head for view in views if (head := self._first_to_drop(view)) is not None]
        heapify(heads)
        try:
            while heads and excess.remains:
                head = heappop(heads)
                view = views[head[2]]
                taken = out.get(head[2])
                if taken is None:
                    taken = out[head[2]] = TakenOut(view, dead_letter=policy.dead_letter.has_place)
                self._drop_head(taken, head, heads[0] if heads else None, excess)
                following = self._first_to_drop(view) if excess.remains else None
                if following is not None:
                    heappush(heads, following)
        finally:
            for each in out.values():
                self._put_away(each, "maxlen", now_ms)

    def _first_to_drop(self, view: PartitionView) -> Head | None:
        """What of a view is dropped first, in the order in which views are asked: the least
        important lane, then the oldest, then the partition."""
        found = view.state.next_to_drop()
        if found is None:
            return None
        lane, start, stop = found
        if view.oldest_offset != start and len(view.subscription.views) > 1:
            view.oldest_offset, view.oldest_ms = start, self._stamp_at(view, start)
        return -lane, view.oldest_ms, view.partition.number, start, stop

    def _stamp_at(self, view: PartitionView, offset: int) -> int:
        for run in self.runs(view.partition, offset, offset + 1):
            return view.partition.clock_at(offset).stamp_of(run.batch, run.first)
        return 0  # no record stands there: it is out of the way first

    def _drop_head(
        self, out: "TakenOut", head: Head, following: Head | None, excess: "Excess"
    ) -> None:
        """Take messages out of one view, as many as are too much and come before the head of the
        next view."""
        _, _, _, start, stop = head
        stop = min(stop, start + excess.step())
        found = False
        # What is behind what one read brings comes with the next head.
        for run in out.view.log.read(start, READ_BYTES, stop):
            run.stop = min(run.stop, run.batch.find(stop))
            if run.stop <= run.first:
                break
            found = True
            end = excess.end_of(run)
            if following is not None:
                clock = out.view.partition.clock_at(run.batch.offset_at(run.first))
                end = min(end, _end_before(run, clock, head, following))
            is_cut, run.stop = end < run.stop, end
            excess.dropped(*out.take(DROP, run))
            if is_cut or not excess.remains:
                break
        if not found:
            self.skip(out.view, start, stop)
            excess.count_again()


class Burial:
    """Messages of a view that died in one way, after so many deliveries."""

    __slots__ = ("attempts", "error", "now_ms", "reason", "start", "stop", "view")

    def __init__(
        self,
        view: PartitionView,
        start: int,
        stop: int,
        reason: str,
        attempts: int,
        error: str,
        now_ms: int,
    ) -> None:
        self.view = view
        self.start = start
        self.stop = stop
        self.reason = reason
        self.attempts = attempts
        self.error = error
        self.now_ms = now_ms

    def cut(self, stop: int) -> "Burial":
        """Those below an offset."""
        return Burial(
            self.view, self.start, stop, self.reason, self.attempts, self.error, self.now_ms
        )


class TakenOut:
    """Messages of a view that are in no state any more, but not yet settled in the journal."""

    __slots__ = ("count", "dead_letter", "parts", "view")

    def __init__(self, view: PartitionView, *, dead_letter: bool) -> None:
        self.view = view
        self.dead_letter = dead_letter
        self.count = 0
        self.parts: list[tuple[int, int, int]] = []
        """Offsets from, to, and how often they were delivered: known only to dead letters."""

    def take(self, event: int, run: Run) -> tuple[int, int]:
        """Those of a run that nobody has; returns how many they were, and their bytes."""
        state, batch = self.view.state, run.batch
        if not self.dead_letter:
            ranges, count, size = state.take_out(event, batch, run.first, run.stop)
            for start, stop in ranges:
                self._add(start, stop, 0)
            self.count += count
            return count, size
        # Asked before they are out, because then nobody knows any more.
        delivered = state.delivery_runs(batch, run.first, run.stop)
        ranges, count, size = state.take_out(event, batch, run.first, run.stop)
        for start, stop in ranges:
            for low, high, attempts in delivered:
                if low < stop and start < high:
                    self._add(max(start, low), min(stop, high), attempts)
        self.count += count
        return count, size

    def _add(self, start: int, stop: int, attempts: int) -> None:
        """What follows on the part before it is one with it."""
        if self.parts:
            first, end, before = self.parts[-1]
            if end == start and before == attempts:
                self.parts[-1] = (first, stop, attempts)
                return
        self.parts.append((start, stop, attempts))


class Excess:
    """How far a subscription is above its topic's limits.

    Each for itself: one that keeps up loses nothing because another does not.
    """

    __slots__ = ("_probe", "_spread", "_subscription", "count", "size")

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._probe = 1
        self._spread = (0, 1)
        """Messages and bytes there are: what bytes come to is guessed by it."""
        self.count_again()

    def count_again(self) -> None:
        policy = self._subscription.topic.policy
        count, size = self._subscription.load
        self.count = count - policy.max_messages if policy.max_messages is not None else 0
        self.size = size - policy.max_bytes if policy.max_bytes is not None else 0
        self._spread = (count, max(size, 1))

    @property
    def remains(self) -> bool:
        return self.count > 0 or self.size > 0

    def dropped(self, count: int, size: int) -> None:
        self.count -= count
        self.size -= size

    def step(self) -> int:
        """How many messages to look at next. How many have the bytes is guessed, and where that is
        too few found by doubling, so that the last look is no longer than all before it."""
        if self.count > 0:
            return self.count
        count, size = self._spread
        probe, self._probe = self._probe, 2 * self._probe
        return max(self.size * count // size, probe)

    def end_of(self, run: Run) -> int:
        """The index behind the records of a run that have to go."""
        end = run.first + max(self.count, 0)
        if self.size > 0:
            end = max(end, run.batch.reach(run.first, run.stop, self.size))
        return min(end, run.stop)


def _end_before(run: Run, clock: RecordClock, head: Head, following: Head) -> int:
    """The index behind the records of a run that come before the head of another view: at least
    one does, or that would have been first."""
    if following[0] != head[0]:
        return run.stop
    later = following[1] + (head[2] < following[2])
    return max(clock.first_since(run.batch, run.first, run.stop, later), run.first + 1)


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


def forget_keys(view: PartitionView, ranges: Ranges) -> None:
    """Key-ordered delivery: a slot with nothing left in it may move to another consumer."""
    keys, number = view.subscription.keys, view.partition.number
    assert keys is not None
    for start, stop in ranges:
        if stop - start > len(keys.slot_of):
            for offset in [at for where, at in keys.slot_of if where == number]:
                if start <= offset < stop:
                    keys.settled(number, offset)
        else:
            for offset in range(start, stop):
                keys.settled(number, offset)


def leave_out(state: DeliveryState, start: int, stop: int) -> None:
    """No record stands at these offsets: they count as settled, or the floor would stay below
    them for ever. Whoever counts again finds the same, so that it need not be journaled."""
    if start < stop:
        state.vacate(start, stop)
        state.settled.add(start, stop)


def _never_sent(view: PartitionView, run: Run) -> Iterator[Run]:
    """The records of a run that no consumer has had, those that stand together together."""
    at = run.first
    for start, stop, attempts in view.state.delivery_runs(run.batch, run.first, run.stop):
        end = run.batch.find(stop)
        if not attempts:
            yield Run(run.batch, max(run.batch.find(start), at), end)
        at = end
