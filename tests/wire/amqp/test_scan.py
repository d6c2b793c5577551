"""The scanner against the oracle: the same messages however the bytes are cut."""

import itertools
import random
import struct
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import Ack, Event, Fault, Frame, Publish, flattened, raw_properties
from oracle import scan as oracle_scan

from braidmq.record.batch import FLAG_TIMED, FLAG_TRANSIENT
from braidmq.wire.amqp import scan as kernel
from braidmq.wire.amqp.methods import (
    HEARTBEAT_FRAME,
    BasicAck,
    BasicNack,
    BasicPublish,
    BasicQos,
    ChannelOpen,
    QueueDeclare,
    encode,
    frame,
    method_frame,
)
from braidmq.wire.amqp.properties import (
    EMPTY_PROPERTIES,
    Properties,
    content_header_payload,
    encode_properties,
)
from braidmq.wire.amqp.scan import scan

FRAME_MAX = 4096
NOW_MS = 1_700_000_000_000
JUNK = b"\x01\x00\x01\x00\x00\x00\x05\xce" * 3  # behind the data, as in a buffer used before
TAG_MAX = (1 << 64) - 1


def scanned(data: bytes, frame_max: int = FRAME_MAX, fast: bool = True) -> tuple[list[Event], int]:
    events, used = scan(data + JUNK, len(data), frame_max, NOW_MS, fast)
    return flattened(events), used


def fed(chunks: Iterable[bytes], frame_max: int = FRAME_MAX) -> tuple[list[Event], int]:
    """As a connection does it: what was not used is kept and put in front of the next chunk."""
    events: list[Event] = []
    tail, consumed = b"", 0
    for chunk in chunks:
        found, used = scanned(tail + chunk, frame_max)
        events += found
        consumed += used
        tail = (tail + chunk)[used:]
        if found and isinstance(found[-1], Fault):
            break
    return events, consumed


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(each for each in cuts if each < len(data)), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


