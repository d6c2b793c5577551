"""What an operator does and sees while queues and their consumers live: limits of consumers, ages,
a look without consuming, and publishers that are told to wait."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from braidmq import __version__
from braidmq.client.address import parse_address
from braidmq.loadgen.amqp_client import Client
from braidmq.model.limits import KIB, MIB
from braidmq.testing.live import LiveNode, live_node

WAIT_S = 20
GUEST = ("guest", "guest")


@contextmanager
def opened(node: LiveNode) -> Iterator[BlockingChannel]:
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], heartbeat=0)
    with pika.BlockingConnection(at) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    with opened(node) as channel:
        yield channel


@contextmanager
def http(node: LiveNode) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http_url, auth=GUEST, timeout=WAIT_S) as api:
        yield api


@pytest.fixture
def api(node: LiveNode) -> Iterator[httpx.Client]:
    with http(node) as api:
        yield api


def fill(channel: BlockingChannel, queue: str, count: int, **arguments: Any) -> None:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=named)
    for number in range(count):
        channel.basic_publish("", queue, str(number), pika.BasicProperties(delivery_mode=2))


def take(channel: BlockingChannel, got: list[int], count: int) -> None:
    while len(got) < count:
        channel.connection.process_data_events(WAIT_S)


def set_policy(api: httpx.Client, queue: str, **definition: Any) -> None:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    body = {"pattern": f"^{queue}$", "definition": named, "apply_to": "queues"}
    api.put(f"/v1/policies/%2F/{queue}", json=body).raise_for_status()


@pytest.mark.parametrize("prefetch", [0, 50])
def test_a_policy_caps_consumers_that_are_there(
    channel: BlockingChannel, api: httpx.Client, name: str, prefetch: int
) -> None:
    fill(channel, name, 10)
    set_policy(api, name, consumer_prefetch_max=3)
    got: list[int] = []
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(name, lambda _, method, *__: got.append(method.delivery_tag))
    take(channel, got, 3)
    # Nothing more comes: what follows was sent behind it.
    assert channel.queue_declare(name, passive=True).method.message_count == 7
    (consumer,) = api.get(f"/v1/topics/{name}/consumers").json()
    assert (consumer["prefetch"], consumer["in_flight"], consumer["credit"]) == (3, 3, 0)
    assert api.get(f"/v1/topics/{name}").json()["policy"]["consumer_prefetch_max"] == 3
    channel.basic_ack(got[-1], multiple=True)
    take(channel, got, 6)
    set_policy(api, name, consumer_prefetch_max=5)
    take(channel, got, 8)
    api.delete(f"/v1/policies/%2F/{name}").raise_for_status()
    take(channel, got, 10)
    (consumer,) = api.get(f"/v1/topics/{name}/consumers").json()
    assert consumer.get("prefetch") == (prefetch or None)


def test_one_worker_does_not_hoard_what_another_could_do(
    node: LiveNode, channel: BlockingChannel, api: httpx.Client, name: str
) -> None:
    fill(channel, name, 4)
    set_policy(api, name, consumer_prefetch_max=2)
    first: list[int] = []
    second: list[int] = []
    channel.basic_consume(name, lambda _, method, *__: first.append(method.delivery_tag))
    take(channel, first, 2)
    with opened(node) as other:
        other.basic_consume(name, lambda _, method, *__: second.append(method.delivery_tag))
        take(other, second, 2)


def test_ages_of_a_queue_hold_over_a_restart(tmp_path: Path) -> None:
    with (
        live_node(tmp_path, mqtt_port=0, ws_port=0) as node,
        suppress(pika.exceptions.AMQPError),
        opened(node) as channel,
    ):
        with http(node) as api:
            fill(channel, "q", 3)
            assert channel.basic_get("q")[0] is not None
            first = api.get("/v1/topics/q").json()
            assert 0 <= first["oldest_in_flight_ms"] <= first["oldest_ready_ms"] < WAIT_S * 1000
            series = api.get("/metrics").text
            labels = '{namespace="/",topic="q",subscription="queue"} '
            for what in ("ready", "in_flight"):
                assert f"braid_subscription_oldest_{what}_seconds{labels}" in series
        node.kill()
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, http(node) as api:
        (found,) = api.get("/v1/topics/q/subscriptions").json()
        assert found["ready"] == 3
        assert found["oldest_ready_ms"] >= first["oldest_ready_ms"]
        assert found["oldest_in_flight_ms"] is None


# --- who it is ---


def test_clients_are_told_of_a_rabbitmq_and_may_know_better(
    node: LiveNode, channel: BlockingChannel
) -> None:
    told = channel.connection._impl.server_properties
    assert (told["product"], told["version"].split(".")[:2]) == ("RabbitMQ", ["3", "13"])
    assert told["platform"] == f"BraidMQ {__version__}"
    assert f"BraidMQ {__version__}" in told["information"]
    load = Client(parse_address(f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"))
    assert load.server == f"BraidMQ {__version__}"
    load.close()


def test_it_may_give_its_own_name(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text('[amqp]\nproduct = "BraidMQ"\n')
    with live_node(tmp_path / "data", config=config) as node, opened(node) as channel:
        told = channel.connection._impl.server_properties
        assert (told["product"], told["version"]) == ("BraidMQ", __version__)


# --- a look without consuming ---


KINDS: list[dict[str, Any]] = [
    {},
    {"x_max_priority": 9},
    {"x_message_ttl": 3_600_000, "x_max_length": 100, "x_dead_letter_exchange": ""},
    {"x_queue_type": "quorum"},
    {"x_single_active_consumer": True},
]


@pytest.mark.parametrize("arguments", KINDS, ids=lambda each: next(iter(each), "classic"))
def test_a_look_over_http_changes_nothing_of_a_queue(
    channel: BlockingChannel, api: httpx.Client, name: str, arguments: dict[str, Any]
) -> None:
    fill(channel, name, 5, **arguments)
    held, _, _ = channel.basic_get(name)
    assert held is not None
    seen = api.get(f"/v1/topics/{name}/partitions/0/messages").json()["messages"]
    # Whatever becomes of them: also those that somebody has.
    assert [each["value"] for each in seen] == ["0", "1", "2", "3", "4"]
    channel.basic_ack(held.delivery_tag)
    (found,) = api.get(f"/v1/topics/{name}/subscriptions").json()
    assert (found["ready"], found["in_flight"], found["delivered"]) == (4, 0, 1)
    got = [channel.basic_get(name, auto_ack=True) for _ in range(4)]
    assert [each[2] for each in got] == [b"1", b"2", b"3", b"4"]
    assert not any(each[0].redelivered for each in got)


def test_an_exclusive_queue_is_its_connections_own_also_to_look_at(
    channel: BlockingChannel, api: httpx.Client, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, "mine")
    refused = api.get(f"/v1/topics/{name}/partitions/0/messages")
    assert refused.json()["code"] == "exclusive-queue"


# --- publishers that are told to wait ---


def test_who_connects_while_publishers_are_blocked_is_told_when_it_publishes(
    tmp_path: Path,
) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[limits]\nmemory_slow_bytes = 1048576\nmemory_block_bytes = 2097152\n")
    with (
        live_node(tmp_path / "data", config=config) as node,
        suppress(pika.exceptions.AMQPError),
        opened(node) as first,
    ):
        told: list[str] = []
        watch(first, told)
        out = first.connection.channel()
        out.queue_declare("q")
        published = 0
        while not told:
            assert published * 16 * KIB < 64 * MIB, "it was never blocked"
            out.basic_publish("", "q", bytes(16 * KIB))
            published += 1
            first.connection.process_data_events(0)
        with opened(node) as late:
            later: list[str] = []
            watch(late, later)
            # A client that only consumes has nothing to wait for.
            assert late.queue_declare("q", passive=True).method.message_count > 0
            assert later == []
            new = late.connection.channel()
            new.basic_publish("", "q", b"late")
            while not later:
                late.connection.process_data_events(WAIT_S)
            deadline = time.monotonic() + WAIT_S
            # By another way: what a blocked connection says behind a publish waits with it.
            with http(node) as api:
                while later[-1] != "unblocked" or told[-1] != "unblocked":
                    assert time.monotonic() < deadline
                    api.post("/v1/topics/q/purge").raise_for_status()
                    late.connection.process_data_events(0.01)
                    first.connection.process_data_events(0.01)
            # Who is blocked again can't say goodbye.
            node.kill()


def watch(channel: BlockingChannel, told: list[str]) -> None:
    connection = channel.connection
    connection.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
