"""How far a partition is decided: records of open transactions hold back all behind them."""

from collections.abc import Sequence

from braidmq.engine.hooks import Hooks
from braidmq.engine.reading import Reading
from braidmq.engine.settlement import leave_out
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.entries import Stamp, StampKind
from braidmq.engine.transactions.ledger import Ledger
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.batch import FLAG_CONTROL, RecordBatch


class Stability:
    def __init__(self, state: EngineState, hooks: Hooks, reading: Reading, ledger: Ledger) -> None:
        self._state = state
        self._reading = reading
        self._ledger = ledger
        hooks.policy_changed.append(self._policy_changed)

    def stamped(
        self, targets: Sequence[TopicPartition], bases: Sequence[int], stamp: Stamp
    ) -> None:
        """Records that somebody numbered, or of a transaction, were appended."""
        placed = list(zip(targets, bases, strict=True))
        self._ledger.stamped([(target.log.id, base) for target, base in placed], stamp)
        if stamp.kind == StampKind.IN_TRANSACTION:
            for target, base in placed:
                self.hold_back(target, stamp.transaction, base)

    def hold_back(self, partition: TopicPartition, transaction: int, offset: int) -> None:
        """A transaction has records from ``offset`` on."""
        if partition.open_transactions is None:
            partition.open_transactions = {}
        partition.open_transactions.setdefault(transaction, offset)

    def let_go(self, partition: TopicPartition, transaction: int) -> None:
        """A transaction is over here."""
        assert partition.open_transactions is not None
        partition.open_transactions.pop(transaction, None)
        if not partition.open_transactions:
            partition.open_transactions = None

    def undecided(
        self, partition: TopicPartition, batch: RecordBatch, base_offset: int, now_ms: int
    ) -> None:
        """Records were appended behind the stable offset."""
        is_marker = bool(batch.summary & FLAG_CONTROL)
        if is_marker:
            partition.topic.published -= batch.count  # it is no message
        elif partition.topic.bounded:
            partition.undecided += batch.count
            partition.undecided_bytes += batch.value_bytes_between(0, batch.count)
        for view in partition.views:
            if not view.subscription.uncommitted:
                continue
            if is_marker:
                leave_out(self._state, view, view.state.end, base_offset + batch.count)
            else:
                lane_of = partition.topic.lane_of
                view.state.published(batch, base_offset, now_ms, lane_of, partition.clock)
                self._state.mark_dirty(view.subscription)

    def _policy_changed(self, topic: Topic, _now_ms: int) -> None:
        for partition in topic.partitions:
            self.count_undecided(partition)

    def count_undecided(self, partition: TopicPartition) -> None:
        """A full topic refuses more than it could hold if all of it is committed."""
        partition.undecided = partition.undecided_bytes = 0
        if partition.open_transactions and partition.topic.bounded:
            end = partition.log.next_offset
            try:
                found = self._reading.visible_runs(partition, partition.stable_offset, end)
            except PartitionQuarantined:
                return  # nobody publishes to it meanwhile
            for run in found:
                partition.undecided += run.stop - run.first
                partition.undecided_bytes += run.batch.value_bytes_between(run.first, run.stop)
