"""Conversations in MQTT that no client should have: seeds in, bytes out."""

import random
from dataclasses import dataclass

from tests.fuzz.hostile import cut, ending
from tests.fuzz.hostile_queues import queue_packet
from tests.fuzz.watching import NAMESPACE

from braidmq.wire.mqtt.constants import Kind, Version
from braidmq.wire.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
)
from braidmq.wire.mqtt.properties import PROPERTIES, Properties, Type

TOPICS = ("a", "a", "b", "a/b", "a//", "é/b", "$x/y", "$SYS/broker/uptime", "x" * 300)
FILTERS = (*TOPICS, "#", "+", "a/#", "+/b", "$share/g/a", "$share/g/#", "$SYS/#", "$queue/q")
USER = f"{NAMESPACE}:guest"


@dataclass(frozen=True)
class Conversation:
    """What is sent, after a good CONNECT or not, in which pieces, and how it ends."""

    version: int
    opening: bytes
    """CONNECT that is to be accepted; empty when the pieces are all there is."""
    pieces: list[bytes]
    ending: str
    codes: tuple[int, ...] = ()
    """Reasons of the DISCONNECT that is due for it, in version 5; 3.1.1 is closed."""


def conversation(seed: int) -> Conversation:
    source = random.Random(seed)
    kind = source.choice((before, before, wrong, wrong, *(traffic,) * 4, *(queues,) * 4))
    return kind(source)


def opening(source: random.Random, version: int) -> bytes:
    client_id = source.choice(("", "one", "two"))
    clean = not client_id or source.random() < 0.5
    properties = Properties()
    if version == Version.V5:
        properties = Properties(
            session_expiry_interval=source.choice((None, 0, 1, 600)),
            receive_maximum=source.choice((None, 1, 3)),
            topic_alias_maximum=source.choice((None, 2)),
            maximum_packet_size=source.choice((None, None, 200)),
        )
    will = Will("a", b"gone", source.randrange(3)) if source.random() < 0.3 else None
    packet = Connect(version, client_id, clean, 0, will, USER, b"guest", properties)
    return encode(packet, version)


def any_version(source: random.Random) -> int:
    return source.choice((Version.V3_1_1, Version.V5))


# --- before it is open ---


