"""Packets there and back, refused where they must be, and as other clients pack them."""

import contextlib

import pytest
from gmqtt.mqtt.property import Property as GmqttProperty
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode

from braidmq.wire.mqtt.constants import REASONS, RETURN_CODES, Kind, Reason, Version
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    Type,
    decode_properties,
    encode_properties,
    may_repeat,
)
from braidmq.wire.mqtt.text import (
    Reader,
    Shared,
    check_filter,
    check_subscription,
    split_share,
    write_string,
    write_variable,
)

V3, V5 = Version.V3_1_1, Version.V5


def split(data: bytes) -> tuple[int, int, bytes]:
    reader = Reader(data, 1)
    assert reader.variable() == reader.left
    return data[0] >> 4, data[0] & 15, reader.rest()


def there_and_back(packet: Packet, version: int) -> Packet:
    return decode(version, *split(encode(packet, version)))


def reason_of(version: int, first: int, body: bytes) -> Reason:
    with pytest.raises(MqttError) as caught:
        decode(version, first >> 4, first & 15, body)
    return caught.value.reason


# --- any packet ---

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES = {
    Type.BYTE: st.integers(0, 1),
    Type.U16: st.integers(1, 0xFFFF),
    Type.U32: st.integers(1, 0xFFFFFFFF),
    Type.VARIABLE: st.integers(1, 268_435_455),
    Type.BINARY: st.binary(max_size=20),
    Type.STRING: texts,
    Type.PAIR: st.tuples(texts, texts),
}


def properties_for(packet: int) -> st.SearchStrategy[Properties]:
    values: dict[str, st.SearchStrategy] = {}
    for row in PROPERTIES:
        if packet not in row.packets:
            continue
        one = VALUES[row.type]
        if row.field == "response_topic":
            one = texts.map(lambda text: text.replace("+", "").replace("#", ""))
        if row.field in ("user_properties", "subscription_identifiers"):
            most = 3 if may_repeat(row.field, packet) else 1
            one = st.lists(one, min_size=1, max_size=most).map(tuple)
        values[row.field] = one
    return st.fixed_dictionaries({}, optional=values).map(
        lambda found: Properties(
            **{k: v for k, v in found.items() if k != "authentication_data"}
            | {
                k: v
                for k, v in found.items()
                if k == "authentication_data" and "authentication_method" in found
            }
        )
    )


ids = st.integers(1, 0xFFFF)
qos = st.integers(0, 2)
names = texts.map(lambda text: text.replace("+", "").replace("#", "")).filter(bool)
filters = st.sampled_from(["#", "+", "a/+/#", "/", "é", "$share/g/a/#", "$share/g//", "$SYS/#"])
wills = st.none() | st.builds(
    Will, names, st.binary(max_size=9), qos, st.booleans(), properties_for(WILL)
)


def reasons(kind: Kind) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(REASONS[kind]))


packets = st.one_of(
    st.builds(
        Connect,
        st.just(V5),
        texts,
        st.booleans(),
        st.integers(0, 0xFFFF),
        wills,
        st.none() | texts,
        st.none() | st.binary(max_size=9),
        properties_for(Kind.CONNECT),
    ),
    st.builds(ConnAck, st.booleans(), reasons(Kind.CONNACK), properties_for(Kind.CONNACK)),
    st.builds(
        lambda topic, payload, qos, retain, packet_id, properties: Publish(
            topic, payload, qos, retain, qos > 1, packet_id if qos else 0, properties
        ),
        names,
        st.binary(max_size=200),
        qos,
        st.booleans(),
        ids,
        properties_for(Kind.PUBLISH),
    ),
    *(
        st.builds(kind, ids, reasons(kind.KIND), properties_for(kind.KIND))
        for kind in (PubAck, PubRec, PubRel, PubComp)
    ),
    st.builds(
        Subscribe,
        ids,
        st.lists(
            st.builds(Request, filters, qos, st.just(False), st.booleans(), st.integers(0, 2)),
            min_size=1,
            max_size=3,
        ).map(tuple),
        properties_for(Kind.SUBSCRIBE),
    ),
    st.builds(
        SubAck,
        ids,
        st.lists(reasons(Kind.SUBACK), min_size=1).map(tuple),
        properties_for(Kind.SUBACK),
    ),
    st.builds(
        Unsubscribe,
        ids,
        st.lists(filters, min_size=1, max_size=3).map(tuple),
        properties_for(Kind.UNSUBSCRIBE),
    ),
    st.builds(
        UnsubAck,
        ids,
        st.lists(reasons(Kind.UNSUBACK), min_size=1).map(tuple),
        properties_for(Kind.UNSUBACK),
    ),
    st.just(PingReq()),
    st.just(PingResp()),
    st.builds(Disconnect, reasons(Kind.DISCONNECT), properties_for(Kind.DISCONNECT)),
    st.builds(Auth, reasons(Kind.AUTH), properties_for(Kind.AUTH)),
)


