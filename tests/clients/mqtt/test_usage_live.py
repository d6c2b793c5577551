"""Usage as a live node meters it: every protocol, in and out, whatever is still there."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from queue_worker import Worker
from typer.testing import CliRunner

from braidmq.cli.app import app
from braidmq.testing.live import LiveNode, live_node

GUEST = ("guest", "guest")


def usage(node: LiveNode, **query: Any) -> dict[str, tuple[int, int, int, int]]:
    """By protocol."""
    answer = httpx.get(f"{node.http_url}/v1/usage", params=query, auth=GUEST).raise_for_status()
    found: dict[str, list[int]] = {}
    for row in answer.json()["rows"]:
        counts = found.setdefault(row["protocol"], [0, 0, 0, 0])
        for at, name in enumerate(("published", "published_bytes", "delivered", "delivered_bytes")):
            counts[at] += row[name]
    return {name: (a, b, c, d) for name, (a, b, c, d) in found.items()}


def amqp(node: LiveNode) -> pika.BlockingConnection:
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    return pika.BlockingConnection(where)


def test_amqp_counts_what_came_and_each_delivery(fresh_node: LiveNode) -> None:
    with amqp(fresh_node) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.queue_declare("r")
        channel.exchange_declare("both", "fanout")
        for queue in "qr":
            channel.queue_bind(queue, "both")
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("both", "", b"12345")
        channel.basic_publish("", "q", b"123")
        for _ in range(4):
            method, _, _ = channel.basic_get("q")
            channel.basic_nack(method.delivery_tag)
        channel.basic_get("r", auto_ack=True)
    assert usage(fresh_node)["amqp"] == (4, 18, 5, 25)
    httpx.delete(f"{fresh_node.http_url}/v1/topics/q", auth=GUEST).raise_for_status()
    assert usage(fresh_node)["amqp"] == (4, 18, 5, 25)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_counts_every_copy(fresh_node: LiveNode, qos: int) -> None:
    with Worker(fresh_node) as one, Worker(fresh_node) as two, Worker(fresh_node) as maker:
        for number, each in enumerate((one, two)):
            each.connect(f"reader-{number}")
            each.subscribe("a/+", qos=qos)
        maker.connect("maker")
        for _ in range(5):
            maker.publish("a/1", b"payload", qos)
            for each in (one, two):
                assert each.message().payload == b"payload"
    assert usage(fresh_node)["mqtt"] == (5, 35, 10, 70)


def test_durable_queues_and_http(fresh_node: LiveNode) -> None:
    with Worker(fresh_node) as worker:
        worker.connect()
        worker.join("q", "g")
        url = f"{fresh_node.http_url}/v1/topics/q"
        batch = {"messages": [{"value": "1234"}, {"value": "12"}]}
        httpx.post(f"{url}/messages/batch", json=batch, auth=GUEST).raise_for_status()
        for _ in range(2):
            worker.take("q")
        worker.put("q", b"123456")
        worker.take("q")
        httpx.put(f"{url}/subscriptions/s", json={}, auth=GUEST).raise_for_status()
        httpx.post(f"{url}/messages", json={"value": "12"}, auth=GUEST).raise_for_status()
        worker.take("q")
        got = httpx.post(f"{url}/subscriptions/s/receive", json={"limit": 9}, auth=GUEST).json()
        sizes = [len(each["value"]) for each in got["messages"]]
    found = usage(fresh_node)
    assert found["mqtt"] == (1, 6, 4, 14)
    assert found["http"] == (3, 8, len(sizes), sum(sizes))
    assert sizes


def test_it_survives_a_stop_and_can_be_exported(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        with amqp(node) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"12345")
        assert node.stop() == 0
    with live_node(tmp_path) as node:
        assert usage(node)["amqp"] == (1, 5, 0, 0)
        assert usage(node, namespace="other") == {}
        assert usage(node, by="day", protocol="amqp") == {"amqp": (1, 5, 0, 0)}
        assert usage(node, to_ms=1) == {}
        as_csv = httpx.get(f"{node.http_url}/v1/usage/export", params={"format": "csv"}, auth=GUEST)
        assert as_csv.headers["content-type"].startswith("text/csv")
        (row,) = csv.DictReader(io.StringIO(as_csv.text))
        assert (row["namespace"], row["protocol"], row["published"]) == ("/", "amqp", "1")
        lines = httpx.get(
            f"{node.http_url}/v1/usage/export", params={"format": "ndjson"}, auth=GUEST
        )
        assert json.loads(lines.text)["published_bytes"] == 5
        runner = CliRunner()
        said = runner.invoke(app, ["usage", "--csv", "--url", node.http_url])
        assert list(csv.DictReader(io.StringIO(said.output))) == [row]
        said = runner.invoke(app, ["usage", "--daily", "--ndjson", "--url", node.http_url])
        assert json.loads(said.output)["published"] == 1
        assert "5 B" in runner.invoke(app, ["usage", "--url", node.http_url]).output


def test_it_comes_in_pages(fresh_node: LiveNode) -> None:
    with httpx.Client(base_url=fresh_node.http_url, auth=GUEST) as http:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        for name in ("a", "b", "c:d"):
            http.put(f"/v1/namespaces/{name}", json={}).raise_for_status()
            http.put(f"/v1/permissions/{name}/guest", json=everything).raise_for_status()
            where = {"namespace": name}
            http.put("/v1/topics/t", json={}, params=where).raise_for_status()
            http.post("/v1/topics/t/messages", json={"value": "x"}, params=where).raise_for_status()
        first = http.get("/v1/usage", params={"limit": 2})
        following = {"limit": 2, "cursor": first.headers["braid-next"]}
        second = http.get("/v1/usage", params=following)
        assert "braid-next" not in second.headers
        rows = first.json()["rows"] + second.json()["rows"]
        assert [row["namespace"] for row in rows] == ["a", "b", "c:d"]
        text = http.get("/v1/usage/export", params={"limit": 2})
        assert text.headers["braid-next"] == first.headers["braid-next"]
        assert http.get("/v1/usage", params={"cursor": "x"}).status_code == 400
