"""What the parts of the engine share: the store, the timer wheel, and who is who.

Nothing here knows a clock: the time comes with every call.
"""

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from braidmq.engine.effects import Effect, MemberNotice, SubscriptionReady
from braidmq.engine.errors import UnknownSubscription, UnknownTopic
from braidmq.engine.policy import Template
from braidmq.engine.quotas import Quotas
from braidmq.engine.record_times import Ages, RecordClock
from braidmq.engine.records import SubscriptionRecord, TopicRecord
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.timer_wheel import TimerWheel
from braidmq.engine.topics import (
    Consumer,
    Credit,
    PartitionView,
    Subscription,
    Topic,
    TopicPartition,
)
from braidmq.engine.totals import Totals
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.record.offset_set import OffsetSet
from braidmq.storage.catalogue import COUNTERS, SUBSCRIPTIONS, Change
from braidmq.storage.store import Store

TOPICS = "topics"
TEMPLATES = "templates"
GROUPS = "groups"
NAMESPACE_STORAGE = "namespace-storage"
"""Namespaces whose records are in memory only: name → ``memory``. Written with the namespace."""
GROUP_MEMBERS = "group members"
DELETIONS = "doomed"
"""Topics that are being deleted with their namespace, which takes a while."""

STAGING = "\0staging"
"""The namespace of what transactions have staged: none that anybody can name."""

CANCELLED = SubscriptionId(0)
"""Stands for every subscription, those to come too: what it has settled is delivered to nobody."""


class TimerKind(IntEnum):
    """What a timer in the wheel is for, and what its owner and numbers mean."""

    RETRY = 1
    """view; offsets a … b-1 have waited long enough"""
    VISIBILITY = 2
    """view; deliveries of offsets a … b-1 are overdue"""
    DUE = 3
    """partition; the record at offset a becomes visible at b, if its date was not changed since"""
    EXPIRY = 4
    """partition; the record at offset a outlives its own time to live"""
    HEAD = 5
    """partition; the oldest record may outlive the topic's time to live"""
    IDLE = 6
    """topic; it may have been unused for too long"""
    SWEEP = 7
    """the node; retention in the background"""
    GROUP = 8
    """group; a session or a revocation may be over"""
    LEASE = 9
    """lease; it may be over"""
    TRANSACTION = 10
    """transaction; its time or its owner's session may be over"""
    COMPACTION = 11
    """topic; it is compacted"""
    DRAINED = 12
    """topic; partitions that were taken away may be empty"""
    KEPT = 13
    """partition; what it keeps of acknowledged messages may have had its time"""
    SCHEDULE = 14
    """schedule; its run that was planned for a may be due"""
    LOGIN = 15
    """a log-in of number a may be over"""
    WAIT = 16
    """somebody beside the engine; it has waited long enough"""


