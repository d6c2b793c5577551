"""A live node tells a real server of its dead letters (catalogue row D6)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from webhook_server import Receiver, receiving

from braidmq.testing.live import LiveNode, free_ports, live_node

GUEST = ("guest", "guest")
AT_STOP = 3600.0
"""A window that does not end before the node stops: what died is told then, and all at once."""


@contextmanager
def node_with(tmp_path: Path, window_s: float, **more: object) -> Iterator[LiveNode]:
    config = tmp_path / "braid.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    config.write_text("\n".join(["[alerts]", f"window_s = {window_s}", *lines, ""]))
    with live_node(tmp_path / "data", config=config, ws_port=0) as node:
        yield node


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def call(node: LiveNode, method: str, path: str, body: Any = None) -> Any:
    url = f"{node.http_url}/v1{path}"
    answer = httpx.request(method, url, json=body, auth=GUEST, timeout=60)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def make(node: LiveNode, topic: str, webhook: str) -> None:
    settings = {
        "partitions": 1,
        "retry": {"attempts": 2, "base_ms": 0},
        "dead_letter": {"alert_webhook": webhook},
    }
    call(node, "PUT", f"/topics/{topic}", {"settings": settings})
    call(node, "PUT", f"/topics/{topic}/subscriptions/workers", {})


def publish(node: LiveNode, topic: str, count: int) -> None:
    messages = [{"value": str(number)} for number in range(count)]
    call(node, "POST", f"/topics/{topic}/messages/batch", {"messages": messages})


def receive(node: LiveNode, topic: str, count: int) -> list[str]:
    path = f"/topics/{topic}/subscriptions/workers/receive"
    got = call(node, "POST", path, {"limit": count, "wait_ms": 20_000})["messages"]
    assert len(got) == count
    return [each["receipt"] for each in got]


def answer(node: LiveNode, verb: str, receipts: list[str], **more: object) -> None:
    call(node, "POST", f"/receipts/{verb}", {"receipts": receipts, **more})


def metric(node: LiveNode, name: str) -> float:
    lines = httpx.get(f"{node.http_url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_failing_to_the_end_is_one_post_with_all_of_it(tmp_path: Path, server: Receiver) -> None:
    with node_with(tmp_path, AT_STOP) as node:
        make(node, "orders", server.url)
        publish(node, "orders", 7)
        for _ in range(2):
            answer(node, "nack", receive(node, "orders", 5), error="no luck")
        answer(node, "ack", receive(node, "orders", 2))
        assert node.stop() == 0
        assert not node.complaints
    document = server.next()
    (sample,) = document.pop("samples")
    first_ms, last_ms = document.pop("first_at_ms"), document.pop("last_at_ms")
    assert document.pop("id")
    assert document == {
        "event": "dead-letters",
        "namespace": "/",
        "topic": "orders",
        "dead_letter_topics": ["orders.dlq"],
        "reason": "max-attempts",
        "count": 5,
        "last_error": "no luck",
    }
    assert 0 < first_ms <= last_ms
    assert sample == {
        "partition": 0,
        "first_offset": 0,
        "count": 5,
        "attempts": 2,
        "subscription": "workers",
    }
    assert server.arrived.empty()


def test_an_amqp_queue_has_its_webhook_by_policy(tmp_path: Path, server: Receiver) -> None:
    with node_with(tmp_path, AT_STOP) as node:
        definition = {"dead-letter-alert-webhook": server.url}
        policy = {"pattern": "^tasks$", "definition": definition, "apply_to": "queues"}
        call(node, "PUT", "/policies/%2F/alerts", policy)
        parameters = pika.ConnectionParameters(port=node.ports["amqp_port"])
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("dead", durable=True)
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            channel.queue_declare("tasks", durable=True, arguments=arguments)
            for number in range(4):
                channel.basic_publish("", "tasks", b"%d" % number)
            for _ in range(3):
                got, _, _ = channel.basic_get("tasks")
                channel.basic_reject(got.delivery_tag, requeue=False)
            assert channel.queue_declare("dead", passive=True).method.message_count == 3
        assert node.stop() == 0
        assert not node.complaints
    document = server.next()
    assert (document["topic"], document["dead_letter_topics"]) == ("tasks", ["dead"])
    assert (document["reason"], document["count"]) == ("rejected", 3)
    assert [each["first_offset"] for each in document["samples"]] == [0, 1, 2]
    assert server.arrived.empty()


def test_a_template_gives_topics_their_webhook(tmp_path: Path, server: Receiver) -> None:
    with node_with(tmp_path, 0.01) as node:
        settings = {"dead_letter": {"alert_webhook": server.url}}
        call(node, "PUT", "/templates/shop", {"pattern": "^shop[.]", "settings": settings})
        call(node, "PUT", "/topics/shop.orders", {"settings": {"partitions": 1}})
        call(node, "PUT", "/topics/shop.orders/subscriptions/workers", {})
        publish(node, "shop.orders", 1)
        answer(node, "reject", receive(node, "shop.orders", 1))
        document = server.next()
        assert (document["topic"], document["count"]) == ("shop.orders", 1)


def test_a_webhook_that_is_down_is_told_when_it_is_back(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with node_with(tmp_path, 0.01) as node:
        make(node, "orders", f"http://localhost:{port}/hook")
        publish(node, "orders", 2)
        answer(node, "reject", receive(node, "orders", 2))
        line = node.wait_for_log("alert not delivered", "topic=orders", "dead_letters=2")
        assert f"webhook=http://localhost:{port} " in line
        with receiving(port) as server:
            assert server.next()["count"] == 2
            assert node.stop() == 0
            assert server.arrived.empty()
        assert not node.complaints


def test_a_refusal_is_repeated_with_the_same_id(tmp_path: Path, server: Receiver) -> None:
    server.statuses = [503]
    with node_with(tmp_path, 0.01) as node:
        make(node, "orders", server.url)
        publish(node, "orders", 1)
        answer(node, "reject", receive(node, "orders", 1))
        first, second = server.next(), server.next()
        assert first == second
        node.wait_for_log("alert not delivered", 'failure="the answer was 503"')
        assert not [line for line in node.lines if "secret-of-the-hook" in line]


def test_a_webhook_that_does_not_answer_holds_nobody_up(tmp_path: Path, server: Receiver) -> None:
    """While one alert waits for its answer the broker works, and what dies is gathered."""
    server.answers.clear()
    with node_with(tmp_path, 0.01, timeout_s=600) as node:
        make(node, "orders", server.url)
        publish(node, "orders", 20)
        answer(node, "reject", receive(node, "orders", 1))
        assert server.next()["count"] == 1
        for _ in range(6):
            answer(node, "reject", receive(node, "orders", 2))
        answer(node, "ack", receive(node, "orders", 7))
        assert server.arrived.empty()
        assert metric(node, "braid_alerts_sent_total") == 0
        server.answers.set()
        assert server.next()["count"] == 12
        assert node.stop() == 0
        assert server.busy_max == 1


def test_a_node_stops_though_a_webhook_never_answers(tmp_path: Path, server: Receiver) -> None:
    server.answers.clear()
    config = tmp_path / "braid.toml"
    config.write_text(
        "[node]\nshutdown_deadline_s = 0.5\n[alerts]\nwindow_s = 0.01\ntimeout_s = 600\n"
    )
    with live_node(tmp_path / "data", config=config) as node:
        make(node, "orders", server.url)
        publish(node, "orders", 2)
        answer(node, "reject", receive(node, "orders", 1))
        server.next()
        answer(node, "reject", receive(node, "orders", 1))
        assert node.stop() == 0
        assert [
            line
            for line in node.lines
            if "alerts dropped: the node is shutting down  alerts=2" in line
        ]
        assert not node.complaints


def test_the_setting_survives_a_restart_and_can_be_taken_back(
    tmp_path: Path, server: Receiver
) -> None:
    with node_with(tmp_path, 0.01) as node:
        make(node, "orders", server.url)
        node.kill()
    with node_with(tmp_path, 0.01) as node:
        policy = call(node, "GET", "/topics/orders")["policy"]
        assert policy["dead_letter"]["alert_webhook"] == server.url
        publish(node, "orders", 2)
        answer(node, "reject", receive(node, "orders", 1))
        assert server.next()["count"] == 1
        off = {"settings": {"dead_letter": {"alert_webhook": None}}}
        call(node, "PATCH", "/topics/orders", off)
        answer(node, "reject", receive(node, "orders", 1))
        assert node.stop() == 0
        assert server.arrived.empty()


def test_hosts_that_are_not_allowed_are_not_reached(tmp_path: Path, server: Receiver) -> None:
    with node_with(tmp_path, 0.01, hosts="hooks.example.com, *.example.org") as node:
        make(node, "orders", server.url)
        publish(node, "orders", 1)
        answer(node, "reject", receive(node, "orders", 1))
        node.wait_for_log("alert abandoned", 'failure="its host is not in alerts.hosts"')
        assert metric(node, "braid_alerts_failed_total") == 1
        assert server.arrived.empty()


@pytest.mark.parametrize(
    "webhook",
    [
        "",
        "hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "http://",
        "http://host:0/",
        "http://host:99999/",
        "http://user:password@host/",
        "http://host/a b",
        "http://host/\r\nX-Header: 1",
        "http://hôte/",
        "http://[::1/",
        "https://host/" + "x" * 2048,
        17,
    ],
)
def test_what_is_no_webhook_is_refused_and_changes_nothing(
    webhook: object, api_node: LiveNode
) -> None:
    settings = {"settings": {"dead_letter": {"alert_webhook": webhook}}}
    url = f"{api_node.http_url}/v1/topics/refused"
    refused = httpx.put(url, json=settings, auth=GUEST)
    assert (refused.status_code, refused.json()["code"]) == (400, "illegal-policy")
    assert httpx.get(url, auth=GUEST).status_code == 404


@pytest.fixture(scope="module")
def api_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), mqtt_port=0, ws_port=0, amqp_port=0) as node:
        yield node
