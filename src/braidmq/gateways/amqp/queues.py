"""AMQP queues as topics: what a declaration's arguments mean to the engine."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from braidmq.engine.policy import TopicKind
from braidmq.engine.routing.exchanges import wire_name
from braidmq.engine.topics import QUEUE_SUBSCRIPTION, Mode, Topic
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.policies import (
    DEAD_LETTER_STRATEGIES,
    LEADER_LOCATORS,
    OVERFLOWS,
    age_ms,
)
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX

SUBSCRIPTION = QUEUE_SUBSCRIPTION

Arguments = Mapping[str, Any]

QUEUE_TYPES: tuple[TopicKind, ...] = ("classic", "quorum", "stream")
TTL_MS_MAX = 10 * 365 * 24 * 3600 * 1000
"""Ten years, as in RabbitMQ; Celery's queues for delayed tasks have up to four."""


def server_name() -> str:
    return "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def mode_of(arguments: Arguments) -> Mode:
    return Mode.SINGLE_ACTIVE if arguments.get("x-single-active-consumer") else Mode.SHARED


def queue_type(arguments: Arguments) -> TopicKind:
    for known in QUEUE_TYPES:
        if arguments.get("x-queue-type") == known:
            return known
    return "classic"


def is_quorum(topic: Topic) -> bool:
    return topic.kind == "quorum"


ONLY: dict[str, tuple[TopicKind, ...]] = {
    "x-delivery-limit": ("quorum",),
    "x-dead-letter-strategy": ("quorum",),
    "x-quorum-initial-group-size": ("quorum",),
    "x-max-in-memory-length": ("quorum",),
    "x-max-in-memory-bytes": ("quorum",),
    "x-max-age": ("stream",),
    "x-stream-max-segment-size-bytes": ("stream",),
    "x-initial-cluster-size": ("stream",),
    "x-queue-leader-locator": ("quorum", "stream"),
    "x-max-priority": ("classic",),
    "x-queue-mode": ("classic",),
    "x-queue-version": ("classic",),
    "x-queue-master-locator": ("classic",),
    "x-message-ttl": ("classic", "quorum"),
    "x-expires": ("classic", "quorum"),
    "x-max-length": ("classic", "quorum"),
    "x-keep-acknowledged-ms": ("classic", "quorum"),
    "x-keep-acknowledged-bytes": ("classic", "quorum"),
    "x-overflow": ("classic", "quorum"),
    "x-dead-letter-exchange": ("classic", "quorum"),
    "x-dead-letter-routing-key": ("classic", "quorum"),
    "x-single-active-consumer": ("classic", "quorum"),
}
"""Arguments that not every type of queue has."""


