"""Segments to Arrow: what the log reads, the reader reads."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import World, read_all, record_spans

from braidmq.model.errors import CorruptData, ForeignFile, NotFound
from braidmq.record.batch import Record
from braidmq.storage import reader
from braidmq.storage.bodies import START
from braidmq.storage.disk import RealDisk
from braidmq.storage.reader import (
    COLUMNS,
    Window,
    find_segments,
    open_segment,
    read_directory,
    read_segment,
)


def make(root: Path, *, partitions: int = 2, batches: int = 60, value_max: int = 60) -> World:
    """All records in segments, several a partition, the last of each still open."""
    world = World(RealDisk(root))  # type: ignore[arg-type]
    for _ in range(partitions):
        world.create()
    rng = random.Random(17)
    for at in range(batches):
        world.append(rng, value_max)
        if at % 15 == 14:
            world.take_checkpoint()
    world.take_checkpoint()
    return world


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    root = tmp_path_factory.mktemp("data")
    world = make(root)
    assert all(len(log.segments) > 2 for log in world.store.logs.values())
    assert {each.sealed for log in world.store.logs.values() for each in log.segments} == {
        True,
        False,
    }
    return root, world


def row(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "priority": record.priority,
        "flags": record.flags,
        "envelope_format": record.envelope_format,
        "key": record.key,
        "envelope": record.envelope,
        "value": record.value,
        "expires_at": record.expires_at_ms * 1000 or None,
        "due_at": record.due_at_ms * 1000 or None,
    }


def rows(batches) -> list[dict[str, object]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == COLUMNS
        for name in ("timestamp", "expires_at", "due_at"):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
        found += batch.to_pylist()
    return found


def expected(world: World, window: Window, label: str | None = None) -> list[dict[str, object]]:
    return [
        row(record)
        for _, log in sorted(world.store.logs.items())
        if label in (None, log.label)
        for record in read_all(log)
        if window.offset_min <= record.offset < window.offset_max
        and window.time_min_ms <= record.timestamp_ms < window.time_max_ms
    ]


def test_everything(shared) -> None:
    root, world = shared
    assert rows(read_directory(root)) == expected(world, Window())


def test_one_label(shared) -> None:
    root, world = shared
    for log in world.store.logs.values():
        found = rows(read_directory(root, log.label))
        assert found == expected(world, Window(), log.label)
        assert len(found) == log.next_offset
    assert rows(read_directory(root, "no such topic")) == []


bounds = st.tuples(st.integers(0, 260), st.integers(0, 260)).map(sorted)
times = st.tuples(st.integers(0, 1001), st.integers(0, 1001)).map(sorted)


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bounds, times, st.booleans(), st.booleans())
def test_a_window(shared, offsets, clock, by_offset, by_time) -> None:
    root, world = shared
    window = Window(
        *(offsets if by_offset else (reader.EARLIEST, reader.LATEST)),
        *(clock if by_time else (reader.EARLIEST, reader.LATEST)),
    )
    assert rows(read_directory(root, window=window)) == expected(world, window)


@settings(deadline=None, max_examples=40)
@given(bounds, times)
def test_one_segment_file_on_its_own(shared, offsets, clock) -> None:
    root, world = shared
    window = Window(*offsets, *clock)
    log = world.store.logs[1]
    whole = expected(world, window, log.label)
    for each in log.segments:
        file = open_segment(root / each.path)
        assert (file.partition, file.label, file.base_offset) == (1, log.label, each.base_offset)
        assert rows(read_segment(file, window)) == [
            one for one in whole if each.base_offset <= one["offset"] < each.end_offset
        ]


def test_small_batches_and_chunks_give_the_same_rows(shared, monkeypatch) -> None:
    root, world = shared
    monkeypatch.setattr(reader, "CHUNK_BYTES", 64)  # less than most records
    batches = list(read_directory(root))
    assert rows(batches) == expected(world, Window())
    assert len(batches) > 100


def test_segments_are_skipped_without_being_read(shared) -> None:
    root, world = shared
    files = find_segments(root, world.store.logs[1].label)
    last = files[-1].base_offset
    window = Window(offset_min=last)
    assert [file.may_hold(window) for file in files] == [False] * (len(files) - 1) + [True]
    assert not any(file.may_hold(Window(time_min_ms=5000)) for file in files)


def test_what_is_not_flushed_is_not_seen(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    flushed = expected(world, Window())
    world.append(random.Random(1))
    world.store.commit()
    assert rows(read_directory(tmp_path)) == flushed
    world.store.close()


def test_bytes_behind_a_segments_size_do_not_count(tmp_path: Path) -> None:
    """A flush that was interrupted, or one that runs now."""
    world = make(tmp_path, partitions=1)
    last = world.store.logs[1].segments[-1]
    with (tmp_path / last.path).open("ab") as file:
        file.write(b"half a record")
    assert rows(read_directory(tmp_path)) == expected(world, Window())
    with pytest.raises(CorruptData) as caught:
        rows(read_segment(open_segment(tmp_path / last.path)))
    assert caught.value.position == last.size
    world.store.close()


def test_records_below_the_start_are_gone_here_too(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    log = world.store.logs[1]
    start = log.segments[1].base_offset + 2
    world.store.advance_start(log, start)
    world.take_checkpoint()
    found = rows(read_directory(tmp_path))
    assert found[0]["offset"] == start
    assert found == expected(world, Window())
    world.store.close()


@pytest.mark.parametrize("harm", ["remove", "flip"])
def test_indexes_are_only_a_shortcut(tmp_path: Path, harm: str) -> None:
    world = make(tmp_path)
    paths = list((tmp_path / "segments").glob("*.index"))
    assert paths
    for at, path in enumerate(paths):
        if harm == "remove":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[at * 7 % len(data)] ^= 4
            path.write_bytes(data)
    for window in (Window(), Window(40, 90), Window(time_min_ms=900)):
        assert rows(read_directory(tmp_path, window=window)) == expected(world, window)
    world.store.close()


# --- bodies that are elsewhere ---


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    """Records with their bodies and references, in turn, of three partitions."""
    root = tmp_path_factory.mktemp("sharing")
    world = make(root, partitions=3, value_max=200)
    assert len(list((root / "segments").glob("*.bodies"))) > 2
    for log in world.store.logs.values():
        for each in log.segments:
            assert each.shared_bytes > 0
            assert each.value_bytes > each.shared_bytes / 2
    return root, world


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bounds, times, st.booleans(), st.booleans(), st.sampled_from([64, 2000, 16 << 20]))
def test_a_window_on_shared_bodies(sharing, offsets, clock, by_offset, by_time, chunk) -> None:
    root, world = sharing
    window = Window(
        *(offsets if by_offset else (reader.EARLIEST, reader.LATEST)),
        *(clock if by_time else (reader.EARLIEST, reader.LATEST)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK_BYTES", chunk)
        assert rows(read_directory(root, window=window)) == expected(world, window)


def test_shared_bodies_of_one_segment_file_on_its_own(sharing) -> None:
    root, world = sharing
    log = world.store.logs[2]
    whole = expected(world, Window(), log.label)
    for each in log.segments:
        assert rows(read_segment(open_segment(root / each.path))) == [
            one for one in whole if each.base_offset <= one["offset"] < each.end_offset
        ]


def test_damage_to_a_shared_body(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=2, batches=20, value_max=400)
    whole = expected(world, Window())
    path = sorted((tmp_path / "segments").glob("*.bodies"))[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found: list[pa.RecordBatch] = []
    with pytest.raises(CorruptData) as caught:
        found.extend(read_directory(tmp_path))
    assert caught.value.file == f"segments/{path.name}"
    assert START < caught.value.position < len(data)
    before = rows(found)
    assert before == whole[: len(before)]
    assert before
    path.write_bytes(b"BRAIDSEG" + data[8:])
    with pytest.raises(ForeignFile):
        list(read_directory(tmp_path))
    path.unlink()
    with pytest.raises(NotFound, match="no body file"):
        list(read_directory(tmp_path))
    world.store.close()


# --- what goes wrong ---


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    each = world.store.logs[1].segments[1]
    path = tmp_path / each.path
    data = path.read_bytes()
    spans = record_spans(world.disk, each)[::-1]
    for position in range(spans[-1][0], each.size, 97):
        damaged = bytearray(data)
        damaged[position] ^= 16
        path.write_bytes(damaged)
        start, stop = next(span for span in spans if span[0] <= position)
        if position >= stop:  # padding is the only part that no checksum covers
            continue
        with pytest.raises(CorruptData) as caught:
            rows(read_directory(tmp_path))
        assert (caught.value.file, caught.value.position) == (str(path), start)
    world.store.close()


def test_a_segment_cut_short_is_named(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    each = world.store.logs[1].segments[0]
    path = tmp_path / each.path
    path.write_bytes(path.read_bytes()[: each.size - 20])
    with pytest.raises(CorruptData) as caught:
        rows(read_directory(tmp_path))
    assert caught.value.file == str(path)
    world.store.close()


def test_a_damaged_segment_header(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    path = tmp_path / world.store.logs[1].segments[0].path
    data = bytearray(path.read_bytes())
    data[42] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        open_segment(path)
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(ForeignFile, match="version 9"):
        open_segment(path)
    world.store.close()


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list(read_directory(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_without_a_snapshot(tmp_path: Path) -> None:
    world = World(RealDisk(tmp_path))  # type: ignore[arg-type]
    world.create()
    world.store.close()
    with pytest.raises(NotFound, match="no readable snapshot"):
        list(read_directory(tmp_path))


def test_a_missing_segment(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    path = tmp_path / world.store.logs[1].segments[0].path
    path.unlink()
    with pytest.raises(NotFound):
        open_segment(path)
    with pytest.raises(NotFound):
        list(read_directory(tmp_path))
    world.store.close()


def test_not_a_segment(tmp_path: Path) -> None:
    (tmp_path / "x.segment").write_bytes(b"hello")
    with pytest.raises(ForeignFile):
        open_segment(tmp_path / "x.segment")
