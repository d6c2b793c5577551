"""What a lake takes and refuses, partitions, statistics and checkpoints, as others see them too."""

import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")
pytest.importorskip("duckdb", reason="duckdb is not installed")

import duckdb
from deltalake import DeltaTable, Transaction, write_deltalake
from lake_tables import THEN, numbers, read, write

from braidmq.model.errors import NotFound
from braidmq.pipeline.errors import BadOption, LakeUnsupported, WrongSchema
from braidmq.pipeline.lake import files
from braidmq.pipeline.lake.options import LakeOptions, parse_lake_options
from braidmq.pipeline.lake.source import LakeDataSource, abort
from braidmq.pipeline.lake.table import DataFile


def actions(path: Path, version: int) -> list[dict[str, Any]]:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [json.loads(line)["add"] for line in lines if '"add"' in line]


# --- the schema ---


def test_another_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write(tmp_path, numbers(0, 3))
    with pytest.raises(WrongSchema, match="'n' is BIGINT in the lake, and STRING is written"):
        write(tmp_path, pa.table({"n": ["a", "b"]}))
    assert [row["n"] for row in read(tmp_path)] == [0, 1, 2]
    assert DeltaTable(tmp_path).version() == 0
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_type_that_others_changed_meanwhile_is_refused_with_the_commit(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    late = LakeDataSource({"path": str(tmp_path)}).writer(StructType().add("n", LongType()), False)
    message = late.write(iter(numbers(0, 3).to_batches()))
    write(tmp_path, pa.table({"n": ["a"]}))
    with pytest.raises(WrongSchema, match="STRING in the lake"):
        late.commit([message])
    late.abort([message])
    assert [row["n"] for row in read(tmp_path)] == ["a"]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_more_columns_are_refused_or_added(tmp_path: Path) -> None:
    write(tmp_path, numbers(0, 1))
    with pytest.raises(WrongSchema, match="no column extra"):
        write(tmp_path, numbers(1, 1, extra="x"))
    write(tmp_path, numbers(1, 1, extra="x"), options={"mergeSchema": "true"})
    assert read(tmp_path) == [{"n": 0, "extra": None}, {"n": 1, "extra": "x"}]
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2
    with pytest.raises(WrongSchema, match="'N' is written"):
        write(tmp_path, pa.table({"N": [1]}), options={"mergeSchema": "true"})


def test_columns_that_are_not_written_are_null(tmp_path: Path) -> None:
    write(tmp_path, numbers(0, 1, more="x"))
    write(tmp_path, numbers(1, 1))
    assert read(tmp_path) == [{"n": 0, "more": "x"}, {"n": 1, "more": None}]


def test_nulls_where_others_want_none_are_refused(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.int64())])
    write_deltalake(str(tmp_path), pa.table({"n": [1], "m": [2]}, schema=strict))
    with pytest.raises(WrongSchema, match="'n' may not be null, and it is not written"):
        write(tmp_path, pa.table({"m": [1]}))
    with pytest.raises(WrongSchema, match="'n' may not be null, and some rows have none"):
        write(tmp_path, pa.table({"n": pa.array([None], pa.int64()), "m": [1]}))
    write(tmp_path, pa.table({"n": [5], "m": [1]}))
    assert [row["n"] for row in read(tmp_path)] == [1, 5]


def test_what_delta_has_no_type_for_is_refused(tmp_path: Path) -> None:
    from pyspark.sql.types import DayTimeIntervalType, StructType

    schema = StructType().add("t", DayTimeIntervalType())
    with pytest.raises(WrongSchema, match="no type"):
        LakeDataSource({"path": str(tmp_path)}).writer(schema, False)


def test_every_type_of_delta_comes_back(tmp_path: Path) -> None:
    row = {
        "b": True,
        "i": 1,
        "d": Decimal("1.50"),
        "f": 1.5,
        "s": "x",
        "data": b"x",
        "day": date(2021, 1, 1),
        "at": THEN,
        "local": datetime(2021, 1, 1, 5),
        "list": [{"a": [1, None]}],
        "map": [("k", {"v": THEN})],
    }
    types = {"map": pa.map_(pa.string(), pa.struct([("v", pa.timestamp("us", "UTC"))]))}
    rows = pa.table({name: pa.array([value, None], types.get(name)) for name, value in row.items()})
    write(tmp_path, rows)
    write(tmp_path, rows)
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert [each for each in found if each["b"]] == [row, row]
    assert [each for each in read(tmp_path, by="") if each["b"]] == [row, row]


# --- partitions ---


