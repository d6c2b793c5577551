"""The store as its owner sees it: one directory, one owner, bounded memory, nothing foreign."""

import asyncio
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from worlds import (
    SMALL,
    World,
    files,
    random_batch,
    read_all,
    resident_bytes,
    value_batch,
    view,
    view_log,
)

from braidmq.model.errors import DirectoryLocked, ForeignFile, NotFound, StorageFailed
from braidmq.record.batch import RecordBatch
from braidmq.record.crc32c import crc32c
from braidmq.record.offset_set import OffsetSet
from braidmq.storage import directory, journal, snapshot
from braidmq.storage.disk import MemoryDisk, RealDisk
from braidmq.storage.entries import decode_checkpoint, encode_checkpoint
from braidmq.storage.partition_log import TAIL_BATCH_BYTES
from braidmq.storage.segment import Segment
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.storage.workers import Workers
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll
from braidmq.testing.recording_disk import RecordingDisk

# --- one owner ---


def test_a_second_store_names_the_first_ones_pid(tmp_path: Path) -> None:
    store = Store.open(RealDisk(tmp_path), SMALL)
    with pytest.raises(DirectoryLocked, match=rf"pid {os.getpid()}\b"):
        Store.open(RealDisk(tmp_path), SMALL)
    store.close()
    Store.open(RealDisk(tmp_path), SMALL).close()


