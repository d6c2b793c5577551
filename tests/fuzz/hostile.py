"""Conversations that no client should have: seeds in, bytes out."""

import random
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.properties import Properties, content_header_payload, encode_properties

NAMES = ("", *"aaabbb", "amq.direct", "amq.topic", "amq.gen-x", "é" * 20, "x" * 255)
TAGS = ("", "t", "u")
OPEN = (1, 2, 3)
"""Channels that are open when a conversation begins."""
STRANGE = (0, 4, 2047, 2048, 65535)
FRAME_MAX = 131_072

USUAL = (
    m.ExchangeDeclare, m.ExchangeDelete, m.ExchangeBind, m.ExchangeUnbind, m.QueueDeclare,
    m.QueueBind, m.QueueUnbind, m.QueuePurge, m.QueueDelete, m.BasicQos, m.BasicConsume,
    m.BasicCancel, m.BasicGet, m.BasicAck, m.BasicNack, m.BasicReject, m.BasicRecover,
    m.ConfirmSelect, m.TxSelect, m.TxCommit, m.TxRollback, m.ChannelFlow, m.ChannelClose,
)  # fmt: skip


@dataclass(frozen=True)
class Conversation:
    """What is sent after which stage of the handshake, in which pieces, and how it ends."""

    logged_in: bool
    pieces: list[bytes]
    ending: str
    """``wait`` for the broker, ``shut`` our side, ``drop`` the socket, or ``reset`` it."""
    codes: tuple[int, ...] = ()
    """Close codes that the specification names for it."""


def conversation(seed: int) -> Conversation:
    source = random.Random(seed)
    kind = source.choice((before, before, wrong, wrong, traffic, traffic, traffic, traffic))
    return kind(source)


# --- before it is open ---


