"""Deaths that a kernel writes into many envelopes are those that Python writes into one, and what
the kernel is not for, it leaves alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.envelope import (
    NATIVE,
    Death,
    annotate,
    death_writers,
    encode_headers,
    routing_keys,
)
from braidmq.gateways.deaths import amqp_writer
from braidmq.record.batch import Record, RecordBatch
from braidmq.wire.amqp.properties import Properties, decode_properties
from braidmq.wire.deaths import GRAVE_SIZE, DeathWriter, alike, copy_as
from braidmq.wire.envelopes import AMQP, amqp_envelope, split_amqp

AT_MS = 1_700_000_000_123
NOW = 1_700_000_009_000

short = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | short | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=8,
)
texts = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration")
more_texts = ("message_id", "type", "user_id", "app_id", "cluster_id")
properties = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*texts, *more_texts), short),
        "headers": st.dictionaries(short, values, max_size=4),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**63),
    },
).map(lambda fields: Properties(**fields))
deaths = st.builds(
    Death,
    reason=st.sampled_from(["maxlen", "rejected", "expired", "max-attempts"]),
    namespace=st.just("/"),
    topic=short,
    partition=st.integers(-1, 9),
    attempts=st.integers(0, 70_000),
    subscription=short,
    at_ms=st.integers(0, 2**42),
    error=short,
    to_exchange=st.none() | short,
    to_key=st.binary(max_size=9),
    new_key=st.booleans(),
)
contents = {
    "key": st.none() | st.binary(max_size=5),
    "value": st.none() | st.binary(max_size=20),
    "priority": st.integers(0, 9),
}


def writer_of(envelope_format: int, death: Death) -> DeathWriter:
    (found,) = [each for each in death_writers(death) if each.envelope_format == envelope_format]
    return found


def batch_of(*records: dict[str, Any]) -> RecordBatch:
    batch = RecordBatch()
    for each in records:
        batch.append(each.pop("value", b"v"), **({"timestamp_ms": NOW} | each))
    batch.place(77)
    return batch


def as_read(record: Record) -> tuple[Any, ...]:
    exchange, key, raw = split_amqp(record.envelope)
    return exchange, key, decode_properties(raw)


@given(short, short, properties, deaths, st.fixed_dictionaries(contents))
@settings(deadline=None, max_examples=300)
def test_amqp_as_python_writes_it(exchange, key, given_properties, death, fields):
    envelope = amqp_envelope(exchange.encode(), key.encode(), given_properties)
    batch = batch_of({"envelope": envelope, "envelope_format": AMQP, **fields})
    record = batch.record(0)
    writer, dead = writer_of(AMQP, death), RecordBatch()
    assert writer.key_of(batch, 0) == routing_keys(record)[0]
    assert writer.copy(batch, 0, 1, dead, NOW, death.at_ms, False) == 1
    if not death.new_key:
        death = death._replace(to_key=key.encode())
    expected = record._replace(envelope=annotate(record, death)[1], offset=0)
    got = dead.record(0)
    assert as_read(got) == as_read(expected)
    assert got._replace(envelope=b"") == expected._replace(envelope=b"")
    dead.verify()


@given(st.lists(st.tuples(short, st.binary(max_size=9))), deaths, st.fixed_dictionaries(contents))
@settings(deadline=None, max_examples=300)
def test_native_as_python_writes_it(headers, death, fields):
    batch = batch_of({"envelope": encode_headers(headers), **fields})
    record = batch.record(0)
    writer, dead = writer_of(NATIVE, death), RecordBatch()
    assert writer.key_of(batch, 0) == (record.key or b"")
    assert writer.copy(batch, 0, 1, dead, NOW, death.at_ms, True) == 1
    assert dead.record(0) == record._replace(envelope=annotate(record, death)[1], offset=0)
    assert writer.written(record.envelope, record.offset, death.at_ms) == dead.record(0).envelope


DEATH = Death("maxlen", "/", "q", 0, 0, "queue", AT_MS)


@pytest.mark.parametrize(
    ("envelope_format", "envelope"),
    [
        (AMQP, amqp_envelope(b"", b"k", Properties(headers={"CC": ["x"]}))),
        (AMQP, amqp_envelope(b"", b"k", Properties(headers={"a": 1, "x-death": []}))),
        (AMQP, amqp_envelope(b"", b"k", Properties(headers={"x-first-death-queue": "q"}))),
        (AMQP, b""),
        (AMQP, b"\0"),
        (AMQP, b"\0\0\0"),
        (AMQP, b"\0\0\0\1\0\0"),
        (AMQP, b"\0\0\x20\0\0\0\0\2\1"),
        (AMQP, b"\0\0\x20\0\0\0\0\3\1a?"),
        (AMQP, b"\0\0\0\0trailing"),
        (NATIVE, encode_headers([("x-death-topic", b"t")])),
        (NATIVE, encode_headers([("a", b"b")])[:-1]),
        (NATIVE, b"\1"),
        (2, b"\0\0\1a"),
    ],
)
def test_what_is_not_for_a_writer_is_left(envelope_format, envelope):
    batch = batch_of({"envelope": envelope, "envelope_format": envelope_format})
    for writer in death_writers(DEATH):
        assert writer.key_of(batch, 0) is None
        assert writer.copy(batch, 0, 1, RecordBatch(), NOW, AT_MS, False) == 0


@given(st.binary(max_size=60), st.sampled_from([AMQP, NATIVE]))
@settings(deadline=None, max_examples=500)
def test_bytes_that_are_no_envelope(envelope, envelope_format):
    batch = batch_of({"envelope": envelope, "envelope_format": envelope_format})
    writer, dead = writer_of(envelope_format, DEATH), RecordBatch()
    assert writer.copy(batch, 0, 1, dead, NOW, AT_MS, True) == dead.count
    dead.verify()


def numbered(keys: list[bytes]) -> RecordBatch:
    return batch_of(
        *[
            {"envelope": amqp_envelope(b"x", key, Properties()), "envelope_format": AMQP}
            for key in keys
        ]
    )


def test_a_copy_ends_where_the_key_is_another_if_that_matters():
    batch, writer = numbered([b"a", b"a", b"b", b"a"]), amqp_writer(DEATH)
    assert writer.copy(batch, 0, 4, RecordBatch(), NOW, AT_MS, True) == 2
    assert writer.copy(batch, 2, 4, RecordBatch(), NOW, AT_MS, True) == 3
    assert writer.copy(batch, 0, 4, RecordBatch(), NOW, AT_MS, False) == 4


def test_a_full_batch_takes_no_more():
    envelope = amqp_envelope(b"", b"k", Properties())
    large = {"value": bytes(GRAVE_SIZE), "envelope": envelope, "envelope_format": AMQP}
    batch = batch_of(dict(large), dict(large))
    assert amqp_writer(DEATH).copy(batch, 0, 2, RecordBatch(), NOW, AT_MS, False) == 1
    assert copy_as(batch, 0, 2, RecordBatch(), AMQP, envelope, NOW) == 1


def test_records_that_say_the_same_of_themselves():
    same = {"envelope": b"e", "key": b"k", "priority": 1, "timestamp_ms": 5000}
    others = [
        {"envelope": b"f"},
        {"envelope": b"ee"},
        {"key": b"l"},
        {"key": None},
        {"priority": 2},
        {"timestamp_ms": 6000},
        {"envelope_format": 1},
        {"expires_at_ms": 9000},
    ]
    for other in others:
        batch = batch_of(dict(same), same | {"timestamp_ms": 5999, "value": b"w"}, same | other)
        assert alike(batch, 0, 3) == 2
        assert alike(batch, 2, 3) == 3
    batch = batch_of(dict(same), dict(same))
    dead = RecordBatch()
    assert copy_as(batch, 0, 2, dead, AMQP, b"other", NOW) == 2
    expected = batch.record(0)._replace(envelope=b"other", envelope_format=AMQP)
    assert dead.record(0) == expected._replace(offset=0, timestamp_ms=NOW)


def test_those_that_are_alike_say_each_its_own_offset():
    batch = batch_of({}, {}, {})
    dead = RecordBatch()
    assert copy_as(batch, 1, 3, dead, AMQP, b"ab" + bytes(8) + b"cd", NOW, 2) == 3
    said = [b"ab" + offset.to_bytes(8) + b"cd" for offset in (78, 79)]
    assert [dead.record(index).envelope for index in range(2)] == said
    for beyond in (5, 99, -2):
        with pytest.raises(ValueError, match="no room"):
            copy_as(batch, 0, 3, RecordBatch(), AMQP, bytes(12), NOW, beyond)
