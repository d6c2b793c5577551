"""What ``broker.admin`` answers: the schemas of docs/openapi.json, and those of a
topic's settings, of which any may be left out; written by scripts/client_types.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class BindingInfo(TypedDict):
    namespace: str
    source: str
    destination: str
    destination_kind: Literal["exchange", "topic"]
    routing_key: str
    arguments: dict[str, Any]
    disabled: NotRequired[bool]
    """Nothing goes through: its maker lost a right to an end"""


class Compaction(TypedDict):
    """Keep the latest record of each key."""

    enabled: NotRequired[bool]
    header: NotRequired[str]
    lag_ms: NotRequired[int]
    interval_ms: NotRequired[int]


class DeadLetter(TypedDict):
    """Where given-up messages go: to a topic, or through an exchange; without either, nowhere."""

    topic: NotRequired[str | None]
    exchange: NotRequired[str | None]
    routing_key: NotRequired[str | None]
    expired: NotRequired[bool]
    alert_webhook: NotRequired[str | None]


class DeadLetterInfo(TypedDict):
    """A message that was given up. `queue` and `offset` name it."""

    namespace: str
    queue: str
    """Where it lies"""
    offset: int
    reason: str
    """Why"""
    topic: str
    """Where it died"""
    partition: NotRequired[int]
    original_offset: NotRequired[int]
    subscription: NotRequired[str]
    attempts: NotRequired[int]
    error: NotRequired[str]
    """What the last consumer said"""
    at_ms: NotRequired[int]
    message: NotRequired[Message]


class DelayStats(TypedDict):
    """Messages that wait for their time, by the subscriptions that are to get them; and what
    became     of others since the node started."""

    namespace: str
    pending: int
    """Of each partition those of the subscription that waits for most; where nobody subscribes,
    those of its log"""
    delivered: int
    """Their time came, since the node started"""
    cancelled: int
    expired: int
    """Before their time had come"""
    topics: list[TopicDelays]
    """Those where most wait, then most have waited; at most a hundred"""
    timers: int
    """All timers of the node: retries, time limits, delays"""
    next_timer_ms: NotRequired[int]
    """Milliseconds since 1970, UTC"""


class DelayedMessages(TypedDict):
    count: int
    """All in that state, listed or not"""
    messages: list[Message]
    """Those that are pending"""
    ended: NotRequired[list[EndedDelay]]
    """In another state the last of a topic, at most 100; latest first"""


class EndedDelay(TypedDict):
    """A message that was published for later and waits no more."""

    partition: int
    offset: int
    state: Literal["cancelled", "delivered", "expired", "pending"]
    deliver_at_ms: int
    """Milliseconds since 1970, UTC"""
    ended_ms: int
    """Milliseconds since 1970, UTC"""


class ExchangeInfo(TypedDict):
    namespace: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate_exchange: str | None
    arguments: dict[str, Any]
    disabled: NotRequired[list[str]]
    """Settings that do not hold: who made them lost the right to a target"""


class GroupInfo(TypedDict):
    namespace: str
    name: str
    mode: str
    """`assigned`: members have partitions; else as of its subscriptions"""
    members: list[MemberSummary]
    subscriptions: list[SubscriptionInfo]
    """With the lag in each partition"""
    generation: NotRequired[int]
    strategy: NotRequired[str]
    session_timeout_ms: NotRequired[int]
    rebalance_timeout_ms: NotRequired[int]


class GroupSummary(TypedDict):
    namespace: str
    name: str
    mode: str
    """`assigned`: members have partitions; else as of its subscriptions"""
    members: int
    """Or consumers, where partitions are not assigned"""
    lag: int
    generation: NotRequired[int]
    strategy: NotRequired[str]


class HeldPartition(TypedDict):
    """A partition with messages of an open transaction."""

    topic: str
    partition: int
    first_offset: int
    behind: int
    """Messages nobody gets because of it; 0 if an older one is in the way"""


class Letters(TypedDict):
    topic: str
    """The dead-letter topic, or first queue; empty if there is none"""
    letters: list[DeadLetterInfo]


class MemberInfo(TypedDict):
    """What a member is told: work on `assigned`, finish and let go of `revoking`."""

    group: str
    member_id: str
    generation: int
    assigned: dict[str, list[int]]
    """Topic → partitions"""
    revoking: dict[str, list[int]]
    heartbeat_interval_ms: int


class MemberSummary(TypedDict):
    member_id: str
    assigned: dict[str, list[int]]
    revoking: dict[str, list[int]]


class Message(TypedDict):
    """A message as it is read. A value, key or header that is not text is in base64."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When the broker first saw it"""
    value: NotRequired[str | None]
    value_base64: NotRequired[str]
    key: NotRequired[str]
    key_base64: NotRequired[str]
    headers: NotRequired[dict[str, str]]
    headers_base64: NotRequired[dict[str, str]]
    priority: NotRequired[int]
    deliver_at_ms: NotRequired[int]
    expires_at_ms: NotRequired[int]
    content_type: NotRequired[str]
    content_encoding: NotRequired[str]
    correlation_id: NotRequired[str]
    reply_to: NotRequired[str]
    message_id: NotRequired[str]
    type: NotRequired[str]
    user_id: NotRequired[str]
    app_id: NotRequired[str]
    exchange: NotRequired[str]
    """The exchange it came through"""
    routing_key: NotRequired[str]
    receipt: NotRequired[str]
    """Answer for this delivery with it"""
    delivery_count: NotRequired[int]
    """Deliveries so far, this one included"""
    redelivered: NotRequired[bool]


