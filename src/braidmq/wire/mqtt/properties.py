"""The properties of MQTT 5: one table of their types and the packets they belong in.

    properties   length:variable  { id:u8  value }*          length counts what follows it

Identifiers are variable integers, but all that exist take one byte. Each may stand once, except
user properties and, in PUBLISH, subscription identifiers.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from braidmq.wire.mqtt.constants import Kind, Reason
from braidmq.wire.mqtt.errors import MalformedPacket, MqttError, ProtocolError
from braidmq.wire.mqtt.text import Reader, write_binary, write_string, write_variable

WILL: Final = 0
"""Stands beside the kinds of packet: the will in CONNECT has properties of its own."""


class Type(IntEnum):
    BYTE = 0
    U16 = 1
    U32 = 2
    VARIABLE = 3
    BINARY = 4
    STRING = 5
    PAIR = 6


class Property(NamedTuple):
    id: int
    field: str
    type: Type
    packets: frozenset[int]


class Properties(msgspec.Struct, frozen=True):
    """None is for a property that is not there; its meaning then is the specification's."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES: Final = Properties()

_MESSAGE = frozenset({Kind.PUBLISH, WILL})
_OPENING = frozenset({Kind.CONNECT, Kind.CONNACK})
_CONNECT = frozenset({Kind.CONNECT})
_CONNACK = frozenset({Kind.CONNACK})
_AUTH = frozenset({Kind.CONNECT, Kind.CONNACK, Kind.AUTH})
_ANSWERS = frozenset(
    {
        Kind.CONNACK,
        Kind.PUBACK,
        Kind.PUBREC,
        Kind.PUBREL,
        Kind.PUBCOMP,
        Kind.SUBACK,
        Kind.UNSUBACK,
        Kind.DISCONNECT,
        Kind.AUTH,
    }
)
_ALL = _ANSWERS | {WILL, Kind.CONNECT, Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE}

PROPERTIES: Final = tuple(
    Property(*row)
    for row in (
        (0x01, "payload_format_indicator", Type.BYTE, _MESSAGE),
        (0x02, "message_expiry_interval", Type.U32, _MESSAGE),
        (0x03, "content_type", Type.STRING, _MESSAGE),
        (0x08, "response_topic", Type.STRING, _MESSAGE),
        (0x09, "correlation_data", Type.BINARY, _MESSAGE),
        (
            0x0B,
            "subscription_identifiers",
            Type.VARIABLE,
            frozenset({Kind.PUBLISH, Kind.SUBSCRIBE}),
        ),
        (0x11, "session_expiry_interval", Type.U32, _OPENING | {Kind.DISCONNECT}),
        (0x12, "assigned_client_identifier", Type.STRING, _CONNACK),
        (0x13, "server_keep_alive", Type.U16, _CONNACK),
        (0x15, "authentication_method", Type.STRING, _AUTH),
        (0x16, "authentication_data", Type.BINARY, _AUTH),
        (0x17, "request_problem_information", Type.BYTE, _CONNECT),
        (0x18, "will_delay_interval", Type.U32, frozenset({WILL})),
        (0x19, "request_response_information", Type.BYTE, _CONNECT),
        (0x1A, "response_information", Type.STRING, _CONNACK),
        (0x1C, "server_reference", Type.STRING, _CONNACK | {Kind.DISCONNECT}),
        (0x1F, "reason_string", Type.STRING, _ANSWERS),
        (0x21, "receive_maximum", Type.U16, _OPENING),
        (0x22, "topic_alias_maximum", Type.U16, _OPENING),
        (0x23, "topic_alias", Type.U16, frozenset({Kind.PUBLISH})),
        (0x24, "maximum_qos", Type.BYTE, _CONNACK),
        (0x25, "retain_available", Type.BYTE, _CONNACK),
        (0x26, "user_properties", Type.PAIR, _ALL),
        (0x27, "maximum_packet_size", Type.U32, _OPENING),
        (0x28, "wildcard_subscription_available", Type.BYTE, _CONNACK),
        (0x29, "subscription_identifier_available", Type.BYTE, _CONNACK),
        (0x2A, "shared_subscription_available", Type.BYTE, _CONNACK),
    )
)
_BY_ID: Final = {each.id: each for each in PROPERTIES}