def message(
    channel: int = 1,
    exchange: str = "x",
    key: str = "k",
    properties: bytes = EMPTY_PROPERTIES,
    body: bytes = b"body",
    pieces: int = 1,
    **bits: bool,
) -> list[bytes]:
    """The frames of one publish."""
    step = max(1, -(-len(body) // pieces))
    return [
        method_frame(channel, BasicPublish(exchange, key, **bits)),
        frame(2, channel, content_header_payload(len(body), properties)),
        *(frame(3, channel, body[at : at + step]) for at in range(0, len(body), step)),
    ]


def published(**fields) -> Publish:
    (event,), _ = scanned(b"".join(message(**fields)))
    assert isinstance(event, Publish)
    return event


def with_properties(**values) -> Publish:
    return published(properties=encode_properties(Properties(**values)))


# --- random streams ---

names = st.sampled_from(["", "x", "logs", "é" * 3, "n" * 255])
channels = st.sampled_from([1, 1, 1, 2, 0xFFFF])
words = st.sampled_from(["", "a", "text/plain", "w" * 255])
expirations = st.sampled_from(
    [
        "0",
        "1",
        "60000",
        "0000000007",
        "4294967295",
        "4294967296",
        "9999999999",
        "",
        "-1",
        "1.5",
        "soon",
        " 5",
        "5 ",
        "٣",
        "12345678901",
        "9" * 15,
        "9" * 16,
    ]
)
header_tables = st.sampled_from(
    [
        {},
        {"a": 1},
        {"CC": ["k2"]},
        {"BCC": ["k3"]},
        {"l": "z" * 600},
        {"x-key": "customer", "a": [1, {"b": None}]},
        {"x-key": b"\xff\x00"},
        {"x-key": 17},
        {"x-key": "", "x-delay": 250},
        {"x-delay": -1},
        {"x-delay": 1 << 60},
        {"x-delay": "soon", "x-deliver-at": NOW_MS + 5000},
        {"x-deliver-at": NOW_MS - 1},
        {"x-deliver-at": NOW_MS + 5000},
        {"x-deliver-at": 1.5},
        {"x-delay": True},
        {"x-delay": None},
        {"x-delay": 5, "x-deliver-at": NOW_MS + 5000},
        {"nested": {"x-delay": 99}},
        *({"x-partition": value} for value in (0, 1, 2, 65_535, 65_536, -1, "1", None, True)),
        {"x-partition": 1, "x-key": "customer"},
    ]
)
properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": words,
        "headers": header_tables,
        "delivery_mode": st.sampled_from([0, 1, 2, 3]),
        "priority": st.integers(0, 255),
        "correlation_id": words,
        "reply_to": st.sampled_from(["", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-tO"]),
        "expiration": expirations,
        "timestamp": st.integers(0, TAG_MAX),
        "user_id": words,
        "cluster_id": words,
    },
).map(lambda values: encode_properties(Properties(**values)))
raw = st.one_of(
    st.just(EMPTY_PROPERTIES),
    properties,
    properties.map(lambda good: good + b"\0"),
    properties.filter(lambda good: len(good) > 2).map(lambda good: good[:-1]),
    st.binary(min_size=2, max_size=40),
    st.builds(lambda word, rest: struct.pack(">H", word) + rest, st.integers(0, 3), st.binary()),
)
bodies = st.sampled_from([b"", b"", b"b", b"\xce" * 9, b"m" * 100, b"M" * FRAME_MAX])
publishes = st.builds(
    message,
    channel=channels,
    exchange=names,
    key=names,
    properties=raw,
    body=bodies,
    pieces=st.sampled_from([1, 1, 1, 2, 3]),
    mandatory=st.booleans(),
    immediate=st.sampled_from([False, False, True]),
)
same_route = st.lists(
    st.builds(message, properties=st.just(EMPTY_PROPERTIES), body=bodies), min_size=1, max_size=6
).map(lambda found: [each for frames in found for each in frames])
tags = st.one_of(st.integers(0, 9), st.integers(TAG_MAX - 3, TAG_MAX))
acks = st.builds(
    lambda channel, tag, multiple: [method_frame(channel, BasicAck(tag, multiple))],
    channels,
    tags,
    st.sampled_from([False, False, True]),
)
ack_runs = st.builds(
    lambda channel, first, count: [
        method_frame(channel, BasicAck(first + i & TAG_MAX)) for i in range(count)
    ],
    channels,
    tags,
    st.integers(1, 8),
)
others = st.sampled_from(
    [
        [HEARTBEAT_FRAME],
        [method_frame(1, BasicQos(0, 5))],
        [method_frame(2, ChannelOpen())],
        [method_frame(1, BasicNack(3))],
        [method_frame(1, QueueDeclare("q", arguments={"x-message-ttl": 5}))],
        [method_frame(0, BasicPublish("x", "k"))],  # on the connection's own channel
        [frame(1, 1, b"")],
        [frame(1, 1, b"\0\x3c\0")],
        [frame(1, 1, b"\0\x3c\0\x28")],  # basic.publish, and nothing more
        [frame(1, 1, b"\0\x3c\0\x28\0\0\xff\xff\0")],
        [frame(1, 1, encode(BasicPublish("x", "k")) + b"\0")],
        [frame(1, 1, encode(BasicPublish("x", "k"))[:-1])],
        [frame(1, 1, encode(BasicAck(1)) + b"\0")],
        [frame(2, 1, b"short")],
        [frame(3, 2, b"a body from nowhere")],
        [frame(77, 3, b"unknown kind")],
        [frame(8, 4, b"heartbeat with something in it")],
        [*message()[:1], frame(2, 1, struct.pack(">HHQ", 60, 1, 0) + EMPTY_PROPERTIES)],  # weight
        [*message()[:1], frame(2, 1, struct.pack(">HHQ", 50, 0, 0) + EMPTY_PROPERTIES)],  # class
        [*message()[:1], frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + b"\0")],
        [*message()[:2], frame(3, 1, b"another size")],
        [*message()[:2], frame(3, 2, b"body")],
        [*message()[:2], *message(channel=1)],
        message()[:1],
        message()[:2],
    ]
)
parts = st.one_of(publishes, publishes, same_route, acks, ack_runs, others)


@st.composite
def streams(draw, max_size: int = 10) -> bytes:
    """Frames of several channels, at times one channel's between another's."""
    frames = [each for part in draw(st.lists(parts, max_size=max_size)) for each in part]
    for _ in range(draw(st.integers(0, 3))):
        frames[draw(st.integers(0, len(frames))) : 0] = draw(parts)[:2]
    return b"".join(frames)


cuts = st.lists(st.integers(1, 6000), max_size=8)


@given(streams(), cuts)
@settings(deadline=None, max_examples=180)
def test_any_cutting_gives_what_the_oracle_reads(data, cuts):
    expected = oracle_scan(data, FRAME_MAX, NOW_MS)
    assert scanned(data) == expected
    assert fed(cut(data, cuts)) == expected


@given(streams(max_size=4).filter(lambda data: len(data) < 1500))
@settings(deadline=None, max_examples=40)
def test_byte_by_byte(data):
    assert fed(cut(data, range(1, len(data)))) == oracle_scan(data, FRAME_MAX, NOW_MS)


@given(streams(max_size=5), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=100)
def test_of_a_cut_off_stream_the_beginning(data, length):
    """Nothing is given out early: what comes later does not change it."""
    part = data[: length % (len(data) + 1)]
    whole, _ = oracle_scan(data, FRAME_MAX, NOW_MS)
    events, used = scanned(part)
    assert (events, used) == oracle_scan(part, FRAME_MAX, NOW_MS)
    assert events == whole[: len(events)]
    assert used <= len(part)


@given(streams())
@settings(deadline=None, max_examples=60)
def test_without_fast_everything_comes_frame_by_frame(data):
    events, used = scanned(data, fast=False)
    assert used == len(data)
    assert all(isinstance(event, Frame) for event in events)
    assert b"".join(frame(*event) for event in events) == data


def test_a_long_mixed_stream():
    """Longer than hypothesis goes; runs reach their limit in bytes."""
    chance = random.Random(7)
    frames: list[bytes] = []
    for _ in range(800):
        channel = chance.choice([1, 1, 1, 1, 2])
        if chance.random() < 0.2:
            frames.append(method_frame(channel, BasicAck(len(frames), chance.random() < 0.1)))
        else:
            body = bytes(chance.choice([0, 3, 500, FRAME_MAX - 8]))
            frames += message(channel=channel, body=body, key=chance.choice("aaaaab"))
    for _ in range(400):
        frames += message(body=bytes(FRAME_MAX - 8))
    data = b"".join(frames)
    expected = oracle_scan(data, FRAME_MAX, NOW_MS)
    assert expected[1] == len(data)
    sizes = [chance.choice([1, 100, 5000, 70_000]) for _ in range(1000)]
    edges = [sum(sizes[:i]) for i in range(1, len(sizes))]
    assert scanned(data) == fed(cut(data, edges)) == expected


# --- runs ---


def test_publishes_to_one_place_are_one_run():
    data = b"".join(each for i in range(5) for each in message(body=b"%d" % i))
    events, used = scan(data, len(data), FRAME_MAX, NOW_MS)
    ((kind, channel, flags, exchange, key, batch, destination),) = events
    assert destination is None
    assert (kind, channel, flags) == (kernel.EVENT_PUBLISH, 1, kernel.FLAG_TRANSIENT)
    assert (exchange, key, used) == (b"x", b"k", len(data))
    assert [record.value for record in batch.records()] == [b"0", b"1", b"2", b"3", b"4"]
    assert [record.offset for record in batch.records()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "other",
    [
        {"channel": 2},
        {"exchange": "y"},
        {"key": "l"},
        {"exchange": "xk", "key": ""},
        {"mandatory": True},
        {"properties": encode_properties(Properties(delivery_mode=2))},
        {"properties": encode_properties(Properties(headers={}))},
    ],
)
def test_what_ends_a_run(other):
    data = b"".join([*message(), *message(**other), *message()])
    events, _ = scan(data, len(data), FRAME_MAX, NOW_MS)
    assert [event[0] for event in events] == [kernel.EVENT_PUBLISH] * 3


def route(key: str, exchange: str = "x") -> bytes:
    return bytes([len(exchange)]) + exchange.encode() + bytes([len(key)]) + key.encode()


def test_keys_that_lead_to_one_place_are_one_run():
    here, there = object(), object()
    known = {route("a"): here, route("b"): here, route("c"): there}
    keys = ["a", "b", "a", "c", "unknown", "b", "b"]
    data = b"".join(each for key in keys for each in message(key=key))
    events, used = scan(data, len(data), FRAME_MAX, NOW_MS, True, known)
    assert used == len(data)
    assert [(event[4], event[5].count, event[6]) for event in events] == [
        (b"a", 3, here),
        (b"c", 1, there),
        (b"unknown", 1, None),
        (b"b", 2, here),
    ]
    assert flattened(events) == oracle_scan(data, FRAME_MAX, NOW_MS)[0]


@pytest.mark.parametrize(
    "one_by_one",
    [
        Properties(user_id="guest"),
        Properties(expiration="soon"),
        Properties(headers={"CC": ["k"]}),
        Properties(delivery_mode=3),
        Properties(reply_to="amq.rabbitmq.reply-to"),
    ],
)
def test_messages_that_are_looked_at_singly_do_not_mix_keys(one_by_one):
    here = object()
    known = {route("a"): here, route("b"): here}
    properties = encode_properties(one_by_one)
    frames = [*message(key="a", properties=properties), *message(key="b", properties=properties)]
    data = b"".join(frames)
    events, _ = scan(data, len(data), FRAME_MAX, NOW_MS, True, known)
    assert [(event[4], event[6]) for event in events] == [(b"a", None), (b"b", None)]


@given(
    st.lists(st.sampled_from("abcd"), max_size=30),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy")),
)
def test_whatever_is_known_the_messages_are_the_same(keys, places):
    known = {route(key): place for key, place in places.items()}
    data = b"".join(each for key in keys for each in message(key=key))
    events, _ = scan(data, len(data), FRAME_MAX, NOW_MS, True, known)
    assert flattened(events) == oracle_scan(data, FRAME_MAX, NOW_MS)[0]


def test_a_run_has_a_limit():
    data = b"".join(message(body=bytes(100_000)) * 30)
    events, used = scan(data, len(data), 131_072, NOW_MS)
    assert used == len(data)
    counts = [event[5].count for event in events]
    assert sum(counts) == 30
    assert max(counts) == 11  # the one that passes 1 MiB is the last


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([(1, 1, 0), (1, 2, 0), (1, 3, 0)], [(1, 1, 3, False)]),
        ([(1, 1, 0), (1, 3, 0)], [(1, 1, 1, False), (1, 3, 3, False)]),
        ([(1, 2, 0), (1, 1, 0)], [(1, 2, 2, False), (1, 1, 1, False)]),
        ([(1, 1, 0), (1, 1, 0)], [(1, 1, 1, False), (1, 1, 1, False)]),
        ([(1, 1, 0), (2, 2, 0)], [(1, 1, 1, False), (2, 2, 2, False)]),
        ([(1, 1, 0), (1, 2, 1), (1, 3, 0)], [(1, 1, 1, False), (1, 2, 2, True), (1, 3, 3, False)]),
        ([(1, 0, 1)], [(1, 0, 0, True)]),
        ([(1, TAG_MAX, 0), (1, 0, 0)], [(1, TAG_MAX, TAG_MAX, False), (1, 0, 0, False)]),
    ],
)
def test_acknowledgements_become_ranges(frames, expected):
    data = b"".join(method_frame(c, BasicAck(tag, bool(multiple))) for c, tag, multiple in frames)
    events, _ = scan(data, len(data), FRAME_MAX, NOW_MS)
    assert events == [(kernel.EVENT_ACK, *each) for each in expected]