def test_partitions_by_date_and_topic(tmp_path: Path) -> None:
    """Any text is a topic; the date is that of UTC."""
    names = ["orders", "a b:c/ü%=[x]", None]
    for at, name in enumerate(names):
        rows = numbers(at, 2, timestamp=THEN + timedelta(hours=at))
        rows = rows.append_column("topic", pa.array([name] * 2, pa.string()))
        write(tmp_path, rows, options={"partitionBy": "date,topic"})
    expected = [
        (at + more, names[at], date(2021, 3, 4 if at == 0 else 5))
        for at in range(3)
        for more in range(2)
    ]
    found = [(row["n"], row["topic"], row["date"]) for row in read(tmp_path)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    table = DeltaTable(tmp_path)
    assert table.metadata().partition_columns == ["date", "topic"]
    theirs = table.to_pyarrow_table().to_pylist()
    seen = [(row["n"], row["topic"], row["date"]) for row in theirs]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)
    assert actions(tmp_path, 1)[0]["partitionValues"] == {"date": "2021-03-05", "topic": names[1]}


def test_partitions_of_a_table_are_kept(tmp_path: Path) -> None:
    write(tmp_path, numbers(0, 1, topic="a"), options={"partitionBy": "topic"})
    write(tmp_path, numbers(1, 1, topic="b"))
    assert [row["topic"] for row in read(tmp_path)] == ["a", "b"]
    with pytest.raises(WrongSchema, match="partitioned by topic, not n"):
        write(tmp_path, numbers(2, 1, topic="b"), options={"partitionBy": "n"})
    with pytest.raises(WrongSchema, match="no column 'day'"):
        write(tmp_path / "new", numbers(2, 1), options={"partitionBy": "day"})
    with pytest.raises(WrongSchema, match="no type to partition by"):
        write(tmp_path / "new", numbers(2, 1, x=1.5), options={"partitionBy": "x"})


def test_many_partitions_with_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(files, "GROUP_BYTES", 100)
    rows = pa.table({"n": range(40), "k": [at % 5 for at in range(40)]})
    pieces = pa.Table.from_batches(rows.to_batches(max_chunksize=8))
    write(tmp_path, pieces, options={"partitionBy": "k"})
    assert [(row["n"], row["k"]) for row in read(tmp_path)] == [(at, at % 5) for at in range(40)]


