"""Where a subscription stands: settled up to an offset, or begun again from one."""

from braidmq.engine.barriers import raise_barriers
from braidmq.engine.errors import BadPosition
from braidmq.engine.hooks import Hooks
from braidmq.engine.reading import Position, find_offset
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.settlement import RESET_NOTE, Settlement
from braidmq.engine.state import EngineState
from braidmq.engine.states import Event, State
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.topics import PartitionView, Subscription
from braidmq.model.errors import PartitionQuarantined


class Offsets:
    def __init__(
        self,
        state: EngineState,
        hooks: Hooks,
        settlement: Settlement,
        rebuilding: Rebuilding,
        subscriptions: Subscriptions,
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._settlement = settlement
        self._rebuilding = rebuilding
        self._subscriptions = subscriptions

    def commit(self, view: PartitionView, offset: int) -> None:
        """Settle everything below an offset: an offset commit is an acknowledgement up to it."""
        require_within(view, offset)
        self.settle_up_to(view, offset)

    def rewind(
        self, subscription: Subscription, to: Position, *, now_ms: int, partition: int | None = None
    ) -> None:
        """Begin again from a position, in all partitions or in one; other subscriptions do not
        notice. Raises UnknownPartition."""
        self._subscriptions.require_existing(subscription)
        views = subscription.views
        if partition is not None:
            subscription.topic.partition(partition)
            views = [views[partition]]
        targets = [self._target(view, to, now_ms) for view in views]
        for view, offset in zip(views, targets, strict=True):
            self._rewind(view, offset)
            if view.partition.kept is not None:
                view.partition.kept.begin_again(view.log.start_offset)
            self._subscriptions.settle_cancelled(subscription, view.partition, view.state.settled)
            self._rebuilding.rebuild(view, now_ms)
            if not view.partition.head_timer:
                self._state.arm_head(view.partition, now_ms)
        raise_barriers(subscription)
        self._state.mark_dirty(subscription)
        if subscription.topic.bounded and subscription.topic.drops_head:
            for hook in self._hooks.overflowing:
                hook(subscription.topic, now_ms)

    def _target(self, view: PartitionView, to: Position, now_ms: int) -> int:
        """What a queue only keeps and what outlived its TTL does not come back: it would be a dead
        letter again."""
        found, partition = find_offset(view.log, to), view.partition
        ttl_ms = partition.topic.policy.ttl_ms
        if partition.kept is None or not ttl_ms:
            return found
        living = partition.first_since(now_ms - ttl_ms + 1)
        return max(found, min(living, view.state.settled.floor))

    def settle_up_to(self, view: PartitionView, offset: int) -> None:
        """Everything below ``offset`` counts as acknowledged."""
        self.leave_behind(view, offset)
        self._state.mark_dirty(view.subscription)

    def _rewind(self, view: PartitionView, offset: int) -> None:
        """Forget what a subscription has settled from ``offset`` on, and settle what lies before.

        The caller counts the messages again.
        """
        for hook in self._hooks.recounting:
            hook(view)
        self.take_back(view, 0, view.state.end)
        if view.subscription.journaled:
            self._state.store.reset_offsets(view.subscription.id, view.partition_id, offset)
            self._settlement.note(view, offset, offset, 0, RESET_NOTE, 0)
        else:
            view.state.settled.reset(offset)
        view.state.rewind(offset)
        if view.subscription.keys is not None:
            view.subscription.keys.forget(view.partition.number)

    def leave_behind(self, view: PartitionView, start: int) -> None:
        state, log = view.state, view.log
        low = max(state.settled.floor, log.start_offset)
        self.take_back(view, 0, start)
        try:
            for run in view.partition.runs(low, start):
                state.take_out(Event.DROP, run.batch, run.first, run.stop)
        except PartitionQuarantined:
            pass  # they are settled all the same, and counted again when that is over
        if low < start:
            state.settle_early(low, start)
            self._settlement.settle(view, [(low, start)])

    def take_back(self, view: PartitionView, start: int, stop: int) -> None:
        """Nobody may answer for messages that are no longer there: one step for each consumer that
        has any."""
        for consumer in view.subscription.consumers:
            if consumer.in_flight and view.state.in_flight:
                self._take_from(view, consumer.id, start, stop)
        # Consumers that pull, or that were cancelled and may still answer: who has the first of a
        # range is asked for all, until nobody has any.
        while ranges := self._in_flight(view, start, stop):
            for low, _ in ranges:
                found = view.state.look(low)
                if found is not None and found[0] == State.IN_FLIGHT:
                    self._take_from(view, found[2], start, stop)

    def _in_flight(self, view: PartitionView, start: int, stop: int) -> list[tuple[int, int]]:
        if not view.state.in_flight:
            return []
        ranges = view.state.in_state(State.IN_FLIGHT)
        return [
            (max(low, start), min(high, stop))
            for low, high in ranges
            if low < stop and start < high
        ]

    def _take_from(self, view: PartitionView, holder: int, start: int, stop: int) -> None:
        _, count, size = view.state.apply(Event.ACK, start, stop, holder)
        consumer = self._state.consumers.get(holder)
        if count and consumer is not None:
            self._settlement.give_back(consumer, count, size)
            self._state.mark_dirty(consumer.subscription)


def require_within(view: PartitionView, offset: int) -> None:
    """Raises BadPosition for an offset that can't be committed."""
    if not 0 <= offset <= view.state.end:
        raise BadPosition(
            f"{view.log.label}: offset {offset} is not between 0 and {view.state.end}"
        )
