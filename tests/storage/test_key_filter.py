"""Filters of keys: none that is there is ever denied, few that are not are taken for there, and
every sealed segment has the right one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SMALL, World

from braidmq.record.batch import RecordBatch
from braidmq.storage.key_filter import BLOCK_BYTES, KeyFilter, may_hold_key
from braidmq.storage.segment import Segment
from braidmq.storage.segment_keys import decode_keys, encode_keys
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import LoseAll

KEYS = st.lists(st.none() | st.binary(max_size=20), max_size=60)


def filter_of(*batches: list[bytes | None], keys_max: int | None = None) -> bytes:
    found = KeyFilter(sum(map(len, batches)) if keys_max is None else keys_max)
    for keys in batches:
        batch = RecordBatch()
        for key in keys:
            batch.append(b"value", key=key)
        found.add(batch)
    return found.folded()


@given(st.lists(KEYS, max_size=5), st.integers(0, 5000))
def test_no_key_that_is_there_is_denied(batches: list[list[bytes | None]], keys_max: int) -> None:
    found = filter_of(*batches, keys_max=keys_max)
    blocks = len(found) // BLOCK_BYTES
    assert blocks * BLOCK_BYTES == len(found)
    assert blocks & (blocks - 1) == 0
    assert all(may_hold_key(found, key) for keys in batches for key in keys if key is not None)


@pytest.mark.parametrize("count", [1, 10, 300, 20_000])
def test_few_keys_that_are_not_there_pass(count: int) -> None:
    found = filter_of([b"key-%d" % at for at in range(count)])
    passed = sum(may_hold_key(found, b"other-%d" % at) for at in range(10_000))
    assert passed < 200
    assert len(found) <= max(BLOCK_BYTES, 4 * count)


def test_few_keys_among_many_records_take_little_room() -> None:
    assert len(filter_of([b"key-%d" % (at % 7) for at in range(20_000)])) == BLOCK_BYTES


def test_no_keys_and_no_filter() -> None:
    assert not may_hold_key(filter_of([None]), b"")
    assert may_hold_key(filter_of([b""]), b"")
    for wrong in (b"", b"x" * 31):
        with pytest.raises(ValueError, match="whole blocks"):
            may_hold_key(wrong, b"key")


# --- in files ---

SEGMENT = Segment(1, 0, 10, 4000, 10, 5, True)


@given(st.data())
def test_damage_and_other_segments_are_noticed(data: st.DataObject) -> None:
    blocks = filter_of([b"%d" % at for at in range(50)])
    written = encode_keys(SEGMENT, blocks)
    assert decode_keys(SEGMENT, written) == blocks
    at = data.draw(st.integers(0, len(written) - 1))
    flipped = bytearray(written)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_keys(SEGMENT, flipped) is None
    assert decode_keys(SEGMENT, written[:at]) is None
    other = Segment(1, 0, 10, 4000, data.draw(st.integers(0, 9)), 5, True)
    assert decode_keys(other, written) is None


def keys_by_segment(store: Store) -> list[tuple[Segment, set[bytes]]]:
    return [
        (
            each,
            {
                record.key
                for run in log.read(each.base_offset, each.size)
                for record in run.batch.records()
                if record.key is not None and each.base_offset <= record.offset < each.end_offset
            },
        )
        for log in store.logs.values()
        for each in log.segments
        if each.sealed
    ]


def filled_world() -> World:
    world = World()
    world.create()
    rng = random.Random(3)
    for at in range(90):
        world.append(rng)
        if at % 15 == 14:
            world.take_checkpoint()
    return world


def test_every_sealed_segment_has_the_filter_of_its_keys() -> None:
    world = filled_world()
    disk = world.disk.crash(LoseAll())
    found = keys_by_segment(Store.open(disk, SMALL))
    assert len(found) > 2
    for segment, keys in found:
        file = disk.open(segment.keys_path)
        blocks = decode_keys(segment, file.read(file.size(), 0))
        assert blocks is not None
        assert keys
        assert all(may_hold_key(blocks, key) for key in keys)
        strangers = sum(may_hold_key(blocks, b"stranger-%d" % at) for at in range(1000))
        assert strangers < 100


def test_filters_go_with_their_segments() -> None:
    world = filled_world()
    assert any(name.endswith(".keys") for name in world.disk.list("segments"))
    world.delete(random.Random(3))
    world.take_checkpoint()
    world.take_checkpoint()
    assert world.disk.list("segments") == []
