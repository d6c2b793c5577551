"""The lake without a JVM: files, commits, and what happens when they are done twice."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from deltalake import DeltaTable

from braidmq.model.errors import NotFound
from braidmq.pipeline.columns import SCHEMA
from braidmq.pipeline.errors import BadOption, StaleCheckpoint
from braidmq.pipeline.lake.source import LakeDataSource, LakeWriter
from braidmq.pipeline.source import MESSAGES

THEN = datetime(2021, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": b"%d" % at,
                "headers": [{"key": "a", "value": b"1"}],
                "topic": "orders",
                "partition": 0,
                "offset": at,
                "timestamp": THEN,
                "priority": 3,
                "delivery": None,
                "trace_context": None,
            }
            for at in range(first, first + count)
        ],
        schema=SCHEMA,
    )


def writer(path: Path, overwrite: bool = False, **options: Any) -> LakeWriter:
    texts = {name: str(value) for name, value in options.items()}
    found = LakeDataSource({"path": str(path), **texts}).writer(MESSAGES, overwrite)
    assert isinstance(found, LakeWriter)
    return found


def read(path: Path) -> list[dict[str, Any]]:
    source = LakeDataSource({"path": str(path)})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(
        (row for batch in batches for row in batch.to_pylist()), key=lambda r: r["offset"]
    )


def files(path: Path) -> int:
    return len(list(path.glob("*.parquet")))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    lake = writer(tmp_path / "lake")
    lake.commit([lake.write(iter([rows(3)])), lake.write(iter([rows(2, 3)])), None])
    assert read(tmp_path / "lake") == rows(5).to_pylist()


def test_nobody_sees_files_before_the_commit(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.commit([first.write(iter([rows(1)]))])
    second = writer(tmp_path)
    written = second.write(iter([rows(4, 1)]))
    assert len(read(tmp_path)) == 1
    second.commit([written])
    assert len(read(tmp_path)) == 5


def test_a_batch_done_again_adds_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        lake = writer(tmp_path, applicationId="app", batchId=7)
        lake.commit([lake.write(iter([rows(4)]))])
    assert len(read(tmp_path)) == 4
    assert files(tmp_path) == 1
    assert DeltaTable(tmp_path).transaction_version("app") == 7


def test_an_abort_after_a_commit_that_took_effect_keeps_the_files(tmp_path: Path) -> None:
    lake = writer(tmp_path)
    message = lake.write(iter([rows(4)]))
    lake.commit([message])
    lake.abort([message, None])
    assert len(read(tmp_path)) == 4


def test_an_abort_removes_what_is_in_no_commit(tmp_path: Path) -> None:
    lake = writer(tmp_path)
    lake.abort([lake.write(iter([rows(4)]))])
    assert files(tmp_path) == 0


def test_numbers_that_begin_again_are_refused(tmp_path: Path) -> None:
    later = writer(tmp_path, applicationId="app", batchId=7)
    later.commit([later.write(iter([rows(1)]))])
    again = writer(tmp_path, applicationId="app", batchId=0)
    with pytest.raises(StaleCheckpoint, match="batch 7"):
        again.commit([again.write(iter([rows(1)]))])
    new = writer(tmp_path, applicationId="app", applicationEpoch=1, batchId=0)
    new.commit([new.write(iter([rows(1, 1)]))])
    assert len(read(tmp_path)) == 2


def test_overwriting_replaces_all_in_one_commit(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.commit([first.write(iter([rows(5)]))])
    second = writer(tmp_path, overwrite=True)
    second.commit([second.write(iter([rows(2)]))])
    assert len(read(tmp_path)) == 2


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="path is needed"):
        LakeDataSource({})
    with pytest.raises(BadOption, match="relative"):
        LakeDataSource({"path": "lake"})
    place = str(tmp_path / "none")
    for name in ("partitionBy", "applicationId", "checkpointInterval"):
        with pytest.raises(BadOption, match=f"{name} is for writing"):
            LakeDataSource({"path": place, name: "7"}).reader(MESSAGES)
    for given, said in (
        ({"version": "1"}, "version is for reading and overwriting"),
        ({"timestamp": "2026-01-31"}, "timestamp is for reading"),
    ):
        with pytest.raises(BadOption, match=said):
            LakeDataSource({"path": place, **given}).writer(MESSAGES, False)
    with pytest.raises(BadOption, match="batchId is for"):
        LakeDataSource({"path": place, "batchId": "1"}).streamWriter(MESSAGES, False)
    with pytest.raises(NotFound, match="no lake"):
        LakeDataSource({"path": str(tmp_path / "none")}).schema()
