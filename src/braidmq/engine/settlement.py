"""Settled messages: made durable, and their records let go once nobody wants them.

The part below answers, dead letters and retention, which all settle messages in the end.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.engine.keeping import Keeping
from braidmq.engine.state import EngineState
from braidmq.engine.states import Event
from braidmq.engine.topics import Consumer, PartitionView, TopicPartition
from braidmq.storage.journal import Kind

NOTE = struct.Struct("<QQqqHBq")
"""subscription, partition, start, stop, attempts, state, deadline"""

RESET_NOTE = 255
"""Instead of a state: the subscription was moved, and what was noted before no longer holds."""

# Looking a member up in its enum costs more than the kernel takes for a whole run.
DELIVERY: Final = Kind.DELIVERY

Ranges = Iterable[tuple[int, int]]


class Settlement:
    def __init__(self, state: EngineState, keeping: Keeping) -> None:
        self._state = state
        self._keeping = keeping

    def settle(self, view: PartitionView, ranges: Sequence[tuple[int, int]]) -> None:
        """Make settled ranges durable in their time, and let go of records nobody wants."""
        if view.subscription.journaled:
            self._state.store.acknowledge(view.subscription.id, view.partition_id, ranges)
        else:
            for start, stop in ranges:
                view.state.settled.add(start, stop)
        self.release(view.partition)
        if view.subscription.keys is not None:
            forget_keys(view, ranges)
        if view.subscription.barriers is not None:
            # Other partitions may have waited for these.
            self._state.mark_dirty(view.subscription)

    def release(self, partition: TopicPartition) -> None:
        """A queue forgets what all its subscriptions have settled."""
        views = partition.views
        if partition.topic.stand_in is not None:
            self._forget_gone(partition)
            return
        if not partition.topic.until_acked or not views:
            return
        if partition.kept is not None:
            self._keeping.arm(partition, self._state.wheel.now_ms)
            return
        floor = views[0].state.settled.floor
        if len(views) > 1:
            floor = min(view.state.settled.floor for view in views)
        if floor > partition.log.start_offset:
            self._state.store.release(partition.log, floor)
            for view in views:
                if view.subscription.gate is not None:
                    self._state.mark_dirty(view.subscription)

    def _forget_gone(self, partition: TopicPartition) -> None:
        """Nobody subscribes to it, and what went first of its log is gone for everybody."""
        log = partition.log
        if not partition.views or log.damage is not None:
            return
        floor = partition.views[0].state.settled.floor
        start = min(floor, partition.stable_offset, log.pinned_offset)
        if start > log.start_offset:
            self._state.store.advance_start(log, start)

    def note(
        self, view: PartitionView, start: int, stop: int, attempts: int, state: int, due: int
    ) -> None:
        """Journal how a message was last handed out, so that a restart goes on from there."""
        subscription = view.subscription
        if subscription.journaled:
            due = self._state.wall_ms(due) if due else 0
            meta = NOTE.pack(subscription.id, view.partition_id, start, stop, attempts, state, due)
            self._state.store.note(DELIVERY, meta)

    def skip(self, view: PartitionView, start: int, stop: int) -> None:
        """No record stands at these offsets any more: nobody will ever answer for them."""
        view.state.apply(Event.DROP, start, stop)
        view.state.settle_early(start, stop)
        self.settle(view, [(start, stop)])

    def give_back(self, consumer: Consumer, count: int, size: int) -> None:
        """Messages a consumer had are answered: whoever waited for its credit has room."""
        consumer.gave_back(count, size)
        if consumer.subscription.revoking:
            self._state.quiet[consumer.subscription] = None
        for credit in consumer.credits:
            if credit.awaited:
                self._state.has_room(credit)


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


def leave_out(engine: EngineState, view: PartitionView, start: int, stop: int) -> None:
    """No record stands at these offsets: they count as settled, or the floor would stay below
    them for ever. Whoever counts again finds the same, so that the next checkpoint is soon enough
    to say it."""
    if start < stop:
        state = view.state
        state.vacate(start, stop)
        if state.settled.first_missing(start) < stop:
            state.settled.add(start, stop)
            if view.subscription.journaled:
                engine.store.state.leave_out(view.subscription.id, view.partition_id, start, stop)
