"""Tables that fit, templates, completion, questions at a terminal, and nodes that come back."""

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from commands import Cli
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from braidmq.cli.output import Output, Template, fitted_table
from braidmq.cli.units import size_bytes, with_units
from braidmq.model.errors import BadSetting
from braidmq.testing.live import LiveNode, live_node

WORDS = st.lists(st.sampled_from(["a", "orders", "customers-in-northern-europe" * 3]), min_size=1)


@given(
    st.lists(st.fixed_dictionaries({"name": WORDS, "about_it": WORDS, "count": st.integers(0)})),
    st.integers(20, 140),
)
def test_a_table_is_never_wider_than_the_terminal(rows: list[dict[str, object]], wide: int) -> None:
    columns = ("name", "about_it", "count", "count")[:3]
    table, hidden = fitted_table(rows, columns, ("count",), wide)
    console = Console(width=wide, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    assert all(len(line) <= wide for line in lines)
    for row in rows:
        for word in row["name"]:  # type: ignore[attr-defined]
            # Whole, or marked where it ends.
            assert "name" in hidden or word in captured.get() or "…" in captured.get()


def test_columns_are_left_out_by_rule_and_said() -> None:
    row = {"name": "n" * 30, "peer": "p" * 30, "client": "c" * 30}
    assert fitted_table([row], ("name", "peer", "client"), ("peer",), 94)[1] == []
    assert fitted_table([row], ("name", "peer", "client"), ("peer",), 40)[1] == ["peer"]
    assert fitted_table([row], ("name", "peer", "client"), (), 40)[1] == ["client"]


@pytest.mark.parametrize(
    "whole",
    ["orders-of-northern-europe-and-asia", "2026-01-01 00:00:00.000Z"],
    ids=["name", "time"],
)
def test_names_and_times_stay_whole_while_there_is_something_lesser(whole: str) -> None:
    row = {"id": whole, "about": "some words that may stand below each other", "peer": "p" * 20}
    table, hidden = fitted_table([row], ("id", "about", "peer"), ("peer",), 60)
    assert hidden == ["peer"]
    shown = _lines(table, 60)
    assert shown[1].startswith(whole)
    assert len(shown) > 2
    assert fitted_table([row], ("id", "about", "peer"), ("peer",), 30)[1] != []


def test_titles_take_two_lines_at_most() -> None:
    row = dict.fromkeys(("name", "oldest_in_flight", "published_/s"), 1)
    table, hidden = fitted_table([row], tuple(row), (), 30)
    assert not hidden
    assert _lines(table, 30) == [
        "      oldest in  published",
        "name     flight         /s",
        "   1          1          1",
    ]


def _lines(table: Table, wide: int) -> list[str]:
    console = Console(width=wide, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_templates() -> None:
    row = {"name": "orders", "depth": 7, "on": True, "at": None, "policy": {"ttl_ms": 5}}
    assert Template("{name:<8}|{depth:>3}").lines([row]) == ["orders  |  7"]
    assert Template(r"{on}\t{at}\t{policy.ttl_ms}{{}}").lines([row]) == ["true\t\t5{}"]
    assert Template("{policy}").lines([row]) == ['{"ttl_ms": 5}']
    assert Template("{name}").lines([{"name": "\x1b[2J"}]) == [r"\x1b[2J"]
    assert Template("{nope}").lines([]) == []


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "{0}", "{name!r}", "{name.__class__.__mro__}", "{name[0]}", "{name:9999999}"),
        *("{name:{depth}}", "{nope}", "{name:d}", "{name:%}"),
    ],
)
def test_templates_that_are_refused(text: str) -> None:
    def use() -> list[str]:
        return Template(text).lines([{"name": "orders", "depth": 7}])

    if text == "{name.__class__.__mro__}":
        assert use() == [""]  # fields of JSON only: a text has none
        return
    with pytest.raises(BadSetting):
        use()


def test_formats_of_lists_and_messages(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "one", "two", "three", "--key", "k")
    assert cli.ok("topics", "list", "--prefix", topic, "--format", "{name}") == f"{topic}\n"
    assert cli.ok("topics", "show", topic, "--format", "{messages} {policy.ttl_ms}") == "3 0\n"
    two = cli.ok("consume", topic, "--last", "2", "--format", "{offset} {key} {value}")
    assert two == "1 k two\n2 k three\n"
    assert "there is no field 'nam'" in cli.fails(2, "topics", "list", "--format", "{nam}")
    assert "is not a format" in cli.fails(2, "consume", topic, "--format", "yaml")
    assert "--from" in cli.fails(2, "consume", topic, "--last", "2", "--from", "1h")


def test_the_last_of_several_partitions_come_in_the_order_of_time(cli: Cli) -> None:
    cli.ok("topics", "create", "parted", "--partitions", "3")
    for number in range(6):
        cli.ok("publish", "parted", str(number), "--partition", str(number % 3))
    assert cli.ok("consume", "parted", "--last", "4") == "2\n3\n4\n5\n"
    assert cli.ok("consume", "parted", "--last", "99").split() == list("012345")


def test_units_of_settings() -> None:
    assert with_units("ttl_ms", "2h") == 7_200_000
    assert with_units("message_bytes_max", "1MiB") == 1 << 20
    assert with_units("overflow", "2h") == "2h"
    assert size_bytes("1.5kB") == 1500
    with pytest.raises(BadSetting):
        size_bytes("big")


