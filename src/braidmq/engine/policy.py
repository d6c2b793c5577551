"""What a topic promises: its policy, and the templates that give policies to topics by name."""

import logging
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from braidmq.model.errors import BadRequest
from braidmq.model.limits import MESSAGE_BYTES_MAX, MIB
from braidmq.model.patterns import BadPattern, compiled

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Added to any date it is still 64 bits wide, and a float holds it exactly."""


SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class IllegalPolicy(BadRequest):
    code = "illegal-policy"


WEBHOOK_CHARS_MAX = 2048
"""What servers and proxies take as a URL everywhere."""

Webhook = Annotated[
    str,
    msgspec.Meta(
        max_length=WEBHOOK_CHARS_MAX, description="An http or https URL that alerts are posted to"
    ),
]


def check_webhook(url: str) -> None:
    """Raises ValueError for what nothing can be posted to."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a webhook must be a URL with spaces and non-ASCII characters escaped")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("a webhook must be an http:// or https:// URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a webhook can't have a user and password: everyone who sees the topic would see them"
        )


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a failed delivery is tried again: ``base × factor^(failures - 1)``, up to ``max``."""

    base_ms: Milliseconds = 1 * SECOND_MS
    factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 2.0
    max_ms: Milliseconds = 60 * SECOND_MS
    attempts: Count = 3
    """Deliveries before the message is given up; 0: never."""
    total_ms: Milliseconds = 0
    """Age at which a failing message is given up whatever its attempts; 0: never."""

    def delay_ms(self, failures: int) -> int:
        if not self.base_ms:
            return 0
        # The exponent is bounded: the product is cut at max_ms long before.
        return int(min(self.base_ms * self.factor ** min(failures - 1, 64), self.max_ms))


class DeadLetter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where given-up messages go: to a topic, or through an exchange; without either, nowhere."""

    topic: str | None = "{topic}.dlq"
    """``{topic}`` in it stands for the name of the topic the message comes from."""
    exchange: str | None = None
    routing_key: str | None = None
    """With an exchange: replaces the message's own."""
    expired: bool = False
    """Whether expired messages go there too, or are discarded."""
    alert_webhook: Webhook | None = None
    """Who is told that messages went there."""

    def __post_init__(self) -> None:
        if self.alert_webhook is not None:
            check_webhook(self.alert_webhook)

    @property
    def has_place(self) -> bool:
        """Whether there is anywhere for them to go."""
        return bool(self.topic) or self.exchange is not None


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long records stay; 0 means without limit."""

    until_acked: bool = False
    """A queue: a record goes once every subscription has settled it."""
    time_ms: Milliseconds = 0
    bytes: Count = 0
    messages: Count = 0
    keep_acked_ms: Milliseconds = 0
    """Of a queue: acknowledged messages stay this long, for a replay …"""
    keep_acked_bytes: Count = 0
    """… and so many bytes of them; with both, until either is over. 0 and 0: they go at once."""

    @property
    def keeps_acked(self) -> bool:
        return bool(self.keep_acked_ms or self.keep_acked_bytes)


class Compaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keep the latest record of each key."""

    enabled: bool = False
    header: str = ""
    """The header that holds the key; empty: the record's key."""
    lag_ms: Milliseconds = 5 * MINUTE_MS
    interval_ms: Milliseconds = 10 * MINUTE_MS
    """How often it is done, if the node's ``retention.compaction_interval_min_s`` allows it."""


Ordering = Literal["none", "partition", "strict"]
PartitionStrategy = Literal["hash", "round-robin", "explicit"]
Overflow = Literal["drop-head", "reject", "dead-letter"]
PriorityMode = Literal["none", "lanes", "strict"]
Durability = Literal["disk", "os", "memory"]
Compression = Literal["none", "zstd"]


class TopicPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting of a topic, with the defaults of the catalogue."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3
    partition_strategy: PartitionStrategy = "hash"
    """Where a record goes whose publisher names no partition: by its key, and round robin without
    one; round robin whatever its key; or nowhere, it is refused."""
    ordering: Ordering = "partition"
    retention: Retention = Retention()
    compaction: Compaction = Compaction()
    ttl_ms: Milliseconds = 0
    message_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = MESSAGE_BYTES_MAX
    max_messages: Count | None = None
    """Unsettled messages at most; None: no limit. 0 is a limit, as in AMQP."""
    max_bytes: Count | None = None
    overflow: Overflow = "reject"
    limits_count: Literal["unsettled", "ready"] = "unsettled"
    """Whether messages at consumers count towards the limits."""
    retry: Retry = Retry()
    dead_letter: DeadLetter = DeadLetter()
    priority: PriorityMode = "none"
    priority_levels: Annotated[int, msgspec.Meta(ge=1, le=256)] = 5
    starvation_ms: Milliseconds = 30 * SECOND_MS
    """A lane that has waited this long is served next."""
    durability: Durability = "disk"
    compression: Compression = "none"
    """Of records as a checkpoint writes them; who reads them need not know."""
    visibility_ms: Milliseconds = 30 * SECOND_MS
    in_flight_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    """Unanswered messages of a subscription that is received from without being a member."""
    consumer_prefetch_max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Unanswered messages one consumer may have, whatever it asks for; None: as it asks."""
    idle_expires_ms: Milliseconds = 0
    """An unused topic is deleted after this; 0: never."""
    deduplication_window_ms: Annotated[int, msgspec.Meta(ge=0, le=7 * DAY_MS)] = 0
    """A message with the id of one that came this long before is not written again; 0: off."""

    def __post_init__(self) -> None:
        if self.ordering == "strict" and self.partitions != 1:
            raise ValueError("strict ordering needs one partition")
        if self.compaction.enabled and self.retention.until_acked:
            raise ValueError("a queue that forgets acknowledged messages can't be compacted")
        if self.compaction.enabled and self.durability == "memory":
            raise ValueError("records in memory can't be compacted: limit them by retention")
        if self.compression != "none" and self.durability == "memory":
            raise ValueError("records in memory are never written, and so not compressed")


QUEUE_SETTINGS: dict[str, Any] = {
    "partitions": 1,
    "ordering": "none",
    "retention": {"until_acked": True},
    "retry": {"base_ms": 0, "attempts": 0},
    "visibility_ms": 0,
    "overflow": "drop-head",
    "dead_letter": {"topic": None, "expired": True},
    "message_bytes_max": 128 * MIB,
}
"""An AMQP queue: one partition, competing consumers, requeued at once, gone when acknowledged."""

DURABLE_QUEUE_SETTINGS: dict[str, Any] = {
    "partitions": 10,
    "retention": {"until_acked": True},
    "ttl_ms": 7 * DAY_MS,
    "max_messages": 100_000,
    "retry": {
        "base_ms": 5 * SECOND_MS,
        "max_ms": 5 * MINUTE_MS,
        "attempts": 10,
        "total_ms": 3 * HOUR_MS,
    },
}
"""A durable queue of MQTT (catalogue rows B4, D5, L4)."""

TopicKind = Literal["topic", "queue", "classic", "quorum", "stream"]
"""``queue``: of MQTT; the last three are AMQP's queues."""
TemplateKind = Literal["topic", "classic", "quorum", "stream", "exchange"]

_AMQP_QUEUE = QUEUE_SETTINGS | {"limits_count": "ready"}
DEFAULTS: dict[TopicKind, dict[str, Any]] = {
    "topic": {},
    "queue": DURABLE_QUEUE_SETTINGS,
    "classic": _AMQP_QUEUE,
    "quorum": _AMQP_QUEUE,
    "stream": _AMQP_QUEUE | {"retention": {"until_acked": False}},
}
"""What a topic of each kind is unless a template or its own settings say otherwise."""


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for what has a name that matches a pattern; the highest priority wins, alone.

    An AMQP policy is one of these, for kinds that AMQP knows.
    """

    name: str
    pattern: str
    settings: dict[str, Any]
    priority: int = 0
    kinds: tuple[TemplateKind, ...] = ("topic",)
    alternate_exchange: str | None = None
    """For exchanges: where goes what they have no destination for."""
    attributes: dict[str, Any] = {}
    """What a protocol wants to remember of it; kept with it, not looked at."""
    set_by: str = ""
    """Whose rights count for what it names; empty: nobody's are asked for."""

    def matches(self, name: str, kind: TopicKind | TemplateKind) -> bool:
        # To templates a durable queue is a topic that has other defaults.
        seen = "topic" if kind == "queue" else kind
        return seen in self.kinds and occurs(self.pattern, name)


