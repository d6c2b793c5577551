"""Priorities in durable queues, which keep the order of keys, by whatever they are read."""

import httpx
import pika
import pytest
from queue_worker import Worker

from braidmq.engine.policy import PRIORITY_OF_LANE
from braidmq.testing.live import LiveNode

GUEST = ("guest", "guest")
SENT = [
    (b"later 1", "background", "a"),
    (b"later 2", "background", "b"),
    (b"behind later 1", "critical", "a"),
    (b"soon", "normal", "c"),
    (b"now", "critical", "d"),
]
EXPECTED = [b"now", b"soon", b"later 1", b"later 2", b"behind later 1"]
"""The turn of the last lane is for three messages, and what waited for one of them comes then."""


def by_mqtt(node: LiveNode, name: str) -> list[bytes]:
    with Worker(node) as worker:
        worker.connect()
        worker.join(name, "g")
        return [worker.take(name).payload for _ in SENT]


def by_http(node: LiveNode, name: str) -> list[bytes]:
    url = f"{node.http_url}/v1/topics/{name}/subscriptions/g/receive"
    asked = httpx.post(url, json={"limit": 10, "auto_ack": True}, auth=GUEST).raise_for_status()
    got = asked.json()["messages"]
    return [each["value"].encode() for each in got]


def by_amqp(node: LiveNode, name: str) -> list[bytes]:
    port = node.ports["amqp_port"]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        got: list[bytes] = []
        for _, _, body in channel.consume(
            name, auto_ack=True, arguments={"x-group": "g"}, inactivity_timeout=10
        ):
            assert body is not None
            got.append(body)
            if len(got) == len(SENT):
                return got
    raise AssertionError(got)


@pytest.mark.parametrize("receive", [by_mqtt, by_http, by_amqp])
def test_lanes_count_and_keys_stay_in_order(node: LiveNode, name: str, receive: object) -> None:
    assert callable(receive)
    with Worker(node) as maker:
        maker.connect()
        settings = {"settings": {"partitions": 1, "priority": "lanes"}}
        url = f"{node.http_url}/v1/topics/{name}"
        httpx.put(url, json=settings, auth=GUEST).raise_for_status()
        with Worker(node) as first:
            first.connect()
            first.join(name, "g")
        shown = httpx.get(f"{url}/subscriptions/g", auth=GUEST).json()
        assert shown["mode"] == "key-ordered"
        for payload, lane, key in SENT:
            assert (
                maker.put(name, payload, priority=str(PRIORITY_OF_LANE[lane]), partition_key=key)
                == 0
            )
    assert receive(node, name) == EXPECTED