_NEVER_ZERO: Final = {
    "subscription_identifiers": Reason.PROTOCOL_ERROR,
    "receive_maximum": Reason.PROTOCOL_ERROR,
    "maximum_packet_size": Reason.PROTOCOL_ERROR,
    "topic_alias": Reason.TOPIC_ALIAS_INVALID,
}

SEVERAL: Final = frozenset({"user_properties", "subscription_identifiers"})
"""Held as tuples."""


def may_repeat(field: str, packet: int) -> bool:
    return field == "user_properties" or (
        field == "subscription_identifiers" and packet == Kind.PUBLISH
    )


# --- reading ---


def read_properties(reader: Reader, packet: int) -> Properties:
    """The properties of a packet (or of ``WILL``), which begin where the reader stands."""
    part = reader.part(reader.variable())
    return _read(part, packet) if part.left else NO_PROPERTIES


def decode_properties(raw: bytes, packet: int) -> Properties:
    """As they stand behind their length."""
    return _read(Reader(raw), packet)


def _read(reader: Reader, packet: int) -> Properties:
    values: dict[str, Any] = {}
    while reader.left:
        number = reader.byte()
        row = _BY_ID.get(number)
        if row is None or packet not in row.packets:
            # 2.2.2.2: also one that exists, in a packet that it is not for.
            raise MalformedPacket(f"property 0x{number:02x} does not belong in this packet")
        value = _READERS[row.type](reader)
        _check(row, value)
        if row.field in SEVERAL:
            several = values.setdefault(row.field, [])
            several.append(value)
            twice = len(several) > 1 and not may_repeat(row.field, packet)
        else:
            twice = row.field in values
            values[row.field] = value
        if twice:
            raise ProtocolError(f"property {row.field} appears twice")
    for field in SEVERAL & values.keys():
        values[field] = tuple(values[field])
    if "authentication_data" in values and "authentication_method" not in values:
        # 3.1.2.11.10
        raise ProtocolError("authentication data without a method")
    return Properties(**values)


def _check(row: Property, value: Any) -> None:
    if row.type is Type.BYTE and value > 1:
        raise ProtocolError(f"property {row.field} is {value}, not 0 or 1")
    if value == 0 and row.field in _NEVER_ZERO:
        raise MqttError(_NEVER_ZERO[row.field], f"property {row.field} is 0")
    if row.field == "response_topic" and ("+" in value or "#" in value):
        # MQTT-3.3.2-14
        raise ProtocolError("wildcards in the response topic")


_READERS: Final[dict[Type, Callable[[Reader], Any]]] = {
    Type.BYTE: Reader.byte,
    Type.U16: Reader.u16,
    Type.U32: Reader.u32,
    Type.VARIABLE: Reader.variable,
    Type.BINARY: Reader.binary,
    Type.STRING: Reader.string,
    Type.PAIR: lambda reader: (reader.string(), reader.string()),
}


# --- writing ---


def write_properties(properties: Properties, packet: int) -> bytes:
    """With their length in front."""
    if properties is NO_PROPERTIES:
        return b"\0"
    raw = encode_properties(properties, packet)
    return write_variable(len(raw)) + raw


def encode_properties(properties: Properties, packet: int) -> bytes:
    """Without their length. ValueError for one that is not for this packet: that is our mistake."""
    out = []
    for row in PROPERTIES:
        value = getattr(properties, row.field)
        if value is None or value == ():
            continue
        if packet not in row.packets:
            raise ValueError(f"property {row.field} does not belong in this packet")
        several = isinstance(value, tuple)
        if several and len(value) > 1 and not may_repeat(row.field, packet):
            raise ValueError(f"property {row.field} may appear only once in this packet")
        head = bytes((row.id,))
        out += [head + _WRITERS[row.type](each) for each in (value if several else (value,))]
    return b"".join(out)


_WRITERS: Final[dict[Type, Callable[[Any], bytes]]] = {
    Type.BYTE: lambda value: value.to_bytes(1),
    Type.U16: lambda value: value.to_bytes(2),
    Type.U32: lambda value: value.to_bytes(4),
    Type.VARIABLE: write_variable,
    Type.BINARY: write_binary,
    Type.STRING: write_string,
    Type.PAIR: lambda pair: write_string(pair[0]) + write_string(pair[1]),
}
