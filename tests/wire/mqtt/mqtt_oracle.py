"""The MQTT scanner and renderer once more: plain Python, from the specification.

The scanner gives flat events, one for each message and each acknowledgement, since where the kernel
cuts its runs is its own affair.

    Message   a PUBLISH, its topic alias resolved
    Ack       a PUBACK, PUBREC, PUBREL or PUBCOMP
    Other     any other packet
    Fault     the end of what can be read
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from braidmq.record.batch import FLAG_TIMED, Record
from braidmq.wire.mqtt import publish as publishes
from braidmq.wire.mqtt import scan as kernel
from braidmq.wire.mqtt.constants import FLAGS, REASONS, Kind, Version
from braidmq.wire.mqtt.properties import PROPERTIES, Type
from braidmq.wire.mqtt.text import write_variable

MALFORMED, PROTOCOL, BAD_ALIAS, TOO_LARGE, TOO_MANY = 0x81, 0x82, 0x94, 0x95, 0x93
NOT_FROM_CLIENT = {Kind.CONNACK, Kind.SUBACK, Kind.UNSUBACK, Kind.PINGRESP}
NOT_FROM_SERVER = {Kind.CONNECT, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.PINGREQ}
ACKS = range(Kind.PUBACK, Kind.PUBCOMP + 1)


class Message(NamedTuple):
    flags: int
    topic: bytes
    packet_id: int
    record: Record
    """Its offset is always 0."""
    packet: bytes
    """As it came."""


class Ack(NamedTuple):
    kind: int
    packet_id: int
    reason: int


class Other(NamedTuple):
    kind: int
    flags: int
    body: bytes


class Fault(NamedTuple):
    reason: int


Event = Message | Ack | Other | Fault


# --- what the kernel gave, flattened ---


def flattened(events: Iterable[tuple[Any, ...]], data: bytes, now_ms: int) -> list[Event]:
    flat: list[Event] = []
    for kind, *rest in events:
        if kind == kernel.EVENT_PUBLISH:
            flat += _messages(rest[0], data, now_ms)
        elif kind == kernel.EVENT_ACKS:
            packet, ids, reasons = rest
            assert reasons is None or any(reasons)
            flat += [
                Ack(packet, *pair) for pair in zip(ids, reasons or bytes(len(ids)), strict=True)
            ]
        elif kind == kernel.EVENT_PACKET:
            flat.append(Other(*rest))
        else:
            assert kind == kernel.EVENT_ERROR
            assert isinstance(rest[1], str)
            flat.append(Fault(rest[0]))
    return flat


def _messages(run: publishes.PublishRun, data: bytes, now_ms: int) -> list[Message]:
    batch = run.batch(data, now_ms)
    batch.verify()
    assert batch.count == run.count > 0
    assert (run.packet_ids is None) == (run.qos == 0)
    ids = run.packet_ids or [0] * run.count
    packets = split_packets(data[run.start : run.stop])
    return [
        Message(run.flags, run.topic, packet_id, record._replace(offset=0), packet)
        for packet_id, record, packet in zip(ids, batch.records(), packets, strict=True)
    ]


# --- packets ---


class Broken(Exception):
    def __init__(self, reason: int) -> None:
        self.reason = reason


class CutOff(Exception):
    pass


def variable_at(data: bytes, at: int, *, minimal: bool) -> tuple[int, int]:
    """Value and end."""
    value = 0
    for index in range(4):
        if at + index >= len(data):
            raise CutOff
        byte = data[at + index]
        value += (byte & 127) * 128**index
        if byte < 128:
            if minimal and index and byte == 0:
                raise Broken(MALFORMED)
            return value, at + index + 1
    raise Broken(MALFORMED)


def split_packets(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length, body = variable_at(data, at + 1, minimal=False)
        found.append(data[at : body + length])
        at = body + length
    assert at == len(data)
    return found


class Oracle:
    """One connection's incoming bytes."""

    def __init__(self, role: int, version: int, packet_bytes_max: int, alias_max: int) -> None:
        self.role = role
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.alias_max = alias_max
        self.aliases: dict[int, bytes] = {}

    def scan(self, data: bytes, now_ms: int, quota: int) -> tuple[list[Event], int]:
        events: list[Event] = []
        at = 0
        while True:
            try:
                event, end = self._event(data, at, now_ms, quota)
            except CutOff:
                return events, at
            except Broken as broken:
                return [*events, Fault(broken.reason)], at
            events.append(event)
            quota -= isinstance(event, Message) and event.packet_id > 0
            at = end
            if isinstance(event, Other) and event.kind == Kind.CONNECT:
                return events, at

    def _event(self, data: bytes, at: int, now_ms: int, quota: int) -> tuple[Event, int]:
        if len(data) - at < 2:
            raise CutOff
        length, body_at = variable_at(data, at + 1, minimal=self.version == Version.V5)
        kind, flags, end = data[at] >> 4, data[at] & 15, body_at + length
        self._check_head(kind, flags, end - at)
        if len(data) < end:
            raise CutOff
        body = data[body_at:end]
        if kind == Kind.PUBLISH:
            return self._publish(flags, body, now_ms, quota, data[at:end]), end
        if kind in ACKS:
            return self._ack(kind, body), end
        return Other(kind, flags, body), end

    def _check_head(self, kind: int, flags: int, size: int) -> None:
        if kind == 0 or (kind == Kind.AUTH and self.version == Version.V3_1_1):
            raise Broken(MALFORMED)
        if self.version == 0 and kind != Kind.CONNECT:
            raise Broken(PROTOCOL)
        if kind != Kind.PUBLISH and flags != FLAGS[Kind(kind)]:
            raise Broken(MALFORMED)
        if kind in (NOT_FROM_CLIENT if self.role == kernel.SERVER else NOT_FROM_SERVER):
            raise Broken(PROTOCOL)
        if kind == Kind.CONNECT and self.version:
            raise Broken(PROTOCOL)
        if size > self.packet_bytes_max:
            raise Broken(TOO_LARGE)

    def _publish(self, first: int, body: bytes, now_ms: int, quota: int, packet: bytes) -> Message:
        qos, retain, dup = first >> 1 & 3, first & 1, first >> 3
        if qos == 3 or (dup and not qos):
            raise Broken(MALFORMED)
        topic, at = piece(body, 0)
        packet_id = 0
        if qos:
            packet_id, at = number(body, at, 2)
            if not packet_id:
                raise Broken(PROTOCOL)
        values: list[tuple[int, bytes, Any]] = []
        if self.version == Version.V5:
            raw, at = self._property_bytes(body, at)
            values = properties_in(raw, Kind.PUBLISH, self.role)
        alias = next((value for key, _, value in values if key == 0x23), None)
        if alias is not None:
            if alias > self.alias_max:
                raise Broken(BAD_ALIAS)
            if not topic:
                if alias not in self.aliases:
                    raise Broken(PROTOCOL)
                topic = self.aliases[alias]
        check_topic(topic)
        if qos and quota <= 0:
            raise Broken(TOO_MANY)
        if alias is not None:
            self.aliases[alias] = topic
        return Message(
            self._flags(qos, retain, dup, values),
            topic,
            packet_id,
            record_of(topic, qos, retain, values, body[at:], now_ms),
            packet,
        )

    def _property_bytes(self, body: bytes, at: int) -> tuple[bytes, int]:
        try:
            length, at = variable_at(body, at, minimal=True)
        except CutOff:
            raise Broken(MALFORMED) from None
        if at + length > len(body):
            raise Broken(MALFORMED)
        return body[at : at + length], at + length

    def _flags(self, qos: int, retain: int, dup: int, values: Sequence[tuple[Any, ...]]) -> int:
        keys = {key for key, *_ in values}
        return (
            qos
            | publishes.FLAG_RETAIN * retain
            | publishes.FLAG_DUP * dup
            | publishes.FLAG_PROPERTIES * bool(keys - {0x23})
            | publishes.FLAG_USER_PROPERTIES * (0x26 in keys)
            | publishes.FLAG_EXPIRY * (0x02 in keys)
            | publishes.FLAG_ALIAS * (0x23 in keys)
        )

    def _ack(self, kind: int, body: bytes) -> Ack:
        if len(body) < 2 or (len(body) > 2 and self.version != Version.V5):
            raise Broken(MALFORMED)
        packet_id, at = number(body, 0, 2)
        if not packet_id:
            raise Broken(PROTOCOL)
        reason = body[2] if len(body) > 2 else 0
        if reason not in REASONS[Kind(kind)]:
            raise Broken(PROTOCOL)
        if len(body) > 3:
            raw, at = self._property_bytes(body, 3)
            if at != len(body):
                raise Broken(MALFORMED)
            properties_in(raw, kind, self.role)
        return Ack(kind, packet_id, reason)