def occurs(pattern: str, name: str) -> bool:
    try:
        return compiled(pattern).search(name)
    except BadPattern as error:
        # An earlier BraidMQ took it.
        logger.error(
            "a template is ignored: its pattern is not valid any more", extra={"reason": str(error)}
        )
        return False


def check_template(template: Template) -> Template:
    """Checked when it is given, so that a bad pattern or setting is refused then."""
    name, pattern = template.name, template.pattern
    try:
        compiled(pattern)
    except BadPattern as error:
        raise IllegalPolicy(f"template {name}: {error.args[0]}", remedy=error.remedy) from None
    make_policy(template.settings)
    return template


def choose_template(
    templates: Iterable[Template], name: str, kind: TopicKind | TemplateKind
) -> Template | None:
    matching = [each for each in templates if each.matches(name, kind)]
    # By name among equals: the choice must not depend on the order they were set in.
    return max(matching, key=lambda each: (each.priority, each.name), default=None)


LIMITS = (
    "ttl_ms",
    "idle_expires_ms",
    "max_messages",
    "max_bytes",
    "attempts",
    "time_ms",
)


def layered(kind: TopicKind, template: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The settings of a topic. Its own win over its template's; of an AMQP queue's limits the
    smaller holds, as in RabbitMQ."""
    merged = merge(DEFAULTS[kind], template, own)
    if kind not in ("topic", "queue"):
        _lower_limits(merged, template, own)
    if kind == "stream" and "max_bytes" in merged:
        # It is what a stream keeps, read or not; 0 would be without limit there.
        kept = {"bytes": max(merged.pop("max_bytes"), 1)}
        merged["retention"] = merge(merged["retention"], kept)
    return merged


def _lower_limits(merged: dict[str, Any], template: dict[str, Any], own: dict[str, Any]) -> None:
    for key in template.keys() & own.keys():
        if isinstance(template[key], dict):
            _lower_limits(merged[key], template[key], own[key])
        elif key in LIMITS:
            merged[key] = min(template[key], own[key])


def merge(*layers: dict[str, Any]) -> dict[str, Any]:
    """Later layers win, setting by setting, also inside retry, retention and the like."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, dict) and isinstance(result.get(key), dict):
                value = merge(result[key], value)
            result[key] = value
    return result


NUMBER_MAX = (1 << 63) - 1
"""Of any setting: the records of topics have no room for more."""


def _check_numbers(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_numbers(value)
        elif isinstance(value, int) and abs(value) > NUMBER_MAX:
            raise IllegalPolicy(f"illegal topic settings: {name} can be at most {NUMBER_MAX}")


def make_whole_policy(settings: dict[str, Any]) -> TopicPolicy:
    """Of a topic, with all that its kind, a template and itself say."""
    policy = make_policy(settings)
    rule = policy.retention
    if rule.keeps_acked and not rule.until_acked:
        raise IllegalPolicy(
            "retention.keep_acked_ms and keep_acked_bytes are for queues",
            remedy="Leave them out: what is acknowledged stays as long as the rest. Or set"
            " retention.until_acked",
        )
    return policy


def make_policy(*layers: dict[str, Any]) -> TopicPolicy:
    settings = merge(*layers)
    _check_numbers(settings)
    try:
        return msgspec.convert(settings, TopicPolicy)
    except msgspec.ValidationError as error:
        raise IllegalPolicy(f"illegal topic settings: {error}") from None


LANES = ("critical", "high", "normal", "low", "background")
LANE_WEIGHTS = (50, 25, 15, 7, 3)
PRIORITY_OF_LANE = {"background": 1, "low": 2, "normal": 3, "high": 4, "critical": 5}
"""The record's priority byte: 0 is unset, and higher is more important in every protocol."""


def lane_table(policy: TopicPolicy) -> bytes | None:
    """Lane by priority byte, lane 0 the most important; None where a topic has no priorities."""
    if policy.priority == "none":
        return None
    if policy.priority == "lanes":
        normal = LANES.index("normal")
        return bytes(normal if p == 0 else max(0, 5 - min(p, 5)) for p in range(256))
    highest = policy.priority_levels - 1
    return bytes(highest - min(p, highest) for p in range(256))
