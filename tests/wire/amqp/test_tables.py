import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.wire.amqp.errors import AmqpError, FrameError, TableError
from braidmq.wire.amqp.tables import (
    TABLE_BYTES_MAX,
    TABLE_DEPTH_MAX,
    TABLE_VALUES_MAX,
    decode_table,
    encode_table,
)

try:  # a second opinion, where it is installed
    from pika import data as pika_data
except ImportError:
    pika_data = None
with_pika = pytest.mark.skipif(pika_data is None, reason="pika is not installed")

keys = st.text(max_size=12)
timestamps = st.datetimes(
    min_value=datetime(1970, 1, 1),
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=0))
decimals = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(-scale),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 255),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | timestamps
    | decimals
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(keys, values, max_size=5)


# pika cannot write floats, reads them as integers, and drops the zeros of a decimal.
pika_tables = st.dictionaries(
    keys,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 63) - 1)
        | st.text(max_size=20)
        | st.binary(max_size=20)
        | timestamps,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=8,
    ),
    max_size=5,
)


@contextmanager
def only(kind: type[AmqpError], reply_codes: tuple[int, ...]) -> Iterator[None]:
    """What is done here may fail, but only so."""
    try:
        yield
    except kind as error:
        if error.reply_code not in reply_codes:
            raise AssertionError(f"reply code {error.reply_code}") from error


def sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def one(value: bytes) -> object:
    return decode_table(sized(b"\x01k" + value))["k"]


@settings(deadline=None)
@given(tables)
def test_round_trip(table):
    assert decode_table(encode_table(table)) == table
    assert decode_table(memoryview(encode_table(table))) == table


@settings(deadline=None)
@given(tables)
def test_a_bool_stays_a_bool_and_bytes_stay_bytes(table):
    decoded = decode_table(encode_table(table))
    assert [type(v) for v in decoded.values()] == [type(v) for v in table.values()]


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"t\x00", False),
        (b"t\x07", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 4294967295),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"d\x3f\xf0" + bytes(6), 1.0),
        (b"D\x02\x00\x00\x00\x7b", Decimal("1.23")),
        (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x02hi", b"hi"),
        (b"T" + bytes(7) + b"\x01", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (b"T" + b"\xff" * 8, (1 << 64) - 1),
        (b"V", None),
        (b"A\x00\x00\x00\x03Vt\x01", [None, True]),
        (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    ],
)
def test_every_type_of_the_dialect(wire, value):
    got = one(wire)
    assert got == value
    assert type(got) is type(value)


def test_the_first_of_two_equal_keys_counts():
    assert decode_table(sized(b"\x01kb\x01\x01kb\x02")) == {"k": 1}


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (True, b"t\x01"),
        ((1 << 31) - 1, b"I\x7f\xff\xff\xff"),
        (1 << 31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
        ("é", b"S\x00\x00\x00\x02\xc3\xa9"),
        (b"\xff", b"x\x00\x00\x00\x01\xff"),
        (Decimal("1E+3"), b"D\x00\x00\x00\x03\xe8"),
        (datetime(1970, 1, 1, 0, 1), b"T" + bytes(7) + b"\x3c"),
        ((1,), b"A\x00\x00\x00\x05I\x00\x00\x00\x01"),
        (IntEnum("E", "A").A, b"I\x00\x00\x00\x01"),
        (MappingProxyType({}), b"F\x00\x00\x00\x00"),
    ],
)
def test_what_python_values_become(value, wire):
    assert encode_table({"k": value}) == sized(b"\x01k" + wire)


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        Decimal("NaN"),
        Decimal("1e20"),
        Decimal("12345678901"),
        datetime(1960, 1, 1, tzinfo=UTC),
        "\ud800",
    ],
)
def test_values_that_have_no_encoding(value):
    with pytest.raises(ValueError, match=r"."):
        encode_table({"k": value})


def test_a_type_that_has_no_encoding():
    with pytest.raises(TypeError, match="object"):
        encode_table({"k": object()})


def test_keys_are_short_strings():
    with pytest.raises(ValueError, match="short string"):
        encode_table({"k" * 256: 1})


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_only_typed_errors(raw):
    for decoder, data in (
        (decode_table, raw),
        (decode_table, sized(raw)),
    ):
        with only(AmqpError, (501, 502)):
            decoder(data)


@settings(deadline=None)
@given(tables, st.data())
def test_damaged_tables_raise_only_typed_errors(table, data):
    raw = bytearray(encode_table(table))
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[position] = data.draw(st.integers(0, 255))
    with only(AmqpError, (501, 502)):
        decode_table(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize(
    "body",
    [b"\x01k", b"\x05k", b"\x01kZ", b"\x01kI\x00", b"\x01kS\x00\x00\x00\x05a", b"\x01\xffV",
     b"\x01kA\x00\x00\x00\x01I", b"\x01kT\x00", b"\x01kD\x00", b"\x01kF\x00\x00"],
)  # fmt: skip
def test_malformed(body):
    with pytest.raises(TableError) as caught:
        decode_table(sized(body))
    assert caught.value.reply_code == 502


def test_a_value_may_not_reach_past_the_end_of_its_own_table():
    with pytest.raises(TableError, match="inside a value"):
        decode_table(sized(b"\x01kF\x00\x00\x00\x04\x01aI\x00" + b"\x01bV"))


def test_cut_and_surplus():
    with pytest.raises(FrameError):
        decode_table(b"\x00\x00\x00\x05")
    with pytest.raises(FrameError):
        decode_table(b"\x00\x00")
    with pytest.raises(TableError, match="after the end"):
        decode_table(b"\x00\x00\x00\x00V")


def nested(depth: int) -> bytes:
    body = b""
    for _ in range(depth - 1):
        body = b"\x01kF" + sized(body)
    return sized(body)


def test_depth_is_limited():
    assert decode_table(nested(TABLE_DEPTH_MAX))
    with pytest.raises(TableError, match="deeper"):
        decode_table(nested(TABLE_DEPTH_MAX + 1))
    deep: dict[str, object] = {}
    for _ in range(TABLE_DEPTH_MAX):
        deep = {"k": deep}
    with pytest.raises(ValueError, match="deeper"):
        encode_table(deep)


def test_a_table_bomb_is_refused_quickly():
    arrays = (b"A" + bytes(4)) * (TABLE_VALUES_MAX + 1)
    began = time.process_time()
    with pytest.raises(TableError, match="values"):
        one(b"A" + sized(arrays))
    body = b""
    for _ in range(2000):
        body = b"A" + sized(body)
    with pytest.raises(TableError, match="deeper"):
        one(body)
    assert time.process_time() - began < 2
    with pytest.raises(TableError, match="at most"):
        decode_table(sized(bytes(TABLE_BYTES_MAX + 1)))


@with_pika
@settings(deadline=None)
@given(pika_tables)
def test_pika_writes_and_reads_the_same_bytes(table):
    pieces: list[bytes] = []
    pika_data.encode_table(pieces, table)
    raw = b"".join(pieces)
    assert encode_table(table) == raw
    assert pika_data.decode_table(raw, 0)[0] == table == decode_table(raw)


@with_pika
@pytest.mark.parametrize("text", ["0", "1.23", "-1.5", "12"])
def test_pika_writes_the_same_decimals(text):
    pieces: list[bytes] = []
    pika_data.encode_table(pieces, {"k": Decimal(text)})
    assert encode_table({"k": Decimal(text)}) == b"".join(pieces)
