"""Streams of a pipeline that fail: what begins again, how, and what does not."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from braid_topics import GUEST, Topics

from braidmq.pipeline.definition import load
from braidmq.pipeline.errors import BrokerUnreachable, PipelineFailed, class_of
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.runner import Runner
from braidmq.testing.live import free_ports, live_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)


def runner(spark: "SparkSession", url: str, directory: Path, text: str) -> Runner:
    file = directory / "pipeline.toml"
    file.write_text(text)
    return Runner(load(file), spark, BrokerOptions(url=url), directory)


def never(_: Progress) -> bool:
    return False


FAILS_ONCE = """
from pathlib import Path

def keep(frame, batch, place):
    if not Path(place).exists():
        Path(place).touch()
        raise RuntimeError("the first time it breaks")
    frame.selectExpr("CAST(value AS STRING) AS value").write.mode("append").text(place + ".d")
"""


def test_each_query_and_each_retry_has_a_dataframe_of_its_own(
    spark: "SparkSession", topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that share a plan change it under each other: Illegal size 5 of collection, …"""
    source, target, again = (topics.create(partitions=1) for _ in range(3))
    topics.publish(source, [{"value": str(at)} for at in range(10)])
    (tmp_path / "sinks.py").write_text(FAILS_ONCE)
    ours = runner(
        spark,
        topics.node.http_url,
        tmp_path,
        f"""
name = "two-{source}"
checkpoint = "{tmp_path}/checkpoint"
[[source]]
name = "numbers"
topic = "{source}"
[[sink]]
from = "numbers"
topic = "{target}"
[[sink]]
from = "numbers"
name = "before it fails"
query = "both"
topic = "{again}"
[[sink]]
from = "numbers"
name = "files"
query = "both"
python = "sinks.py:keep"
options = {{ place = "{tmp_path}/place" }}
""",
    )
    views: list[dict[str, DataFrame]] = []
    make: Callable[[Runner], Any] = Runner.views
    monkeypatch.setattr(Runner, "views", lambda self: views.append(make(self)) or views[-1])
    done = ours.run(never)
    assert {each.name: each.rows for each in done.sinks} == {"numbers-topic": 10, "both": 10}
    assert done.restarts == 1
    same = spark._jvm.System.identityHashCode
    plans = {same(each["numbers"]._jdf.queryExecution().logical()) for each in views}
    assert len(views) == len(plans) == 3
    # The batch that failed was in one topic already: done again, it is there once.
    for topic in (target, again):
        assert [row["value"] for row in topics.read(topic=topic)] == [
            b"%d" % at for at in range(10)
        ]
    assert sorted(row.value for row in spark.read.text(f"{tmp_path}/place.d").collect()) == sorted(
        map(str, range(10))
    )


def test_a_pipeline_waits_for_its_broker_longer_than_its_patience(
    spark: "SparkSession", tmp_path: Path
) -> None:
    ports = {"http_port": free_ports(1)[0], "amqp_port": 0, "mqtt_port": 0, "ws_port": 0}
    nodes: list[ExitStack] = []

    def start() -> Topics:
        nodes.append(ExitStack())
        node = nodes[-1].enter_context(live_node(tmp_path / "data", **ports))
        client = httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60)
        return Topics(node, nodes[-1].enter_context(client))

    topics = start()
    source, target = topics.create(partitions=1), topics.create(partitions=1)
    topics.publish(source, [{"value": str(at)} for at in range(10)])
    ours = runner(
        spark,
        topics.node.http_url,
        tmp_path,
        f"""
name = "patient"
trigger = "100ms"
retries = 1
checkpoint = "{tmp_path}/checkpoint"
[[source]]
name = "numbers"
topic = "{source}"
options = {{ retrySeconds = 1 }}
[[sink]]
from = "numbers"
topic = "{target}"
options = {{ retrySeconds = 1 }}
""",
    )
    seen: list[str] = []

    def watch(progress: Progress) -> bool:
        """Away twice: how often does not count against the retries."""
        (sink,) = progress.sinks
        away = seen.count("away")
        if sink.rows == 10 * (away + 1) and len(nodes) == away + 1:
            if away == 2:
                return True
            nodes[-1].close()
            seen.append("away")
        elif sink.status == "waits for the broker" and len(nodes) == away:
            again = start()
            again.publish(source, [{"value": str(at)} for at in range(10 * away, 10 * away + 10)])
        return False

    try:
        done = ours.run(watch)
        assert (done.state, done.restarts) == ("stopped", 2)
        values = [row["value"] for row in topics.read(topic=target)]
        assert values == [b"%d" % at for at in range(30)]
    finally:
        nodes[-1].close()


def test_what_will_be_the_same_again_is_not_tried_again(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    source = topics.create(partitions=1)
    topics.publish(source, [{"value": "1"}])
    ours = runner(
        spark,
        topics.node.http_url,
        tmp_path,
        f"""
name = "hopeless"
checkpoint = "{tmp_path}/checkpoint"
[[source]]
name = "numbers"
topic = "{source}"
[[sink]]
from = "numbers"
topic = "no-such-topic"
""",
    )
    seen: list[Progress] = []
    with pytest.raises(PipelineFailed, match="no-such-topic"):
        ours.run(lambda progress: bool(seen.append(progress)))
    assert {each.restarts for each in seen} <= {0}


def test_errors_of_ours_are_known_however_they_come() -> None:
    away = BrokerUnreachable("no broker answers at http://x: refused")
    said = RuntimeError(f"Traceback\nbraidmq.pipeline.errors.BrokerUnreachable: {away}\n at x.java")
    passed_on = ValueError("source 'x'")
    passed_on.__cause__ = said
    assert class_of(said) == class_of(passed_on) == "BrokerUnreachable"
    assert class_of(RuntimeError("Illegal size 5 of collection, expected 6")) == ""
