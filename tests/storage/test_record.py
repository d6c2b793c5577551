"""Records and batches against their byte diagram."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import (
    CONTROL,
    INT64_MAX,
    INT64_MIN,
    RECORD_HEADER_BYTES,
    TIMED,
    Message,
    boundaries,
    crc32c,
    encode_batch,
    encode_record,
    encode_segment,
    flip,
    select_rows,
)

from braidmq.record import batch as record_module
from braidmq.record.batch import LEDGER_RESIDENT, BadRecord, RecordBatch
from braidmq.record.columns import EVERY_COLUMN, decode_columns
from braidmq.record.offset_set import OffsetSet

FLAGS_BYTE = 10

times = st.one_of(st.integers(0, 50), st.integers(0, 2**42), st.integers(INT64_MIN, INT64_MAX))
timing = st.one_of(st.just(0), times)
small = st.integers(0, 255)
bodies = st.one_of(st.just(b""), st.binary(max_size=24))
messages = st.builds(
    Message,
    value=st.none() | bodies,
    key=st.none() | bodies,
    envelope=bodies,
    envelope_format=small,
    flags=small,
    priority=small,
    timestamp_ms=times,
    expires_at_ms=timing,
    due_at_ms=timing,
)
batches = st.lists(messages, max_size=5)
some = st.lists(messages, min_size=1, max_size=5)
base_offsets = st.one_of(st.integers(0, 10), st.integers(0, 2**62))


@st.composite
def segments(draw, min_size: int = 0):
    """Messages with rising offsets of their own, gaps allowed."""
    offset, rows = draw(st.integers(0, 100)), []
    for message in draw(st.lists(messages, min_size=min_size, max_size=7)):
        rows.append((offset, message))
        offset += draw(st.integers(1, 5))
    return rows


@st.composite
def offset_sets(draw):
    covered = OffsetSet(draw(st.integers(0, 12)))
    for start in draw(st.lists(st.integers(0, 12), max_size=5)):
        covered.add(start, start + 1)
    return covered


def append(batch: RecordBatch, message: Message) -> None:
    batch.append(**message._asdict())


def build(messages, base_offset: int = 0) -> RecordBatch:
    batch = RecordBatch()
    for message in messages:
        append(batch, message)
    batch.place(base_offset)
    return batch


def fields(messages, base_offset: int = 0) -> list[tuple[object, ...]]:
    return [message.fields(base_offset + i) for i, message in enumerate(messages)]


def pieces(messages) -> list[bytes]:
    return [encode_record(message, i) for i, message in enumerate(messages)]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code that might bring the interpreter down; freed memory is overwritten there."""
    setup = (
        "from braidmq.record.batch import RecordBatch\n"
        "from braidmq.record.columns import decode_columns\n"
        "def refused(call, *kinds):\n"
        "    try:\n"
        "        call()\n"
        "    except kinds:\n"
        "        return\n"
        "    raise SystemExit('not refused')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", setup + code],
        env={**os.environ, "MALLOC_PERTURB_": "165"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_survives(code: str) -> None:
    done = python(code)
    assert (done.returncode, done.stderr) == (0, ""), done


# --- encoding ---


def test_constants():
    assert record_module.HEADER_SIZE == RECORD_HEADER_BYTES
    names = (
        "CONTROL",
        "COMMIT",
        "TRANSACTIONAL",
        "TIMED",
        "KEYED",
        "TOMBSTONE",
        "TRANSIENT",
        "SHARED",
    )
    assert [getattr(record_module, f"FLAG_{name}") for name in names] == [1 << n for n in range(8)]


def test_one_record_byte_by_byte():
    batch = RecordBatch()
    batch.append(
        b"value",
        key=b"key",
        envelope=b"env",
        envelope_format=3,
        flags=TIMED | 64 | 4,
        priority=9,
        timestamp_ms=1000,
        due_at_ms=2000,
    )
    data = bytes(batch)
    assert data[8:16] == bytes([0xB4, 1, 64 | 16 | 8 | 4, 9, 3, 0, 3, 0])
    assert data[16:40] == struct.pack("<qqII", 0, 1000, 3, 5)
    assert data[40:56] == struct.pack("<qq", 0, 2000)
    assert data[56:] == b"keyenvvalue" + bytes(5)
    assert data[4:8] == struct.pack("<I", crc32c(b"keyenvvalue"))
    assert data[:4] == struct.pack("<I", crc32c(data[4:56]))


@given(batches)
@example([Message(None)])
@example([Message(b"", key=b"")])
@example([Message(b"v" * 5000, key=b"k" * 65_535, envelope=b"e" * 700)])
@example([Message(b"", flags=flags) for flags in range(256)])
@example([Message(b"x" * size) for size in range(17)])
def test_encodes_what_the_diagram_says(messages):
    batch = build(messages)
    assert bytes(batch) == encode_batch(messages)
    assert (batch.size, batch.count, len(batch)) == (len(bytes(batch)), *[len(messages)] * 2)
    assert batch.records() == fields(messages)


@pytest.mark.parametrize("value", [None, b""])
def test_timing_of_a_record_without_a_body(value):
    message = Message(value, expires_at_ms=9, due_at_ms=7)
    batch = build([message])
    assert batch.record(0).due_at_ms == 7
    assert bytes(batch) == encode_record(message, 0)


@given(
    st.lists(st.tuples(bodies, st.none() | bodies), max_size=8), bodies, small, small, small, times
)
def test_extend_values_is_many_appends(pairs, envelope, envelope_format, flags, priority, time):
    values, keys = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for given_keys in (keys, None):
        batch = build([Message(b"before")])
        batch.extend_values(values, time, given_keys, envelope, envelope_format, flags, priority)
        expected = [Message(b"before")] + [
            Message(value, key, envelope, envelope_format, flags, priority, time)
            for value, key in zip(values, given_keys or [None] * len(values), strict=True)
        ]
        assert bytes(batch) == encode_batch(expected)
        assert batch.records() == fields(expected)


def test_extend_values_refuses_unequal_keys():
    batch = RecordBatch()
    with pytest.raises(ValueError, match="as many keys"):
        batch.extend_values([b"a", b"b"], 0, [b"k"])
    assert batch.count == 0


def test_extend_values_refuses_what_is_not_bytes():
    batch = RecordBatch()
    with pytest.raises(TypeError):
        batch.extend_values([b"a", "b"], 0)  # type: ignore[list-item]
    assert batch.count == 0


def test_extend_values_refuses_none_among_the_values():
    """None is no value here; its size must not be read as if it were bytes."""
    assert_survives("refused(lambda: RecordBatch().extend_values([None], 0), TypeError)")
    assert_survives(
        "refused(lambda: RecordBatch().extend_values([b'v'], 0, envelope=None), TypeError)"
    )


def test_a_key_too_long():
    batch = build([Message(b"v")])
    before = bytes(batch)
    with pytest.raises(OverflowError, match="65535"):
        batch.append(b"v", key=bytes(65_536))
    assert (bytes(batch), batch.count) == (before, 1)


def test_takes_any_buffer():
    batch = RecordBatch()
    batch.append(bytearray(b"v"), key=memoryview(b"k"), envelope=bytearray(b"e"))
    assert bytes(batch) == encode_batch([Message(b"v", b"k", b"e")])


@given(batches, base_offsets)
def test_summary(messages, base_offset):
    for batch in (
        build(messages, base_offset),
        RecordBatch.scan(encode_batch(messages), base_offset=base_offset),
    ):
        summary = 0
        for message in messages:
            summary |= message.stored_flags
        assert batch.summary == summary
        # Never below zero: it is an upper bound for searches, and zero is the beginning of time.
        assert batch.max_timestamp_ms == max([0, *(m.timestamp_ms for m in messages)])
        assert (batch.base_offset, batch.next_offset) == (base_offset, base_offset + len(messages))
        assert batch.dense


# --- scanning ---


@given(batches, base_offsets, st.booleans(), st.sampled_from([bytes, bytearray, memoryview]))
def test_scan_returns_the_same_records(messages, base_offset, verify, buffer):
    data = encode_batch(messages)
    batch = RecordBatch.scan(buffer(data), base_offset=base_offset, verify=verify)
    assert batch.records() == fields(messages, base_offset)
    assert bytes(batch) == data
    batch.verify()


@given(segments())
def test_scan_of_a_segment_takes_each_records_own_offset(rows):
    batch = RecordBatch.scan(encode_segment(rows))
    assert batch.records() == [message.fields(offset) for offset, message in rows]
    assert [batch.offset_at(i) for i in range(len(rows))] == [offset for offset, _ in rows]
    assert not batch.dense
    assert batch.base_offset == (rows[0][0] if rows else 0)
    assert batch.next_offset == (rows[-1][0] + 1 if rows else 0)


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=4), st.booleans())
def test_any_cut_leaves_the_whole_records_before_it(messages, verify):
    parts = pieces(messages)
    starts, data = boundaries(parts), b"".join(parts)
    for cut in range(len(data) + 1):
        whole = sum(1 for end in starts[1:] if end <= cut)
        batch = RecordBatch.scan(data[:cut], base_offset=0, verify=verify)
        assert (batch.count, batch.size) == (whole, starts[whole])
        assert batch.records() == fields(messages[:whole])


