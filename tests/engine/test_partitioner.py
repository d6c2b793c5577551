"""Partitions and slots of keys against Kafka's murmur2 written out in Python."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.engine.partitioner import (
    NO_SLOT,
    PARTITIONS_MAX,
    SLOTS_MAX,
    key_slots,
    split,
)
from braidmq.record.batch import Record, RecordBatch
from braidmq.record.key_hash import kafka_hash, partition_for

OFFSET_FIELD = slice(16, 24)
HEADER_CRC = slice(0, 4)

# From Kafka's UtilsTest.testMurmur2.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2(key: bytes) -> int:
    """Kafka's Utils.murmur2, as an unsigned number."""

    def times(number: int) -> int:
        return number * 0x5BD1E995 & 0xFFFFFFFF

    mixed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = times(word)
        mixed = times(mixed) ^ times(word ^ word >> 24)
    if rest := key[whole:]:
        mixed = times(mixed ^ int.from_bytes(rest, "little"))
    mixed = times(mixed ^ mixed >> 13)
    return mixed ^ mixed >> 15


def expected_partition(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def expected_slot(key: bytes | None, slots: int) -> int:
    return NO_SLOT if key is None else murmur2(key) * slots >> 32


def batch_of(records: list[Record]) -> RecordBatch:
    batch = RecordBatch()
    for record in records:
        batch.append(
            record.value,
            key=record.key,
            envelope=record.envelope,
            envelope_format=record.envelope_format,
            flags=record.flags,
            priority=record.priority,
            timestamp_ms=record.timestamp_ms,
            expires_at_ms=record.expires_at_ms,
            due_at_ms=record.due_at_ms,
        )
    return batch


def keyed(*keys: bytes | None) -> RecordBatch:
    batch = RecordBatch()
    batch.extend_values([b"%d" % i for i in range(len(keys))], 1, list(keys))
    return batch


def raw_records(batch: RecordBatch) -> list[bytes]:
    """Each record's bytes without what a new place in a batch changes."""
    found = []
    for i in range(len(batch)):
        raw = bytearray(memoryview(batch)[batch.position_at(i) : batch.position_at(i + 1)])
        raw[OFFSET_FIELD] = bytes(8)
        raw[HEADER_CRC] = bytes(4)
        found.append(bytes(raw))
    return found


def expected_split(batch: RecordBatch, partitions: int, turn: int) -> tuple[list[list[int]], int]:
    """Which records, by index, each partition gets, and the next turn."""
    dealt: list[list[int]] = [[] for _ in range(partitions)]
    for i, record in enumerate(batch.records()):
        if record.key is None:
            dealt[turn % partitions].append(i)
            turn += 1
        else:
            dealt[expected_partition(record.key, partitions)].append(i)
    return dealt, turn % partitions


keys = st.one_of(
    st.none(), st.just(b""), st.sampled_from([b"a", b"b", b"key-1"]), st.binary(max_size=40)
)
timing = st.sampled_from([0, 0, 1, 2**40])
records = st.builds(
    Record,
    st.just(0),
    st.integers(0, 2**42),
    keys,
    st.one_of(st.none(), st.binary(max_size=40)),
    st.binary(max_size=20),
    st.integers(0, 255),
    st.sampled_from([0, 1, 4, 64]),
    st.integers(0, 255),
    timing,
    timing,
)
batches = st.lists(records, max_size=40).map(batch_of)
partition_counts = st.one_of(st.integers(1, 8), st.integers(1, 300))
slot_counts = st.one_of(st.integers(1, 8), st.integers(1, SLOTS_MAX))


@pytest.mark.parametrize(("key", "hashed"), KAFKA_VECTORS.items())
def test_kafkas_own_vectors(key: bytes, hashed: int) -> None:
    assert kafka_hash(key) == hashed
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=100), st.integers(1, 2**31 - 1))
@example(b"", 3)
@example(b"\xff" * 65_535, 3)
def test_hash_and_partition_agree_with_the_oracle(key: bytes, partitions: int) -> None:
    assert kafka_hash(key) & 0xFFFFFFFF == murmur2(key)
    assert -(2**31) <= kafka_hash(key) < 2**31
    assert partition_for(key, partitions) == expected_partition(key, partitions)


