"""A durable queue's settings as ``$admin/queue/…`` has them: JSON with durations as text."""

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from braidmq.engine.policy import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    PartitionStrategy,
    TopicPolicy,
)
from braidmq.engine.topics import Topic
from braidmq.gateways.mqtt.queues.names import DEAD, DEAD_SUFFIX, QUEUE, is_queue, parse
from braidmq.model.errors import BadRequest

UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
DURATION = re.compile(r"([0-9]{1,16})(ms|s|m|h|d)")
Duration = str
"""``90s``, ``1h30m``: numbers with their units."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class RetryConfig(_Section, frozen=True):
    max_retries: int | UnsetType = UNSET
    """Deliveries before a message is given up; 0: never."""
    initial_backoff: Duration | UnsetType = UNSET
    max_backoff: Duration | UnsetType = UNSET
    backoff_multiplier: float | UnsetType = UNSET
    total_timeout: Duration | UnsetType = UNSET


class DeadConfig(_Section, frozen=True):
    enabled: bool | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    """Another queue; without it ``$queue/dlq/{name}``."""
    alert_webhook: str | UnsetType | None = UNSET
    """Who is told of dead letters; null: nobody."""


class LimitsConfig(_Section, frozen=True):
    max_message_size: int | UnsetType = UNSET
    max_queue_depth: int | UnsetType = UNSET
    message_ttl: Duration | UnsetType = UNSET
    keep_acknowledged: Duration | UnsetType = UNSET
    """Acknowledged messages stay so long, for a replay …"""
    keep_acknowledged_bytes: int | UnsetType = UNSET
    """… and so many bytes of them."""


class PerformanceConfig(_Section, frozen=True):
    delivery_timeout: Duration | UnsetType = UNSET
    batch_size: int | UnsetType = UNSET
    """Messages that one consumer may have unanswered."""


class ClusterConfig(_Section, frozen=True):
    consumer_routing_mode: Literal["proxy", "direct"] | UnsetType = UNSET
    partition_strategy: Literal["hash", "dynamic"] | UnsetType = UNSET


class QueueConfig(_Section, frozen=True):
    name: str | UnsetType = UNSET
    partitions: int | UnsetType = UNSET
    partition_strategy: PartitionStrategy | UnsetType = UNSET
    ordering: Literal["none", "partition", "strict"] | UnsetType = UNSET
    retry_policy: RetryConfig | UnsetType = UNSET
    dlq_config: DeadConfig | UnsetType = UNSET
    limits: LimitsConfig | UnsetType = UNSET
    performance: PerformanceConfig | UnsetType = UNSET
    cluster: ClusterConfig | UnsetType = UNSET


_decode = msgspec.json.Decoder(QueueConfig).decode


def read(payload: bytes) -> QueueConfig:
    """Raises BadRequest for what is not JSON, or says what we do not know."""
    try:
        return _decode(payload or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the configuration of the queue is invalid: {error}") from None


FIELDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("retry_policy", "max_retries", ("retry", "attempts")),
    ("retry_policy", "initial_backoff", ("retry", "base_ms")),
    ("retry_policy", "max_backoff", ("retry", "max_ms")),
    ("retry_policy", "backoff_multiplier", ("retry", "factor")),
    ("retry_policy", "total_timeout", ("retry", "total_ms")),
    ("limits", "max_message_size", ("message_bytes_max",)),
    ("limits", "max_queue_depth", ("max_messages",)),
    ("limits", "message_ttl", ("ttl_ms",)),
    ("limits", "keep_acknowledged", ("retention", "keep_acked_ms")),
    ("limits", "keep_acknowledged_bytes", ("retention", "keep_acked_bytes")),
    ("performance", "delivery_timeout", ("visibility_ms",)),
)
"""Section and field, and where the policy of a topic has it."""


def settings_of(config: QueueConfig) -> dict[str, Any]:
    """What a configuration sets of the topic's policy."""
    found: dict[str, Any] = {}
    for name in ("partitions", "partition_strategy", "ordering"):
        if (value := getattr(config, name)) is not UNSET:
            found[name] = value
    for section, field, place in FIELDS:
        part = getattr(config, section)
        value = UNSET if part is UNSET else getattr(part, field)
        if value is UNSET:
            continue
        if place[-1].endswith("_ms"):
            value = milliseconds(value)
        inner = found.setdefault(place[0], {}) if len(place) > 1 else found
        inner[place[-1]] = value
    if config.dlq_config is not UNSET and (dead := _dead_letter(config.dlq_config)):
        found["dead_letter"] = dead
    return found


def _dead_letter(config: DeadConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if config.enabled is not UNSET or config.topic is not UNSET:
        found["topic"] = _dead_topic(config)
    if config.alert_webhook is not UNSET:
        found["alert_webhook"] = config.alert_webhook
    return found


def _dead_topic(config: DeadConfig) -> str | None:
    if config.enabled is False:
        return None
    if config.topic is UNSET:
        return "{topic}" + DEAD_SUFFIX
    if not is_queue(config.topic):
        return config.topic
    address = parse(config.topic)
    return address.name + DEAD_SUFFIX if address.dead else address.name


def without_effect(config: QueueConfig) -> list[str]:
    """What is understood and changes nothing yet: whoever sends it is told so."""
    return ["cluster"] * (config.cluster is not UNSET)


def batch_size_of(config: QueueConfig) -> int | None:
    size = UNSET if config.performance is UNSET else config.performance.batch_size
    if size is UNSET:
        return None
    if not 1 <= size <= 8192:
        raise BadRequest(f"batch_size is {size}, not from 1 to 8192")
    return size


def shown(topic: Topic, batch_size: int) -> dict[str, Any]:
    """A queue's settings in the same words."""
    policy, dead = topic.policy, topic.policy.dead_letter.topic
    found: dict[str, Any] = {
        "name": QUEUE + topic.name,
        "partitions": topic.width,
        "partition_strategy": policy.partition_strategy,
        "ordering": policy.ordering,
    }
    for section, field, place in FIELDS:
        value = _at(policy, place)
        found.setdefault(section, {})[field] = (
            text_of(value) if place[-1].endswith("_ms") else value
        )
    found["performance"]["batch_size"] = batch_size
    found["dlq_config"] = {"enabled": dead is not None}
    if dead is not None:
        name = dead.replace("{topic}", topic.name)
        own = name == topic.name + DEAD_SUFFIX
        found["dlq_config"]["topic"] = QUEUE + (DEAD + topic.name if own else name)
    if (webhook := policy.dead_letter.alert_webhook) is not None:
        found["dlq_config"]["alert_webhook"] = webhook
    return found


def _at(policy: TopicPolicy, place: tuple[str, ...]) -> Any:
    value: Any = policy
    for name in place:
        value = getattr(value, name)
    return value


def milliseconds(text: Duration) -> int:
    if not text or DURATION.sub("", text):
        raise BadRequest(
            f"{text!r} is not a duration", remedy="Use 500ms, 30s, 5m, 3h, 7d or 1h30m"
        )
    return sum(int(number) * UNITS_MS[unit] for number, unit in DURATION.findall(text))


def text_of(value_ms: int) -> Duration:
    """In the largest unit that leaves no rest; days are hours, as the defaults are written."""
    for unit in ("h", "m", "s"):
        if value_ms and value_ms % UNITS_MS[unit] == 0:
            return f"{value_ms // UNITS_MS[unit]}{unit}"
    return f"{value_ms}ms" if value_ms else "0s"
