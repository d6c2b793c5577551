"""Compaction: the latest record of each key stays, and what it replaces goes.

A partition is read twice, a slice at a time, so that others are served between two of them: for the
latest offset of each key, then for what that replaces. What is found is out of its subscriptions at
once, and out of the log with the next checkpoint, which is asked for: it seals the open segment and
writes those anew that have any of it. Until then nothing is lost that a crash could not bring back.
"""

from collections.abc import Iterator

from braidmq.engine.compaction import mark_superseded, note_latest
from braidmq.engine.hooks import Hooks
from braidmq.engine.later import forget_later
from braidmq.engine.reading import Reading
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import Event, State
from braidmq.engine.timers import Timers
from braidmq.engine.topics import PartitionView, Topic, TopicPartition
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.partition_log import Run


class Compacting:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        settlement: Settlement,
        reading: Reading,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._reading = reading
        self._running: dict[int, Iterator[None]] = {}
        """By topic, the compactions that are under way; each has its turn."""
        self._marked: dict[int, OffsetBits] = {}
        """By partition, what the last compaction found: gone with the next checkpoint."""
        self._clean: dict[int, tuple[int, str]] = {}
        """By partition, up to where there was nothing left to do, and by which header."""
        self.records_compacted = 0
        timers.register(TimerKind.COMPACTION, self._due)
        hooks.topic_deleted.append(self._forget)

    def _forget(self, topic: Topic) -> None:
        self._running.pop(topic.id, None)
        for partition in topic.partitions:
            self._marked.pop(partition.log.id, None)
            self._clean.pop(partition.log.id, None)

    def _due(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        """Its timer fired: each topic is compacted at its own interval."""
        topic = self._state.topics_by_id.get(owner)
        if topic is None:
            return
        topic.compaction_timer = 0
        rule = topic.policy.compaction
        if rule.enabled and not topic.deleted:
            due = now_ms + self._state.upkeep.compaction_period_ms(rule.interval_ms)
            topic.compaction_timer = self._state.wheel.schedule(due, TimerKind.COMPACTION, topic.id)
            if topic.id not in self._running:
                self._running[topic.id] = self.compact(topic, now_ms)

    @property
    def has_pending(self) -> bool:
        """Whether a compaction is under way: ``compact_some`` goes on with it."""
        return bool(self._running)

    def compact_some(self) -> None:
        """A slice of the one that waits longest."""
        number = next(iter(self._running))
        work = self._running.pop(number)
        for _ in work:
            self._running[number] = work
            return

    def compact(self, topic: Topic, now_ms: int) -> Iterator[None]:
        """Slice by slice: others may have their turn after any of them."""
        for partition in list(topic.partitions):
            # The lag may have changed, but not what was written meanwhile.
            stamped_ms = self._state.wall_ms(now_ms - topic.policy.compaction.lag_ms)
            try:
                yield from self._compact(partition, stamped_ms)
            except PartitionQuarantined:
                continue

    def _compact(self, partition: TopicPartition, stamped_until_ms: int) -> Iterator[None]:
        log, topic = partition.log, partition.topic
        header = topic.policy.compaction.header
        end = partition.stable_offset
        if log.damage is not None or self._clean.get(log.id) == (end, header):
            return
        name = header.encode()
        latest: dict[bytes, int] = {}
        at = log.start_offset
        while at < end:
            runs, at = self._reading.visible_slice(partition, at, end)
            for run in runs:
                note_latest(run.batch, run.first, run.stop, name, latest)
            yield
        marked, kept = OffsetBits(), set[bytes]()
        at = log.start_offset
        while at < end and topic.policy.compaction.enabled:
            begin = at
            runs, at = self._reading.visible_slice(partition, begin, end)
            held = _held(partition, begin, at)
            here = OffsetBits()
            for run in runs:
                mark_superseded(
                    run.batch, run.first, run.stop, name, latest, stamped_until_ms, held, kept, here
                )
            self._drop(partition, runs, here)
            cancelled = self._drop_cancelled(partition, begin, at, held)
            for start, stop in [*here.ranges(begin, at), *cancelled]:
                marked.add(start, stop)
            yield
        if at >= end:
            self._take_out(partition, marked)
            if not kept:
                self._clean[log.id] = (end, header)

    def _take_out(self, partition: TopicPartition, marked: OffsetBits) -> None:
        log = partition.log
        if not marked or log.damage is not None:
            return
        before = self._marked.get(log.id, OffsetBits())
        self.records_compacted += len(marked) - sum(
            before.count(start, stop) for start, stop in marked.ranges()
        )
        self._marked[log.id] = marked
        for start, stop in marked.ranges():
            forget_later(partition, start, stop)
        self._state.store.rewrite(log, marked)
        self._state.store.want_checkpoint()

    def _drop(self, partition: TopicPartition, runs: list[Run], marked: OffsetBits) -> None:
        """No subscription gets these any more."""
        for view in partition.views if marked else ():
            ranges: list[tuple[int, int]] = []
            for run in runs:
                batch = run.batch
                low, high = batch.offset_at(run.first), batch.offset_at(run.stop - 1) + 1
                for start, stop in marked.ranges(low, high):
                    first, end = batch.find(start), batch.find(stop)
                    ranges += view.state.take_out(Event.DROP, batch, first, end)[0]
            if ranges:
                self._settlement.settle(view, ranges)
                # One of them may have waited for its retry, and others behind it for their turn.
                self._state.mark_dirty(view.subscription)

    def _drop_cancelled(
        self, partition: TopicPartition, begin: int, end: int, held: OffsetBits
    ) -> list[tuple[int, int]]:
        """What is delivered to nobody goes too: only who reads what is uncommitted had it."""
        cancelled = self._state.cancelled(partition)
        if cancelled is None:
            return []
        gone = OffsetBits()
        if cancelled.floor > begin:
            gone.add(begin, min(cancelled.floor, end))
        for start, stop in cancelled.ranges(begin, end):
            gone.add(start, stop)
        for start, stop in held.ranges(begin, end):
            gone.discard(start, stop)
        ranges = gone.ranges(begin, end)
        for view in partition.views:
            if view.subscription.uncommitted:
                self._drop_ranges(view, ranges)
        return ranges

    def _drop_ranges(self, view: PartitionView, ranges: list[tuple[int, int]]) -> None:
        for start, stop in ranges:
            for run in view.partition.runs(start, stop):
                settled, _, _ = view.state.take_out(Event.DROP, run.batch, run.first, run.stop)
                if settled:
                    self._settlement.settle(view, settled)


def _held(partition: TopicPartition, begin: int, end: int) -> OffsetBits:
    """What stays this time: a consumer that has a superseded message may still answer for it, and
    who reads in bulk has a right to what there was."""
    held = OffsetBits()
    for view in partition.views:
        if view.state.in_flight:
            for start, stop in view.state.in_state(State.IN_FLIGHT):
                if start < end and begin < stop:
                    held.add(max(start, begin), min(stop, end))
    pinned = max(partition.log.pinned_offset, begin)
    if pinned < end:
        held.add(pinned, end)
    return held
