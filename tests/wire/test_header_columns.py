"""The kernel agrees with ``native_headers`` on any envelope, whole or damaged, and makes no more
than what is wanted."""

import struct
from array import array
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from braidmq.record.batch import FLAG_KEYED, BadRecord, RecordBatch
from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.amqp.tables import TABLE_DEPTH_MAX, TABLE_VALUES_MAX, encode_table
from braidmq.wire.envelopes import (
    AMQP,
    MQTT,
    NATIVE,
    encode_headers,
    native_headers,
    split_amqp,
    split_mqtt,
)
from braidmq.wire.header_columns import (
    WANT_ATTEMPTS,
    WANT_HEADERS,
    WANT_ROUTING,
    WANT_TRACE,
    header_columns,
    tagged_envelopes,
)
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt_properties
from braidmq.wire.mqtt.text import write_string
from braidmq.wire.record_rows import check_rows

EVERYTHING = WANT_HEADERS | WANT_TRACE | WANT_ROUTING | WANT_ATTEMPTS

# --- strategies: what clients can send ---

names = st.sampled_from(["a", "b", "é", "traceparent", "x-death-attempts", "x-key", "x-partition"])
names = names | st.text(max_size=6)


def field(letter: str, layout: str, numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: letter.encode() + struct.pack(f">{layout}", number))


def sized(letter: str, body: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return body.map(lambda data: letter.encode() + struct.pack(">I", len(data)) + data)


texts = st.text(max_size=8).map(str.encode)
scalars = st.one_of(
    field("t", "B", st.integers(0, 3)),
    field("b", "b", st.integers(-128, 127)),
    field("B", "B", st.integers(0, 255)),
    field("s", "h", st.integers(-(1 << 15), (1 << 15) - 1)),
    field("u", "H", st.integers(0, (1 << 16) - 1)),
    field("I", "i", st.integers(-(1 << 31), (1 << 31) - 1)),
    field("i", "I", st.integers(0, (1 << 32) - 1)),
    field("l", "q", st.integers(-(1 << 63), (1 << 63) - 1)),
    field("L", "q", st.integers(-(1 << 63), (1 << 63) - 1)),
    field("f", "f", st.floats(width=32)),
    field("d", "d", st.floats()),
    field("T", "Q", st.integers(0, 253_402_300_800) | st.integers(0, (1 << 64) - 1)),
    st.tuples(st.integers(0, 255), st.integers(-(1 << 31), (1 << 31) - 1)).map(
        lambda pair: b"D" + struct.pack(">Bi", *pair)
    ),
    st.just(b"V"),
    sized("S", texts | st.binary(max_size=8)),
    sized("x", st.binary(max_size=8)),
)


def pairs_of(values: st.SearchStrategy[bytes], most: int = 4) -> st.SearchStrategy[bytes]:
    pair = st.tuples(names.map(str.encode), values).map(
        lambda pair: bytes([len(pair[0])]) + pair[0] + pair[1]
    )
    return st.lists(pair, max_size=most).map(b"".join)


fields = st.recursive(
    scalars,
    lambda inner: st.one_of(
        sized("A", st.lists(inner, max_size=4).map(b"".join)), sized("F", pairs_of(inner))
    ),
    max_leaves=12,
)
tables = pairs_of(fields, 6) | pairs_of(scalars, 90)
short_strings = st.text(max_size=9).map(str.encode) | st.binary(max_size=3)


def short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


@st.composite
def amqp_envelopes(draw: st.DrawFn) -> bytes:
    flags, parts = 0, []
    for index in range(14):
        if not draw(st.booleans()):
            continue
        flags |= 0x8000 >> index
        if index == 2:
            table = draw(tables)
            parts.append(struct.pack(">I", len(table)) + table)
        elif index in (3, 4):
            parts.append(bytes([draw(st.integers(0, 255))]))
        elif index == 9:
            parts.append(struct.pack(">Q", draw(st.integers(0, (1 << 64) - 1))))
        else:
            parts.append(short(draw(short_strings)))
    more = draw(st.sampled_from([b"", b"", b"\0\0", b"\0\1\0\0"]))
    head = struct.pack(">H", flags | (1 if more else 0)) + more
    return short(draw(short_strings)) + short(draw(short_strings)) + head + b"".join(parts)


mqtt_texts = st.text(max_size=5)


@st.composite
def mqtt_envelopes(draw: st.DrawFn) -> bytes:
    known = MqttProperties(
        payload_format_indicator=draw(st.none() | st.integers(0, 2)),
        message_expiry_interval=draw(st.none() | st.integers(0, (1 << 32) - 1)),
        content_type=draw(st.none() | mqtt_texts),
        response_topic=draw(st.none() | mqtt_texts | st.just("a.b/c")),
        correlation_data=draw(st.none() | st.binary(max_size=5)),
        subscription_identifiers=tuple(draw(st.lists(st.integers(0, 300), max_size=2))),
        topic_alias=draw(st.none() | st.integers(0, 3)),
        user_properties=tuple(draw(st.lists(st.tuples(names, mqtt_texts), max_size=4))),
    )
    raw = encode_mqtt_properties(known, Kind.PUBLISH)
    if draw(st.booleans()):
        raw += encode_mqtt_properties(MqttProperties(content_type="twice"), Kind.PUBLISH)
    return bytes([draw(st.integers(0, 15))]) + write_string(draw(mqtt_texts)) + raw


whole = st.one_of(
    st.tuples(
        st.just(NATIVE),
        st.lists(st.tuples(names, st.binary(max_size=5)), max_size=4).map(encode_headers),
    ),
    st.tuples(st.just(AMQP), amqp_envelopes()),
    st.tuples(st.just(MQTT), mqtt_envelopes()),
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes]:
    number, envelope = draw(whole)
    data = bytearray(envelope)
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(data)))
    return number, bytes(data[: cut if draw(st.booleans()) else len(data)])


