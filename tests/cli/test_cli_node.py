"""``braid exchanges``, ``bindings``, ``connections``, ``tokens``, ``top`` and ``doctor``."""

import httpx
import pytest
from commands import Cli

import braidmq


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
    assert "nobody gets" in cli.fails(1, "publish", "other", "x", "--exchange", "events")
    cli.ok("bindings", "delete", "spare", "events", "--to-exchange", "--argument", "a.b=1")
    assert cli.json("bindings", "list", "--source", "spare") == []
    cli.fails(6, "exchanges", "delete", "events", "--if-unused")
    cli.ok("exchanges", "delete", "events")
    assert "events" not in {each["name"] for each in cli.json("exchanges", "list")}


def test_routing_mistakes(cli: Cli, topic: str) -> None:
    cli.fails(5, "exchanges", "delete", "no-exchange")
    cli.fails(5, "bindings", "create", "no-exchange", topic)
    cli.fails(6, "exchanges", "create", "amq.topic", "--kind", "fanout")
    assert "As source=shop" in cli.fails(2, "exchanges", "create", "x", "--argument", "x")


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
        cli.ok("connections", "close", row["id"])
        with pytest.raises(braidmq.BraidError):
            broker.declare_queue("seen")
    cli.fails(5, "connections", "close", row["id"])


def test_tokens(cli: Cli) -> None:
    token = cli.ok("tokens", "create", "--description", "build server", "--expires", "30d").strip()
    at = f"{cli.node.http_url}/v1/topics"
    bearer = {"Authorization": f"Bearer {token}"}
    assert httpx.get(at, headers=bearer).status_code == 200
    (row,) = cli.json("tokens", "list")
    assert row["expires_ms"] - row["created_ms"] == 30 * 86_400_000
    assert cli.rows("tokens", "list")[1][:4] == [row["id"], "guest", "build", "server"]
    cli.ok("tokens", "revoke", row["id"])
    assert httpx.get(at, headers=bearer).status_code == 401
    cli.fails(5, "tokens", "revoke", row["id"])
    cli.fails(5, "tokens", "create", "--for", "nobody")
    assert "As 250ms" in cli.fails(2, "tokens", "create", "--expires", "never")