@given(batches, partition_counts, st.one_of(st.integers(0, 10), st.integers(0, 2**63 - 1)))
def test_split_agrees_with_the_oracle(batch: RecordBatch, partitions: int, turn: int) -> None:
    dealt, next_turn = split(batch, partitions, turn)
    expected, expected_turn = expected_split(batch, partitions, turn)
    assert next_turn == expected_turn
    assert len(dealt) == partitions
    originals = raw_records(batch)
    for got, indexes in zip(dealt, expected, strict=True):
        assert (got is not None) == bool(indexes)
        assert raw_records(got or RecordBatch()) == [originals[i] for i in indexes]


@given(batches, partition_counts)
def test_what_is_split_is_whole_batches(batch: RecordBatch, partitions: int) -> None:
    for got in split(batch, partitions, 0)[0]:
        if got is None:
            continue
        scanned = RecordBatch.scan(bytes(got), verify=True)
        assert scanned.size == got.size
        # Scanned as a segment, the offsets are those in the records.
        assert [record.offset for record in scanned.records()] == list(range(len(got)))
        assert scanned.records() == got.records()
        for fact in ("count", "summary", "max_timestamp_ms"):
            assert getattr(scanned, fact) == getattr(got, fact)
        assert got.dense
        assert got.base_offset == 0


def test_a_split_batch_can_grow_and_leaves_its_source_alone() -> None:
    batch = keyed(*(b"%d" % i for i in range(50)))
    before = bytes(batch)
    for got in split(batch, 4, 0)[0]:
        assert got is not None
        got.append(b"more")
        got.verify()
    assert bytes(batch) == before
    batch.append(b"more")


def test_a_view_of_a_segment_can_be_split() -> None:
    data, _ = keyed(b"a", b"b", None, b"c", b"d").stamped(start=1)
    dealt, _ = split(RecordBatch.scan(data), 3, 0)
    values = [record.value for got in dealt if got is not None for record in got.records()]
    assert sorted(value for value in values if value is not None) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_one_partition_takes_the_batch_itself(partitions: int) -> None:
    batch = keyed(b"same", b"same", b"same")
    dealt, turn = split(batch, partitions, 0)
    place = partition_for(b"same", partitions)
    assert [got is batch for got in dealt] == [i == place for i in range(partitions)]
    assert [got is None for got in dealt] == [i != place for i in range(partitions)]
    assert turn == 0


def test_an_empty_batch_goes_nowhere() -> None:
    assert split(RecordBatch(), 3, 5) == ([None, None, None], 2)


def test_round_robin_continues_where_it_stopped() -> None:
    turn = 0
    counts = [0, 0, 0]
    for size in (1, 2, 4, 5):
        dealt, turn = split(keyed(*[None] * size), 3, turn)
        counts = [n + len(got or ()) for n, got in zip(counts, dealt, strict=True)]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_partition_counts_out_of_range(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        split(keyed(b"a"), partitions, 0)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="partition"):
        partition_for(b"a", 0)
    with pytest.raises(ValueError, match="round robin"):
        split(keyed(b"a"), 3, -1)


def test_the_most_partitions() -> None:
    batch = keyed(*(b"%d" % i for i in range(100)))
    dealt, _ = split(batch, PARTITIONS_MAX, 0)
    assert sum(len(got) for got in dealt if got is not None) == 100


# --- slots ---


@given(batches, slot_counts, st.data())
def test_slots_agree_with_the_oracle(batch: RecordBatch, slots: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(first, len(batch)))
    found = key_slots(batch, first, stop, slots)
    assert found.typecode == "H"
    wanted = batch.records()[first:stop]
    assert found.tolist() == [expected_slot(record.key, slots) for record in wanted]


def test_slots_of_one_partition_are_all_used() -> None:
    """The partition and the slot come from different bits: with a common factor, too."""
    partitions, slots = 4, 64
    mine = [key for i in range(8000) if partition_for(key := b"k%d" % i, partitions) == 1]
    found = key_slots(keyed(*mine), 0, len(mine), slots)
    counts = [found.count(slot) for slot in range(slots)]
    assert min(counts) > 0
    assert max(counts) < 3 * len(mine) / slots


@pytest.mark.parametrize(("first", "stop"), [(-1, 1), (0, 3), (2, 1)])
def test_spans_outside_the_batch(first: int, stop: int) -> None:
    with pytest.raises(IndexError):
        key_slots(keyed(b"a", b"b"), first, stop, 8)


@pytest.mark.parametrize("slots", [0, -1, SLOTS_MAX + 1])
def test_slot_counts_out_of_range(slots: int) -> None:
    with pytest.raises(ValueError, match="slots"):
        key_slots(keyed(b"a"), 0, 1, slots)