class Overview(TypedDict):
    node: str
    version: str
    started_ms: int
    uptime_ms: int
    pressure: str
    """normal, slow or blocked"""
    topics: int
    subscriptions: int
    consumers: int
    connections: int
    ready: int
    """Messages that could be delivered now"""
    in_flight: int
    memory_bytes: int
    """Messages in memory"""
    totals: Totals
    rates: Rates


class PartitionInfo(TypedDict):
    partition: int
    start_offset: int
    """The first offset it still has"""
    next_offset: int
    """What the next message gets"""
    messages: int
    """What its log still has, settled or not"""
    bytes: int
    """What they take, about"""
    closing: NotRequired[bool]
    """It was taken away: it takes no more messages, and is read to its end"""


class PartitionLag(TypedDict):
    partition: int
    committed: int
    """All before this offset is settled"""
    end: int
    """The offset the next message gets"""
    lag: int
    """Unsettled messages"""
    in_flight: int
    held: NotRequired[int]
    """Messages that wait for others of their keys, from before a resize"""
    waits_for: NotRequired[list[int]]
    """Partitions in which those are, ten at most"""


class Polled(TypedDict):
    member: MemberInfo
    messages: list[Message]


class Rates(TypedDict):
    """Messages a second, over the last seconds."""

    published: NotRequired[float]
    delivered: NotRequired[float]
    acked: NotRequired[float]


class ReadMessages(TypedDict):
    messages: list[Message]
    next_offset: int
    """Where to read on"""
    end_offset: int
    """Where there is nothing more to read: the end, or an open transaction"""


class Retention(TypedDict):
    """How long records stay; 0 means without limit."""

    until_acked: NotRequired[bool]
    time_ms: NotRequired[int]
    bytes: NotRequired[int]
    messages: NotRequired[int]
    keep_acked_ms: NotRequired[int]
    keep_acked_bytes: NotRequired[int]


class Retried(TypedDict):
    count: int
    more: bool
    """Whether there are some left: call again"""
    stayed: int
    """Those that can't go back; see `/dead-letters/return`"""


class Retry(TypedDict):
    """How a failed delivery is tried again: ``base × factor^(failures - 1)``, up to ``max``."""

    base_ms: NotRequired[int]
    factor: NotRequired[float]
    max_ms: NotRequired[int]
    attempts: NotRequired[int]
    total_ms: NotRequired[int]


