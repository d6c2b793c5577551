"""``braid groups``, ``braid dlq``, ``braid delayed`` and ``braid leases``."""

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
    assert ["lagging", topic, "shared", "0", "1", "1", "0"] in cli.rows("groups", "list")
    assert cli.rows("groups", "show", "lagging") == [
        ["topic", "partition", "committed", "end", "lag", "in", "flight"],
        [topic, "0", "2", "3", "1", "0"],
        [],
        ["lagging:", "lag", "1,", "consumers", "0"],
    ]
    for place, lag in (("earliest", 3), ("latest", 0), ("1", 2), ("1h", 3)):
        cli.ok("groups", "seek", "lagging", place)
        assert lags(cli, "lagging") == {topic: lag}
    cli.ok("groups", "delete", "lagging")
    assert cli.json("groups", "list", "--topic", topic) == []
    assert "braid groups list" in cli.fails(5, "groups", "show", "lagging")


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
    cli.ok("groups", "seek", "team", "latest", "--topic", "north")
    assert lags(cli, "team") == {"north": 0, "south": 2}
    assert "team" in cli.fails(6, "groups", "delete", "team")
    api.delete("groups", "team", "members", joined["member_id"], generation=joined["generation"])
    cli.ok("groups", "delete", "team")
    cli.fails(5, "groups", "show", "team")


def test_groups_mistakes(cli: Cli, topic: str) -> None:
    cli.fails(5, "groups", "seek", "nobody", "earliest")
    cli.fails(5, "groups", "show", "nobody", "--topic", topic)
    cli.fails(5, "groups", "list", "--topic", "no-topic")
    assert "an age (10m)" in cli.fails(2, "groups", "seek", "nobody", "backwards")


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
    assert cli.json("dlq", "purge", dead, "0") == {"count": 1}
    assert cli.json("dlq", "retry", dead, "--all") == {"count": 1}
    assert cli.json("dlq", "list", dead) == []
    assert cli.ok("dlq", "purge", dead, "--all") == "0 dead letters removed\n"
    again = [each["value"] for each in cli.lines("consume", dead)]
    assert again[-2:] == ["\x1b[2J second", "third"]


def test_dead_letter_mistakes(cli: Cli, dead: str) -> None:
    assert "has no dead letter 99" in cli.fails(5, "dlq", "show", dead, "99")
    for what in ("retry", "purge"):
        assert "--all" in cli.fails(2, "dlq", what, dead)
        assert "--all" in cli.fails(2, "dlq", what, dead, "0", "--all")
        cli.fails(5, "dlq", what, dead, "99")
    cli.fails(5, "dlq", "list", "no-topic")
    assert len(cli.json("dlq", "list", dead)) == 3


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
    cli.ok("delayed", "cancel", topic, "0", "1")
    assert cli.json("delayed", "count", topic) == {"topic": topic, "count": 1}
    cli.fails(5, "delayed", "cancel", topic, "0", "1")
    cli.fails(5, "delayed", "list", "no-topic")


def test_leases(cli: Cli, topic: str) -> None:
    body = {"positions": [{"topic": topic, "partition": 0, "offset": 0}], "holder": "a job"}
    url = f"{cli.node.http_url}/v1/leases/kept"
    httpx.put(url, json=body, auth=("guest", "guest")).raise_for_status()
    (shown,) = [each for each in cli.json("leases", "list") if each["name"] == "kept"]
    assert shown["positions"] == body["positions"]
    assert ["kept", "a", "job", "guest", topic, "1"] in [
        row[:6] for row in cli.rows("leases", "list")
    ]
    cli.ok("leases", "end", "kept")
    assert "there is no lease 'kept'" in cli.fails(5, "leases", "end", "kept")
