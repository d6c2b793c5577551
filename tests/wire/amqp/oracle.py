"""The AMQP scanner and renderer once more: plain Python, from the specification.

The scanner gives flat events, one for each message and each tag, since where the kernel cuts its
runs is its own affair.

    Publish   a message that came as method, header and body in a row
    Ack       one acknowledgement
    Frame     anything else
    Fault     the end of what can be read
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from braidmq.record.batch import (
    FLAG_KEYED,
    FLAG_TIMED,
    FLAG_TRANSIENT,
    Record,
    RecordBatch,
)
from braidmq.wire.amqp import scan as kernel
from braidmq.wire.amqp.errors import AmqpError
from braidmq.wire.amqp.methods import (
    BasicAck,
    BasicDeliver,
    BasicPublish,
    Method,
    decode,
    frame,
    method_frame,
)
from braidmq.wire.amqp.properties import content_header_payload, split_content_header

METHOD, HEADER, BODY = 1, 2, 3
OVERHEAD = 8
FRAME_ERROR = 501
DIRECT_REPLY_TO = b"amq.rabbitmq.reply-to"


class Publish(NamedTuple):
    channel: int
    flags: int
    exchange: bytes
    key: bytes
    record: Record
    """Its offset is always 0."""


class Ack(NamedTuple):
    channel: int
    tag: int
    multiple: bool


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


class Fault(NamedTuple):
    reply_code: int


Event = Publish | Ack | Frame | Fault


# --- what the kernel gave, flattened ---


def flattened(events: Iterable[tuple[Any, ...]]) -> list[Event]:
    flat: list[Event] = []
    for kind, *rest in events:
        if kind == kernel.EVENT_PUBLISH:
            flat += _messages(*rest)
        elif kind == kernel.EVENT_ACK:
            channel, first, last, multiple = rest
            assert first <= last
            assert first == last or not multiple
            flat += [Ack(channel, tag, bool(multiple)) for tag in range(first, last + 1)]
        elif kind == kernel.EVENT_FRAME:
            flat.append(Frame(*rest))
        else:
            assert kind == kernel.EVENT_ERROR
            assert isinstance(rest[1], str)
            flat.append(Fault(rest[0]))
    return flat


def _messages(
    channel: int, flags: int, exchange: bytes, key: bytes, batch: RecordBatch, destination: object
) -> list[Publish]:
    """Each with exchange and key of its own envelope: for a known destination, keys mix."""
    assert batch.count > 0
    batch.verify()
    routes = [_route(record.envelope) for record in batch.records()]
    assert routes[0] == (exchange, key)
    assert destination is not None or len(set(routes)) == 1
    return [
        Publish(channel, _told(flags), *route, record._replace(offset=0))
        for route, record in zip(
            routes, map(_legible, batch.records(), [flags] * batch.count), strict=True
        )
    ]


def _route(envelope: bytes) -> tuple[bytes, bytes]:
    middle = 1 + envelope[0]
    return envelope[1:middle], envelope[middle + 1 : middle + 1 + envelope[middle]]


def _told(flags: int) -> int:
    """With properties that can't be read, nothing is promised of what they say."""
    if flags & kernel.FLAG_BAD_PROPERTIES:
        return flags & (kernel.FLAG_MANDATORY | kernel.FLAG_IMMEDIATE | kernel.FLAG_BAD_PROPERTIES)
    return flags


def _legible(record: Record, flags: int) -> Record:
    if flags & kernel.FLAG_BAD_PROPERTIES:
        return record._replace(flags=0, priority=0, key=None, expires_at_ms=0, due_at_ms=0, dated=0)
    return record


# --- frames ---


class Unreadable(Exception):
    """Too large, or not ended by the frame-end octet."""


class Head(NamedTuple):
    kind: int
    channel: int
    length: int
    payload: bytes | None
    """None: not all of it is there yet."""
    end: int


def head_at(data: bytes, at: int, frame_max: int) -> Head | None:
    if len(data) - at < 7:
        return None
    kind, channel, length = struct.unpack_from(">BHI", data, at)
    end = at + length + OVERHEAD
    if length > frame_max:  # as RabbitMQ counts: the payload alone
        raise Unreadable
    if len(data) < end:
        return Head(kind, channel, length, None, end)
    if data[end - 1] != 0xCE:
        raise Unreadable
    return Head(kind, channel, length, data[at + 7 : end - 1], end)


def split_frames(data: bytes, frame_max: int = 1 << 32) -> list[Frame]:
    """Whole frames and nothing else."""
    frames, at = [], 0
    while at < len(data):
        head = head_at(data, at, frame_max)
        assert head is not None
        assert head.payload is not None
        frames.append(Frame(head.kind, head.channel, head.payload))
        at = head.end
    return frames


