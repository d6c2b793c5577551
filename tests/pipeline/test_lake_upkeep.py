"""Small files into large ones, and what no version needs any more out of the way."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from deltalake import DeltaTable
from lake_tables import numbers, read, write

from braidmq.cli.app import main
from braidmq.pipeline.lake.frames import STAGING

LONG_AGO_S = time.time() - 30 * 86400


def age(path: Path) -> None:
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def lake(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lake", *arguments])
    assert (ended.value.code or 0) == code


def test_optimize_changes_files_and_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at in range(6):
        options = {"partitionBy": "topic", "applicationId": "app", "batchId": str(at)}
        write(tmp_path, numbers(at, 1, topic=f"t{at % 2}"), options=options)
    before = read(tmp_path)
    lake("optimize", str(tmp_path))
    assert "6 files became 2" in capsys.readouterr().out
    assert read(tmp_path) == before
    assert read(tmp_path, version=5) == before
    table = DeltaTable(tmp_path)
    assert len(table.file_uris()) == 2
    log = (tmp_path / "_delta_log" / f"{table.version():020}.json").read_text()
    changes = [json.loads(line) for line in log.splitlines()]
    parts = [each.get("add") or each.get("remove") for each in changes]
    assert {each["dataChange"] for each in parts if each} == {False}
    assert table.transaction_version("app") == 5
    lake("info", str(tmp_path), "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["files"], told["rows"], told["partitioned_by"]) == (2, 6, ["topic"])


def test_vacuum_takes_what_is_old_and_in_no_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, numbers(0, 3))
    (first,) = tmp_path.glob("*.parquet")
    age(first)
    write(tmp_path, numbers(5, 1), overwrite=True)
    for name in ("failed.parquet", "running.parquet"):
        pq.write_table(pa.table({"n": [1]}), tmp_path / name)
    age(tmp_path / "failed.parquet")
    for name in ("died", "runs"):
        (tmp_path / STAGING / name).mkdir(parents=True)
        (tmp_path / STAGING / name / "part.parquet").write_text("x")
    age(tmp_path / STAGING / "died" / "part.parquet")
    age(tmp_path / STAGING / "died")
    place = tmp_path / "_braid_checkpoint" / "0"
    place.parent.mkdir()
    place.write_text("the stream's place")
    age(place)

    lake("vacuum", str(tmp_path), "--dry-run")
    gone = [f"{STAGING}/died", "failed.parquet"]
    assert capsys.readouterr().out.split() == gone
    assert (tmp_path / "failed.parquet").exists()
    lake("vacuum", "--yes", str(tmp_path))
    assert capsys.readouterr().out.split() == gone
    assert not (tmp_path / "failed.parquet").exists()
    assert not (tmp_path / STAGING / "died").exists()
    assert (tmp_path / "running.parquet").exists()
    assert (tmp_path / STAGING / "runs" / "part.parquet").exists()
    assert place.exists()
    # Replaced a moment ago, whatever the age of the file: older versions are read for a week.
    assert len(read(tmp_path, version=0)) == 3


def test_a_short_retention_has_to_be_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, numbers(0, 3))
    write(tmp_path, numbers(5, 1), overwrite=True)
    lake("vacuum", "--yes", str(tmp_path), "--retention", "0", code=1)
    assert "--short" in capsys.readouterr().err
    lake("vacuum", "--yes", str(tmp_path), "--retention", "999", code=1)
    assert len(read(tmp_path, version=0)) == 3
    lake("vacuum", "--yes", str(tmp_path), "--retention", "0", "--short")
    assert [row["n"] for row in read(tmp_path)] == [5]
    assert len(list(tmp_path.glob("*.parquet"))) == 1
