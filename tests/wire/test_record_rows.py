"""Columns become the records that ``RecordBatch.append`` would make, and bad bytes are refused."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.record.batch import DATED_DUE, DATED_EXPIRY, FLAG_CONTROL, BadRecord, RecordBatch
from braidmq.wire.envelopes import encode_headers
from braidmq.wire.record_rows import check_rows, encode_rows

HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))

rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=50),
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3),
        st.integers(0, 1 << 50),
        st.integers(0, 255),
        st.integers(0, 1 << 50),
        st.integers(0, 1 << 50),
    ),
    min_size=1,
    max_size=20,
)


def column(array: pa.Array) -> tuple[tuple[pa.Buffer | None, ...], int]:
    return tuple(array.buffers()), array.offset


@given(rows, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_rows_are_the_records_that_appending_makes(found: list, skipped: int) -> None:
    skipped = min(skipped, len(found) - 1)
    expected = RecordBatch()
    for key, value, headers, timestamp, priority, due, expires in found[skipped:]:
        expected.append(
            value,
            key=key,
            envelope=encode_headers(headers or []),
            timestamp_ms=timestamp,
            priority=priority,
            due_at_ms=due,
            expires_at_ms=expires,
            dated=DATED_DUE | DATED_EXPIRY,
        )
    keys, values, headers, times, priorities, dues, expiries = zip(*found, strict=True)
    pairs = [
        None if each is None else [{"key": name.encode(), "value": value} for name, value in each]
        for each in headers
    ]
    # Sliced, as Spark's arrays may be.
    lists = pa.array(pairs, HEADERS).slice(skipped)
    made = encode_rows(
        0,
        len(found) - skipped,
        column(pa.array(values, pa.binary()).slice(skipped)),
        column(pa.array(times, pa.int64()).slice(skipped)),
        key=column(pa.array(keys, pa.binary()).slice(skipped)),
        headers=(tuple(lists.buffers()[:2]), lists.offset),
        names=column(lists.values.field("key")),
        header_values=column(lists.values.field("value")),
        priority=column(pa.array(priorities, pa.int64()).slice(skipped)),
        due_at_ms=column(pa.array(dues, pa.int64()).slice(skipped)),
        expires_at_ms=column(pa.array(expiries, pa.int64()).slice(skipped)),
    )
    assert bytes(memoryview(made)) == bytes(memoryview(expected))
    check_rows(RecordBatch.scan(bytes(memoryview(made)), base_offset=0))


@given(st.binary(min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_headers_that_pass_can_be_read(envelope: bytes) -> None:
    from braidmq.wire.envelopes import BadHeaders, decode_headers

    batch = RecordBatch()
    batch.append(b"x", envelope=envelope)
    try:
        check_rows(batch)
    except BadRecord:
        return
    try:
        again = encode_headers(decode_headers(envelope))
    except BadHeaders:
        pytest.fail("what passed can't be read")
    assert again == envelope or envelope == b"\0\0"


def test_what_is_the_brokers_is_refused() -> None:
    for more in (
        {"flags": FLAG_CONTROL},
        {"envelope": b"\1\0", "envelope_format": 0},
        {"envelope": b"x", "envelope_format": 1},
        {"timestamp_ms": -1},
        {"due_at_ms": -5},
    ):
        batch = RecordBatch()
        batch.append(b"good")
        batch.append(b"bad", **more)
        with pytest.raises(BadRecord):
            check_rows(batch)
