"""What time does: retries, overdue deliveries, delayed and expiring messages, idle topics."""

from collections.abc import Callable
from dataclasses import dataclass

from braidmq.engine.administration import Administration
from braidmq.engine.core import Core, Timer
from braidmq.engine.errors import NotDelayed
from braidmq.engine.settling import Settling
from braidmq.engine.states import Event, State
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.ids import PartitionId
from braidmq.storage.partition_log import Run
from braidmq.storage.record import Record

TIMERS_PER_TURN = 10_000
"""Timers handled in one go: a million that are due together must not stop the loop."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message published for later."""

    partition: int
    offset: int
    due_ms: int
    record: Record


class Clockwork:
    def __init__(self, core: Core, settling: Settling, administration: Administration) -> None:
        self._core = core
        self._settling = settling
        self._administration = administration
        self.on_sweep: Callable[[int], None] = lambda now_ms: None
        self._handlers: dict[int, Callable[[int, int, int, int], None]] = {
            Timer.RETRY: self._retry,
            Timer.VISIBILITY: self._overdue,
            Timer.DUE: self._due,
            Timer.EXPIRY: self._expiry,
            Timer.HEAD: self._head,
            Timer.IDLE: self._idle,
            Timer.SWEEP: self._sweep,
        }

    def advance(self, now_ms: int) -> None:
        """Do what is due by now. Call again at once if ``next_due_ms`` is not in the future."""
        for kind, owner, a, b in self._core.wheel.advance(now_ms, TIMERS_PER_TURN):
            self._handlers[kind](owner, a, b, now_ms)

    def _retry(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        view = self._core.views.get(owner)
        if view is not None:
            self._settling.retry_due(view, start, stop, now_ms)

    def _overdue(self, owner: int, start: int, stop: int, now_ms: int) -> None:
        view = self._core.views.get(owner)
        if view is not None:
            self._settling.timed_out(view, start, stop, now_ms)

    def _due(self, owner: int, offset: int, _: int, now_ms: int) -> None:
        partition = self._core.partitions.get(PartitionId(owner))
        for view in partition.views if partition is not None else ():
            if view.state.apply(Event.DUE, offset, offset + 1, not_after_ms=now_ms)[1]:
                self._core.touch(view.subscription)

    def _expiry(self, owner: int, offset: int, _: int, now_ms: int) -> None:
        partition = self._core.partitions.get(PartitionId(owner))
        if partition is not None and offset >= partition.log.start_offset:
            for run in list(self._settling.runs(partition, offset, offset + 1)):
                for view in list(partition.views):
                    self._settling.expire(view, run, now_ms)

    def _head(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        partition = self._core.partitions.get(PartitionId(owner))
        if partition is not None:
            partition.head_timer = 0
            self.expire_head(partition, now_ms)

    def expire_head(self, partition: TopicPartition, now_ms: int) -> None:
        """Take out everything older than the topic's TTL, and look again when the next one is."""
        ttl_ms = partition.topic.policy.ttl_ms
        if not ttl_ms or not partition.views:
            return
        lowest = min(view.state.settled.floor for view in partition.views)
        start = max(lowest, partition.log.start_offset)
        for run in self._settling.runs(partition, start, partition.log.next_offset):
            living = run.batch.find_time(now_ms - ttl_ms + 1)
            expired = Run(run.batch, run.first, min(max(living, run.first), run.stop))
            if expired.stop > expired.first:
                for view in list(partition.views):
                    self._settling.expire(view, expired, now_ms)
            if expired.stop < run.stop:
                stamped = run.batch.record(expired.stop).timestamp_ms
                due = max(stamped + ttl_ms, now_ms + 1)
                partition.head_timer = self._core.wheel.schedule(due, Timer.HEAD, partition.log.id)
                return

    def _idle(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        topic = self._core.topics_by_id.get(owner)
        if topic is not None:
            self._administration.idle(topic, now_ms)

    def _sweep(self, _owner: int, _a: int, _b: int, now_ms: int) -> None:
        self.on_sweep(now_ms)

    # --- delayed messages ---

    def delayed(self, topic: Topic, now_ms: int, limit: int = 100) -> list[Delayed]:
        """Messages that wait for their time, by partition and offset."""
        found: list[Delayed] = []
        for partition in topic.partitions:
            for start, stop in self._pending(partition):
                for record in self._settling.records(partition, start, stop):
                    if record.due_at_ms > now_ms:
                        found.append(
                            Delayed(partition.number, record.offset, record.due_at_ms, record)
                        )
                    if len(found) == limit:
                        return found
        return found

    def _pending(self, partition: TopicPartition) -> list[tuple[int, int]]:
        if partition.views:
            return partition.views[0].state.in_state(State.DELAYED)
        return [(partition.log.start_offset, partition.log.next_offset)]

    def count_delayed(self, topic: Topic) -> int:
        return sum(
            partition.views[0].state.delayed for partition in topic.partitions if partition.views
        )

    def cancel(self, topic: Topic, number: int, offset: int) -> None:
        """A delayed message is not delivered after all."""
        partition = self._core.partition(topic, number)
        cancelled = 0
        for view in partition.views:
            cancelled += self._cancel_in(view, offset)
        if not cancelled:
            raise NotDelayed(
                f"offset {offset} of {topic.name}/{number} is not waiting for its time"
            )

    def _cancel_in(self, view: PartitionView, offset: int) -> int:
        ranges, count, _ = view.state.apply(Event.CANCEL, offset, offset + 1)
        if count:
            self._settling.settle(view, ranges)
        return count