def test_a_store_of_another_process_is_named(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from braidmq.storage.disk import RealDisk; "
        "from braidmq.storage.store import Store; store = Store.open(RealDisk(Path(sys.argv[1]))); "
        "sys.stdout.write('open\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryLocked, match=rf"pid {child.pid}\b"):
            Store.open(RealDisk(tmp_path))
        child.communicate()


# --- group commit ---


def test_ten_thousand_partitions_share_one_sync(tmp_path: Path) -> None:
    disk = RecordingDisk(RealDisk(tmp_path))
    store = Store.open(disk, StorageSettings(journal_file_bytes=16 << 20))
    logs = [store.create_partition(f"topic/{n}") for n in range(10_000)]
    store.commit()
    disk.clear()
    confirmed: list[int] = []
    for n, log in enumerate(logs):
        lsn = store.append(value_batch(b"%d" % n), [log])
        store.wait(lsn, lambda failure, n=n: confirmed.append(n))
    assert confirmed == []
    store.commit()
    assert confirmed == list(range(10_000))
    assert 1 <= disk.count("sync") <= 5
    store.close()
    reopened = Store.open(RealDisk(tmp_path))
    for n, log in enumerate(reopened.logs.values()):
        assert [record.value for record in read_all(log)] == [b"%d" % n]
    reopened.close()


def test_a_failed_checkpoint_fails_the_store() -> None:
    world = World()
    world.create()
    world.append(random.Random(1))
    world.store.commit()
    world.disk.fail_next("write", after=2)
    with pytest.raises(StorageFailed):
        world.store.checkpoint()
    assert world.store.failure() is not None
    with pytest.raises(StorageFailed):
        world.append(random.Random(2))
    assert not world.store.wants_checkpoint()
    world.check_recovered(world.disk.crash(KeepAll()))


def test_a_background_thread_that_can_not_prepare_fails_the_store() -> None:
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    disk.fail_next("write")
    loop = asyncio.new_event_loop()
    workers = Workers(store, loop)
    workers.stop()
    loop.close()
    assert isinstance(store.failure(), StorageFailed)


# --- memory ---


def test_memory_is_bounded_and_everything_can_be_read_back() -> None:
    settings = StorageSettings(
        segment_bytes_max=64 << 10,
        index_interval_bytes=1024,
        journal_file_bytes=256 << 10,
        tail_bytes_max=128 << 10,
    )
    store = Store.open(MemoryDisk(), settings)
    logs = [store.create_partition(f"topic/{n}") for n in range(4)]
    expected: dict[int, list[object]] = {log.id: [] for log in logs}
    rng = random.Random(9)
    written, checkpoints, largest = 0, 0, 0
    while written < 20 * settings.tail_bytes_max:
        batch = random_batch(rng, count_max=8, value_max=400)
        targets = rng.sample(logs, rng.choice((1, 1, 1, 2)))
        rows = [tuple(record[1:]) for record in batch.records()]
        written += batch.size * len(targets)
        largest = max(largest, batch.memory_bytes * len(targets))
        store.append(batch, targets)
        for log in targets:
            expected[log.id] += rows
        # One batch may take it over the edge before the checkpoint that it asks for, and one that
        # is copied to the end of another makes room there for half as much again.
        unflushed_max = settings.tail_bytes_max // 2 + largest + TAIL_BATCH_BYTES // 2
        assert store.memory.unflushed <= unflushed_max
        assert store.memory.resident <= settings.tail_bytes_max + unflushed_max
        assert store.memory.resident == sum(resident_bytes(log) for log in logs)
        if store.wants_checkpoint():
            store.checkpoint()
            checkpoints += 1
            assert store.memory.unflushed == 0
            assert store.memory.resident <= settings.tail_bytes_max
    assert checkpoints > 10
    for log in logs:
        for bytes_max in (1, 700, 50_000):
            found = read_all(log, bytes_max)
            assert [tuple(record[1:]) for record in found] == expected[log.id]
            assert [record.offset for record in found] == list(range(log.next_offset))


def test_memory_of_a_deleted_partition_is_given_back() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log, other = store.create_partition("a"), store.create_partition("b")
    for seed in range(5):
        store.append(random_batch(random.Random(seed)), [log, other])
        store.append(random_batch(random.Random(seed)), [log])
    store.delete_partition(log.id)
    assert store.memory.resident == store.memory.unflushed == resident_bytes(other)
    with pytest.raises(NotFound):
        store.log(log.id)


def test_what_went_to_many_counts_in_full_while_one_of_them_has_it() -> None:
    """One slow subscriber of a thousand holds every byte of what the others have long had."""
    settings = StorageSettings(tail_bytes_max=256 << 10)
    store = Store.open(MemoryDisk(), settings)
    slow, *quick = [store.create_partition(f"topic/{n}") for n in range(20)]
    for number in range(40):
        store.append(value_batch(bytes([number]) * 20_000), [*quick, slow])
        for log in quick:
            store.advance_start(log, log.next_offset)
        held = sum(run.batch.size for run in slow.read(slow.flushed_offset, 1 << 20))
        assert store.memory.unflushed >= held
        assert store.memory.resident == resident_bytes(slow)
        if store.wants_checkpoint():
            store.checkpoint()
        in_memory = [batch.size for batch in slow._tail[slow._head :]]
        assert sum(in_memory) <= settings.tail_bytes_max
    assert len(read_all(slow, 1 << 20)) == 40


@pytest.mark.parametrize("gone", ["deleted", "advanced"])
def test_memory_adds_up_when_records_go_while_a_checkpoint_runs(gone: str) -> None:
    world = World()
    world.create()
    world.append(random.Random(1))
    world.take_checkpoint()
    world.append(random.Random(2))
    world.begin()
    world.append(random.Random(3))
    log = world.store.logs[1]
    if gone == "deleted":
        world.store.delete_partition(log.id)
    else:
        world.store.advance_start(log, log.next_offset)
    world.finish()
    logs = world.store.logs.values()
    assert world.store.memory.resident == sum(resident_bytes(each) for each in logs)
    assert world.store.memory.unflushed == 0
    world.take_checkpoint()
    assert world.disk.list("segments") == []


# --- what is never written, what is forgotten ---


def segment_offsets(store: Store, log) -> list[int]:
    """Offsets of what is in the segments."""
    log.evict()
    return [record.offset for record in read_all(log)]


def test_one_message_that_nobody_answers_does_not_keep_the_segments_behind_it() -> None:
    disk = MemoryDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("a")
    settled = store.offsets_of(1, log.id)
    log.acknowledged = (settled,)
    value = bytes(SMALL.segment_bytes_max // 4)
    most = 0
    for _ in range(40):
        first = log.next_offset
        store.append(value_batch(*([value] * 6)), [log])
        store.checkpoint()
        store.acknowledge(1, log.id, [(max(first, 1), log.next_offset)])
        most = max(most, len(log.segments), len(disk.list("segments")) // 2)
    assert most <= 8
    # And the same after a restart: the message is there, and nothing between it and the end.
    store.checkpoint()
    store.close()
    again = Store.open(disk, SMALL)
    log = again.logs[log.id]
    log.acknowledged = (again.offsets_of(1, log.id),)
    offsets = segment_offsets(again, log)
    assert offsets[0] == 0
    assert len(offsets) < 20


def test_what_all_have_acknowledged_is_not_written_to_segments() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    first, second = OffsetSet(), OffsetSet()
    log.acknowledged = (first, second)
    for _ in range(4):
        store.append(value_batch(*[b"x"] * 5), [log])
    first.add(0, 12)
    second.add(3, 20)
    store.checkpoint()
    assert segment_offsets(store, log) == [0, 1, 2, *range(12, 20)]
    assert sum(each.records for each in log.segments) == 11


def test_when_everything_is_acknowledged_no_segment_is_made() -> None:
    disk = RecordingDisk(MemoryDisk())
    store = Store.open(disk, SMALL)
    log = store.create_partition("a")
    log.acknowledged = (store.offsets_of(7, log.id),)
    for _ in range(30):
        store.append(value_batch(bytes(100)), [log])
        store.acknowledge(7, log.id, [(log.next_offset - 1, log.next_offset)])
    disk.clear()
    store.checkpoint()
    assert disk.list("segments") == []
    assert not any(op.path.startswith("segments/") for op in disk.operations)
    assert log.flushed_offset == log.next_offset == 30
    reopened = Store.open(copy_of(disk.inner), SMALL)
    assert reopened.logs[log.id].next_offset == 30
    assert reopened.offsets_of(7, log.id).floor == 30


def copy_of(disk: MemoryDisk) -> FaultyDisk:
    """What the next process finds."""
    twin = FaultyDisk()
    for name in ("journal", "snapshots", "segments"):
        twin.make_directory(name)
    for path, data in files(disk).items():
        twin.open(path, create=True).write(data, 0)
    return twin


def test_find_time() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    times = [random.Random(5).randint(0, 300) for _ in range(200)]
    for at, time in enumerate(times):
        store.append(value_batch(bytes(60), timestamp_ms=time), [log])
        if at in (60, 120, 170):
            store.checkpoint()
    for start in (0, 7, 63, 150, 199):
        store.advance_start(log, start)
        for wanted in range(-1, 303):
            expected = next((n for n in range(start, 200) if times[n] >= wanted), 200)
            assert log.find_time(wanted) == expected


def test_advancing_the_start_removes_whole_segments_at_the_next_checkpoint() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    for _ in range(100):
        store.append(value_batch(bytes(200)), [log])
        if store.wants_checkpoint():
            store.checkpoint()
    store.checkpoint()
    paths = [each.path for each in log.segments]
    assert len(paths) > 4
    middle = log.segments[2].base_offset + 1
    store.advance_start(log, middle)
    assert all(store.disk.exists(path) for path in paths), "a snapshot still names them"
    assert read_all(log)[0].offset == middle
    store.checkpoint()
    assert [store.disk.exists(path) for path in paths] == [False, False] + [True] * (len(paths) - 2)
    left = {name.partition(".")[0] for name in store.disk.list("segments")}
    assert left == {path.removeprefix("segments/").partition(".")[0] for path in paths[2:]}
    assert [record.offset for record in read_all(log)] == list(range(middle, 100))


def test_a_deleted_partitions_segments_go_and_a_new_ones_stay() -> None:
    """The new partition's first segment must not be mistaken for the old one's."""
    world = World()
    world.create()
    for seed in range(3):
        world.append(random.Random(seed))
    world.take_checkpoint()
    world.delete(random.Random(0))
    world.take_checkpoint()
    assert world.disk.list("segments") == []
    world = world.check_recovered(world.disk.crash(LoseAll()))
    world.create()
    world.append(random.Random(4))
    world.store.commit()
    # Both from the newest snapshot and from the one in which the old partition lives.
    for missing in (0, 1):
        disk = world.disk.crash(LoseAll())
        for path in snapshot.names(disk)[:missing]:
            disk.remove(path)
        found = world.check_recovered(disk)
        found.take_checkpoint()
        for log in found.store.logs.values():
            log.evict()
        assert view(found.store) == world.now
        found.check_recovered(found.disk.crash(LoseAll()))


# --- transient records ---


def test_transient_records_vanish_and_their_offsets_are_not_used_again() -> None:
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("a")
    store.append(value_batch(b"kept"), [log])
    store.append_transient(value_batch(b"gone", b"gone"), log)
    store.append(value_batch(b"kept"), [log])
    store.append_transient(value_batch(b"gone"), log)
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3, 4]
    # Whoever acknowledges a record has seen its offset.
    store.acknowledge(1, log.id, [(4, 5)])
    store.commit()
    reopened = Store.open(disk.crash(LoseAll()), SMALL)
    log = reopened.logs[log.id]
    assert [(record.offset, record.value) for record in read_all(log)] == [
        (0, b"kept"),
        (3, b"kept"),
    ]
    assert log.next_offset == 5


def test_offsets_of_transient_records_outlive_a_checkpoint() -> None:
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("a")
    store.append_transient(value_batch(b"a", b"b"), log)
    store.checkpoint()
    reopened = Store.open(disk.crash(LoseAll()), SMALL)
    assert reopened.logs[log.id].next_offset == 2


# --- whose directory it is ---


def used_directory(root: Path) -> World:
    world = World(RealDisk(root))  # type: ignore[arg-type]
    world.create()
    rng = random.Random(8)
    for at in range(40):
        world.append(rng)
        if at in (10, 20):
            world.take_checkpoint()
    world.store.close()
    return world


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def newest(root: Path, directory: str, suffix: str) -> Path:
    return max((root / directory).glob(f"*{suffix}"))


def newer_journal(root: Path) -> None:
    path = newest(root, "journal", ".journal")
    epoch = int(path.stem, 16)
    fields = journal.FILE_HEADER.pack(journal.FILE_MAGIC, journal.FILE_VERSION + 1, 0, epoch, 7)
    patch(path, 0, fields + struct.pack("<I", crc32c(fields)))


def newer_entry(root: Path) -> None:
    """A kind of entry this version does not know, with a right checksum."""
    start = journal.ENTRIES_START
    for epoch in journal.journal_epochs(RealDisk(root)):
        content = (root / journal.file_name(epoch)).read_bytes()
        salt = journal.check_file_header("", memoryview(content), epoch)
        if journal.first_lsn(content, start, salt):
            path = root / journal.file_name(epoch)  # the newest that holds any
    content = path.read_bytes()
    length = struct.unpack_from("<I", content, start + 4)[0]
    entry = bytearray(content[start : start + length])
    entry[10] = 200
    struct.pack_into("<I", entry, 0, crc32c(bytes(entry[4:])))
    patch(path, start, entry)


def newer_snapshot(root: Path) -> None:
    """With a right checksum: else it is damaged, and the one before will do."""
    path = newest(root, "snapshots", ".snapshot")
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 8, 2)
    size = snapshot.HEADER.size
    checksum = crc32c(bytes(content[size:]), crc32c(bytes(content[: size - 4])))
    struct.pack_into("<I", content, size - 4, checksum)
    path.write_bytes(content)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a foreign file": lambda root: (root / "notes.txt").write_text("mine"),
    "a foreign directory": lambda root: (root / "photos").mkdir(),
    "a newer FORMAT": lambda root: (root / "FORMAT").write_text('{"product":"braidmq","format":3}'),
    "another product": lambda root: (root / "FORMAT").write_text('{"product":"x","format":1}'),
    "an unreadable FORMAT": lambda root: (root / "FORMAT").write_bytes(b"\0\1"),
    "a newer journal": newer_journal,
    "a newer journal entry": newer_entry,
    "a newer snapshot": newer_snapshot,
    "garbage in journal": lambda root: (root / "journal" / "core.1234").write_bytes(b"\0" * 99),
    "garbage in segments": lambda root: (root / "segments" / "00-1.segment").write_bytes(b"x"),
    "garbage in snapshots": lambda root: (root / "snapshots" / "old.bak").write_bytes(b"x"),
}


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if path.name != "LOCK"
    }


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_ours_is_refused_and_left_alone(what: str, tmp_path: Path) -> None:
    used_directory(tmp_path)
    FOREIGN[what](tmp_path)
    before = tree(tmp_path)
    for _ in range(2):  # the lock is let go of, too
        with pytest.raises(ForeignFile):
            Store.open(RealDisk(tmp_path), SMALL)
    assert tree(tmp_path) == before


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(ForeignFile, match="is not empty"):
        Store.open(RealDisk(tmp_path), SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# --- opening again ---


def test_closing_and_opening_changes_nothing(tmp_path: Path) -> None:
    world = used_directory(tmp_path)
    for _ in range(3):
        store = Store.open(RealDisk(tmp_path), SMALL)
        assert view(store) == world.now
        store.close()
        store.close()


def test_the_recovery_report_counts() -> None:
    world = World()
    world.create()
    for seed in range(4):
        world.append(random.Random(seed))
    world.store.commit()
    reopened = Store.open(world.disk.crash(LoseAll()), SMALL)
    assert reopened.recovery.entries == 5
    assert reopened.recovery.records == len(world.now.partitions[1].records)
    assert reopened.recovery.partitions == 1
    assert reopened.recovery.torn_bytes == 0
    assert reopened.recovery.notes == []


def test_files_of_the_journal_do_not_pile_up() -> None:
    world = World()
    world.create()
    for seed in range(300):
        world.append(random.Random(seed))
        if world.store.wants_checkpoint():
            world.take_checkpoint()
    assert len(world.disk.list("journal")) <= 5
    for _ in range(10):
        world = world.check_recovered(world.disk.crash(KeepAll()))
        if world.store.wants_checkpoint():
            world.take_checkpoint()
    assert len(world.disk.list("journal")) <= 6


def test_fan_out_gives_each_partition_its_own_offsets() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    logs = [store.create_partition(name) for name in "abc"]
    store.append(value_batch(b"1", b"2"), logs[:1])
    store.append(value_batch(b"3", b"4"), logs)
    store.append(RecordBatch.scan(bytes(value_batch(b"5")), base_offset=0), logs[1:])
    assert [[record.value for record in read_all(log)] for log in logs] == [
        [b"1", b"2", b"3", b"4"],
        [b"3", b"4", b"5"],
        [b"3", b"4", b"5"],
    ]
    assert [view_log(log).next_offset for log in logs] == [4, 3, 3]


def test_a_segment_is_kept_by_the_names_of_its_fields() -> None:
    """Compiled or not: mypyc drops the options of a Struct, and both kinds of builds must read what
    the other wrote."""
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(Segment(7, 1, 2, 300, 4, 5, True)))
    assert isinstance(kept, dict)
    assert {name: kept[name] for name in ("partition", "base_offset", "size", "sealed")} == {
        "partition": 7,
        "base_offset": 1,
        "size": 300,
        "sealed": True,
    }