envelopes = st.one_of(whole, damaged(), st.tuples(st.integers(0, 3), st.binary(max_size=30)))
messages = st.lists(st.tuples(envelopes, st.booleans()), min_size=1, max_size=6)


# --- the kernel, and what it must agree with ---


def decoded(found: list[tuple[tuple[int, bytes], bool]], wanted: int, tagged: bool = False) -> Any:
    joined, ends = b"", [0]
    for (number, envelope), _ in found:
        joined += (bytes([number]) if tagged else b"") + envelope
        ends.append(len(joined))
    formats = None if tagged else bytes(number for (number, _), _ in found)
    flags = array("i", [FLAG_KEYED if keyed else 0 for _, keyed in found])
    return header_columns(array("i", ends), joined, formats, flags, wanted)


def column(kind: pa.DataType, rows: int, buffers: tuple[bytes | None, ...]) -> list[Any]:
    made = pa.Array.from_buffers(
        kind, rows, [None if each is None else pa.py_buffer(each) for each in buffers]
    )
    made.validate(full=True)
    return made.to_pylist()


def lists(rows: int, columns: Any) -> list[list[tuple[str, bytes]]]:
    pairs, ends, names, values = columns[:4]
    together = list(
        zip(column(pa.string(), pairs, names), column(pa.binary(), pairs, values), strict=True)
    )
    at = array("i", ends[1])
    return [together[at[row] : at[row + 1]] for row in range(rows)]


def oracle(number: int, envelope: bytes, keyed: bool) -> list[tuple[str, bytes]]:
    """Whatever can't be read has no headers."""
    try:
        return native_headers(number, envelope, keyed)
    except Exception:
        return []


