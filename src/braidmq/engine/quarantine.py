"""Partitions whose files are damaged: who is told, what is refused, and how one comes back.

While a partition is quarantined nothing is handed out of it and nobody may publish to it. What the
broker itself has to put there (dead letters, marks of transactions) is kept: it is appended, and
seen when the quarantine is over. Then the partition's subscriptions are counted again as after a
restart.
"""

from braidmq.engine.barriers import raise_barriers
from braidmq.engine.effects import ConsumerFailed
from braidmq.engine.offsets import Offsets
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState
from braidmq.engine.topics import PartitionView, TopicPartition
from braidmq.engine.transactions.stability import Stability
from braidmq.storage.partition_log import PartitionLog


class Quarantine:
    def __init__(
        self,
        state: EngineState,
        settlement: Settlement,
        stability: Stability,
        rebuilding: Rebuilding,
        offsets: Offsets,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._stability = stability
        self._rebuilding = rebuilding
        self._offsets = offsets
        state.store.on_quarantined = self._quarantined
        state.store.on_lifted = self._lifted

    def partitions(self) -> list[TopicPartition]:
        """All that are quarantined."""
        found = (self._state.partitions.get(log.id) for log in self._state.store.quarantined())
        return [each for each in found if each is not None]

    def _quarantined(self, log: PartitionLog) -> None:
        partition = self._state.partitions.get(log.id)
        if partition is None:
            return  # its topic is yet to be restored
        topic = partition.topic
        topic.look_at_quarantine()
        for subscription in topic.subscriptions.values():
            if topic.is_quarantined:
                error = log.quarantined()
                effects = [ConsumerFailed(each, error) for each in subscription.consumers]
                self._state.effects += effects
            self._state.mark_dirty(subscription)  # whoever waits for it looks again, and is told

    def _lifted(self, log: PartitionLog) -> None:
        partition = self._state.partitions.get(log.id)
        if partition is None:
            return
        partition.topic.look_at_quarantine()
        now_ms = self._state.wheel.now_ms
        self._stability.count_undecided(partition)
        for view in partition.views:
            self._begin_again(view, now_ms)
            raise_barriers(view.subscription)
        self._settlement.release(partition)
        self._rebuilding.set_timers(partition, now_ms)

    def _begin_again(self, view: PartitionView, now_ms: int) -> None:
        """As after a restart: whoever had messages has to get them again."""
        state = view.state
        notes = self._rebuilding.kept_notes(view) or state.notes()
        self._offsets.take_back(view, 0, state.end)
        state.rewind(max(state.cursor, state.settled.floor))
        state.nonce = (now_ms << 8) & 0xFFFFFFFF
        if view.subscription.keys is not None:
            view.subscription.keys.forget(view.partition.number)
        self._rebuilding.rebuild(view, now_ms, notes)
        self._state.mark_dirty(view.subscription)
