"""``braid groups``, ``braid dlq``, ``braid delayed``, ``braid schedules`` and ``braid leases``."""

import httpx
import pytest
from commands import Cli

from braidmq.cli.api import Api


@pytest.fixture
def api(cli: Cli) -> Api:
    return Api(cli.node.http_url, "guest", None, "/")


def lags(cli: Cli, group: str) -> dict[str, int]:
    found = cli.json("groups", "show", group)["subscriptions"]
    return {each["topic"]: each["lag"] for each in found}


@pytest.fixture
def dead(cli: Cli, api: Api, topic: str) -> str:
    """A topic in which three messages died."""
    first = {"value": "first", "key": "k", "headers": {"shop": "north"}}
    batch = [first, {"value": "\x1b[2J second"}, {"value": "third"}]
    api.post("topics", topic, "messages", "batch", body={"messages": batch})
    api.put("topics", topic, "subscriptions", "billing", body={})
    got = api.post("topics", topic, "subscriptions", "billing", "receive", body={"limit": 10})
    receipts = [each["receipt"] for each in got["messages"]]
    api.post("receipts", "reject", body={"receipts": receipts, "error": "no [bold]order[/]"})
    return topic


def test_lag_and_seeking(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "1", "2", "3")
    cli.ok("consume", topic, "--group", "lagging", "--follow", "--count", "2")
    (listed,) = [row for row in cli.rows("groups", "list") if row[0] == "lagging"]
    assert listed[:6] == ["lagging", topic, "shared", "0", "1", "1"]
    assert listed[-2:] == ["0", "-"]
    *table, _, summary = cli.rows("groups", "show", "lagging")
    assert table == [
        ["topic", "partition", "committed", "end", "lag", "in", "flight"],
        [topic, "0", "2", "3", "1", "0"],
    ]
    assert summary[:7] == ["lagging:", "lag", "1,", "consumers", "0,", "oldest", "ready"]
    for place, lag in (("earliest", 3), ("latest", 0), ("1", 2), ("1h", 3)):
        cli.ok("groups", "seek", "--yes", "lagging", place)
        assert lags(cli, "lagging") == {topic: lag}
    cli.ok("groups", "delete", "--yes", "lagging")
    assert cli.json("groups", "list", "--topic", topic) == []
    assert "braid groups list" in cli.fails(5, "groups", "show", "lagging")


def test_how_long_messages_wait_is_shown(cli: Cli, api: Api, topic: str) -> None:
    api.put("topics", topic, "subscriptions", "slow", body={})
    cli.ok("publish", topic, "1", "2")
    api.post("topics", topic, "subscriptions", "slow", "receive", body={"limit": 1})
    (row,) = cli.json("groups", "list", "--topic", topic)
    assert row["oldest_ready_ms"] >= 0
    assert row["oldest_in_flight_ms"] >= 0
    (listed,) = [row for row in cli.rows("groups", "list") if row[0] == "slow"]
    assert listed[5] == "1"
    assert listed[7] == "1"
    for age in (listed[6], listed[8]):
        assert age.endswith("s")
    shown = cli.ok("groups", "show", "slow")
    assert ", oldest ready " in shown
    assert ", oldest in flight " in shown
    lines = cli.ok("topics", "show", topic).splitlines()
    for name in ("oldest ready", "oldest in flight"):
        assert any(line.startswith(f"{name}  ") and line.strip().endswith("s") for line in lines)


def test_a_group_that_shares_out_partitions(cli: Cli, api: Api) -> None:
    for name in ("north", "south"):
        cli.ok("topics", "create", name, "--partitions", "2")
        cli.ok("publish", name, "1", "2")
    joined = api.post("groups", "team", "members", body={"topics": ["north", "south"]})
    rows = cli.rows("groups", "show", "team")
    assert rows[0][-1] == "member"
    assert [(row[0], row[1], row[-1]) for row in rows[1:5]] == [
        (topic, partition, joined["member_id"])
        for topic in ("north", "south")
        for partition in ("0", "1")
    ]
    cli.ok("groups", "seek", "--yes", "team", "latest", "--topic", "north")
    assert lags(cli, "team") == {"north": 0, "south": 2}
    assert "team" in cli.fails(6, "groups", "delete", "--yes", "team")
    api.delete("groups", "team", "members", joined["member_id"], generation=joined["generation"])
    cli.ok("groups", "delete", "--yes", "team")
    cli.fails(5, "groups", "show", "team")


def test_groups_mistakes(cli: Cli, topic: str) -> None:
    cli.fails(5, "groups", "seek", "--yes", "nobody", "earliest")
    cli.fails(5, "groups", "show", "nobody", "--topic", topic)
    cli.fails(5, "groups", "list", "--topic", "no-topic")
    assert "an age (10m)" in cli.fails(2, "groups", "seek", "--yes", "nobody", "backwards")


