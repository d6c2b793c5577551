"""A lake after every kind of operation, as all who read it see it: deltalake, pyarrow, DuckDB,
Spark by itself, and we in both ways."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")
pytest.importorskip("duckdb", reason="duckdb is not installed")

import duckdb
from deltalake import DeltaTable
from lake_tables import THEN, batches, write

from braidmq.pipeline import lake
from braidmq.pipeline.errors import LakeVacuumed
from braidmq.pipeline.lake import upkeep
from braidmq.pipeline.lake.options import parse_lake_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

TOPICS = ["orders", "a b:c/ü%=[x]", None]
Rows = list[tuple[Any, ...]]


def rows(first: int, count: int, **more: str) -> pa.Table:
    numbers = range(first, first + count)
    made = {
        "n": pa.array(numbers, pa.int64()),
        "topic": pa.array([TOPICS[at % 3] for at in numbers]),
        "timestamp": pa.array(
            [THEN + timedelta(hours=at) for at in numbers], pa.timestamp("us", "UTC")
        ),
        "value": pa.array([b"%d" % at for at in numbers]),
    }
    return pa.table(made | {name: [text] * count for name, text in more.items()})


def seen(found: pa.Table | list[dict[str, Any]]) -> Rows:
    """What every reader has to agree on. ``date`` is there if it is a partition, ``extra`` when it
    was added."""
    given = found.to_pylist() if isinstance(found, pa.Table) else found
    listed = [
        (
            row["n"],
            row["topic"],
            row["timestamp"].timestamp(),
            bytes(row["value"]),
            str(row["date"]) if "date" in row else None,
            row.get("extra"),
        )
        for row in given
    ]
    return sorted(listed, key=lambda row: row[0])


def delta(path: Path, version: int | None) -> DeltaTable:
    return DeltaTable(str(path), version=version)


def by_deltalake(path: Path, version: int | None) -> Rows:
    return seen(delta(path, version).to_pyarrow_table())


def by_pyarrow(path: Path, version: int | None) -> Rows:
    """The files that the log lists, and their directories; nothing of Delta."""
    table = delta(path, version)
    files = table.file_uris()
    schema = pa.schema(table.schema())
    parts = table.metadata().partition_columns
    of_parts = pa.schema([schema.field(name) for name in parts])
    hive = ds.partitioning(of_parts, flavor="hive") if parts else None
    return seen(ds.dataset(files, schema, partitioning=hive, format="parquet").to_table())


def by_duckdb(path: Path, version: int | None) -> Rows:
    table = delta(path, version)
    query = "SELECT * FROM read_parquet($files, hive_partitioning = $hive, union_by_name = true)"
    hive = bool(table.metadata().partition_columns)
    given = {"files": table.file_uris(), "hive": hive}
    with duckdb.connect() as connection:
        return seen(connection.sql(query, params=given).to_arrow_table())


def by_duckdb_over_delta(path: Path, version: int | None) -> Rows:
    with duckdb.connect() as connection:
        connection.register("lake", delta(path, version).to_pyarrow_dataset())
        return seen(connection.sql("SELECT * FROM lake").to_arrow_table())


def by_us(path: Path, version: int | None) -> Rows:
    given = {} if version is None else {"version": str(version)}
    return seen([row for batch in batches(path, given) for row in batch.to_pylist()])


READERS = [by_deltalake, by_pyarrow, by_duckdb, by_duckdb_over_delta, by_us]


class Spark:
    def __init__(self, session: "SparkSession") -> None:
        self.session = session

    def _rows(self, frame: Any) -> Rows:
        return seen([row.asDict() for row in frame.collect()])

    def readers(self) -> list[Callable[[Path, int | None], Rows]]:
        return [self.by_lake_read, self.by_format, self.by_itself]

    def by_lake_read(self, path: Path, version: int | None) -> Rows:
        return self._rows(lake.read(self.session, str(path), version=_number(version)))

    def by_format(self, path: Path, version: int | None) -> Rows:
        reader = self.session.read.format("braid_lake").option("version", _number(version))
        return self._rows(reader.load(str(path)))

    def by_itself(self, path: Path, version: int | None) -> Rows:
        """As one does without us and without Delta's jars."""
        table = delta(path, version)
        reader = self.session.read.option("mergeSchema", "true").option("basePath", str(path))
        files = table.file_uris()
        return self._rows(reader.option("__globPaths__", "false").parquet(*files))

    def write(self, path: Path, table: pa.Table, mode: str, **options: Any) -> None:
        lake.write(self.session.createDataFrame(table), str(path), mode, **options)


def _number(version: int | None) -> str:
    return "latest" if version is None else str(version)


def by_python(path: Path, table: pa.Table, mode: str, **options: Any) -> None:
    write(path, table, mode == "overwrite", {name: str(each) for name, each in options.items()})


@pytest.mark.parametrize("partitions", ["none", "date,topic"])
@pytest.mark.parametrize("writer", ["spark", "python"])
def test_all_readers_see_the_same_after_each_operation(
    spark: "SparkSession", tmp_path: Path, partitions: str, writer: str
) -> None:
    over_jvm = Spark(spark)
    readers = [*READERS, *over_jvm.readers()]
    put = over_jvm.write if writer == "spark" else by_python
    path = tmp_path / "lake"
    options = parse_lake_options({"path": str(path)})
    has_date = partitions != "none"
    expected: dict[int, Rows] = {}
    there: Rows = []

    def made(table: pa.Table) -> Rows:
        found = seen(table)
        days = [str((THEN + timedelta(hours=row[0])).date()) for row in found]
        return [
            (*row[:4], day if has_date else None, row[5])
            for row, day in zip(found, days, strict=True)
        ]

    def has_all(reader: Callable[..., Rows], version: int | None) -> bool:
        """By itself Spark knows the columns that files have, and what directories say: deltalake
        escapes letters in names of those it makes, which Spark reads as other letters."""
        if reader != over_jvm.by_itself:
            return True
        shown = there if version is None else expected[version]
        escaped = any("%C3%BC" in each for each in delta(path, version).file_uris())
        return not escaped and (version is None or any(row[5] for row in shown))

    def check(what: str) -> None:
        expected[DeltaTable(path).version()] = there
        for reader in readers:
            if not has_all(reader, None):
                continue
            assert reader(path, None) == there, (what, reader.__name__)

    given = {"partitionBy": partitions, "checkpointInterval": "3"}
    put(path, rows(0, 7), "append", **given)
    there = made(rows(0, 7))
    check("it was created")
    put(path, rows(7, 5), "append")
    there = there + made(rows(7, 5))
    check("it was appended to")
    put(path, rows(12, 3, extra="more"), "append", mergeSchema=True)
    there = there + made(rows(12, 3, extra="more"))
    check("a column was added")
    for first in (15, 18):
        put(path, rows(first, 3), "append")
        there = there + made(rows(first, 3))
    assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    check("its log was summed up")
    assert upkeep.optimize(options, 1 << 20).removed > 1
    check("it was optimized")
    put(path, rows(30, 4, extra="new"), "overwrite")
    there = made(rows(30, 4, extra="new"))
    check("it was overwritten")
    for version, then in expected.items():
        for reader in readers:
            if not has_all(reader, version):
                continue
            assert reader(path, version) == then, (version, reader.__name__)
    assert upkeep.vacuum(options, 0, short=True)
    check("it was vacuumed")
    for refused in (by_us, over_jvm.by_lake_read):
        with pytest.raises(LakeVacuumed, match="are gone"):
            refused(path, 0)
    with pytest.raises(Exception, match="LakeVacuumed"):
        over_jvm.by_format(path, 0)
