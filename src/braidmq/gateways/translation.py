"""Properties of a message, from one protocol's words to another's: the one place for it.

A message keeps its properties as they came (its envelope). They are translated only when it leaves
over another protocol than it came, and only then is any of this run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from braidmq.engine.envelope import (
    AMQP,
    DEATH,
    MESSAGE_ID,
    MQTT,
    NATIVE,
    Death,
    Deaths,
    decode_headers,
    encode_headers,
    register_format,
)
from braidmq.model.errors import BraidError
from braidmq.storage.record import Record
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties
from braidmq.wire.amqp.tables import Long
from braidmq.wire.mqtt.constants import STRING_BYTES_MAX, Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import decode_properties as decode_mqtt_properties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt_properties
from braidmq.wire.mqtt.text import write_string

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
        properties = readable_properties(raw)
    elif envelope_format == MQTT:
        exchange, key = TOPIC_EXCHANGE.encode(), key_of_topic(split_mqtt(envelope)[1])
        key = key[:SHORT_STRING_BYTES_MAX]
        properties = amqp_from_mqtt(envelope, record)
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
        text = value.decode("utf-8", "replace")
        if field in NAMED and len(text.encode()) <= SHORT_STRING_BYTES_MAX:
            named[field] = text
        else:
            # AMQP's names hold 255 bytes; a longer one is cut rather than the message lost.
            short = name.encode()[:SHORT_STRING_BYTES_MAX].decode(errors="ignore")
            table[short] = text if text.encode() == value else value
    if record is not None:
        named |= _said_of(record)
        if record.key is not None:
            table["x-key"] = record.key.decode("utf-8", "replace")
    return Properties(**named, headers=table or None, delivery_mode=2)


def _said_of(record: Record) -> dict[str, Any]:
    """What the fields of a record are as properties."""
    said: dict[str, Any] = {"timestamp": record.timestamp_ms // 1000}
    if record.priority:
        said["priority"] = record.priority
    if record.expires_at_ms:
        visible_ms = max(record.due_at_ms, record.timestamp_ms)
        said["expiration"] = str(max(record.expires_at_ms - visible_ms, 0))
    return said


def native_from_amqp(envelope: bytes) -> list[tuple[str, bytes]]:
    """AMQP properties as native headers."""
    properties = readable_properties(split_amqp(envelope)[2])
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
        found = native_from_amqp(record.envelope)
        # AMQP has no other place for the key; here it has its own.
        return [each for each in found if each[0] != "x-key"] if record.key is not None else found
    if record.envelope_format == MQTT:
        return native_from_mqtt(record.envelope)
    return decode_headers(record.envelope) if record.envelope_format == NATIVE else []


# --- MQTT envelopes; the format is described in wire/mqtt/publish.pyx ---

TOPIC_EXCHANGE = "amq.topic"
"""The exchange that is one space with the tree of MQTT topics."""

_SWAPPED = bytes.maketrans(b"/.", b"./")
_PATTERN = bytes.maketrans(b"/.+", b"./*")


def key_of_topic(topic: bytes) -> bytes:
    """``a/b`` is ``a.b``, and a dot becomes a slash: so that no two topics have one key."""
    return topic.translate(_SWAPPED)


def pattern_of_filter(pattern: bytes) -> bytes:
    """An MQTT filter as a binding key: ``+`` is ``*``, and ``#`` means the same in both."""
    return pattern.translate(_PATTERN)


def topic_of_key(key: bytes) -> bytes | None:
    """None for a key that can't be a topic's name."""
    if not key or len(key) > STRING_BYTES_MAX or any(c in key for c in b"+#\0"):
        return None
    return key.translate(_SWAPPED) if _is_text(key) else None


def split_mqtt(envelope: bytes) -> tuple[int, bytes, bytes]:
    """Flags, topic and the raw properties of an MQTT envelope."""
    end = 3 + int.from_bytes(envelope[1:3], "big")
    return envelope[0], envelope[3:end], envelope[end:]


def native_from_mqtt(envelope: bytes) -> list[tuple[str, bytes]]:
    """MQTT properties as native headers."""
    properties = decode_mqtt_properties(split_mqtt(envelope)[2], Kind.PUBLISH)
    found: list[tuple[str, bytes]] = []
    if properties.content_type is not None:
        found.append(("content-type", properties.content_type.encode()))
    if properties.correlation_data is not None:
        found.append(("correlation-id", properties.correlation_data))
    if properties.response_topic is not None:
        found.append(("reply-to", key_of_topic(properties.response_topic.encode())))
    return found + [(name, value.encode()) for name, value in properties.user_properties]


