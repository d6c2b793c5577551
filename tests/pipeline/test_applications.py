"""Who counts batches under a name that is counted already is refused, whatever is written to."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from braid_topics import Topics

from braidmq.pipeline import lake
from braidmq.pipeline.definition import BadPipeline, load
from braidmq.pipeline.errors import BadOption, PipelineFailed, StaleCheckpoint
from braidmq.pipeline.lake.options import parse_lake_options
from braidmq.pipeline.lake.source import abort, commit
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.runner import Runner
from braidmq.pipeline.sink import BatchWriter
from braidmq.pipeline.source import BraidDataSource, BraidKafkaDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from lake_tables import numbers, read, write

pytestmark = pytest.mark.timeout(400)


# --- without a JVM ---


def test_a_lake_keeps_whose_numbers_they_are(tmp_path: Path) -> None:
    def add(first: int, batch: int, instance: str, **more: str) -> None:
        given = {"applicationId": "app", "batchId": str(batch), "applicationInstance": instance}
        given["checkpointInterval"] = "1"  # the log is summed up, and says it still
        write(tmp_path, numbers(first, 1), options={**given, **more})

    for _ in range(2):
        add(0, 0, "one")
    for batch in (0, 1):
        with pytest.raises(StaleCheckpoint, match="and not by other"):
            add(5, batch, "other")
    add(1, 1, "one")
    add(2, 0, "other", applicationEpoch="1")
    add(3, 2, "")  # who does not say is a user who counts by hand
    assert [row["n"] for row in read(tmp_path)] == [0, 1, 2, 3]


def test_what_a_refused_batch_wrote_goes_though_its_number_is_there(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    from braidmq.pipeline.lake.table import DataFile, Step

    write(tmp_path, numbers(0, 1), options={"applicationId": "a", "batchId": "0"})
    options, schema = parse_lake_options({"path": str(tmp_path)}), StructType().add("n", LongType())
    for instance in ("one", "other"):
        name = f"{instance}.parquet"
        (tmp_path / name).write_bytes((next(tmp_path.glob("part-*.parquet"))).read_bytes())
        written = [DataFile(name, 1, 1)]
        step = Step("b", 0, instance)
        if instance == "one":
            commit(options, schema, written, step, "append")
        abort(options, written, step)
    assert (tmp_path / "one.parquet").exists()
    assert not (tmp_path / "other.parquet").exists()


def test_two_topics_do_not_share_the_numbers_of_one_application(topics: Topics) -> None:
    first, second = topics.create(partitions=1), topics.create(partitions=1)
    rows = pa.RecordBatch.from_pydict({"value": ["a"]})

    def send(topic: str, batch: int) -> None:
        given = {"url": topics.node.http_url, "topic": topic, "applicationId": f"app-{first}"}
        source = BraidDataSource({**given, "batchId": str(batch)})
        writer = source.writer(_values(), False)
        assert isinstance(writer, BatchWriter)
        writer.commit([writer.write(iter([rows]))])

    send(first, 0)
    send(first, 0)
    with pytest.raises(StaleCheckpoint, match="counted by"):
        send(second, 0)
    assert [len(topics.read(topic=each)) for each in (first, second)] == [1, 0]


def test_a_number_and_a_name_are_given_together(tmp_path: Path, topics: Topics) -> None:
    """Without a number each run of a job would be batch 0, and all but the first dropped."""
    given = {"url": topics.node.http_url, "topic": "t", "applicationId": "a"}
    for source in (BraidDataSource(given), BraidKafkaDataSource(given)):
        with pytest.raises(BadOption, match="batchId is needed"):
            source.writer(_values(), False)
        with pytest.raises(BadOption, match="a stream counts"):
            type(source)({**given, "batchId": "1"}).streamWriter(_values(), False)
    with pytest.raises(BadOption, match="batchId is needed"):
        write(tmp_path, numbers(0, 1), options={"applicationId": "a"})
    for name in ("batchId", "applicationEpoch", "applicationInstance"):
        with pytest.raises(BadOption, match="applicationId"):
            write(tmp_path, numbers(0, 1), options={name: "1"})
    assert not (tmp_path / "_delta_log").exists()


def _values() -> Any:
    from pyspark.sql.types import StructType

    return StructType().add("value", "string")


# --- what a file says ---

SINKS = """
name = "shared"
{top}
[[source]]
name = "numbers"
topic = "numbers"
[[sink]]
from = "numbers"
name = "one"
{one}
[[sink]]
from = "numbers"
name = "two"
{two}
"""


@pytest.mark.parametrize(
    ("top", "one", "two", "said"),
    [
        ("", 'topic = "a"\noptions = { applicationId = "x" }', None, "'one' and 'two' count"),
        ("", 'lake = "/l"\noptions = { applicationId = "x" }', None, "'one' and 'two' count"),
        ("", 'topic = "a"\noptions = { batchId = 7 }', 'topic = "b"', "a stream counts"),
        ("", 'lake = "/l"\noptions = { BatchID = 7 }', 'topic = "b"', "a stream counts"),
        (
            'trigger = "once"',
            'lake = "/l"\noptions = { applicationId = "x" }',
            'topic = "b"',
            "batchId is needed",
        ),
        (
            'trigger = "once"',
            'topic = "t"\noptions = { applicationId = "x" }',
            'topic = "b"',
            "batchId is needed",
        ),
    ],
)
def test_a_file_that_would_drop_batches(
    tmp_path: Path, top: str, one: str, two: str | None, said: str
) -> None:
    file = tmp_path / "shared.toml"
    file.write_text(SINKS.format(top=top, one=one, two=two or one))
    with pytest.raises(BadPipeline, match=said):
        load(file)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (
            'topic = "a"\noptions = { applicationId = "x" }',
            'lake = "/l"\noptions = { applicationId = "x" }',
        ),
        (
            'lake = "/k"\noptions = { applicationId = "x" }',
            'lake = "/l"\noptions = { applicationId = "x" }',
        ),
        (
            'topic = "a"\noptions = { applicationId = "x" }',
            'topic = "a"\noptions = { applicationId = "x", applicationEpoch = 1 }',
        ),
        (
            'topic = "a"\noptions = { applicationId = "x" }',
            'topic = "a"\noptions = { applicationId = "x", namespace = "other" }',
        ),
    ],
)
def test_numbers_that_are_counted_apart(tmp_path: Path, one: str, two: str) -> None:
    file = tmp_path / "shared.toml"
    file.write_text(SINKS.format(top="", one=one, two=two))
    assert len(load(file).sinks) == 2


# --- on Spark ---


def drain(writer: Any, checkpoint: Path) -> None:
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def numbered(spark: "SparkSession", place: Path, first: int) -> "DataFrame":
    spark.range(first, first + 3).selectExpr("id AS n").coalesce(1).write.parquet(str(place))
    return spark.readStream.schema("n LONG").parquet(str(place))


def through_frames(frame: "DataFrame", path: str) -> Any:
    return lake.stream(frame, path, applicationId="app")


def through_python(frame: "DataFrame", path: str) -> Any:
    return frame.writeStream.format("braid_lake").options(path=path, applicationId="app")


def batch_by_batch(frame: "DataFrame", path: str) -> Any:
    def add(batch: "DataFrame", number: int) -> None:
        lake.write(batch, path, applicationId="app", batchId=number)

    return frame.writeStream.foreachBatch(add)


def batch_by_batch_through_python(frame: "DataFrame", path: str) -> Any:
    def add(batch: "DataFrame", number: int) -> None:
        given = {"path": path, "applicationId": "app", "batchId": number}
        batch.write.format("braid_lake").options(**given).mode("append").save()

    return frame.writeStream.foreachBatch(add)


WAYS = [through_frames, through_python, batch_by_batch, batch_by_batch_through_python]


@pytest.mark.parametrize("way", WAYS)
def test_another_query_is_refused_by_a_lake(
    spark: "SparkSession", tmp_path: Path, way: Callable[..., Any]
) -> None:
    place = str(tmp_path / "lake")
    first = numbered(spark, tmp_path / "first", 0)
    second = numbered(spark, tmp_path / "second", 100)
    drain(way(first, place), tmp_path / "checkpoint")
    with pytest.raises(Exception, match="and not by"):
        drain(way(second, place), tmp_path / "another")
    for each in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        each.unlink()
    drain(way(first, place), tmp_path / "checkpoint")  # the same query, again: nothing happens
    assert [row["n"] for row in read(place)] == [0, 1, 2]


def test_another_query_that_writes_batch_by_batch_is_refused_by_a_topic(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=1)

    def add(batch: "DataFrame", number: int) -> None:
        given = {"url": topics.node.http_url, "topic": topic, "applicationId": f"app-{topic}"}
        written = batch.selectExpr("CAST(n AS STRING) AS value").write.format("braid")
        written.options(**given, batchId=number).mode("append").save()

    first = numbered(spark, tmp_path / "first", 0)
    second = numbered(spark, tmp_path / "second", 100)
    drain(first.writeStream.foreachBatch(add), tmp_path / "checkpoint")
    with pytest.raises(Exception, match="counted by"):
        drain(second.writeStream.foreachBatch(add), tmp_path / "another")
    assert [row["value"] for row in topics.read(topic=topic)] == [b"0", b"1", b"2"]


PIPELINE = """
name = "counted"
checkpoint = "{directory}/{checkpoint}"
[[source]]
name = "numbers"
topic = "{source}"
{sinks}
"""
SHARED = """
[[sink]]
from = "numbers"
query = "both"
name = "topic"
topic = "{topic}"
options = {{ applicationId = "app-{topic}" }}
[[sink]]
from = "numbers"
query = "both"
name = "lake"
lake = "{directory}/lake"
options = {{ applicationId = "app" }}
"""
COPIED = """
[[sink]]
from = "numbers"
lake = "{directory}/lake"
options = {{ applicationId = "app" }}
"""


@pytest.mark.parametrize("sinks", [SHARED, COPIED])
def test_another_pipeline_under_the_same_application_is_refused(
    spark: "SparkSession", topics: Topics, tmp_path: Path, sinks: str
) -> None:
    source, target = topics.create(partitions=1), topics.create(partitions=1)
    topics.fill(source, 5)

    def run(checkpoint: str) -> None:
        given = {"directory": tmp_path, "topic": target, "source": source}
        file = tmp_path / "counted.toml"
        file.write_text(
            PIPELINE.format(checkpoint=checkpoint, sinks=sinks.format(**given), **given)
        )
        broker = BrokerOptions(url=topics.node.http_url)
        Runner(load(file), spark, broker, tmp_path).run(lambda _: False)

    run("first")
    with pytest.raises(PipelineFailed, match=r"counted by|and not by"):
        run("second")
    assert len(read(tmp_path / "lake", by="offset")) == 5
    assert len(topics.read(topic=target)) == (5 if sinks is SHARED else 0)
