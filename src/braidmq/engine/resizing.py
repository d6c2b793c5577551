"""More or fewer partitions: which take records, what a resize leaves behind, and when a partition
that was taken away is closed."""

import logging
from itertools import dropwhile

import msgspec

from braidmq.engine.barriers import is_past, raise_barriers
from braidmq.engine.errors import TooManyResizes
from braidmq.engine.hooks import Hooks
from braidmq.engine.records import Resize
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.timers import Timers
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.entries import Resized, encode_entry
from braidmq.engine.transactions.ledger import Ledger
from braidmq.storage.catalogue import PARTITIONS
from braidmq.storage.journal import Kind

logger = logging.getLogger(__name__)

RESIZES_MAX = 64
"""Of one topic that has records from before all of them: each has an offset a partition."""

DRAINED_LOOK_MS = 1000
"""How often it is looked whether partitions that were taken away are empty."""


class Resizing:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        subscriptions: Subscriptions,
        ledger: Ledger,
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._subscriptions = subscriptions
        self._ledger = ledger
        self._watched: set[int] = set()
        """Topics with a timer to look at what was taken away."""
        timers.register(TimerKind.DRAINED, self._look)

    def check(self, topic: Topic, count: int) -> None:
        """Raises TooManyResizes before anything is changed."""
        if count != topic.width and len(_remaining(topic)) >= RESIZES_MAX:
            raise TooManyResizes(
                f"topic {topic.name!r} holds records from before its last {RESIZES_MAX} resizes"
            )

    def switch(self, topic: Topic, count: int) -> None:
        """From now on its first ``count`` partitions take records. The caller has made them, and
        saves the topic: a crash leaves both or neither."""
        remaining = list(_remaining(topic))
        logs = [each.log for each in topic.partitions]
        if topic.by_key and any(log.next_offset > log.start_offset for log in logs):
            remaining.append(Resize(topic.width, count, [int(log.next_offset) for log in logs]))
        topic.resizes = tuple(remaining)
        topic.width = count

    def follow_layout(self, topic: Topic, count: int, *, by_key: bool) -> None:
        """Messages will be dealt among ``count`` partitions; till now keys counted, or not. What
        producers send again is looked for where it went at first. The caller makes it so after
        this: a crash in between leaves a layout that is the same as the one before."""
        numbers = [int(each.log.id) for each in topic.partitions]
        entry = Resized(topic.id, numbers[: topic.width], by_key, numbers[:count])
        if topic.durable:
            self._state.store.note(Kind.TRANSACTION, encode_entry(entry))
        self._ledger.apply(entry)

    def watch(self, topic: Topic, now_ms: int) -> None:
        """Close what was taken away when it is empty."""
        if len(topic.partitions) > topic.width and topic.id not in self._watched:
            self._watched.add(topic.id)
            self._state.wheel.schedule(now_ms + DRAINED_LOOK_MS, TimerKind.DRAINED, topic.id)

    def _look(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        self._watched.discard(owner)
        topic = self._state.topics_by_id.get(owner)
        if topic is None or topic.deleted:
            return
        count = len(topic.partitions)
        while count > topic.width and _is_empty(topic.partitions[count - 1]):
            count -= 1
        if count < len(topic.partitions):
            self._close(topic, count, now_ms)
        self.watch(topic, now_ms)

    def _close(self, topic: Topic, count: int, now_ms: int) -> None:
        """Nothing is left of partitions from ``count`` on: their numbers are free."""
        topic.resizes = tuple([_without(resize, count) for resize in _remaining(topic)])
        closed = topic.partitions[count:]
        ends = {each.number: int(each.log.next_offset) for each in closed}
        topic.closed = {**(topic.closed or {}), **ends}
        del topic.partitions[count:]
        rows = [(PARTITIONS, str(each.log.id), None) for each in closed]
        self._state.save_topic(topic, *rows)
        for partition in closed:
            del self._state.partitions[partition.log.id]
            self._state.wheel.cancel(partition.head_timer)
            partition.views.clear()
            self._subscriptions.set_wanted(partition)
            if not topic.durable:
                self._state.store.delete_partition(partition.log.id)
        # While their views are there: members of groups lose them first.
        for changed in self._hooks.partitions_changed:
            changed(topic, now_ms)
        for subscription in topic.subscriptions.values():
            self._subscriptions.forget_views(subscription, count)
            raise_barriers(subscription)
        if topic.stand_in is not None:
            self._subscriptions.forget_views(topic.stand_in, count)
        topic.look_at_quarantine()
        facts = {"topic": topic.name, "namespace": topic.namespace, "partitions": count}
        logger.info("partitions closed", extra=facts)


def _remaining(topic: Topic) -> tuple[Resize, ...]:
    """The oldest go first: behind one that somebody waits for, even one whose partitions held
    nothing says where keys went on to."""
    return tuple(dropwhile(lambda each: is_past(topic, each), topic.resizes))


def _is_empty(partition: TopicPartition) -> bool:
    log = partition.log
    return (
        log.start_offset == log.next_offset
        and log.damage is None
        and log.pinned_offset >= log.next_offset
        and not partition.open_transactions
    )


def _without(resize: Resize, count: int) -> Resize:
    """Whoever has one of the numbers from ``count`` on next has nothing from before."""
    ends = [end if number < count else 0 for number, end in enumerate(resize.ends)]
    return msgspec.structs.replace(resize, ends=ends)
