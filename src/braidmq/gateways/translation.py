"""Properties of a message, from one protocol's words to another's: the one place for it.

A message keeps its properties as they came (its envelope). They are translated only when it leaves
over another protocol than it came, and only then is any of this run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from braidmq.engine.envelope import (
    DEATH,
    MESSAGE_ID,
    PATH,
    Death,
    Deaths,
    annotate_native,
    register_format,
)
from braidmq.model.errors import BadRequest, BraidError
from braidmq.record.batch import Record
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties
from braidmq.wire.amqp.tables import Long, encode_table
from braidmq.wire.deaths import AmqpDeath, DeathWriter
from braidmq.wire.envelopes import (
    AMQP,
    MQTT,
    NAMED,
    NATIVE,
    decode_headers,
    encode_headers,
    key_of_topic,
    native_from_mqtt,
    readable_properties,
    split_amqp,
    split_mqtt,
)
from braidmq.wire.envelopes import native_headers as headers_in
from braidmq.wire.mqtt.constants import STRING_BYTES_MAX, Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import decode_properties as decode_mqtt_properties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt_properties
from braidmq.wire.mqtt.text import write_string

# --- AMQP envelopes ---


def amqp_envelope(exchange: bytes, key: bytes, properties: Properties) -> bytes:
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return head + encode_properties(properties)


def amqp_parts(
    envelope: bytes,
    envelope_format: int = AMQP,
    record: Record | None = None,
    *,
    delivery_count: int | None = None,
    stream_offset: int | None = None,
    topic: str = "",
) -> tuple[bytes, bytes, bytes]:
    """What AMQP says of a message: exchange, routing key, raw properties."""
    if envelope_format == AMQP:
        exchange, key, raw = split_amqp(envelope)
        if delivery_count is None and stream_offset is None:
            return exchange, key, raw
        properties = readable_properties(raw)
    elif envelope_format == MQTT:
        exchange, key = amqp_destination(split_mqtt(envelope)[1])
        properties = amqp_from_mqtt(envelope, record)
    else:
        exchange, key = b"", topic.encode()
        properties = amqp_from_native(decode_headers(envelope), record)
    told = {"x-delivery-count": delivery_count, "x-stream-offset": stream_offset}
    more = {name: Long(value) for name, value in told.items() if value is not None}
    if more:
        headers = {**(properties.headers or {}), **more}
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


def native_headers(record: Record) -> list[tuple[str, bytes]]:
    return headers_in(record.envelope_format, record.envelope, record.key is not None)


# --- MQTT envelopes; the format is described in wire/mqtt/publish.pyx ---

TOPIC_EXCHANGE = "amq.topic"
"""The exchange that is one space with the tree of MQTT topics."""

QUEUE = b"$queue/"
"""What comes to queues by their name has this before it in MQTT."""

_PATTERN = bytes.maketrans(b"/.+", b"./*")


def amqp_destination(topic: bytes) -> tuple[bytes, bytes]:
    """Exchange and routing key that AMQP would have published with."""
    if topic.startswith(QUEUE):
        return b"", topic.removeprefix(QUEUE)[:SHORT_STRING_BYTES_MAX]
    return TOPIC_EXCHANGE.encode(), key_of_topic(topic)[:SHORT_STRING_BYTES_MAX]


def pattern_of_filter(pattern: bytes) -> bytes:
    """An MQTT filter as a binding key: ``+`` is ``*``, and ``#`` means the same in both."""
    return pattern.translate(_PATTERN)


def topic_of_key(key: bytes) -> bytes | None:
    """None for a key that can't be a topic's name."""
    if not key or len(key) > STRING_BYTES_MAX or any(c in key for c in b"+#\0"):
        return None
    return key_of_topic(key) if _is_text(key) else None


