"""Taking out messages that nobody has: those that expired, and those a limit has no room for.

They are out of their view at once, and settled or dead-lettered in one step for all of them.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from braidmq.engine.dead_lettering import DeadLettering, DeadRun
from braidmq.engine.hooks import Hooks
from braidmq.engine.record_times import RecordClock
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState
from braidmq.engine.states import Event
from braidmq.engine.topics import READ_BYTES, PartitionView, Subscription, Topic
from braidmq.model.errors import PartitionQuarantined
from braidmq.storage.partition_log import Run

# Looking a member up in its enum costs more than the kernel takes for a whole run.
EXPIRE: Final = int(Event.EXPIRE)
DROP: Final = int(Event.DROP)

Head = tuple[int, int, int, int, int]
"""What is first to go of a view: lane, time, partition, offsets from and to."""


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


class Removal:
    def __init__(
        self,
        state: EngineState,
        hooks: Hooks,
        settlement: Settlement,
        dead_lettering: DeadLettering,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._dead_lettering = dead_lettering
        hooks.overflowing.append(self._arrived)
        hooks.policy_changed.append(self._policy_changed)

    # --- time ---

    def expire(self, view: PartitionView, run: Run, now_ms: int) -> None:
        """Records that outlived their time, in so far as nobody has them."""
        out = self.expiring(view)
        self.expire_into(out, run)
        self.expired(out, now_ms)

    def expiring(self, view: PartitionView) -> TakenOut:
        """For records that ``expire_into`` it one after the other, and ``expired`` settles."""
        return TakenOut(view, dead_letter=view.partition.topic.policy.dead_letter.expired)

    def expire_into(self, out: TakenOut, run: Run) -> None:
        """They are out of the view at once, but not settled yet."""
        if out.view.subscription.keeps_sent:
            for one in _never_sent(out.view, run):
                out.take(EXPIRE, one)
        else:
            out.take(EXPIRE, run)

    def expired(self, out: TakenOut, now_ms: int) -> None:
        out.view.subscription.expired += out.count
        self._put_away(out, "expired", now_ms)

    def drop(
        self, view: PartitionView, run: Run, now_ms: int, reason: str, *, dead_letter: bool
    ) -> int:
        """Records taken out by a limit, in so far as nobody has them."""
        out = TakenOut(view, dead_letter=dead_letter)
        count, _ = out.take(DROP, run)
        self._put_away(out, reason, now_ms)
        return count

    def _put_away(self, out: TakenOut, reason: str, now_ms: int) -> None:
        """What was taken out of a view becomes durably gone, in one step for all of it; dead
        letters in one for each run that was delivered equally often."""
        if not out.parts:
            return
        if out.dead_letter:
            for start, stop, attempts in out.parts:
                self._dead_lettering.move(
                    DeadRun(out.view, start, stop, reason, attempts, "", now_ms)
                )
        else:
            ranges = [(start, stop) for start, stop, _ in out.parts]
            topic = out.view.partition.topic
            self._state.totals.of(topic.namespace).dropped[reason] += out.count
            self._settlement.settle(out.view, ranges)
        if out.view.partition.topic.policy.ordering != "none":
            # One of them may have waited for its retry, and others behind it for their turn.
            self._state.mark_dirty(out.view.subscription)

    # --- limits ---

    def _arrived(self, topic: Topic, now_ms: int) -> None:
        """Where only ready messages count, new ones are first offered to the consumers that wait
        for them: the limit is for what those leave, and waits for the next dispatch."""
        for subscription in topic.limited_subscriptions:
            if topic.counts_ready and subscription.awaited:
                self._state.crowded[subscription] = None
            else:
                self.drop_beyond_limits(subscription, now_ms)

    def _policy_changed(self, topic: Topic, now_ms: int) -> None:
        if topic.bounded:
            self.drop_overflow(topic, now_ms)

    def drop_overflow(self, topic: Topic, now_ms: int) -> None:
        """Take out the oldest ready messages until the topic is within its limits."""
        if topic.drops_head:
            for subscription in topic.limited_subscriptions:
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

    def _drop_oldest(self, view: PartitionView, excess: Excess, now_ms: int) -> None:
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

    def _drop_oldest_of_all(self, subscription: Subscription, excess: Excess, now_ms: int) -> None:
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
        for run in view.partition.runs(offset, offset + 1):
            return view.partition.clock_at(offset).stamp_of(run.batch, run.first)
        return 0  # no record stands there: it is out of the way first

    def _drop_head(self, out: TakenOut, head: Head, following: Head | None, excess: Excess) -> None:
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
            self._settlement.skip(out.view, start, stop)
            excess.count_again()


def _end_before(run: Run, clock: RecordClock, head: Head, following: Head) -> int:
    """The index behind the records of a run that come before the head of another view: at least
    one does, or that would have been first."""
    if following[0] != head[0]:
        return run.stop
    later = following[1] + (head[2] < following[2])
    return max(clock.first_since(run.batch, run.first, run.stop, later), run.first + 1)


def _never_sent(view: PartitionView, run: Run) -> Iterator[Run]:
    """The records of a run that no consumer has had, those that stand together together."""
    at = run.first
    for start, stop, attempts in view.state.delivery_runs(run.batch, run.first, run.stop):
        end = run.batch.find(stop)
        if not attempts:
            yield Run(run.batch, max(run.batch.find(start), at), end)
        at = end
