"""Every quota of a namespace and every protocol: at it, the next is refused and told which quota it
was, or there is no such thing in that protocol; and other namespaces are not concerned."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from urllib.parse import quote

import httpx
import pika
import pika.exceptions
import pytest
from raw_mqtt import Gone, RawMqtt

import braidmq
from braidmq.model.errors import BraidError
from braidmq.security.accounts import LIMITS
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck, PubRec

GUEST = ("guest", "guest")
WAIT_S = 20
SERIAL = count(1)

NOT_THERE = "there is no such thing in this protocol"
"""Why a field of the table needs no case."""


class World:
    """A namespace at one of its quotas, and clients of it."""

    def __init__(self, node: LiveNode, namespace: str, stack: ExitStack) -> None:
        self.node, self.namespace, self._stack = node, namespace, stack
        self.http = stack.enter_context(
            httpx.Client(base_url=node.http_url, auth=GUEST, params={"namespace": namespace})
        )
        self.admin = stack.enter_context(httpx.Client(base_url=node.http_url, auth=GUEST))
        self.admin.put(f"/v1/namespaces/{namespace}").raise_for_status()
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        self.admin.put(f"/v1/permissions/{namespace}/guest", json=everything).raise_for_status()

    def limit(self, **limits: int) -> None:
        path = f"/v1/namespaces/{self.namespace}/limits"
        self.admin.put(path, json=limits).raise_for_status()

    def uses(self, quota: str) -> tuple[int, int]:
        found = self.admin.get(f"/v1/namespaces/{self.namespace}/quotas").raise_for_status().json()
        (one,) = [each for each in found if each["quota"] == quota]
        return one["used"], one["limit"]

    def topic(self, name: str) -> httpx.Response:
        return self.http.put(f"/v1/topics/{name}", json={})

    def amqp(self) -> pika.BlockingConnection:
        at = pika.ConnectionParameters(
            "127.0.0.1",
            self.node.ports["amqp_port"],
            self.namespace,
            socket_timeout=WAIT_S,
        )
        return self._stack.enter_context(pika.BlockingConnection(at))

    def client(self) -> braidmq.SyncBroker:
        port, namespace = self.node.ports["amqp_port"], quote(self.namespace, safe="")
        http = quote(self.node.http_url, safe="")
        return braidmq.connect_sync(f"amqp://guest:guest@127.0.0.1:{port}/{namespace}?http={http}")

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        where = ["--url", self.node.http_url, "--namespace", self.namespace]
        if words[0] == "publish":
            where += ["--amqp-port", str(self.node.ports["amqp_port"])]
        command = [sys.executable, "-m", "braidmq.cli", *words, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)

    def refused_by_cli(self, quota: str, *words: str) -> None:
        done = self.cli(*words)
        assert done.returncode != 0
        assert quota in done.stderr

    def mqtt(self, version: int = Version.V5, client_id: str = "") -> RawMqtt:
        client = self._stack.enter_context(RawMqtt(self.node, version))
        login = {"user_name": f"{self.namespace}:guest", "password": b"guest"}
        assert client.connect(client_id, **login).reason == 0
        return client


def refused_by_amqp(quota: str, code: int, attempt: Callable[[], object]) -> None:
    with pytest.raises(
        (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)
    ) as closed:
        attempt()
    assert closed.value.reply_code == code
    assert quota in closed.value.reply_text


def refused_by_http(quota: str, answer: httpx.Response) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "limit-reached")
    assert quota in problem["detail"]


def refused_by_mqtt_5(quota: str, client: RawMqtt, topic: str, **fields: object) -> None:
    """QoS 1 and 2 in the answer to the publish."""
    client.publish(topic, b"x", 1, **fields)
    answer = client.expect(PubAck)
    assert answer.reason == Reason.QUOTA_EXCEEDED
    assert quota in str(answer.properties.reason_string)
    client.publish(topic, b"x", 2, **fields)
    assert client.expect(PubRec).reason == Reason.QUOTA_EXCEEDED
    client.ping()


def refused_by_mqtt_3(client: RawMqtt, topic: str, **fields: object) -> None:
    """It has no words for that: it is closed."""
    client.publish(topic, b"x", 1, **fields)
    with pytest.raises(Gone):
        client.packet()


def refused_by_client(quota: str, attempt: Callable[[], object]) -> None:
    with pytest.raises(BraidError, match=quota):
        attempt()


# --- the cases: what is there first, the limit, and the attempt ---


def topics_client(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    with w.client() as broker:
        refused_by_client("max_topics", lambda: broker.declare_queue("two"))


def topics_cli(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    w.refused_by_cli("max_topics", "topics", "create", "two")


def queues_client(w: World) -> None:
    w.limit(max_queues=0)
    with w.client() as broker:
        refused_by_client("max_queues", lambda: broker.declare_queue("two"))


def connections_client(w: World) -> None:
    w.limit(max_connections=0)
    refused_by_client("max_connections", w.client().__enter__)


def consumers_client(w: World) -> None:
    w.limit(max_consumers=0)
    with w.client() as broker:
        broker.declare_queue("q")
        refused_by_client("max_consumers", broker.consume("q").__enter__)


def storage_client(w: World) -> None:
    w.limit(max_storage_bytes=2000)
    with w.client() as broker:
        broker.declare_queue("q")
        refused_by_client("max_storage_bytes", lambda: broker.publish("q", bytes(3000)))


def storage_cli(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_storage_bytes=10)
    w.refused_by_cli("max_storage_bytes", "publish", "one", "more than that")


def rate_in_client(w: World) -> None:
    w.limit(max_messages_in_per_s=1)
    with w.client() as broker:
        broker.declare_queue("q")
        refused_by_client("rate-limited", lambda: publish_many(broker, 20))


def publish_many(broker: braidmq.SyncBroker, count: int) -> None:
    for _ in range(count):
        broker.publish("q", b"x")


def rate_in_cli(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_messages_in_per_s=1)
    w.refused_by_cli("rate-limited", "publish", "one", *("x" for _ in range(60)))


def transactions_client(w: World) -> None:
    w.limit(max_transactions=0)
    with w.client() as broker:
        broker.declare_queue("q")

        def publish() -> None:
            with broker.transaction() as transaction:
                transaction.publish("q", b"x")

        refused_by_client("max_transactions", publish)


def topics_http(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    refused_by_http("max_topics", w.topic("two"))


def topics_amqp(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    channel = w.amqp().channel()
    refused_by_amqp("max_topics", 406, lambda: channel.queue_declare("two"))


def topics_mqtt_5(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    client = w.mqtt()
    refused_by_mqtt_5("max_topics", client, "$queue/two")
    assert client.subscribe("$queue/two", qos=1) == (Reason.QUOTA_EXCEEDED,)


def topics_mqtt_3(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_topics=1)
    refused_by_mqtt_3(w.mqtt(Version.V3_1_1, "c"), "$queue/two")


def queues_amqp(w: World) -> None:
    w.limit(max_queues=1)
    channel = w.amqp().channel()
    channel.queue_declare("one")
    refused_by_amqp("max_queues", 406, lambda: channel.queue_declare("two"))
    w.topic("a topic is no queue".replace(" ", "-")).raise_for_status()


def queues_mqtt_5(w: World) -> None:
    w.limit(max_queues=0)
    refused_by_mqtt_5("max_queues", w.mqtt(), "$queue/two")


def queues_mqtt_3(w: World) -> None:
    w.limit(max_queues=0)
    refused_by_mqtt_3(w.mqtt(Version.V3_1_1, "c"), "$queue/two")


def connections_amqp(w: World) -> None:
    w.limit(max_connections=1)
    w.amqp()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="max_connections"):
        w.amqp()


def connections_mqtt_5(w: World) -> None:
    w.limit(max_connections=0)
    with RawMqtt(w.node) as client:
        login = {"user_name": f"{w.namespace}:guest", "password": b"guest"}
        answer = client.connect(**login)
    assert answer.reason == Reason.QUOTA_EXCEEDED
    assert "max_connections" in str(answer.properties.reason_string)


def connections_mqtt_3(w: World) -> None:
    w.limit(max_connections=0)
    with RawMqtt(w.node, Version.V3_1_1) as client, pytest.raises(Gone):
        client.connect("c", user_name=f"{w.namespace}:guest", password=b"guest")


def channels_amqp(w: World) -> None:
    w.limit(max_channels=2)
    connection, other = w.amqp(), w.amqp()
    connection.channel()
    other.channel()
    refused_by_amqp("max_channels", 530, connection.channel)


def consumers_amqp(w: World) -> None:
    w.limit(max_consumers=1)
    channel = w.amqp().channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None)
    refused_by_amqp("max_consumers", 406, lambda: channel.basic_consume("q", lambda *_: None))


def consumers_mqtt_5(w: World) -> None:
    w.limit(max_consumers=1)
    client = w.mqtt()
    assert client.subscribe("$queue/q", qos=1) == (1,)
    assert client.subscribe("$queue/r", qos=1) == (Reason.QUOTA_EXCEEDED,)


def consumers_mqtt_3(w: World) -> None:
    w.limit(max_consumers=1)
    client = w.mqtt(Version.V3_1_1, "c")
    assert client.subscribe("$queue/q", qos=1) == (1,)
    assert client.subscribe("$queue/r", qos=1) == (0x80,)


def consumers_http(w: World) -> None:
    w.limit(max_consumers=1)
    w.topic("one").raise_for_status()
    w.topic("two").raise_for_status()
    path = "/v1/groups/g/members"
    w.http.post(path, json={"topics": ["one"]}).raise_for_status()
    refused_by_http("max_consumers", w.http.post(path, json={"topics": ["one"]}))


def storage_http(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_storage_bytes=2000)
    path = "/v1/topics/one/messages"
    w.http.post(path, json={"value": "x" * 1000}).raise_for_status()
    refused_by_http("max_storage_bytes", w.http.post(path, json={"value": "x" * 1000}))
    batch = {"messages": [{"value": "x" * 1000}]}
    refused_by_http("max_storage_bytes", w.http.post(f"{path}/batch", json=batch))
    raw = w.http.post("/v1/topics/one/raw", content=b"x" * 1000)
    refused_by_http("max_storage_bytes", raw)
    routed = {"routing_key": "one", "messages": [{"value": "x" * 1000}]}
    answer = w.http.post("/v1/exchanges/amq.default/messages", json=routed)
    refused_by_http("max_storage_bytes", answer)


def storage_amqp(w: World) -> None:
    w.limit(max_storage_bytes=2000)
    connection = w.amqp()
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", bytes(1000))
    refused_by_amqp("max_storage_bytes", 406, lambda: channel.basic_publish("", "q", bytes(1000)))
    other = connection.channel()
    other.basic_publish("", "q", bytes(1000))  # without confirms: it is told all the same
    refused_by_amqp("max_storage_bytes", 406, lambda: other.queue_declare("q", passive=True))


def storage_mqtt_5(w: World) -> None:
    w.limit(max_storage_bytes=10)
    w.http.put("/v1/topics/q", json={}).raise_for_status()
    refused_by_mqtt_5("max_storage_bytes", w.mqtt(), "$queue/q")
    reader = w.mqtt(client_id="keeper")
    reader.subscribe("t/#", qos=1)
    refused_by_mqtt_5("max_storage_bytes", w.mqtt(), "t/x")


def storage_mqtt_3(w: World) -> None:
    w.limit(max_storage_bytes=10)
    refused_by_mqtt_3(w.mqtt(Version.V3_1_1, "c"), "$queue/q")


def retained_mqtt_5(w: World) -> None:
    w.limit(max_retained_messages=1)
    client = w.mqtt()
    client.publish("one", b"x", 1, retain=True)
    client.expect(PubAck)
    refused_by_mqtt_5("max_retained_messages", client, "two", retain=True)
    client.publish("one", b"another", 1, retain=True)
    assert client.expect(PubAck).reason != Reason.QUOTA_EXCEEDED, "in the place of the first"


def retained_mqtt_3(w: World) -> None:
    w.limit(max_retained_messages=0)
    refused_by_mqtt_3(w.mqtt(Version.V3_1_1, "c"), "two", retain=True)


def transactions_http(w: World) -> None:
    w.limit(max_transactions=1)
    w.http.post("/v1/transactions", json={}).raise_for_status()
    refused_by_http("max_transactions", w.http.post("/v1/transactions", json={}))


def rate_in_http(w: World) -> None:
    w.topic("one").raise_for_status()
    w.limit(max_messages_in_per_s=1)
    batch = {"messages": [{"value": "x"}] * 60}
    w.http.post("/v1/topics/one/messages/batch", json=batch).raise_for_status()
    answer = w.http.post("/v1/topics/one/messages", json={"value": "x"})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
    assert int(answer.headers["retry-after"]) > 1


def rate_in_amqp(w: World) -> None:
    w.limit(max_messages_in_per_s=1)
    channel = w.amqp().channel()
    channel.queue_declare("q")

    def publish() -> None:
        for _ in range(20):
            channel.basic_publish("", "q", b"x")
        channel.queue_declare("q", passive=True)

    refused_by_amqp("rate-limited", 406, publish)


def rate_in_mqtt_5(w: World) -> None:
    w.limit(max_messages_in_per_s=1)
    client = w.mqtt()
    for _ in range(20):
        client.publish("t", b"x", 1)
    reasons = [client.expect(PubAck).reason for _ in range(20)]
    assert reasons[0] != Reason.QUOTA_EXCEEDED
    assert Reason.QUOTA_EXCEEDED in reasons
    client.publish("t", b"x")
    for _ in range(20):
        client.publish("t", b"x")
    assert client.expect(Disconnect).reason == Reason.MESSAGE_RATE_TOO_HIGH


def rate_in_mqtt_3(w: World) -> None:
    w.limit(max_messages_in_per_s=1)
    client = w.mqtt(Version.V3_1_1, "c")
    for _ in range(20):
        client.publish("t", b"x")
    with pytest.raises(Gone):
        client.packet()


def rate_out_http(w: World) -> None:
    w.topic("one").raise_for_status()
    w.http.put("/v1/topics/one/subscriptions/s", json={}).raise_for_status()
    batch = {"messages": [{"value": "x"}] * 100}
    w.http.post("/v1/topics/one/messages/batch", json=batch).raise_for_status()
    w.limit(max_messages_out_per_s=1)
    path = "/v1/topics/one/subscriptions/s/receive"
    w.http.post(path, json={"limit": 100}).raise_for_status()
    answer = w.http.post(path, json={"limit": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")


def rate_out_amqp(w: World) -> None:
    """Deliveries wait: nobody has asked for anything that could be refused."""
    channel = w.amqp().channel()
    channel.queue_declare("q")
    for _ in range(300):
        channel.basic_publish("", "q", b"x")
    channel.queue_declare("q", passive=True)
    w.limit(max_messages_out_per_s=50)
    for number, _ in enumerate(channel.consume("q", auto_ack=True), 1):
        if number == 300:
            break
    assert held_back(w.node)


def rate_out_mqtt(w: World) -> None:
    w.limit(max_messages_out_per_s=50)
    reader, writer = w.mqtt(), w.mqtt()
    reader.subscribe("t", qos=1)
    for _ in range(150):
        writer.publish("t", b"x", 1)
        writer.expect(PubAck)
    for _ in range(150):
        reader.send(PubAck(reader.message().packet_id))
    assert held_back(w.node)


def held_back(node: LiveNode) -> bool:
    text = httpx.get(f"{node.http_url}/metrics").text
    return 'braid_rate_limited_total{limit="deliveries",outcome="slowed"}' in text


TABLE: dict[str, dict[str, Callable[[World], None] | str]] = {
    "max_topics": {
        "client": topics_client,
        "command line": topics_cli,
        "http": topics_http,
        "amqp": topics_amqp,
        "mqtt 5": topics_mqtt_5,
        "mqtt 3.1.1": topics_mqtt_3,
    },
    "max_queues": {
        "client": queues_client,
        "command line": "what the command line makes are topics",
        "http": "what HTTP makes are topics",
        "amqp": queues_amqp,
        "mqtt 5": queues_mqtt_5,
        "mqtt 3.1.1": queues_mqtt_3,
    },
    "max_connections": {
        "client": connections_client,
        "command line": "it speaks HTTP",
        "http": "its connections belong to no namespace",
        "amqp": connections_amqp,
        "mqtt 5": connections_mqtt_5,
        "mqtt 3.1.1": connections_mqtt_3,
    },
    "max_channels": {
        "client": "its channels are AMQP's, and so is the refusal",
        "command line": NOT_THERE,
        "http": NOT_THERE,
        "amqp": channels_amqp,
        "mqtt 5": NOT_THERE,
        "mqtt 3.1.1": NOT_THERE,
    },
    "max_consumers": {
        "client": consumers_client,
        "command line": "it reads as HTTP does, or as a member of a group",
        "http": consumers_http,
        "amqp": consumers_amqp,
        "mqtt 5": consumers_mqtt_5,
        "mqtt 3.1.1": consumers_mqtt_3,
    },
    "max_storage_bytes": {
        "client": storage_client,
        "command line": storage_cli,
        "http": storage_http,
        "amqp": storage_amqp,
        "mqtt 5": storage_mqtt_5,
        "mqtt 3.1.1": storage_mqtt_3,
    },
    "max_retained_messages": {
        "client": NOT_THERE,
        "command line": NOT_THERE,
        "http": NOT_THERE,
        "amqp": NOT_THERE,
        "mqtt 5": retained_mqtt_5,
        "mqtt 3.1.1": retained_mqtt_3,
    },
    "max_transactions": {
        "client": transactions_client,
        "command line": "it begins none",
        "http": transactions_http,
        "amqp": "they are begun over HTTP",
        "mqtt 5": NOT_THERE,
        "mqtt 3.1.1": NOT_THERE,
    },
    "max_messages_in_per_s": {
        "client": rate_in_client,
        "command line": rate_in_cli,
        "http": rate_in_http,
        "amqp": rate_in_amqp,
        "mqtt 5": rate_in_mqtt_5,
        "mqtt 3.1.1": rate_in_mqtt_3,
    },
    "max_messages_out_per_s": {
        "client": "as AMQP: what is to be delivered waits",
        "command line": "as HTTP",
        "http": rate_out_http,
        "amqp": rate_out_amqp,
        "mqtt 5": rate_out_mqtt,
        "mqtt 3.1.1": "as MQTT 5: what is to be delivered waits",
    },
}

CASES = [
    pytest.param(quota, case, id=f"{quota} {protocol}")
    for quota, row in TABLE.items()
    for protocol, case in row.items()
    if not isinstance(case, str)
]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    where = tmp_path_factory.mktemp("strict")
    (where / "braid.toml").write_text('[rates]\nover_limit = "refuse"\n')
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node
        assert node.stop() == 0
        assert not node.complaints


@pytest.fixture
def world(strict: LiveNode) -> Iterator[World]:
    with ExitStack() as stack:
        # A short name: what AMQP says of a refusal has 255 bytes.
        yield World(strict, f"tenant-{next(SERIAL)}", stack)


def test_every_quota_is_in_the_table() -> None:
    assert set(TABLE) == set(LIMITS)


@pytest.mark.parametrize(("quota", "case"), CASES)
def test_at_its_quota_the_next_is_refused(
    world: World, quota: str, case: Callable[[World], None]
) -> None:
    case(world)


def test_one_tenants_excess_never_changes_the_others_figures(strict: LiveNode, name: str) -> None:
    """Both at their quotas; one goes on asking for more."""
    limits = {"max_topics": 2, "max_connections": 2, "max_storage_bytes": 4000}
    with ExitStack() as stack:
        first = World(strict, f"{name}-a", stack)
        second = World(strict, f"{name}-b", stack)
        for each in (first, second):
            each.limit(**limits)
            each.topic("one").raise_for_status()
            each.topic("two").raise_for_status()
            each.amqp()
            each.mqtt()
            body = {"value": "x" * 3500}
            each.http.post("/v1/topics/one/messages", json=body).raise_for_status()
        before = second.admin.get(f"/v1/namespaces/{second.namespace}/quotas").json()
        assert {each["quota"]: each["near"] for each in before} == dict.fromkeys(limits, True)
        for number in range(20):
            refused_by_http("max_topics", first.topic(f"more-{number}"))
            body = {"value": "x" * 3500}
            answer = first.http.post("/v1/topics/one/messages", json=body)
            refused_by_http("max_storage_bytes", answer)
            with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
                first.amqp()
        assert second.admin.get(f"/v1/namespaces/{second.namespace}/quotas").json() == before
        metrics = httpx.get(f"{strict.http_url}/metrics").text
        of_first = f'namespace="{first.namespace}",quota="max_topics"'
        of_second = f'namespace="{second.namespace}",quota="max_topics"'
        assert f"braid_quota_refused_total{{{of_first}}} 20.0" in metrics
        assert f"braid_quota_refused_total{{{of_second}}}" not in metrics
        assert f"braid_quota_near{{{of_second}}} 1.0" in metrics
        strict.wait_for_log("a quota is nearly used up", second.namespace, "max_topics")
