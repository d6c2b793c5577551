"""Compaction, limits without subscriptions and replay on queues, on a live node, by protocol."""

import json
import time
from collections.abc import Callable, Iterator

import httpx
import pika
import pytest
from tests.gateways.crossing import (
    COLUMNS,
    GUEST,
    Client,
    Column,
    Http,
    Message,
    Place,
    Queue,
)

from braidmq.testing.live import LiveNode, live_node

PATIENCE_S = 20.0
COMPACTED = {"enabled": True, "header": "id", "lag_ms": 0, "interval_ms": 1000}
WRITERS = ("http", "amqp", "client", "mqtt5", "$queue")
QUIET_MS = 200


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), ws_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def columns(node: LiveNode) -> Iterator[dict[str, Column]]:
    made = {column.name: column(node) for column in COLUMNS}
    yield made
    for column in made.values():
        column.close()


@pytest.fixture(scope="module")
def api(node: LiveNode) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{node.http_url}/v1", auth=GUEST, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def channel(node: LiveNode) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(where) as connection:
        yield connection.channel()


def make(api: httpx.Client, name: str, **settings: object) -> None:
    api.put(f"/topics/{name}", json={"settings": {"partitions": 1} | settings}).raise_for_status()


def kept(api: httpx.Client, name: str) -> list[str]:
    found = api.get(f"/topics/{name}/partitions/0/messages", params={"start": "earliest"})
    found.raise_for_status()
    return [each.get("value") or "" for each in found.json()["messages"]]


