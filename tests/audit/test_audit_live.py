"""Real clients change things on a live node; who it was is asked over HTTP, in the shell, and read
from the topic."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from braidmq.testing.live import LiveNode, live_node

PASSWORD = "a-secret-password"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    home = tmp_path_factory.mktemp("audit")
    config = home / "braid.toml"
    config.write_text("[audit]\ntopic = true\n[log]\nlevel = 'error'\n")
    with live_node(home / "data", config=config) as running:
        yield running
        assert running.stop() == 0
        assert not running.complaints
    for file in (home / "data" / "audit").iterdir():
        text = file.read_text()
        assert PASSWORD not in text
        assert all(json.loads(line)["kind"] in file.name for line in text.splitlines())


@pytest.fixture(scope="module")
def http(node: LiveNode) -> Iterator[httpx.Client]:
    with administrator(node) as client:
        body = {"password": PASSWORD, "tags": ["monitoring"]}
        assert client.put("/v1/users/ann", json=body).status_code == 201
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        assert client.put("/v1/permissions/%2F/ann", json=every).status_code == 201
        yield client


def administrator(node: LiveNode) -> httpx.Client:
    return httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=60)


def events(http: httpx.Client, **query: str | int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = http.get("/v1/audit", params={**query, "limit": 3, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["events"]
        if not (cursor := answer.headers.get("braid-next", "")):
            return found


def until(http: httpx.Client, count: int, **query: str | int) -> list[dict[str, Any]]:
    """They are written by a thread: asked for until they are there."""
    for _ in range(1000):
        if len(found := events(http, **query)) >= count:
            return found
    raise AssertionError(f"{query}: {found}")


def test_amqp(node: LiveNode, http: httpx.Client) -> None:
    credentials = pika.PlainCredentials("ann", PASSWORD)
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], "/", credentials)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("work", durable=True)
        channel.queue_bind("work", "events", "a.#")
        channel.basic_publish("events", "a.b", b"x")
        channel.queue_purge("work")
        channel.queue_unbind("work", "events", "a.#")
        channel.queue_delete("work")
        channel.exchange_delete("events")
    found = until(http, 7, user="ann", protocol="amqp", kind="object")[::-1]
    assert [(each["operation"], each["object"]) for each in found] == [
        ("exchange.declare", "events"),
        ("queue.declare", "work"),
        ("bind", "work"),
        ("queue.purge", "work"),
        ("unbind", "work"),
        ("queue.delete", "work"),
        ("exchange.delete", "events"),
    ]
    assert all(each["peer"].startswith("127.0.0.1:") for each in found)
    assert all(each["namespace"] == "/" for each in found)
    (login,) = until(http, 1, user="ann", protocol="amqp", kind="login")
    assert login["facts"]["by"] == "PLAIN"


def connect_mqtt(node: LiveNode, user: str, password: str) -> list[ReasonCode]:
    client = paho.Client(CallbackAPIVersion.VERSION2, "meter", protocol=paho.MQTTv5)
    client.username_pw_set(user, password)
    reasons: list[ReasonCode] = []
    client.on_connect = lambda *given: reasons.append(given[3])
    client.connect("127.0.0.1", node.ports["mqtt_port"])
    while not reasons:
        client.loop()
    client.disconnect()
    return reasons


def test_mqtt(node: LiveNode, http: httpx.Client) -> None:
    (reason,) = connect_mqtt(node, "ann", PASSWORD)
    assert not reason.is_failure
    (login,) = until(http, 1, user="ann", protocol="mqtt", kind="login")
    assert login["facts"]["by"] == "password"


@pytest.mark.parametrize("protocol", ["amqp", "mqtt", "http"])
def test_a_refused_login(node: LiveNode, http: httpx.Client, protocol: str) -> None:
    user = f"mallory-{protocol}"
    if protocol == "amqp":
        credentials = pika.PlainCredentials(user, "wrong")
        where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], "/", credentials)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(where)
    elif protocol == "mqtt":
        (reason,) = connect_mqtt(node, user, "wrong")
        assert reason.is_failure
    else:
        assert http.get("/v1/topics", auth=(user, "wrong")).status_code == 401
    (found,) = until(http, 1, user=user)
    assert (found["kind"], found["protocol"]) == ("refused", protocol)
    assert "wrong" in found["facts"]["reason"]


def test_a_namespace_that_one_may_not_enter(node: LiveNode, http: httpx.Client) -> None:
    assert http.put("/v1/namespaces/closed", json={}).status_code == 201
    credentials = pika.PlainCredentials("ann", PASSWORD)
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], "closed", credentials)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(where)
    (found,) = until(http, 1, text="enter namespace")
    assert (found["kind"], found["user"], found["namespace"]) == ("refused", "ann", "closed")


CHANGES: list[tuple[str, str, Any, str]] = [
    ("PUT", "/v1/users/bob", {"password": PASSWORD}, "administration"),
    ("PUT", "/v1/users/bob/tags", {"tags": ["management"]}, "administration"),
    ("PUT", "/v1/users/bob/password", {"password": PASSWORD + "2"}, "administration"),
    (
        "PUT",
        "/v1/permissions/%2F/bob",
        {"configure": "", "write": "^a/", "read": ""},
        "administration",
    ),
    ("POST", "/v1/tokens", {"user": "bob"}, "administration"),
    ("PUT", "/v1/policies/%2F/p", {"pattern": "^z", "definition": {"max-length": 9}}, ""),
    ("DELETE", "/v1/policies/%2F/p", None, "administration"),
    ("PUT", "/v1/namespaces/n", {"max_queues": 5}, "administration"),
    ("PUT", "/v1/namespaces/n/limits", {"max_queues": 6}, "administration"),
    ("DELETE", "/v1/namespaces/n", None, "administration"),
    ("PUT", "/v1/log-level", {"level": "error"}, "administration"),
    ("POST", "/v1/config/reload", None, "administration"),
    ("PUT", "/v1/topics/t", {}, "object"),
    ("POST", "/v1/topics/t/purge", None, "object"),
    ("PUT", "/v1/topics/t/subscriptions/s", {}, "object"),
    ("POST", "/v1/topics/t/subscriptions/s/seek", {"to": "earliest"}, "object"),
    ("DELETE", "/v1/topics/t", None, "object"),
    ("DELETE", "/v1/permissions/%2F/bob", None, "administration"),
    ("DELETE", "/v1/users/bob", None, "administration"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: f"{each[0]} {each[1]}")
def test_a_change_over_http(http: httpx.Client, change: tuple[str, str, Any, str]) -> None:
    method, path, body, kind = change
    answer = http.request(method, path, json=body)
    assert answer.is_success, answer.text
    request_id = answer.headers["x-request-id"]
    for _ in range(1000):
        found = [each for each in events(http) if each["facts"].get("request_id") == request_id]
        if found:
            break
    (event,) = found
    assert (event["user"], event["peer"], event["protocol"]) == ("guest", "127.0.0.1", "http")
    assert event["kind"] == (kind or "administration")
    assert PASSWORD not in json.dumps(event)
    for name, value in (body or {}).items():
        if name in ("configure", "write", "read", "tags"):
            assert event["facts"][name] == value


def test_a_refused_change_is_none(http: httpx.Client) -> None:
    assert http.delete("/v1/users/nobody-there").status_code == 404
    assert http.delete("/v1/users/ann", auth=("ann", PASSWORD)).status_code == 403
    http.put("/v1/log-level", json={"level": "error"})
    until(http, 1, text="/v1/log-level")
    assert events(http, text="nobody-there") == []
    assert events(http, text="/v1/users/ann", user="ann") == []


def test_a_reload_by_signal(node: LiveNode, http: httpx.Client) -> None:
    node.process.send_signal(signal.SIGHUP)
    (found,) = until(http, 1, protocol="signal")
    assert found["kind"] == "administration"


def test_only_administrators_ask(http: httpx.Client) -> None:
    assert http.get("/v1/audit", auth=("ann", PASSWORD)).status_code == 403
    assert http.get("/v1/audit", auth=("mallory", "x")).status_code == 401
    assert http.get("/v1/audit", params={"cursor": "bogus"}).status_code == 400


# --- the topic ---

TOPIC = "/v1/topics/%24audit"
SYSTEM = {"namespace": "$system"}


def test_who_may_read_the_topic_reads_it_and_nobody_writes(http: httpx.Client) -> None:
    path = f"{TOPIC}/partitions/0/messages"
    assert http.get(path, params=SYSTEM, auth=("ann", PASSWORD)).status_code == 403
    assert http.get(path, params=SYSTEM).status_code == 403
    read = {"configure": "", "write": "", "read": "^.audit$"}
    assert http.put("/v1/permissions/%24system/ann", json=read).status_code == 201
    found: list[dict[str, Any]] = []
    while not found or found[-1]["object"] != "/v1/permissions/$system/ann":
        answer = http.get(path, params={**SYSTEM, "limit": 1000}, auth=("ann", PASSWORD))
        assert answer.status_code == 200, answer.text
        found = [json.loads(each["value"]) for each in answer.json()["messages"]]
    assert found[-1]["user"] == "guest"
    forged = {"value": "{}"}
    for method, where, body in (
        ("POST", f"{TOPIC}/messages", forged),
        ("DELETE", TOPIC, None),
        ("PUT", "/v1/topics/mine", {}),
    ):
        answer = http.request(method, where, params=SYSTEM, json=body, auth=("ann", PASSWORD))
        assert answer.status_code == 403, answer.text


def test_nor_does_anybody_get_the_right_to(http: httpx.Client) -> None:
    for patterns in ({"configure": ".*", "write": ""}, {"configure": "", "write": "x"}):
        answer = http.put("/v1/permissions/%24system/ann", json={**patterns, "read": ""})
        assert answer.status_code == 400, answer.text
    assert http.delete("/v1/namespaces/%24system").status_code == 409


def test_amqp_reads_along(node: LiveNode, http: httpx.Client) -> None:
    every = {"configure": "", "write": "", "read": ".*"}
    assert http.put("/v1/permissions/%24system/guest", json=every).is_success
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], "$system")
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        arguments = {"x-stream-offset": "first"}
        for _, _, body in channel.consume("$audit", arguments=arguments):
            assert json.loads(body)["operation"] == "start"
            break
        channel.cancel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.basic_publish("", "$audit", b"forged")


def test_what_there_is_stays_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with live_node(tmp_path) as node:
            with administrator(node) as http:
                assert http.put(f"/v1/topics/t{number}", json={}).is_success
                until(http, 1, text=f"/v1/topics/t{number}")
            node.kill()
    with live_node(tmp_path) as node, administrator(node) as http:
        made = events(http, kind="object")
        assert [each["object"] for each in made] == ["/v1/topics/t1", "/v1/topics/t0"]
        assert len(until(http, 3, text="start")) == 3
        assert "braid_audit_events_lost_total 0.0" in http.get("/metrics").text


def test_a_directory_that_cannot_be_written_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    config = tmp_path / "braid.toml"
    config.write_text(f'[audit]\ndirectory = "{tmp_path}/taken"\n')
    with live_node(tmp_path / "data", config=config) as node, administrator(node) as http:
        assert http.put("/v1/topics/t", json={}).is_success
        node.wait_for_log("audit log not written", "taken")
        answer = http.get("/v1/audit")
        assert (answer.status_code, answer.json()["code"]) == (503, "audit-unreadable")
