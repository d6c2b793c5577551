"""The scanner against the oracle: the same messages however the bytes are cut."""

import itertools
import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt_oracle import Ack, Event, Fault, Message, Oracle, Other, flattened

from braidmq.record.batch import FLAG_TRANSIENT
from braidmq.wire.mqtt import scan as kernel
from braidmq.wire.mqtt.constants import REASONS, Kind, Reason, Version
from braidmq.wire.mqtt.errors import MalformedPacket, ReceiveMaximumExceeded, scan_error
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
    Unsubscribe,
    encode,
)
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.scan import CLIENT, SERVER, Scanner
from braidmq.wire.mqtt.text import write_binary, write_variable

NOW_MS = 1_700_000_000_000
JUNK = b"\x30\x05\x00\x01a\x00\x00" * 3  # behind the data, as in a buffer used before
PACKET_MAX = 3000
ALIAS_MAX = 5
PLENTY = 1 << 30


def fed(
    chunks: Iterable[bytes], role: int, version: int, quota: int = PLENTY
) -> tuple[list[Event], int]:
    """As a connection does it: what was not used is kept and put in front of the next chunk."""
    scanner = Scanner(role, version, PACKET_MAX, ALIAS_MAX)
    events: list[Event] = []
    tail, consumed = b"", 0
    for chunk in chunks:
        data = tail + chunk
        found, used = scanner.scan(data + JUNK, len(data), quota)
        flat = flattened(found, data, NOW_MS)
        events += flat
        quota -= sum(isinstance(each, Message) and each.packet_id > 0 for each in flat)
        consumed += used
        tail = data[used:]
        if flat and (isinstance(flat[-1], Fault) or is_connect(flat[-1])):
            break
        assert scanner.wanted_bytes == 0 or scanner.wanted_bytes > len(tail)
    return events, consumed


def is_connect(event: Event) -> bool:
    return isinstance(event, Other) and event.kind == Kind.CONNECT


def expected(data: bytes, role: int, version: int, quota: int = PLENTY) -> tuple[list[Event], int]:
    return Oracle(role, version, PACKET_MAX, ALIAS_MAX).scan(data, NOW_MS, quota)


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(each for each in cuts if each < len(data)), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


def scanned(data: bytes, role: int = SERVER, version: int = Version.V5) -> list[Event]:
    events, used = fed([data], role, version)
    assert (events, used) == expected(data, role, version)
    return events


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + write_variable(len(body)) + body


# --- random streams ---

texts = st.sampled_from(["", "a", "text/plain", "é€😀", "w" * 300])
ids = st.sampled_from([1, 2, 3, 255, 256, 0xFFFF])
no_properties = st.just(Properties())


def rarely(common: list[object], rare: list[object], *, bad: bool) -> st.SearchStrategy[object]:
    """``rare`` values end a stream, so that most must do without."""
    return st.sampled_from([*common * 4, *rare] if bad else common)


def message_properties(role: int, bad: bool) -> st.SearchStrategy[Properties]:
    return st.builds(
        Properties,
        payload_format_indicator=rarely([None, None, 0, 1], [2], bad=bad),
        message_expiry_interval=st.sampled_from([None, None, 0, 1, 60, 0xFFFFFFFF]),
        content_type=st.none() | texts,
        response_topic=rarely([None, None, "reply/to"], ["bad/+", "bad/#"], bad=bad),
        correlation_data=st.sampled_from([None, None, b"", b"\0\xff"]),
        subscription_identifiers=rarely([()], [(1,)], bad=bad)
        if role == SERVER
        else st.sampled_from([(), (1,), (1, 128, 268_435_455)]),
        topic_alias=rarely([None, None, None, 1, 1, 2, ALIAS_MAX], [ALIAS_MAX + 1], bad=bad),
        user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    )


