"""Every packet of MQTT 3.1, 3.1.1 and 5.0: a frozen struct each, with one encoder and one decoder.

    packet   kind:4 flags:4  remaining length:variable  body

    CONNECT      "MQTT" or, in 3.1, "MQIsdp"  level:u8  flags:u8  keep alive:u16
                 [properties]  client id  [will properties] [will topic] [will payload]
                 [user name] [password]
                 flags, from the high bit: user name, password, will retain, will QoS (two bits),
                 will, clean start, 0
    CONNACK      0000000 session present:1  reason:u8  [properties]
    PUBLISH      topic  [packet id:u16 for QoS 1 and 2]  [properties]  payload
    PUBACK …     packet id:u16  [reason:u8  [properties]]
    SUBSCRIBE    packet id:u16  [properties]  { filter  options:u8 }+
                 options: 00  retain handling:2  retain as published:1  no local:1  QoS:2
    SUBACK       packet id:u16  [properties]  reason:u8+
    UNSUBSCRIBE  packet id:u16  [properties]  filter+
    UNSUBACK     packet id:u16  [properties  reason:u8+]
    DISCONNECT   [reason:u8  [properties]]              AUTH as DISCONNECT

Properties and reasons are version 5's; before it they are not there, and CONNACK and SUBACK have a
few return codes instead. The structs speak version 5 and the encoder puts it into fewer words.
Runs of PUBLISH and of acknowledgements are for the kernels (``scan``, ``render``).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from braidmq.wire.mqtt.constants import (
    BRIDGE,
    FLAGS,
    PACKET_ID_MAX,
    PROTOCOL_NAMES,
    QOS_MAX,
    REASONS,
    RETURN_CODES,
    SUBSCRIBE_FAILED,
    Kind,
    Reason,
    Version,
)
from braidmq.wire.mqtt.errors import (
    ClientIdInvalid,
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    UnsupportedVersion,
)
from braidmq.wire.mqtt.properties import (
    NO_PROPERTIES,
    WILL,
    Properties,
    read_properties,
    write_properties,
)
from braidmq.wire.mqtt.text import (
    Reader,
    check_subscription,
    check_topic,
    write_binary,
    write_string,
    write_variable,
)

CLEAN_START, HAS_WILL, WILL_QOS_SHIFT, WILL_RETAIN, HAS_PASSWORD, HAS_USER = 2, 4, 3, 32, 64, 128
RETAIN, QOS_SHIFT, DUP = 1, 1, 8
FILTERS_MAX = 16_384
"""In one SUBSCRIBE or UNSUBSCRIBE: four bytes of wire become objects of hundreds, and millions of
them take seconds to read. Who has more sends another packet."""
NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING_SHIFT = 4, 8, 4


class Packet(msgspec.Struct, frozen=True):
    KIND: ClassVar[Kind]


class Will(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(Packet, frozen=True):
    KIND = Kind.CONNECT
    version: int = Version.V5
    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False


class ConnAck(Packet, frozen=True):
    KIND = Kind.CONNACK
    session_present: bool = False
    reason: int = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Publish(Packet, frozen=True):
    KIND = Kind.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class _Answer(Packet, frozen=True):
    packet_id: int
    reason: int = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubAck(_Answer, frozen=True):
    KIND = Kind.PUBACK


class PubRec(_Answer, frozen=True):
    KIND = Kind.PUBREC


class PubRel(_Answer, frozen=True):
    KIND = Kind.PUBREL


class PubComp(_Answer, frozen=True):
    KIND = Kind.PUBCOMP


class Request(msgspec.Struct, frozen=True):
    """One filter of a SUBSCRIBE. In 3.1.1 there is only the QoS."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Packet, frozen=True):
    KIND = Kind.SUBSCRIBE
    packet_id: int
    requests: tuple[Request, ...]
    properties: Properties = NO_PROPERTIES


class SubAck(Packet, frozen=True):
    KIND = Kind.SUBACK
    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Packet, frozen=True):
    KIND = Kind.UNSUBSCRIBE
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubAck(Packet, frozen=True):
    KIND = Kind.UNSUBACK
    packet_id: int
    reasons: tuple[int, ...] = ()
    """None in 3.1.1."""
    properties: Properties = NO_PROPERTIES


