"""Subscriptions: made, deleted, and their views of partitions."""

from collections.abc import Sequence

from braidmq.engine.barriers import raise_barriers
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.effects import ConsumerCancelled
from braidmq.engine.errors import UnknownSubscription
from braidmq.engine.reading import Position, find_offset
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import CANCELLED, EngineState
from braidmq.engine.states import Event
from braidmq.engine.topics import (
    Consumer,
    Kept,
    Mode,
    PartitionView,
    Subscription,
    Topic,
    TopicPartition,
)
from braidmq.model.ids import SubscriptionId
from braidmq.record.offset_set import OffsetSet
from braidmq.storage.catalogue import SUBSCRIPTIONS


class Subscriptions:
    def __init__(self, state: EngineState, settlement: Settlement, rebuilding: Rebuilding) -> None:
        self._state = state
        self._settlement = settlement
        self._rebuilding = rebuilding

    def subscribe(
        self,
        topic: Topic,
        name: str,
        now_ms: int,
        *,
        mode: Mode = Mode.SHARED,
        start: Position = "earliest",
        durable: bool = True,
        uncommitted: bool = False,
    ) -> Subscription:
        """The subscription of that name, made if there is none. ``uncommitted``: it gets records
        whose transaction is still open, or was aborted."""
        topic.require_existing()
        found = topic.subscriptions.get(name)
        if found is not None:
            return found
        subscription = Subscription(
            SubscriptionId(self._state.next_id("subscription")),
            topic,
            name,
            mode,
            durable=durable and topic.durable,
            uncommitted=uncommitted,
        )
        starts = [find_offset(partition.log, start) for partition in topic.partitions]
        self._drop_stand_in(topic)
        self.register(subscription)
        for partition, offset in zip(topic.partitions, starts, strict=True):
            self.add_view(subscription, partition, offset, now_ms)
        raise_barriers(subscription)
        # After its offsets: without them a crash would let it begin at the beginning.
        self._state.save_subscription(subscription, starts)
        topic.last_used_ms = now_ms
        return subscription

    def register(self, subscription: Subscription) -> None:
        self._state.seen_id("subscription", subscription.id)
        self._state.subscriptions[subscription.id] = subscription
        subscription.topic.subscriptions[subscription.name] = subscription

    def add_view(
        self, subscription: Subscription, partition: TopicPartition, start: int, now_ms: int
    ) -> None:
        store = self._state.store
        if subscription.journaled:
            if start:
                store.acknowledge(subscription.id, partition.log.id, [(0, start)])
            settled = store.offsets_of(subscription.id, partition.log.id)
        else:
            settled = OffsetSet(start)
        self.settle_cancelled(subscription, partition, settled)
        cursor = max(start, settled.floor)
        end = partition.log.next_offset if subscription.uncommitted else partition.stable_offset
        state = DeliveryState(settled, cursor, max(cursor, end))
        view = self.attach_view(subscription, partition, state, now_ms)
        self._rebuilding.rebuild(view, now_ms)
        if not partition.head_timer:
            self._state.arm_head(partition, now_ms)

    def settle_cancelled(
        self, subscription: Subscription, partition: TopicPartition, settled: OffsetSet
    ) -> None:
        """What was cancelled is delivered to nobody, whenever they come. What is behind the end of
        what they see is left out when they are told of it."""
        store, cancelled = self._state.store, self._state.cancelled(partition)
        if cancelled is None:
            return
        end = partition.log.next_offset if subscription.uncommitted else partition.stable_offset
        ranges = [
            (max(start, settled.floor), min(stop, end))
            for start, stop in [(0, cancelled.floor), *cancelled.ranges_above_floor()]
            if settled.first_missing(max(start, settled.floor)) < min(stop, end)
        ]
        if ranges and subscription.journaled:
            store.acknowledge(subscription.id, partition.log.id, ranges)
        for start, stop in ranges:
            settled.add(start, stop)

    def attach_view(
        self,
        subscription: Subscription,
        partition: TopicPartition,
        state: DeliveryState,
        now_ms: int,
    ) -> PartitionView:
        view = PartitionView(self._state.next_id("view"), subscription, partition, state)
        self._state.views[view.id] = view
        subscription.views = _joined(subscription.views, view)
        partition.views = _joined(partition.views, view)
        partition.later = None
        if partition.topic.keeps_acked:
            self.set_wanted(partition)
        elif partition.topic.until_acked and subscription.id != CANCELLED:
            # The others stand there already, and may be thousands.
            partition.log.acknowledged += (state.settled,)
        view.set_lanes(now_ms)
        return view

    def set_wanted(self, partition: TopicPartition) -> None:
        """Tell storage which records a checkpoint need not keep."""
        log = partition.log
        if partition.topic.keeps_acked:
            # Who is new may want what the others have settled.
            if partition.kept is None:
                partition.kept = Kept(log.start_offset)
            partition.kept.begin_again(log.start_offset)
            log.acknowledged = (partition.kept.released,)
            self._settlement.release(partition)
            return
        if partition.kept is not None:
            self._state.wheel.cancel(partition.kept.timer)
            partition.kept = None
        until_acked = partition.topic.until_acked and partition.topic.stand_in is None
        log.acknowledged = (
            tuple(view.state.settled for view in partition.views) if until_acked else ()
        )

    def forget_views(self, subscription: Subscription, count: int) -> None:
        """Partitions from ``count`` on are gone, and nothing of them is in anybody's hands."""
        for view in subscription.views[count:]:
            del self._state.views[view.id]
            subscription.assignment.pop(view.partition.number, None)
            subscription.revoking -= {view.partition.number}
            if subscription.keys is not None:
                subscription.keys.forget(view.partition.number)
        del subscription.views[count:]

    def delete(self, subscription: Subscription) -> None:
        self.require_existing(subscription)
        for view in subscription.views:
            if len(view.partition.views) == 1:
                self._state.store.keep_start(view.log)
        if subscription.durable:
            self._state.store.change([(SUBSCRIPTIONS, str(subscription.id), None)])
        self.forget(
            subscription,
            [c for c in self._state.consumers.values() if c.subscription is subscription],
        )
        for view in subscription.views:
            view.partition.views.remove(view)
            self.set_wanted(view.partition)
            self._settlement.release(view.partition)
        now_ms = self._state.wheel.now_ms
        self.set_stand_in(subscription.topic, now_ms)
        for partition in subscription.topic.partitions:
            if not partition.views:
                self._rebuilding.left(partition, now_ms)

    # --- topics that nobody subscribes to ---

    def set_stand_in(self, topic: Topic, now_ms: int, *, expiring: bool = False) -> None:
        """Somebody has to hold a topic to its limits and its TTL while nobody subscribes to it.
        ``expiring``: a message of it had its own time."""
        wanted = topic.bounded or topic.policy.ttl_ms > 0 or expiring or topic.stand_in is not None
        if topic.subscriptions or topic.deleted or not wanted:
            self._drop_stand_in(topic)
            return
        if topic.stand_in is None:
            topic.stand_in = Subscription(CANCELLED, topic, "", Mode.SHARED, durable=topic.durable)
        for partition in topic.partitions[len(topic.stand_in.views) :]:
            self._stand_in(topic.stand_in, partition, now_ms)

    def _stand_in(self, subscription: Subscription, partition: TopicPartition, now_ms: int) -> None:
        log = partition.log
        settled = self._state.store.offsets_of(CANCELLED, log.id)
        cursor = max(settled.floor, log.start_offset)
        # No record stands below the start: that need not be journaled.
        settled.add(min(settled.floor, cursor), cursor)
        state = DeliveryState(settled, cursor, max(cursor, partition.stable_offset))
        view = self.attach_view(subscription, partition, state, now_ms)
        self._rebuilding.rebuild(view, now_ms)
        self._settlement.release(partition)
        if not partition.head_timer:
            self._state.arm_head(partition, now_ms)

    def _drop_stand_in(self, topic: Topic) -> None:
        stand_in, topic.stand_in = topic.stand_in, None
        if stand_in is None:
            return
        self._state.totals.keep_subscription(stand_in)
        for view in stand_in.views:
            del self._state.views[view.id]
            view.partition.views.remove(view)
            self.set_wanted(view.partition)
            settled = view.state.settled
            if not settled.floor and not settled.size:
                self._state.store.forget_offsets(CANCELLED, view.partition_id)

    def forget(self, subscription: Subscription, holders: Sequence[Consumer]) -> None:
        """``holders``: all its consumers, also those that were cancelled."""
        state = self._state
        state.mark_dirty(subscription)  # whoever watches it learns that it is gone
        state.effects += [ConsumerCancelled(each) for each in subscription.consumers]
        # Cancelled ones may still have messages, and share their credit with others.
        for consumer in holders:
            del state.consumers[consumer.id]
            for view in subscription.views:
                _, count, size = view.state.apply(Event.ACK, 0, view.state.end, consumer.id)
                self._settlement.give_back(consumer, count, size)
        subscription.consumers.clear()
        subscription.assignment.clear()
        for view in subscription.views:
            del state.views[view.id]
        del state.subscriptions[subscription.id]
        state.totals.keep_subscription(subscription)
        del subscription.topic.subscriptions[subscription.name]
        state.dirty.pop(subscription, None)
        state.crowded.pop(subscription, None)

    def require_existing(self, subscription: Subscription) -> None:
        if self._state.subscriptions.get(subscription.id) is not subscription:
            raise UnknownSubscription(
                f"subscription {subscription.name!r} of {subscription.topic.name!r} is deleted"
            )


def _joined(views: list[PartitionView], view: PartitionView) -> list[PartitionView]:
    """Most have one view, and a list that grew has room for four: ten thousand topics are many."""
    if not views:
        return [view]
    views.append(view)
    return views
