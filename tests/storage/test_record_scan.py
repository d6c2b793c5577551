"""Scanning many records: three at a time in the kernel, one after the other in the oracle."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import INT64_MAX, INT64_MIN, Message, crc32c, encode_batch, encode_record, scan_records

from braidmq.record.batch import BadRecord, RecordBatch

# Bodies that end within a word, and those that are several chains by themselves.
sizes = st.one_of(st.integers(0, 40), st.sampled_from([120, 127, 128, 503, 504, 700]))
messages = st.builds(
    Message,
    value=st.none() | st.builds(bytes.ljust, st.binary(max_size=8), sizes, st.just(b"x")),
    key=st.sampled_from([None, b"", b"key"]),
    envelope=st.sampled_from([b"", b"envelope of a message"]),
    envelope_format=st.integers(0, 255),
    flags=st.integers(0, 255),
    priority=st.integers(0, 255),
    timestamp_ms=st.one_of(st.integers(0, 5), st.integers(INT64_MIN, INT64_MAX)),
    expires_at_ms=st.sampled_from([0, 0, 7]),
    due_at_ms=st.just(0),
)
runs = st.lists(messages, min_size=1, max_size=11)


def scanned(data: bytes) -> tuple[list[int], int, str]:
    """What the kernel says of ``data``, in the oracle's words."""
    end, reason = len(data), ""
    try:
        RecordBatch.scan(data)
    except BadRecord as bad:
        end, reason = bad.position, bad.reason
    batch = RecordBatch.scan(data[:end])
    assert batch.size == end or not reason
    return [batch.position_at(at) for at in range(batch.count)], batch.size, reason


@settings(deadline=None)
@given(runs, st.data())
def test_damage_is_reported_where_and_as_it_is(run, draw):
    data = bytearray(encode_batch(run))
    assert scanned(bytes(data)) == scan_records(bytes(data))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] ^= draw.draw(st.integers(1, 255))
    assert scanned(bytes(data)) == scan_records(bytes(data))


@settings(deadline=None)
@given(runs, st.data())
def test_a_cut_ends_the_scan(run, draw):
    data = encode_batch(run)
    data = data[: draw.draw(st.integers(0, len(data)))]
    assert scanned(data) == scan_records(data)


@settings(deadline=None)
@given(runs, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
def test_an_intact_header_may_claim_any_length(run, envelope, value, key):
    """Of a record that is too long for the data nothing is read."""
    head = bytearray(encode_record(Message(b"v" * 64), 3)[:40])
    head[14:16] = struct.pack("<H", key)
    head[32:40] = struct.pack("<II", envelope, value)
    head[:4] = struct.pack("<I", crc32c(bytes(head[4:])))
    data = encode_batch(run) + head + encode_batch(run)
    assert scanned(data) == scan_records(data)


@settings(deadline=None)
@given(runs)
def test_what_it_knows_of_its_records_is_what_they_know(run):
    batch, one_by_one = RecordBatch.scan(encode_batch(run)), RecordBatch()
    for message in run:
        one_by_one.append(**message._asdict())
    for name in (
        *("count", "size", "summary", "value_bytes"),
        *("value_bytes_max", "max_timestamp_ms", "time_ordered", "first_timestamp_ms"),
    ):
        assert getattr(batch, name) == getattr(one_by_one, name), name
    records = [message.fields(place) for place, message in enumerate(run)]
    assert batch.records() == records


@pytest.mark.parametrize("count", range(1, 10))
def test_every_damaged_byte_of_a_run_is_found(count):
    data = encode_batch([Message(b"value %d" % number, b"key") for number in range(count)])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert scanned(bytes(damaged)) == scan_records(bytes(damaged)), at


def test_more_records_than_the_first_ones_let_expect():
    """Room for positions is made by the size of the record before."""
    run = [Message(b"x" * 5000)] + [Message(b"")] * 500 + [Message(b"y" * 900)] * 5
    data = encode_batch(run)
    assert scanned(data) == scan_records(data)
    assert len(scanned(data)[0]) == len(run)