# --- terms ---


def test_terms_are_there_after_a_restart_and_in_snapshots() -> None:
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    leader = directory.identity(disk)
    assert len(leader) == 16
    began = [store.begin_term(3, leader, 1000)]
    store.create_partition("t")
    began.append(store.begin_term(7, leader, 2000))
    store.commit()
    for _ in range(3):
        store = Store.open(disk := disk.crash(LoseAll()), SMALL)
        assert store.state.terms == [(3, began[0]), (7, began[1])]
        assert store.state.term == 7
        assert directory.identity(disk) == leader
        store.checkpoint()
    with pytest.raises(AssertionError):
        store.begin_term(7, leader, 3000)


def test_a_node_that_is_alone_has_no_term() -> None:
    disk = MemoryDisk()
    store = Store.open(disk, SMALL)
    store.checkpoint()
    assert (store.state.term, store.state.terms) == (0, [])
    other = MemoryDisk()
    Store.open(other, SMALL).close()
    assert directory.identity(other) != directory.identity(disk)


# --- what a checkpoint's entry says ---


def test_what_was_released_stays_so_though_the_checkpoint_was_interrupted() -> None:
    """Its snapshot never came to be; its entry says where the logs begin and end."""
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    log = store.create_partition("queue")
    store.append(value_batch(b"a", b"b", b"c"), [log])
    store.append_transient(value_batch(b"d"), log)
    store.release(log, 2)
    store.begin_checkpoint()
    store.commit()
    left = Store.open(disk.crash(LoseAll()), SMALL).logs[log.id]
    assert (left.start_offset, left.next_offset) == (2, 4)
    assert [each.value for each in read_all(left)] == [b"c"]


def test_a_checkpoint_without_anything_to_say_is_as_short_as_before() -> None:
    assert encode_checkpoint([]) == b""
    said = [(1, 2, 3), (4, 5, 6)]
    for digest in (b"", b"8 bytes!"):
        assert decode_checkpoint(encode_checkpoint(said, digest)) == (said, digest)
    for length in range(0, 200, 8):
        # A mended journal has such entries for those that are lost.
        assert decode_checkpoint(bytes(length)) == ([], b"")