class PingReq(Packet, frozen=True):
    KIND = Kind.PINGREQ


class PingResp(Packet, frozen=True):
    KIND = Kind.PINGRESP


class Disconnect(Packet, frozen=True):
    KIND = Kind.DISCONNECT
    reason: int = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Auth(Packet, frozen=True):
    KIND = Kind.AUTH
    reason: int = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


# --- decoding ---


def decode(version: int, kind: int, flags: int, body: bytes) -> Packet:
    """A packet from its first byte's halves and its body. ``version`` is of no matter for CONNECT,
    which says it itself."""
    decoder = _DECODERS.get(kind)
    if decoder is None or (kind == Kind.AUTH and version != Version.V5):
        raise MalformedPacket(f"there is no packet of kind {kind}")
    if version != Version.V3_1 and kind != Kind.PUBLISH and flags != FLAGS[Kind(kind)]:
        raise MalformedPacket(f"flags 0x{flags:x} in a packet of kind {kind}")
    reader = Reader(body)
    packet = decoder(reader, version, flags)
    reader.finish()
    return packet


def _connect(reader: Reader, _version: int, _flags: int) -> Connect:
    name, level = reader.string(), reader.byte()
    is_bridge = level in (BRIDGE | Version.V3_1, BRIDGE | Version.V3_1_1)
    if is_bridge:
        level ^= BRIDGE
    if name != PROTOCOL_NAMES.get(level):  # type: ignore[call-overload]
        raise UnsupportedVersion(
            f"protocol {name!r} level {level}; we speak MQTT 3.1, 3.1.1 and 5.0"
        )
    flags = reader.byte()
    _check_connect_flags(flags, level)
    keep_alive_s = reader.u16()
    properties = _properties(reader, level, Kind.CONNECT)
    client_id = reader.string()
    clean_start = bool(flags & CLEAN_START)
    _check_client_id(client_id, level, clean_start)
    will = _will(reader, level, flags) if flags & HAS_WILL else None
    # 3.1 lets them be missing, whatever the flags say: its forerunner did not have them.
    is_short = level == Version.V3_1 and not reader.left
    user_name = reader.string() if flags & HAS_USER and not is_short else None
    is_short = level == Version.V3_1 and not reader.left
    password = reader.binary() if flags & HAS_PASSWORD and not is_short else None
    return Connect(
        level,
        client_id,
        clean_start,
        keep_alive_s,
        will,
        user_name,
        password,
        properties,
        is_bridge,
    )


def _check_client_id(client_id: str, level: int, clean_start: bool) -> None:
    """Longer ones than the 23 characters of 3.1 are taken, as everybody does."""
    if client_id or level == Version.V5:
        return
    if level == Version.V3_1:
        raise ClientIdInvalid("in MQTT 3.1 every client has a client id")
    if not clean_start:
        # MQTT-3.1.3-8 of 3.1.1
        raise ClientIdInvalid("a client that keeps its session has a client id")


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 1 and level != Version.V3_1:
        raise MalformedPacket("the reserved bit of CONNECT is set")
    will_qos = flags >> WILL_QOS_SHIFT & 3
    if will_qos > QOS_MAX:
        raise MalformedPacket("a will with QoS 3")
    if not flags & HAS_WILL and (will_qos or flags & WILL_RETAIN):
        raise MalformedPacket("QoS or retain of a will that is not there")
    if level != Version.V5 and flags & HAS_PASSWORD and not flags & HAS_USER:
        # MQTT-3.1.2-22 of 3.1.1; version 5 allows it.
        raise MalformedPacket("a password without a user name")


def _will(reader: Reader, level: int, flags: int) -> Will:
    properties = _properties(reader, level, WILL)
    topic, payload = reader.string(), reader.binary()
    check_topic(topic)
    qos, retain = flags >> WILL_QOS_SHIFT & 3, bool(flags & WILL_RETAIN)
    return Will(topic, payload, qos, retain, properties)


