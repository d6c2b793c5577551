"""``braid exchanges``, ``bindings``, ``connections``, ``tokens``, ``top`` and ``doctor``."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from commands import Cli

import braidmq
from braidmq.cli.doctor import clock_finding, pressure_finding
from braidmq.cli.top import Look, topic_rows
from braidmq.testing.live import free_ports


def test_routing(cli: Cli, topic: str) -> None:
    cli.ok("exchanges", "create", "events", "--kind", "topic")
    cli.ok("exchanges", "create", "events", "--kind", "topic")
    cli.ok("exchanges", "create", "spare", "--kind", "fanout", "--alternate", "events")
    cli.ok("bindings", "create", "events", topic, "--key", "orders.#")
    cli.ok("bindings", "create", "spare", "events", "--to-exchange", "--argument", "a.b=1")
    rows = cli.rows("exchanges", "list")
    assert ["events", "topic", "yes", "no", "no", "-", "-"] in rows
    assert ["spare", "fanout", "yes", "no", "no", "events", "-"] in rows
    assert cli.rows("bindings", "list", "--source", "events")[1:] == [
        ["events", "orders.#", topic, "topic", "-"]
    ]
    (spare,) = cli.json("bindings", "list", "--source", "spare")
    assert (spare["destination"], spare["arguments"]) == ("events", {"a.b": 1})
    cli.ok("publish", "orders.eu.new", "routed", "--exchange", "events")
    assert cli.ok("consume", topic) == "routed\n"
    assert "nobody gets" in cli.fails(5, "publish", "other", "x", "--exchange", "events")
    cli.ok("bindings", "delete", "--yes", "spare", "events", "--to-exchange", "--argument", "a.b=1")
    assert cli.json("bindings", "list", "--source", "spare") == []
    cli.fails(6, "exchanges", "delete", "--yes", "events", "--if-unused")
    cli.ok("exchanges", "delete", "--yes", "events")
    assert "events" not in {each["name"] for each in cli.json("exchanges", "list")}


def test_routing_mistakes(cli: Cli, topic: str) -> None:
    cli.fails(5, "exchanges", "delete", "--yes", "no-exchange")
    cli.fails(5, "bindings", "create", "no-exchange", topic)
    cli.fails(6, "exchanges", "create", "amq.topic", "--kind", "fanout")
    assert "such as source=shop" in cli.fails(2, "exchanges", "create", "x", "--argument", "x")


def test_connections(cli: Cli) -> None:
    address = f"amqp://127.0.0.1:{cli.node.ports['amqp_port']}"
    with braidmq.connect_sync(
        address, http_url=cli.node.http_url, name="seen", reconnect=False
    ) as broker:
        broker.declare_queue("seen")
        (row,) = [each for each in cli.json("connections", "list") if each["client"] == "seen"]
        assert [row["id"], "amqp", "guest"] in [
            each[:3] for each in cli.rows("connections", "list")
        ]
        cli.ok("connections", "close", "--yes", row["id"])
        with pytest.raises(braidmq.BraidError):
            broker.declare_queue("seen")
    cli.fails(5, "connections", "close", "--yes", row["id"])


def test_tokens(cli: Cli) -> None:
    token = cli.ok("tokens", "create", "--description", "build server", "--expires", "30d").strip()
    at = f"{cli.node.http_url}/v1/topics"
    bearer = {"Authorization": f"Bearer {token}"}
    assert httpx.get(at, headers=bearer).status_code == 200
    (row,) = cli.json("tokens", "list")
    assert row["expires_ms"] - row["created_ms"] == 30 * 86_400_000
    assert row["description"] == "build server"
    assert cli.rows("tokens", "list")[1][:3] == [row["id"], "guest", "all"]
    cli.ok("tokens", "revoke", "--yes", row["id"])
    assert httpx.get(at, headers=bearer).status_code == 401
    cli.fails(5, "tokens", "revoke", "--yes", row["id"])
    cli.fails(5, "tokens", "create", "--for", "nobody")
    assert "such as 250ms" in cli.fails(2, "tokens", "create", "--expires", "never")


def test_one_look_at_a_node(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, *("x" * 50))
    cli.ok("consume", topic, "--group", "top", "--follow", "--count", "8")
    look = cli.json("top", "--once")
    assert look["overview"]["pressure"] == "normal"
    (found,) = [each for each in look["topics"] if each["name"] == topic]
    assert found["published"] == 50
    (group,) = [each for each in look["groups"] if each["topic"] == topic]
    assert (group["name"], group["lag"]) == ("top", 42)
    rows = cli.rows("top", "--once")
    assert "BraidMQ" in rows[0]
    # The fullest first; no rates from a single look.
    assert rows[6][:5] == [topic, "-", "50", "42", "42"]
    assert ["top", topic, "-", "42", "42", "0", "0"] in rows
    assert len(cli.rows("top", "--once", "--rows", "1")) == 4 + 1 + 2 + 1 + 2
    # A pipe gets one look, too.
    assert "BraidMQ" in cli.ok("top", "--interval", "3600")
    cli.fails(4, "top", "--once", "--password", "wrong")


def test_looks_in_a_row_have_rates(cli: Cli, topic: str) -> None:
    command = [sys.executable, "-m", "braidmq.cli", "top", "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert all(topic in {each["name"] for each in look["topics"]} for look in looks)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_rates_are_between_two_looks() -> None:
    def look(at_s: float, published: int) -> Look:
        row = {"name": "t", "published": published, "depth": 0, "depth_bytes": 0}
        return Look(at_s, {}, [row | {"subscriptions": 0, "consumers": 0}], [])

    def rate(before: Look, now: Look) -> object:
        (row,) = topic_rows(before, now)
        return row["published_/s"]

    assert rate(look(10.0, 100), look(12.0, 600)) == 250
    assert rate(look(10.0, 100), look(12.0, 100)) == 0
    assert rate(look(10.0, 100), look(12.0, 7)) is None  # deleted and made again
    assert rate(Look(10.0, {}, [], []), look(12.0, 7)) is None


def verdicts(findings: list[dict[str, str]]) -> dict[str, str]:
    return {each["check"]: each["verdict"] for each in findings}


NODE_CHECKS = (
    *("reachable", "storage", "quarantine", "ready", "login"),
    *("version", "clock", "pressure", "amqp", "listeners"),
)


def test_a_healthy_node(cli: Cli) -> None:
    found = verdicts(cli.json("doctor"))
    machine = dict.fromkeys(("disk", "sync", "open files"), "skipped")
    assert found == dict.fromkeys(NODE_CHECKS, "ok") | machine
    assert ["login", "ok", "user", "and", "password", "are", "right"] in cli.rows("doctor")


def test_the_machine_of_a_node(cli: Cli, data_dir: Path) -> None:
    before = set(data_dir.iterdir())
    found = {each["check"]: each for each in cli.json("doctor", "--data-dir", str(data_dir))}
    assert " in use" in found["open files"]["finding"]
    assert " free of " in found["disk"]["finding"]
    assert " ms of 20" in found["sync"]["finding"]
    assert set(data_dir.iterdir()) == before


def test_what_the_doctor_finds_wrong(cli: Cli, tmp_path: Path) -> None:
    def sick(*flags: str) -> dict[str, str]:
        outcome = cli.run("doctor", "--json", *flags)
        assert (outcome.code, outcome.errors) == (1, "")
        return verdicts(json.loads(outcome.text))

    closed = free_ports(1)[0]
    assert sick("--url", f"http://127.0.0.1:{closed}")["reachable"] == "fail"
    assert sick("--password", "wrong")["login"] == "fail"
    assert sick("--amqp-port", str(closed))["amqp"] == "fail"
    assert sick("--data-dir", str(tmp_path / "none"))["disk"] == "fail"
    # No failure: the directory may be another node's, which is not running.
    assert verdicts(cli.json("doctor", "--data-dir", str(tmp_path)))["open files"] == "warn"


@pytest.mark.parametrize(
    ("ahead_ms", "verdict"), [(0, "ok"), (1500, "ok"), (-5000, "warn"), (90_000, "warn")]
)
def test_clocks_apart(ahead_ms: int, verdict: str) -> None:
    here_ms = 1_700_000_000_000
    node = {"started_ms": here_ms - 50_000, "uptime_ms": 50_000 + ahead_ms}
    assert clock_finding(node, here_ms).verdict == verdict


@pytest.mark.parametrize(
    ("level", "verdict"), [("normal", "ok"), ("slow", "warn"), ("blocked", "fail")]
)
def test_pressure(level: str, verdict: str) -> None:
    assert pressure_finding({"pressure": level, "memory_bytes": 0}).verdict == verdict


def test_stats(cli: Cli) -> None:
    cli.ok("topics", "create", "urgent", "--partitions", "1", "--set", "priority=lanes")
    cli.ok("publish", "urgent", "x", "--priority", "critical")
    assert cli.ok("consume", "urgent", "--group", "workers") == "x\n"
    rows = cli.rows("stats", "priorities", "urgent")
    (critical,) = [row for row in rows if "critical" in row]
    assert critical[:8] == ["urgent", "workers", "0", "critical", "50", "0", "0", "1"]
    assert len(cli.json("stats", "priorities", "urgent")["partitions"][0]["lanes"]) == 5
    assert cli.json("stats", "reliability")["acked"] >= 1
    assert ["timed", "out", "0"] in cli.rows("stats", "reliability")
    cli.ok("publish", "urgent", "y", "--delay", "1h")
    ended = {"delivered": 0, "cancelled": 0, "expired": 0}
    assert cli.json("stats", "delays")["topics"] == [{"topic": "urgent", "pending": 1} | ended]
    assert "urgent 1" in cli.ok("stats", "delays")
    assert cli.json("stats", "transactions")["open"] == 0
    assert "committed" in cli.ok("stats", "transactions")


def test_a_load_of_amqp(cli: Cli) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{cli.node.ports['amqp_port']}/"
    options = ["--workload", "A", "--seconds", "200ms", "--url", url, "--json"]
    done = cli.run("bench", "amqp", *options)
    assert done.code == 0, done.errors
    found = json.loads(done.text)
    assert found["exactly_once"]
    assert found["received"] == found["published"] > 0