class ReturnedLetters(TypedDict):
    count: int
    """How many went back, or would"""
    examples: list[DeadLetterInfo]
    """The first of them"""
    stayed_count: int
    stayed: list[StayedLetter]
    """The first that can't, and why"""
    next: str
    """The `cursor` to go on with; empty: that was all"""
    unreadable: list[str]
    """Queues that are quarantined"""


class ScheduleInfo(TypedDict):
    namespace: str
    topic: str
    name: str
    user: str
    """Who made it, and needs the right to write to the topic"""
    created_ms: int
    """Milliseconds since 1970, UTC"""
    value: str
    headers: dict[str, str]
    cron: str
    every_ms: int
    zone: str
    paused: bool
    next_runs_ms: list[int]
    """The next five; none while it is paused"""
    runs: int
    """Messages it has published"""
    last_run_ms: int
    """When that was planned for; 0: never"""
    error: str
    """Why the last run published nothing"""
    key: NotRequired[str]
    partition: NotRequired[int]


class SessionInfo(TypedDict):
    id: str
    protocol: str
    user: str
    namespace: str
    peer: str
    connected_ms: int
    client: str
    channels: int
    blocked: bool
    listener: NotRequired[str]


class StayedLetter(TypedDict):
    """A letter that can't go back now."""

    letter: DeadLetterInfo
    code: str
    detail: str


class SubscriptionInfo(TypedDict):
    namespace: str
    topic: str
    name: str
    mode: str
    durable: bool
    consumers: int
    waiting: int
    """Requests that wait for a message"""
    lag: int
    """Unsettled messages"""
    ready: int
    in_flight: int
    oldest_ready_ms: int | None
    """How long the oldest message has waited for a consumer; null: none does"""
    oldest_in_flight_ms: int | None
    """How long the oldest delivery has not been answered, to a tenth of a second; null: there is
    none, or it was before the node was restarted"""
    delivered: int
    """Since the node started"""
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int
    partitions: list[PartitionLag]


class TemplateInfo(TypedDict):
    namespace: str
    name: str
    pattern: str
    settings: dict[str, Any]
    priority: int


class TopicDelays(TypedDict):
    topic: str
    pending: int
    delivered: int
    cancelled: int
    expired: int


class TopicInfo(TypedDict):
    namespace: str
    name: str
    durable: bool
    created_ms: int
    """Milliseconds since 1970, UTC"""
    published: int
    depth: int
    depth_bytes: int
    oldest_ready_ms: int | None
    """How long the oldest message of any subscription has waited for a consumer; null: none does"""
    oldest_in_flight_ms: int | None
    """How long the oldest delivery has not been answered; null: there is none"""
    messages: int
    """What its partitions still have, settled or not; after a restart too"""
    bytes: int
    """What they take, about"""
    kept: int
    """Acknowledged messages that a queue keeps: a seek replays them"""
    kept_bytes: int
    """What those take, about"""
    settings: dict[str, Any]
    """Those it was given"""
    policy: TopicPolicy
    """What holds, templates and defaults included"""
    partitions: list[PartitionInfo]
    subscriptions: list[str]
    disabled: NotRequired[list[str]]
    """Settings that do not hold: who made them lost the right to a target"""