def _connack(reader: Reader, version: int, _flags: int) -> ConnAck:
    present, reason = reader.byte(), reader.byte()
    if present > 1:
        raise MalformedPacket("reserved bits of CONNACK are set")
    if version == Version.V5:
        _check_reason(Kind.CONNACK, reason)
    elif reason in _RETURN_REASONS:
        reason = _RETURN_REASONS[reason]
    else:
        raise ProtocolError(f"return code {reason} in CONNACK")
    return ConnAck(bool(present), reason, _properties(reader, version, Kind.CONNACK))


def _publish(reader: Reader, version: int, flags: int) -> Publish:
    qos, dup = flags >> QOS_SHIFT & 3, bool(flags & DUP)
    if qos > QOS_MAX:
        raise MalformedPacket("a PUBLISH with QoS 3")
    if dup and not qos:
        raise MalformedPacket("DUP in a PUBLISH with QoS 0")
    topic = reader.string()
    packet_id = _packet_id(reader) if qos else 0
    properties = _properties(reader, version, Kind.PUBLISH)
    if topic or properties.topic_alias is None:
        check_topic(topic)
    return Publish(topic, reader.rest(), qos, bool(flags & RETAIN), dup, packet_id, properties)


def _answer(kind: Kind) -> Callable[[Reader, int, int], Packet]:
    packet: type[_Answer] = _ANSWERS[kind]

    def decoder(reader: Reader, version: int, _flags: int) -> Packet:
        packet_id = _packet_id(reader)
        if version != Version.V5 or not reader.left:
            return packet(packet_id)
        reason = reader.byte()
        _check_reason(kind, reason)
        return packet(packet_id, reason, _optional_properties(reader, kind))

    return decoder


def _subscribe(reader: Reader, version: int, _flags: int) -> Subscribe:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Kind.SUBSCRIBE)
    requests = []
    while reader.left:
        requests.append(_request(reader, version))
        _check_count(requests)
    if not requests:
        raise ProtocolError("a SUBSCRIBE without filters")
    return Subscribe(packet_id, tuple(requests), properties)


def _check_count(filters: list[Any]) -> None:
    if len(filters) > FILTERS_MAX:
        raise PacketTooLarge(f"more than {FILTERS_MAX} filters in one packet")


def _request(reader: Reader, version: int) -> Request:
    pattern, options = reader.string(), reader.byte()
    shared = check_subscription(pattern)
    if options & (0xC0 if version == Version.V5 else 0xFC):
        raise MalformedPacket("reserved bits of subscription options are set")
    request = Request(
        pattern,
        options & 3,
        bool(options & NO_LOCAL),
        bool(options & RETAIN_AS_PUBLISHED),
        options >> RETAIN_HANDLING_SHIFT & 3,
    )
    if request.qos > QOS_MAX or request.retain_handling > 2:
        raise ProtocolError("QoS or retain handling of a subscription is 3")
    if shared is not None and request.no_local:
        # MQTT-3.8.3-4
        raise ProtocolError("a shared subscription with no-local")
    return request


def _suback(reader: Reader, version: int, _flags: int) -> SubAck:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Kind.SUBACK)
    reasons = tuple(reader.rest())
    allowed = REASONS[Kind.SUBACK] if version == Version.V5 else {0, 1, 2, SUBSCRIBE_FAILED}
    if not reasons or not allowed.issuperset(reasons):
        raise ProtocolError("reason codes of SUBACK are missing or unknown")
    return SubAck(packet_id, reasons, properties)


def _unsubscribe(reader: Reader, version: int, _flags: int) -> Unsubscribe:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Kind.UNSUBSCRIBE)
    filters = []
    while reader.left:
        filters.append(reader.string())
        check_subscription(filters[-1])
        _check_count(filters)
    if not filters:
        raise ProtocolError("an UNSUBSCRIBE without filters")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(reader: Reader, version: int, _flags: int) -> UnsubAck:
    packet_id = _packet_id(reader)
    if version != Version.V5:
        return UnsubAck(packet_id)
    properties = _properties(reader, version, Kind.UNSUBACK)
    reasons = tuple(reader.rest())
    if not reasons or not REASONS[Kind.UNSUBACK].issuperset(reasons):
        raise ProtocolError("reason codes of UNSUBACK are missing or unknown")
    return UnsubAck(packet_id, reasons, properties)