class EngineState:
    def __init__(self, store: Store, now_ms: int, upkeep: RetentionSettings | None = None) -> None:
        self.store = store
        self.upkeep = upkeep or RetentionSettings()
        self.wheel = TimerWheel(now_ms)
        self.topics: dict[tuple[str, str], Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.partitions: dict[PartitionId, TopicPartition] = {}
        self.subscriptions: dict[SubscriptionId, Subscription] = {}
        self.views: dict[int, PartitionView] = {}
        self.consumers: dict[int, Consumer] = {}
        self.templates: dict[tuple[str, str], Template] = {}
        self.dirty: dict[Subscription, None] = {}
        """Subscriptions that may have something to deliver, in the order they came to it."""
        self.crowded: dict[Subscription, None] = {}
        """Those that may be above a limit once their consumers have taken what they wait for."""
        self.quiet: dict[Subscription, None] = {}
        """Those where something was answered for while partitions of theirs are to move."""
        self.effects: list[Effect] = []
        self.notices: list[MemberNotice] = []
        self.totals = Totals()
        self.quotas = Quotas()
        self.clock = RecordClock()
        """Reads the times of records that are appended now."""
        self.clocks = [self.clock]
        """All that records may have been stamped by since the node was started."""
        self.ages = Ages()
        """Of messages when they were first delivered."""
        self._next_ids = dict.fromkeys(("topic", "subscription", "view", "consumer", "group"), 1)

    def next_id(self, kind: str) -> int:
        number = self._next_ids[kind]
        self._next_ids[kind] = number + 1
        return number

    def restore_ids(self) -> None:
        """A number once used never means something else: not even after a restart."""
        for kind in (TOPICS, SUBSCRIPTIONS):
            following = self.store.catalogue.get(COUNTERS, kind)
            if following is not None:
                self.seen_id(kind.removesuffix("s"), int(following) - 1)

    def _counter(self, kind: str) -> Change:
        return COUNTERS, kind, str(self._next_ids[kind.removesuffix("s")]).encode()

    def seen_id(self, kind: str, number: int) -> None:
        self._next_ids[kind] = max(self._next_ids[kind], number + 1)

    # --- looking up ---

    def topic(self, namespace: str, name: str) -> Topic:
        topic = self.topics.get((namespace, name))
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r} in namespace {namespace!r}")
        return topic

    def subscription(self, topic: Topic, name: str) -> Subscription:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise UnknownSubscription(f"topic {topic.name!r} has no subscription {name!r}")
        return subscription

    def topics_of(self, namespace: str | None = None) -> list[Topic]:
        """Without a namespace those of all, but not what transactions have staged."""
        every = self.topics.values()
        if namespace is None:
            return [topic for topic in every if topic.namespace != STAGING]
        return [topic for topic in every if topic.namespace == namespace]

    def templates_of(self, namespace: str) -> dict[str, Template]:
        """By name."""
        return {key[1]: each for key, each in self.templates.items() if key[0] == namespace}

    def has_successor(self, topic: Topic) -> bool:
        """Whether there is another of a deleted topic's name already."""
        return (topic.namespace, topic.name) in self.topics

    # --- timers ---

    def arm_head(self, partition: TopicPartition, now_ms: int, *, changed: bool = False) -> None:
        """Look at once for what outlived the topic's TTL, which may have changed; from then on it
        is looked after."""
        self.wheel.cancel(partition.head_timer)
        partition.head_timer = 0
        if partition.topic.policy.ttl_ms:
            partition.head_timer = self.wheel.schedule(
                now_ms, TimerKind.HEAD, partition.log.id, changed
            )

    # --- the catalogue ---

    def is_in_memory(self, namespace: str) -> bool:
        """Whether everything in it keeps its records in memory."""
        return self.store.catalogue.get(NAMESPACE_STORAGE, namespace) is not None

    def save_topic(self, topic: Topic, *together_with: Change) -> None:
        if topic.durable:
            record = TopicRecord(
                topic.id,
                topic.namespace,
                topic.name,
                topic.settings,
                [partition.log.id for partition in topic.partitions],
                topic.created_ms,
                topic.attributes,
                topic.kind,
                topic.width,
                topic.resizes,
                topic.closed or {},
            )
            value = msgspec.msgpack.encode(record)
            self.store.change(
                [(TOPICS, str(topic.id), value), self._counter(TOPICS), *together_with]
            )

    def save_subscription(self, subscription: Subscription, starts: Sequence[int]) -> None:
        if subscription.durable:
            record = SubscriptionRecord(
                subscription.id,
                subscription.topic.id,
                subscription.name,
                str(subscription.mode),
                list(starts),
                subscription.uncommitted,
            )
            value = msgspec.msgpack.encode(record)
            self.store.change(
                [(SUBSCRIPTIONS, str(subscription.id), value), self._counter(SUBSCRIPTIONS)]
            )

    def wall_ms(self, now_ms: int) -> int:
        """What the wall clock says: for people, never for a duration."""
        return now_ms + self.clock.lead_ms

    def cancelled(self, partition: TopicPartition) -> OffsetSet | None:
        """Offsets that are delivered to nobody, whoever comes; None when there are none."""
        return self.store.acknowledged.get((CANCELLED, partition.log.id))

    def cancel(self, partition: TopicPartition, ranges: list[tuple[int, int]]) -> None:
        """Nobody gets these any more, subscriptions that do not exist yet included."""
        if not ranges:
            return
        if partition.topic.durable:
            self.store.acknowledge(CANCELLED, partition.log.id, ranges)
            return
        for start, stop in ranges:
            self.store.offsets_of(CANCELLED, partition.log.id).add(start, stop)

    def outliving_consumers(self) -> set[int]:
        """Consumers that are nobody's connection: what they have stays theirs over a restart. 0 is
        who had something in an earlier life."""
        return {0, *(each.id for each in self.consumers.values() if each.outlives)}

    def has_room(self, credit: Credit) -> None:
        """Whoever found none in it looks again. Who was served longest ago looks first, also before
        those that have something new: a busy queue would take all the room of a quiet one."""
        awaited, credit.awaited = credit.awaited, {}
        for subscription in sorted(awaited, key=_served) if len(awaited) > 1 else awaited:
            self.dirty.pop(subscription, None)
            self.mark_dirty(subscription)

    def mark_dirty(self, subscription: Subscription) -> None:
        """It may have something to deliver."""
        if subscription.consumers:
            self.dirty[subscription] = None
        if subscription.watched:
            subscription.watched = False
            self.effects.append(SubscriptionReady(subscription))


def _served(subscription: Subscription) -> int:
    return subscription.served
