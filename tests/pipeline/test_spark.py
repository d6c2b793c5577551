"""The data source in a real Spark: found by name, read as batches and as streams."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from braid_topics import Topics, wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

pytestmark = pytest.mark.timeout(400)


def source(spark: SparkSession, topics: Topics, **options: object):
    reader = spark.read.format("braid").option("url", topics.node.http_url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader


def streaming(spark: SparkSession, topics: Topics, **options: object) -> DataFrame:
    reader = spark.readStream.format("braid").option("url", topics.node.http_url)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, str(value))
    return reader.load()


@pytest.fixture(scope="module")
def filled(topics: Topics) -> str:
    topic = topics.create()
    topics.fill(topic, 5000)
    wait_until(lambda: topics.sealed(topic) > 1)
    return topic


def test_a_batch(spark, topics, filled):
    found = source(spark, topics, topic=filled, splitBytes="200k").load()
    counted = found.agg(
        f.count("*"),
        f.count_distinct("partition", "offset"),
        f.min(f.length("value")),
        f.count_distinct("key"),
    ).collect()[0]
    assert tuple(counted) == (5000, 5000, 200, 7)
    first = found.where("partition = 0 and offset = 0").collect()[0]
    assert first["topic"] == filled
    assert first["delivery"]["protocol"] == "native"
    wait_until(lambda: all(filled not in str(each["positions"]) for each in topics.leases()))


def test_filters_reach_the_source(spark, topics, filled):
    now = datetime.now(UTC)
    found = source(spark, topics, topic=filled, pushFilters="true").load()
    wanted = found.where((f.col("partition") == 1) & (f.col("offset") < 100))
    assert wanted.count() == 100
    by_key = found.where(f.col("key") == f.lit(b"key-3"))
    assert by_key.count() == sum(at % 7 == 3 for at in range(5000))
    assert found.where(f.col("timestamp") > f.lit(now)).count() == 0


def test_typed_and_corrupt(spark, topics):
    topic = topics.create(partitions=1)
    topics.publish(topic, [{"value": '{"id": 1, "at": "2026-01-02T03:04:05Z"}'}, {"value": "bad"}])
    reader = source(spark, topics, topic=topic, format="json")
    found = reader.schema("id BIGINT, at TIMESTAMP, _offset BIGINT, _corrupt STRING").load()
    rows = [tuple(row) for row in found.orderBy("_offset").collect()]
    assert [(row[0], row[2], row[3]) for row in rows] == [(1, 0, None), (None, 1, "bad")]


def test_a_table(spark, topics, filled):
    found = source(spark, topics, table="depth").load()
    assert found.where(f.col("topic") == filled).select("published").collect()[0][0] == 5000


def test_errors_say_what_to_do(spark, topics):
    with pytest.raises(Exception, match="there is no topic 'missing'"):
        source(spark, topics, topic="missing").load().count()
    with pytest.raises(Exception, match="no option 'topik'"):
        source(spark, topics, topic="a", topik="b").load()


def test_available_now_and_again_from_the_checkpoint(spark, topics, tmp_path: Path):
    topic = topics.create()
    topics.fill(topic, 2000)

    def run() -> int:
        query = (
            streaming(spark, topics, topic=topic, maxRecordsPerTrigger=900, group="nightly")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        return sum(each["numInputRows"] for each in query.recentProgress)

    assert run() == 2000
    topics.fill(topic, 300)
    assert run() == 300
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.select("partition", "offset").distinct().count() == out.count() == 2300
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    kept = json.loads(newest.read_text().splitlines()[-1])
    assert kept["version"] == 2
    assert sum(kept["topics"][topic].values()) == 2300
    # What Spark reports as done lags one batch behind.
    shown = topics.api.get(f"/v1/topics/{topic}/subscriptions/nightly").json()
    assert 0 <= shown["lag"] <= 900


def test_a_running_stream_sees_what_comes(spark, topics):
    topic = topics.create()
    topics.fill(topic, 100)
    query = (
        streaming(spark, topics, topic=topic)
        .writeStream.format("memory")
        .queryName("seen")
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
        assert spark.table("seen").count() == 100
        assert any(topic in str(each["positions"]) for each in topics.leases())
        topics.fill(topic, 50)
        wait_until(lambda: spark.table("seen").count() == 150, 120)
    finally:
        query.stop()
    wait_until(lambda: all(topic not in str(each["positions"]) for each in topics.leases()))