def test_an_incomplete_publish_holds_back_only_itself():
    data = method_frame(1, BasicAck(1)) + b"".join(message())
    for length in range(len(method_frame(1, BasicAck(1))), len(data)):
        assert scanned(data[:length])[0] == [Ack(1, 1, False)]


# --- flags and records ---


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({"delivery_mode": 2}, 0),
        ({"delivery_mode": 1}, kernel.FLAG_TRANSIENT),
        ({}, kernel.FLAG_TRANSIENT),
        ({"delivery_mode": 2, "headers": {}}, kernel.FLAG_HEADERS),
        ({"delivery_mode": 2, "headers": {"CC": ["a"]}}, kernel.FLAG_HEADERS | kernel.FLAG_COPIES),
        ({"delivery_mode": 2, "headers": {"BCC": ["a"]}}, kernel.FLAG_HEADERS | kernel.FLAG_COPIES),
        ({"delivery_mode": 2, "content_type": "CC"}, 0),
        ({"delivery_mode": 2, "user_id": "guest"}, kernel.FLAG_USER_ID),
        ({"delivery_mode": 2, "app_id": "guest"}, 0),
        ({"delivery_mode": 2, "reply_to": "amq.rabbitmq.reply-to"}, kernel.FLAG_REPLY_TO),
        ({"delivery_mode": 2, "reply_to": "amq.rabbitmq.reply-to.x"}, 0),
        ({"delivery_mode": 2, "correlation_id": "amq.rabbitmq.reply-to"}, 0),
        ({"delivery_mode": 2, "expiration": "12"}, 0),
        ({"delivery_mode": 2, "expiration": "twelve"}, kernel.FLAG_BAD_EXPIRATION),
        ({"delivery_mode": 2, "expiration": ""}, kernel.FLAG_BAD_EXPIRATION),
        ({"delivery_mode": 2, "expiration": "-1"}, kernel.FLAG_BAD_EXPIRATION),
        ({"delivery_mode": 2, "expiration": "4294967296"}, 0),
        ({"delivery_mode": 2, "expiration": "9" * 16}, kernel.FLAG_BAD_EXPIRATION),
        ({"delivery_mode": 2, "headers": {"x-key": "k"}}, kernel.FLAG_HEADERS),
        *(
            ({"delivery_mode": 2, "headers": given}, kernel.FLAG_HEADERS | kernel.FLAG_BAD_PLACE)
            for given in ({"x-key": 17}, {"x-key": None})
        ),
        ({"delivery_mode": 0}, kernel.FLAG_BAD_MODE | kernel.FLAG_TRANSIENT),
        ({"delivery_mode": 3}, kernel.FLAG_BAD_MODE | kernel.FLAG_TRANSIENT),
    ],
)
def test_flags_of_properties(values, flags):
    assert with_properties(**values).flags == flags


