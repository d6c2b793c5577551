"""Topics copied into lakes by tasks that read and write themselves, beside what Spark would have
written."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from braid_topics import Topics, rows
from deltalake import DeltaTable
from lake_tables import batches
from mixed_topic import mixed
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from braidmq.pipeline import lake, reading
from braidmq.pipeline.columns import MESSAGE
from braidmq.pipeline.definition import load
from braidmq.pipeline.errors import BrokerUnreachable, class_of
from braidmq.pipeline.lake import copying, files, frames, source
from braidmq.pipeline.lake.frames import STAGING
from braidmq.pipeline.lake.options import LakeOptions
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.ranges import RangesDataSource, ranges
from braidmq.pipeline.runner import Runner
from braidmq.pipeline.source import BraidDataSource
from braidmq.testing.live import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

EVERY = ",".join(MESSAGE.names)


# --- a task, without Spark ---


def copy_all(topics: Topics, place: Path, **options: str) -> list[Any]:
    """As Spark does it, one task after the other."""
    given = {"url": topics.node.http_url, **options}
    ours = RangesDataSource(given)
    reader = ours.reader(ours.schema())
    assert list(reader.read(InputPartition(None))) == []
    schema = BraidDataSource(given).schema()
    task = copying.CopyTask(copying.Messages.of(given, schema), LakeOptions(str(place)), schema)
    task = pickle.loads(cloudpickle.dumps(task))
    found = []
    for part in reader.partitions():
        splits = list(reader.read(pickle.loads(pickle.dumps(part))))
        assert [each.num_rows for each in splits] == [1]
        found += [
            pickle.loads(each.as_py()) for done in task(iter(splits)) for each in done["file"]
        ]
    return found


def test_a_task_writes_what_its_range_holds(topics: Topics, tmp_path: Path) -> None:
    topic = mixed(topics)
    written = copy_all(topics, tmp_path, topic=topic, columns=EVERY)
    tables = [pq.read_table(tmp_path / each.path) for each in written]
    assert all(each.schema.names == MESSAGE.names for each in tables)
    assert [each.rows for each in written] == [each.num_rows for each in tables]
    assert rows(iter(batch for each in tables for batch in each.to_batches())) == topics.read(
        topic=topic, columns=EVERY
    )


def test_a_task_holds_a_part_of_its_range(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(partitions=1)
    topics.fill(topic, 3000)
    monkeypatch.setattr(files, "GROUP_BYTES", 64 * 1024)
    monkeypatch.setattr(reading, "PAGE_BYTES", 32 * 1024)
    held: list[int] = []
    flush = files.Files._flush

    def counted(self: files.Files, found: list[Any]) -> None:
        held.append(sum(each.nbytes for each in found))
        flush(self, found)

    monkeypatch.setattr(files.Files, "_flush", counted)
    (written,) = copy_all(topics, tmp_path, topic=topic)
    footer = pq.read_metadata(tmp_path / written.path)
    assert footer.num_rows == 3000
    assert footer.num_row_groups == len([each for each in held if each]) > 2
    reader = topics.batch_reader(topic=topic)
    largest = max(each.nbytes for part in reader.partitions() for each in reader.read(part))
    assert max(held) < 64 * 1024 + largest


# --- what is copied ---

PLAIN = """
name = "plain"
trigger = "{trigger}"
[[source]]
name = "messages"
topic = "orders"
[[source]]
name = "late"
topic = "orders"
watermark = {{ column = "timestamp", delay = "1 minute" }}
[[source]]
name = "numbers"
format = "rate"
stream = true
[[step]]
name = "few"
sql = "SELECT * FROM messages WHERE partition = 0"
[[sink]]
lake = "/nowhere/lake"
{sink}
"""


@pytest.mark.parametrize(
    ("sink", "is_copied"),
    [
        ('from = "messages"', True),
        ('from = "messages"\noptions = { partitionBy = "date,topic", mergeSchema = true }', True),
        ('from = "messages"\nwhere = "partition = 0"', False),
        ('from = "messages"\nselect = ["key"]', False),
        ('from = "few"', False),
        ('from = "late"', False),
        ('from = "numbers"', False),
    ],
)
def test_copied_is_what_nothing_is_done_to(tmp_path: Path, sink: str, is_copied: bool) -> None:
    file = tmp_path / "plain.toml"
    file.write_text(PLAIN.format(sink=sink, trigger="available_now"))
    driver: Any = SimpleNamespace(sparkContext=None)
    found = Runner(load(file), driver, BrokerOptions()).copied(load(file).sinks[0])
    assert (found is not None) == is_copied
    if found is not None:
        assert found["startingOffsets"] == "earliest"
    over_connect: Any = SimpleNamespace()
    assert Runner(load(file), over_connect, BrokerOptions()).copied(load(file).sinks[0]) is None
    file.write_text(file.read_text().replace("/nowhere", "s3://bucket"))
    assert Runner(load(file), driver, BrokerOptions()).copied(load(file).sinks[0]) is None


# --- on Spark ---

Run = Callable[..., Any]


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches between both ways; of the one that is off nothing may be used."""

    def refuse(*_: object) -> None:
        raise AssertionError("not this way")

    def use(spark: bool) -> None:
        monkeypatch.undo()
        if spark:
            monkeypatch.setattr(Runner, "copied", lambda *_: None)
            monkeypatch.setattr(copying, "staged", refuse)
        else:
            monkeypatch.setattr(frames, "_by_spark", refuse)

    return use