# --- the scanner ---


class Undecided(Exception):
    """More bytes could make it a message."""


def scan(data: bytes, frame_max: int, now_ms: int) -> tuple[list[Event], int]:
    events: list[Event] = []
    at = 0
    while True:
        try:
            head = head_at(data, at, frame_max)
        except Unreadable:
            return [*events, Fault(FRAME_ERROR)], at
        if head is None or head.payload is None:
            return events, at
        try:
            event, at = _event(data, head, frame_max, now_ms)
        except Undecided:
            return events, at
        events.append(event)


def _event(data: bytes, head: Head, frame_max: int, now_ms: int) -> tuple[Event, int]:
    assert head.payload is not None
    method = _decoded(head)
    if isinstance(method, BasicAck):
        return Ack(head.channel, method.delivery_tag, method.multiple), head.end
    if isinstance(method, BasicPublish) and head.channel:
        found = _content(data, head, frame_max)
        if found is not None:
            properties, body, end = found
            return _publish(head.channel, method, properties, body, now_ms), end
    return Frame(head.kind, head.channel, head.payload), head.end


def _decoded(head: Head) -> Method | None:
    if head.kind != METHOD:
        return None
    try:
        return decode(head.payload or b"")
    except AmqpError:
        return None


def _content(data: bytes, method: Head, frame_max: int) -> tuple[bytes, bytes, int] | None:
    """Properties, body and end of a content that follows as one header and at most one body."""
    header = _follower(data, method, HEADER, method.end, frame_max)
    if header is None or header.length < 14:
        return None
    if header.payload is None:
        raise Undecided
    try:
        size, properties = split_content_header(header.payload)
    except AmqpError:
        return None
    if size == 0:
        return properties, b"", header.end
    if size > frame_max:
        return None
    body = _follower(data, method, BODY, header.end, frame_max)
    if body is None or body.length != size:
        return None
    if body.payload is None:
        raise Undecided
    return properties, body.payload, body.end


def _follower(data: bytes, method: Head, kind: int, at: int, frame_max: int) -> Head | None:
    try:
        head = head_at(data, at, frame_max)
    except Unreadable:
        return None
    if head is None:
        raise Undecided
    return head if (head.kind, head.channel) == (kind, method.channel) else None


def _publish(channel: int, method: BasicPublish, raw: bytes, body: bytes, now_ms: int) -> Publish:
    exchange, key = method.exchange.encode(), method.routing_key.encode()
    envelope = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key + raw
    flags = kernel.FLAG_MANDATORY * method.mandatory | kernel.FLAG_IMMEDIATE * method.immediate
    record = Record(0, now_ms, None, body, envelope, kernel.ENVELOPE_AMQP)
    values = raw_properties(raw)
    if values is None:
        return Publish(channel, flags | kernel.FLAG_BAD_PROPERTIES, exchange, key, record)
    record = record._replace(priority=values.get("priority", b"\0")[0])
    flags |= kernel.FLAG_BAD_MODE if values.get("delivery_mode", b"\1") not in b"\1\2" else 0
    if values.get("delivery_mode") != b"\2":
        flags |= kernel.FLAG_TRANSIENT
        record = record._replace(flags=FLAG_TRANSIENT)
    if "headers" in values:
        flags |= kernel.FLAG_HEADERS
        flags |= kernel.FLAG_COPIES if b"CC" in values["headers"] else 0
        record, bad_time = _with_headers(record, values["headers"])
        flags |= kernel.FLAG_BAD_TIME if bad_time else 0
        flags |= _place_flags(values["headers"])
    flags |= kernel.FLAG_USER_ID if "user_id" in values else 0
    flags |= kernel.FLAG_REPLY_TO if values.get("reply_to") == DIRECT_REPLY_TO else 0
    if "expiration" in values:
        delay = milliseconds(values["expiration"])
        if delay is None:
            flags |= kernel.FLAG_BAD_EXPIRATION
        else:
            record = record._replace(
                expires_at_ms=max(now_ms, record.due_at_ms) + max(delay, 1),
                flags=record.flags | FLAG_TIMED,
            )
    return Publish(channel, flags, exchange, key, record)


TIME_MAX_MS = 1 << 53
FIELD_BYTES = dict(zip("VtbBsuIifDlLdT", (0, 1, 1, 1, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8), strict=True))
INTEGERS = dict(zip("bBsuIilL", (">b", ">B", ">h", ">H", ">i", ">I", ">q", ">q"), strict=True))


