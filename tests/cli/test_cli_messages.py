"""``braid publish`` and ``braid consume``."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Cli


def test_arguments_lines_and_files(cli: Cli, topic: str, tmp_path: Path) -> None:
    assert cli.ok("publish", topic, "one") == f"published 1 message to {topic}\n"
    told = cli.json("publish", topic, stdin=b"two\nthr\xffee\r\n\nfive")
    assert (told["topic"], told["published"]) == (topic, 4)
    (tmp_path / "a").write_bytes(b"\0\n\xff")
    cli.ok("publish", topic, "six", "--file", str(tmp_path / "a"))
    values = [b"one", b"two", b"thr\xffee", b"", b"five", b"six", b"\0\n\xff"]
    assert cli.run("consume", topic, "--format", "raw").raw == b"".join(values)
    assert cli.ok("consume", topic).split("\n")[1:6] == ["two", "thr\\xffee", "", "five", "six"]


def test_what_a_message_says_of_itself(cli: Cli, topic: str) -> None:
    cli.ok("consume", topic, "--group", "early", "--wait", "0")
    flags = ["--key", "k", "--header", "a=b", "--header", "c=d=e", "--priority", "high"]
    cli.ok("publish", topic, "{}", *flags, "--ttl", "1h", "--content-type", "application/json")
    (stored,) = cli.lines("consume", topic)
    expected = {
        "topic": topic,
        "value": "{}",
        "key": "k",
        "headers": {"a": "b", "c": "d=e"},
        "priority": 4,
        "content_type": "application/json",
    }
    assert expected.items() <= stored.items()
    assert stored["expires_at_ms"] - stored["timestamp_ms"] == 3_600_000
    assert (stored["partition"], stored["offset"]) == (0, 0)
    (taken,) = cli.lines("consume", topic, "--group", "early", "--count", "1", "--follow")
    assert expected.items() <= taken.items()
    assert (taken["delivery_count"], taken["redelivered"]) == (1, False)


def test_a_token_publishes_the_same_messages(cli: Cli, topic: str, tmp_path: Path) -> None:
    token = ["--token", cli.ok("tokens", "create").strip()]
    (tmp_path / "a").write_bytes(b"\0\n\xff")
    said = ["--key", "k", "--header", "a=b", "--priority", "high", "--ttl", "1h"]
    said += ["--content-type", "text/plain", "--partition", "0"]
    for login in ([], token):
        cli.ok("publish", topic, "one", "", "--file", str(tmp_path / "a"), *said, *login)
        cli.ok("publish", topic, "late", "--deliver-at", "2099-01-01T12:00+00:00", *login)
    stored = cli.lines("consume", topic)
    for each in stored:
        # Where it is differs, when it came, and AMQP's own exchange and key.
        each["lives_ms"] = each.pop("expires_at_ms", each["timestamp_ms"]) - each["timestamp_ms"]
        for name in ("offset", "timestamp_ms", "exchange", "routing_key"):
            each.pop(name, None)
    assert stored[0]["lives_ms"] == 3_600_000
    assert stored[:3] == stored[4:7]
    assert stored[3]["deliver_at_ms"] == stored[7]["deliver_at_ms"] == 4_070_952_000_000
    lines = b"".join(b"%d\n" % number for number in range(1000))
    assert cli.json("publish", topic, *token, stdin=lines)["published"] == 1000
    assert cli.ok("consume", topic, "--last", "1000") == lines.decode()


def test_a_token_publishes_through_an_exchange_too(cli: Cli, topic: str, tmp_path: Path) -> None:
    token = ["--token", cli.ok("tokens", "create").strip()]
    (tmp_path / "a").write_bytes(b"\0\n\xff")
    cli.ok("bindings", "create", "amq.topic", topic, "--key", f"{topic}.*")
    said = ["--exchange", "amq.topic", "--key", "k", "--header", "a=b", "--priority", "high"]
    said += ["--ttl", "1h", "--content-type", "text/plain"]
    for login in ([], token):
        cli.ok("publish", f"{topic}.x", "one", "--file", str(tmp_path / "a"), *said, *login)
        cli.ok("publish", f"{topic}.x", "late", "--delay", "1h", *said[:2], *login)
    stored = cli.lines("consume", topic)
    for each in stored:
        each["lives_ms"] = each.pop("expires_at_ms", each["timestamp_ms"]) - each["timestamp_ms"]
        each["waits"] = "deliver_at_ms" in each
        # A delay is one of AMQP's headers, too.
        each["headers"] = {k: v for k, v in each.get("headers", {}).items() if k != "x-delay"}
        for name in ("offset", "timestamp_ms", "deliver_at_ms"):
            each.pop(name, None)
    assert (stored[0]["exchange"], stored[0]["routing_key"]) == ("amq.topic", f"{topic}.x")
    assert (stored[0]["lives_ms"], stored[2]["waits"]) == (3_600_000, True)
    assert stored[:3] == stored[3:]
    lines = b"".join(b"%d\n" % number for number in range(1000))
    through = [f"{topic}.x", "--exchange", "amq.topic", *token]
    assert cli.json("publish", *through, stdin=lines)["published"] == 1000
    assert cli.ok("consume", topic, "--last", "1000") == lines.decode()


def test_what_does_not_get_through_an_exchange_is_said(cli: Cli, topic: str) -> None:
    cli.ok("bindings", "create", "amq.direct", topic, "--key", topic)
    cli.ok("topics", "alter", topic, "--set", "max_messages=2")
    cli.ok("consume", topic, "--group", "slow", "--wait", "0")
    token = ["--token", cli.ok("tokens", "create").strip()]
    direct = ["--exchange", "amq.direct", *token]
    nobody = cli.fails(1, "publish", "nowhere", "x", *direct)
    assert "'amq.direct' with routing key 'nowhere'. Bind a topic" in nobody
    assert "exchange 'nothing'" in cli.fails(
        5, "publish", topic, "x", "--exchange", "nothing", *token
    )
    partition = cli.fails(1, "publish", topic, "x", "--partition", "0", *direct)
    assert "Leave the partition out" in partition
    assert "is full. Consume from it" in cli.fails(1, "publish", topic, "1", "2", "3", *direct)
    assert cli.ok("consume", topic) == "1\n2\n"


def test_what_a_token_can_not_publish_is_said(cli: Cli, topic: str) -> None:
    token = ["--token", cli.ok("tokens", "create").strip()]
    assert "no topic 'nothing'" in cli.fails(5, "publish", "nothing", "x", *token)
    cli.ok("topics", "alter", topic, "--set", "max_messages=2")
    cli.ok("consume", topic, "--group", "slow", "--wait", "0")
    told = cli.fails(1, "publish", topic, "1", "2", "3", *token)
    assert "is full. Consume from it" in told
    assert cli.ok("consume", topic) == "1\n2\n"


def test_a_group_goes_on_where_it_was(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, stdin=b"1\n2\n3\n4\n5\n")
    follow = ["consume", topic, "--group", "g", "--follow", "--count"]
    assert cli.ok(*follow, "2") == "1\n2\n"
    assert cli.ok(*follow, "1") == "3\n"
    assert cli.ok(*follow, "2") == "4\n5\n"
    assert cli.ok("consume", topic, "--group", "g", "--wait", "0.1") == ""
    other = ["consume", topic, "--group", "late", "--from", "3", "--follow", "--count", "2"]
    assert cli.ok(*other) == "4\n5\n"
    assert cli.ok("consume", topic, "--count", "2") == "1\n2\n"


def test_a_queue_of_amqp_is_taken_from(cli: Cli, topic: str) -> None:
    from braidmq.client import connect_sync

    address = f"amqp://127.0.0.1:{cli.node.ports['amqp_port']}"
    with connect_sync(address, http_url=cli.node.http_url) as broker:
        broker.declare_queue("from-amqp")
    cli.ok("publish", "from-amqp", "1", "2")
    take = ["consume", "from-amqp", "--group", "queue", "--follow", "--count", "1"]
    assert [cli.ok(*take), cli.ok(*take)] == ["1\n", "2\n"]


def test_where_reading_begins(cli: Cli) -> None:
    cli.ok("topics", "create", "places", "--partitions", "3")
    cli.ok("publish", "places", stdin=b"".join(b"%d\n" % n for n in range(30)))
    assert len(cli.lines("consume", "places")) == 30
    assert cli.lines("consume", "places", "--from", "latest") == []
    fifth = cli.lines("consume", "places", "--from", "5")
    assert len(fifth) == 15
    assert {each["offset"] for each in fifth} == {5, 6, 7, 8, 9}
    assert cli.lines("consume", "places", "--from", "1000") == []
    assert len(cli.lines("consume", "places", "--from", "1h")) == 30
    assert len(cli.lines("consume", "places", "--from", "2020-01-01")) == 30
    # The exclusive end of all times of the messages there are.
    assert cli.lines("consume", "places", "--from", "2999-01-01T00:00:00+00:00") == []


@pytest.mark.parametrize("taking", [(), ("--group", "g")], ids=["reading", "taking"])
def test_following_ends_with_an_interrupt(cli: Cli, topic: str, taking: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "braidmq.cli", "consume", topic, "--follow", *taking]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for number in (b"1\n", b"2\n"):
            cli.ok("publish", topic, stdin=number)
            assert process.stdout.readline() == number
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait() == 0


INTERRUPTED = """
import runpy, sys
from braidmq.client.sync import LoopThread