def in_lake(place: Path) -> list[dict[str, Any]]:
    return rows(batches(place))


def statistics(place: Path) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Of each file, as the log has them."""
    found = [
        json.loads(line).get("add")
        for log in sorted((place / "_delta_log").glob("*.json"))
        for line in log.read_text().splitlines()
    ]
    of_files = [(each["partitionValues"], json.loads(each["stats"])) for each in found if each]
    return sorted(of_files, key=lambda each: json.dumps(each, sort_keys=True))


def left_over(place: Path) -> list[Path]:
    """Files that no version has."""
    listed = {place / each for each in DeltaTable(place).file_uris()}
    return sorted(set(place.rglob("*.parquet")) - listed)


def test_a_copy_is_what_spark_would_have_written(
    run: Run,
    by_spark: Callable[[bool], None],
    spark: "SparkSession",
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic = mixed(topics)
    messages = topics.read(topic=topic, columns=EVERY)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place, way in ((ours, False), (theirs, True)):
        by_spark(way)
        done = run("archive", topic=topic, lake=place, partition_by="date,topic")
        assert (done.state, done.rows) == ("finished", len(messages))
    found = in_lake(ours)
    assert [{name: row[name] for name in MESSAGE.names} for row in found] == messages
    assert found == in_lake(theirs)
    assert DeltaTable(ours).schema().to_json() == DeltaTable(theirs).schema().to_json()
    assert statistics(ours) == statistics(theirs)
    through_jvm = lake.read(spark, str(ours)).orderBy("partition", "offset")
    same = lake.read(spark, str(theirs)).orderBy("partition", "offset")
    assert through_jvm.collect() == same.collect()
    assert not list((ours / STAGING).iterdir())


def test_a_batch_that_failed_at_its_commit_is_there_once(
    run: Run,
    by_spark: Callable[[bool], None],
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it took effect, and after; then with a driver that has forgotten that it did, and on
    the other way in between."""
    topic, place = topics.create(partitions=2), tmp_path / "lake"
    commit = source.commit
    failures = ["before", "after"]

    def failing(*given: Any) -> None:
        when = failures.pop(0) if failures else ""
        if when != "before":
            commit(*given)
        if when:
            raise ConnectionError(f"{when} it took effect")

    topics.fill(topic, 10)
    monkeypatch.setattr(source, "commit", failing)
    done = run("archive", topic=topic, lake=place)
    assert (done.restarts, failures) == (2, [])
    topics.fill(topic, 10)
    by_spark(True)
    run("archive", topic=topic, lake=place)
    topics.fill(topic, 10)
    by_spark(False)
    assert run("archive", topic=topic, lake=place).rows == 10
    version = DeltaTable(place).version()
    commits = place / "_braid_checkpoint" / topic / "lake" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink()
    assert run("archive", topic=topic, lake=place).rows == 0
    assert DeltaTable(place).version() == version == 2
    found = in_lake(place)
    assert [(row["partition"], row["offset"]) for row in found] == [
        (row["partition"], row["offset"]) for row in topics.read(topic=topic)
    ]
    assert left_over(place) == []
    assert not list((place / STAGING).iterdir())


TYPED = """
name = "typed"
trigger = "once"
[[source]]
name = "orders"
topic = "{topic}"
schema = "id BIGINT, _offset BIGINT"
options = {{ format = "json" }}
[[sink]]
from = "orders"
lake = "{lake}"
mode = "overwrite"
"""


def test_values_are_typed_and_a_lake_is_overwritten_at_once(
    run: Run, by_spark: Callable[[bool], None], topics: Topics, tmp_path: Path
) -> None:
    topic, place = topics.create(partitions=1), tmp_path / "lake"
    topics.publish(topic, [{"value": f'{{"id": {at * 7}}}'} for at in range(20)])
    file = tmp_path / "typed.toml"
    file.write_text(TYPED.format(topic=topic, lake=place))
    by_spark(False)
    for _ in range(2):
        assert run(str(file)).rows == 20
    found = [row for each in batches(place) for row in each.to_pylist()]
    assert found == [{"id": at * 7, "_offset": at} for at in range(20)]


def test_what_fails_in_a_task_is_known_by_its_name(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """A pipeline goes by it: it waits for a broker that is away, and not for what never passes."""
    topic = topics.create(partitions=1)
    topics.fill(topic, 10)
    given = {"url": topics.node.http_url, "topic": topic, "readMode": "broker"}
    schema = BraidDataSource(given).schema()
    away = {**given, "url": f"http://127.0.0.1:{free_ports(1)[0]}", "retrySeconds": "1"}
    with pytest.raises(Exception, match="no broker answers") as failed:
        copying.staged(
            ranges(spark, given, streams=False),
            copying.Messages.of(away, schema),
            LakeOptions(str(tmp_path)),
            schema,
            tmp_path / STAGING,
        )
    assert class_of(failed.value) == BrokerUnreachable.__name__
    assert list(tmp_path.rglob("*.parquet")) == []