def amqp_from_mqtt(envelope: bytes, record: Record | None) -> Properties:
    """What a publisher calls ``user-id`` stays a header: as a property AMQP vouches for it. So
    does correlation data that is no text."""
    named: list[tuple[str, bytes]] = []
    unnamed: dict[str, Any] = {}
    for name, value in native_from_mqtt(envelope):
        if name == "user-id":
            unnamed[name] = value.decode()
        elif name == "correlation-id" and not _is_text(value):
            unnamed[name] = value
        else:
            named.append((name, value))
    properties = amqp_from_native(named, record)
    expiration = None
    if record is not None and record.expires_at_ms:
        expiration = str(max(record.expires_at_ms - record.timestamp_ms, 0))
    return msgspec.structs.replace(
        properties,
        headers={**(properties.headers or {}), **unnamed} or None,
        delivery_mode=2 if envelope[0] & 3 else 1,
        expiration=expiration,
    )


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


MQTT_QOS_OF_OTHERS = 1
"""Messages of other protocols go out at least once."""

_MQTT_HAS = ("content-type", "correlation-id", "reply-to")


def mqtt_record(record: Record, topic: str) -> tuple[bytes, Record]:
    """A message of another protocol as MQTT has it, with its topic: from the routing key, or else
    the given one."""
    key = split_amqp(record.envelope)[1] if record.envelope_format == AMQP else b""
    name = topic_of_key(key) or topic.encode()
    headers = native_headers(record)
    own = {field: value for field, value in headers if field in _MQTT_HAS}
    expiry_s = None
    if record.expires_at_ms:
        expiry_s = min(max(record.expires_at_ms - record.timestamp_ms + 999, 0) // 1000, 0xFFFFFFFF)
    reply_to = topic_of_key(own.get("reply-to", b""))
    content_type = own.get("content-type")
    correlation = own.get("correlation-id")
    if correlation is not None and len(correlation) > STRING_BYTES_MAX:
        correlation = None
    properties = MqttProperties(
        content_type=None if content_type is None else _mqtt_text(content_type),
        correlation_data=correlation,
        response_topic=None if reply_to is None else reply_to.decode(),
        message_expiry_interval=expiry_s,
        user_properties=tuple(
            (_mqtt_text(field.encode()), _mqtt_text(value))
            for field, value in headers
            if field not in _MQTT_HAS
        ),
    )
    head = bytes((MQTT_QOS_OF_OTHERS,)) + write_string(name.decode())
    envelope = head + encode_mqtt_properties(properties, Kind.PUBLISH)
    return name, record._replace(envelope=envelope, envelope_format=MQTT)


def _mqtt_text(value: bytes) -> str:
    """What MQTT takes for a string: cut rather than the message lost."""
    text = value.decode("utf-8", "replace").replace("\0", "")
    return text.encode()[:STRING_BYTES_MAX].decode(errors="ignore")


def annotate_mqtt(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    """Dead letters are AMQP's idea, and are written as AMQP does."""
    exchange, key, raw = amqp_parts(record.envelope, MQTT, record)
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return annotate_amqp(record._replace(envelope=head + raw, envelope_format=AMQP), death)


def mqtt_routing_keys(record: Record) -> list[bytes]:
    return [key_of_topic(split_mqtt(record.envelope)[1])[:SHORT_STRING_BYTES_MAX]]


def mqtt_headers(record: Record) -> dict[str, Any]:
    return dict(amqp_from_mqtt(record.envelope, record).headers or {})


# --- deaths as RabbitMQ writes them ---

REASONS = {"max-attempts": "delivery_limit", "max-age": "delivery_limit"}


def annotate_amqp(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    """``x-death``: the newest first, one entry for each queue and reason, with a count.

    Properties that can't be read or written back are a client's doing and no reason to lose the
    message: it goes on as it came.
    """
    reason = REASONS.get(death.reason, death.reason)
    try:
        return _annotated(record, death, reason)
    except (BraidError, ValueError):
        return AMQP, record.envelope, [(death.topic, reason)]


def _annotated(record: Record, death: Death, reason: str) -> tuple[int, bytes, Deaths]:
    exchange, key, raw = split_amqp(record.envelope)
    properties = decode_properties(raw)
    headers: dict[str, Any] = dict(properties.headers or {})
    entries = _deaths_in(headers.get("x-death"))
    same = [e for e in entries if (e["queue"], e["reason"]) == (death.topic, reason)]
    rest = [e for e in entries if e not in same]
    copies = headers.get("CC")
    entry: dict[str, Any] = {
        "reason": reason,
        "queue": death.topic,
        "time": datetime.fromtimestamp(death.at_ms // 1000, UTC),
        "exchange": exchange.decode(),
        "routing-keys": [key.decode(), *(copies if isinstance(copies, list) else [])],
    }
    if same:
        entry = dict(same[0])
    entry["count"] = Long(sum(e["count"] for e in same) + 1)
    if properties.expiration is not None:
        # It would expire again at once: the property goes, and is kept here.
        entry["original-expiration"] = properties.expiration
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


def _deaths_in(header: object) -> list[dict[str, Any]]:
    """The entries of an ``x-death`` header that are what RabbitMQ or we would write."""
    found = []
    for each in header if isinstance(header, list) else []:
        if isinstance(each, Mapping) and {"queue", "reason"} <= each.keys():
            count = each.get("count")
            times = count if isinstance(count, int) and 0 < count < 1 << 62 else 1
            found.append({**each, "count": Long(times)})
    return found


class Dead(NamedTuple):
    """What a dead letter says of its end; its own protocol may not say everything."""

    topic: str
    reason: str
    at_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    attempts: int | None = None
    subscription: str | None = None
    error: str | None = None


def death_of(record: Record) -> Dead | None:
    """The latest death of a record; None for one that never died."""
    if record.envelope_format == AMQP:
        entries = _deaths_in(amqp_headers(record).get("x-death"))
        if not entries:
            return None
        time = entries[0].get("time")
        at_ms = int(time.timestamp() * 1000) if isinstance(time, datetime) else None
        return Dead(str(entries[0]["queue"]), str(entries[0]["reason"]), at_ms)
    said = {
        name.removeprefix(DEATH): value.decode("utf-8", "replace")
        for name, value in native_headers(record)
        if name.startswith(DEATH)
    }
    if "topic" not in said:
        return None
    numbers = {name: int(said[name]) for name in ("partition", "offset", "attempts", "time")}
    return Dead(
        said["topic"],
        said["reason"],
        numbers["time"],
        numbers["partition"],
        numbers["offset"],
        numbers["attempts"],
        said["subscription"],
        said["error"],
    )


def without_deaths(record: Record) -> tuple[int, bytes]:
    """The envelope of a dead record as it was before it died: format and bytes."""
    if record.envelope_format != AMQP:
        kept = [each for each in native_headers(record) if not each[0].startswith(DEATH)]
        return NATIVE, encode_headers(kept)
    exchange, key, raw = split_amqp(record.envelope)
    properties = readable_properties(raw)
    headers = {
        name: value
        for name, value in (properties.headers or {}).items()
        if name != "x-death" and not name.startswith("x-first-death-")
    }
    properties = msgspec.structs.replace(properties, headers=headers or None)
    return AMQP, amqp_envelope(exchange, key, properties)


def readable_properties(raw: bytes) -> Properties:
    """The properties, or none where a client sent what can't be read."""
    try:
        return decode_properties(raw)
    except BraidError:
        return Properties()


def amqp_headers(record: Record) -> dict[str, Any]:
    return dict(readable_properties(split_amqp(record.envelope)[2]).headers or {})


def amqp_routing_keys(record: Record) -> list[bytes]:
    copies = amqp_headers(record).get("CC")
    more = [
        each.encode() if isinstance(each, str) else each
        for each in (copies if isinstance(copies, list) else [])
        if isinstance(each, str | bytes)
    ]
    return [split_amqp(record.envelope)[1], *more]


def message_id(record: Record) -> bytes | None:
    """AMQP's property, MQTT's user property of that name."""
    return dict(native_headers(record)).get(MESSAGE_ID)


register_format(AMQP, annotate_amqp, amqp_routing_keys, amqp_headers, message_id)
register_format(MQTT, annotate_mqtt, mqtt_routing_keys, mqtt_headers, message_id)
