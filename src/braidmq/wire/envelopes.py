"""Envelopes: the properties of a message as they came, in one of these formats, and what they are
as headers.

This module owns the native format, headers as count and (key, value) pairs:

    ┌───────┬────────────┬─────┬──────────────┬───────┬─
    │ count │ key length │ key │ value length │ value │ …      u16, then u16, bytes, u32, bytes
    └───────┴────────────┴─────┴──────────────┴───────┴─

The others are described with their protocols: AMQP's in ``loadgen/amqp_load.pyx``, MQTT's in
``wire/mqtt/publish.pyx``.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from braidmq.model.errors import BadRequest, BraidError
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import decode_properties as decode_mqtt_properties

NATIVE = 0
AMQP = 1
MQTT = 2

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

Headers = list[tuple[str, bytes]]

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_SWAPPED = bytes.maketrans(b"/.", b"./")


class BadHeaders(BadRequest):
    code = "bad-headers"


def encode_headers(headers: Sequence[tuple[str, bytes]] | Mapping[str, bytes]) -> bytes:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if not pairs:
        return b""
    if len(pairs) > 0xFFFF:
        raise BadHeaders(f"{len(pairs)} headers, at most 65535 are possible")
    parts = [_U16.pack(len(pairs))]
    for key, value in pairs:
        name = key.encode()
        if len(name) > 0xFFFF:
            raise BadHeaders("a header's name has at most 65535 bytes")
        parts += (_U16.pack(len(name)), name, _U32.pack(len(value)), value)
    return b"".join(parts)


def decode_headers(data: bytes) -> Headers:
    if not data:
        return []
    try:
        (count,) = _U16.unpack_from(data)
        at, found = 2, []
        for _ in range(count):
            (length,) = _U16.unpack_from(data, at)
            key = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (length,) = _U32.unpack_from(data, at)
            value = data[at + 4 : at + 4 + length]
            if len(value) != length:
                raise BadHeaders("a header's value is cut off")
            at += 4 + length
            found.append((key, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise BadHeaders(f"headers can't be read: {error}") from None
    return found


def amqp_envelope(exchange: bytes, key: bytes, properties: Properties) -> bytes:
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return head + encode_properties(properties)


def split_amqp(envelope: bytes) -> tuple[bytes, bytes, bytes]:
    """Exchange, routing key and the raw properties of an AMQP envelope."""
    middle = 1 + envelope[0]
    end = middle + 1 + envelope[middle]
    return envelope[1:middle], envelope[middle + 1 : end], envelope[end:]


def split_mqtt(envelope: bytes) -> tuple[int, bytes, bytes]:
    """Flags, topic and the raw properties of an MQTT envelope."""
    end = 3 + int.from_bytes(envelope[1:3], "big")
    return envelope[0], envelope[3:end], envelope[end:]


def key_of_topic(topic: bytes) -> bytes:
    """``a/b`` is ``a.b``, and a dot becomes a slash: so that no two topics have one key."""
    return topic.translate(_SWAPPED)


def readable_properties(raw: bytes) -> Properties:
    """The properties, or none where a client sent what can't be read."""
    try:
        return decode_properties(raw)
    except BraidError:
        return Properties()


def native_from_amqp(envelope: bytes) -> Headers:
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


def native_from_mqtt(envelope: bytes) -> Headers:
    """MQTT properties as native headers."""
    properties = decode_mqtt_properties(split_mqtt(envelope)[2], Kind.PUBLISH)
    found: Headers = []
    if properties.content_type is not None:
        found.append(("content-type", properties.content_type.encode()))
    if properties.correlation_data is not None:
        found.append(("correlation-id", properties.correlation_data))
    if properties.response_topic is not None:
        found.append(("reply-to", key_of_topic(properties.response_topic.encode())))
    return found + [(name, value.encode()) for name, value in properties.user_properties]


def native_headers(envelope_format: int, envelope: bytes, has_key: bool = False) -> Headers:
    """What the envelope of a message says, as headers. ``has_key``: the record has a key."""
    if envelope_format == AMQP:
        # AMQP has no other place for the key and the partition; here they have their own.
        own = ("x-key", "x-partition") if has_key else ("x-partition",)
        return [each for each in native_from_amqp(envelope) if each[0] not in own]
    if envelope_format == MQTT:
        return native_from_mqtt(envelope)
    return decode_headers(envelope) if envelope_format == NATIVE else []