@given(messages)
@settings(max_examples=400, deadline=None)
def test_headers_are_what_plain_python_says(found):
    columns = decoded(found, EVERYTHING)
    expected = [
        oracle(number, envelope, keyed)
        if number != NATIVE or encode_headers(oracle(number, envelope, keyed)) == envelope
        else []  # bytes behind the last header
        for (number, envelope), keyed in found
    ]
    assert lists(len(found), columns) == expected
    assert lists(len(found), decoded(found, WANT_HEADERS, tagged=True)) == expected
    traces = [next((v for n, v in each if n == "traceparent"), None) for each in expected]
    assert column(pa.string(), len(found), columns[4]) == [
        None if each is None else each.decode("utf-8", "replace") for each in traces
    ]
    assert column(pa.int32(), len(found), columns[6]) == [attempts(each) for each in expected]
    assert column(pa.string(), len(found), columns[5]) == [route(*each) for each, _ in found]


def attempts(headers: list[tuple[str, bytes]]) -> int | None:
    given = [value for name, value in headers if name == "x-death-attempts"]
    numbers = [int(each) for each in given if each.isdigit() and len(each) < 10]
    return numbers[-1] if numbers else None


def route(number: int, envelope: bytes) -> str | None:
    try:
        if number == AMQP:
            found, rest = split_amqp(envelope)[1:]
            if len(rest) < 2:
                return None
        elif number == MQTT and len(envelope) >= 3:
            found = split_mqtt(envelope)[1]
            if len(found) < int.from_bytes(envelope[1:3]):
                return None
        else:
            return None
    except IndexError:
        return None
    return found.decode("utf-8", "replace")


@given(messages, st.integers(1, 15))
@settings(max_examples=100, deadline=None)
def test_what_is_not_wanted_is_not_made_and_changes_nothing(found, wanted):
    everything, some = decoded(found, EVERYTHING), decoded(found, wanted)
    if wanted & WANT_HEADERS:
        assert lists(len(found), some) == lists(len(found), everything)
    else:
        assert some[1:4] == (None, None, None)
    for at, bit in ((4, WANT_TRACE), (5, WANT_ROUTING), (6, WANT_ATTEMPTS)):
        assert some[at] == (everything[at] if wanted & bit else None)


def nested(depth: int) -> bytes:
    value = b"V"
    for _ in range(depth - 1):
        value = b"A" + struct.pack(">I", len(value)) + value
    return b"\1a" + value


@pytest.mark.parametrize(
    ("table", "readable"),
    [
        (nested(TABLE_DEPTH_MAX), True),
        (nested(TABLE_DEPTH_MAX + 1), False),
        (b"\1aV" * TABLE_VALUES_MAX, True),
        (b"\1aV" * (TABLE_VALUES_MAX + 1), False),
        (b"\1aS\0\1\0\0" + b"x" * 65536, True),
        (b"\1aS\0\x10\0\0" + b"x" * (1 << 20), False),
        (b"\x0bx-partitionV" * 70, True),
    ],
)
def test_limits_of_tables_are_those_of_the_codec(table, readable):
    raw = b"\0\0" + struct.pack(">HI", 0x2000, len(table)) + table
    (found,) = lists(1, decoded([((AMQP, raw), False)], WANT_HEADERS))
    assert found == oracle(AMQP, raw, False)
    assert bool(found) == (readable and b"x-partition" not in table)


def test_celerys_headers():
    headers = {
        "lang": "py",
        "task": "shop.tasks.bill",
        "shadow": None,
        "eta": None,
        "retries": 0,
        "timelimit": [None, 30],
        "stamps": {'a\n"é': [b"\xff", 1.5, True, Decimal("1.50")]},
        "ignore_result": False,
    }
    raw = b"\0\6celery" + encode_properties(Properties(headers=headers, correlation_id="c"))
    (found,) = lists(1, decoded([((AMQP, raw), False)], WANT_HEADERS))
    assert found == oracle(AMQP, raw, False)
    assert dict(found)["timelimit"] == b"[null,30]"


@given(messages)
@settings(max_examples=50, deadline=None)
def test_envelopes_come_with_their_format(found):
    joined, ends = b"", array("i", [0])
    for (_, envelope), _ in found:
        joined += envelope
        ends.append(len(joined))
    formats = bytes(number for (number, _), _ in found)
    made = column(pa.binary(), len(found), tagged_envelopes(ends, joined, formats))
    assert made == [
        bytes([number]) + envelope if envelope or number else None
        for (number, envelope), _ in found
    ]