@pytest.mark.parametrize(
    ("bits", "flags"),
    [
        ({"mandatory": True}, kernel.FLAG_MANDATORY),
        ({"immediate": True}, kernel.FLAG_IMMEDIATE),
        ({"mandatory": True, "immediate": True}, kernel.FLAG_MANDATORY | kernel.FLAG_IMMEDIATE),
    ],
)
def test_flags_of_the_method(bits, flags):
    assert published(**bits).flags == flags | kernel.FLAG_TRANSIENT


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01",  # says that more flags follow
        b"\x00\x01\x00\x00",
        b"\x00\x02",  # a fifteenth property
        b"\x00\x00\x00",
        b"\x80\x00",
        b"\x80\x00\x05four",
        b"\x20\x00\x00\x00\x00",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x20\x00\x00\x00\x00\x02\x00",
        b"\x10\x00",
        b"\x08\x00",
        b"\x00\x40\x00\x00\x00\x00\x00\x00\x00",
        b"\xff\xfc",
    ],
)
def test_bad_properties(raw):
    event = published(properties=raw, mandatory=True)
    assert event.flags == kernel.FLAG_BAD_PROPERTIES | kernel.FLAG_MANDATORY
    assert event.record.envelope == b"\x01x\x01k" + raw


def test_the_record():
    values = Properties(
        content_type="text/plain", delivery_mode=2, priority=9, expiration="250", timestamp=5
    )
    raw = encode_properties(values)
    record = published(exchange="ex", key="key", properties=raw, body=b"hello").record
    assert record.envelope == b"\x02ex\x03key" + raw
    assert record.envelope_format == kernel.ENVELOPE_AMQP
    assert (record.key, record.value) == (None, b"hello")
    assert (record.priority, record.timestamp_ms) == (9, NOW_MS)
    assert (record.expires_at_ms, record.due_at_ms) == (NOW_MS + 250, 0)
    assert record.flags == FLAG_TIMED


