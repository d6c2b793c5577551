"""The things the engine keeps: topics, partitions, subscriptions, consumers, and how they hang
together.

    Topic ─┬─ TopicPartition 0 ── PartitionLog (storage)
           ├─ TopicPartition 1        │
           │                          │ one view each
           └─ Subscription ─── PartitionView ── DeliveryState (kernel)
                  └─ Consumer …
"""

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, Protocol

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.errors import PartitionClosed, UnknownPartition, UnknownTopic
from braidmq.engine.key_slots import KeySlots
from braidmq.engine.lanes import LaneScheduler
from braidmq.engine.policy import TopicKind, TopicPolicy, lane_table
from braidmq.engine.record_times import RecordClock
from braidmq.engine.records import Resize
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.record.batch import FLAG_TIMED, Record, RecordBatch
from braidmq.record.key_hash import partition_for
from braidmq.record.offset_set import OffsetBits, OffsetSet
from braidmq.storage.partition_log import PartitionLog, Run

UNLIMITED = 1 << 62

READ_BYTES = 1 << 20

NONE_REVOKED: Final[frozenset[int]] = frozenset()
"""One for all subscriptions: most have nothing to do with groups, and there may be many."""

QUEUE_SUBSCRIPTION = "queue"
"""The one subscription of a topic that is an AMQP queue."""


class Mode(StrEnum):
    """Who gets which message of a subscription."""

    SHARED = "shared"
    """Any consumer with room; AMQP queues, shared subscriptions."""
    ASSIGNED = "assigned"
    """Each partition belongs to one member of the group."""
    SINGLE_ACTIVE = "single-active"
    """One consumer gets everything, the others stand by."""
    EXCLUSIVE = "exclusive"
    """One consumer; a second is refused."""
    KEY_ORDERED = "key-ordered"
    """Many consumers on one partition, messages of one key in order and at one of them."""


