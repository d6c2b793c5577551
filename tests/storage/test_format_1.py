"""Directories of format 1, made by the BraidMQ before format 2: they open, and go on in format 2.

``fixtures`` has one that was closed and one that was killed, with a queue, a log with two
subscriptions, a topic in memory, a transaction that is decided and one that is open, two
checkpoints, groups of every size in four journal files, and what was in them by that code.
"""

import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from worlds import files, read_all, value_batch, view

from braidmq.engine.engine import Engine
from braidmq.model.errors import CorruptData, ForeignFile
from braidmq.storage import directory, journal, snapshot
from braidmq.storage.journal_entry import ENTRY_HEADER_SIZE
from braidmq.storage.repair import skip_damaged_entry
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, KeepAll, LoseAll, Random

HERE = Path(__file__).parent / "fixtures"
SETTINGS = StorageSettings(
    segment_bytes_max=4096, index_interval_bytes=256, journal_file_bytes=32768, tail_bytes_max=4096
)
NOW = 1_700_000_004_000
NAMES = ["killed", "closed"]


def disk_of(name: str) -> FaultyDisk:
    disk = FaultyDisk()
    with tarfile.open(HERE / f"format-1-{name}.tar.xz") as tar:
        for each in tar:
            content = tar.extractfile(each)
            assert content is not None
            disk.make_directory(str(Path(each.name).parent))
            file = disk.open(each.name, create=True)
            file.write(content.read(), 0)
            file.sync()
            file.close()
    for path in ("", "journal", "snapshots", "segments"):
        disk.sync_directory(path)
    return disk


def expected() -> dict[str, Any]:
    return dict(json.loads((HERE / "format-1.json").read_text()))


def shown(store: Store) -> dict[str, Any]:
    found = view(store)
    return {
        "partitions": {
            str(number): {
                "label": each.label,
                "start": each.start_offset,
                "next": each.next_offset,
                "records": [
                    [at, zlib.crc32(repr(tuple(row)).encode())] for at, row in each.records
                ],
            }
            for number, each in found.partitions.items()
        },
        "acknowledged": {
            f"{subscription}/{partition}": sorted(offsets)
            for (subscription, partition), offsets in found.acknowledged.items()
        },
        "facts": {key: value.decode() for key, value in found.facts.items()},
    }


def open_engine(disk: FaultyDisk) -> Engine:
    return Engine.open(disk, NOW, SETTINGS)


def check(engine: Engine) -> None:
    was = expected()
    found = shown(engine.store)
    for each in (was, found):
        # Of a queue a checkpoint leaves out what all have acknowledged.
        gone, queue = each["acknowledged"]["1/1"], each["partitions"]["1"]
        queue["records"] = [row for row in queue["records"] if row[0] not in gone]
    assert {key: was[key] for key in found} == found
    topics = {
        f"{topic.namespace}/{topic.name}": {
            name: [
                each.depth,
                [
                    [*map(list, view.state.settled.ranges_above_floor()), view.state.settled.floor]
                    for view in each.views
                ],
            ]
            for name, each in topic.subscriptions.items()
        }
        for topic in engine.state.topics.values()
    }
    assert topics == was["topics"]


def format_of(disk: FaultyDisk) -> int:
    found = msgspec.json.decode(disk.open("FORMAT").read(99, 0))
    return int(found["format"])


def version_of(disk: FaultyDisk, epoch: int) -> int:
    return int(struct.unpack_from("<I", disk.open(journal.file_name(epoch)).read(99, 0), 8)[0])


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_goes_on_in_format_2(name: str) -> None:
    disk = disk_of(name)
    assert format_of(disk) == 1
    engine = open_engine(disk)
    check(engine)
    assert format_of(disk) == directory.FORMAT == 2
    before = engine.store.journal.next_lsn
    assert before > 100
    engine.store.change([("facts", "new", b"1")])
    engine.store.commit()
    engine.store.change([("facts", "new", None)])
    engine.store.commit()
    assert engine.store.journal.next_lsn == before + 2, "marks take no number any more"
    engine.close()
    assert version_of(disk, engine.store.journal.epoch) == 2
    # Now files of both are read, one after the other; and then only those of the second.
    engine = open_engine(disk)
    check(engine)
    for _ in range(2):
        engine.store.checkpoint()
    check(engine)
    engine.close()
    assert {version_of(disk, epoch) for epoch in journal.journal_epochs(disk)} == {2}
    engine = open_engine(disk)
    check(engine)
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_from_the_older_of_its_snapshots(name: str) -> None:
    disk = disk_of(name)
    disk.remove(snapshot.names(disk)[0])
    engine = open_engine(disk)
    check(engine)
    engine.close()