def before(source: random.Random) -> Conversation:
    version = any_version(source)
    choice = source.randrange(5)
    data = opening(source, version)
    if choice == 0:
        data = source.randbytes(source.randrange(1, 2000))
    elif choice == 1:
        data = source.choice(
            (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\0\x09\1", b"\x17\x03\x01", b"\x10")
        )
    elif choice == 2:
        data = encode(any_packet(source, version), version) + data
    elif choice == 3:
        data += data
    else:
        data = mutated(source, data)
    return Conversation(version, b"", cut(source, data), ending(source))


# --- wrong in a way that has a reason code ---

MALFORMED, PROTOCOL, ALIAS, TOO_LARGE = 0x81, 0x82, 0x94, 0x95


def wrong(source: random.Random) -> Conversation:
    """Good traffic, and one thing that the specification has a reason code for."""
    version = any_version(source)
    good = b"".join(
        encode(
            source.choice((PingReq(), Publish("n/a", b"x"), Subscribe(1, (Request("n/b"),)))),
            version,
        )
        for _ in range(source.randrange(3))
    )
    empty = b"\0" if version == Version.V5 else b""
    mistakes: list[tuple[bytes, int]] = [
        (b"\0\0", MALFORMED),
        (b"\x36\x06\0\1a\0\1" + (empty or b"x"), MALFORMED),
        (b"\x30\xff\xff\xff\xff\x7f", MALFORMED),
        (b"\x30\xff\xff\xff\x7f", TOO_LARGE),
        (b"\x30" + bytes((4 + len(empty),)) + b"\0\2\xff\xfe" + empty, MALFORMED),
        (b"\x30" + bytes((4 + len(empty),)) + b"\0\2a#" + empty, PROTOCOL),
        (b"\x80" + bytes((6 + len(empty),)) + b"\0\1" + empty + b"\0\1a\0", MALFORMED),
        (b"\x82" + bytes((2 + len(empty),)) + b"\0\1" + empty, PROTOCOL),
        (b"\x62\x02\0\0", PROTOCOL),
        (b"\xd0\0", PROTOCOL),
        (encode(Connect(version, "x"), version), PROTOCOL),
    ]
    if version == Version.V5:
        alias = Properties(topic_alias=source.choice((257, 65535)))
        mistakes += [
            (encode(Publish("a", properties=alias)), ALIAS),
            (b"\x30\x06\0\1a\x03\x23\0", MALFORMED),
            (encode(Auth(0x19, Properties(authentication_method="x"))), PROTOCOL),
        ]
    bad, code = source.choice(mistakes)
    data = encode(Connect(version, "", user_name=USER, password=b"guest"), version)
    return Conversation(version, data, cut(source, good + bad), "wait", (code,))


# --- anything ---


def traffic(source: random.Random) -> Conversation:
    """Packets of all kinds, whole and broken, in any order."""
    version = any_version(source)
    pieces = [encode(any_packet(source, version), version)]
    for _ in range(source.randrange(1, 60)):
        one = encode(any_packet(source, version), version)
        pieces.append(mutated(source, one) if source.random() < 0.02 else one)
    return Conversation(
        version, opening(source, version), cut(source, b"".join(pieces)), ending(source)
    )


def queues(source: random.Random) -> Conversation:
    """The same about durable queues: consumers, their answers, and who makes and changes them."""
    version = any_version(source)
    pieces = []
    for _ in range(source.randrange(1, 60)):
        packet = queue_packet(source, version)
        if source.random() < 0.1:
            packet = any_packet(source, version)
        one = encode(packet, version)
        pieces.append(mutated(source, one) if source.random() < 0.02 else one)
    return Conversation(
        version, opening(source, version), cut(source, b"".join(pieces)), ending(source)
    )


def any_packet(source: random.Random, version: int) -> Packet:
    number = source.choice((1, 2, 3, 4, 5, 65535))
    qos = source.randrange(3)
    choice = source.randrange(100)
    if choice < 50:
        properties = any_properties(source, Kind.PUBLISH) if version == Version.V5 else Properties()
        topic = source.choice(TOPICS)
        payload = source.randbytes(source.choice((0, 1, 20, 300, 5000)))
        retain, dup = source.random() < 0.2, bool(qos) and source.random() < 0.2
        return Publish(topic, payload, qos, retain, dup, number if qos else 0, properties)
    if choice < 70:
        requests = tuple(
            Request(source.choice(FILTERS), source.randrange(3))
            for _ in range(source.randrange(1, 4))
        )
        return Subscribe(number, requests)
    if choice < 76:
        return Unsubscribe(number, (source.choice(FILTERS),))
    if choice < 95:
        return source.choice((PubAck, PubRec, PubRel, PubComp))(number)
    if choice < 99:
        return PingReq()
    return Disconnect()


def any_properties(source: random.Random, packet: int) -> Properties:
    values: dict[str, object] = {}
    for row in source.sample(PROPERTIES, source.choice((0, 0, 0, 1, 3))):
        if packet in row.packets and row.field != "subscription_identifiers":
            values[row.field] = any_value(source, row.type)
    if "topic_alias" in values:
        values["topic_alias"] = source.choice((1, 2, 256))
    return Properties(**values)  # type: ignore[arg-type]


def any_value(source: random.Random, kind: Type) -> object:
    text = source.choice(("", "a", "é", "x" * 200))
    return {
        Type.BYTE: source.randrange(2),
        Type.U16: source.choice((1, 7, 65535)),
        Type.U32: source.choice((0, 1, 60, 0xFFFFFFFF)),
        Type.VARIABLE: source.choice((1, 128, 268_435_455)),
        Type.BINARY: source.randbytes(5),
        Type.STRING: text,
        Type.PAIR: ((text, "v"), ("k", text)),
    }[kind]


def mutated(source: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    at, choice = source.randrange(len(spoilt)), source.randrange(4)
    if choice == 0:
        spoilt[at] ^= 1 << source.randrange(8)
    elif choice == 1:
        del spoilt[at:]
    elif choice == 2:
        spoilt[at:at] = source.randbytes(source.randrange(1, 9))
    else:
        spoilt[at : at + 4] = b"\xff" * 4
    return bytes(spoilt)