def _disconnect(reader: Reader, version: int, _flags: int) -> Disconnect:
    if version != Version.V5 or not reader.left:
        return Disconnect()
    reason = reader.byte()
    _check_reason(Kind.DISCONNECT, reason)
    return Disconnect(reason, _optional_properties(reader, Kind.DISCONNECT))


def _auth(reader: Reader, _version: int, _flags: int) -> Auth:
    if not reader.left:
        return Auth()
    reason = reader.byte()
    _check_reason(Kind.AUTH, reason)
    return Auth(reason, _optional_properties(reader, Kind.AUTH))


def _packet_id(reader: Reader) -> int:
    packet_id = reader.u16()
    if not packet_id:
        # MQTT-2.2.1-3
        raise ProtocolError("packet identifier 0")
    return packet_id


def _check_reason(kind: Kind, reason: int) -> None:
    if reason not in REASONS[kind]:
        raise ProtocolError(f"reason code 0x{reason:02x} in {kind.name}")


def _properties(reader: Reader, version: int, packet: int) -> Properties:
    return read_properties(reader, packet) if version == Version.V5 else NO_PROPERTIES


def _optional_properties(reader: Reader, packet: int) -> Properties:
    """Where a packet may end before them."""
    return read_properties(reader, packet) if reader.left else NO_PROPERTIES


_RETURN_REASONS: Final = {code: reason for reason, code in RETURN_CODES.items()}
_ANSWERS: Final[dict[Kind, type[_Answer]]] = {
    each.KIND: each for each in (PubAck, PubRec, PubRel, PubComp)
}
_DECODERS: Final[dict[int, Callable[[Reader, int, int], Packet]]] = {
    Kind.CONNECT: _connect,
    Kind.CONNACK: _connack,
    Kind.PUBLISH: _publish,
    **{kind: _answer(kind) for kind in _ANSWERS},
    Kind.SUBSCRIBE: _subscribe,
    Kind.SUBACK: _suback,
    Kind.UNSUBSCRIBE: _unsubscribe,
    Kind.UNSUBACK: _unsuback,
    Kind.PINGREQ: lambda _reader, _version, _flags: PingReq(),
    Kind.PINGRESP: lambda _reader, _version, _flags: PingResp(),
    Kind.DISCONNECT: _disconnect,
    Kind.AUTH: _auth,
}


# --- encoding ---


def encode(packet: Packet, version: int = Version.V5) -> bytes:
    """The whole packet. CONNECT knows its version itself."""
    flags, body = _ENCODERS[type(packet)](packet, version)
    return bytes((packet.KIND << 4 | flags,)) + write_variable(len(body)) + body


Encoded = tuple[int, bytes]


def _encode_connect(packet: Connect, _version: int) -> Encoded:
    version, will = packet.version, packet.will
    flags = CLEAN_START if packet.clean_start else 0
    parts = [
        _with_properties(packet.properties, version, Kind.CONNECT),
        write_string(packet.client_id),
    ]
    if will is not None:
        flags |= HAS_WILL | will.qos << WILL_QOS_SHIFT | (WILL_RETAIN if will.retain else 0)
        parts.append(_with_properties(will.properties, version, WILL))
        parts += (write_string(will.topic), write_binary(will.payload))
    if packet.user_name is not None:
        flags |= HAS_USER
        parts.append(write_string(packet.user_name))
    if packet.password is not None:
        flags |= HAS_PASSWORD
        parts.append(write_binary(packet.password))
    level = version | BRIDGE if packet.is_bridge else version
    name = write_string(PROTOCOL_NAMES[Version(version)])
    head = name + bytes((level, flags)) + _u16(packet.keep_alive_s)
    return 0, head + b"".join(parts)


def _encode_connack(packet: ConnAck, version: int) -> Encoded:
    reason = packet.reason if version == Version.V5 else RETURN_CODES[Reason(packet.reason)]
    head = bytes((packet.session_present and version != Version.V3_1, reason))
    return 0, head + _with_properties(packet.properties, version, Kind.CONNACK)


def _encode_publish(packet: Publish, version: int) -> Encoded:
    flags = packet.dup * DUP | packet.qos << QOS_SHIFT | packet.retain * RETAIN
    head = write_string(packet.topic) + (_u16(packet.packet_id) if packet.qos else b"")
    properties = _with_properties(packet.properties, version, Kind.PUBLISH)
    return flags, head + properties + packet.payload


