"""Messages that wait for their time: looked at, counted, cancelled."""

from dataclasses import dataclass

from braidmq.engine.delay_ends import DelayEnd, DelayEnds
from braidmq.engine.errors import NotDelayed
from braidmq.engine.later import forget_later, later_in, waiting_at
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState
from braidmq.engine.states import Event, State
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.record.batch import Record
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.partition_log import Run


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message published for later."""

    partition: int
    offset: int
    due_ms: int
    record: Record


class DelayedMessages:
    def __init__(self, state: EngineState, settlement: Settlement, ends: DelayEnds) -> None:
        self._state = state
        self._ends = ends
        self._settlement = settlement

    def find(
        self, topic: Topic, now_ms: int, limit: int = 100, after: tuple[int, int] = (0, -1)
    ) -> list[Delayed]:
        """Messages that wait for their time, by partition and offset; those ``after`` one."""
        found: list[Delayed] = []
        for partition in topic.partitions[after[0] :]:
            first = after[1] + 1 if partition.number == after[0] else 0
            for start, stop in self._pending(partition):
                if stop <= first:
                    continue
                start = max(start, first)
                for run in partition.runs(start, stop):
                    for index in range(run.first, run.stop):
                        if not self._is_due_after(now_ms, partition, run, index):
                            continue
                        record = run.batch.record(index)
                        found.append(
                            Delayed(partition.number, record.offset, record.due_at_ms, record)
                        )
                        if len(found) == limit:
                            return found
        return found

    def _pending(self, partition: TopicPartition) -> list[tuple[int, int]]:
        """Where to look for them: those of any subscription, or without one those of the log."""
        if not partition.views:
            return later_in(partition).ranges()
        if len(partition.views) == 1:
            return partition.views[0].state.in_state(State.DELAYED)
        found = OffsetBits()
        for view in partition.views:
            for start, stop in view.state.in_state(State.DELAYED):
                found.add(start, stop)
        return found.ranges()

    def count(self, topic: Topic) -> int:
        """Of several subscriptions' a message counts once, which takes a look at each."""
        return sum(
            sum(stop - start for start, stop in self._pending(each))
            if len(each.views) > 1
            else waiting_at(each)
            for each in topic.partitions
        )

    def _is_due_after(self, time_ms: int, partition: TopicPartition, run: Run, index: int) -> bool:
        clock = partition.clock
        if partition.older_clocks:
            clock = partition.clock_at(run.batch.offset_at(index))
        return clock.due_of(run.batch, index) > time_ms

    def cancel(self, topic: Topic, number: int, offset: int, now_ms: int) -> None:
        """A delayed message is not delivered after all."""
        partition = topic.partition(number)
        if not self._is_pending(partition, offset):
            raise NotDelayed(
                f"offset {offset} of {topic.name}/{number} is not waiting for its time"
            )
        due_ms = next(at[1] for at in partition.timed_between(offset, offset + 1))
        self._state.cancel(partition, [(offset, offset + 1)])
        forget_later(partition, offset, offset + 1)
        for view in partition.views:
            self._cancel_in(view, offset)
        self._ends.note(partition, offset, due_ms, DelayEnd.CANCELLED, now_ms)

    def _is_pending(self, partition: TopicPartition, offset: int) -> bool:
        if not 0 <= offset < partition.stable_offset:
            return False
        if partition.views:
            found = (view.state.look(offset) for view in partition.views)
            return any(each is not None and each[0] == State.DELAYED for each in found)
        return offset in later_in(partition)

    def _cancel_in(self, view: PartitionView, offset: int) -> int:
        ranges, count, _ = view.state.apply(Event.CANCEL, offset, offset + 1)
        if count:
            self._settlement.settle(view, ranges)
        return count