def eventually(look: Callable[[], object], expected: object) -> None:
    """Each look is a request of its own; there is nobody to be told by."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) != expected:
        assert time.monotonic() < deadline, found


def place_of(writer: str, name: str, api: httpx.Client) -> Place:
    if writer == "mqtt5":
        body = {"source": "amq.topic", "destination": name, "routing_key": name}
        api.post("/bindings", json=body).raise_for_status()
    return Place(name)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_header_is_the_key_whoever_wrote_it(
    writer: str, columns: dict[str, Column], api: httpx.Client
) -> None:
    name = f"latest-{writer.strip('$')}"
    make(api, name, compaction=COMPACTED)
    place = place_of(writer, name, api)
    for value, key in (("old", "1"), ("gone", "2"), ("other", "3"), ("new", "1"), ("", "2")):
        columns[writer].publish(place, Message(value.encode(), headers={"id": key}))
    # HTTP's is the same key.
    columns["http"].publish(Place(name), Message(b"newest", headers={"id": "1"}))
    eventually(lambda: kept(api, name), ["other", "newest"])


@pytest.mark.parametrize("writer", WRITERS)
def test_a_plain_topic_without_subscriptions_keeps_to_its_limits(
    writer: str, columns: dict[str, Column], api: httpx.Client
) -> None:
    name = f"limited-{writer.strip('$')}"
    make(api, name, max_messages=2, overflow="drop-head", dead_letter={"topic": None})
    place = place_of(writer, name, api)
    for number in range(5):
        columns[writer].publish(place, Message(b"%d" % number))
    assert kept(api, name) == ["3", "4"]
    make(api, f"{name}-old", ttl_ms=QUIET_MS)
    place = place_of(writer, f"{name}-old", api)
    columns[writer].publish(place, Message(b"x"))
    eventually(lambda: kept(api, f"{name}-old"), [])


def test_who_is_over_a_limit_is_told(
    columns: dict[str, Column], api: httpx.Client, node: LiveNode
) -> None:
    make(api, "full", max_messages=1, overflow="reject")
    columns["http"].publish(Place("full"), Message(b"1"))
    answer = api.post("/topics/full/messages", json={"value": "2"})
    assert answer.status_code >= 400
    assert answer.json()["code"] == "topic-full"
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "full", b"2")
    assert kept(api, "full") == ["1"]


ARGUMENTS = {"x-keep-acknowledged-ms": 3_600_000, "x-keep-acknowledged-bytes": 1_000_000}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_of_amqp_is_replayed(
    kind: str,
    api: httpx.Client,
    columns: dict[str, Column],
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:
    name = f"replayed-{kind}"
    arguments = {**ARGUMENTS, "x-queue-type": kind}
    channel.queue_declare(name, durable=True, arguments=arguments)
    amqp = columns["amqp"]
    for number in range(3):
        amqp.publish(Place(name), Message(b"%d" % number))
    assert [amqp.receive(Place(name)).value for _ in range(3)] == [b"0", b"1", b"2"]
    declared = channel.queue_declare(name, durable=True, arguments=arguments)
    assert declared.method.message_count == 0
    info = api.get(f"/topics/{name}").json()
    assert (info["depth"], info["kept"]) == (0, 3)
    assert info["kept_bytes"] > 0
    api.post(f"/topics/{name}/subscriptions/queue/seek", json={"to": "1"}).raise_for_status()
    declared = channel.queue_declare(name, durable=True, arguments=arguments)
    assert declared.method.message_count == 2
    got = [channel.basic_get(name, auto_ack=True) for _ in range(2)]
    assert [(body, method.redelivered) for method, _, body in got] == [
        (b"1", False),
        (b"2", False),
    ]
    channel.queue_purge(name)
    api.post(f"/topics/{name}/subscriptions/queue/seek", json={"to": "earliest"})
    declared = channel.queue_declare(name, durable=True, arguments=arguments)
    assert declared.method.message_count == 0


def test_a_queue_says_so_each_time_it_is_declared(
    channel: pika.adapters.blocking_connection.BlockingChannel, node: LiveNode
) -> None:
    channel.queue_declare("says-so", durable=True, arguments=ARGUMENTS)
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    for wrong in ({}, {"x-keep-acknowledged-ms": -1}, {"x-keep-acknowledged-ms": "1h"}):
        with pika.BlockingConnection(where) as connection:
            other = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
                other.queue_declare("says-so", durable=True, arguments=wrong)


def test_a_policy_keeps_them_too(
    api: httpx.Client,
    columns: dict[str, Column],
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:
    definition = {"keep-acknowledged-ms": 3_600_000}
    body = {"pattern": "^by-policy$", "definition": definition, "apply_to": "queues"}
    api.put("/policies/%2F/keep", json=body).raise_for_status()
    channel.queue_declare("by-policy", durable=True)
    columns["amqp"].publish(Place("by-policy"), Message(b"x"))
    columns["amqp"].receive(Place("by-policy"))
    assert api.get("/topics/by-policy").json()["kept"] == 1


def test_a_queue_of_mqtt_is_replayed(api: httpx.Client, columns: dict[str, Column]) -> None:
    queue = columns["$queue"]
    assert isinstance(queue, Queue)
    config = {"name": "$queue/again", "partitions": 1}
    config["limits"] = {"keep_acknowledged": "1h", "keep_acknowledged_bytes": 1_000_000}
    queue._publish("$admin/queue/create", json.dumps(config).encode(), None)
    eventually(lambda: api.get("/topics/again").status_code, 200)
    queue.join("again", "workers")
    for number in range(3):
        queue.publish(Place("again"), Message(b"%d" % number))
    assert [queue.next("again").value for _ in range(3)] == [b"0", b"1", b"2"]
    eventually(lambda: api.get("/topics/again").json()["kept"], 3)
    path = "/topics/again/subscriptions/workers/seek"
    api.post(path, json={"to": "earliest"}).raise_for_status()
    assert [queue.next("again").value for _ in range(3)] == [b"0", b"1", b"2"]


def test_the_client_replays(columns: dict[str, Column], api: httpx.Client) -> None:
    client = columns["client"]
    assert isinstance(client, Client)
    rule = {"until_acked": True, "keep_acked_ms": 3_600_000}
    make(api, "by-client", retention=rule)
    api.put("/topics/by-client/subscriptions/queue", json={}).raise_for_status()
    client.publish(Place("by-client"), Message(b"x"))
    http = columns["http"]
    assert isinstance(http, Http)
    assert http.receive(Place("by-client")).value == b"x"
    client._broker.admin.seek_subscription("by-client", "queue", "earliest")
    assert http.receive(Place("by-client")).value == b"x"
