"""What becomes of messages after a delivery: acknowledged, tried again, given up.

Every answer goes through the table of ``states``: the kernel changes only what the table allows,
and only messages that are in flight at whoever answers.
"""

from typing import Final

from braidmq.engine.dead_lettering import DeadLettering, DeadRun
from braidmq.engine.effects import DeliveriesTimedOut
from braidmq.engine.removal import Removal
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.timers import Timers
from braidmq.engine.topics import Consumer, PartitionView
from braidmq.model.errors import PartitionQuarantined

# Looking a member up in its enum costs more than the kernel takes for a whole run.
ACK: Final = int(Event.ACK)


class Settling:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        settlement: Settlement,
        dead_lettering: DeadLettering,
        removal: Removal,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._dead_lettering = dead_lettering
        self._removal = removal
        timers.register(TimerKind.RETRY, self._retry_due)
        timers.register(TimerKind.VISIBILITY, self._timed_out)

    def ack(self, consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
        """Settle messages in flight at a consumer; returns how many were."""
        ranges, count, size = view.state.apply(ACK, start, stop, consumer.id)
        if count:
            self._settlement.give_back(consumer, count, size)
            view.subscription.acked += count
            self._settlement.settle(view, ranges)
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
            if consumer.outlives:
                for run in view.state.attempt_runs(low, high, consumer.id):
                    self._settlement.note(view, *run, State.IN_FLIGHT, until_ms)
        return count

    def disconnect(self, consumer: Consumer, now_ms: int) -> None:
        """Everything in flight at a consumer becomes ready again, in its old place."""
        for view in consumer.subscription.views:
            try:
                for start, stop in view.state.held_by(consumer.id):
                    self._fail(
                        view, Event.DISCONNECT, start, stop, now_ms, consumer, "disconnect", 0
                    )
            except PartitionQuarantined:
                continue  # what it had of that is counted again when the quarantine is over

    def drop_cancelled(self, view: PartitionView, start: int, stop: int, now_ms: int) -> None:
        """Of offsets ``start`` … ``stop - 1`` whatever was cancelled and nobody has: readers of
        undecided records were told of them before their transaction was aborted."""
        cancelled = self._state.cancelled(view.partition)
        if cancelled is None:
            return
        try:
            for low, high in [(start, min(stop, cancelled.floor)), *cancelled.ranges(start, stop)]:
                for run in view.partition.runs(max(low, start), min(high, stop)):
                    self._removal.drop(view, run, now_ms, "aborted", dead_letter=False)
        except PartitionQuarantined:
            return  # it is counted again when the quarantine is over

    def _timed_out(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        """A visibility timer fired: those deliveries that are still the same are over."""
        view = self._state.views.get(owner)
        if view is None:
            return
        for low, high, holder in view.state.overdue_runs(start, stop, now_ms):
            consumer = self._state.consumers.get(holder)
            view.subscription.timed_out += self._fail(
                view, Event.TIMEOUT, low, high, now_ms, consumer, "timeout", None
            )
            if consumer is not None and consumer.receiver is not None:
                self._state.effects.append(DeliveriesTimedOut(consumer, view, low, high))

    def _retry_due(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        view = self._state.views.get(owner)
        if view is None:
            return
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
        if view.subscription.uncommitted:
            self.drop_cancelled(view, start, stop, now_ms)
        policy = view.partition.topic.policy
        if failed and policy.limits_count == "ready":
            # They count again now that nobody has them.
            self._removal.drop_overflow(view.partition.topic, now_ms)
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
            self._settlement.give_back(consumer, count, size)
        for low, high in ranges:
            self._settlement.note(view, low, high, attempts, State.WAITING, due)
            if delay_ms:
                self._state.wheel.schedule(due, TimerKind.RETRY, view.id, low, high)
            else:
                view.state.apply(Event.RETRY_DUE, low, high)
        self._state.mark_dirty(view.subscription)
        return count

    def _first_stamped_after(self, view: PartitionView, start: int, stop: int, time_ms: int) -> int:
        """The first of some offsets whose record is younger than a time; ``stop`` for none."""
        for found in view.partition.runs(start, stop):
            for clock, run in view.partition.by_clock(found):
                young = clock.first_since(run.batch, run.first, run.stop, time_ms + 1)
                if young < run.stop:
                    return run.batch.offset_at(young)
        return stop

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
            self._settlement.give_back(consumer, count, size)
        for low, high, attempts in runs:
            self._dead_lettering.move(DeadRun(view, low, high, reason, attempts, error, now_ms))
        self._state.mark_dirty(view.subscription)
        return count
