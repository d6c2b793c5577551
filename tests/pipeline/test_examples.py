"""The pipelines of docs/pipelines/examples, each run on a live node and a real Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from braid_topics import Topics

from braidmq.pipeline.definition import load
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.runner import Runner
from braidmq.pipeline.session import STATE_STORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "docs" / "pipelines" / "examples"
Run = Callable[..., Progress]


@pytest.fixture
def run(
    spark: "SparkSession", topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run_one(name: str, **values: Any) -> Progress:
        path = EXAMPLES / f"{name}.toml"
        definition = load(path, {key: str(value) for key, value in values.items()})
        broker = BrokerOptions(url=topics.node.http_url)
        done = Runner(definition, spark, broker, path.parent).run(lambda _: False)
        assert done.state == "finished"
        return done

    return run_one


def as_json(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"value": json.dumps(row)} for row in rows]


def test_several_sinks_with_one_read(
    run: Run, spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    source, large = topics.create(partitions=1), topics.create(partitions=1)
    topics.publish(source, as_json(*({"id": at, "amount": at} for at in range(1000))))
    done = run("one_read", topic=source, large=large, directory=tmp_path)
    assert [(each.name, each.rows) for each in done.sinks] == [("orders", 1000)]
    found = [json.loads(row["value"])["id"] for row in topics.read(topic=large)]
    assert found == list(range(900, 1000))
    assert spark.read.format("braid_lake").load(f"{tmp_path}/lake").count() == 1000
    assert spark.read.option("header", True).csv(f"{tmp_path}/csv").count() == 1000
    assert float((tmp_path / "sums" / "0.txt").read_text()) == sum(range(1000))


def test_windows_with_a_watermark(
    run: Run, spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """A minute is written when the watermark has passed it; the last one stays open."""
    source = topics.create(partitions=1)
    rows = [
        {"sensor": "a", "celsius": 10 + at, "at": f"2026-01-01T{at // 60:02}:{at % 60:02}:30Z"}
        for at in (0, 1, 2, 2, 60)
    ]
    topics.publish(source, as_json(*rows))
    run("windows", topic=source, lake=tmp_path / "lake")
    found = spark.read.format("braid_lake").load(f"{tmp_path}/lake").orderBy("minute").collect()
    assert [(row.minute.minute, row.readings, row.celsius) for row in found] == [
        (0, 1, 10.0),
        (1, 1, 11.0),
        (2, 2, 12.0),
    ]


def test_two_streams_joined(run: Run, topics: Topics) -> None:
    orders, payments, paid = (topics.create(partitions=1) for _ in range(3))
    topics.publish(orders, [{"key": f"k{at}", "value": f"order {at}"} for at in range(4)])
    topics.publish(payments, [{"key": "k1", "value": "card"}, {"key": "k3", "value": "cash"}])
    run("join", orders=orders, payments=payments, paid=paid)
    found = sorted(row["value"] for row in topics.read(topic=paid))
    assert found == [b"order 1 paid by card", b"order 3 paid by cash"]
    for topic in (orders, payments):
        group = topics.api.get(f"/v1/topics/{topic}/subscriptions/join").json()
        assert sum(each["lag"] for each in group["partitions"]) == 0


def test_state_with_transform_with_state(run: Run, spark: "SparkSession", topics: Topics) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    source, counts = topics.create(partitions=1), topics.create(partitions=1)
    for _ in range(2):
        topics.publish(source, [{"key": f"k{at % 2}", "value": "click"} for at in range(4)])
        run("sessions", topic=source, counts=counts)
    found = [(row["key"], row["value"]) for row in topics.read(topic=counts)]
    assert sorted(found) == [(b"k0", b"2"), (b"k0", b"4"), (b"k1", b"2"), (b"k1", b"4")]


def test_formats_of_spark(run: Run, spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("name,age\nAnn,40\nBen,7\n")
    run("formats", directory=tmp_path)
    assert [row.name for row in spark.read.parquet(f"{tmp_path}/adults").collect()] == ["Ann"]


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES.parent / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert {name for name in names if f"(examples/{name})" not in page} == set()
