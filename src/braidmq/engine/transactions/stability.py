"""What readers may see of a partition: up to its stable offset, without what nobody gets.

On a partition without transactions this costs one look at a field per batch, and nothing per
message.
"""

from braidmq.engine.publishing import Publishing
from braidmq.engine.record_times import RecordClock
from braidmq.engine.settling import Settling, leave_out
from braidmq.engine.state import EngineState
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.batch import FLAG_CONTROL, FLAG_TIMED, RecordBatch
from braidmq.storage.partition_log import Run


class Stability:
    def __init__(self, state: EngineState, settling: Settling, publishing: Publishing) -> None:
        self._state = state
        self._settling = settling
        self._publishing = publishing
        publishing.on_undecided = self._undecided

    # --- telling subscriptions ---

    def hold_back(self, partition: TopicPartition, transaction: int, offset: int) -> None:
        """A transaction has records from ``offset`` on."""
        if partition.open_transactions is None:
            partition.open_transactions = {}
        partition.open_transactions.setdefault(transaction, offset)

    def _undecided(
        self, partition: TopicPartition, batch: RecordBatch, base_offset: int, now_ms: int
    ) -> None:
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
                leave_out(view.state, view.state.end, base_offset + batch.count)
            else:
                lane_of = partition.topic.lane_of
                view.state.published(batch, base_offset, now_ms, lane_of, partition.clock)
                self._state.mark_dirty(view.subscription)

    def decided(self, partition: TopicPartition, transaction: int, now_ms: int) -> None:
        """A transaction is over here: subscriptions are told what has become stable."""
        assert partition.open_transactions is not None
        before = partition.stable_offset
        partition.open_transactions.pop(transaction, None)
        stable = partition.stable_offset
        if stable > before:
            self._tell(partition, before, stable, now_ms)
        if not partition.open_transactions:
            partition.open_transactions = None
        if stable > before:
            self.count_undecided(partition)

    def policy_changed(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self.count_undecided(partition)

    def count_undecided(self, partition: TopicPartition) -> None:
        """A full topic refuses more than it could hold if all of it is committed."""
        partition.undecided = partition.undecided_bytes = 0
        if partition.open_transactions and partition.topic.bounded:
            end = partition.log.next_offset
            try:
                found = self.visible_runs(partition, partition.stable_offset, end)
            except PartitionQuarantined:
                return  # nobody publishes to it meanwhile
            for run in found:
                partition.undecided += run.stop - run.first
                partition.undecided_bytes += run.batch.value_bytes_between(run.first, run.stop)

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
            for found in self.visible_runs(partition, start, stable)
            for part in partition.by_clock(found)
        ]:
            batch = run.batch
            first, stop = batch.offset_at(run.first), batch.offset_at(run.stop - 1) + 1
            if batch.summary & FLAG_TIMED:
                base = batch.base_offset
                self._publishing.schedule(partition, batch, base, now_ms, first, stop, clock)
            for view in views:
                self._tell_view(view, run, now_ms, clock)
        for view in views:
            leave_out(view.state, view.state.end, stable)
            self._state.mark_dirty(view.subscription)
        self._settling.release(partition)
        self._settling.drop_overflow(partition.topic, now_ms, arriving=True)

    def _tell_view(self, view: PartitionView, run: Run, now_ms: int, clock: RecordClock) -> None:
        """One run without gaps, unless the subscription began behind it."""
        batch, state = run.batch, view.state
        first = max(run.first, batch.find(state.end))
        if first < run.stop:
            leave_out(state, state.end, batch.offset_at(first))
            lane_of = view.partition.topic.lane_of
            state.told(batch, first, run.stop, now_ms, lane_of, clock)

    # --- reading ---

    def read(
        self, partition: TopicPartition, offset: int, bytes_max: int, *, uncommitted: bool
    ) -> list[Run]:
        """As ``PartitionLog.read``; empty at the stable offset."""
        log = partition.log
        runs = log.read(offset, bytes_max)
        if not partition.open_transactions and self._state.cancelled(partition) is None:
            return runs
        stop = log.next_offset if uncommitted else partition.stable_offset
        while runs:
            visible = [part for run in runs for part in self._visible(partition, run, stop)]
            end = runs[-1].batch.offset_at(runs[-1].stop - 1) + 1
            if visible or end >= stop:
                return visible
            runs = log.read(end, bytes_max)
        return []

    def visible_runs(self, partition: TopicPartition, start: int, stop: int) -> list[Run]:
        """Everything between two offsets that somebody may get, in runs without gaps."""
        return [
            part
            for run in self._settling.runs(partition, start, stop)
            for visible in self._visible(partition, run, stop)
            for part in _unbroken(visible)
        ]

    def _visible(self, partition: TopicPartition, run: Run, stop: int) -> list[Run]:
        """The parts of a run below ``stop`` that were not cancelled."""
        batch, first = run.batch, run.first
        end = min(run.stop, batch.find(stop))
        if end <= first:
            return []
        low, high = batch.offset_at(first), batch.offset_at(end - 1) + 1
        cancelled = self._state.cancelled(partition)
        gaps = cancelled.ranges(low, high) if cancelled is not None else []
        if cancelled is not None and cancelled.floor > low:
            gaps = [(low, cancelled.floor), *gaps]
        found: list[Run] = []
        for gap_start, gap_stop in gaps:
            cut = batch.find(gap_start)
            if cut > first:
                found.append(Run(batch, first, min(cut, end)))
            first = max(first, min(batch.find(gap_stop), end))
        if first < end:
            found.append(Run(batch, first, end))
        return found


def _unbroken(run: Run) -> list[Run]:
    """A run cut where offsets are missing."""
    batch, first = run.batch, run.first
    if batch.offset_at(run.stop - 1) - batch.offset_at(first) == run.stop - 1 - first:
        return [run]
    found = []
    for index in range(first + 1, run.stop):
        if batch.offset_at(index) != batch.offset_at(index - 1) + 1:
            found.append(Run(batch, first, index))
            first = index
    found.append(Run(batch, first, run.stop))
    return found