def test_the_record_of_a_transient_message_with_an_empty_body():
    record = published(body=b"").record
    assert record.value == b""
    assert (record.flags, record.expires_at_ms, record.priority) == (FLAG_TRANSIENT, 0, 0)


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [("0", 1), ("1", 1), ("00", 1), ("4294967295", (1 << 32) - 1), ("9" * 15, 10**15 - 1)],
)
def test_expiration(text, after_ms):
    assert with_properties(expiration=text).record.expires_at_ms == NOW_MS + after_ms


@given(properties)
@settings(deadline=None, max_examples=100)
def test_properties_stay_byte_for_byte(raw):
    event = published(properties=raw, exchange="e" * 255, key="k" * 255)
    assert event.record.envelope == b"\xff" + b"e" * 255 + b"\xff" + b"k" * 255 + raw
    assert raw_properties(raw) is not None


@pytest.mark.parametrize("route", [b"\x01\xff\x01k", b"\x01x\x02\xc3(", b"\x03\xed\xa0\x80\x00"])
def test_names_that_are_no_text_are_left_to_the_decoder(route):
    """Which refuses them; in a run they would meet str where nobody expects an error."""
    payload = b"\x00\x3c\x00\x28\x00\x00" + route + b"\x00"
    data = b"".join([*message(), frame(1, 1, payload), *message()[1:], *message()])
    events, used = scanned(data)
    assert used == len(data)
    assert [type(event) for event in events] == [Publish, Frame, Frame, Frame, Publish]
    assert events[1] == Frame(1, 1, payload)


