"""Pipelines that come with BraidMQ, each run against a live node on a real Spark."""

import html
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from braid_topics import Topics, wait_until
from mixed_topic import in_the_log, mixed

from braidmq.cli.app import main
from braidmq.pipeline.reporting import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

Run = Callable[..., Progress]


def test_archive_compaction_and_replay(run: Run, topics: Topics, tmp_path: Path) -> None:
    source = topics.create(partitions=2)
    sent = [{"key": f"k{at % 3}", "value": f"v{at}", "headers": {"n": str(at)}} for at in range(60)]
    topics.publish(source, sent)
    lake = tmp_path / "lake"
    for _ in range(2):
        done = run("archive", topic=source, lake=lake)
        assert done.state == "finished"
    subscription = topics.api.get(f"/v1/topics/{source}/subscriptions/archive").json()
    assert sum(each["lag"] for each in subscription["partitions"]) == 0

    again = topics.create(partitions=2)
    run("replay", topic=again, lake=lake)
    same = ("partition", "key", "value", "headers", "timestamp", "priority")
    assert [[row[name] for name in same] for row in topics.read(topic=again)] == [
        [row[name] for name in same] for row in topics.read(topic=source)
    ]

    run("compact", lake=lake)
    latest = topics.create(partitions=2)
    run("replay", topic=latest, lake=lake)
    found = {row["key"]: row["value"] for row in topics.read(topic=latest)}
    assert found == {b"k0": b"v57", b"k1": b"v58", b"k2": b"v59"}
    assert len(topics.read(topic=latest)) == 3


def test_what_is_replayed_is_what_was_archived(run: Run, topics: Topics, tmp_path: Path) -> None:
    """Of every protocol: bytes of keys, values and envelopes, times, priorities, and the order."""
    source = mixed(topics)
    run("archive", topic=source, lake=tmp_path / "lake")
    again = topics.create(partitions=2)
    run("replay", topic=again, lake=tmp_path / "lake")
    assert in_the_log(topics, again) == in_the_log(topics, source)


