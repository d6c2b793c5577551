"""Compressed blocks: what goes in comes out, whatever is damaged is found, and nothing is expanded
beyond what a block may hold."""

import random
import struct

import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from worlds import SMALL, contents, random_batch, read_all, value_batch

from braidmq.model.errors import CorruptData, PartitionQuarantined
from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.record.crc32c import crc32c
from braidmq.record.offset_set import OffsetBits
from braidmq.storage import blocks, quarantine
from braidmq.storage.blocks import (
    BLOCK_BYTES_MAX,
    HEADER,
    RECORD_BYTES_MAX,
    Expanded,
    block_header,
    expand,
    is_block,
    pack,
)
from braidmq.storage.disk import MemoryDisk, RealDisk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.reader import Window, read_directory
from braidmq.storage.segment import Segment, read_header, scan_records, scan_segment
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk

WIDE = StorageSettings(
    segment_bytes_max=1 << 20,
    index_interval_bytes=256,
    tail_bytes_max=0,
    journal_file_bytes=1 << 24,
)


def json_like(number: int, size: int = 300) -> bytes:
    text = b'{"id": %d, "customer": "c-%d", "status": "shipped", "items": [' % (number, number % 97)
    item = b'{"sku": "a-%d", "count": %d}, ' % (number * 7919 % 10_007, number % 9)
    return (text + item * (size // len(item)))[:size]


def segment_bytes(batch: RecordBatch, base: int = 0) -> bytes:
    batch.place(base)
    return batch.stamped()[0]


def packed(data: bytes) -> bytes:
    return b"".join(piece for piece, _ in pack(data))


def whole(found: Expanded | int) -> Expanded:
    assert isinstance(found, Expanded)
    return found


def filled(
    count: int, disk: FaultyDisk | MemoryDisk | None = None, *, compressed: bool = True
) -> tuple[Store, PartitionLog]:
    """A compressed log of which nothing is in memory."""
    store = Store.open(disk or MemoryDisk(), WIDE)
    log = store.create_partition("t")
    log.compressed = compressed
    for first in range(0, count, 50):
        batch = RecordBatch()
        for number in range(first, min(first + 50, count)):
            batch.append(json_like(number), key=b"k%d" % number, timestamp_ms=1000 + number)
        store.append(batch, [log])
    store.checkpoint()
    log.evict()
    return store, log


# --- the format ---


@given(st.integers(0, 2**32), st.integers(0, 1 << 40), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_what_goes_in_comes_out(seed: int, base: int, values: int) -> None:
    rng = random.Random(seed)
    batch = RecordBatch()
    for number in range(rng.randint(1, values)):
        value = json_like(number, rng.choice([10, 300, 3000])) if rng.random() < 0.9 else None
        batch.append(value, key=rng.choice([None, b"k"]), timestamp_ms=rng.randint(0, 9999))
    data = segment_bytes(batch, base)
    stored = packed(data)
    assert len(stored) <= len(data)
    assert not len(stored) % 8
    at, found = 0, b""
    while at < len(stored):
        if is_block(stored[at:]):
            each = whole(expand(memoryview(stored)[at:], rng.choice([1, 100_000, 10_000_000])))
            found += bytes(memoryview(each.batch))
            at += each.stored
            assert [start.first_offset for start in each.starts] == sorted(
                {start.first_offset for start in each.starts}
            )
        else:
            rest = stored[at:]
            stop = next((i for i in range(0, len(rest), 8) if is_block(rest[i:])), len(rest))
            found += rest[:stop]
            at += stop
    assert found == data


def test_a_block_has_as_many_records_as_fit_and_never_a_part_of_one() -> None:
    batch = RecordBatch()
    for size in (100, 200_000, 100, 60_000, 60_000, *[1000] * 100):
        batch.append(json_like(1, size))
    found = []
    for piece, part in pack(segment_bytes(batch)):
        header = block_header(piece) if is_block(piece) else None
        assert header is None or (header.records, header.expanded) == (part.count, part.size)
        found.append((part.count, part.size))
    assert [count for count, _ in found[:4]] == [1, 1, 2, 6]
    assert all(size <= BLOCK_BYTES_MAX for count, size in found if count > 1)
    assert sum(count for count, _ in found) == 105


def test_what_does_not_get_smaller_stays_as_it_is() -> None:
    rng = random.Random(1)
    data = segment_bytes(value_batch(*(rng.randbytes(4000) for _ in range(20))))
    assert packed(data) == data


def test_a_record_too_long_to_be_expanded_stays_as_it_is() -> None:
    batch = RecordBatch()
    batch.append(b"x" * RECORD_BYTES_MAX)
    batch.append(b"y" * 1000)
    pieces = [piece for piece, _ in pack(segment_bytes(batch))]
    assert [is_block(piece) for piece in pieces] == [False, True]


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_is_found_wherever_it_matters(seed: int) -> None:
    rng = random.Random(seed)
    data = segment_bytes(value_batch(*(json_like(at) for at in range(30))))
    stored = bytearray(packed(data))
    assert is_block(stored)
    at = rng.randrange(len(stored))
    stored[at] ^= 1 << rng.randrange(8)
    header = block_header(packed(data))
    assert header is not None
    if at >= HEADER.size + header.frame:
        return  # padding
    if not is_block(stored):
        with pytest.raises(BadRecord):
            RecordBatch.scan(bytes(stored))
        return
    with pytest.raises(BadRecord):
        expand(bytes(stored), 1 << 20)


def forged(frame: bytes, *, records: int = 2, expanded: int, codec: int = 1) -> bytes:
    """With all checksums right."""
    fields = HEADER.pack(
        0, crc32c(frame), 0xB4, 3, 0, codec, records, 0, 0, expanded, len(frame), records
    )
    size = -(-(HEADER.size + len(frame)) // 8) * 8
    return (struct.pack("<I", crc32c(fields[4:])) + fields[4:] + frame).ljust(size, b"\0")


BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(256 << 20))
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (forged(BOMB, expanded=256 << 20), "can't have"),
        (forged(BOMB, expanded=256 << 20, records=1), "can't have"),
        (forged(BOMB, expanded=1000), "frame says 268435456"),
        (forged(UNSIZED, expanded=1000), "frame says"),
        (forged(b"no frame at all", expanded=1000), "can't be expanded"),
        (forged(zstandard.compress(bytes(1000)), expanded=1000), "byte 0 of a block"),
        (forged(zstandard.compress(bytes(1000)), expanded=1000, records=0), "can't have"),
        (forged(zstandard.compress(bytes(1000)), expanded=1000, codec=2), "codec 2"),
        (
            forged(zstandard.compress(segment_bytes(value_batch(b"a"))), expanded=48),
            "not of the records it says",
        ),
    ],
    ids=[
        "bomb",
        "bomb of one",
        "frame",
        "unsized",
        "none",
        "no records",
        "empty",
        "codec",
        "count",
    ],
)
def test_a_forged_block_takes_no_more_memory_than_a_block_may(
    block: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Watched:
        def decompress(self, frame: memoryview, max_output_size: int) -> bytes:
            sizes.append(max_output_size)
            return zstandard.ZstdDecompressor().decompress(frame, max_output_size=max_output_size)

    monkeypatch.setattr(blocks._decompressors, "zstd", Watched())
    with pytest.raises(BadRecord, match=reason):
        expand(block, 1 << 30)
    assert all(size <= RECORD_BYTES_MAX for size in sizes)


def test_damage_behind_the_first_block_ends_what_is_read_before_it() -> None:
    data = segment_bytes(value_batch(*(json_like(at, 2000) for at in range(100))))
    pieces = [piece for piece, _ in pack(data)]
    stored = bytearray(b"".join(pieces))
    stored[len(pieces[0]) + len(pieces[1]) + 60] ^= 1
    assert whole(expand(bytes(stored), 1 << 30)).stored == len(pieces[0]) + len(pieces[1])


def test_a_block_that_is_cut_off_says_how_long_it_is() -> None:
    stored = packed(segment_bytes(value_batch(*(json_like(at) for at in range(30)))))
    assert expand(stored[:20], 1 << 20) == HEADER.size
    assert expand(stored[:-1], 1 << 20) == len(stored)


# --- logs ---


def test_a_log_reads_the_same_as_without() -> None:
    _, log = filled(2000)
    (each,) = log.segments
    assert each.packed_bytes > 3 * each.size
    _, plain = filled(2000, compressed=False)
    assert each.whole_size == plain.segments[0].size == plain.segments[0].whole_size
    for start, size in ((0, 1), (0, 10_000), (1999, 100), (777, 1 << 20)):
        found = read_all(log, size, start)
        assert [r.offset for r in found] == list(range(start, 2000))
        assert found[0].value == json_like(start)


def test_an_offset_and_a_time_are_found_without_expanding_what_is_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, log = filled(2900)
    (each,) = log.segments
    expanded: list[int] = []
    original = blocks._expand

    def counted(data: bytes, at: int, header: blocks.BlockHeader) -> RecordBatch:
        expanded.append(header.first_offset)
        return original(data, at, header)

    assert len(log.index(each).positions) > 10
    monkeypatch.setattr(blocks, "_expand", counted)
    assert log.read(2700, 1)[0].batch.find(2700) >= 0
    assert len(expanded) == 1
    expanded.clear()
    assert log.find_time(1000 + 2500) == 2500
    assert min(expanded) > 2200


def test_an_index_that_is_made_again_is_the_same() -> None:
    store, log = filled(3000)
    (each,) = log.segments
    file = store.disk.open(each.path)
    found, index = scan_segment(file, log.id, log.index_interval, each.size)
    assert found == each
    written = log._indexes[each.base_offset]
    assert (index.offsets, index.positions, index.times) == (
        written.offsets,
        written.positions,
        written.times,
    )


def test_the_setting_may_change_at_any_time() -> None:
    store = Store.open(MemoryDisk(), WIDE)
    log = store.create_partition("t")
    for turn in range(6):
        log.compressed = turn % 2 == 1
        for number in range(20):
            store.append(value_batch(json_like(turn * 20 + number), timestamp_ms=turn), [log])
        store.checkpoint()
        log.evict()
    (each,) = log.segments
    assert 0 < each.packed_bytes < each.size
    for size in (1, 1 << 20):
        assert [r.value for r in read_all(log, size)] == [json_like(at) for at in range(120)]
    assert log.find_time(3) == 60


def test_old_segments_stay_readable_and_are_never_written_anew_for_it() -> None:
    disk = MemoryDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("t")
    for number in range(100):
        store.append(value_batch(json_like(number)), [log])
    store.checkpoint()
    before = {name: disk.open(f"segments/{name}").map() for name in disk.list("segments")}
    log.compressed = True
    store.append(value_batch(json_like(100)), [log])
    store.checkpoint()
    log.evict()
    sealed = {each.path.rpartition("/")[2] for each in log.segments if each.sealed}
    for name in sealed & before.keys():
        assert disk.open(f"segments/{name}").map() == before[name]
    assert [r.value for r in read_all(log)] == [json_like(at) for at in range(101)]


def test_what_is_written_anew_is_compressed_as_the_setting_says() -> None:
    store, log = filled(4000)
    sealed = log.segments[0]
    assert sealed.sealed
    unwanted = OffsetBits(0, sealed.end_offset)
    for offset in range(0, sealed.end_offset, 2):
        unwanted.add(offset, offset + 1)
    store.rewrite(log, unwanted)
    store.checkpoint()
    log.evict()
    assert log.segments[0].generation == 1
    assert log.segments[0].packed_bytes > log.segments[0].size
    kept = [r.offset for r in read_all(log) if r.offset < sealed.end_offset]
    assert kept == list(range(1, sealed.end_offset, 2))


def test_bodies_are_shared_between_compressed_logs() -> None:
    store = Store.open(MemoryDisk(), WIDE)
    logs = [store.create_partition(f"t{at}") for at in range(3)]
    logs[0].compressed = logs[1].compressed = True
    for number in range(200):
        store.append(value_batch(json_like(number)), logs)
        store.append(value_batch(json_like(-number)), logs[:1])
    store.checkpoint()
    for log in logs:
        log.evict()
        assert all(each.bodies for each in log.segments)
    both = [value for at in range(200) for value in (json_like(at), json_like(-at))]
    assert [r.value for r in read_all(logs[0])] == both
    assert [r.value for r in read_all(logs[1])] == [json_like(at) for at in range(200)]
    assert logs[1].segments[0].whole_size == logs[2].segments[0].whole_size
    assert logs[1].segments[0].size < logs[2].segments[0].size
    assert quarantine.check(store.disk, logs[0].segments, logs[0].label) is None


# --- damage ---


def test_a_damaged_block_quarantines_its_partition_and_skipping_loses_it_alone() -> None:
    disk = FaultyDisk()
    store, log = filled(2000, disk)
    other = store.create_partition("other")
    store.append(value_batch(b"x"), [other])
    (each,) = log.segments
    file = disk.open(each.path)
    first = scan_records(file, read_header(file).length, 1 << 20, each.size, expanded_max=1)
    assert first is not None
    position = read_header(file).length + first.stored
    disk.flip_bit(each.path, position + 70)
    log._files.forget(each.path)
    assert log.read(0, 1)[0].batch.count == first.batch.count, "what is before it comes"
    with pytest.raises(PartitionQuarantined) as refused:
        read_all(log)
    assert (refused.value.file, refused.value.position) == (each.path, position)
    assert len(read_all(other)) == 1
    told: list[object] = []
    store.skip_damage(log, told.append)
    store.checkpoint()
    left = [r.offset for r in read_all(log)]
    lost = sorted(set(range(2000)) - set(left))
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert lost[0] == first.batch.next_offset
    assert len(lost) < 300
    assert log.segments[0].packed_bytes


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=60, deadline=None)
@example(seed=3, cut=False)
def test_random_damage_is_found_or_harms_nothing(seed: int, cut: bool) -> None:
    rng = random.Random(seed)
    disk = FaultyDisk()
    _, log = filled(600, disk)
    (each,) = log.segments
    at = rng.randrange(64, each.size)
    if cut:
        disk.open(each.path).truncate(at)
    else:
        disk.flip_bit(each.path, at, rng.randrange(8))
    log.forget_read()
    try:
        found = [r.value for r in read_all(log, rng.choice([1, 10_000, 1 << 20]))]
    except PartitionQuarantined:
        damage = quarantine.check(disk, [each], log.label)
        assert damage is not None
        assert damage.position <= at
    else:
        assert not cut
        assert found == [json_like(number) for number in range(600)]


# --- readers without a broker ---


def test_a_reader_of_the_directory_needs_no_setting(tmp_path) -> None:
    store = Store.open(RealDisk(tmp_path), WIDE)
    logs = [store.create_partition(f"t{at}") for at in range(2)]
    expected: dict[str, list[bytes | None]] = {"t0": [], "t1": []}
    rng = random.Random(4)
    for turn in range(8):
        logs[0].compressed = turn % 3 > 0
        for number in range(60):
            batch = random_batch(rng) if number % 2 else value_batch(json_like(number, 2000))
            targets = logs if number % 3 == 0 else logs[:1]
            for log in targets:
                expected[log.label] += [row[0] for row in contents(batch)]
            store.append(batch, targets)
        store.checkpoint()
    assert any(each.packed_bytes and each.bodies for each in logs[0].segments)
    for log in logs:
        found = pa.Table.from_batches(read_directory(tmp_path, log.label))
        assert found["offset"].to_pylist() == list(range(log.next_offset))
        assert found["value"].to_pylist() == [r.value for r in read_all(log)]
        part = pa.Table.from_batches(read_directory(tmp_path, log.label, Window(100, 200)))
        assert part["offset"].to_pylist() == list(range(100, 200))
    store.close()


def test_a_reader_names_the_damaged_block(tmp_path) -> None:
    store = Store.open(RealDisk(tmp_path), WIDE)
    log = store.create_partition("t")
    log.compressed = True
    store.append(value_batch(*(json_like(at) for at in range(1000))), [log])
    store.checkpoint()
    path = tmp_path / log.segments[0].path
    store.close()
    data = bytearray(path.read_bytes())
    data[64 + 100] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptData) as refused:
        list(read_directory(tmp_path, "t"))
    assert refused.value.position == 64


def test_segments_say_what_they_save() -> None:
    assert Segment(1, 0, 10, 100, 10, 0, True, packed_bytes=50, shared_bytes=7).whole_size == 157