class Topic:
    __slots__ = (
        "attributes",
        "bounded",
        "by_key",
        "closed",
        "compaction_timer",
        "counts_ready",
        "created_ms",
        "dead_letter",
        "deduplicates",
        "deleted",
        "drops_head",
        "durable",
        "id",
        "idle_timer",
        "journaled",
        "keeps_acked",
        "keeps_transient",
        "kind",
        "lane_of",
        "last_used_ms",
        "limited",
        "message_bytes_max",
        "name",
        "namespace",
        "needs_partition",
        "partitions",
        "policy",
        "prefetch_max",
        "published",
        "quarantined",
        "resizes",
        "round_robin",
        "settings",
        "stand_in",
        "subscriptions",
        "takes_any",
        "until_acked",
        "width",
    )

    def __init__(
        self,
        topic_id: int,
        namespace: str,
        name: str,
        settings: dict[str, Any],
        policy: TopicPolicy,
        *,
        durable: bool,
        now_ms: int,
        kind: TopicKind = "topic",
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self.id = topic_id
        self.namespace = namespace
        self.name = name
        self.kind = kind
        self.settings = settings
        self.attributes = attributes or {}
        """What a protocol wants to remember of it; kept with it, not looked at."""
        self.durable = durable
        self.partitions: list[TopicPartition] = []
        self.width = 0
        """How many of them, from the first, take records. Others were taken away, and are read to
        their end."""
        self.closed: dict[int, int] | None = None
        """Where partitions ended that were closed: who has their numbers next goes on from there,
        so that an offset never means another message."""
        self.resizes: tuple[Resize, ...] = ()
        """Oldest first, while there are records from before them."""
        self.subscriptions: dict[str, Subscription] = {}
        self.stand_in: Subscription | None = None
        """While nobody subscribes to a topic with limits or a TTL: those hold for what its log has,
        and what this settles is gone for everybody (``CANCELLED``)."""
        self.round_robin = 0
        self.published = 0
        self.created_ms = self.last_used_ms = now_ms
        self.idle_timer = self.compaction_timer = 0
        self.deleted = False
        self.quarantined = 0
        """How many of its partitions are."""
        self.set_policy(policy)

    def set_policy(self, policy: TopicPolicy) -> None:
        self.policy = policy
        self.dead_letter = policy.dead_letter
        """Where dead letters go now: not where the policy says, if whoever said so may not."""
        self.lane_of = lane_table(policy)
        # What every batch asks for, without going through the policy.
        self.drops_head = policy.overflow == "drop-head"
        self.counts_ready = policy.limits_count == "ready"
        self.bounded = policy.max_messages is not None or policy.max_bytes is not None
        self.journaled = self.durable and not self.in_memory
        self.message_bytes_max = policy.message_bytes_max
        self.prefetch_max = policy.consumer_prefetch_max or UNLIMITED
        rule = policy.retention
        self.until_acked = rule.until_acked
        self.keeps_acked = rule.keeps_acked
        self.keeps_transient = self.kind == "quorum" or not rule.until_acked
        """A log or a quorum queue keeps what it takes, as in RabbitMQ: a publisher that asks for
        less, by delivery mode or QoS, asks nothing of it."""
        self.deduplicates = policy.deduplication_window_ms > 0
        self.by_key = policy.partition_strategy == "hash"
        self.needs_partition = policy.partition_strategy == "explicit"
        refuses = (self.bounded and policy.overflow != "drop-head") or self.needs_partition
        self.takes_any = not refuses and not self.deduplicates and not self.quarantined
        """No message is refused or passed over because of those before it."""
        self.limited = bool(rule.time_ms or rule.bytes or rule.messages)
        for partition in self.partitions:
            partition.look_at_retention()
            partition.log.compressed = policy.compression != "none"

    @property
    def in_memory(self) -> bool:
        """Whether its records are in memory only. For life: its logs are of that kind."""
        return self.policy.durability == "memory"

    def look_at_quarantine(self) -> None:
        """The quarantine of one of its partitions has begun, or is over."""
        self.quarantined = len([1 for each in self.partitions if each.log.damage is not None])
        self.set_policy(self.policy)

    @property
    def is_quarantined(self) -> bool:
        """Whether none of its partitions can be read or written."""
        return 0 < self.quarantined == len(self.partitions)

    def require_existing(self) -> None:
        """Callers may hold on to a topic that is gone."""
        if self.deleted:
            raise UnknownTopic(f"topic {self.name!r} of namespace {self.namespace!r} is deleted")

    def quarantine_error(self) -> PartitionQuarantined:
        """Of the first of its partitions that is quarantined."""
        for partition in self.partitions:
            if partition.log.damage is not None:
                return partition.log.quarantined()
        raise AssertionError(f"no partition of {self.name!r} is quarantined")

    @property
    def depth(self) -> int:
        """Unsettled messages of the subscription that has most of them."""
        return max((sub.depth for sub in self.subscriptions.values()), default=0)

    @property
    def depth_bytes(self) -> int:
        return max((sub.depth_bytes for sub in self.subscriptions.values()), default=0)

    @property
    def load(self) -> tuple[int, int]:
        """What counts towards the limits: messages and bytes of the fullest subscription, or of
        the log."""
        if not self.subscriptions and self.stand_in is None:
            # It has no limits; what waits for its first subscription is all that it has.
            return sum(each.log.next_offset - each.log.start_offset for each in self.partitions), 0
        loads = [sub.load for sub in self.limited_subscriptions]
        return max((n for n, _ in loads), default=0), max((b for _, b in loads), default=0)

    @property
    def limited_subscriptions(self) -> "list[Subscription]":
        """Those that limits hold for, each for itself; its stand-in where there are none."""
        if self.stand_in is not None:
            return [self.stand_in]
        return list(self.subscriptions.values())

    def partition(self, number: int) -> "TopicPartition":
        """Raises UnknownPartition."""
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition(
                f"topic {self.name!r} has no partition {number}, only {len(self.partitions)}"
            )
        return self.partitions[number]

    def open_partition(self, number: int) -> "TopicPartition":
        """One that takes records. Raises UnknownPartition, PartitionClosed."""
        partition = self.partition(number)
        if number >= self.width:
            raise PartitionClosed(
                f"partition {number} of topic {self.name!r} was taken away and takes no more "
                f"records: the topic has {self.width}"
            )
        return partition

    def partition_of(self, key: bytes | None) -> "TopicPartition":
        """Where the next record with this key goes."""
        count = self.width
        if key is None or not self.by_key:
            number = self.round_robin % count
        else:
            number = partition_for(key, count)
        return self.partitions[number]


class Kept:
    """What a queue keeps of a partition though it is acknowledged."""

    __slots__ = ("looks", "released", "timer")

    def __init__(self, start: int) -> None:
        self.released = OffsetSet(start)
        """What had its time: a checkpoint need not write it."""
        self.looks: deque[tuple[int, list[OffsetSet]]] = deque()
        """When, and what each subscription had settled then."""
        self.timer = 0

    def begin_again(self, start: int) -> None:
        """Somebody wants what was acknowledged: nothing of it had its time."""
        self.released.reset(min(start, self.released.floor))
        self.looks.clear()


class TopicPartition:
    __slots__ = (
        "check_offset",
        "clock",
        "has_dates",
        "head_timer",
        "kept",
        "later",
        "log",
        "look_ms",
        "look_offset",
        "look_size",
        "number",
        "older_clocks",
        "open_transactions",
        "topic",
        "undecided",
        "undecided_bytes",
        "views",
    )

    def __init__(self, topic: Topic, number: int, log: PartitionLog, clock: RecordClock) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.clock = clock
        """Reads the times of its records."""
        self.older_clocks: tuple[tuple[int, RecordClock], ...] = ()
        """Offsets, and what reads the times of records below each: the wall clock was set."""
        self.has_dates = False
        """Whether it may hold records whose time somebody named as a date."""
        self.views: list[PartitionView] = []
        self.head_timer = 0
        """The timer for the topic's TTL; 0: not set."""
        self.kept: Kept | None = None
        """Where the topic keeps what is acknowledged."""
        self.later: OffsetBits | None = None
        """Records that wait for their time, while nobody subscribes (``engine.later``)."""
        self.open_transactions: dict[int, int] | None = None
        """Transactions with records here that are not decided, by number, with the first offset of
        each: the lowest first, because offsets rise. None on most partitions."""
        self.undecided = self.undecided_bytes = 0
        """Messages behind the stable offset that subscriptions may be told of, and their bytes:
        kept only where the topic has limits."""
        self.look_at_retention()

    def follow_clock(self, clock: RecordClock) -> None:
        """Records from here on are stamped by another clock than those that are there."""
        log = self.log
        kept = [each for each in self.older_clocks if each[0] > log.start_offset]
        if log.next_offset > log.start_offset:
            kept.append((log.next_offset, self.clock))
        self.older_clocks = tuple(kept)
        self.clock = clock

    def clock_at(self, offset: int) -> RecordClock:
        for end, clock in self.older_clocks:
            if offset < end:
                return clock
        return self.clock

    def by_clock(self, run: Run) -> Iterator[tuple[RecordClock, Run]]:
        """A run in parts that one clock each reads: nearly always one."""
        first = run.first
        for end, clock in self.older_clocks:
            stop = min(run.stop, run.batch.find(end))
            if first < stop:
                yield clock, Run(run.batch, first, stop)
                first = stop
        if first < run.stop:
            yield self.clock, run if first == run.first else Run(run.batch, first, run.stop)

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """What the log still has of offsets ``start`` … ``stop - 1``."""
        while start < stop:
            found = self.log.read(start, READ_BYTES, stop)
            if not found:
                return
            for run in found:
                end = min(run.stop, run.batch.find(stop))
                if end > run.first:
                    yield Run(run.batch, run.first, end)
                start = run.batch.offset_at(run.stop - 1) + 1

    def records(self, start: int, stop: int) -> Iterator[Record]:
        for run in self.runs(start, stop):
            for index in range(run.first, run.stop):
                yield run.batch.record(index)

    def timed_between(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """``(offset, due, expires, dated)`` of records ``at`` … ``end - 1`` that have either."""
        log = self.log
        at = max(at, log.start_offset)
        while at < end:
            for segment in log.segments:
                if (
                    segment.base_offset <= at < segment.end_offset
                    and not segment.summary & FLAG_TIMED
                ):
                    at = segment.end_offset
            found = log.read(at)
            if not found:
                return
            for run in found:
                if run.batch.summary & FLAG_TIMED:
                    for clock, part in self.by_clock(run):
                        first = max(at, part.batch.offset_at(part.first))
                        last = min(end - 1, part.batch.offset_at(part.stop - 1))
                        for each in clock.timed(part.batch):
                            if first <= each[0] <= last:
                                yield each
                at = run.batch.offset_at(run.stop - 1) + 1

    def first_since(self, time_ms: int) -> int:
        """The offset of the first record stamped at or after a time of the engine."""
        low = self.log.start_offset
        for end, clock in [*self.older_clocks, (self.log.next_offset, self.clock)]:
            if low < end:
                found = self.log.find_time(clock.reading(time_ms))
                if found < end:
                    return max(found, low)
                low = end
        return self.log.next_offset

    def look_at_retention(self) -> None:
        """Until when retention has nothing to do: a time, an offset and bytes appended; and up to
        which offset nobody asks. Whoever looks sets them anew."""
        self.look_ms = self.look_offset = self.look_size = self.check_offset = 0

    def may_exceed(self, now_ms: int) -> bool:
        log = self.log
        return log.next_offset >= self.check_offset and (
            log.next_offset >= self.look_offset
            or log.appended_bytes >= self.look_size
            or now_ms >= self.look_ms
        )

    @property
    def stable_offset(self) -> int:
        """Up to here everything is decided. Subscriptions are told of nothing behind it."""
        if self.open_transactions:
            return next(iter(self.open_transactions.values()))
        return self.log.next_offset


def mode_by_ordering(ordering: str) -> Mode:
    """How the consumers of a new subscription share a topic, unless they say: where the whole topic
    is one order (catalogue row C5) one of them is served at a time."""
    return Mode.SINGLE_ACTIVE if ordering == "strict" else Mode.SHARED


class Credit:
    """How much may be in flight: one for a consumer, or shared by the consumers of a channel."""

    __slots__ = ("awaited", "bytes_limit", "bytes_used", "limit", "used")

    def __init__(self, limit: int = UNLIMITED, bytes_limit: int = UNLIMITED) -> None:
        self.limit = limit
        self.bytes_limit = bytes_limit
        self.used = 0
        self.bytes_used = 0
        self.awaited: dict[Subscription, None] = {}
        """Subscriptions that found no room in it and look again when there is."""

    @property
    def room(self) -> int:
        if self.bytes_used >= self.bytes_limit:
            return 0
        return self.limit - self.used


class Receiver(Protocol):
    """Where a consumer's deliveries go: its gateway's own."""

    def deliver(self, delivery: "Delivery") -> None: ...


class Consumer:
    """Somebody who takes messages of one subscription. One without a ``receiver`` pulls them."""

    __slots__ = (
        "auto_ack",
        "credits",
        "id",
        "in_flight",
        "next_partition",
        "passive",
        "paused",
        "priority",
        "receiver",
        "served",
        "subscription",
        "visibility_ms",
    )

    def __init__(
        self,
        consumer_id: int,
        subscription: "Subscription",
        credits: tuple[Credit, ...],
        *,
        priority: int = 0,
        auto_ack: bool = False,
        visibility_ms: int = 0,
        passive: bool = False,
        receiver: Receiver | None = None,
    ) -> None:
        self.id = consumer_id
        self.subscription = subscription
        self.credits = credits
        self.priority = priority
        self.auto_ack = auto_ack
        self.visibility_ms = visibility_ms
        self.receiver = receiver
        self.passive = passive
        """It asks for messages; none are pushed to it."""
        self.paused = False
        self.in_flight = 0
        self.next_partition = 0
        """Where the next turn begins, of those that are assigned to it."""
        self.served = 0
        """When it last got something that it asked for: of several the lowest waits longest."""

    @property
    def outlives(self) -> bool:
        """It is nobody's connection and no member: what it has stays its own over a restart, until
        it is due. A member's partition would stand still for that."""
        return self.passive and self.receiver is None

    @property
    def room(self) -> int:
        """Messages it may be given now."""
        if self.paused:
            return 0
        credits = self.credits
        room = credits[0].room if len(credits) == 1 else min(each.room for each in credits)
        most = self.subscription.topic.prefetch_max
        return min(room, most - self.in_flight) if most != UNLIMITED and self.is_capped else room

    @property
    def is_capped(self) -> bool:
        """Whether its topic says how much it may have: not of one for many, who ask."""
        return not self.passive and not self.auto_ack

    @property
    def prefetch(self) -> int:
        """Unanswered messages it may have, by what it asked for and by its topic."""
        limit = min(each.limit for each in self.credits)
        return min(limit, self.subscription.topic.prefetch_max) if self.is_capped else limit

    def took(self, count: int, size: int) -> None:
        self.in_flight += count
        for credit in self.credits:
            credit.used += count
            credit.bytes_used += size

    def gave_back(self, count: int, size: int) -> None:
        self.in_flight -= count
        for credit in self.credits:
            credit.used -= count
            credit.bytes_used -= size


class Gate(Protocol):
    """Of a subscription whose messages may have to wait although a consumer has room for them."""

    is_syncing: bool
    """Whether they wait for nothing but the disk: then limits do not count them yet."""

    def ceiling(self, view: "PartitionView", start: int, stop: int) -> int:
        """From this offset on nothing goes out now; asked for messages ``start`` … ``stop - 1``.
        Who holds some back touches the subscription when that may be over."""


class Barrier(Protocol):
    """Of a subscription whose topic got more or fewer partitions: what waits for what."""

    @property
    def is_over(self) -> bool: ...

    def look(self) -> bool:
        """Follow what was settled since the last look."""

    def awaited(self, most: int) -> list[list[int]]:
        """For each view partitions whose messages hold back some of it, at most so many."""


class Subscription:
    """The delivery state of one group on one topic."""

    __slots__ = (
        "acked",
        "active",
        "assignment",
        "barriers",
        "consumers",
        "dead_lettered",
        "delivered",
        "durable",
        "exclusive",
        "expired",
        "gate",
        "id",
        "keeps_sent",
        "keys",
        "mode",
        "nacked",
        "name",
        "next_partition",
        "redelivered",
        "rejected",
        "revoking",
        "rotor",
        "served",
        "timed_out",
        "topic",
        "uncommitted",
        "views",
        "watched",
    )

    def __init__(
        self,
        subscription_id: SubscriptionId,
        topic: Topic,
        name: str,
        mode: Mode,
        *,
        durable: bool,
        uncommitted: bool = False,
    ) -> None:
        self.id = subscription_id
        self.topic = topic
        self.name = name
        self.mode = mode
        self.durable = durable
        self.uncommitted = uncommitted
        """Whether it is told of records whose transaction is still open."""
        self.views: list[PartitionView] = []
        self.consumers: dict[Consumer, None] = {}
        """In the order in which they came; each may go at any time, and they may be many."""
        self.active: Consumer | None = None
        """The one that is served, where only one is."""
        self.assignment: dict[int, Consumer] = {}
        """Partition number → consumer, where each partition has one."""
        self.revoking: frozenset[int] = NONE_REVOKED
        """Partitions whose consumer was asked to stop and may still have messages of them."""
        self.exclusive = False
        """Whether its consumer asked to be the only one, whatever the mode."""
        self.keeps_sent = False
        """Whether a message that a consumer once had does not expire any more."""
        self.gate: Gate | None = None
        """What holds messages back from its consumers; settling some asks it again."""
        self.barriers: Barrier | None = None
        """What holds messages back for those before a resize, while there are any."""
        self.keys: KeySlots | None = None
        self.watched = False
        """Whether somebody who pulls wants to know when there may be something for it."""
        self.rotor = 0
        self.next_partition = 0
        """Where the next turn begins, in key order."""
        self.served = 0
        """When its consumers last got something: of several the lowest waits longest."""
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.rejected = 0
        self.timed_out = 0
        self.expired = 0
        self.dead_lettered = 0

    @property
    def journaled(self) -> bool:
        """Whether what it does with records is there after a restart."""
        return self.durable and self.topic.policy.durability != "memory"

    @property
    def depth(self) -> int:
        return sum(view.state.depth for view in self.views)

    @property
    def depth_bytes(self) -> int:
        return sum(view.state.depth_bytes for view in self.views)

    @property
    def load(self) -> tuple[int, int]:
        """Messages and bytes that count towards the topic's limits."""
        counts_ready = self.topic.counts_ready
        if len(self.views) == 1:
            state = self.views[0].state
            if counts_ready:
                return state.ready, state.ready_bytes
            return state.depth, state.depth_bytes
        if not counts_ready:
            return self.depth, self.depth_bytes
        return (
            sum(view.state.ready for view in self.views),
            sum(view.state.ready_bytes for view in self.views),
        )

    @property
    def awaited(self) -> int:
        """Messages that its consumers take as soon as they are dispatched."""
        if not self.consumers:
            return 0
        if self.mode is Mode.SINGLE_ACTIVE:
            return self.active.room if self.active is not None else 0
        return sum(max(0, consumer.room) for consumer in self.consumers)

    @property
    def ready(self) -> int:
        if len(self.views) == 1:
            return self.views[0].state.ready
        return sum(view.state.ready for view in self.views)

    @property
    def in_flight(self) -> int:
        return sum(view.state.in_flight for view in self.views)


class PartitionView:
    """One subscription's view of one partition."""

    __slots__ = (
        "id",
        "lanes",
        "oldest_ms",
        "oldest_offset",
        "partition",
        "ready_since",
        "state",
        "subscription",
    )

    def __init__(
        self,
        view_id: int,
        subscription: Subscription,
        partition: TopicPartition,
        state: DeliveryState,
    ) -> None:
        self.id = view_id
        self.subscription = subscription
        self.partition = partition
        self.state = state
        self.lanes: LaneScheduler | None = None
        """Only where the topic has priorities."""
        self.oldest_offset = -1
        self.oldest_ms = 0
        """When the record at that offset was stamped: where limits compare partitions."""
        self.ready_since = (-1, -1)
        """The oldest that was ready when somebody looked (``engine.ages``), and since when."""

    def set_lanes(self, now_ms: int) -> None:
        self.state.forget_key_queues()
        policy = self.partition.topic.policy
        self.lanes = None if policy.priority == "none" else LaneScheduler(policy, now_ms)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    @property
    def partition_id(self) -> PartitionId:
        return self.partition.log.id

    @property
    def visible_end(self) -> int:
        """How far the subscription may see."""
        if self.subscription.uncommitted:
            return self.partition.log.next_offset
        return self.partition.stable_offset


class Delivery:
    """A run of messages on its way to a consumer: records ``first_index`` …
    ``stop_index - 1`` of a batch, with offsets ``start_offset`` … ``end_offset - 1``."""

    __slots__ = (
        "attempts",
        "batch",
        "consumer",
        "end_offset",
        "first_index",
        "start_offset",
        "stop_index",
        "view",
    )

    def __init__(
        self,
        consumer: Consumer,
        view: PartitionView,
        batch: RecordBatch,
        first_index: int,
        stop_index: int,
        attempts: int,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self.consumer = consumer
        self.view = view
        self.batch = batch
        self.first_index = first_index
        self.stop_index = stop_index
        self.attempts = attempts
        """Deliveries of these messages, this one included: above 1 they are redelivered."""
        self.start_offset = start_offset
        self.end_offset = end_offset