def before(source: random.Random) -> Conversation:
    """Garbage, other protocols, or a handshake with something wrong in it."""
    steps = [
        PROTOCOL_HEADER,
        m.method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
        m.method_frame(0, m.ConnectionTuneOk(2047, FRAME_MAX, 0)),
        m.method_frame(0, m.ConnectionOpen("fuzz")),
    ]
    choice = source.randrange(6)
    if choice == 0:
        steps = [source.randbytes(source.randrange(1, 2000))]
    elif choice == 1:
        steps = [source.choice((b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\1\0\0", b"\x17\x03\x01", b"A"))]
    elif choice == 2:
        source.shuffle(steps)
    elif choice == 3:
        steps.insert(source.randrange(5), any_frame(source))
    elif choice == 4:
        del steps[source.randrange(4)]
    else:
        at = source.randrange(4)
        steps[at] = mutated(source, steps[at])
    return Conversation(False, cut(source, b"".join(steps)), ending(source))


# --- wrong in a way that has a code ---


def wrong(source: random.Random) -> Conversation:
    """Good traffic, and one thing that the specification has a code for."""
    good = b"".join(good_traffic(source) for _ in range(source.randrange(3)))
    publish = m.method_frame(1, m.BasicPublish("", "nowhere"))
    header = m.frame(
        FrameKind.HEADER, 1, content_header_payload(3, encode_properties(Properties()))
    )
    body = m.frame(FrameKind.BODY, 1, b"abc")
    qos = m.encode(m.BasicQos(0, 1))
    bad_text = struct.pack(">HHHB", 50, 40, 0, 2) + b"\xff\xfe\0"
    mistakes: tuple[tuple[bytes, int], ...] = (
        (m.frame(FrameKind.METHOD, 1, qos)[:-1] + b"\0", 501),
        (struct.pack(">BHI", 1, 1, source.choice((FRAME_MAX + 1, 1 << 31, 0xFFFFFFFF))), 501),
        (m.frame(FrameKind.METHOD, 1, qos[: source.randrange(4, len(qos))]), 501),
        (m.frame(source.choice((4, 5, 7, 9, 255)), 1, source.randbytes(9)), 501),
        (m.frame(FrameKind.METHOD, 1, bad_text), 501),
        (m.frame(FrameKind.METHOD, 1, struct.pack(">HH", 60, source.randrange(200, 60000))), 540),
        (m.frame(FrameKind.METHOD, 1, table_bomb(source)), 502),
        (header, 505),
        (body, 505),
        (publish + body, 505),
        (publish + publish, 505),
        (publish + header + header, 505),
        (publish + header + m.frame(FrameKind.BODY, 1, b"abcd"), 505),
        (m.method_frame(source.randrange(10, 2000), m.BasicQos(0, 1)), 504),
        (m.method_frame(1, m.ChannelOpen()), 504),
        (m.method_frame(1, m.BasicQos(1, 0)), 540),
        (m.method_frame(1, m.ExchangeDeclare("x", "nonsense")), 503),
    )
    bad, code = source.choice(mistakes)
    # A field that can't be read is a malformed frame (501) as well as a syntax error (502).
    codes = (501, 502) if code in (501, 502) else (code,)
    return Conversation(True, cut(source, good + bad), "wait", codes)


def good_traffic(source: random.Random) -> bytes:
    # Nothing that depends on what others left behind.
    return source.choice(
        (
            m.method_frame(1, m.QueueDeclare(exclusive=True)),
            m.method_frame(1, m.QueueDeclare(exclusive=True)) + m.method_frame(1, m.BasicConsume()),
            m.method_frame(1, m.ConfirmSelect()),
            m.method_frame(1, m.BasicQos(0, 10)),
            m.HEARTBEAT_FRAME,
            content(1, "nowhere", source.randbytes(source.randrange(3000))),
        )
    )


def table_bomb(source: random.Random) -> bytes:
    """queue.declare with arguments that nest without end, or say they are endless."""
    start = struct.pack(">HHHBB", 50, 10, 0, 0, 0)
    choice = source.randrange(3)
    if choice == 0:
        inner = struct.pack(">I", 0)
        for _ in range(source.randrange(40, 3000)):
            entry = b"\1kF" + inner
            inner = struct.pack(">I", len(entry)) + entry
        return start + inner
    if choice == 1:
        return start + struct.pack(">I", 0xFFFFFFFF) + b"\1kS\xff\xff\xff\xff"
    array = b"\1kA" + struct.pack(">I", 0x7FFFFFFF) + b"F\0\0\0\0" * 100
    return start + struct.pack(">I", len(array)) + array


# --- anything ---

METHOD_TYPES = tuple(spec.method for spec in m.METHODS)


def traffic(source: random.Random) -> Conversation:
    """Frames of all kinds, whole and broken, in any order."""
    frames = [any_setting(source) for _ in range(source.randrange(4))]
    for _ in range(source.randrange(1, 60)):
        frame = any_frame(source)
        frames.append(mutated(source, frame) if source.random() < 0.02 else frame)
    return Conversation(True, cut(source, b"".join(frames)), ending(source))


def any_setting(source: random.Random) -> bytes:
    """Something for the rest to work on."""
    queue, exchange = source.choice("ab"), source.choice("ab")
    kind = source.choice(("direct", "topic", "fanout", "headers", "x-consistent-hash"))
    methods: tuple[m.Method, ...] = (
        m.QueueDeclare(queue),
        m.QueueDeclare(queue, arguments=any_table(source)),
        m.ExchangeDeclare(exchange, kind),
        m.QueueBind(queue, exchange, "1"),
        m.BasicConsume(queue, no_ack=source.random() < 0.5),
        m.ConfirmSelect(),
        m.TxSelect(),
    )
    return m.method_frame(source.choice(OPEN), source.choice(methods))


def any_frame(source: random.Random) -> bytes:
    channel = source.choice(STRANGE if source.random() < 0.02 else OPEN)
    choice = source.randrange(100)
    if choice < 55:
        return m.method_frame(channel, any_method(source))
    if choice < 80:
        body = source.randbytes(source.randrange(300))
        properties = any_properties(source) if choice < 70 else None
        exchange = source.choice(("", "", "a", "b", "amq.topic", "amq.headers"))
        return content(channel, source.choice(NAMES), body, properties, exchange)
    if choice < 84:
        # For a channel that the broker has closed by now; an error for one it has not.
        return m.method_frame(channel, m.ChannelCloseOk()) + m.method_frame(
            channel, m.ChannelOpen()
        )
    if choice < 86:
        kind = source.choice((1, 2, 3, 8, 8, 77))
        return m.frame(kind, channel, source.randbytes(source.randrange(40)))
    if choice < 98:
        return m.method_frame(channel, m.BasicGet(source.choice("ab"), no_ack=choice % 2 == 0))
    size = source.choice((0, 1, 100, 1 << 40))
    header = content_header_payload(size, encode_properties(any_properties(source)))
    return m.frame(FrameKind.HEADER, channel, header)


def any_method(source: random.Random) -> m.Method:
    usual = source.random() < 0.98
    kind: type[m.Method] = source.choice(USUAL if usual else METHOD_TYPES)
    values = {}
    for name, annotation in kind.__annotations__.items():
        if name in kind.__struct_fields__:
            values[name] = any_value(source, annotation)
    return kind(**values)


def any_value(source: random.Random, annotation: Any) -> Any:
    if annotation is bool:
        return source.random() < 0.2
    if annotation is int:
        return source.choice((0, 0, 0, 1, 2, 5, 255))
    if annotation is str:
        return source.choice((*NAMES, *TAGS, "direct", "topic", "fanout", "headers"))
    if annotation is bytes:
        return source.randbytes(source.randrange(20))
    return any_table(source)


def any_table(source: random.Random, depth: int = 0) -> dict[str, Any]:
    keys = (
        "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow",
        "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-priority", "x-queue-type",
        "x-single-active-consumer", "x-delivery-limit", "x-priority", "x-stream-offset", "x-match",
        "alternate-exchange", "x-delayed-type", "x-delay", "CC", "BCC", "k",
    )  # fmt: skip
    made = {}
    for _ in range(source.choice((0, 0, 0, 1, 2, 4))):
        made[source.choice(keys)] = any_field(source, depth)
    return made


def any_field(source: random.Random, depth: int) -> Any:
    values = (
        None, True, 0, 1, -1, 5, 60_000, (1 << 63) - 1, 1.5, float("nan"), "", "a", "quorum",
        "stream", "drop-head", "reject-publish", "all", "amq.topic", b"\xff\0",
    )  # fmt: skip
    if depth < 4 and source.random() < 0.2:
        return source.choice((any_table(source, depth + 1), [any_field(source, depth + 1)] * 3))
    return source.choice(values)


def any_properties(source: random.Random) -> Properties:
    return Properties(
        headers=any_table(source),
        delivery_mode=source.choice((None, 1, 2, 0, 9)),
        priority=source.choice((None, 0, 5, 255)),
        expiration=source.choice((None, None, "0", "10", "-1", "x", "9" * 30)),
        reply_to=source.choice((None, None, "amq.rabbitmq.reply-to", "a")),
        user_id=source.choice((None, None, None, "guest", "root")),
    )


def content(
    channel: int,
    key: str,
    body: bytes,
    properties: Properties | None = None,
    exchange: str = "",
) -> bytes:
    raw = encode_properties(properties or Properties(delivery_mode=2))
    parts = [
        m.method_frame(channel, m.BasicPublish(exchange, key)),
        m.frame(FrameKind.HEADER, channel, content_header_payload(len(body), raw)),
    ]
    if body:
        parts.append(m.frame(FrameKind.BODY, channel, body))
    return b"".join(parts)


# --- spoiling and cutting ---


def mutated(source: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    choice = source.randrange(5)
    if choice == 0:
        spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
    elif choice == 1:
        del spoilt[source.randrange(len(spoilt)) :]
    elif choice == 2:
        at = source.randrange(len(spoilt))
        spoilt[at:at] = source.randbytes(source.randrange(1, 9))
    elif choice == 3 and len(spoilt) >= 7:
        struct.pack_into(">I", spoilt, 3, source.choice((0, 1, 5, FRAME_MAX, 0xFFFFFFFF)))
    else:
        at = source.randrange(len(spoilt))
        spoilt[at : at + 4] = b"\xff" * 4
    return bytes(spoilt)


def cut(source: random.Random, data: bytes) -> list[bytes]:
    """In one piece, byte by byte, or anyhow."""
    choice = source.randrange(4)
    if choice < 2 or not data:
        return [data]
    if choice == 2 and len(data) < 400:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted({0, len(data), *(source.randrange(len(data)) for _ in range(5))})
    return [data[start:stop] for start, stop in pairwise(cuts)]


def ending(source: random.Random) -> str:
    return source.choice(("shut", "shut", "shut", "drop", "reset"))