def runs(role: int, bad: bool) -> st.SearchStrategy[list[Publish]]:
    names = rarely(["t", "t", "sport/tennis", "été/😀", "$SYS/x", "n" * 600, "/"], [""], bad=bad)
    one = st.builds(
        lambda qos, packet_id, dup, **fields: Publish(
            qos=qos, packet_id=packet_id if qos else 0, dup=bool(dup and qos), **fields
        ),
        topic=names,
        payload=st.sampled_from([b"", b"b", b"m" * 100, b"M" * 2000]),
        qos=st.integers(0, 2),
        retain=st.sampled_from([False, False, True]),
        dup=st.sampled_from([False, False, True]),
        packet_id=ids,
        properties=no_properties | message_properties(role, bad),
    )
    return st.builds(repeated, one, st.integers(1, 6), st.booleans())


def repeated(one: Publish, count: int, by_alias: bool) -> list[Publish]:
    if by_alias and one.properties.topic_alias is not None:
        return [one, *[msgspec.structs.replace(one, topic="")] * (count - 1)]
    return [one] * count


def ack_runs(bad: bool) -> st.SearchStrategy[list[Packet]]:
    said = st.builds(
        Properties, reason_string=st.none() | texts, user_properties=st.just((("a", "b"),))
    )

    def of(kind: type[Packet]) -> st.SearchStrategy[list[Packet]]:
        known = [0, 0, 0, max(REASONS[kind.KIND])]
        row = st.builds(kind, ids, rarely(known, [4], bad=bad), no_properties | said)
        return st.lists(row, min_size=1, max_size=6)

    return st.sampled_from([PubAck, PubRec, PubRel, PubComp]).flatmap(of)


from_client = st.sampled_from(
    [
        [PingReq()],
        [PingReq(), PingReq()],
        [Subscribe(3, (Request("a/+", 1),))],
        [Unsubscribe(3, ("a/+",))],
        [Disconnect()],
    ]
)
from_server = st.sampled_from([[PingResp()], [ConnAck()], [SubAck(3, (1,))], [Disconnect()]])
crossed = st.sampled_from([[Connect()], [Auth()], [PingResp()], [Subscribe(1, (Request("a"),))]])
odd_bytes = st.sampled_from(
    [
        b"",
        b"\x00\x00",
        b"\x36\x00",
        b"\x38\x03\x00\x01a",
        b"\x30\x00",
        b"\x30\x80\x00",
        b"\x30\xff\xff\xff\xff",
        b"\x30\xff\xff\xff\x7f",
        b"\x32\x05\x00\x01a\x00\x00",
        b"\x32\x03\x00\x01a",
        b"\x30\x03\x00\x05a",
        b"\x30\x04\x00\x02a+",
        b"\x30\x04\x00\x02a\x00",
        b"\x30\x05\x00\x03\xed\xa0\x80",
        b"\x30\x04\x00\x01a\x01",
        b"\x30\x05\x00\x01a\x81\x00",
        b"\x40\x02\x00\x00",
        b"\x40\x01\x00",
        b"\x42\x02\x00\x01",
        b"\x60\x02\x00\x01",
        b"\x40\x04\x00\x01\x00\x00",
        b"\x40\x04\x00\x01\x00\x01",
        b"\x40\x05\x00\x01\x00\x00\x00",
        b"\xc1\x00",
        b"\xf0\x00",
    ]
)


def streams(max_size: int = 8, bad: bool = True) -> st.SearchStrategy[tuple[int, int, bytes]]:
    def built(
        role: int, version: int, groups: list[list[Packet]], odd: bytes
    ) -> tuple[int, int, bytes]:
        whole = b"".join(encode(each, version) for group in groups for each in group)
        return role, version, whole + odd

    def of(role: int) -> st.SearchStrategy[tuple[int, int, bytes]]:
        publishes, acks = runs(role, bad), ack_runs(bad)
        group = [publishes, publishes, publishes, acks, acks]
        group.append(from_client if role == SERVER else from_server)
        groups = st.lists(st.one_of(*group, *([crossed] if bad else [])), max_size=max_size)
        versions = st.sampled_from([4, 5, 5, 0] if bad else [4, 5, 5])
        return st.builds(built, st.just(role), versions, groups, odd_bytes if bad else st.just(b""))

    return st.sampled_from([SERVER, SERVER, CLIENT]).flatmap(of)


cuts = st.lists(st.integers(0, 3000), max_size=8)