@pytest.mark.parametrize("crash", [LoseAll(), KeepAll(), *map(Random, range(20))], ids=repr)
def test_a_crash_while_it_is_carried_over(crash: Any) -> None:
    disk = disk_of("killed")
    open_engine(disk).store.commit()
    left = disk.crash(crash)
    engine = open_engine(left)
    check(engine)
    engine.close()


def test_a_first_group_of_format_2_that_is_cut_at_any_byte() -> None:
    whole = 0
    for at in range(300):
        disk = disk_of("killed")
        engine = open_engine(disk)
        log = next(iter(engine.store.logs.values()))
        end = log.next_offset
        engine.store.commit()
        engine.store.append(value_batch(b"new"), [log])
        for write in engine.store.journal.begin_commit():
            write.file.write_all(write.pieces, write.position)
        left = open_engine(disk.crash(CutAt(at))).store
        found = [each.value for each in read_all(left.logs[log.id], start=end)]
        assert found == [b"new"] * (found != [])
        assert whole <= len(found), "more of it can't be less"
        whole = len(found)
    assert whole


def entries_of_format_1(disk: FaultyDisk) -> list[tuple[str, int, int, int]]:
    """Path, start, end and kind of all that has a number in files the newest snapshot needs."""
    first = snapshot.load(disk, snapshot.names(disk)[0]).first_epoch
    found = []
    for epoch in journal.journal_epochs(disk):
        if epoch < first:
            continue
        path = journal.file_name(epoch)
        data = disk.open(path).map()
        salt = journal.check_file_header(path, data, epoch)
        at = journal.ENTRIES_START
        while journal.first_lsn(data, at, salt):
            length, _, kind = struct.unpack_from("<IHB", data, at + 4)
            found.append((path, at, at + length, kind))
            at += length
    return found


def test_damage_is_found_and_a_refused_directory_stays_in_format_1() -> None:
    """Every entry and every mark but those of the last group: nothing says that it was on disk."""
    entries = entries_of_format_1(disk_of("closed"))
    for path, start, _, _ in entries[:-1]:
        disk = disk_of("closed")
        disk.flip_bit(path, start + 17)
        before = files(disk)
        with pytest.raises(CorruptData) as caught:
            open_engine(disk)
        assert (caught.value.file, caught.value.position) == (path, start)
        assert files(disk) == before


def test_a_damaged_journal_of_format_1_is_mended() -> None:
    """One entry, mark or roll at a time: all the others are read again."""
    for path, start, _, kind in entries_of_format_1(disk_of("closed"))[:-1]:
        disk = disk_of("closed")
        disk.flip_bit(path, start + ENTRY_HEADER_SIZE - 20)
        dropped = skip_damaged_entry(disk)
        assert dropped is not None
        assert (dropped.file, dropped.start) == (path, start)
        assert dropped.first_lsn == dropped.last_lsn
        assert skip_damaged_entry(disk) is None
        if kind in (journal.Kind.MARK, journal.Kind.ROLL):
            engine = open_engine(disk)
            check(engine)
            engine.close()
        else:
            open_engine(disk).close()


def test_what_only_a_newer_one_reads_is_refused() -> None:
    disk = disk_of("closed")
    file = disk.open("FORMAT")
    size = file.size()
    file.write(b'{"product":"braidmq","format":3}'.ljust(size), 0)
    file.close()
    with pytest.raises(ForeignFile, match="says format 3, this BraidMQ reads 2"):
        open_engine(disk)


def test_the_fixtures_are_small() -> None:
    assert sum(each.stat().st_size for each in HERE.iterdir()) < 32_768
