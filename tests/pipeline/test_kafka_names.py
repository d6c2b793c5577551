"""Kafka's names for options and columns: a job moves here by its format and its address."""

import json
from pathlib import Path

import pyspark
import pytest
from braid_topics import Topics, drain, rows, through_json, wait_until
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from braidmq.model.errors import NotFound, OffsetOutOfRange
from braidmq.pipeline import source
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import parse_options
from braidmq.pipeline.source import BatchReader, BraidKafkaDataSource, StreamReader

EXAMPLE = "examples/src/main/python/sql/streaming/structured_kafka_wordcount.py"


def address(topics: Topics) -> str:
    return topics.node.http_url.removeprefix("http://")


def kafka(topics: Topics, **options: object) -> BraidKafkaDataSource:
    """Options as Spark gives them."""
    texts = {name.lower(): str(value) for name, value in options.items()}
    return BraidKafkaDataSource({"kafka.bootstrap.servers": address(topics), **texts})


def read(topics: Topics, **options: object) -> list[dict]:
    made = kafka(topics, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return rows(batch for part in reader.partitions() for batch in reader.read(part))


@pytest.fixture
def streams(topics: Topics):
    made: list[StreamReader] = []

    def make(**options: object) -> StreamReader:
        one = kafka(topics, **{"startingOffsets": "earliest", **options})
        made.append(one.streamReader(one.schema()))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="module")
def pair(topics: Topics) -> tuple[str, str]:
    first, second = topics.create(partitions=2), topics.create(partitions=1)
    for number in (0, 1):
        topics.publish(first, [{"value": f"{at}", "partition": number} for at in range(60)])
    topics.publish(second, [{"value": "x", "headers": {"a": "1"}, "key": "k"}] * 5)
    return first, second


def counts(found: list[dict]) -> dict[tuple[str, int], tuple[int, int]]:
    """By partition: the first offset, and how many."""
    places: dict[tuple[str, int], list[int]] = {}
    for row in found:
        places.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return {place: (min(offsets), len(offsets)) for place, offsets in places.items()}


def test_columns_are_those_of_kafka(topics, pair):
    schema = kafka(topics, subscribe=pair[1]).schema()
    assert isinstance(schema, StructType)
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    (first, *_) = read(topics, subscribe=pair[1], includeHeaders="true")
    assert (first["key"], first["value"], first["timestampType"]) == (b"k", b"x", 1)
    assert list(first)[-1] == "headers"
    assert first["headers"] == [{"key": "a", "value": b"1"}]
    names = kafka(topics, subscribe=pair[1], columns="timestampType,value").schema().names
    assert names == ["timestampType", "value"]
    ours = topics.source(topic=pair[1], includeHeaders="false").schema()
    assert "headers" not in ours.names
    assert "headers" in topics.source(topic=pair[1], includeHeaders="true").schema().names


def test_many_topics_and_offsets_of_each_partition(topics, pair):
    """The second example of a batch in Spark's guide."""
    first, second = pair
    found = read(
        topics,
        subscribe=f"{first},{second}",
        startingOffsets=json.dumps({first: {"0": 23, "1": -2}, second: {"0": -2}}),
        endingOffsets=json.dumps({first: {"0": 50, "1": -1}, second: {"0": -1}}),
    )
    assert counts(found) == {(first, 0): (23, 27), (first, 1): (0, 60), (second, 0): (0, 5)}


def test_a_pattern_and_assigned_partitions(topics, pair):
    first, second = pair
    assert len(read(topics, subscribePattern=f"{first}|{second}")) == 125
    found = read(topics, assign=json.dumps({first: [1], second: [0]}))
    assert counts(found) == {(first, 1): (0, 60), (second, 0): (0, 5)}
    with pytest.raises(NotFound, match="has no partition 7"):
        read(topics, assign=json.dumps({first: [7]}))
    with pytest.raises(NotFound, match="there is no topic 'none'"):
        read(topics, subscribe=f"{first},none")


def test_times_of_each_partition(topics):
    topic = topics.create(partitions=2)
    topics.publish(topic, [{"value": "a", "partition": 0}, {"value": "b", "partition": 1}])
    stamped = {row["partition"]: row["timestamp"] for row in read(topics, subscribe=topic)}
    late = int(stamped[0].timestamp() * 1000) + 1
    times = json.dumps({topic: {"0": late, "1": 0}})
    with pytest.raises(OffsetOutOfRange, match=f"partition 0 has no message stamped at {late}"):
        read(topics, subscribe=topic, startingOffsetsByTimestamp=times)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    found = read(topics, subscribe=topic, startingOffsetsByTimestamp=times, **latest)
    assert [row["value"] for row in found] == [b"b"]
    found = read(topics, subscribe=topic, endingOffsetsByTimestamp=times)
    assert [row["value"] for row in found] == [b"a"]
    found = read(topics, subscribe=topic, startingTimestamp=late, **latest)
    assert found == []
    # Ours begins at the end where there is no such message, as it always did.
    assert topics.read(topic=topic, startingTimestamp=late) == []
    with pytest.raises(NotFound, match="has no partition 5"):
        read(topics, subscribe=topic, startingOffsetsByTimestamp=json.dumps({topic: {"5": 1}}))


