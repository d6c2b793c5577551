"""Lakes whose rows stay in the JVM, beside the same through ``format("braid_lake")``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from lake_tables import numbers, read

from braidmq.pipeline import lake
from braidmq.pipeline.errors import LakeVacuumed, StaleCheckpoint, WrongSchema
from braidmq.pipeline.lake.frames import STAGING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

TOPICS = ["orders", "a b:c/ü%=[x]{y},*", ""]


def messages(spark: "SparkSession", count: int = 30) -> "DataFrame":
    names = ", ".join(f"'{name}'" for name in TOPICS)
    return spark.range(count).selectExpr(
        "id AS n",
        f"element_at(array({names}), CAST(id % 3 AS INT) + 1) AS topic",
        "timestamp_millis(1614898799000 + id * 1000) AS timestamp",
    )


def rows(frame: "DataFrame") -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["n"])


def test_partitions_are_written_read_and_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    # 22:59:59 UTC and later; the date in a zone to the east is the next.
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert lake.write(messages(spark), str(tmp_path), partitionBy="date,topic") == 30
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    mine = rows(lake.read(spark, str(tmp_path)))
    assert len(mine) == 30
    assert {str(row["date"]) for row in mine} == {"2021-03-04"}
    assert [row["topic"] for row in mine[:3]] == [*TOPICS[:2], None]
    through_python = rows(spark.read.format("braid_lake").load(str(tmp_path)))
    assert through_python == mine
    theirs = DeltaTable(tmp_path).to_pyarrow_table(columns=["n", "topic"]).to_pylist()
    assert sorted((row["n"], row["topic"]) for row in theirs if row["topic"]) == [
        (row["n"], row["topic"]) for row in mine if row["topic"]
    ]
    found = lake.read(spark, str(tmp_path)).where("topic = 'orders'")
    assert found.count() == 10
    assert len(found.select("_metadata.file_path").distinct().collect()) <= 2
    assert not list((tmp_path / STAGING).iterdir())
    log = (tmp_path / "_delta_log" / f"{0:020}.json").read_text()
    added = [json.loads(line)["add"] for line in log.splitlines() if '"add"' in line]
    least = min(json.loads(each["stats"])["minValues"]["timestamp"] for each in added)
    assert least.startswith("2021-03-04T22:59:59")
    (file, *_) = tmp_path.rglob("date=*/**/*.parquet")
    assert pq.read_schema(file).field("timestamp").type.tz == "UTC"


def test_refusals_versions_and_batches(spark: "SparkSession", tmp_path: Path) -> None:
    place = str(tmp_path)
    frame = messages(spark, 3).select("n")
    for batch in (0, 1, 1):
        lake.write(frame, place, applicationId="app", batchId=batch)
    assert lake.write(frame, place, applicationId="app", batchId=1) == 0
    with pytest.raises(StaleCheckpoint):
        lake.write(frame, place, applicationId="app", batchId=0)
    with pytest.raises(WrongSchema, match="STRING is written"):
        lake.write(frame.selectExpr("CAST(n AS STRING) AS n"), place)
    with pytest.raises(WrongSchema, match="no column more"):
        lake.write(frame.selectExpr("n", "1 AS more"), place)
    assert len(rows(lake.read(spark, place))) == 6
    assert len(rows(lake.read(spark, place, version=0))) == 3
    lake.write(frame.selectExpr("n", "1 AS more"), place, "overwrite", mergeSchema=True)
    assert rows(lake.read(spark, place)) == [{"n": at, "more": 1} for at in range(3)]
    with pytest.raises(Exception, match="gone wrong"):
        lake.write(
            spark.sql("SELECT assert_true(false, 'gone wrong') IS NULL AS n"), str(tmp_path / "x")
        )
    DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(LakeVacuumed, match="version 0"):
        lake.read(spark, place, version=0)


def test_directories_of_others_that_say_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """Delta's paths are free: values of partitions are those of the log."""
    for at, name in enumerate(("a", "b", None)):
        made = numbers(at, 1, k=at, topic=name or "x")
        if name is None:
            made = made.set_column(2, "topic", [[None]]).cast(numbers(0, 1, k=0, topic="x").schema)
        write_deltalake(str(tmp_path), made, mode="append", partition_by=["k", "topic"])
    for log in (tmp_path / "_delta_log").glob("*.json"):
        text = log.read_text()
        for line in text.splitlines():
            if '"add"' in line:
                old = json.loads(line)["add"]["path"]
                new = f"some{log.stem}.parquet"
                (tmp_path / old).rename(tmp_path / new)
                log.write_text(text.replace(old, new))
    expected = [{"n": at, "k": at, "topic": name} for at, name in enumerate(("a", "b", None))]
    assert rows(lake.read(spark, str(tmp_path))) == expected
    assert read(tmp_path) == expected


def test_a_stream_fills_it_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Through the JVM and through Python batches have the same names: each can go on for the
    other."""
    source, place = str(tmp_path / "source"), str(tmp_path / "lake")
    checkpoint = str(tmp_path / "checkpoint")
    messages(spark, 6).write.parquet(source)
    frame = spark.readStream.schema(messages(spark).schema).parquet(source)

    def run(writer: Any) -> None:
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()

    def forget() -> None:
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    run(lake.stream(frame, place))
    forget()
    run(lake.stream(frame, place))
    forget()
    run(frame.writeStream.format("braid_lake").option("path", place))
    assert [row["n"] for row in rows(lake.read(spark, place))] == list(range(6))
    assert DeltaTable(place).version() == 0
    with pytest.raises(WrongSchema):
        lake.stream(frame.selectExpr("CAST(n AS STRING) AS n"), place)


def test_reading_goes_on_while_it_is_compacted(spark: "SparkSession", tmp_path: Path) -> None:
    for at in range(3):
        lake.write(messages(spark, 3).selectExpr(f"n + {at * 3} AS n"), str(tmp_path))
    before = lake.read(spark, str(tmp_path))
    DeltaTable(tmp_path).optimize.compact()
    properties = CommitProperties(app_transactions=[Transaction("other", 1)])
    write_deltalake(str(tmp_path), numbers(100, 1), mode="append", commit_properties=properties)
    assert [row["n"] for row in rows(before)] == list(range(9))
    assert len(rows(lake.read(spark, str(tmp_path)))) == 10


def test_only_what_repeats_gets_dictionaries(spark: "SparkSession", tmp_path: Path) -> None:
    """Bodies do not, and take a sixth longer with them; inside of headers and maps neither."""
    frame = spark.range(100).selectExpr(
        "'t' AS topic",
        "binary('v') AS value",
        "array(named_struct('key', 'k', 'value', binary('v'))) AS headers",
        "map('k', binary('v')) AS more",
        "named_struct('inner', binary('v'), 'name', 'n') AS deep",
    )
    lake.write(frame.coalesce(1), str(tmp_path))
    (path,) = tmp_path.glob("*.parquet")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {each.path_in_schema for each in columns if each.has_dictionary_page} == {
        "topic",
        "headers.list.element.key",
        "more.key_value.key",
        "deep.name",
    }