def record_of(
    topic: bytes,
    qos: int,
    retain: int,
    values: Sequence[tuple[int, bytes, Any]],
    payload: bytes,
    now_ms: int,
) -> Record:
    kept = b"".join(raw for key, raw, _ in values if key != 0x23)
    envelope = struct.pack(">BH", qos | retain << 2, len(topic)) + topic + kept
    expiry_s = next((value for key, _, value in values if key == 0x02), None)
    record = Record(0, now_ms, None, payload, envelope, publishes.ENVELOPE_MQTT)
    if expiry_s is None:
        return record
    return record._replace(flags=FLAG_TIMED, expires_at_ms=now_ms + max(expiry_s * 1000, 1))


# --- fields ---


def number(data: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(data):
        raise Broken(MALFORMED)
    return int.from_bytes(data[at : at + size]), at + size


def piece(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = number(data, at, 2)
    if at + length > len(data):
        raise Broken(MALFORMED)
    return data[at : at + length], at + length


def check_text(raw: bytes) -> None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Broken(MALFORMED) from None
    if "\0" in text:
        raise Broken(MALFORMED)


def check_topic(topic: bytes) -> None:
    if not topic:
        raise Broken(PROTOCOL)
    check_text(topic)
    if b"+" in topic or b"#" in topic:
        raise Broken(PROTOCOL)


def properties_in(raw: bytes, packet: int, role: int) -> list[tuple[int, bytes, Any]]:
    """Identifier, all its bytes, and the value of each property."""
    rows = {row.id: row for row in PROPERTIES}
    found: list[tuple[int, bytes, Any]] = []
    at = 0
    while at < len(raw):
        start, key = at, raw[at]
        row = rows.get(key)
        if row is None or packet not in row.packets:
            raise Broken(MALFORMED)
        if key not in (0x0B, 0x26) and any(key == other for other, *_ in found):
            raise Broken(PROTOCOL)
        value, at = property_value(raw, at + 1, row.type)
        if row.type is Type.BYTE and value > 1:
            raise Broken(PROTOCOL)
        if key == 0x0B and (value == 0 or role == kernel.SERVER):
            raise Broken(PROTOCOL)
        if key == 0x23 and value == 0:
            raise Broken(BAD_ALIAS)
        if key == 0x08 and (b"+" in value or b"#" in value):
            raise Broken(PROTOCOL)
        found.append((key, raw[start:at], value))
    return found


def property_value(raw: bytes, at: int, kind: Type) -> tuple[Any, int]:
    if kind in (Type.BYTE, Type.U16, Type.U32):
        return number(raw, at, {Type.BYTE: 1, Type.U16: 2, Type.U32: 4}[kind])
    if kind is Type.VARIABLE:
        try:
            return variable_at(raw, at, minimal=True)
        except CutOff:
            raise Broken(MALFORMED) from None
    value, at = piece(raw, at)
    if kind is Type.BINARY:
        return value, at
    check_text(value)
    if kind is Type.PAIR:
        other, at = piece(raw, at)
        check_text(other)
        return (value, other), at
    return value, at


# --- the renderer ---


def split_envelope(envelope: bytes) -> tuple[int, bytes, bytes]:
    flags, length = struct.unpack_from(">BH", envelope)
    return flags, envelope[3 : 3 + length], envelope[3 + length :]


def publish(
    record: Record,
    version: int,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    properties: bytes,
    topic_alias: int,
    with_topic: bool,
    now_ms: int,
) -> bytes:
    _, topic, own = split_envelope(record.envelope)
    if version == Version.V3_1_1:
        topic_alias, with_topic = 0, True
    name = topic if with_topic else b""
    body = struct.pack(">H", len(name)) + name
    if qos:
        body += struct.pack(">H", packet_id)
    if version == Version.V5:
        alias = b"\x23" + struct.pack(">H", topic_alias) if topic_alias else b""
        whole = properties + alias + counted_down(own, record.expires_at_ms, now_ms)
        body += write_variable(len(whole)) + whole
    body += record.value or b""
    first = 0x30 | dup << 3 | qos << 1 | retain
    return bytes((first,)) + write_variable(len(body)) + body


def counted_down(raw: bytes, expires_at_ms: int, now_ms: int) -> bytes:
    out = b""
    for key, whole, value in properties_in(raw, Kind.PUBLISH, kernel.CLIENT):
        if key == 0x02:
            left_s = min(value, max(0, -(-(expires_at_ms - now_ms) // 1000)))
            whole = b"\x02" + struct.pack(">I", left_s)
        out += whole
    return out