@given(packets)
@settings(deadline=None, max_examples=500)
def test_version_5_there_and_back(packet):
    assert there_and_back(packet, V5) == packet


@given(packets, st.data())
@settings(deadline=None, max_examples=300)
def test_damage_is_a_typed_error_or_another_packet(packet, data):
    version = data.draw(st.sampled_from([V3, V5]))
    kind, flags, body = split(encode(packet, V5))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3)) if body else 0):
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged)[: data.draw(st.integers(0, len(damaged)))]
    for each in (bytes(damaged), cut):
        try:
            found = decode(version, kind, flags, each)
        except MqttError:
            continue
        version_of = found.version if isinstance(found, Connect) else version
        assert there_and_back(found, version_of) == found


@given(st.integers(0, 17), st.integers(0, 15), st.binary(max_size=60), st.sampled_from([V3, V5]))
@settings(deadline=None, max_examples=300)
def test_garbage(kind, flags, body, version):
    with contextlib.suppress(MqttError):  # and no other error
        assert isinstance(decode(version, kind, flags, body), Packet)


V3_PACKETS = [
    Connect(V3, "c", True, 30),
    Connect(V3, "c", False, 0, Will("w", b"gone", 2, True), "user", b"\0secret"),
    Connect(V3, ""),
    *(ConnAck(False, reason) for reason in RETURN_CODES),
    ConnAck(True),
    Publish("t", b"x"),
    Publish("t", b"", 1, True, True, 7),
    PubAck(1),
    PubRec(2),
    PubRel(3),
    PubComp(0xFFFF),
    Subscribe(4, (Request("a/#", 1), Request("+", 2))),
    SubAck(4, (0, 1, 2, 0x80)),
    Unsubscribe(5, ("a/#",)),
    UnsubAck(5),
    PingReq(),
    PingResp(),
    Disconnect(),
]


@pytest.mark.parametrize("packet", V3_PACKETS, ids=lambda each: type(each).__name__)
def test_version_3_there_and_back(packet):
    assert there_and_back(packet, V3) == packet


def test_version_3_has_fewer_words():
    assert encode(SubAck(4, (2, 0x8F)), V3) == b"\x90\x04\0\4\x02\x80"
    assert encode(ConnAck(False, Reason.NOT_AUTHORIZED), V3) == b"\x20\x02\0\x05"
    assert encode(Disconnect(Reason.SERVER_BUSY), V3) == b"\xe0\0"
    assert encode(PubAck(1, Reason.QUOTA_EXCEEDED), V3) == b"\x40\x02\0\1"
    assert encode(UnsubAck(1, (0, 0x11)), V3) == b"\xb0\x02\0\1"
    plain = encode(Publish("t", b"x", properties=Properties(content_type="y")), V3)
    assert plain == b"\x30\x04\0\1tx"


def test_acknowledgements_are_as_short_as_they_can_be():
    assert encode(PubAck(1)) == b"\x40\x02\0\1"
    assert encode(PubRel(1)) == b"\x62\x02\0\1"
    assert encode(PubAck(1, 0x10)) == b"\x40\x03\0\1\x10"
    assert encode(Disconnect()) == b"\xe0\0"


# --- refused ---

