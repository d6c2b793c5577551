"""AMQP queues as topics: what a declaration's arguments mean to the engine."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from braidmq.engine.policy import TopicKind
from braidmq.engine.routing.exchanges import wire_name
from braidmq.engine.topics import Mode, Topic
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.policies import OVERFLOWS
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX

SUBSCRIPTION = "queue"
"""The one subscription of a topic that is an AMQP queue."""

Arguments = Mapping[str, Any]

QUEUE_TYPES: tuple[TopicKind, ...] = ("classic", "quorum", "stream")
TTL_MS_MAX = (1 << 32) - 1


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


ONLY = {
    "x-delivery-limit": ("quorum",),
    "x-max-age": ("stream",),
    "x-max-priority": ("classic",),
    "x-queue-mode": ("classic",),
    "x-message-ttl": ("classic", "quorum"),
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
