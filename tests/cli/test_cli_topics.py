"""``braid topics``."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import Cli


def test_a_topic_from_its_making_to_its_end(cli: Cli) -> None:
    cli.ok("topics", "create", "made", "--partitions", "2", "--set", "retry.attempts=7")
    cli.ok("topics", "create", "made", "--partitions", "2", "--set", "retry.attempts=7")
    cli.ok("topics", "alter", "made", "--set", "ttl_ms=60000", "--set", "overflow=drop-head")
    described = cli.json("topics", "show", "made")
    assert described["settings"] == {
        "partitions": 2,
        "retry": {"attempts": 7},
        "ttl_ms": 60000,
        "overflow": "drop-head",
    }
    rows = cli.rows("topics", "show", "made")
    assert ["ttl_ms", "60000", "(1m)", "here"] in rows
    assert ["retry.attempts", "7", "here"] in rows
    assert ["retry.base_ms", "1000", "(1s)"] in rows
    assert ["1", "0", "0", "0", "0", "B"] in rows
    hook = "https://hooks.example.com/x?key=1"
    cli.ok("topics", "alter", "made", "--set", f"dead_letter.alert_webhook={hook}")
    assert ["dead_letter.alert_webhook", hook, "here"] in cli.rows("topics", "show", "made")
    cli.ok("topics", "alter", "made", "--set", "dead_letter.alert_webhook=null")
    assert cli.json("topics", "show", "made")["policy"]["dead_letter"]["alert_webhook"] is None
    cli.ok("topics", "delete", "--yes", "made")
    assert "there is no topic 'made'" in cli.fails(5, "topics", "show", "made")


def test_listing(cli: Cli) -> None:
    for name, partitions in (("list-b", "2"), ("list-a", "1")):
        cli.ok("topics", "create", name, "--partitions", partitions)
    cli.ok("publish", "list-a", "12345")
    header, *rows = cli.rows("topics", "list", "--prefix", "list-")
    assert header[:3] == ["name", "partitions", "published"]
    assert [row[:3] for row in rows] == [["list-a", "1", "1"], ["list-b", "2", "0"]]
    found = cli.json("topics", "list", "--prefix", "list-")
    assert [(each["name"], each["published"]) for each in found] == [("list-a", 1), ("list-b", 0)]


def test_purging(cli: Cli, topic: str) -> None:
    cli.ok("consume", topic, "--group", "g", "--wait", "0")
    cli.ok("publish", topic, "1", "2", "3")
    assert cli.ok("topics", "purge", "--yes", topic) == f"purged 3 messages of topic {topic!r}\n"
    assert cli.json("topics", "purge", "--yes", topic) == {"messages": 0}


def test_namespaces_are_apart(cli: Cli, topic: str) -> None:
    cli.ok("namespaces", "add", "apart")
    cli.ok("permissions", "set", "guest", ".*", ".*", ".*", "-n", "apart")
    assert cli.json("topics", "list", "-n", "apart") == []
    cli.ok("topics", "create", "there", "-n", "apart")
    cli.ok("publish", "there", "x", "-n", "apart")
    assert cli.ok("consume", "there", "-n", "apart") == "x\n"
    assert "namespace '/'" in cli.fails(5, "topics", "show", "there")


def test_mistakes(cli: Cli, topic: str) -> None:
    clash = cli.fails(6, "topics", "create", topic, "--partitions", "9")
    assert f"topic '{topic}' already exists with other settings" in clash
    assert "Give --set" in cli.fails(2, "topics", "alter", topic)
    assert "'ttl_ms' is not a setting" in cli.fails(2, "topics", "alter", topic, "--set", "ttl_ms")
    assert "twice" in cli.fails(2, "topics", "alter", topic, "--set", "a=1", "--set", "a.b=2")
    cli.fails(1, "topics", "alter", topic, "--set", "no_such=1")


def test_letters_that_the_terminal_has_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.ok("topics", "create", "grün")
    command = [sys.executable, "-m", "braidmq.cli", "topics", "list", "--prefix", "gr"]
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xfcn" in done.stdout
    assert "is not UTF-8" in cli.fails(2, "topics", "show", "gr\udcfcn")


def test_no_room_for_the_output(cli: Cli) -> None:
    command = [sys.executable, "-m", "braidmq.cli", "topics", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    said = "the output can't be written: no space left on the device. Free some space"
    assert done.stderr == f"braid: error: {said}\n"