def test_dead_letters_are_shown(cli: Cli, dead: str) -> None:
    assert [
        (each["offset"], each["message"]["value"], each["subscription"])
        for each in cli.json("dlq", "list", dead)
    ] == [
        (0, "first", "billing"),
        (1, "\x1b[2J second", "billing"),
        (2, "third", "billing"),
    ]
    table = cli.ok("dlq", "list", dead, "--start", "1", "--limit", "1")
    assert "\\x1b[2J second" in table
    assert "no [bold]order[/]" in table
    assert "third" not in table
    one = cli.ok("dlq", "show", dead, "0")
    assert one.endswith("\n\nfirst\n")
    fields = [line.split(maxsplit=1) for line in one.splitlines()]
    assert ["error", "no [bold]order[/]"] in [[part.strip() for part in each] for each in fields]
    assert ["headers", "shop=north"] in [[part.strip() for part in each] for each in fields]
    assert cli.json("dlq", "show", dead, "0")["message"]["key"] == "k"


def test_dead_letters_come_back_or_go(cli: Cli, dead: str) -> None:
    assert cli.ok("dlq", "retry", dead, "1") == "1 dead letter published again\n"
    assert [each["offset"] for each in cli.json("dlq", "list", dead)] == [0, 2]
    assert cli.json("dlq", "purge", "--yes", dead, "0") == {"count": 1, "stayed": 0}
    assert cli.json("dlq", "retry", dead, "--all")["count"] == 1
    assert cli.json("dlq", "list", dead) == []
    assert (
        cli.ok("dlq", "purge", "--yes", dead, "--all")
        == f"removed 0 dead letters of topic {dead!r}\n"
    )
    again = [each["value"] for each in cli.lines("consume", dead)]
    assert again[-2:] == ["\x1b[2J second", "third"]


def test_dead_letters_of_all_topics(cli: Cli, dead: str) -> None:
    def found(*flags: str) -> list[int]:
        listed = cli.json("dlq", "list", *flags)
        return [each["offset"] for each in listed if each["topic"] == dead]

    assert found() == found("--subscription", "billing", "--since", "1h") == [0, 1, 2]
    assert found("--reason", "rejected", "--namespace", "/") == [0, 1, 2]
    assert found("--reason", "expired") == found("--until", "1h") == []
    assert found(dead, "--reason", "rejected", "--limit", "2") == [0, 1]
    assert f"{dead}.dlq" in cli.ok("dlq", "list")
    assert "--start" in cli.fails(2, "dlq", "list", "--start", "1")
    assert "is not a time" in cli.fails(2, "dlq", "list", "--since", "17")


def test_what_would_be_returned_is_shown_first(cli: Cli, dead: str) -> None:
    flags = ("dlq", "retry", dead, "--reason", "rejected")
    told = cli.ok(*flags, "--dry-run")
    assert told.startswith("3 dead letters would be published again\n")
    assert "no [bold]order[/]" in told
    assert len(cli.json("dlq", "list", dead)) == 3
    assert cli.json("dlq", "retry", dead, "0", "--dry-run")["count"] == 1
    assert cli.ok(*flags) == "3 dead letters published again\n"
    assert cli.json("dlq", "list", dead) == []


def test_what_can_not_go_back_is_told(cli: Cli, api: Api, dead: str) -> None:
    api.delete("topics", dead, "subscriptions", "billing")
    told = cli.ok("dlq", "retry", dead, "--all")
    assert told.startswith("0 dead letters published again\n3 dead letters can't go back:\n")
    assert "unknown-subscription" in told
    assert cli.ok("dlq", "retry", dead, "1", "--everybody") == "1 dead letter published again\n"
    assert [each["offset"] for each in cli.json("dlq", "list", dead)] == [0, 2]


def test_consume_says_why(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "1", "2")
    take = ["consume", topic, "--group", "g", "--follow", "--count"]
    assert cli.ok(*take, "1", "--reject", "not a number") == "1\n"
    assert cli.ok(*take, "1", "--nack", "not now") == "2\n"
    (letter,) = cli.json("dlq", "list", topic)
    assert (letter["error"], letter["reason"], letter["partition"]) == (
        "not a number",
        "rejected",
        0,
    )
    assert "--group" in cli.fails(2, "consume", topic, "--reject", "x")
    assert "one answer" in cli.fails(2, *take, "1", "--reject", "x", "--nack", "y")


