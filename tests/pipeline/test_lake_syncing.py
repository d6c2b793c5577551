"""What a power cut leaves of a lake on a local disk: what was synced, and nothing else."""

import json
import os
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from deltalake import DeltaTable
from lake_tables import numbers, write

from braidmq.pipeline import lake
from braidmq.pipeline.lake import syncing, table
from braidmq.pipeline.lake.options import LakeOptions
from braidmq.pipeline.lake.upkeep import optimize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 2**20


@dataclass
class Disk:
    """The worst one there is: bytes of a file and names in a directory are there once synced."""

    root: Path
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    """By inode: of each name, its inode and whether it is a directory."""
    cuts: list["Disk"] = field(default_factory=list)
    """As it was before each sync."""

    def sync(self, handle: int) -> None:
        self.cuts.append(Disk(self.root, dict(self.files), dict(self.folders)))
        number = os.fstat(handle).st_ino
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_dir():
            self.folders[number] = {
                each.name: (each.inode(), each.is_dir()) for each in os.scandir(path)
            }
            return
        self.files[number] = path.read_bytes()
        if path.suffix == ".json":
            self._check_commit(path)

    def _check_commit(self, path: Path) -> None:
        """It may have come to the disk by itself, before: what it names must be there."""
        table = path.parent.parent
        for line in path.read_text().splitlines():
            if named := json.loads(line).get("add"):
                assert (table / unquote(named["path"])).stat().st_ino in self.files

    def restore(self, target: Path) -> Path:
        """What is there after a power cut."""
        self._restore(self.root.stat().st_ino, target)
        return target

    def _restore(self, number: int, target: Path) -> None:
        target.mkdir(parents=True)
        for name, (each, is_folder) in self.folders.get(number, {}).items():
            if is_folder:
                self._restore(each, target / name)
            else:
                (target / name).write_bytes(self.files.get(each, b""))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    root = tmp_path / "disk"
    root.mkdir()
    found = Disk(root)
    real = os.fsync

    def fsync(handle: int) -> None:
        found.sync(handle)
        real(handle)

    monkeypatch.setattr(syncing.os, "fsync", fsync)
    return found


def left(disk: Disk, target: Path) -> int:
    """Rows after a power cut; 0 where there is no table."""
    path = disk.restore(target) / "new" / "lake"
    return DeltaTable(path).to_pyarrow_table().num_rows if (path / "_delta_log").is_dir() else 0


def at_every_moment(disk: Disk, tmp_path: Path) -> list[int]:
    """Without what is the same as before."""
    found = [left(each, tmp_path / f"cut{at}") for at, each in enumerate([*disk.cuts, disk])]
    return [rows for rows, _ in groupby(found)]


def test_a_commit_is_there_with_all_its_rows(disk: Disk, tmp_path: Path) -> None:
    path = disk.root / "new" / "lake"
    options = {"partitionBy": "topic", "checkpointInterval": "2"}
    write(path, numbers(0, 3, topic="a/b"), options=options)
    write(path, numbers(3, 2, topic="a"))
    assert at_every_moment(disk, tmp_path) == [0, 3, 5]
    assert (path / "_delta_log" / "_last_checkpoint").exists()


def test_a_commit_of_a_frame_is_there_with_all_its_rows(
    disk: Disk, tmp_path: Path, spark: "SparkSession"
) -> None:
    path = disk.root / "new" / "lake"
    for count in (3, 4):
        frame = spark.range(count).selectExpr("id", "concat('t', id % 2) AS topic")
        lake.write(frame, str(path), partitionBy="topic")
    assert at_every_moment(disk, tmp_path) == [0, 3, 7]


def test_a_task_without_rows_may_be_the_first_of_a_new_table(disk: Disk, tmp_path: Path) -> None:
    path = disk.root / "new" / "lake"
    write(path, numbers(0, 0))
    assert left(disk, tmp_path / "none") == 0
    write(path, numbers(0, 3))
    assert left(disk, tmp_path / "after") == 3


def test_who_finds_a_batch_committed_syncs_it(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who committed it was killed in between; the batch is acknowledged after it is tried again."""
    path = disk.root / "new" / "lake"
    batch = {"applicationId": "a", "batchId": "0"}
    with monkeypatch.context() as killed:
        killed.setattr(table, "sync_log", lambda *_: None)
        write(path, numbers(0, 3), options=batch)
    assert left(disk, tmp_path / "killed") == 0
    write(path, numbers(0, 3), options=batch)
    assert left(disk, tmp_path / "after") == 3


def test_what_was_optimized_is_there(disk: Disk, tmp_path: Path) -> None:
    path = disk.root / "new" / "lake"
    for first in (0, 3):
        write(path, numbers(first, 3))
    assert optimize(LakeOptions(str(path)), MIB).added == 1
    assert left(disk, tmp_path / "after") == 6