def amqp_from_mqtt(envelope: bytes, record: Record | None) -> Properties:
    """What a publisher calls ``user-id`` stays a header, unless it published to a queue and we
    know that it is: as a property AMQP vouches for it. So does correlation data that is no text."""
    named: list[tuple[str, bytes]] = []
    unnamed: dict[str, Any] = {}
    vouched = split_mqtt(envelope)[1].startswith(QUEUE)
    for name, value in native_from_mqtt(envelope):
        if name == "user-id" and not vouched:
            unnamed[name] = value.decode()
        elif name == "correlation-id" and not _is_text(value):
            unnamed[name] = value
        else:
            named.append((name, value))
    properties = amqp_from_native(named, record)
    return msgspec.structs.replace(
        properties,
        headers={**(properties.headers or {}), **unnamed} or None,
        delivery_mode=2 if envelope[0] & 3 or vouched else 1,
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
    head = bytes((MQTT_QOS_OF_OTHERS,)) + write_string(name.decode())
    envelope = head + encode_mqtt_properties(mqtt_properties(record), Kind.PUBLISH)
    return name, record._replace(envelope=envelope, envelope_format=MQTT)


def mqtt_properties(record: Record) -> MqttProperties:
    """What MQTT says of a message, whatever protocol it came over."""
    if record.envelope_format == MQTT:
        return decode_mqtt_properties(split_mqtt(record.envelope)[2], Kind.PUBLISH)
    headers = [each for each in native_headers(record) if each[0] != PATH]
    own = {field: value for field, value in headers if field in _MQTT_HAS}
    expiry_s = None
    if record.expires_at_ms:
        expiry_s = min(max(record.expires_at_ms - record.timestamp_ms + 999, 0) // 1000, 0xFFFFFFFF)
    reply_to = topic_of_key(own.get("reply-to", b""))
    content_type = own.get("content-type")
    correlation = own.get("correlation-id")
    if correlation is not None and len(correlation) > STRING_BYTES_MAX:
        correlation = None
    return MqttProperties(
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


# --- durable queues of MQTT: user properties that are fields of a record ---

PARTITION_KEY = "partition-key"
PRIORITY = "priority"
DELAY_MS = "delay-ms"
USER_ID = "user-id"
DELIVERED = ("consumer-group", "partition", "offset", "delivery-count", "timestamp-ms")
"""What a delivery says of itself, whatever the publisher called so."""


def queue_record(record: Record, user: str) -> Record:
    """A message published to a queue: its key, priority and time taken from user properties.

    Raises BadRequest for values that can't be that.
    """
    flags, topic, raw = split_mqtt(record.envelope)
    properties = decode_mqtt_properties(raw, Kind.PUBLISH)
    given = dict(properties.user_properties)
    if given.get(USER_ID, user) != user:
        raise BadRequest(f"user-id is {given[USER_ID]!r}, but {user!r} publishes")
    delay_ms = number_in(given, DELAY_MS, TIME_MS_MAX)
    due_ms = record.timestamp_ms + delay_ms if delay_ms else 0
    rest = tuple(
        each
        for each in properties.user_properties
        if each[0] not in (PARTITION_KEY, PRIORITY, DELAY_MS)
    )
    properties = msgspec.structs.replace(properties, user_properties=rest)
    head = bytes((flags,)) + write_string(topic.decode())
    key = given.get(PARTITION_KEY)
    return record._replace(
        key=None if key is None else key.encode(),
        priority=number_in(given, PRIORITY, 255),
        due_at_ms=due_ms,
        expires_at_ms=record.expires_at_ms and record.expires_at_ms + delay_ms,
        envelope=head + encode_mqtt_properties(properties, Kind.PUBLISH),
    )


TIME_MS_MAX = 1 << 53


def number_in(given: Mapping[str, str], name: str, most: int) -> int:
    text = given.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise BadRequest(f"{name} is {text!r}, not a number from 0 to {most}")
    return int(text)


def queue_properties(
    record: Record, group: str, partition: int, attempts: int, now_ms: int
) -> tuple[str, MqttProperties]:
    """The message id and all properties of one delivery from a queue."""
    properties = mqtt_properties(record)
    own = [each for each in properties.user_properties if each[0] not in DELIVERED]
    message_id = next((value for name, value in own if name == MESSAGE_ID), None)
    if message_id is None:
        message_id = f"{partition}-{record.offset}"
        own.append((MESSAGE_ID, message_id))
    told = (group, str(partition), str(record.offset), str(attempts), str(record.timestamp_ms))
    own += zip(DELIVERED, told, strict=True)
    if record.key is not None:
        own.append((PARTITION_KEY, _mqtt_text(record.key)))
    if record.priority:
        own.append((PRIORITY, str(record.priority)))
    expiry_s = properties.message_expiry_interval
    if expiry_s and record.expires_at_ms:
        left_s = max(record.expires_at_ms - now_ms + 999, 0) // 1000
        properties = msgspec.structs.replace(
            properties, message_expiry_interval=min(expiry_s, left_s)
        )
    return message_id, msgspec.structs.replace(properties, user_properties=tuple(own))


def _mqtt_text(value: bytes) -> str:
    """What MQTT takes for a string: cut rather than the message lost."""
    text = value.decode("utf-8", "replace").replace("\0", "")
    return text.encode()[:STRING_BYTES_MAX].decode(errors="ignore")


def annotate_mqtt(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    """Dead letters of exchanges are AMQP's idea, and are written as AMQP does."""
    if split_mqtt(record.envelope)[1].startswith(QUEUE):
        headers = encode_headers(native_from_mqtt(record.envelope))
        return annotate_native(record._replace(envelope=headers, envelope_format=NATIVE), death)
    exchange, key, raw = amqp_parts(record.envelope, MQTT, record)
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return annotate_amqp(record._replace(envelope=head + raw, envelope_format=AMQP), death)


def mqtt_routing_keys(record: Record) -> list[bytes]:
    return [amqp_destination(split_mqtt(record.envelope)[1])[1]]


def mqtt_headers(record: Record) -> dict[str, Any]:
    return dict(amqp_from_mqtt(record.envelope, record).headers or {})


# --- deaths as RabbitMQ writes them ---

TABLE_SIZE_BYTES = 4
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


def amqp_writer(death: Death) -> DeathWriter:
    """What ``annotate_amqp`` writes into a message that never died before."""
    reason = REASONS.get(death.reason, death.reason)
    said = {"reason": reason, "queue": death.topic}
    first = {"x-first-death-queue": death.topic, "x-first-death-reason": reason}
    through = None if death.to_exchange is None else death.to_exchange.encode()
    return AmqpDeath(
        encode_table(said)[TABLE_SIZE_BYTES:],
        encode_table(first)[TABLE_SIZE_BYTES:],
        through,
        death.to_key if death.new_key else None,
    )


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


register_format(AMQP, annotate_amqp, amqp_routing_keys, amqp_headers, message_id, amqp_writer)
register_format(MQTT, annotate_mqtt, mqtt_routing_keys, mqtt_headers, message_id)