@given(streams() | streams(bad=False), cuts, st.sampled_from([PLENTY, PLENTY, 3]))
@settings(deadline=None, max_examples=150)
def test_any_chunking_gives_the_oracles_events(stream, cuts, quota):
    role, version, data = stream
    events = expected(data, role, version, quota)
    assert fed([data], role, version, quota) == events
    assert fed(cut(data, cuts), role, version, quota) == events


@given(streams(4))
@settings(deadline=None, max_examples=25)
def test_byte_by_byte(stream):
    role, version, data = stream
    data = data[:400]
    assert fed([data[i : i + 1] for i in range(len(data))], role, version) == expected(
        data, role, version
    )


@given(
    streams(5, bad=False),
    st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=4),
    cuts,
)
@settings(deadline=None, max_examples=100)
def test_flipped_bits(stream, flips, cuts):
    role, version, data = stream
    damaged = bytearray(data)
    for position, bit in flips if data else ():
        damaged[position % len(data)] ^= 1 << bit
    events = expected(bytes(damaged), role, version)
    assert fed([bytes(damaged)], role, version) == events
    assert fed(cut(bytes(damaged), cuts), role, version) == events


@given(st.binary(max_size=200), st.sampled_from([0, 4, 5]), st.sampled_from([SERVER, CLIENT]))
@settings(deadline=None, max_examples=200)
def test_garbage(data, version, role):
    assert fed([data], role, version) == expected(data, role, version)


def test_much_garbage():
    """Small lengths and plausible properties: deeper than plain noise gets."""
    chance = random.Random(7)
    for _ in range(4000):
        role, version = chance.choice([SERVER, CLIENT]), chance.choice([4, 5, 5])
        data = b""
        for _ in range(chance.randrange(5)):
            raw = b"".join(
                bytes((chance.choice([1, 2, 3, 8, 9, 11, 31, 35, 38, 7]),))
                + chance.choice([b"\0", b"\1", b"\0\1", b"\0\1a", b"\0\0\0\5", b"\0\1a\0\1b", b""])
                for _ in range(chance.randrange(4))
            )
            head = b"\0\1a" + chance.choice([b"", b"\0\1", b"\0\2"])
            body = head + bytes((max(0, len(raw) + chance.choice([0, 0, 0, 1, -1])),)) + raw
            data += packet(chance.choice([0x30, 0x31, 0x32, 0x34, 0x3A, 0x40, 0x50, 0x62]), body)
        assert fed([data], role, version) == expected(data, role, version)


# --- runs ---


def runs_of(data: bytes, version: int = Version.V5, **limits: int) -> list[tuple]:
    events, used = Scanner(SERVER, version, **limits).scan(data, len(data))
    assert used == len(data)
    return events


def test_a_run_is_one_event():
    data = b"".join(encode(Publish("a/b", b"%d" % i, 1, packet_id=i + 1)) for i in range(1000))
    ((kind, run),) = runs_of(data)
    assert (kind, run.topic, run.count, run.qos) == (kernel.EVENT_PUBLISH, b"a/b", 1000, 1)
    assert list(run.packet_ids) == list(range(1, 1001))
    assert data[run.start : run.stop] == data


def test_a_run_ends_where_topic_flags_or_properties_change():
    parts = [
        Publish("a"),
        Publish("b"),
        Publish("b", retain=True),
        Publish("b", qos=1, packet_id=1),
        Publish("b", qos=1, dup=True, packet_id=1),
        Publish("b", properties=Properties(content_type="x")),
        Publish("b", properties=Properties(message_expiry_interval=5)),
        Publish("b", properties=Properties(user_properties=(("k", "v"),))),
    ]
    data = b"".join(encode(each) * 2 for each in parts)
    assert [(run.topic, run.count) for _, run in runs_of(data)] == [
        (each.topic.encode(), 2) for each in parts
    ]


def test_a_run_is_not_endless():
    data = encode(Publish("t", bytes(100_000))) * 40
    counts = [run.count for _, run in runs_of(data)]
    assert sum(counts) == 40
    assert len(counts) == 4