wait_for = LoopThread.wait_for

def interrupted(self, work):
    if work.__name__ == "next_batch":
        raise KeyboardInterrupt
    return wait_for(self, work)

LoopThread.wait_for = interrupted
sys.argv[0] = "braid"
runpy.run_module("braidmq.cli", run_name="__main__", alter_sys=True)
"""


def test_an_interrupt_between_making_a_call_and_waiting_for_it(topic: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "consume", topic, "--follow", "--group", "g"],
        capture_output=True,
        check=True,
        env=os.environ,
    )
    assert (ended.stdout, ended.stderr) == (b"", b"")


def test_a_message_does_not_steer_the_terminal(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "\x1b[2Jboo\tä")
    assert cli.ok("consume", topic) == "\\x1b[2Jboo\tä\n"
    assert cli.ok("consume", topic, "--format", "raw") == "\x1b[2Jboo\tä"
    (stored,) = cli.ok("consume", topic, "--json").splitlines()
    assert "\x1b" not in stored
    assert json.loads(stored)["value"] == "\x1b[2Jboo\tä"


def test_a_rate_is_kept(cli: Cli, topic: str) -> None:
    told = cli.json("publish", topic, "1", "2", "3", "4", "--rate", "20")
    assert told["published"] == 4
    assert told["seconds"] >= 3 / 20


def test_an_interrupt_says_what_was_published(cli: Cli, topic: str) -> None:
    command = [sys.executable, "-m", "braidmq.cli", "publish", topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        assert cli.ok("consume", topic, "--follow", "--count", "2") == "1\n2\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == b"published 2 messages to %s\n" % topic.encode()
        assert process.stderr.read() == b""


def test_publishing_goes_wrong(cli: Cli, topic: str) -> None:
    assert "nobody gets what is published to topic 'no'" in cli.fails(5, "publish", "no", "x")
    many = cli.fails(1, "publish", "no", stdin=b"x\n" * 10)
    assert many.startswith("0 of ")
    assert "Create the topic" in many
    assert "/no/file" in cli.fails(2, "publish", topic, "x", "--file", "/no/file")
    assert "such as 250ms" in cli.fails(2, "publish", topic, "x", "--delay", "soon")
    assert "critical" in cli.fails(2, "publish", topic, "x", "--priority", "256")
    assert "such as source=shop" in cli.fails(2, "publish", topic, "x", "--header", "a")
    cli.fails(4, "publish", topic, "x", "--password", "wrong")
    cli.fails(2, "publish", topic, "x", "--amqp-port", "1")
    cli.fails(2, "publish", topic, "x", "--url", "nowhere")
    assert cli.lines("consume", topic) == []


def test_consuming_goes_wrong(cli: Cli, topic: str) -> None:
    assert "there is no topic 'no'" in cli.fails(5, "consume", "no")
    assert "braid topics create no" in cli.fails(5, "consume", "no", "--group", "g")
    assert "an age (10m)" in cli.fails(2, "consume", topic, "--from", "tomorrow")