def _encode_answer(packet: _Answer, version: int) -> Encoded:
    tail = _reason_and_properties(packet, version)
    return FLAGS[packet.KIND], _u16(packet.packet_id) + tail


def _encode_subscribe(packet: Subscribe, version: int) -> Encoded:
    parts = [_u16(packet.packet_id), _with_properties(packet.properties, version, Kind.SUBSCRIBE)]
    for each in packet.requests:
        options = each.qos
        if version == Version.V5:
            options |= each.no_local * NO_LOCAL | each.retain_as_published * RETAIN_AS_PUBLISHED
            options |= each.retain_handling << RETAIN_HANDLING_SHIFT
        parts += (write_string(each.filter), bytes((options,)))
    return FLAGS[Kind.SUBSCRIBE], b"".join(parts)


def _encode_suback(packet: SubAck, version: int) -> Encoded:
    reasons = packet.reasons
    if version != Version.V5:
        reasons = tuple(min(reason, SUBSCRIBE_FAILED) for reason in reasons)
    properties = _with_properties(packet.properties, version, Kind.SUBACK)
    return 0, _u16(packet.packet_id) + properties + bytes(reasons)


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> Encoded:
    properties = _with_properties(packet.properties, version, Kind.UNSUBSCRIBE)
    filters = b"".join(map(write_string, packet.filters))
    return FLAGS[Kind.UNSUBSCRIBE], _u16(packet.packet_id) + properties + filters


def _encode_unsuback(packet: UnsubAck, version: int) -> Encoded:
    if version != Version.V5:
        return 0, _u16(packet.packet_id)
    properties = write_properties(packet.properties, Kind.UNSUBACK)
    return 0, _u16(packet.packet_id) + properties + bytes(packet.reasons)


def _encode_end(packet: Disconnect | Auth, version: int) -> Encoded:
    return 0, _reason_and_properties(packet, version)


def _reason_and_properties(packet: _Answer | Disconnect | Auth, version: int) -> bytes:
    """As short as it can be said: nothing for success, no properties if there are none."""
    if version != Version.V5 or (not packet.reason and packet.properties == NO_PROPERTIES):
        return b""
    if packet.properties == NO_PROPERTIES:
        return bytes((packet.reason,))
    return bytes((packet.reason,)) + write_properties(packet.properties, packet.KIND)


def _with_properties(properties: Properties, version: int, packet: int) -> bytes:
    """In 3.1.1 there are none, and what they say goes unsaid."""
    return write_properties(properties, packet) if version == Version.V5 else b""


def _u16(value: int) -> bytes:
    assert 0 <= value <= PACKET_ID_MAX
    return value.to_bytes(2)


_ENCODERS: Final[dict[type[Packet], Callable[[Any, int], Encoded]]] = {
    Connect: _encode_connect,
    ConnAck: _encode_connack,
    Publish: _encode_publish,
    **dict.fromkeys(_ANSWERS.values(), _encode_answer),
    Subscribe: _encode_subscribe,
    SubAck: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    UnsubAck: _encode_unsuback,
    PingReq: lambda _packet, _version: (0, b""),
    PingResp: lambda _packet, _version: (0, b""),
    Disconnect: _encode_end,
    Auth: _encode_end,
}


def publish_head(data: memoryview) -> tuple[bytes, int, int] | None:
    """Topic, QoS and packet id of a PUBLISH that may not be whole; None if it is none, if not all
    of these are there, or if the topic is an alias."""
    if len(data) < 2 or data[0] >> 4 != Kind.PUBLISH:
        return None
    at = 1
    while at < 5 and at < len(data) and data[at] & 0x80:
        at += 1
    at += 1
    topic_bytes = int.from_bytes(data[at : at + 2])
    end = at + 2 + topic_bytes
    if not topic_bytes or len(data) < end + 2:
        return None
    qos = data[0] >> 1 & 3
    packet_id = int.from_bytes(data[end : end + 2]) if qos else 0
    return bytes(data[at + 2 : end]), qos, packet_id
