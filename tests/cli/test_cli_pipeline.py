"""``braid pipeline`` without Spark: files, and what pipelines have told the node."""

from pathlib import Path
from typing import Any

import httpx
from commands import Cli

RUN: dict[str, Any] = {"run": "r1", "state": "running", "started_ms": 1, "rows": 7, "lag": 3}


def report(cli: Cli, name: str, **more: Any) -> dict[str, Any]:
    url = f"{cli.node.http_url}/v1/pipelines/{name}"
    answer = httpx.put(url, json={**RUN, **more}, auth=("guest", "guest"))
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_a_new_file_is_a_right_one(cli: Cli, tmp_path: Path) -> None:
    cli.ok("pipeline", "new", "orders", "--directory", str(tmp_path))
    path = str(tmp_path / "orders.toml")
    said, checkpoint = cli.ok("pipeline", "check", path).splitlines()
    assert said == "orders: orders-in → 1 step → orders-out (available_now)"
    assert checkpoint.endswith("/braidmq/pipelines/orders")
    assert "already exists" in cli.fails(
        6, "pipeline", "new", "orders", "--directory", str(tmp_path)
    )


def test_wrong_files(cli: Cli, tmp_path: Path) -> None:
    assert "archive, clusters, compact" in cli.fails(5, "pipeline", "check", "nothing")
    assert "--set lake=" in cli.fails(1, "pipeline", "check", "archive")
    assert "'topic' is not a name and a value" in cli.fails(
        2, "pipeline", "check", "archive", "--set", "topic"
    )


def test_those_that_come_with_braidmq(cli: Cli) -> None:
    names = [each["pipeline"] for each in cli.json("pipeline", "list", "--shipped")]
    assert "archive" in names


def test_what_runs_is_listed_stopped_and_forgotten(cli: Cli) -> None:
    report(cli, "shown", error="")
    (row,) = cli.json("pipeline", "list")
    assert (row["name"], row["state"], row["rows"], row["lag"]) == ("shown", "running", 7, 3)
    assert "running" in cli.ok("pipeline", "list")
    assert cli.json("pipeline", "status", "shown")["run"] == "r1"
    cli.ok("pipeline", "stop", "shown")
    assert report(cli, "shown")["stop_requested"]
    report(cli, "shown", state="failed", error="it broke")
    assert "it broke" in cli.ok("pipeline", "status", "shown")
    assert "is not running: it is failed" in cli.fails(6, "pipeline", "stop", "shown")
    metrics = httpx.get(f"{cli.node.http_url}/metrics", auth=("guest", "guest")).text
    of = 'namespace="/",parameters="",pipeline="shown"'
    assert f'braid_pipeline_state{{{of},state="failed"}} 1.0' in metrics
    url = f"{cli.node.http_url}/v1/pipelines/shown"
    assert httpx.delete(url, auth=("guest", "guest")).status_code == 204
    assert "no pipeline 'shown'" in cli.fails(5, "pipeline", "status", "shown")


def test_two_runs_of_one_name_are_stopped(cli: Cli) -> None:
    for run, topic in (("r1", "a"), ("r2", "b"), ("r3", "b")):
        report(cli, "twice", run=run, parameters={"topic": topic}, tasks=4, tasks_done=1)
    rows = [each for each in cli.json("pipeline", "list") if each["name"] == "twice"]
    assert sorted((each["run"], each["parameters"]["topic"]) for each in rows) == [
        ("r1", "a"),
        ("r2", "b"),
        ("r3", "b"),
    ]
    metrics = httpx.get(f"{cli.node.http_url}/metrics", auth=("guest", "guest")).text
    of = 'namespace="/",parameters="topic=a",pipeline="twice"'
    assert f"braid_pipeline_tasks_done{{{of}}} 1.0" in metrics
    assert metrics.count('braid_pipeline_rows{namespace="/",parameters="topic=b"') == 1
    assert "asked r1" in cli.ok("pipeline", "stop", "twice", "--set", "topic=a")
    assert report(cli, "twice", run="r1")["stop_requested"]
    assert not report(cli, "twice", run="r2")["stop_requested"]
    shown = cli.ok("pipeline", "stop", "twice")
    assert "r2" in shown
    assert "r3" in shown
    for run in ("r1", "r2", "r3"):
        assert report(cli, "twice", run=run)["stop_requested"]
    assert "no run" in cli.fails(5, "pipeline", "stop", "twice", "--run", "r9")
    assert "topic=c" in cli.fails(5, "pipeline", "stop", "twice", "--set", "topic=c")