def test_reports(run: Run, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    topics.api.put(f"/v1/topics/{topic}/subscriptions/readers", json={}).raise_for_status()
    topics.publish(topic, [{"key": f"k{at % 5}", "value": "x" * 10} for at in range(50)])
    page = tmp_path / "page.html"
    run("latency", topics=topic, report=page)
    assert "readers" in page.read_text()
    run("usage", report=page)
    rows = topics.api.get("/v1/usage", params={"namespace": "/", "by": "day"}).json()["rows"]
    assert rows
    for row in rows:
        assert f'<td class="number">{row["published_bytes"]:,}</td>' in page.read_text()
    run("skew", topic=topic, report=page)
    assert "the most that are even" in page.read_text()


def test_triage(run: Run, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=1)
    path = f"/v1/topics/{topic}/subscriptions/s"
    topics.api.put(path, json={}).raise_for_status()
    topics.publish(topic, [{"value": f"order {at}"} for at in range(4)])
    messages = topics.api.post(f"{path}/receive", json={"limit": 4}).json()["messages"]
    for at, message in enumerate(messages):
        body = {"error": f"order {at} has no 'customer'"}
        topics.api.post(f"/v1/receipts/{message['receipt']}/reject", json=body).raise_for_status()
    page = tmp_path / "triage.html"
    run("triage", report=page)
    assert "order &lt;number&gt; has no &lt;text&gt;" in page.read_text()


def test_clusters_of_dead_letters(run: Run, topics: Topics, tmp_path: Path) -> None:
    errors = [
        "connection to shard eu-7 of payments was refused",
        "connection to shard us-east of payments was refused",
        "no price for 'tea' in order 17",
        "no price for 'rum' in order 4",
        "",
    ]
    one, other = topics.create(partitions=1), topics.create(partitions=1)
    for topic in (one, other):
        path = f"/v1/topics/{topic}/subscriptions/s"
        topics.api.put(path, json={}).raise_for_status()
        topics.publish(topic, [{"value": "<order>"} for _ in errors])
        messages = topics.api.post(f"{path}/receive", json={"limit": 5}).json()["messages"]
        for message, error in zip(messages, errors, strict=True):
            path = f"/v1/receipts/{message['receipt']}/reject"
            topics.api.post(path, json={"error": error} if error else {}).raise_for_status()
    page = tmp_path / "clusters.html"
    run("clusters", topics=f"{one}|{other}", report=page)
    text = html.unescape(page.read_text())
    for cluster in (
        "connection to shard <any> of payments was refused",
        "no price for <text> in order <number>",
        "(rejected, no error)",
    ):
        row = text[text.index(f"<td>{cluster}</td>") :]
        letters = 2 if cluster.startswith("(") else 4
        assert row.split("\n")[0].count(f'<td class="number">{letters}</td>') == 1, cluster
    assert f"<td>{one}, {other}</td>" in text
    assert "no price for 'rum' in order 4" in text


def test_a_forecast_learns_from_its_history(run: Run, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    topics.api.put(f"/v1/topics/{topic}/subscriptions/slow", json={}).raise_for_status()
    page, history = tmp_path / "forecast.html", tmp_path / "history"
    for _ in range(2):
        topics.publish(topic, [{"value": "v", "partition": at % 2} for at in range(10)])
        run("forecast", report=page, history=history, limit=1000)
    row = page.read_text().partition(f"<td>{topic} › slow</td>")[2].partition("</tr>")[0]
    assert '<td class="number">20</td><td class="number">2</td>' in row
    assert "<td>limit at</td>" in row
    assert "<polyline" in page.read_text()


def test_a_pipeline_of_sql_and_python(run: Run, topics: Topics, tmp_path: Path) -> None:
    source, small, large = (topics.create(partitions=2) for _ in range(3))
    topics.publish(source, [{"key": f"k{at % 4}", "value": str(at)} for at in range(100)])
    (tmp_path / "steps.py").write_text(
        "def marked(frame, suffix):\n"
        "    text = f\"concat(decode(value, 'utf-8'), '{suffix}') AS value\"\n"
        "    return frame.selectExpr('key', text)\n"
    )
    file = tmp_path / "split.toml"
    file.write_text(f"""
name = "split-{source}"
checkpoint = "{tmp_path}/checkpoint"
[[source]]
name = "numbers"
topic = "{source}"
[[step]]
name = "few"
sql = "SELECT * FROM numbers WHERE CAST(decode(value, 'utf-8') AS INT) < 10"
[[step]]
name = "marked"
python = "steps.py:marked"
inputs = ["numbers"]
options = {{ suffix = "!" }}
[[sink]]
from = "few"
topic = "{small}"
[[sink]]
from = "marked"
topic = "{large}"
""")
    seen: list[Progress] = []
    done = run(str(file), lambda progress: bool(seen.append(progress)))
    assert {each.name: each.rows for each in done.sinks} == {"few-topic": 100, "marked-topic": 100}
    assert len(topics.read(topic=small)) == 10
    assert sorted(row["value"] for row in topics.read(topic=large)) == sorted(
        b"%d!" % at for at in range(100)
    )
    group = topics.api.get(f"/v1/topics/{source}/subscriptions/split-{source}").json()
    assert sum(each["lag"] for each in group["partitions"]) == 0


def test_a_batch_that_shall_stop_is_cancelled(run: Run, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(partitions=1), topics.create(partitions=1)
    file = tmp_path / "slow.toml"
    # A condition that Spark can't know to be false without looking at every row.
    file.write_text(f'''
name = "slow"
trigger = "once"
[[source]]
name = "numbers"
topic = "{source}"
[[step]]
name = "hours"
sql = """
SELECT CAST(id AS STRING) AS value FROM range(1000000000000) WHERE md5(CAST(id AS STRING)) = ''
"""
[[sink]]
from = "hours"
topic = "{target}"
''')
    seen: list[Progress] = []

    def when_it_is_at_its_tasks(progress: Progress) -> bool:
        seen.append(progress)
        return any(each.tasks for each in progress.sinks)

    assert run(str(file), when_it_is_at_its_tasks).state == "stopped"
    assert {each.status for progress in seen for each in progress.sinks} == {"writing"}
    assert topics.read(topic=target) == []


def test_the_command_runs_reports_and_obeys(
    spark: "SparkSession",
    topics: Topics,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    source, target = topics.create(partitions=1), topics.create(partitions=1)
    topics.publish(source, [{"value": str(at)} for at in range(10)])
    name = f"endless-{source}"
    file = tmp_path / "endless.toml"
    file.write_text(f"""
name = "{name}"
trigger = "1s"
checkpoint = "{tmp_path}/checkpoint"
[[source]]
name = "numbers"
topic = "{source}"
[[sink]]
from = "numbers"
topic = "{target}"
""")

    def stop_when_done() -> None:
        path = f"/v1/pipelines/{name}"
        wait_until(lambda: topics.api.get(path).json().get("rows") == 10, 300)
        topics.api.post(f"{path}/stop").raise_for_status()

    stopper = threading.Thread(target=stop_when_done)
    stopper.start()
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "run", str(file), "--url", topics.node.http_url])
    stopper.join()
    assert ended.value.code in (None, 0)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert last == f"{name} stopped: 10 rows"
    log = first.partition("Spark's log is ")[2]
    assert log.startswith(f"{tmp_path}/braidmq/pipelines/logs/{name}-")
    assert Path(log).exists()
    assert topics.api.get(f"/v1/pipelines/{name}").json()["state"] == "stopped"
    assert len(topics.read(topic=target)) == 10