def test_what_a_topic_has_is_told_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_node(tmp_path) as node:
        cli = Cli(node, monkeypatch)
        cli.ok("topics", "create", "kept", "--partitions", "2")
        cli.ok("publish", "kept", *"abcde")
        before = cli.json("topics", "show", "kept")
        node.kill()
    with live_node(tmp_path) as node:
        cli = Cli(node, monkeypatch)
        after = cli.json("topics", "show", "kept")
        assert "2 partitions, 5 messages in" in node.lines[0]
        assert "journal records" in node.lines[0]
    assert after["messages"] == before["messages"] == 5
    # What they take depends on how they are put together, which the journal does anew.
    assert min(after["bytes"], before["bytes"]) > len("abcde")


# --- real processes ---


def completed(words: str) -> set[str]:
    count = len(words.split(" ")) - 1
    asked = {"_BRAID_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    result = subprocess.run(
        [sys.executable, "-m", "braidmq.cli"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr == ""
    return set(result.stdout.split())


def test_names_are_completed_from_the_node(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "x")
    cli.ok("consume", topic, "--group", "complete-me", "--count", "1")
    cli.ok("exchanges", "create", "complete-x")
    assert topic in completed(f"braid topics show {topic[:6]}")
    assert completed("braid groups show compl") == {"complete-me"}
    assert completed("braid consume x --group compl") == {"complete-me"}
    assert completed("braid exchanges delete compl") == {"complete-x"}
    assert "guest" in completed("braid users delete gu")
    # No node, no answer, no noise.
    assert completed("braid topics show --url http://127.0.0.1:1 to") == set()
    assert completed("braid topics show --user ann to") == set()


@contextmanager
def at_a_terminal(
    *arguments: str,
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]:
    """A command in a terminal of its own, and what reads there up to a text."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "braidmq.cli", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = ""

        def read_to(wanted: str) -> str:
            nonlocal seen
            while wanted not in seen:
                seen += os.read(ours, 65_536).decode(errors="replace")
            return seen

        try:
            process.terminal = ours  # type: ignore[attr-defined]
            yield process, read_to
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def typed(process: subprocess.Popen[bytes], text: bytes) -> None:
    os.write(process.terminal, text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_what_takes_something_away_asks(cli: Cli, topic: str, answer: bytes, code: int) -> None:
    cli.ok("publish", topic, "1", "2")
    with at_a_terminal("topics", "delete", topic) as (process, read_to):
        read_to(f"Delete topic '{topic}' with 2 messages in 1 partition? [y/N]")
        typed(process, answer)
        read_to("deleted topic" if code == 0 else "nothing was changed")
        assert process.wait(30) == code


def test_q_ends_top(cli: Cli) -> None:
    with at_a_terminal("top", "--interval", "1h") as (process, read_to):
        read_to("connections")
        typed(process, b"q")
        assert process.wait(30) == 0


def follows(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "braidmq.cli", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def line_of(file: IO[str] | None) -> str:
    assert file is not None
    return file.readline().rstrip("\n")


@pytest.mark.parametrize(
    "command", ["consume again --follow", "consume again --follow --group g", "top --json"]
)
def test_a_node_that_is_restarted_is_waited_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(cli: Cli, text: str) -> None:
        cli.ok("publish", "again", text)

    with live_node(tmp_path) as node:
        cli = Cli(node, monkeypatch)
        cli.ok("topics", "create", "again", "--partitions", "1")
        run(cli, "before")
        process = follows(*command.split())
        first = line_of(process.stdout)
        assert first == "before" or '"again"' in first
        node.kill()
    try:
        assert line_of(process.stderr) == "braid: node is away, trying again"
        with live_node(tmp_path, **node.ports) as second:
            cli = Cli(second, monkeypatch)
            assert line_of(process.stderr) == "braid: node is back"
            run(cli, "after")
            lines = iter(lambda: line_of(process.stdout), "")
            if "top" in command:
                assert any('"published": 1' in line for line in lines)
            else:
                assert any(line == "after" for line in lines)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_output_is_data_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).done("text", {"a": 1})
    Output().done("text", {"a": 1})
    Output().quiet({"a": 1})
    assert capsys.readouterr().out == '{\n  "a": 1\n}\ntext\n'


def test_consumers_of_all_topics(cli: Cli, topic: str) -> None:
    import braidmq

    address = f"amqp://127.0.0.1:{cli.node.ports['amqp_port']}"
    connection = braidmq.connect_sync(address, http_url=cli.node.http_url)
    with connection as broker, broker.consume(topic, group="g"):
        (row,) = [each for each in cli.json("consumers", "list") if each["topic"] == topic]
        assert (row["subscription"], row["protocol"]) == ("g", "amqp")
        assert cli.json("consumers", "list", topic) == [row]
        assert cli.json("consumers", "list", "--limit", "1")


def test_templates_by_pattern(cli: Cli) -> None:
    cli.ok("templates", "set", "short", "^shop[.]", "--set", "ttl_ms=1d", "--priority", "5")
    (row,) = cli.json("templates", "list")
    assert (row["settings"], row["priority"]) == ({"ttl_ms": 86_400_000}, 5)
    cli.ok("topics", "create", "shop.a")
    assert cli.json("topics", "show", "shop.a")["policy"]["ttl_ms"] == 86_400_000
    assert cli.ok("templates", "delete", "short", "--yes") == "deleted template 'short'\n"


def test_the_log_level_of_a_running_node(cli: Cli, node: LiveNode) -> None:
    assert cli.ok("log-level", "show") == "info\n"
    cli.ok("log-level", "set", "warning")
    assert cli.json("log-level", "show") == {"level": "warning"}
    cli.ok("log-level", "set", "info")
