"""Exchanges, templates, connections, figures and who may do what: on a live node."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest
from http_api import GUEST, Api
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from braidmq.api.assembly import make_api
from braidmq.api.resources.health import Health
from braidmq.api.stream_protocol import ListenerProtocol
from braidmq.engine.engine import Engine
from braidmq.engine.pressure import Watermarks
from braidmq.metrics.collector import Metrics
from braidmq.model.clock import SystemClock
from braidmq.net.web_origins import WebCallers
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
from braidmq.security.tokens import Tokens
from braidmq.storage.disk import MemoryDisk

HUGE = 1 << 60


@pytest.fixture
def amqp(api: Api) -> Iterator[pika.BlockingConnection]:
    where = pika.ConnectionParameters(
        "127.0.0.1", api.node.ports["amqp_port"], client_properties={"connection_name": "tester"}
    )
    connection = pika.BlockingConnection(where)
    yield connection
    if connection.is_open:
        connection.close()


def test_exchanges_route_as_in_amqp(api: Api, amqp: pika.BlockingConnection) -> None:
    topic = api.topic(partitions=1)
    made = api.call("PUT", "/v1/exchanges/shop", {"kind": "topic"})
    assert made.status_code == 201
    assert api.call("PUT", "/v1/exchanges/shop", {"kind": "topic"}).status_code == 200
    api.fails(409, "exchange-mismatch", "PUT", "/v1/exchanges/shop", {"kind": "fanout"})
    api.fails(403, "reserved-name", "PUT", "/v1/exchanges/amq.mine", {"kind": "topic"})
    api.fails(400, "unknown-exchange-kind", "PUT", "/v1/exchanges/new", {"kind": "odd"})
    binding = {"source": "shop", "destination": topic, "routing_key": "eu.*"}
    api.ok("POST", "/v1/bindings", binding)
    (found,) = api.ok("GET", "/v1/bindings?source=shop")
    assert found == {
        "namespace": "/", "destination_kind": "topic", "arguments": {}, **binding,
    }  # fmt: skip
    message = {"value": "x", "headers": {"a": "b"}, "priority": 2}
    path = "/v1/exchanges/shop/messages"
    routed = api.ok("POST", path, {"routing_key": "eu.de", "messages": [message]})
    assert routed == {"count": 1, "topics": [topic], "unrouted": [], "refused": []}
    lost = api.ok("POST", path, {"routing_key": "us.ca", "messages": [message, message]})
    assert (lost["topics"], lost["unrouted"]) == ([], [0, 1])
    amqp.channel().basic_publish("shop", "eu.fr", b"over AMQP")
    read = api.ok("GET", f"/v1/topics/{topic}/partitions/0/messages")["messages"]
    assert [(m["exchange"], m["routing_key"], m["value"]) for m in read] == [
        ("shop", "eu.de", "x"),
        ("shop", "eu.fr", "over AMQP"),
    ]
    assert (read[0]["headers"], read[0]["priority"]) == ({"a": "b"}, 2)
    api.ok("DELETE", f"/v1/bindings?source=shop&destination={topic}&routing_key=eu.*")
    assert api.ok("GET", "/v1/bindings?source=shop") == []
    api.ok("DELETE", "/v1/exchanges/shop?if_unused=true")
    api.fails(404, "exchange-not-found", "GET", "/v1/exchanges/shop")


def test_a_headers_exchange_looks_at_each_message(api: Api) -> None:
    topic = api.topic(partitions=1)
    arguments = {"x-match": "all", "colour": "blue"}
    api.ok("POST", "/v1/bindings", {"source": "amq.headers", "destination": topic,
                                    "arguments": arguments})  # fmt: skip
    sent = [{"value": str(n), "headers": {"colour": c}} for n, c in enumerate(["blue", "red"] * 2)]
    routed = api.ok("POST", "/v1/exchanges/amq.headers/messages", {"messages": sent})
    assert (routed["unrouted"], routed["topics"]) == ([1, 3], [topic])
    read = api.ok("GET", f"/v1/topics/{topic}/partitions/0/messages")["messages"]
    assert [m["value"] for m in read] == ["0", "2"]


def test_templates_change_topics_that_match(api: Api) -> None:
    topic = api.topic()
    template = {"pattern": f"^{topic}$", "settings": {"ttl_ms": 5000}, "priority": 3}
    api.ok("PUT", "/v1/templates/short", template)
    assert api.ok("GET", f"/v1/topics/{topic}")["policy"]["ttl_ms"] == 5000
    assert api.ok("GET", "/v1/templates") == [{"namespace": "/", "name": "short", **template}]
    api.fails(400, "illegal-policy", "PUT", "/v1/templates/bad", {**template, "settings": {"x": 1}})
    api.ok("DELETE", "/v1/templates/short")
    assert api.ok("GET", f"/v1/topics/{topic}")["policy"]["ttl_ms"] == 0


def test_connections_are_listed_and_closed(api: Api, amqp: pika.BlockingConnection) -> None:
    channel = amqp.channel()
    channel.confirm_delivery()
    every = api.ok("GET", "/v1/connections")
    (mine,) = [each for each in every if each["client"] == "tester"]
    assert (mine["protocol"], mine["user"], mine["channels"]) == ("amqp", "guest", 1)
    assert mine["listener"] == "amqp"
    path = f"/v1/connections/{mine['id']}"
    (only,) = api.ok("GET", f"{path}/channels")
    assert (only["number"], only["confirms"]) == (channel.channel_number, True)
    api.fails(404, "unknown-connection", "DELETE", f"{path}/channels/77")
    api.ok("DELETE", f"{path}/channels/{channel.channel_number}")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="closed by guest"):
        channel.queue_declare("never")
    api.ok("DELETE", path)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="closed by guest"):
        amqp.channel()


def test_settings_of_a_topic(api: Api) -> None:
    topic = api.topic(partitions=1)
    path = f"/v1/topics/{topic}"
    api.fails(409, "topic-exists", "PUT", path, {"settings": {"partitions": 2}})
    changed = api.ok("PATCH", path, {"settings": {"partitions": 2, "retry": {"attempts": 9}}})
    assert len(changed["partitions"]) == 2
    assert (changed["policy"]["retry"]["attempts"], changed["policy"]["retry"]["base_ms"]) == (
        9,
        1000,
    )
    fewer = api.ok("PATCH", path, {"settings": {"partitions": 1}})
    assert fewer["policy"]["partitions"] == 1
    assert [each["partition"] for each in fewer["partitions"] if not each["closing"]] == [0]
    api.fails(400, "illegal-policy", "PATCH", path, {"settings": {"partitions": 0}})
    api.fails(400, "illegal-policy", "PATCH", path, {"settings": {"partition": 1}})
    api.publish(topic, *({"value": "x"} for _ in range(4)))
    assert api.ok("POST", f"{path}/purge") == {"messages": 4}
    new = api.client.put(path, json={}, headers={"if-none-match": "*"})
    assert (new.status_code, new.json()["code"]) == (412, "precondition-failed")
    api.ok("DELETE", path)
    api.fails(404, "unknown-topic", "GET", path)


def test_permissions_are_those_of_amqp(api: Api) -> None:
    readable, writable = api.topic(), api.topic()
    api.ok("PUT", "/v1/users/ann", {"password": "secret"})
    with httpx.Client(base_url=api.node.http_url, auth=("ann", "secret")) as client:
        ann = Api(api.node, client)
        ann.fails(403, "access-refused", "GET", "/v1/topics")
        patterns = {"configure": "", "write": f"^{writable}$", "read": f"^{readable}$"}
        api.ok("PUT", "/v1/permissions/%2F/ann", patterns)
        assert [each["name"] for each in ann.ok("GET", "/v1/topics")] == [readable, writable]
        message = {"value": "x"}
        ann.ok("POST", f"/v1/topics/{writable}/messages", message)
        for method, path, body in (
            ("POST", f"/v1/topics/{readable}/messages", message),
            ("GET", f"/v1/topics/{writable}/partitions/0/messages", None),
            ("PUT", f"/v1/topics/{writable}/subscriptions/s", {}),
            ("DELETE", f"/v1/topics/{readable}", None),
            ("PATCH", f"/v1/topics/{writable}", {"settings": {}}),
            ("POST", "/v1/groups/g/members", {"topics": [writable]}),
            ("PUT", "/v1/topics/new", {}),
            ("GET", "/v1/users", None),
            ("PUT", "/v1/templates/t", {"pattern": "x", "settings": {}}),
            ("POST", "/v1/tokens", {"user": "guest"}),
        ):
            ann.fails(403, "access-refused", method, path, body)
        # Whoever may enter neither does not learn which there are.
        ann.fails(403, "access-refused", "GET", "/v1/topics?namespace=nowhere")
    api.fails(404, "not-found", "GET", "/v1/topics?namespace=nowhere")


def test_tokens_stand_for_their_user_until_they_are_revoked(api: Api) -> None:
    api.ok("PUT", "/v1/users/robot", {"password": "x"})
    issued = api.ok("POST", "/v1/tokens", {"user": "robot", "description": "ci"})
    client = httpx.Client(
        base_url=api.node.http_url, headers={"authorization": f"Bearer {issued['token']}"}
    )
    with client:
        robot = Api(api.node, client)
        assert [each["id"] for each in robot.ok("GET", "/v1/tokens")] == [issued["info"]["id"]]
        robot.fails(403, "access-refused", "GET", "/v1/users")
        robot.ok("DELETE", f"/v1/tokens/{issued['info']['id']}")
        robot.fails(401, "not-authenticated", "GET", "/v1/tokens")
        again = api.ok("POST", "/v1/tokens", {"user": "robot"})["token"]
        client.headers["authorization"] = f"Bearer {again}"
        robot.ok("GET", "/v1/tokens")
        api.ok("DELETE", "/v1/users/robot")
        robot.fails(401, "not-authenticated", "GET", "/v1/tokens")
    api.fails(404, "not-found", "POST", "/v1/tokens", {"user": "nobody"})


def test_figures_come_as_an_answer_and_as_a_stream(api: Api) -> None:
    before = api.ok("GET", "/v1/overview")
    topic = api.topic()
    api.publish(topic, *({"value": "x"} for _ in range(7)))
    after = api.ok("GET", "/v1/overview")
    assert after["totals"]["published"] - before["totals"]["published"] == 7
    assert after["topics"] == before["topics"] + 1
    url = api.node.http_url.replace("http", "ws") + "/v1/stream/metrics?interval_ms=100"
    token = base64.b64encode(":".join(GUEST).encode()).decode()
    headers = {"Authorization": f"Basic {token}"}
    with connect(url, additional_headers=headers) as socket:
        shown = [json.loads(socket.recv(20)) for _ in range(2)]
    assert [each["topics"] for each in shown] == [after["topics"]] * 2
    api.ok("DELETE", f"/v1/topics/{topic}")
    assert api.ok("GET", "/v1/overview")["totals"]["published"] == after["totals"]["published"]
    for wrong, status in ((url, 401), (url.replace("=100", "=1"), 400), (url + "x", 400)):
        given = headers if status == 400 else {}
        with pytest.raises(InvalidStatus) as refused:
            connect(wrong, additional_headers=given)
        assert refused.value.response.status_code == status
        assert refused.value.response.headers["content-type"] == "application/problem+json"


def test_a_listener_that_speaks_without_end_is_cut_off(api: Api) -> None:
    url = api.node.http_url.replace("http", "ws") + "/v1/stream/metrics?interval_ms=100"
    token = base64.b64encode(":".join(GUEST).encode()).decode()
    with connect(url, additional_headers={"Authorization": f"Basic {token}"}) as socket:
        socket.recv(20)
        with suppress(ConnectionClosed):
            socket.send(os.urandom(2 * ListenerProtocol.HEARD_BYTES))  # zeros would be deflated
            while True:
                socket.recv(20)
        assert socket.close_code == 1006  # without a word
    api.ok("GET", "/v1/overview")


def test_a_listener_may_ping_and_ask_at_length(api: Api) -> None:
    url = api.node.http_url.replace("http", "ws") + "/v1/stream/metrics?interval_ms=100"
    token = base64.b64encode(":".join(GUEST).encode()).decode()
    headers = {"Authorization": f"Basic {token}", "X-Long": "x" * 8000}
    with connect(url, additional_headers=headers) as socket:
        for _ in range(10):
            assert socket.ping(b"1234").wait(20)
        assert json.loads(socket.recv(20))["topics"] is not None


# --- without a process of its own: what a test can't bring about from outside ---


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    opened = Engine.open(MemoryDisk(), SystemClock().now_ms())
    yield opened
    opened.close()


@pytest.fixture
async def inside(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:

    broker = NodeLoop(engine, SystemClock(), asyncio.get_running_loop())
    accounts = Accounts(engine.store)
    logins = Logins(accounts)
    tokens = Tokens(engine.store, accounts)
    health = Health(lambda: None, lambda: None)
    web = WebCallers(["node"])
    app = make_api(
        broker, accounts, logins, tokens, health, Metrics(engine, {}, lambda: 0), web=web
    )
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5555))
    async with httpx.AsyncClient(transport=transport, base_url="http://node", auth=GUEST) as client:
        yield client
    broker.stop()
    logins.close()


@pytest.mark.parametrize(
    ("marks", "status", "code"),
    [
        (Watermarks(memory_slow_bytes=0, memory_block_bytes=0), 429, "memory-low"),
        (Watermarks(disk_slow_bytes=HUGE, disk_block_bytes=HUGE), 507, "disk-low"),
    ],
)
async def test_publishers_are_told_to_wait_and_consumers_go_on(
    inside: httpx.AsyncClient,
    engine: Engine,
    marks: Watermarks,
    status: int,
    code: str,
) -> None:
    async def ok(method: str, path: str, body: Any) -> Any:
        response = await inside.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    await ok("PUT", "/v1/topics/t", {"settings": {"partitions": 1}})
    await ok("PUT", "/v1/topics/t/subscriptions/s", {})
    await ok("POST", "/v1/topics/t/messages", {"value": "x"})
    engine.pressure.marks = marks
    engine.check_pressure(engine.store.disk.free_bytes(""))
    refused = await inside.post("/v1/topics/t/messages", json={"value": "y"})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert refused.headers["retry-after"] == "1"
    got = await ok("POST", "/v1/topics/t/subscriptions/s/receive", {})
    assert [m["value"] for m in got["messages"]] == ["x"]