# --- what a publisher may send ---


@given(envelopes)
@example((AMQP, b"\0\0" + b"\x20\0" + encode_table({"a": [1, {"b": None}]})))
@settings(max_examples=400, deadline=None)
def test_envelopes_that_are_taken_can_be_read(envelope):
    """Refused, typed, or what it says is what plain Python reads."""
    number, data = envelope
    batch = RecordBatch()
    batch.append(b"v", envelope=data, envelope_format=number)
    try:
        users, exchanges, topics = check_rows(batch)
    except BadRecord:
        return
    native_headers(number, data)
    if number == AMQP:
        assert exchanges == {split_amqp(data)[0]}
        wanted = dict(native_headers(number, data)).get("user-id")
        assert users == (set() if wanted is None else users)
    if number == MQTT:
        assert topics == {split_mqtt(data)[1]}
    if number == NATIVE:
        assert not users
        assert not exchanges
        assert not topics


def amqp(**given: Any) -> bytes:
    return b"\0\1q" + encode_properties(Properties(**given))


def mqtt(topic: str = "a/b", flags: int = 1, **given: Any) -> bytes:
    raw = encode_mqtt_properties(MqttProperties(**given), Kind.PUBLISH)
    return bytes([flags]) + write_string(topic) + raw


@pytest.mark.parametrize(
    ("number", "envelope", "reason"),
    [
        (3, b"", "format is unknown"),
        (NATIVE, b"\1", "number of headers"),
        (NATIVE, b"\1\0\1\0\xff\0\0\0\0", "no text"),
        (AMQP, b"", "exchange or the routing key"),
        (AMQP, b"\0\1q", "exchange or the routing key"),
        (AMQP, b"\1\xff\0\0\0", "exchange is no text"),
        (AMQP, b"\0\1\xff\0\0", "routing key is no text"),
        (AMQP, b"\0\1q\0\2", "do not exist"),
        (AMQP, b"\0\1q\0\0x", "bytes follow"),
        (AMQP, b"\0\1q\x20\0\0\0\0\3\1aV"[:-1], "ends inside the headers"),
        (AMQP, b"\0\1q\x20\0\0\0\0\3\1a?", "unknown type"),
        (AMQP, b"\0\1q\x20\0\0\0\0\7\1aS\0\0\0\1", "cut off"),
        (AMQP, amqp(expiration="soon"), "expiration"),
        (AMQP, amqp(expiration=""), "expiration"),
        (AMQP, amqp(delivery_mode=7), "delivery mode"),
        (AMQP, amqp(headers={"a": "x" * 131_072}), "fit in a frame"),
        (MQTT, b"\1\0", "topic"),
        (MQTT, mqtt(""), "topic"),
        (MQTT, mqtt("a/#"), "topic"),
        (MQTT, mqtt(flags=3), "flags"),
        (MQTT, mqtt(flags=9), "flags"),
        (MQTT, mqtt(topic_alias=1), "alias"),
        (MQTT, mqtt(subscription_identifiers=(1,)), "properties"),
        (MQTT, mqtt(response_topic="a/+"), "properties"),
    ],
)
def test_what_no_client_could_have_sent_is_refused(number, envelope, reason):
    batch = RecordBatch()
    batch.append(b"good")
    batch.append(b"bad", envelope=envelope, envelope_format=number)
    with pytest.raises(BadRecord, match=reason):
        check_rows(batch)


def test_what_envelopes_claim_is_told():
    batch = RecordBatch()
    batch.append(b"v", envelope=amqp(user_id="eve"), envelope_format=AMQP)
    batch.append(b"v", envelope=b"\4logs\0" + encode_properties(Properties()), envelope_format=AMQP)
    batch.append(b"v", envelope=mqtt("x/y"), envelope_format=MQTT)
    assert check_rows(batch) == ({b"eve"}, {b"", b"logs"}, {b"x/y"})