def _with_headers(record: Record, table: bytes) -> tuple[Record, bool]:
    """Key and due time, as the headers say, and whether that is no time."""
    fields: dict[bytes, tuple[str, bytes]] = {}
    for name, kind, value in _fields(table):
        fields.setdefault(name, (kind, value))
    if _is_key(fields.get(b"x-key")):
        record = record._replace(key=fields[b"x-key"][1], flags=record.flags | FLAG_KEYED)
    delay = _number(fields.get(b"x-delay"))
    at = _number(fields.get(b"x-deliver-at"))
    now_ms = record.timestamp_ms
    due = now_ms + delay if delay else at if at > now_ms else 0
    if due:
        dated = 0 if delay else 3
        record = record._replace(due_at_ms=due, flags=record.flags | FLAG_TIMED, dated=dated)
    times = [fields[name] for name in (b"x-delay", b"x-deliver-at") if name in fields]
    return record, len(times) > 1 or any(kind not in INTEGERS for kind, _ in times)


def _is_key(field: tuple[str, bytes] | None) -> bool:
    return field is not None and field[0] in "Sx" and len(field[1]) <= 65_535


def _place_flags(table: bytes) -> int:
    keys = [(kind, value) for name, kind, value in _fields(table) if name == b"x-key"]
    return _partition_flags(table) | kernel.FLAG_BAD_PLACE * bool(keys and not _is_key(keys[0]))


def _partition_flags(table: bytes) -> int:
    for name, kind, value in _fields(table):
        if name == b"x-partition":
            number = struct.unpack(INTEGERS[kind], value)[0] if kind in INTEGERS else -1
            if 0 <= number <= 0xFFFF:
                return (number + 1) * kernel.FLAG_PARTITION
            return kernel.FLAG_BAD_PLACE
    return 0


def _fields(table: bytes) -> Iterator[tuple[bytes, str, bytes]]:
    at = 0
    while at < len(table):
        name = table[at + 1 : at + 1 + table[at]]
        at += 1 + table[at]
        if at >= len(table):
            return
        kind = chr(table[at])
        at += 1
        length = FIELD_BYTES.get(kind)
        if length is None:
            if kind not in "SxAF" or at + 4 > len(table):
                return
            length = int.from_bytes(table[at : at + 4])
            at += 4
        if at + length > len(table):
            return
        yield name, kind, table[at : at + length]
        at += length


def _number(field: tuple[str, bytes] | None) -> int:
    if field is None or field[0] not in INTEGERS:
        return 0
    return min(max(struct.unpack(INTEGERS[field[0]], field[1])[0], 0), TIME_MAX_MS)


# --- properties, as far as their bytes go ---

NAMES = [
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]
FIXED_BYTES = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


def raw_properties(raw: bytes) -> dict[str, bytes] | None:
    """Each property's bytes without their length; None when they do not fit the flags."""
    flags = int.from_bytes(raw[:2])
    if len(raw) < 2 or flags & 0b11:
        return None
    at, values = 2, {}
    for i, name in enumerate(NAMES):
        if not flags & 0x8000 >> i:
            continue
        prefix = 0 if name in FIXED_BYTES else 4 if name == "headers" else 1
        if at + prefix > len(raw):
            return None
        length = FIXED_BYTES.get(name, int.from_bytes(raw[at : at + prefix]))
        at += prefix
        values[name] = raw[at : at + length]
        at += length
        if at > len(raw):
            return None
    return values if at == len(raw) else None


def milliseconds(text: bytes) -> int | None:
    if not 1 <= len(text) <= 15 or not all(48 <= each <= 57 for each in text):
        return None
    return int(text)


# --- the renderer ---


def content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    piece = (frame_max or 1 << 31) - OVERHEAD
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    return b"".join(
        (
            frame(HEADER, channel, content_header_payload(len(body), properties)),
            *(frame(BODY, channel, each) for each in pieces),
        )
    )


def deliveries(
    records: Iterable[Record],
    channel: int,
    consumer_tag: str,
    delivery_tag: int,
    redelivered: bool,
    frame_max: int,
) -> bytes:
    parts = []
    for tag, record in enumerate(records, delivery_tag):
        exchange, key, properties = split_envelope(record.envelope)
        method = BasicDeliver(consumer_tag, tag, redelivered, exchange.decode(), key.decode())
        parts.append(method_frame(channel, method))
        parts.append(content(channel, properties, record.value or b"", frame_max))
    return b"".join(parts)


def split_envelope(envelope: bytes) -> tuple[bytes, bytes, bytes]:
    length = envelope[0]
    exchange, rest = envelope[1 : 1 + length], envelope[1 + length :]
    return exchange, rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