# --- what can't be read ---

BEFORE = method_frame(1, BasicAck(1)) + method_frame(1, BasicAck(2))
ACKED: list[Event] = [Ack(1, 1, False), Ack(1, 2, False)]


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">BHI", 3, 1, FRAME_MAX + 1),
        struct.pack(">BHI", 3, 1, 0xFFFFFFFF),
        struct.pack(">BHI", 3, 1, 0xFFFFFFF8),
        struct.pack(">BHI", 1, 1, 0x80000000),
        HEARTBEAT_FRAME[:-1] + b"\xcd",
        method_frame(1, BasicQos())[:-1] + b"\x00",
        b"AMQP\x00\x00\x09\x01",
    ],
)
@pytest.mark.parametrize("fast", [True, False])
def test_the_error_ends_the_reading(bad, fast):
    data = bad + b"".join(message()) + method_frame(1, BasicAck(1))
    assert scanned(data, fast=fast) == ([Fault(501)], 0)


@pytest.mark.parametrize("bad", [struct.pack(">BHI", 3, 1, 0xFFFFFFFF), b"\x08\0\0\0\0\0\0\0"])
def test_what_came_before_the_error_still_counts(bad):
    assert scanned(BEFORE + bad) == ([*ACKED, Fault(501)], len(BEFORE))
    one = b"".join(message())
    (event, fault), used = scanned(one + bad + one)
    assert isinstance(event, Publish)
    assert (fault, used) == (Fault(501), len(one))