def test_a_trigger_waits_for_enough_or_long_enough(topics, streams, monkeypatch):
    topic = topics.create(partitions=1)
    topics.fill(topic, 3)
    now_s = [1000.0]
    monkeypatch.setattr(source.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    limits = {"minOffsetsPerTrigger": 10, "maxTriggerDelay": "30s", "maxOffsetsPerTrigger": 12}
    reader = streams(subscribe=topic, **limits)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)

    def look(start: dict) -> dict:
        now_s[0] += 1
        return through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))

    def at(offset: dict) -> int:
        return offset["topics"][topic]["0"]

    start = look(through_json(reader.initialOffset()))
    assert at(start) == 3  # the first is at once
    topics.fill(topic, 4)
    assert look(start) == start
    now_s[0] += 30
    start = look(start)
    assert at(start) == 7
    topics.fill(topic, 15)
    assert at(look(start)) == 19
    topics.fill(topic, 1)
    reader.prepareForTriggerAvailableNow()
    assert at(drain(reader, look(look(start)))[0]) == 23


def test_tasks_as_many_and_as_small_as_wanted(topics, pair):
    def tasks(**options: object) -> list[int]:
        made = kafka(topics, subscribe=pair[0], **options)
        parts = made.reader(made.schema()).partitions()
        return [part.value.end - part.value.start for part in parts]

    assert tasks() == [60, 60]
    assert len(tasks(minPartitions=8)) >= 8
    assert sum(tasks(minPartitions=8)) == 120
    assert tasks(maxRecordsPerPartition=25) == [20] * 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "user and password, or token"),
        ({"kafka.sasl.jaas.config": "x"}, "user and password, or token"),
        ({"kafka.group.id": "g"}, "Give group"),
        ({"groupIdPrefix": "g"}, "Give group"),
        ({"fetchOffset.numRetries": "3"}, "Give retrySeconds"),
        ({"kafka.fetch.max.bytes": "3"}, "no Kafka client"),
        ({"subscribe": "a", "subscribePattern": "b"}, "one alone"),
        ({"subscribe": "a", "topic": "b"}, "one alone"),
        ({"topicPattern": "a", "subscribePattern": "b"}, "say the same"),
        ({"subscribe": "a", "url": "http://b", "kafka.bootstrap.servers": "b:1"}, "say the same"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "a:1,b:1"}, "one address"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "one alone"),
        ({"assign": '{"a": []}'}, "names no partitions"),
        ({"subscribe": "a", "startingOffsets": "latest", "startingTimestamp": "1"}, "only one of"),
        (
            {"subscribe": "a", "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"},
            "only one of",
        ),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1", "maxRecordsPerTrigger": "1"}, "the same"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "1"}, "is above"),
        ({"subscribe": "a", "maxTriggerDelay": "1m"}, "minOffsetsPerTrigger"),
        (
            {"subscribe": "a", "maxTriggerDelay": "soon", "minOffsetsPerTrigger": "1"},
            "not a time",
        ),
        ({"subscribe": "a", "includeHeaders": "true", "columns": "key"}, "includeHeaders"),
    ],
)
def test_what_is_refused_says_what_to_use(options, said):
    with pytest.raises(BadOption) as refused:
        parse_options(options)
    assert said in str(refused.value)


def test_the_example_of_spark_with_another_format_and_address(
    spark: SparkSession, topics: Topics, monkeypatch
):
    """The file that comes with Spark. Two words of it differ: the format, and, so that the test can
    look at the counts, the console."""
    topic = topics.create(partitions=2)
    text = (Path(pyspark.__file__).parent / EXAMPLE).read_text()
    assert text.count('.format("kafka")') == text.count(".format('console')") == 1
    text = text.replace('.format("kafka")', '.format("braid_kafka")')
    text = text.replace(".format('console')", ".format('memory').queryName('word_counts')")
    counted: dict[str, int] = {}

    def publish_and_look(query) -> None:
        # It begins at the end of the topic: not before it holds it.
        wait_until(lambda: topic in str(topics.leases()), 120)
        topics.publish(topic, [{"value": "one two two"}, {"value": "two three"}])

        def counted_all() -> bool:
            counted.update(
                {row["word"]: row["count"] for row in spark.table("word_counts").collect()}
            )
            return sum(counted.values()) >= 5

        try:
            wait_until(counted_all, 120)
        finally:
            query.stop()

    monkeypatch.setattr(
        "pyspark.sql.streaming.query.StreamingQuery.awaitTermination", publish_and_look
    )
    monkeypatch.setattr("sys.argv", ["wordcount", address(topics), "subscribe", topic])
    exec(compile(text, EXAMPLE, "exec"), {"__name__": "__main__"})
    assert counted == {"one": 1, "two": 3, "three": 1}


def test_writing_as_to_kafka(spark: SparkSession, topics: Topics):
    topic = topics.create(partitions=3)
    frame = spark.createDataFrame(
        [("k", "v", 2), ("k", "w", 0)], "key string, value string, partition int"
    )
    options = {"kafka.bootstrap.servers": address(topics), "topic": topic}
    frame.write.format("braid_kafka").options(**options).mode("append").save()
    found = {row["value"]: row["partition"] for row in topics.read(topic=topic)}
    assert found == {b"v": 2, b"w": 0}