def test_dead_letter_mistakes(cli: Cli, dead: str) -> None:
    assert "has no dead letter 99" in cli.fails(5, "dlq", "show", dead, "99")
    for what in ("retry", "purge"):
        assert "--all" in cli.fails(2, "dlq", what, dead)
        assert "--all" in cli.fails(2, "dlq", what, dead, "0", "--all")
        cli.fails(5, "dlq", what, dead, "99")
    cli.fails(5, "dlq", "list", "no-topic")
    assert len(cli.json("dlq", "list", dead)) == 3


def test_a_message_for_a_time(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "later", "--deliver-at", "2036-05-01T12:00+02:00")
    (listed,) = cli.json("delayed", "list", topic)
    assert listed["deliver_at_ms"] == 2_093_248_800_000
    for bad in (["--deliver-at", "soon"], ["--deliver-at", "2036-05-01", "--delay", "1h"]):
        cli.fails(2, "publish", topic, "x", *bad)


def test_delayed_messages(cli: Cli, topic: str) -> None:
    cli.ok("publish", topic, "now")
    cli.ok("publish", topic, "in an hour", "--delay", "1h", "--key", "k")
    cli.ok("publish", topic, "tomorrow", "--delay", "1d")
    listed = cli.json("delayed", "list", topic)
    assert [(each["offset"], each["value"]) for each in listed] == [
        (1, "in an hour"),
        (2, "tomorrow"),
    ]
    _, hour, day = cli.rows("delayed", "list", topic)
    assert hour[:2] == ["0", "1"]
    assert hour[-4:] == ["k", "in", "an", "hour"]
    assert day[-1] == "tomorrow"
    assert cli.ok("delayed", "count", topic) == "2\n"
    cli.ok("delayed", "cancel", "--yes", topic, "0", "1")
    assert cli.json("delayed", "count", topic) == {"topic": topic, "count": 1}
    cli.fails(5, "delayed", "cancel", "--yes", topic, "0", "1")
    (cancelled,) = cli.json("delayed", "list", topic, "--state", "cancelled")
    assert (cancelled["offset"], cancelled["state"]) == (1, "cancelled")
    assert cancelled["ended_ms"] < cancelled["deliver_at_ms"] == listed[0]["deliver_at_ms"]
    _, row = cli.rows("delayed", "list", topic, "--state", "cancelled")
    assert row[:2] == ["0", "1"]
    assert "cancelled" in row
    assert cli.ok("delayed", "count", topic, "--state", "cancelled") == "1\n"
    assert cli.ok("delayed", "count", topic, "--state", "expired") == "0\n"
    cli.fails(5, "delayed", "list", "no-topic")


def test_schedules(cli: Cli, topic: str) -> None:
    cron = ("--cron", "0 9 * * mon", "--zone", "Europe/Berlin")
    made = cli.json("schedules", "add", topic, "report", "make it", *cron, "--header", "a=b")
    assert (made["value"], made["zone"], len(made["next_runs_ms"])) == (
        "make it",
        "Europe/Berlin",
        5,
    )
    cli.ok("schedules", "add", topic, "tick", "tock", "--every", "2h", "--key", "k", "--paused")
    _, report, tick = cli.rows("schedules", "list", topic)
    assert report[:2] == [topic, "report"]
    assert tick[:4] == [topic, "tick", "every", "2h"]
    assert {"report", "tick"} <= {each["name"] for each in cli.json("schedules", "list")}
    cli.ok("schedules", "resume", topic, "tick")
    shown = cli.json("schedules", "show", topic, "tick")
    assert (shown["every_ms"], shown["paused"]) == (7_200_000, False)
    cli.ok("schedules", "pause", topic, "tick")
    assert cli.json("schedules", "show", topic, "tick")["paused"]
    text = httpx.get(f"{cli.node.http_url}/metrics").text
    assert 'braid_schedules{namespace="/",state="paused"} 1.0' in text
    cli.ok("schedules", "delete", "--yes", topic, "tick")
    cli.fails(5, "schedules", "show", topic, "tick")
    assert "either" in cli.fails(2, "schedules", "add", topic, "x", "y")
    cli.ok("schedules", "delete", "--yes", topic, "report")


def test_leases(cli: Cli, topic: str) -> None:
    body = {"positions": [{"topic": topic, "partition": 0, "offset": 0}], "holder": "a job"}
    url = f"{cli.node.http_url}/v1/leases/kept"
    httpx.put(url, json=body, auth=("guest", "guest")).raise_for_status()
    (shown,) = [each for each in cli.json("leases", "list") if each["name"] == "kept"]
    assert shown["positions"] == body["positions"]
    assert ["kept", "a", "job", "guest", topic, "1"] in [
        row[:6] for row in cli.rows("leases", "list")
    ]
    cli.ok("leases", "end", "--yes", "kept")
    assert "there is no lease 'kept'" in cli.fails(5, "leases", "end", "--yes", "kept")
