"""Sharing bodies, against the byte diagram; and what is shared is put back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    RECORD_HEADER_BYTES,
    RECORD_TIMING_BYTES,
    SHARED,
    SHARED_BYTES_MIN,
    TIMED,
    Message,
    crc32c,
    encode_record,
    encode_reference,
    encode_segment,
    encode_sharing,
    flip,
)

from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.record.columns import decode_columns
from braidmq.record.offset_set import OffsetBits, OffsetSet
from braidmq.storage import shared_body
from braidmq.storage.shared_body import (
    BadBody,
    References,
    SharedBodies,
    body_files,
    is_reference,
    without,
)

FILE, START = 0x4D2, 28
REFERENCE_BYTES = 16

sizes = st.sampled_from([0, 1, 40, SHARED_BYTES_MIN - 1, SHARED_BYTES_MIN, 65, 100, 700])
parts = st.builds(lambda letter, size: letter * size, st.sampled_from([b"a", b"b"]), sizes)
"""Few of them: bodies are to meet each other again."""

messages = st.builds(
    Message,
    value=st.none() | parts,
    key=st.none() | st.sampled_from([b"", b"key", b"a" * 64]),
    envelope=st.sampled_from([b"", b"a" * 30]),
    envelope_format=st.integers(0, 3),
    flags=st.sampled_from([0, 4, 64]),
    priority=st.integers(0, 9),
    timestamp_ms=st.integers(0, 99),
    expires_at_ms=st.sampled_from([0, 7]),
    due_at_ms=st.sampled_from([0, 9]),
)
published = st.lists(st.lists(messages, min_size=1, max_size=6), min_size=1, max_size=4)
offset_lists = st.lists(st.integers(0, 30), max_size=12)


class Partition:
    """Batches as a log holds them, what is acknowledged of them and where they begin."""

    def __init__(self, acknowledged: list[int] | None, start: int) -> None:
        self.batches: list[RecordBatch] = []
        self.rows: list[tuple[int, Message]] = []
        self.end = self.start = start
        self.acknowledged: tuple[OffsetSet, ...] = ()
        if acknowledged is not None:
            offsets = OffsetSet()
            for offset in acknowledged:
                offsets.add(offset, offset + 1)
            self.acknowledged = (offsets,)

    def take(self, batch: RecordBatch, messages: list[Message]) -> None:
        self.batches.append(batch)
        self.rows += list(enumerate(messages, self.end))
        self.end += len(messages)

    @property
    def wanted(self) -> list[tuple[int, Message]]:
        return [
            (offset, message)
            for offset, message in self.rows
            if not any(offset in each for each in self.acknowledged)
        ]


def build(messages: list[Message], base_offset: int) -> RecordBatch:
    batch = RecordBatch()
    for message in messages:
        batch.append(**message._asdict())
    batch.place(base_offset)
    return batch


@st.composite
def fan_outs(draw) -> list[Partition]:
    """Batches to one partition or several, over the same memory or copied."""
    partitions = [
        Partition(draw(st.none() | offset_lists), draw(st.integers(0, 5)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    for batch_messages in draw(published):
        targets = draw(st.lists(st.sampled_from(partitions), min_size=1, unique=True))
        original = build(batch_messages, targets[0].end)
        targets[0].take(original, batch_messages)
        for each in targets[1:]:
            copied = draw(st.booleans())
            twin = build(batch_messages, each.end) if copied else original.at_offset(each.end)
            each.take(twin, batch_messages)
    return partitions


def share(partitions: list[Partition]) -> tuple[SharedBodies, list[bytes], bytes]:
    """All of the partitions through the kernel, as a checkpoint does it."""
    shared = SharedBodies(FILE, START)
    for owner, each in enumerate(partitions):
        for batch in each.batches:
            shared.note(batch, each.acknowledged, each.start, owner)
    segments, bodies = [], b""
    for each in partitions:
        segment = b""
        for batch in each.batches:
            assert shared.end == START + len(bodies)
            data, whole, more = shared.stamped(batch, each.acknowledged, each.start)
            assert whole == len(batch.stamped(each.acknowledged, each.start)[0])
            segment += data
            bodies += more
        segments.append(segment)
    return shared, segments, bodies


@given(fan_outs())
def test_writes_what_the_diagram_says(partitions: list[Partition]) -> None:
    shared, segments, bodies = share(partitions)
    expected = encode_sharing([each.wanted for each in partitions], FILE, START)
    assert (segments, bodies) == expected
    assert bool(shared.count) == bool(bodies)


@given(fan_outs(), st.data())
def test_what_is_put_back_is_what_would_have_been_there(partitions, data) -> None:
    """For any part of a segment."""
    _, segments, bodies = share(partitions)
    file = bytes(START) + bodies
    for segment, partition in zip(segments, partitions, strict=True):
        batch = RecordBatch.scan(segment)
        rows = partition.wanted
        whole = encode_segment(rows)
        assert batch.size + batch.shared_bytes == len(whole)
        assert body_files(batch) == ({FILE} if batch.shared_bytes else set())
        assert batch.value_bytes == sum(len(message.value or b"") for _, message in rows)
        assert batch.count == len(rows)
        if not rows:
            continue
        first = data.draw(st.integers(0, len(rows) - 1))
        bytes_max = data.draw(st.integers(0, 3000))
        references = References(batch, first, bytes_max)
        resolved = references.resolved([file[start:stop] for _, start, stop in references.ranges])
        pieces = [encode_record(message, offset) for offset, message in rows[first:]]
        count = next(
            (n for n in range(1, len(pieces)) if len(b"".join(pieces[:n])) >= bytes_max),
            len(pieces),
        )
        assert bytes(resolved) == b"".join(pieces[:count])
        again = RecordBatch.scan(bytes(resolved))
        for name in (
            "count",
            "base_offset",
            "next_offset",
            "summary",
            "value_bytes",
            "time_ordered",
        ):
            assert getattr(resolved, name) == getattr(again, name)
        assert not resolved.shared_bytes
        assert not resolved.dense


def referring(*places: tuple[int, int], size: int = 100) -> RecordBatch:
    """A segment whose records refer to these files and positions."""
    message = Message(b"v" * size)
    return RecordBatch.scan(
        b"".join(encode_reference(message, n, *place) for n, place in enumerate(places))
    )


@pytest.mark.parametrize(
    ("places", "ranges"),
    [
        ([(1, 28), (1, 128)], [(1, 28, 228)]),
        ([(1, 128), (1, 28), (1, 128)], [(1, 28, 228)]),
        ([(1, 28), (1, 28 + 1124)], [(1, 28, 28 + 1224)]),
        ([(1, 28), (1, 28 + 1125)], [(1, 28, 128), (1, 1153, 1253)]),
        ([(2, 28), (1, 128), (2, 128)], [(1, 128, 228), (2, 28, 228)]),
        ([(1, 10**12)], [(1, 10**12, 10**12 + 100)]),
    ],
    ids=["joined", "sorted", "a gap", "too large a gap", "two files", "far"],
)
def test_neighbours_are_read_together(places, ranges) -> None:
    assert References(referring(*places), 0, 10**6).ranges == ranges


def test_a_read_is_no_longer_than_its_limit() -> None:
    size = 300 << 10
    batch = referring(*((1, n * size) for n in range(5)), size=size)
    assert References(batch, 0, 10**7).ranges == [
        (1, 0, 3 * size),
        (1, 3 * size, 5 * size),
    ]


# --- damage ---

BODY = bytes(range(200))


def three() -> tuple[RecordBatch, bytes]:
    """Three records that refer to bodies of their own."""
    rows = [(n, Message(bytes([n]) + BODY)) for n in range(3)]
    segments, bodies = encode_sharing([rows, rows], FILE, START)
    return RecordBatch.scan(segments[0]), bytes(START) + bodies


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_damage_ends_what_is_resolved(damaged: int, cut: bool) -> None:
    batch, file = three()
    position = START + damaged * 201
    bad = file[: position + 200] if cut else bytes(flip(file, 8 * (position + 77)))
    references = References(batch, 0, 10**6)
    pieces = [bad[start:stop] for _, start, stop in references.ranges]
    if damaged:
        resolved = references.resolved(pieces)
        assert [record.offset for record in resolved.records()] == list(range(damaged))
    last = References(batch, damaged, 10**6)
    with pytest.raises(BadBody) as caught:
        last.resolved([bad[start:stop] for _, start, stop in last.ranges])
    assert (caught.value.file, caught.value.position) == (FILE, position)
    assert caught.value.reason == (
        "the file ends within a body" if cut else "body checksum differs"
    )


@pytest.mark.parametrize("expires_at_ms", [0, 5])
def test_every_bit_of_a_reference_is_covered(expires_at_ms: int) -> None:
    message = Message(BODY, expires_at_ms=expires_at_ms)
    data = encode_reference(message, 3, FILE, START)
    assert len(data) == RECORD_HEADER_BYTES + REFERENCE_BYTES + (
        RECORD_TIMING_BYTES if message.stored_flags & TIMED else 0
    )
    assert len(RecordBatch.scan(data)) == 1
    for bit in range(8 * len(data)):
        with pytest.raises(BadRecord) as caught:
            RecordBatch.scan(bytes(flip(data, bit)))
        assert caught.value.position == 0


@pytest.mark.parametrize("expires_at_ms", [0, 5])
def test_a_reference_that_is_cut_off_ends_the_scan(expires_at_ms: int) -> None:
    whole = encode_record(Message(b"v"), 0)
    data = encode_reference(Message(BODY, expires_at_ms=expires_at_ms), 1, FILE, START)
    for size in range(len(data)):
        assert len(RecordBatch.scan(whole + data[:size])) == 1
        assert not is_reference(data[:size]) or size >= RECORD_HEADER_BYTES
    assert is_reference(data)
    assert not is_reference(whole)


# --- who may have them ---


def test_only_segments_have_references() -> None:
    data = encode_record(Message(b"v"), 0) + encode_reference(Message(BODY), 1, FILE, START)
    with pytest.raises(BadRecord, match="only a segment") as caught:
        RecordBatch.scan(data, base_offset=0)
    assert caught.value.position == len(encode_record(Message(b"v"), 0))


def test_a_reference_is_not_taken_for_its_record() -> None:
    data = encode_reference(Message(BODY), 0, FILE, START)
    with pytest.raises(BufferError):
        RecordBatch.scan(data).record(0)
    whole = encode_record(Message(b"v"), 0)
    consumed, rows, _ = decode_columns(whole + data, 0, 9, 0, 9, 9)
    assert (consumed, rows) == (len(whole), 1)
    assert decode_columns(data, 0, 9, 0, 9, 9)[:2] == (0, 0)


def test_a_flag_alone_is_no_reference() -> None:
    """Nobody can set it, but a record from outside may have it: it is a record as any other."""
    record = bytearray(encode_record(Message(BODY), 0))
    record[10] |= SHARED
    record[:4] = encode_crc(record[4:RECORD_HEADER_BYTES])
    batch = RecordBatch.scan(bytes(record))
    assert (batch.shared_bytes, body_files(batch)) == (0, set())
    assert batch.record(0).value == BODY


def encode_crc(data: bytes) -> bytes:
    return crc32c(bytes(data)).to_bytes(4, "little")


def test_what_compaction_leaves_keeps_its_references() -> None:
    batch, file = three()
    unwanted = OffsetBits()
    unwanted.add(1, 2)
    data, count = without(batch, unwanted)
    assert count == 2
    left = References(RecordBatch.scan(data), 0, 10**6)
    resolved = left.resolved([file[start:stop] for _, start, stop in left.ranges])
    assert [record.value for record in resolved.records()] == [b"\0" + BODY, b"\2" + BODY]


def test_wrong_arguments() -> None:
    batch, _ = three()
    for first in (-1, 3):
        with pytest.raises(IndexError):
            References(batch, first, 10)
    with pytest.raises(ValueError, match="as many pieces"):
        References(batch, 0, 10).resolved([])
    assert shared_body.SHARED_SIZE_MIN == SHARED_BYTES_MIN


def test_many_bodies() -> None:
    """The table grows, and finds all again."""
    rows = [Message(b"%05d" % (n % 5000) * 20) for n in range(6000)]
    batch = build(rows, 0)
    shared = SharedBodies(FILE, START)
    for owner in range(2):
        for start in range(0, 6000, 1000):
            part = RecordBatch.scan(batch.slice(start, start + 1000), base_offset=start)
            shared.note(part, (), 0, owner)
    assert shared.count == 5000
    data, whole, bodies = shared.stamped(batch, (), 0)
    assert whole == batch.size
    assert len(bodies) == 5000 * 100
    assert len(data) == 6000 * 56