def test_acknowledgements_are_arrays():
    data = b"".join(encode(PubAck(i)) for i in range(1, 500)) + encode(PubRel(7)) * 2
    assert [(kind, packet, list(ids), reasons) for kind, packet, ids, reasons in runs_of(data)] == [
        (kernel.EVENT_ACKS, Kind.PUBACK, list(range(1, 500)), None),
        (kernel.EVENT_ACKS, Kind.PUBREL, [7, 7], None),
    ]
    data = encode(PubRec(1)) + encode(PubRec(2, Reason.QUOTA_EXCEEDED)) + encode(PubRec(3))
    ((_, _, ids, reasons),) = runs_of(data)
    assert (list(ids), reasons) == ([1, 2, 3], b"\x00\x97\x00")


def test_transient_records():
    data = encode(Publish("a", b"x"))
    ((_, run),) = runs_of(data)
    assert run.batch(data, 1, True).record(0).flags == FLAG_TRANSIENT
    assert run.batch(data, 1).record(0).flags == 0


def test_another_buffer_is_noticed():
    data = encode(Publish("a", b"xyz")) * 3
    ((_, run),) = runs_of(data)
    for other in (data[:-1], bytes(len(data)), b"\x36" + data[1:]):
        with pytest.raises(ValueError, match="not the buffer"):
            run.batch(other, 1)


# --- aliases ---


def test_aliases_are_resolved_and_not_kept():
    aliased = Properties(topic_alias=2, content_type="x")
    first = encode(Publish("a/b", b"1", properties=aliased))
    later = encode(Publish("", b"2", properties=aliased))
    events = scanned(first + later + encode(Publish("c", b"3", properties=aliased)) + later)
    assert [(each.topic, each.record.value) for each in events] == [
        (b"a/b", b"1"),
        (b"a/b", b"2"),
        (b"c", b"3"),
        (b"c", b"2"),
    ]
    assert all(each.record.envelope.endswith(b"\x03\x00\x01x") for each in events)
    assert b"\x23" not in events[0].record.envelope


def test_aliases_live_from_chunk_to_chunk():
    scanner = Scanner(SERVER, Version.V5, topic_alias_max=1)
    for topic in ("long/topic/name", ""):
        data = encode(Publish(topic, properties=Properties(topic_alias=1)))
        ((_, run),), _ = scanner.scan(data, len(data))
        assert run.topic == b"long/topic/name"


# --- the beginning, and limits ---


def test_nothing_behind_connect_until_the_version_is_known():
    scanner = Scanner(SERVER)
    connect = encode(Connect(Version.V3_1_1, "c"))
    data = connect + encode(Publish("t", b"x"), Version.V3_1_1)
    ((kind, packet_kind, _, _),), used = scanner.scan(data, len(data))
    assert (kind, packet_kind, used) == (kernel.EVENT_PACKET, Kind.CONNECT, len(connect))
    scanner.version = Version.V3_1_1
    ((kind, run),), used = scanner.scan(data[used:], len(data) - used)
    assert (kind, run.topic) == (kernel.EVENT_PUBLISH, b"t")


def test_the_first_packet_is_connect():
    assert scanned(encode(PingReq()), version=0) == [Fault(Reason.PROTOCOL_ERROR)]


def test_the_size_limit_counts_the_whole_packet():
    data = encode(Publish("t", bytes(500)))
    for limit, fits in ((len(data), True), (len(data) - 1, False)):
        events, _ = Scanner(SERVER, 5, limit).scan(data[:4], 4)
        assert events == ([] if fits else [(kernel.EVENT_ERROR, 0x95, events[0][2])])


def test_wanted_bytes():
    data = encode(Publish("t", bytes(500)))
    scanner = Scanner(SERVER, 5)
    told = [(scanner.scan(data[:n], n), scanner.wanted_bytes)[1] for n in range(len(data) + 1)]
    assert told == [0, 0, 0, *[len(data)] * (len(data) - 3), 0]


def test_receive_maximum():
    data = b"".join(encode(Publish("t", qos=q, packet_id=q and 7)) for q in (1, 0, 2, 0, 1))
    events, _ = Scanner(SERVER, 5).scan(data, len(data), 2)
    assert [event[0] for event in events] == [1, 1, 1, 1, kernel.EVENT_ERROR]
    assert events[-1][1] == Reason.RECEIVE_MAXIMUM_EXCEEDED
    assert isinstance(scan_error(*events[-1][1:]), ReceiveMaximumExceeded)


