"""Properties of a message, from one protocol's words to another's: the one place for it.

A message keeps its properties as they came (its envelope). They are translated only when it leaves
over another protocol than it came, and only then is any of this run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from braidmq.engine.envelope import (
    AMQP,
    NATIVE,
    Death,
    Deaths,
    decode_headers,
    register_format,
)
from braidmq.storage.record import Record
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties
from braidmq.wire.amqp.tables import Long

NAMED = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
"""Properties that both AMQP and native headers know; native names have dashes."""


# --- AMQP envelopes ---


def amqp_envelope(exchange: bytes, key: bytes, properties: Properties) -> bytes:
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return head + encode_properties(properties)


def split_amqp(envelope: bytes) -> tuple[bytes, bytes, bytes]:
    """Exchange, routing key and the raw properties of an AMQP envelope."""
    middle = 1 + envelope[0]
    end = middle + 1 + envelope[middle]
    return envelope[1:middle], envelope[middle + 1 : end], envelope[end:]


def amqp_parts(
    envelope: bytes,
    envelope_format: int = AMQP,
    record: Record | None = None,
    *,
    delivery_count: int | None = None,
    topic: str = "",
) -> tuple[bytes, bytes, bytes]:
    """What AMQP says of a message: exchange, routing key, raw properties."""
    if envelope_format == AMQP:
        exchange, key, raw = split_amqp(envelope)
        if delivery_count is None:
            return exchange, key, raw
        properties = decode_properties(raw)
    else:
        exchange, key = b"", topic.encode()
        properties = amqp_from_native(decode_headers(envelope), record)
    if delivery_count is not None:
        headers = {**(properties.headers or {}), "x-delivery-count": Long(delivery_count)}
        properties = msgspec.structs.replace(properties, headers=headers)
    return exchange, key, encode_properties(properties)


def amqp_from_native(headers: list[tuple[str, bytes]], record: Record | None) -> Properties:
    """Native headers as AMQP properties; what AMQP has no property for becomes a header."""
    named: dict[str, Any] = {}
    table: dict[str, Any] = {}
    for name, value in headers:
        field = name.replace("-", "_")
        if field in NAMED:
            named[field] = value.decode("utf-8", "replace")
        else:
            try:
                table[name] = value.decode()
            except UnicodeDecodeError:
                table[name] = value
    if record is not None and record.key is not None:
        table["x-key"] = record.key.decode("utf-8", "replace")
    return Properties(
        **named,
        headers=table or None,
        delivery_mode=2,
        priority=record.priority if record is not None and record.priority else None,
    )


def native_from_amqp(envelope: bytes) -> list[tuple[str, bytes]]:
    """AMQP properties as native headers."""
    properties = decode_properties(split_amqp(envelope)[2])
    found = [
        (name.replace("_", "-"), str(value).encode())
        for name in NAMED
        if (value := getattr(properties, name)) is not None
    ]
    for name, value in (properties.headers or {}).items():
        found.append((name, _native_value(value)))
    return found


def _native_value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)


def native_headers(record: Record) -> list[tuple[str, bytes]]:
    if record.envelope_format == AMQP:
        return native_from_amqp(record.envelope)
    return decode_headers(record.envelope) if record.envelope_format == NATIVE else []


# --- deaths as RabbitMQ writes them ---

REASONS = {"max-attempts": "delivery_limit", "max-age": "delivery_limit"}


def annotate_amqp(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    """``x-death``: the newest first, one entry for each queue and reason, with a count."""
    exchange, key, raw = split_amqp(record.envelope)
    properties = decode_properties(raw)
    headers: dict[str, Any] = dict(properties.headers or {})
    reason = REASONS.get(death.reason, death.reason)
    entries = [dict(each) for each in headers.get("x-death", []) if isinstance(each, Mapping)]
    same = [e for e in entries if e.get("queue") == death.topic and e.get("reason") == reason]
    rest = [e for e in entries if e not in same]
    copies = headers.get("CC")
    keys = [key.decode(), *(copies if isinstance(copies, list) else [])]
    entry: dict[str, Any] = {
        "count": Long((same[0].get("count", 0) if same else 0) + 1),
        "reason": reason,
        "queue": death.topic,
        "time": datetime.fromtimestamp(death.at_ms // 1000, UTC),
        "exchange": exchange.decode(),
        "routing-keys": keys,
    }
    if same:
        entry = {**same[0], "count": entry["count"]}
    if properties.expiration is not None:
        # It would expire again at once: the property goes, and is kept here.
        entry["original-expiration"] = properties.expiration
    for old in rest:
        old["count"] = Long(old.get("count", 1))
    headers["x-death"] = [entry, *rest]
    if not entries:
        headers["x-first-death-exchange"] = exchange.decode()
        headers["x-first-death-queue"] = death.topic
        headers["x-first-death-reason"] = reason
    if death.new_key:
        headers.pop("CC", None)  # they were for the old key
    if death.to_exchange is not None:
        exchange, key = death.to_exchange.encode(), death.to_key
    properties = msgspec.structs.replace(properties, headers=headers, expiration=None)
    deaths = [(e["queue"], e["reason"]) for e in headers["x-death"]]
    return AMQP, amqp_envelope(exchange, key, properties), deaths


def amqp_headers(record: Record) -> dict[str, Any]:
    return dict(decode_properties(split_amqp(record.envelope)[2]).headers or {})


def amqp_routing_keys(record: Record) -> list[bytes]:
    copies = amqp_headers(record).get("CC")
    more = [str(each).encode() for each in copies] if isinstance(copies, list) else []
    return [split_amqp(record.envelope)[1], *more]


register_format(AMQP, annotate_amqp, amqp_routing_keys, amqp_headers)
