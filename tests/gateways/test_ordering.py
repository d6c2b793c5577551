"""What a topic's ``ordering`` promises (catalogue row C5), over HTTP and over AMQP: with several
who take messages, and some of them failing at first."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from braidmq.testing.live import LiveNode, live_node

pytestmark = pytest.mark.timeout(120)

KEYS = ("a", "b", "c")
EACH = 6
GUEST = ("guest", "guest")
RETRY = {"base_ms": 0, "attempts": 0}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), mqtt_port=0, ws_port=0) as running:
        yield running


@pytest.fixture
def api(node: LiveNode) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{node.http_url}/v1", auth=GUEST, timeout=60) as client:
        yield client


def filled(api: httpx.Client, name: str, **settings: Any) -> str:
    body = {"settings": {"retry": RETRY, **settings}}
    api.put(f"/topics/{name}", json=body).raise_for_status()
    messages = [{"value": f"{key}{n}", "key": key} for n in range(EACH) for key in KEYS]
    mode = {} if "ordering" in settings else {"mode": "key-ordered"}
    made = api.put(f"/topics/{name}/subscriptions/s", json=mode).raise_for_status().json()
    assert made["mode"] == ("key-ordered" if mode else "single-active")
    path = f"/topics/{name}/messages/batch"
    api.post(path, json={"messages": messages}).raise_for_status()
    return name


def receive(api: httpx.Client, topic: str, **body: Any) -> list[dict[str, Any]]:
    path = f"/topics/{topic}/subscriptions/s/receive"
    answer = api.post(path, json={"wait_ms": 0, **body}).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def answer(api: httpx.Client, verb: str, message: dict[str, Any]) -> None:
    body = {"receipts": [message["receipt"]]}
    assert api.post(f"/receipts/{verb}", json=body).json()["count"] == 1


def by_key(values: list[str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for value in values:
        found[value[0]].append(value)
    return found


IN_ORDER = {key: [f"{key}{n}" for n in range(EACH)] for key in KEYS}


def test_order_by_key_over_http(api: httpx.Client) -> None:
    """Each receive may be another worker's: none gets of a key that another has not answered."""
    topic = filled(api, "http-keys", partitions=2)
    done: list[str] = []
    failed: set[str] = set()
    while len(done) < EACH * len(KEYS):
        batches = [receive(api, topic, limit=2) for _ in range(4)]
        workers = [each for batch in batches for each in batch]
        keys = [each["key"] for each in workers]
        assert len(set(keys)) == len(keys), "a key goes on although it has no answer"
        assert workers
        for each in reversed(workers):
            if each["value"][1] in "135" and each["value"] not in failed:
                failed.add(each["value"])
                answer(api, "nack", each)
            else:
                done.append(each["value"])
                answer(api, "ack", each)
    assert by_key(done) == IN_ORDER
    assert len(failed) == 9


def test_strict_order_over_http(api: httpx.Client) -> None:
    topic = filled(api, "http-strict", partitions=1, ordering="strict")
    done: list[str] = []
    failed: set[str] = set()
    while len(done) < EACH * len(KEYS):
        (mine,) = receive(api, topic)
        assert receive(api, topic, limit=10) == [], "it overtakes what has no answer"
        if mine["value"][1] in "24" and mine["value"] not in failed:
            failed.add(mine["value"])
            answer(api, "nack", mine)
        else:
            done.append(mine["value"])
            answer(api, "ack", mine)
    assert done == [f"{key}{n}" for n in range(EACH) for key in KEYS]
    assert [m["value"] for m in receive(api, topic)] == []


def test_strict_needs_one_partition(api: httpx.Client) -> None:
    body = {"settings": {"ordering": "strict", "partitions": 2}}
    refused = api.put("/topics/two", json=body)
    assert refused.status_code == 400
    assert "one partition" in refused.text


class Worker:
    def __init__(
        self,
        node: LiveNode,
        topic: str,
        seen: list[tuple[int, str]],
        number: int,
        arguments: dict[str, Any],
    ) -> None:
        place = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        self.connection = pika.BlockingConnection(place)
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=1)
        self.number, self.seen = number, seen
        self.failed: set[str] = set()
        self.channel.basic_consume(topic, self._on, arguments={"x-group": "g", **arguments})

    def _on(self, _: Any, method: Any, _properties: Any, body: bytes) -> None:
        value = body.decode()
        if value[1] in "135" and value not in self.failed and not method.redelivered:
            self.failed.add(value)
            self.channel.basic_nack(method.delivery_tag, requeue=True)
            return
        self.seen.append((self.number, value))
        self.channel.basic_ack(method.delivery_tag)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("amqp-keys", {"partitions": 2}), ("amqp-strict", {"partitions": 1, "ordering": "strict"})],
)
def test_order_over_amqp(
    node: LiveNode, api: httpx.Client, name: str, settings: dict[str, Any]
) -> None:
    topic = filled(api, name, **settings)
    seen: list[tuple[int, str]] = []
    mode = {} if "ordering" in settings else {"x-group-mode": "key-ordered"}
    workers = [Worker(node, topic, seen, number, mode) for number in range(3)]
    while len(seen) < EACH * len(KEYS):
        for each in workers:
            each.connection.process_data_events(time_limit=0.01)
    values = [value for _, value in seen]
    if "ordering" in settings:
        assert values == [f"{key}{n}" for n in range(EACH) for key in KEYS]
        assert len({number for number, _ in seen}) == 1
    else:
        assert by_key(values) == IN_ORDER
    for each in workers:
        each.connection.close()