NAME = b"\0\4MQTT"
REFUSED = [
    # CONNECT: name, level, flags, keep alive, properties, client id
    (V5, 0x10, NAME + b"\5\3\0\0\0\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\x1e\0\0\0\0\0\0\0\1w\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\x0a\0\0\0\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\x22\0\0\0\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\2\0\0\0\0\0x", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\2\0\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\4\x42\0\0\0\0\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\4\0\0\0\0\0", Reason.CLIENT_IDENTIFIER_NOT_VALID),
    (V5, 0x10, NAME + b"\6\2\0\0\0\0\0", Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (V5, 0x10, NAME + b"\3\2\0\0\0\0", Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (V5, 0x10, b"\0\6MQIsdp\3\2\0\0\0\0", Reason.CLIENT_IDENTIFIER_NOT_VALID),
    (V5, 0x10, b"\0\6MQIsdp\4\2\0\0\0\0", Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (V5, 0x10, b"\0\4mqtt\5\2\0\0\0\0\0", Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (V5, 0x10, NAME + b"\5\6\0\0\0\0\0\0\0\2w+\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x10, NAME + b"\5\2\0\0\3\x21\0\0\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x10, NAME + b"\5\2\0\0\4\x16\0\1x\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x10, NAME + b"\5\2\0\0\x04\x17\1\x17\1\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x10, NAME + b"\5\2\0\0\5\x02\0\0\0\1\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x10, NAME + b"\5\2\0\0\0\0\2a\0", Reason.MALFORMED_PACKET),
    # SUBSCRIBE: id, properties, filter, options
    (V5, 0x82, b"\0\1\0", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\0\0\0\1a\0", Reason.PROTOCOL_ERROR),
    (V5, 0x80, b"\0\1\0\0\1a\0", Reason.MALFORMED_PACKET),
    (V5, 0x82, b"\0\1\0\0\1a\3", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\1\0\0\1a\x30", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\1\0\0\1a\x40", Reason.MALFORMED_PACKET),
    (V3, 0x82, b"\0\1\0\1a\4", Reason.MALFORMED_PACKET),
    (V5, 0x82, b"\0\1\0\0\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\1\0\0\3a/#\0\0\2a#\0", Reason.MALFORMED_PACKET),
    (V5, 0x82, b"\0\1\2\x0b\0\0\1a\0", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\1\4\x0b\1\x0b\2\0\1a\0", Reason.PROTOCOL_ERROR),
    (V5, 0x82, b"\0\1\0\0\x0a$share/g/a\4", Reason.PROTOCOL_ERROR),
    (V5, 0xA2, b"\0\1\0", Reason.PROTOCOL_ERROR),
    (V5, 0x90, b"\0\1\0\x03", Reason.PROTOCOL_ERROR),
    (V5, 0x90, b"\0\1\0", Reason.PROTOCOL_ERROR),
    (V3, 0x20, b"\0\6", Reason.PROTOCOL_ERROR),
    (V5, 0x20, b"\2\0\0", Reason.MALFORMED_PACKET),
    (V5, 0x40, b"\0\1\x92", Reason.PROTOCOL_ERROR),
    (V3, 0x40, b"\0\1\0", Reason.MALFORMED_PACKET),
    (V5, 0xE0, b"\x05", Reason.PROTOCOL_ERROR),
    (V3, 0xE0, b"\0", Reason.MALFORMED_PACKET),
    (V5, 0xC0, b"\0", Reason.MALFORMED_PACKET),
    (V3, 0xF0, b"", Reason.MALFORMED_PACKET),
    (V5, 0xF0, b"\x01", Reason.PROTOCOL_ERROR),
    (V5, 0x00, b"", Reason.MALFORMED_PACKET),
    (V5, 0x36, b"\0\1a\0\1\0", Reason.MALFORMED_PACKET),
    (V5, 0x38, b"\0\1a\0", Reason.MALFORMED_PACKET),
    (V5, 0x30, b"\0\0\0", Reason.PROTOCOL_ERROR),
    (V5, 0x30, b"\0\1#\0", Reason.PROTOCOL_ERROR),
    (V5, 0x30, b"\0\1a\3\x23\0\0", Reason.TOPIC_ALIAS_INVALID),
]


@pytest.mark.parametrize(("version", "first", "body", "reason"), REFUSED)
def test_refused(version, first, body, reason):
    assert reason_of(version, first, body) == reason


def test_what_a_3_1_1_client_hears():
    with pytest.raises(MqttError) as caught:
        decode(0, Kind.CONNECT, 0, NAME + b"\4\0\0\0\0\0")
    assert caught.value.return_code == 2
    with pytest.raises(MqttError) as caught:
        decode(V3, Kind.SUBSCRIBE, 2, b"\0\1")
    assert caught.value.return_code is None


# --- text ---


@pytest.mark.parametrize(
    "raw", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\0", b"\xff"]
)
def test_strings_that_are_none(raw):
    with pytest.raises(MqttError):
        Reader(len(raw).to_bytes(2) + raw).string()


@pytest.mark.parametrize(("value", "size"), [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3)])
def test_variable_integers(value, size):
    raw = write_variable(value)
    assert len(raw) == size
    assert Reader(raw).variable() == value


@pytest.mark.parametrize("raw", [b"\x80\0", b"\x80\x80\x80\x80\1", b"\x80", b"\xff\xff\xff\xff"])
def test_variable_integers_that_are_none(raw):
    with pytest.raises(MqttError):
        Reader(raw).variable()


def test_the_largest_variable_integer():
    assert write_variable(268_435_455) == b"\xff\xff\xff\x7f"
    with pytest.raises(ValueError, match="does not fit"):
        write_variable(268_435_456)
    with pytest.raises(ValueError, match="at most"):
        write_string("x" * 65_536)


@pytest.mark.parametrize("good", ["#", "+", "a/#", "+/+", "/", "a//b", "/#", "$SYS/#", "a b"])
def test_filters(good):
    check_filter(good)


@pytest.mark.parametrize("bad", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "##", "a/+#"])
def test_filters_that_are_none(bad):
    with pytest.raises(MqttError):
        check_filter(bad)


def test_shared_subscriptions():
    assert split_share("$share/g/a/#") == Shared("g", "a/#")
    assert split_share("$share/g//") == Shared("g", "/")
    assert split_share("$shared/g/a") is None
    for bad in ("$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a"):
        with pytest.raises(MqttError):
            check_subscription(bad)


# --- as paho and gmqtt pack them ---

PAHO_NAMES = {
    row.field: "".join(word.title() for word in row.field.split("_")) for row in PROPERTIES
} | {"user_properties": "UserProperty", "subscription_identifiers": "SubscriptionIdentifier"}
PAHO_NAMES["maximum_qos"] = "MaximumQoS"
SAMPLES = {
    Type.BYTE: 1,
    Type.U16: 1234,
    Type.U32: 70_000,
    Type.VARIABLE: 16_384,
    Type.BINARY: b"\0\xff",
    Type.STRING: "é€",
    Type.PAIR: ("k", "v"),
}
PAHO_PACKETS = {kind: int(kind) for kind in Kind} | {WILL: PacketTypes.WILLMESSAGE}


def everywhere() -> list[tuple[int, str, object]]:
    return [
        (packet, row.field, SAMPLES[row.type])
        for row in PROPERTIES
        for packet in sorted(row.packets)
        if row.field != "authentication_data"
    ]


@pytest.mark.parametrize(("packet", "field", "value"), everywhere())
def test_properties_as_paho_has_them(packet, field, value):
    theirs = PahoProperties(PAHO_PACKETS[packet])
    setattr(theirs, PAHO_NAMES[field], value)
    several = field in ("user_properties", "subscription_identifiers")
    ours = Properties(**{field: (value,) if several else value})
    raw = encode_properties(ours, packet)
    assert write_variable(len(raw)) + raw == theirs.pack()
    assert decode_properties(raw, packet) == ours


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.field)
def test_the_same_packets_as_paho(row):
    theirs = PahoProperties(PacketTypes.CONNECT)
    number = theirs.getIdentFromName(PAHO_NAMES[row.field])
    kind, allowed = theirs.properties[number]
    assert number == row.id
    assert {PAHO_PACKETS[packet] for packet in row.packets} == set(allowed)
    assert theirs.types[kind].startswith(PAHO_TYPES[row.type])


PAHO_TYPES = {
    Type.BYTE: "Byte",
    Type.U16: "Two Byte",
    Type.U32: "Four Byte",
    Type.VARIABLE: "Variable",
    Type.BINARY: "Binary",
    Type.STRING: "UTF-8 Encoded String",
    Type.PAIR: "UTF-8 String Pair",
}


@pytest.mark.parametrize("kind", list(REASONS), ids=lambda kind: kind.name)
def test_the_same_reasons_as_paho(kind):
    def known(value: int) -> bool:
        try:
            ReasonCode(int(kind), identifier=value)
        except (KeyError, ValueError):
            return False
        return True

    # 3.2.2.2 has it, for the payload of a will; paho does not.
    more = {Reason.PAYLOAD_FORMAT_INVALID} if kind is Kind.CONNACK else set()
    assert {value for value in range(256) if known(value)} | more == REASONS[kind]


@pytest.mark.parametrize(
    "row", [row for row in PROPERTIES if row.type is not Type.BINARY], ids=lambda row: row.field
)
def test_properties_as_gmqtt_has_them(row):
    value = SAMPLES[row.type]
    several = row.field in ("user_properties", "subscription_identifiers")
    packet = min(row.packets)
    raw = encode_properties(Properties(**{row.field: (value,) if several else value}), packet)
    assert raw == bytes(GmqttProperty.factory(id_=row.id).dumps(value))


def test_not_for_this_packet_is_our_own_mistake():
    with pytest.raises(ValueError, match="does not belong"):
        encode_properties(Properties(topic_alias=1), Kind.CONNECT)
    with pytest.raises(ValueError, match="once"):
        encode_properties(Properties(subscription_identifiers=(1, 2)), Kind.SUBSCRIBE)
    assert decode_properties(b"", Kind.CONNECT) == NO_PROPERTIES
