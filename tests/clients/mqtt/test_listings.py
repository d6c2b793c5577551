"""Who consumes, sessions with their filters, retained messages and past connections, as a node
with clients of all protocols lists them (catalogue row O5)."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pika
import pytest
from queue_worker import Worker, user
from typer.testing import CliRunner

from braidmq.cli.app import app
from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.properties import Properties

GUEST = ("guest", "guest")
KEPT = Properties(session_expiry_interval=3600)


@pytest.fixture
def http(node: LiveNode) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http_url, auth=GUEST, timeout=30) as client:
        yield client


def listed(http: httpx.Client, path: str, **query: Any) -> Any:
    return http.get(path, params=query).raise_for_status().json()


def second_page(http: httpx.Client, path: str, **query: Any) -> Any:
    """What follows the first page."""
    first = http.get(path, params=query).raise_for_status()
    return listed(http, path, **query, cursor=first.headers["braid-next"])


def braid(node: LiveNode, *words: str) -> Any:
    given = [*words, "--json", "--url", node.http_url]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def until(look: Callable[[], Any]) -> Any:
    """What is found, once something is: the node has not read yet that a socket was closed."""
    for _ in range(1000):
        if found := look():
            return found
    raise AssertionError("it never was")


def amqp(node: LiveNode) -> pika.BlockingConnection:
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    return pika.BlockingConnection(where)


def test_consumers_of_a_queue_with_their_clients(
    node: LiveNode, http: httpx.Client, name: str
) -> None:
    with amqp(node) as connection, Worker(node) as worker:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume(name, lambda *_: None, consumer_tag="reader")
        for _ in range(5):
            channel.basic_publish("", name, b"x")
        worker.connect(f"{name}-client")
        worker.join(name, "others")
        channel.queue_declare(name, passive=True)  # all of it has happened
        found = {each["protocol"]: each for each in listed(http, f"/v1/topics/{name}/consumers")}
        by_amqp, by_mqtt = found["amqp"], found["mqtt"]
        assert (by_amqp["in_flight"], by_amqp["credit"]) == (3, 0)
        assert by_amqp["subscription"] == "queue"
        sessions = {each["id"]: each for each in listed(http, "/v1/connections")}
        client = by_amqp["client"]
        assert (client["user"], client["tag"]) == ("guest", "reader")
        assert client["peer"] == sessions[client["connection"]]["peer"]
        assert by_mqtt["subscription"] == "others"
        assert by_mqtt["client"]["client"] == f"{name}-client"
        assert by_mqtt["client"]["tag"] == f"$queue/{name}"
        assert sessions[by_mqtt["client"]["connection"]]["protocol"] == "mqtt"
        (first,) = listed(http, f"/v1/topics/{name}/consumers", limit=1)
        (second,) = second_page(http, f"/v1/topics/{name}/consumers", limit=1)
        assert {first["protocol"], second["protocol"]} == {"amqp", "mqtt"}
        assert len(braid(node, "topics", "consumers", name)) == 2


def test_members_over_http_are_consumers_too(node: LiveNode, http: httpx.Client, name: str) -> None:
    http.put(f"/v1/topics/{name}", json={}).raise_for_status()
    body = {"topics": [name], "client": "c"}
    joined = http.post(f"/v1/groups/{name}/members", json=body).raise_for_status().json()
    (found,) = listed(http, f"/v1/topics/{name}/consumers")
    assert found["protocol"] == "http"
    assert (found["client"]["user"], found["client"]["tag"]) == ("guest", joined["member_id"])


def test_whose_clients_others_are_is_for_who_may_monitor(
    node: LiveNode, http: httpx.Client, name: str
) -> None:
    http.put(f"/v1/users/{name}", json={"password": "secret"}).raise_for_status()
    rights = {"configure": "", "write": "", "read": ".*"}
    http.put(f"/v1/permissions/%2F/{name}", json=rights).raise_for_status()
    with Worker(node) as worker:
        worker.connect(f"{name}-client", clean_start=False, properties=KEPT)
        worker.join(name, "g")
        worker.subscribe("a/+", qos=1)
        with httpx.Client(base_url=node.http_url, auth=(name, "secret")) as reader:
            (found,) = listed(reader, f"/v1/topics/{name}/consumers")
            assert (found["protocol"], "client" in found) == ("mqtt", False)
            assert listed(reader, "/v1/mqtt/sessions") == []
            path = f"/v1/mqtt/sessions/{name}-client/filters"
            assert reader.get(path).status_code == 403
            assert listed(reader, "/v1/connections/history") == []


def test_sessions_and_their_filters(node: LiveNode, http: httpx.Client, name: str) -> None:
    client = f"{name}-client"
    with Worker(node) as worker:
        worker.connect(client, clean_start=False, properties=KEPT)
        worker.subscribe(f"{name}/a/#", qos=1, properties=Properties(subscription_identifiers=(9,)))
        worker.subscribe(f"$share/team/{name}/b", qos=2)
        worker.subscribe(f"$queue/{name}", qos=1, properties=user(consumer_group="g"))
        (shown,) = [each for each in listed(http, "/v1/mqtt/sessions") if each["client"] == client]
        assert (shown["connected"], shown["filters"], shown["expiry_s"]) == (True, 3, 3600)
    path = f"/v1/mqtt/sessions/{client}/filters"
    found = listed(http, path)
    assert [(each["filter"], each["qos"]) for each in found] == [
        (f"$queue/{name}", 1),
        (f"$share/team/{name}/b", 2),
        (f"{name}/a/#", 1),
    ]
    assert (found[0]["queue_group"], found[0]["explicit"]) == ("g", True)
    assert found[1]["share"] == "team"
    assert found[2]["identifier"] == 9
    assert second_page(http, path, limit=1) == found[1:2]
    assert braid(node, "mqtt", "filters", client) == found
    assert http.get("/v1/mqtt/sessions/nobody/filters").json()["code"] == "unknown-session"
    with Worker(node) as sender:
        sender.connect()
        sender.answer(sender.publish(f"{name}/a/1", b"x", 1))
    (shown,) = until(
        lambda: [
            each
            for each in braid(node, "mqtt", "sessions")
            if each["client"] == client and not each["connected"]
        ]
    )
    assert shown["waiting"] == 1
    assert shown["disconnected_ms"] > 0


def test_retained_messages(node: LiveNode, http: httpx.Client, name: str) -> None:
    with Worker(node) as worker:
        worker.connect()
        for number in range(5):
            sent = worker.publish(f"{name}/{number}/state", b"on" * number, 1, retain=True)
            worker.answer(sent)
    wanted = [(f"{name}/{number}/state", 2 * number) for number in range(1, 5)]
    path, query = "/v1/mqtt/retained", {"filter": f"{name}/+/state", "limit": 2}
    page = listed(http, path, **query) + second_page(http, path, **query)
    assert [(each["topic"], each["bytes"]) for each in page] == wanted
    assert len(braid(node, "mqtt", "retained", f"{name}/#")) == 4
    one = listed(http, f"/v1/mqtt/retained/{name}%2F2%2Fstate")
    assert (one["topic"], one["value"]) == (f"{name}/2/state", "onon")
    assert http.get(f"/v1/mqtt/retained/{name}").json()["code"] == "nothing-retained"
    assert http.get("/v1/mqtt/retained", params={"filter": "a#"}).status_code == 400
    # A place that the filter can't have is before or behind all it has, and no mistake.
    place = base64.urlsafe_b64encode(json.dumps([f"{name}/1/state"]).encode()).decode()
    assert listed(http, "/v1/mqtt/retained", filter=name, cursor=place) == []


def test_connections_that_are_over_and_why(node: LiveNode, http: httpx.Client, name: str) -> None:
    with Worker(node) as worker, amqp(node) as connection:
        worker.connect(name)
        channel = connection.channel()
        sessions = [each for each in listed(http, "/v1/connections") if each["client"] == name]
        http.delete(f"/v1/connections/{sessions[0]['id']}").raise_for_status()
        channel.close()
        ours = {each["id"] for each in listed(http, "/v1/connections")}
    until(lambda: not ours & {each["id"] for each in listed(http, "/v1/connections")})
    past = listed(http, "/v1/connections/history")
    mine = next(each for each in past if each["client"] == name)
    assert mine["reason"] == "closed by guest over HTTP"
    assert mine["protocol"] == "mqtt"
    assert mine["connected_ms"] <= mine["ended_ms"]
    assert "amqp" in {each["protocol"] for each in past}
    numbers = [each["number"] for each in past]
    assert numbers == sorted(numbers, reverse=True)
    assert second_page(http, "/v1/connections/history", limit=1) == past[1:2]
    assert braid(node, "connections", "history", "--limit", "1") == past[:1]
