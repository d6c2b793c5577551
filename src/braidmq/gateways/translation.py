"""Properties of a message, from one protocol's words to another's: the one place for it.

A message keeps its properties as they came (its envelope). They are translated only when it leaves
over another protocol than it came, and only then is any of this run.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from braidmq.engine.envelope import (
    MESSAGE_ID,
    PATH,
    Death,
    Deaths,
    annotate_native,
    register_format,
)
from braidmq.engine.partitioner import PARTITIONS_MAX
from braidmq.gateways.deaths import amqp_headers, amqp_writer, annotate_amqp, with_x_death
from braidmq.model.errors import BadRequest
from braidmq.record.batch import DATED_DUE, DATED_EXPIRY, Record
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.amqp.tables import Long
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


def amqp_parts(
    envelope: bytes,
    envelope_format: int = AMQP,
    record: Record | None = None,
    *,
    told: Mapping[str, int] | None = None,
    topic: str = "",
) -> tuple[bytes, bytes, bytes]:
    """What AMQP says of a message: exchange, routing key, raw properties. What is ``told`` becomes
    headers, whatever the publisher called so."""
    if envelope_format == AMQP:
        exchange, key, raw = split_amqp(envelope)
        if not told:
            return exchange, key, raw
        properties = readable_properties(raw)
    elif envelope_format == MQTT:
        exchange, key = amqp_destination(split_mqtt(envelope)[1])
        properties = amqp_from_mqtt(envelope, record)
    else:
        exchange, key = b"", topic.encode()
        properties = amqp_from_native(decode_headers(envelope), record)
    if told:
        more = {name: Long(value) for name, value in told.items()}
        headers = {**(properties.headers or {}), **more}
        properties = msgspec.structs.replace(properties, headers=headers)
    return exchange, key, encode_properties(properties)


def amqp_facts(record: Record, partition: int, attempts: int) -> dict[str, int]:
    """What the broker knows of a delivery, as the headers that ``wire/amqp/render`` writes."""
    return {
        "x-delivery-count": attempts - 1,
        "x-partition": partition,
        "x-offset": record.offset,
        "x-first-seen-ms": record.timestamp_ms,
    }


def amqp_from_native(headers: list[tuple[str, bytes]], record: Record | None) -> Properties:
    """Native headers as AMQP properties; what AMQP has no property for becomes a header."""
    named: dict[str, Any] = {}
    table: dict[str, Any] = {}
    path = b""
    for name, value in headers:
        if name == PATH:
            path = value
            continue
        field = name.replace("-", "_")
        text = value.decode("utf-8", "replace")
        if field in NAMED and len(text.encode()) <= SHORT_STRING_BYTES_MAX:
            named[field] = text
        else:
            # AMQP's names hold 255 bytes; a longer one is cut rather than the message lost.
            short = name.encode()[:SHORT_STRING_BYTES_MAX].decode(errors="ignore")
            table[short] = text if text.encode() == value else value
    table = with_x_death(table, path)
    if record is not None:
        named |= _said_of(record)
        if record.key is not None:
            table["x-key"] = record.key.decode() if _is_text(record.key) else record.key
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
    found = headers_in(record.envelope_format, record.envelope, record.key is not None)
    return [each for each in found if each[0] != PATH]


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
    user = [
        (_mqtt_text(field.encode()), _mqtt_text(value))
        for field, value in headers
        if field not in _MQTT_HAS
    ]
    return MqttProperties(
        content_type=None if content_type is None else _mqtt_text(content_type),
        correlation_data=correlation,
        response_topic=None if reply_to is None else reply_to.decode(),
        message_expiry_interval=expiry_s,
        user_properties=(*user, *_fields_of(record)),
    )


def _fields_of(record: Record) -> list[tuple[str, str]]:
    """What the fields of a record are as user properties."""
    found = []
    if record.key is not None:
        found.append(_said_key(record.key))
    if record.priority:
        found.append((PRIORITY, str(record.priority)))
    return found


def _said_key(key: bytes) -> tuple[str, str]:
    """User properties are text: a key that is none, or that MQTT takes for none, goes encoded."""
    text = _mqtt_text(key)
    if text.encode() == key:
        return PARTITION_KEY, text
    return PARTITION_KEY_BASE64, b64encode(key).decode()


# --- durable queues of MQTT: user properties that are fields of a record ---

PARTITION_KEY = "partition-key"
PARTITION_KEY_BASE64 = "partition-key-base64"
"""A key that is no text."""
PRIORITY = "priority"
DELAY_MS = "delay-ms"
DELIVER_AT = "deliver-at"
USER_ID = "user-id"
TO_PARTITION = "to-partition"
"""Not what a delivery calls its partition: who forwards a message with all it says of itself would
bind the copy to that."""
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
    record = due_record(record, due_in(properties.user_properties, record.timestamp_ms))
    rest = tuple(each for each in properties.user_properties if each[0] not in _FIELDS)
    properties = msgspec.structs.replace(properties, user_properties=rest)
    head = bytes((flags,)) + write_string(topic.decode())
    return record._replace(
        key=_key_in(given),
        priority=number_in(given, PRIORITY, 255),
        envelope=head + encode_mqtt_properties(properties, Kind.PUBLISH),
    )


_FIELDS = (PARTITION_KEY, PARTITION_KEY_BASE64, TO_PARTITION, PRIORITY, DELAY_MS, DELIVER_AT)


def _key_in(given: Mapping[str, str]) -> bytes | None:
    text, encoded = given.get(PARTITION_KEY), given.get(PARTITION_KEY_BASE64)
    if encoded is None:
        return None if text is None else text.encode()
    if text is not None:
        raise BadRequest(f"give {PARTITION_KEY} or {PARTITION_KEY_BASE64}, not both")
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        raise BadRequest(f"{PARTITION_KEY_BASE64} is {encoded[:64]!r}, not base64") from None


def queue_partition(record: Record) -> int | None:
    """The partition that a message published to a queue names. Raises BadRequest."""
    given = dict(
        decode_mqtt_properties(split_mqtt(record.envelope)[2], Kind.PUBLISH).user_properties
    )
    return number_in(given, TO_PARTITION, PARTITIONS_MAX) if TO_PARTITION in given else None


TIME_MS_MAX = 1 << 53


class Due(NamedTuple):
    """When a message becomes visible; 0 for at once."""

    at_ms: int = 0
    is_date: bool = False
    """The wall clock decides it, whatever happens to that until then."""


def due_in(given: Sequence[tuple[str, str]], now_ms: int) -> Due:
    """What ``delay-ms`` or ``deliver-at`` among user properties ask for. Raises BadRequest."""
    asked = [each for each in given if each[0] in (DELAY_MS, DELIVER_AT)]
    if not asked:
        return Due()
    if len(asked) > 1:
        raise BadRequest(f"give {DELAY_MS} or {DELIVER_AT}, once: at most one time for a message")
    name, text = asked[0]
    if name == DELAY_MS:
        delay_ms = number_in({name: text}, name, TIME_MS_MAX)
        return Due(now_ms + delay_ms) if delay_ms else Due()
    at_ms = _date_ms(text)
    return Due(at_ms, True) if at_ms > now_ms else Due()


def _date_ms(text: str) -> int:
    """Milliseconds since the epoch, given as such or as a date with its zone."""
    if text.isascii() and text.isdecimal():
        return number_in({DELIVER_AT: text}, DELIVER_AT, TIME_MS_MAX)
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return int(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        f"{DELIVER_AT} is {text[:64]!r}: give milliseconds since the epoch, or a date with its"
        " time zone, such as 2030-01-31T08:00:00Z"
    )


def due_record(record: Record, due: Due) -> Record:
    """For later; its life begins when it can be had."""
    if not due.at_ms:
        return record
    waits_ms = due.at_ms - record.timestamp_ms
    return record._replace(
        due_at_ms=due.at_ms,
        expires_at_ms=record.expires_at_ms and record.expires_at_ms + waits_ms,
        dated=DATED_DUE | DATED_EXPIRY if due.is_date else 0,
    )


def mqtt_envelope(envelope: bytes, topic: bytes, *, without: tuple[str, ...]) -> bytes:
    """With another topic, and without some user properties."""
    flags, _, raw = split_mqtt(envelope)
    if raw:
        properties = decode_mqtt_properties(raw, Kind.PUBLISH)
        rest = tuple(each for each in properties.user_properties if each[0] not in without)
        properties = msgspec.structs.replace(properties, user_properties=rest)
        raw = encode_mqtt_properties(properties, Kind.PUBLISH)
    return bytes((flags,)) + write_string(topic.decode()) + raw


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
    if record.envelope_format == MQTT:
        own += _fields_of(record)
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