class TopicPolicy(TypedDict):
    """Every setting of a topic, with the defaults of the catalogue."""

    partitions: NotRequired[int]
    partition_strategy: NotRequired[Literal["explicit", "hash", "round-robin"]]
    ordering: NotRequired[Literal["none", "partition", "strict"]]
    retention: NotRequired[Retention]
    compaction: NotRequired[Compaction]
    ttl_ms: NotRequired[int]
    message_bytes_max: NotRequired[int]
    max_messages: NotRequired[int | None]
    max_bytes: NotRequired[int | None]
    overflow: NotRequired[Literal["dead-letter", "drop-head", "reject"]]
    limits_count: NotRequired[Literal["ready", "unsettled"]]
    retry: NotRequired[Retry]
    dead_letter: NotRequired[DeadLetter]
    priority: NotRequired[Literal["lanes", "none", "strict"]]
    priority_levels: NotRequired[int]
    starvation_ms: NotRequired[int]
    durability: NotRequired[Literal["disk", "memory", "os"]]
    compression: NotRequired[Literal["none", "zstd"]]
    visibility_ms: NotRequired[int]
    in_flight_max: NotRequired[int]
    consumer_prefetch_max: NotRequired[int | None]
    idle_expires_ms: NotRequired[int]
    deduplication_window_ms: NotRequired[int]


class TopicSummary(TypedDict):
    namespace: str
    name: str
    partitions: int
    durable: bool
    subscriptions: int
    consumers: int
    depth: int
    """Unsettled messages of the fullest subscription"""
    depth_bytes: int
    published: int
    """Messages since the node started"""


class Totals(TypedDict):
    """Counted since the node started, with topics that were deleted since."""

    published: NotRequired[int]
    delivered: NotRequired[int]
    redelivered: NotRequired[int]
    acked: NotRequired[int]
    expired: NotRequired[int]
    dead_lettered: NotRequired[int]


class TransactionInfo(TypedDict):
    namespace: str
    name: str
    state: Literal["committing", "complete", "empty", "ongoing", "prepare"]
    owner: str
    number: NotRequired[int]
    started_ms: NotRequired[int]
    """Milliseconds since 1970, UTC"""
    age_ms: NotRequired[int]
    timeout_ms: NotRequired[int]
    session_ms: NotRequired[int]
    records: NotRequired[int]
    """Messages published in it"""
    branches: NotRequired[list[str]]
    holds: NotRequired[list[HeldPartition]]
    outcome: NotRequired[Literal["aborted", "committed"]]
    reason: NotRequired[str]
    """Why it was aborted"""
    ended_ms: NotRequired[int]
    """Milliseconds since 1970, UTC"""


class CompactionSettings(TypedDict, total=False):
    """Keep the latest record of each key."""

    enabled: bool
    header: str
    lag_ms: int
    interval_ms: int


class DeadLetterSettings(TypedDict, total=False):
    """Where given-up messages go: to a topic, or through an exchange; without either, nowhere."""

    topic: str | None
    exchange: str | None
    routing_key: str | None
    expired: bool
    alert_webhook: str | None


class RetentionSettings(TypedDict, total=False):
    """How long records stay; 0 means without limit."""

    until_acked: bool
    time_ms: int
    bytes: int
    messages: int
    keep_acked_ms: int
    keep_acked_bytes: int


class RetrySettings(TypedDict, total=False):
    """How a failed delivery is tried again: ``base × factor^(failures - 1)``, up to ``max``."""

    base_ms: int
    factor: float
    max_ms: int
    attempts: int
    total_ms: int


class TopicPolicySettings(TypedDict, total=False):
    """Every setting of a topic, with the defaults of the catalogue."""

    partitions: int
    partition_strategy: Literal["explicit", "hash", "round-robin"]
    ordering: Literal["none", "partition", "strict"]
    retention: RetentionSettings
    compaction: CompactionSettings
    ttl_ms: int
    message_bytes_max: int
    max_messages: int | None
    max_bytes: int | None
    overflow: Literal["dead-letter", "drop-head", "reject"]
    limits_count: Literal["ready", "unsettled"]
    retry: RetrySettings
    dead_letter: DeadLetterSettings
    priority: Literal["lanes", "none", "strict"]
    priority_levels: int
    starvation_ms: int
    durability: Literal["disk", "memory", "os"]
    compression: Literal["none", "zstd"]
    visibility_ms: int
    in_flight_max: int
    consumer_prefetch_max: int | None
    idle_expires_ms: int
    deduplication_window_ms: int