def damage_seen(look: Callable[[], object]) -> int | None:
    """Where ``look`` finds a damaged record, or None."""
    try:
        look()
    except BadRecord as bad:
        return bad.position
    return None


def covered_bits(message: Message) -> int:
    """The bits of its header and body: the padding behind them is under no checksum."""
    return 8 * (message.header_bytes + len(message.body))


@given(some, st.data())
def test_any_flipped_bit_is_found(messages, data):
    hurt = data.draw(st.integers(0, len(messages) - 1))
    bit = data.draw(st.integers(0, covered_bits(messages[hurt]) - 1))
    parts = pieces(messages)
    start = boundaries(parts)[hurt]
    # Behind the last record stands another, so that no damaged length can look like a cut.
    damaged = flip(b"".join(parts) + encode_record(Message(b"end"), 0), 8 * start + bit)
    with pytest.raises(BadRecord) as caught:
        RecordBatch.scan(damaged)
    assert caught.value.position == start
    assert f"byte {start}" in str(caught.value)
    with pytest.raises(BadRecord) as caught:
        decode_columns(damaged, INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, 1000)
    assert caught.value.position == start
    unchecked = RecordBatch.scan(bytes(b"".join(parts)), verify=False)
    unchecked.verify()


@pytest.mark.parametrize(
    "message",
    [
        Message(None),
        Message(b""),
        Message(b"v" * 15),
        Message(b"v" * 16),
        Message(b"", due_at_ms=5),
    ],
)
def test_every_flipped_bit_of_the_last_record_is_found(message):
    """A record flipped to TIMED seems longer than the data: damaged all the same, not cut."""
    data = encode_batch([Message(b"first"), message])
    start = len(encode_record(Message(b"first"), 0))
    missed = []
    for bit in range(covered_bits(message)):
        damaged = flip(data, 8 * start + bit)
        if damage_seen(lambda damaged=damaged: RecordBatch.scan(damaged)) != start:
            missed.append((bit // 8, bit % 8))
    assert missed == []


def test_verify_finds_every_flipped_bit():
    """Damage that comes after an unchecked scan."""
    message = Message(b"v", b"k")
    data = bytearray(encode_batch([Message(b"first"), message]))
    start = len(data) - len(encode_record(message, 0))
    batch = RecordBatch.scan(data, base_offset=0, verify=False)
    missed = []
    for bit in range(covered_bits(message)):
        data[start + bit // 8] ^= 1 << bit % 8
        if damage_seen(batch.verify) != start:
            missed.append((bit // 8, bit % 8))
        data[start + bit // 8] ^= 1 << bit % 8
    assert missed == []


@given(some, st.data())
def test_padding_is_under_no_checksum(messages, data):
    parts = pieces(messages)
    starts = boundaries(parts)
    padding = [
        starts[i] + at
        for i, message in enumerate(messages)
        for at in range(covered_bits(message) // 8, len(parts[i]))
    ]
    if padding:
        byte = data.draw(st.sampled_from(padding))
        damaged = flip(b"".join(parts), 8 * byte + data.draw(st.integers(0, 7)))
        assert RecordBatch.scan(damaged, base_offset=0).records() == fields(messages)


def sealed(header_crc: bool = True, **changes: int) -> bytes:
    """A record of ``b"value"`` with some bytes of its header changed and the header resealed."""
    data = bytearray(encode_record(Message(b"value"), 0))
    for at, value in changes.items():
        data[int(at.removeprefix("byte"))] = value
    if header_crc:
        data[:4] = struct.pack("<I", crc32c(bytes(data[4:40])))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (sealed(byte8=0xB5), "not the beginning"),
        (sealed(byte9=3), "version 3"),
        (sealed(byte9=2), "a reference that does not say so"),
        (sealed(byte11=1, header_crc=False), "header checksum"),
        (sealed(byte4=0), "body checksum"),
    ],
)
def test_reasons(data, reason):
    first = encode_record(Message(b"first"), 0)
    with pytest.raises(BadRecord, match=reason) as caught:
        RecordBatch.scan(first + data)
    assert caught.value.position == len(first)
    assert reason in caught.value.reason


def test_zeros_are_damage_but_a_short_rest_is_a_cut():
    data = encode_batch([Message(b"v")])
    with pytest.raises(BadRecord, match="not the beginning"):
        RecordBatch.scan(data + bytes(RECORD_HEADER_BYTES))
    assert RecordBatch.scan(data + bytes(RECORD_HEADER_BYTES - 1)).size == len(data)


def test_scan_holds_the_memory_in_place():
    data = bytearray(encode_batch([Message(b"v")]))
    batch = RecordBatch.scan(data)
    with pytest.raises(BufferError):
        data += b"more"
    assert memoryview(batch).readonly
    del batch
    data += b"more"


def test_scan_refuses_memory_with_holes():
    data = encode_batch([Message(b"v" * 100)])
    for view in (memoryview(data + data)[::2], memoryview(data)[::-1]):
        with pytest.raises((BufferError, ValueError)) as caught:
            RecordBatch.scan(view)
        assert not isinstance(caught.value, BadRecord)


# --- finding ---


@given(segments(), base_offsets, st.integers(-5, 160), st.integers(-5, 160))
def test_find_and_slice(rows, base_offset, start, stop):
    messages = [message for _, message in rows]
    sparse = RecordBatch.scan(encode_segment(rows))
    sparse_offsets = [offset for offset, _ in rows]
    dense = build(messages, base_offset)
    dense_offsets = [base_offset + i for i in range(len(rows))]
    for batch, offsets, shift in (
        (sparse, sparse_offsets, 0),
        (dense, dense_offsets, base_offset - 3),
    ):
        low, high = start + shift, stop + shift
        starts = boundaries(pieces(messages))
        first = sum(1 for offset in offsets if offset < low)
        after = max(first, sum(1 for offset in offsets if offset < high))
        assert batch.find(low) == first
        assert batch.slice(low, high) == bytes(batch)[starts[first] : starts[after]]
        assert [batch.position_at(i) for i in range(len(rows) + 1)] == starts
        assert [batch.offset_at(i) for i in range(len(rows))] == offsets


@given(batches, times)
def test_find_time_is_the_first_at_or_after(messages, time):
    batch = build(messages)
    stamps = [message.timestamp_ms for message in messages]
    assert batch.find_time(time) == next(
        (i for i, stamp in enumerate(stamps) if stamp >= time), len(messages)
    )
    for stamp in stamps:
        assert stamps[batch.find_time(stamp)] >= stamp


def test_indexes_outside_are_refused():
    batch = build([Message(b"v")])
    for ask in (batch.record, batch.offset_at):
        for index in (-1, 1):
            with pytest.raises(IndexError):
                ask(index)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            batch.position_at(index)


@given(
    segments(), st.integers(0, 1000), st.integers(1, 300), st.integers(-1, 1000), st.integers(0, 50)
)
def test_index_points(rows, position, interval, since, time):
    since = min(since, position)
    expected, last, highest = [], since, time
    starts = boundaries(encode_record(message, offset) for offset, message in rows)
    for (offset, message), start in zip(rows, starts, strict=False):
        if last < 0 or position + start - last >= interval:
            last = position + start
            expected.append((offset, last, highest))
        highest = max(highest, message.timestamp_ms)
    batch = RecordBatch.scan(encode_segment(rows))
    assert batch.index_points(position, interval, since, time) == expected


# --- sharing and growing ---


@given(some, batches, base_offsets)
def test_absorb_is_concatenation(first, second, base_offset):
    whole, tail = build(first, base_offset), build(second, base_offset + len(first))
    assert whole.can_absorb(tail)
    whole.absorb(tail)
    # The offset field stays the place in the batch that a record was published in.
    assert bytes(whole) == encode_batch(first) + encode_batch(second)
    assert whole.records() == fields(first + second, base_offset)
    again = RecordBatch.scan(bytes(whole), base_offset=base_offset)
    for one in ("count", "summary", "max_timestamp_ms", "size"):
        assert getattr(whole, one) == getattr(again, one)
    assert whole.next_offset == again.next_offset
    whole.append(b"still open")
    assert whole.record(whole.count - 1).value == b"still open"


@given(some, some)
def test_absorbs_scanned_and_twin_batches(first, second):
    following = len(first)
    for tail in (
        RecordBatch.scan(encode_batch(second), base_offset=following),
        build(second).at_offset(following),
    ):
        whole = build(first)
        whole.absorb(tail)
        assert whole.records() == fields(first + second)


def test_what_cannot_be_absorbed():
    messages = [Message(b"v")] * 2
    tail = build(messages, 2)
    assert build(messages).can_absorb(tail)
    assert not build(messages, 1).can_absorb(tail)
    assert not RecordBatch.scan(encode_batch(messages), base_offset=0).can_absorb(tail)
    assert not build(messages).can_absorb(RecordBatch.scan(encode_segment([(2, messages[0])])))
    shared = build(messages)
    twin = shared.at_offset(0)
    assert not shared.can_absorb(tail)
    assert not twin.can_absorb(tail)
    held = build(messages)
    with memoryview(held):
        assert not held.can_absorb(tail)
        with pytest.raises(AssertionError):
            held.absorb(tail)
    held.absorb(tail)
    assert held.records() == fields(messages * 2)


@given(some, base_offsets, base_offsets)
def test_at_offset_shares_and_closes_the_original(messages, base_offset, other_offset):
    batch = build(messages, base_offset)
    twin = batch.at_offset(other_offset)
    assert twin.records() == fields(messages, other_offset)
    assert batch.records() == fields(messages, base_offset)
    for one in ("size", "count", "summary", "max_timestamp_ms"):
        assert getattr(twin, one) == getattr(batch, one)
    assert twin.next_offset == other_offset + len(messages)
    for closed in (batch, twin):
        with pytest.raises(BufferError):
            closed.append(b"v")
        with pytest.raises(BufferError):
            closed.extend_values([b"v"], 0)
    expected = bytes(batch)
    del batch, closed
    assert bytes(twin) == expected
    assert twin.records() == fields(messages, other_offset)


def test_a_twin_has_no_twins():
    twin = build([Message(b"v")]).at_offset(5)
    with pytest.raises(AssertionError):
        twin.at_offset(9)


def test_the_twin_of_a_scanned_batch_outlives_it():
    """The index belongs to the scanned batch, the bytes to what was scanned."""
    assert_survives(
        "source = RecordBatch()\n"
        "source.extend_values([b'v' * i for i in range(50)], 0)\n"
        "twin = RecordBatch.scan(bytes(source), base_offset=0).at_offset(100)\n"
        "others = [bytearray(b'\\xff' * (200 + i)) for i in range(100)]\n"
        "assert [one.value for one in twin.records()] == [b'v' * i for i in range(50)]\n"
        "assert twin.record(49).offset == 149\n"
    )


def test_twins_share_the_cost_for_as_long_as_logs_hold_them():
    batch = build([Message(b"v" * 10_000)])
    alone = batch.memory_bytes
    assert alone >= batch.size
    twins = [batch.at_offset(i) for i in range(9)]
    together = [batch, *twins]
    held = sum(one.hold(LEDGER_RESIDENT) for one in together)
    assert all(one.memory_bytes < alone / 5 for one in together)
    assert held == sum(one.memory_bytes for one in together)
    assert alone <= held < alone + 9 * 300
    for one in together[:-1]:
        held -= one.release(LEDGER_RESIDENT)
    # The last that has it keeps all of it.
    assert held == together[-1].memory_bytes == alone
    assert held == together[-1].release(LEDGER_RESIDENT)


def test_a_batch_cannot_grow_while_it_is_looked_at():
    batch = build([Message(b"v")])
    with memoryview(batch) as view:
        assert view.readonly
        for grow in (lambda: batch.append(b"v"), lambda: batch.extend_values([b"v"], 0)):
            with pytest.raises(BufferError):
                grow()
        assert view == encode_batch([Message(b"v")])
    part = batch.slice(0, 1)
    with pytest.raises(BufferError):
        batch.append(b"v")
    part.release()
    scanned = RecordBatch.scan(batch)
    with pytest.raises(BufferError):
        batch.append(b"v")
    del scanned
    batch.append(b"v")
    assert batch.records() == fields([Message(b"v")] * 2)


@pytest.mark.parametrize("part", ["value", "key", "envelope"])
def test_a_batch_cannot_be_put_into_itself(part):
    assert_survives(
        "batch = RecordBatch()\n"
        "batch.append(b'v' * 150)\n"
        f"parts = {{'value': b'v', {part!r}: batch}}\n"
        "refused(lambda: batch.append(**parts), BufferError)\n"
    )


@pytest.mark.parametrize("base_offset", [-1, 0])
@pytest.mark.parametrize("data", ["b''", "bytearray(16)"])
def test_an_empty_scan_does_not_grow(data, base_offset):
    """Its memory is somebody else's even when no record was found there."""
    scan = f"RecordBatch.scan({data}, base_offset={base_offset})"
    assert_survives(f"refused(lambda: {scan}.append(b'v'), BufferError)")
    assert_survives(f"refused(lambda: {scan}.extend_values([b'v'], 0), BufferError)")


def test_the_twin_of_an_empty_batch_does_not_grow():
    assert_survives(
        "batch = RecordBatch()\n"
        "refused(lambda: batch.extend_values([b'v'], 0, [bytes(70_000)]), OverflowError)\n"
        "twin = batch.at_offset(5)\n"
        "refused(lambda: twin.append(b'v' * 1000), BufferError)\n"
        "del twin, batch\n"
    )


def test_an_empty_batch():
    batch = RecordBatch()
    assert (bytes(batch), batch.records(), batch.count) == (b"", [], 0)
    assert (batch.find(0), batch.find_time(0), batch.position_at(0)) == (0, 0, 0)
    assert batch.slice(0, 10) == b""
    assert batch.stamped() == (b"", 0)
    assert batch.index_points(0, 1, -1, 0) == []
    assert RecordBatch.scan(b"").count == 0
    batch.place(7)
    assert (batch.base_offset, batch.next_offset) == (7, 7)


# --- stamping ---


@given(batches, st.integers(0, 12), st.lists(offset_sets(), max_size=3), st.integers(0, 20))
def test_stamped_leaves_out_what_nobody_wants(messages, base_offset, acknowledged, start):
    covered = [{o for o in range(40) if o in one} for one in acknowledged]
    kept = [
        (offset, message)
        for offset, message in enumerate(messages, base_offset)
        if offset >= start and not (covered and all(offset in members for members in covered))
    ]
    expected = encode_segment(kept)
    for batch in (
        build(messages, base_offset),
        build(messages).at_offset(base_offset),
        RecordBatch.scan(encode_batch(messages), base_offset=base_offset),
    ):
        assert batch.stamped(tuple(acknowledged), start) == (expected, len(kept))
        assert batch.records() == fields(messages, base_offset)
    again = RecordBatch.scan(expected)
    assert again.records() == [message.fields(offset) for offset, message in kept]
    assert not again.dense


@given(segments(), st.integers(0, 100))
def test_stamping_a_segment_again(rows, start):
    """Compaction: offsets stay what they were."""
    batch = RecordBatch.scan(encode_segment(rows))
    kept = [row for row in rows if row[0] >= start]
    assert batch.stamped(start=start) == (encode_segment(kept), len(kept))


# --- columns ---

COLUMN_TYPES = [
    pa.int64(),
    pa.int64(),
    pa.int32(),
    pa.int32(),
    pa.uint8(),
    pa.binary(),
    pa.binary(),
    pa.binary(),
    pa.int64(),
    pa.int64(),
]


def microseconds(time_ms: int) -> int:
    farthest = INT64_MAX // 1000
    return min(max(time_ms, -farthest), farthest) * 1000


def arrow_columns(rows: int, columns) -> list[list[object]]:
    """The decoded columns as Arrow sees them."""
    arrays = []
    for kind, buffers in zip(COLUMN_TYPES, columns, strict=True):
        held = [None if one is None else pa.py_buffer(one) for one in buffers]
        array = pa.Array.from_buffers(kind, rows, held)
        array.validate(full=True)
        arrays.append(array.to_pylist())
    return arrays


def expected_columns(rows) -> list[list[object]]:
    return [
        [offset for offset, _ in rows],
        [microseconds(message.timestamp_ms) for _, message in rows],
        [message.priority for _, message in rows],
        [message.stored_flags for _, message in rows],
        [message.envelope_format for _, message in rows],
        [message.key for _, message in rows],
        [message.envelope for _, message in rows],
        [message.value for _, message in rows],
        [microseconds(message.expires_at_ms) or None for _, message in rows],
        [microseconds(message.due_at_ms) or None for _, message in rows],
    ]


bounds = st.one_of(
    st.just((INT64_MIN, INT64_MAX)),
    st.tuples(st.integers(-5, 120), st.integers(-5, 120)),
)


@settings(max_examples=150)
@given(segments(), bounds, bounds, st.one_of(st.integers(0, 5), st.just(100)), st.data())
def test_columns(rows, offsets, stamps, rows_max, data):
    parts = [encode_record(message, offset) for offset, message in rows]
    starts, whole_data = boundaries(parts), b"".join(parts)
    cut = data.draw(st.integers(0, len(whole_data)) | st.just(len(whole_data)), label="cut")
    whole = sum(1 for end in starts[1:] if end <= cut)
    passed, chosen = select_rows(rows[:whole], offsets, stamps, rows_max)
    consumed, count, columns = decode_columns(whole_data[:cut], *offsets, *stamps, rows_max)
    assert (consumed, count) == (starts[passed], len(chosen))
    assert arrow_columns(count, columns) == expected_columns(chosen)


@given(segments(), st.data())
def test_columns_of_some_keys(rows, data):
    there = sorted({message.key for _, message in rows if message.key is not None})
    keys = frozenset(data.draw(st.lists(st.sampled_from([*there, b"none"])), label="keys"))
    everything = (INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, 1000)
    wanted = [
        (offset, message)
        for offset, message in rows
        if message.key in keys and not message.flags & CONTROL and message.timestamp_ms < INT64_MAX
    ]
    consumed, count, columns = decode_columns(encode_segment(rows), *everything, keys)
    assert (consumed, count) == (len(encode_segment(rows)), len(wanted))
    assert arrow_columns(count, columns) == expected_columns(wanted)


@given(segments(), st.integers(1, 7))
def test_columns_of_shares(rows, shares):
    """Each row is in one, and all of a key in the same."""
    everything = (INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, 1000, None, None, EVERY_COLUMN)
    data = encode_segment(rows)
    _, count, columns = decode_columns(data, *everything)
    found = []
    of_keys: dict[bytes, set[int]] = {}
    for share in range(shares):
        consumed, some, part = decode_columns(data, *everything, share, shares)
        assert consumed == len(data)
        taken = arrow_columns(some, part)
        offsets, keys = taken[0], taken[5]
        assert offsets == sorted(offsets)
        found += zip(*taken, strict=True)
        for key in keys:
            of_keys.setdefault(key, set()).add(share)
    every = zip(*arrow_columns(count, columns), strict=True)
    assert sorted(found, key=repr) == sorted(every, key=repr)
    assert all(len(each) == 1 for key, each in of_keys.items() if key is not None)


def test_a_share_that_is_none():
    with pytest.raises(ValueError, match="there is no share 2 of 2"):
        decode_columns(b"", 0, 10, 0, 10, 10, None, None, EVERY_COLUMN, 2, 2)


@given(batches, batches, st.integers(-5, 120))
def test_the_order_of_time(messages, more, time_ms):
    batch, other = build(messages), build(more, len(messages))
    if messages and more and batch.can_absorb(other):
        batch.absorb(other)
        messages = [*messages, *more]
    stamps = [message.timestamp_ms for message in messages]
    highest = [max(0, *stamps[:at]) if at else 0 for at in range(len(stamps))]
    assert batch.time_ordered == all(
        stamp >= before for stamp, before in zip(stamps, highest, strict=True)
    )
    assert batch.first_timestamp_ms == (stamps[0] if stamps else 0)
    assert batch.find_time_end(time_ms) == max(
        (at + 1 for at, stamp in enumerate(stamps) if stamp < time_ms), default=0
    )


@given(segments(min_size=1), st.integers(1, 3))
def test_columns_page_through(rows, rows_max):
    data = encode_segment(rows)
    everything = (INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX)
    pages: list[list[object]] = [[] for _ in COLUMN_TYPES]
    at = 0
    while True:
        consumed, count, columns = decode_columns(data[at:], *everything, rows_max)
        for page, column in zip(pages, arrow_columns(count, columns), strict=True):
            page += column
        at += consumed
        if count < rows_max:
            break
    assert at == len(data)
    # The intervals are half open: the very last millisecond is out of reach.
    wanted = [row for row in rows if not row[1].flags & CONTROL and row[1].timestamp_ms < INT64_MAX]
    assert pages == expected_columns(wanted)


def test_many_rows_fill_their_validity_bits():
    rows = [
        (i, Message(None if i % 3 == 0 else b"v" * (i % 5), None if i % 2 else b"k" * (i % 4)))
        for i in range(1000)
    ]
    consumed, count, columns = decode_columns(encode_segment(rows), 0, 2000, 0, 1, 5000)
    assert (consumed, count) == (len(encode_segment(rows)), 1000)
    assert arrow_columns(count, columns) == expected_columns(rows)
    assert len(columns[5][0]) == len(columns[7][0]) == 125


def test_control_records_are_no_rows():
    rows = [(0, Message(b"a")), (1, Message(b"", flags=CONTROL | 2)), (2, Message(b"b"))]
    consumed, count, columns = decode_columns(encode_segment(rows), 0, 10, 0, 10, 10)
    assert (consumed, count) == (len(encode_segment(rows)), 2)
    assert arrow_columns(count, columns)[0] == [0, 2]


def test_damage_is_found_only_when_it_is_reached():
    parts = [encode_record(Message(b"v"), i) for i in range(3)]
    data = flip(b"".join(parts), 8 * (len(parts[0]) + 20))
    assert decode_columns(data, 0, 10, 0, 10, 1)[:2] == (len(parts[0]), 1)
    with pytest.raises(BadRecord) as caught:
        decode_columns(data, 0, 10, 0, 10, 2)
    assert caught.value.position == len(parts[0])


def test_no_data_makes_empty_columns():
    consumed, count, columns = decode_columns(b"", 0, 10, 0, 10, 10)
    assert (consumed, count) == (0, 0)
    assert arrow_columns(0, columns) == [[]] * 10


@pytest.mark.parametrize("rows_max", [2**62, INT64_MAX])
def test_more_rows_than_memory_may_be_asked_for(rows_max):
    """No limit is a fair thing to ask: what the data can hold is limit enough."""
    assert_survives(
        "batch = RecordBatch()\n"
        "batch.extend_values([b'v'] * 5000, 0)\n"
        f"found = decode_columns(batch, 0, 10**9, 0, 10, {rows_max})\n"
        "assert found[:2] == (len(bytes(batch)), 5000), found[:2]\n"
    )


def lying(flags_cleared: int, flags_set: int) -> bytes:
    """A sealed record whose flags deny the key or the value that its lengths claim."""
    data = bytearray(encode_record(Message(b"value", b"key"), 0))
    data[FLAGS_BYTE] = data[FLAGS_BYTE] & ~flags_cleared | flags_set
    data[:4] = struct.pack("<I", crc32c(bytes(data[4:40])))
    return bytes(data)


@pytest.mark.parametrize("data", [lying(16, 0), lying(0, 32)], ids=["not keyed", "tombstone"])
def test_columns_hold_no_bytes_that_were_never_written(data):
    _, _, columns = decode_columns(data, 0, 10, 0, 10, 10)
    for _, ends, content in columns[5:8]:
        assert struct.unpack("<i", ends[-4:])[0] == len(content)