@pytest.mark.parametrize("broken", [1, 2])
def test_an_error_inside_a_message(broken):
    """Its frames before the broken one are given out as such."""
    frames = message()
    whole = frames[:broken]
    data = BEFORE + b"".join(whole) + frames[broken][:-1] + b"\0" + frames[0]
    events, used = scanned(data)
    assert [type(event) for event in events] == [Ack, Ack, *[Frame] * broken, Fault]
    assert used == len(BEFORE) + sum(map(len, whole))


def test_the_largest_frame_is_allowed():
    assert len(published(body=bytes(FRAME_MAX)).record.value or b"") == FRAME_MAX
    largest = frame(3, 1, bytes(FRAME_MAX))
    assert scanned(largest) == ([Frame(3, 1, bytes(FRAME_MAX))], FRAME_MAX + 8)


@pytest.mark.parametrize("length", [0xFFFFFFF8, 0xFFFFFFFE, 0xFFFFFFFF])
def test_lengths_near_the_end_of_32_bits(length):
    """Adding the frame's own eight bytes must not make them small."""
    for kind, before in ((2, message()[:1]), (3, message()[:2])):
        data = b"".join(before) + struct.pack(">BHI", kind, 1, length) + bytes(40)
        assert scanned(data, 0xFFFFFFFF) == oracle_scan(data, 0xFFFFFFFF, NOW_MS)


@given(
    streams(max_size=6), st.lists(st.tuples(st.integers(0), st.integers(0, 7)), max_size=4), cuts
)
@settings(deadline=None, max_examples=180)
@example(b"".join(message()), [(30, 0)], [])
@example(method_frame(1, BasicPublish("é", "x")), [(14, 1)], [])  # its content is to come
def test_flipped_bits(data, flips, cuts):
    damaged = bytearray(data)
    for position, bit in flips if data else ():
        damaged[position % len(data)] ^= 1 << bit
    expected = oracle_scan(bytes(damaged), FRAME_MAX, NOW_MS)
    assert scanned(bytes(damaged)) == expected
    assert fed(cut(bytes(damaged), cuts)) == expected


@given(st.binary(max_size=200), st.sampled_from([0, 7, 8, 9, 64, FRAME_MAX, 0xFFFFFFFF]))
@settings(deadline=None, max_examples=150)
def test_garbage(data, frame_max):
    assert scanned(data, frame_max) == oracle_scan(data, frame_max, NOW_MS)


def test_much_garbage():
    """Small lengths, known ids and frame ends in the right place: deeper than plain noise gets."""
    chance = random.Random(11)
    ids = [b"\0\x3c\0\x28", b"\0\x3c\0\x50", b"\0\x3c\0\0", b""]
    for _ in range(3000):
        data = b"".join(
            frame(
                chance.choice([1, 1, 2, 3, 8]),
                chance.choice([0, 1, 1, 1]),
                chance.choice(ids) + chance.randbytes(chance.choice([0, 2, 9, 12, 20]))
                if chance.random() < 0.7
                else content_header_payload(chance.choice([0, 5, 1 << 40]), chance.randbytes(3)),
            )
            for _ in range(chance.randrange(6))
        )
        data = data[: len(data) - chance.choice([0, 0, 1, 9])]
        assert scanned(data) == oracle_scan(data, FRAME_MAX, NOW_MS)


def test_nothing_comes_of_nothing():
    assert scan(b"", 0, FRAME_MAX, NOW_MS) == ([], 0)
    assert scanned(b"") == ([], 0)
