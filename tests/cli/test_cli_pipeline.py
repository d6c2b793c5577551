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
    assert cli.ok("pipeline", "check", path) == (
        "orders: orders-in → 1 steps → orders-out (available_now)\n"
    )
    assert "already exists" in cli.fails(
        6, "pipeline", "new", "orders", "--directory", str(tmp_path)
    )


def test_wrong_files(cli: Cli, tmp_path: Path) -> None:
    assert "archive, compact" in cli.fails(5, "pipeline", "check", "nothing")
    assert "--set lake=" in cli.fails(1, "pipeline", "check", "archive")
    assert "expected name=value" in cli.fails(1, "pipeline", "check", "archive", "--set", "topic")


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
    assert 'braid_pipeline_state{namespace="/",pipeline="shown",state="failed"} 1.0' in metrics
    url = f"{cli.node.http_url}/v1/pipelines/shown"
    assert httpx.delete(url, auth=("guest", "guest")).status_code == 204
    assert "no pipeline 'shown'" in cli.fails(5, "pipeline", "status", "shown")
