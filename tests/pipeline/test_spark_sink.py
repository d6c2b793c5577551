"""The sinks under a real Spark: batches, streams, and streams that do a batch again."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from braid_topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

COUNT = 3000


def stream(spark: "SparkSession", topics: Topics, topic: str, **options: Any) -> "DataFrame":
    reader = spark.readStream.format("braid").option("url", topics.node.http_url)
    return reader.options(startingOffsets="earliest", topic=topic, **options).load()


def run(frame: "DataFrame", checkpoint: Path, sink: str, **options: Any) -> None:
    writer = frame.writeStream.format(sink).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """As a driver that dies between the sink's commit and Spark's own leaves it."""
    commits = [each for each in (checkpoint / "commits").iterdir() if each.name.isdecimal()]
    last = max(commits, key=lambda each: int(each.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_a_stream_writes_each_message_once(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=3)
    sent = topics.fill(source, COUNT, size=20)
    options = {"url": topics.node.http_url, "topic": target}
    frame = stream(spark, topics, source, maxRecordsPerTrigger=2000).selectExpr(
        "key", "concat('derived ', decode(value, 'utf-8')) AS value", "headers"
    )
    run(frame, tmp_path, "braid", **options)
    forget_last_commit(tmp_path)
    run(frame, tmp_path, "braid", **options)
    found = topics.read(topic=target)
    assert sorted(row["value"].decode() for row in found) == sorted(
        f"derived {each['value']}" for each in sent
    )
    for key in {each["key"] for each in sent}:
        places = [
            int(row["value"].split()[1].split(b":")[0])
            for row in found
            if row["key"] == key.encode()
        ]
        assert places == sorted(places)


def test_a_stream_fills_a_lake_once_and_the_lake_fills_a_topic(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    topics.fill(source, COUNT, size=20)
    lake = str(tmp_path / "lake")
    run(stream(spark, topics, source), tmp_path / "checkpoint", "braid_lake", path=lake)
    forget_last_commit(tmp_path / "checkpoint")
    run(stream(spark, topics, source), tmp_path / "checkpoint", "braid_lake", path=lake)
    archived = spark.read.format("braid_lake").load(lake)
    assert archived.count() == COUNT
    ordered = archived.repartition(2, "partition").sortWithinPartitions("partition", "offset")
    ordered.write.format("braid").options(
        url=topics.node.http_url, topic=target, keepPartition="true"
    ).mode("append").save()
    same = ("partition", "key", "value", "headers", "timestamp")
    assert [[row[name] for name in same] for row in topics.read(topic=target)] == [
        [row[name] for name in same] for row in topics.read(topic=source)
    ]


def test_a_failing_task_leaves_nothing(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create(partitions=1)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(IF(id = 99, raise_error('no'), id) AS STRING) AS value"
    )
    with pytest.raises(Exception, match="no"):
        frame.write.format("braid").options(url=topics.node.http_url, topic=topic).mode(
            "append"
        ).save()
    assert topics.read(topic=topic) == []


def test_bad_input_is_said_before_anything_runs(spark: "SparkSession", topics: Topics) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value", "id AS amount")
    writer = frame.write.format("braid").options(url=topics.node.http_url, topic="t")
    with pytest.raises(Exception, match="messages have no column 'amount'"):
        writer.mode("append").save()