def test_partitioned_tables_of_others(tmp_path: Path) -> None:
    """Values of partitions are in the log and not in the files."""
    rows = pa.table(
        {
            "n": [1, 2, 3],
            "day": [date(2021, 1, 1), date(2021, 1, 2), None],
            "at": pa.array([THEN, THEN, None], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(str(tmp_path), rows, partition_by=["day", "at"])
    assert read(tmp_path) == rows.to_pylist()


# --- what others see ---


def test_statistics_are_in_the_log(tmp_path: Path) -> None:
    long = "x" * 40
    rows = pa.table(
        {
            "n": [3, 1, None],
            "text": ["b", long, None],
            "at": [THEN, THEN + timedelta(microseconds=1), None],
            "day": [date(2021, 1, 1), None, date(2020, 1, 1)],
            "f": [1.5, -2.0, None],
            "data": [b"1", None, None],
        }
    )
    write(tmp_path, rows)
    (action,) = actions(tmp_path, 0)
    found = json.loads(action["stats"])
    assert found["numRecords"] == 3
    assert found["nullCount"] == {"n": 1, "text": 1, "at": 1, "day": 1, "f": 1, "data": 2}
    assert found["minValues"] == {
        "n": 1,
        "text": "b",
        "at": "2021-03-04T23:06:07.089000Z",
        "day": "2020-01-01",
        "f": -2.0,
    }
    assert found["maxValues"] == {
        "n": 3,
        "text": "x" * 32 + "\U0010ffff",
        "at": "2021-03-04T23:06:07.089001Z",
        "day": "2021-01-01",
        "f": 1.5,
    }
    dataset = DeltaTable(tmp_path).to_pyarrow_dataset()
    import pyarrow.compute as pc

    assert dataset.to_table(filter=pc.field("text") == long).num_rows == 1


def test_deltalake_pyarrow_and_duckdb_read_it(tmp_path: Path) -> None:
    for at in range(3):
        rows = numbers(10 * at, 10, topic=f"t{at}", timestamp=THEN)
        write(tmp_path, rows, options={"partitionBy": "date,topic"})
    table = DeltaTable(tmp_path)
    expected = {"t0": 45, "t1": 145, "t2": 245}

    def sums(rows: pa.Table) -> dict[str, int]:
        grouped = rows.group_by("topic").aggregate([("n", "sum")]).to_pylist()
        return {row["topic"]: row["n_sum"] for row in grouped}

    assert sums(table.to_pyarrow_table()) == expected
    assert sums(pq.read_table(str(tmp_path), partitioning="hive")) == expected
    listed = table.file_uris()
    query = "SELECT topic, sum(n) FROM read_parquet($files, hive_partitioning = true) GROUP BY 1"
    assert dict(duckdb.execute(query, {"files": listed}).fetchall()) == expected
    relation = duckdb.from_arrow(table.to_pyarrow_dataset())
    assert relation.filter("topic = 't1' AND date = DATE '2021-03-04'").count("*").fetchall() == [
        (10,)
    ]


def test_checkpoints_come_at_an_interval(tmp_path: Path) -> None:
    for at in range(7):
        write(tmp_path, numbers(at, 1), options={"checkpointInterval": "3"})
    made = sorted(path.name for path in (tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(name.partition(".")[0]) for name in made] == [2, 5]
    assert len(read(tmp_path)) == 7


def test_older_versions_are_read_by_number_and_time(tmp_path: Path) -> None:
    write(tmp_path, numbers(0, 1))
    write(tmp_path, numbers(1, 1))
    write(tmp_path, numbers(7, 1), overwrite=True)
    assert [row["n"] for row in read(tmp_path)] == [7]
    assert [row["n"] for row in read(tmp_path, version=1)] == [0, 1]
    for version, day in enumerate((1, 3, 5)):
        at_s = datetime(2026, 1, day, tzinfo=UTC).timestamp()
        os.utime(tmp_path / "_delta_log" / f"{version:020}.json", (at_s, at_s))
    assert [row["n"] for row in read(tmp_path, timestamp="2026-01-04")] == [0, 1]
    assert [row["n"] for row in read(tmp_path, timestamp="2026-01-02T08:00:00Z")] == [0]
    with pytest.raises(NotFound, match="no version 9"):
        read(tmp_path, version=9)
    with pytest.raises(BadOption, match="can't both"):
        parse_lake_options({"path": "/x", "version": "1", "timestamp": "2026-01-01"})


# --- what would be read or written wrongly ---


def test_mapped_columns_and_deletion_vectors_are_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 40))
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    plain = log.read_text()

    def become(mapping: str, features: list[str], vector: dict[str, Any] | None) -> None:
        lines = []
        for line in plain.splitlines():
            entry = json.loads(line)
            if "protocol" in entry:
                entry["protocol"] = {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": features,
                    "writerFeatures": features,
                }
            if "metaData" in entry and mapping:
                entry["metaData"]["configuration"] = {
                    "delta.columnMapping.mode": mapping,
                    "delta.columnMapping.maxColumnId": "1",
                }
                physical = {
                    "delta.columnMapping.id": 1,
                    "delta.columnMapping.physicalName": "col-1",
                }
                schema = json.loads(entry["metaData"]["schemaString"])
                schema["fields"][0]["metadata"] = physical
                entry["metaData"]["schemaString"] = json.dumps(schema)
            if "add" in entry and vector:
                entry["add"]["deletionVector"] = vector
            lines.append(json.dumps(entry))
        log.write_text("\n".join(lines))

    become("name", ["columnMapping"], None)
    with pytest.raises(LakeUnsupported, match="mapped"):
        read(tmp_path)
    # The example of Delta's specification: rows 3, 4, 7, 11, 18 and 29 in a vector of its own.
    inline = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    vector = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 44, "cardinality": 6}
    become("", ["deletionVectors"], vector)
    with pytest.raises(LakeUnsupported, match="deletion vectors"):
        read(tmp_path)
    become("", ["deletionVectors"], None)
    assert len(read(tmp_path)) == 40


def test_rules_that_others_gave_their_table_are_not_broken(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 3))
    DeltaTable(tmp_path).alter.add_constraint({"small": "n < 10"})
    with pytest.raises(LakeUnsupported, match=r"constraints\.small"):
        write(tmp_path, numbers(100, 1))
    assert len(read(tmp_path)) == 3


# --- what is left behind ---


def test_a_task_that_fails_leaves_no_files(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    writer = LakeDataSource({"path": str(tmp_path)}).writer(
        StructType().add("n", LongType()), False
    )

    def rows() -> Any:
        yield from numbers(0, 5).to_batches()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="is gone"):
        writer.write(rows())
    assert not list(tmp_path.glob("*.parquet"))


def test_an_abort_keeps_what_was_committed_and_compacted_since(tmp_path: Path) -> None:
    """Older versions list these files still."""
    lake = LakeDataSource({"path": str(tmp_path), "applicationId": "a", "batchId": "0"})
    from pyspark.sql.types import LongType, StructType

    writer = lake.writer(StructType().add("n", LongType()), False)
    messages = [writer.write(iter(numbers(at, 1).to_batches())) for at in range(3)]
    writer.commit(messages)
    DeltaTable(tmp_path).optimize.compact()
    writer.abort(messages)
    assert len(read(tmp_path, version=0)) == 3


def test_an_abort_that_can_not_see_the_log_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    (tmp_path / "part.parquet").write_text("x")
    abort(LakeOptions(path=str(tmp_path)), [DataFile("part.parquet", 1, 1)], Transaction("a", 0))
    assert (tmp_path / "part.parquet").exists()


def test_options_of_object_stores(tmp_path: Path) -> None:
    found = parse_lake_options({"path": "s3://b/x/", "Storage.AWS_REGION": "eu"})
    assert (found.path, found.storage) == ("s3://b/x", {"aws_region": "eu"})
    assert "eu" not in repr(found)
    with pytest.raises(BadOption, match="for object stores"):
        parse_lake_options({"path": "/x", "storage.aws_region": "eu"})