@pytest.mark.parametrize(("reason", "text"), kernel.FAULTS.values())
def test_every_fault_has_its_error(reason, text):
    error = scan_error(int(reason), text)
    assert (error.reason, str(error)) == (reason, text)
    assert error.return_code is None


FAULTY = [
    (b"\x30\x05\x00\x02a#\x00", Reason.PROTOCOL_ERROR),
    (b"\x30\x04\x00\x02ab", Reason.MALFORMED_PACKET),
    (b"\x36\x06\x00\x01a\x00\x01\x00", Reason.MALFORMED_PACKET),
    (b"\x38\x04\x00\x01a\x00", Reason.MALFORMED_PACKET),
    (b"\x30\x06\x00\x03\xed\xa0\x80\x00", Reason.MALFORMED_PACKET),
    (b"\x30\x05\x00\x02\xc0\x80\x00", Reason.MALFORMED_PACKET),
    (b"\x30\x80\x80\x80\x80\x01", Reason.MALFORMED_PACKET),
    (b"\x30\x84\x00\x00\x01a\x00", Reason.MALFORMED_PACKET),
    (b"\x30\x06\x00\x01a\x02\x7f\x00", Reason.MALFORMED_PACKET),
    (b"\x30\x07\x00\x01a\x03\x13\x00\x05", Reason.MALFORMED_PACKET),
    (b"\x32\x06\x00\x01a\x00\x00\x00", Reason.PROTOCOL_ERROR),
    (b"\x30\x03\x00\x00\x00", Reason.PROTOCOL_ERROR),
    (b"\x30\x08\x00\x01a\x04\x01\x00\x01\x00", Reason.PROTOCOL_ERROR),
    (b"\x30\x06\x00\x01a\x02\x01\x02", Reason.PROTOCOL_ERROR),
    (b"\x30\x06\x00\x01a\x02\x0b\x01", Reason.PROTOCOL_ERROR),
    (b"\x30\x06\x00\x00\x03\x23\x00\x01", Reason.PROTOCOL_ERROR),
    (b"\x30\x07\x00\x01a\x03\x23\x00\x00", Reason.TOPIC_ALIAS_INVALID),
    (b"\x30\x07\x00\x01a\x03\x23\x00\x06", Reason.TOPIC_ALIAS_INVALID),
    (b"\x30\x0a\x00\x01a\x06\x08\x00\x03a/+", Reason.PROTOCOL_ERROR),
    (b"\x40\x02\x00\x00", Reason.PROTOCOL_ERROR),
    (b"\x40\x03\x00\x01\x01", Reason.PROTOCOL_ERROR),
    (b"\x60\x02\x00\x01", Reason.MALFORMED_PACKET),
    (b"\x20\x03\x00\x00\x00", Reason.PROTOCOL_ERROR),
    (b"\x10\x00", Reason.PROTOCOL_ERROR),
    (b"\x00\x00", Reason.MALFORMED_PACKET),
    (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
]


@pytest.mark.parametrize(("data", "reason"), FAULTY)
def test_faults_after_good_packets(data, reason):
    before = encode(Publish("t", b"x")) * 2 + encode(PubAck(9))
    *good, fault = scanned(before + data)
    assert [type(each) for each in good] == [Message, Message, Ack]
    assert fault == Fault(reason)


def test_errors_are_typed():
    assert isinstance(scan_error(0x81, "x"), MalformedPacket)


def test_binary_data_is_not_text():
    raw = b"\x09" + write_binary(b"\0\xff\xfe")
    (event,) = scanned(packet(0x30, b"\0\1a" + bytes((len(raw),)) + raw + b"payload"))
    assert event.record.envelope == b"\0\0\1a" + raw
    assert event.record.value == b"payload"


def test_nothing_comes_of_nothing():
    assert Scanner(SERVER, 5).scan(b"", 0) == ([], 0)
    with pytest.raises(ValueError, match="beyond"):
        Scanner(SERVER, 5).scan(b"ab", 3)