def check_properties(
    arguments: Arguments,
    queue: str,
    vhost: str,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> None:
    """Replicated types of queue are durable and nobody's own."""
    if queue_type(arguments) not in ("quorum", "stream"):
        return
    wrong = {"non-durable": not durable, "exclusive-owner": exclusive, "auto-delete": auto_delete}
    for name, refused in wrong.items():
        if refused:
            raise precondition_failed(
                f"invalid property '{name}' for queue '{queue}' in vhost '{vhost}'"
            )


def settings_of(arguments: Arguments, queue: str, vhost: str) -> dict[str, Any]:
    """What a queue's arguments set of its topic. Raises PRECONDITION_FAILED for wrong ones."""
    check = _Checker(arguments, queue, vhost)
    own: dict[str, Any] = {}
    dead: dict[str, Any] = {}
    check.choice("x-queue-type", QUEUE_TYPES, "\"unsupported queue type '{}'\"")
    check.only_where_known()
    if (ttl := check.number("x-message-ttl", 0, TTL_MS_MAX)) is not None:
        own["ttl_ms"] = max(ttl, 1)  # 0 is no TTL here; a ready consumer still gets it in time
    if (expires := check.number("x-expires", 1, TTL_MS_MAX)) is not None:
        own["idle_expires_ms"] = expires
    if (length := check.number("x-max-length", 0)) is not None:
        own["max_messages"] = length
    if (size := check.number("x-max-length-bytes", 0)) is not None:
        own["max_bytes"] = size
    if (overflow := check.choice("x-overflow", tuple(OVERFLOWS), "invalid_overflow")) is not None:
        own["overflow"] = OVERFLOWS[overflow]
    if (levels := check.number("x-max-priority", 0, 255, "max_value_exceeded")) is not None:
        own |= {"priority": "strict", "priority_levels": levels + 1}
    exchange = arguments.get("x-dead-letter-exchange")
    if exchange is not None:
        if not isinstance(exchange, str):
            raise precondition_failed(
                f"invalid type '{wire_name(exchange)}' for arg 'x-dead-letter-exchange' in queue "
                f"'{queue}' in vhost '{vhost}'"
            )
        dead["exchange"] = check.short(exchange, "x-dead-letter-exchange")
    if (key := check.text("x-dead-letter-routing-key")) is not None:
        if exchange is None:
            raise check.wrong("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
        dead["routing_key"] = check.short(key, "x-dead-letter-routing-key")
    age = check.text("x-max-age")
    if age is not None:
        if (kept_ms := age_ms(age)) is None:
            raise check.wrong("x-max-age", "invalid_max_age")
        own["retention"] = {"time_ms": kept_ms}
    kept: dict[str, Any] = {}
    if (kept_ms := check.number("x-keep-acknowledged-ms", 0, TTL_MS_MAX)) is not None:
        kept["keep_acked_ms"] = kept_ms
    if (kept_bytes := check.number("x-keep-acknowledged-bytes", 0)) is not None:
        kept["keep_acked_bytes"] = kept_bytes
    if kept:
        own["retention"] = kept
    check.without_effect()
    check.choice("x-queue-mode", ("default", "lazy"), "\"unsupported queue mode '{}'\"")
    version = arguments.get("x-queue-version")
    if version not in (None, 1, 2):
        raise check.wrong("x-queue-version", f"\"unsupported queue version '{version}'\"")
    check.boolean("x-single-active-consumer")
    limit = arguments.get("x-delivery-limit")
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        own["retry"] = {"attempts": limit + 1}
    if dead:
        own["dead_letter"] = dead
    return own


def stream_start(topic: Topic, wanted: object, now_ms: int) -> int | str | None:
    """Where a consumer with ``x-stream-offset`` begins; None for what is no place.

    first, last, next    the oldest message, the newest, or what is published from now on
    a number             the message with that offset
    a time, or ``12h``   the first message since then
    """
    log = topic.partitions[0].log
    if isinstance(wanted, bool):
        return None
    if isinstance(wanted, int):
        return wanted if wanted >= 0 else None
    if isinstance(wanted, datetime):
        return f"@{int(wanted.timestamp() * 1000)}"
    if not isinstance(wanted, str):
        return None
    words = {"first": "earliest", "next": "latest"}
    if wanted == "last":
        return max(log.next_offset - 1, log.start_offset)
    age = age_ms(wanted)
    return f"@{max(now_ms - age, 0)}" if age is not None else words.get(wanted)


class _Checker:
    def __init__(self, arguments: Arguments, queue: str, vhost: str) -> None:
        self._arguments = arguments
        self._where = f"for queue '{queue}' in vhost '{vhost}'"

    def only_where_known(self) -> None:
        kind = queue_type(self._arguments)
        for name, kinds in ONLY.items():
            if name in self._arguments and kind not in kinds:
                raise precondition_failed(
                    f"invalid arg '{name}' {self._where} of queue type rabbit_{kind}_queue"
                )

    def without_effect(self) -> None:
        """What concerns replicas, memory or the size of files is taken, if it is right."""
        for name in ("x-quorum-initial-group-size", "x-initial-cluster-size"):
            self.number(name, 1)
        for name in (
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
            "x-stream-max-segment-size-bytes",
        ):
            self.number(name, 0)
        self.choice("x-queue-leader-locator", LEADER_LOCATORS, "invalid_queue_locator_arg")
        self.choice("x-dead-letter-strategy", DEAD_LETTER_STRATEGIES, "invalid_dlx_strategy")

    def number(
        self, name: str, least: int, most: int | None = None, too_large: str = "value_too_large"
    ) -> int | None:
        value = self._arguments.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f'"expected integer, got {wire_name(value)}"')
        if value < least:
            reason = "value_zero" if value == 0 else "value_negative"
            raise self.wrong(name, f"{{{reason},{value}}}")
        if most is not None and value > most:
            raise self.wrong(name, f"{{{too_large},{value}}}")
        return value

    def text(self, name: str) -> str | None:
        value = self._arguments.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, f"{{unacceptable_type,{wire_name(value)}}}")
        return value

    def short(self, value: str, name: str) -> str:
        """Names and keys are short strings on the wire."""
        if len(value.encode()) > SHORT_STRING_BYTES_MAX:
            raise self.wrong(name, f'"longer than {SHORT_STRING_BYTES_MAX} bytes"')
        return value

    def choice(self, name: str, known: tuple[str, ...], complaint: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise self.wrong(name, complaint.format(value))
        return value

    def boolean(self, name: str) -> None:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, f"{{unacceptable_type,{wire_name(value)}}}")

    def wrong(self, name: str, reason: str) -> Exception:
        return precondition_failed(f"invalid arg '{name}' {self._where}: {reason}")


EQUIVALENT = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-version",
    "x-queue-master-locator",
    "x-delivery-limit",
    "x-keep-acknowledged-ms",
    "x-keep-acknowledged-bytes",
)
"""Arguments that must be the same when a queue is declared again; others may differ."""


def require_equivalent(
    topic: Topic, *, durable: bool, auto_delete: bool, arguments: Arguments
) -> None:
    """A redeclaration must say what the queue is."""
    current: dict[str, Any] = topic.attributes.get("amqp", {})
    was: Arguments = current.get("arguments", {})
    pairs = [
        ("durable", current.get("durable", topic.durable), durable),
        ("auto_delete", current.get("auto_delete", False), auto_delete),
    ]
    for name, old, new in pairs:
        if old != new:
            raise _inequivalent(topic, name, _word(new), _word(old))
    for name in EQUIVALENT:
        old_value, new_value = was.get(name), arguments.get(name)
        if name == "x-queue-type" and (old_value or "classic") == (new_value or "classic"):
            continue
        if old_value != new_value:
            raise _inequivalent(topic, name, *describe_difference(new_value, old_value))


def describe_difference(received: object, current: object) -> tuple[str, str]:
    """Two values as RabbitMQ's texts have them: with their type where one of them is missing."""
    if received is None or current is None:
        return _typed(received), _typed(current)
    return _word(received), _word(current)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    return f"'{value}'"


def _typed(value: object) -> str:
    return "none" if value is None else f"the value {_word(value)} of type '{wire_name(value)}'"


def _inequivalent(topic: Topic, name: str, received: str, current: str) -> Exception:
    return precondition_failed(
        f"inequivalent arg '{name}' for queue '{topic.name}' in vhost '{topic.namespace}': "
        f"received {received} but current is {current}"
    )


def one_line(name: str) -> str:
    """RabbitMQ takes line breaks out of the names of what is declared."""
    return name.replace("\r", "").replace("\n", "")


def storable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as the catalogue keeps them: plain values only."""
    return {key: value for key, value in arguments.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | bytes | list | dict)
