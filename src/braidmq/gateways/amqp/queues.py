"""AMQP queues as topics: what a declaration's arguments mean to the engine."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from braidmq.engine.policy import QUEUE_SETTINGS, merge
from braidmq.engine.topics import Mode, Topic
from braidmq.gateways.amqp.errors import precondition_failed

SUBSCRIPTION = "queue"
"""The one subscription of a topic that is an AMQP queue."""

Arguments = Mapping[str, Any]

QUEUE_TYPES = ("classic", "quorum", "stream")
OVERFLOWS = {
    "drop-head": "drop-head",
    "reject-publish": "reject",
    "reject-publish-dlx": "dead-letter",
}
TTL_MS_MAX = (1 << 32) - 1


def server_name() -> str:
    return "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def mode_of(arguments: Arguments) -> Mode:
    return Mode.SINGLE_ACTIVE if arguments.get("x-single-active-consumer") else Mode.SHARED


def settings_of(arguments: Arguments, queue: str, vhost: str) -> dict[str, Any]:
    """Topic settings for a queue's arguments. Raises PRECONDITION_FAILED for wrong ones."""
    check = _Checker(arguments, queue, vhost)
    own: dict[str, Any] = {}
    dead: dict[str, Any] = {}
    if (ttl := check.number("x-message-ttl", 0, TTL_MS_MAX)) is not None:
        own["ttl_ms"] = max(ttl, 1)  # 0 is no TTL here; a ready consumer still gets it in time
    if (expires := check.number("x-expires", 1, TTL_MS_MAX)) is not None:
        own["idle_expires_ms"] = expires
    if (length := check.number("x-max-length", 0)) is not None:
        own["max_messages"] = length
    if (size := check.number("x-max-length-bytes", 0)) is not None:
        own["max_bytes"] = size
    if (overflow := check.choice("x-overflow", tuple(OVERFLOWS))) is not None:
        own["overflow"] = OVERFLOWS[overflow]
    if (levels := check.number("x-max-priority", 0, 255)) is not None:
        own |= {"priority": "strict", "priority_levels": levels + 1}
    if (exchange := check.text("x-dead-letter-exchange")) is not None:
        dead["exchange"] = exchange
    if (key := check.text("x-dead-letter-routing-key")) is not None:
        if exchange is None:
            raise precondition_failed(
                f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}' in vhost '{vhost}': "
                f"routing_key_but_no_dlx_defined"
            )
        dead["routing_key"] = key
    check.choice("x-queue-type", QUEUE_TYPES)
    check.choice("x-queue-mode", ("default", "lazy"))
    check.boolean("x-single-active-consumer")
    if (limit := check.number("x-delivery-limit", 0)) is not None:
        own["retry"] = {"base_ms": 0, "attempts": limit + 1}
    if dead:
        own["dead_letter"] = dead
    if arguments.get("x-queue-type") == "stream":
        own["retention"] = {"until_acked": False}
    return merge(QUEUE_SETTINGS, own)


class _Checker:
    def __init__(self, arguments: Arguments, queue: str, vhost: str) -> None:
        self._arguments = arguments
        self._where = f"for queue '{queue}' in vhost '{vhost}'"

    def number(self, name: str, least: int, most: int | None = None) -> int | None:
        value = self._arguments.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, f"{{unacceptable_type,{_type_name(value)}}}")
        if value < least:
            reason = "value_zero" if least == 1 and value == 0 else "value_negative"
            raise self._wrong(name, f"{{{reason},{value}}}" if value else reason)
        if most is not None and value > most:
            raise self._wrong(name, f"{{value_too_big,{value}}}")
        return value

    def text(self, name: str) -> str | None:
        value = self._arguments.get(name)
        if value is None:
            return None
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise self._wrong(name, f"{{unacceptable_type,{_type_name(value)}}}")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise self._wrong(name, f'unsupported value "{value}"')
        return value

    def boolean(self, name: str) -> None:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, f"{{unacceptable_type,{_type_name(value)}}}")

    def _wrong(self, name: str, reason: str) -> Exception:
        return precondition_failed(f"invalid arg '{name}' {self._where}: {reason}")


def _type_name(value: object) -> str:
    names = {
        str: "longstr",
        bytes: "binary",
        bool: "bool",
        float: "double",
        list: "array",
        dict: "table",
        int: "long",
    }
    return names.get(type(value), "void")


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
    "x-queue-type",
    "x-single-active-consumer",
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
        if name == "x-queue-type":
            old_value, new_value = old_value or "classic", new_value or "classic"
        if old_value != new_value:
            raise _inequivalent(topic, name, _argument(new_value), _argument(old_value))


def _word(value: bool) -> str:
    return f"'{'true' if value else 'false'}'"


def _argument(value: object) -> str:
    if value is None:
        return "none"
    text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    kinds = {bool: "bool", int: "signedint", str: "longstr"}
    return f"the value '{text}' of type '{kinds.get(type(value), 'longstr')}'"


def _inequivalent(topic: Topic, name: str, received: str, current: str) -> Exception:
    return precondition_failed(
        f"inequivalent arg '{name}' for queue '{topic.name}' in vhost '{topic.namespace}': "
        f"received {received} but current is {current}"
    )
