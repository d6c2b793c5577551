"""More and fewer partitions, and partition strategies, in every protocol."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest
from queue_worker import Worker

import braidmq
from braidmq.record.key_hash import partition_for
from braidmq.testing.live import LiveNode

GUEST = ("guest", "guest")
MOVED = next(
    key for key in map(str, range(100)) if partition_for(key.encode(), 2) != 0 and key != "0"
)
"""It is in partition 0 of one, and in 1 of two."""


@pytest.fixture
def api(node: LiveNode) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{node.http_url}/v1", auth=GUEST, timeout=30) as client:
        yield client


def resize(api: httpx.Client, name: str, count: int) -> dict[str, Any]:
    answer = api.patch(f"/topics/{name}", json={"settings": {"partitions": count}})
    assert answer.is_success, answer.text
    found: dict[str, Any] = api.get(f"/topics/{name}").json()
    return found


def publish(api: httpx.Client, name: str, value: str, **more: Any) -> httpx.Response:
    return api.post(f"/topics/{name}/messages", json={"value": value, **more})


def receive(api: httpx.Client, name: str, **more: Any) -> list[dict[str, Any]]:
    answer = api.post(
        f"/topics/{name}/subscriptions/s/receive", json={"limit": 100, "wait_ms": 0, **more}
    )
    found: list[dict[str, Any]] = answer.raise_for_status().json()["messages"]
    return found


def test_a_key_that_moves_keeps_its_order_over_http(api: httpx.Client, name: str) -> None:
    api.put(f"/topics/{name}", json={"settings": {"partitions": 1}}).raise_for_status()
    api.put(f"/topics/{name}/subscriptions/s", json={}).raise_for_status()
    publish(api, name, "old", key=MOVED).raise_for_status()
    assert len(resize(api, name, 2)["partitions"]) == 2
    publish(api, name, "new", key=MOVED).raise_for_status()
    (old,) = receive(api, name)
    assert (old["value"], receive(api, name)) == ("old", [])
    lags = api.get(f"/topics/{name}/subscriptions/s").json()["partitions"]
    assert [(each["held"], each["waits_for"]) for each in lags] == [(0, []), (1, [0])]
    api.post("/receipts/ack", json={"receipts": [old["receipt"]]}).raise_for_status()
    assert [each["value"] for each in receive(api, name, wait_ms=10_000)] == ["new"]


def test_a_partition_that_is_taken_away_is_closed_when_it_is_read(
    api: httpx.Client, name: str
) -> None:
    made = {"partitions": 2, "retention": {"until_acked": True}}
    api.put(f"/topics/{name}", json={"settings": made}).raise_for_status()
    api.put(f"/topics/{name}/subscriptions/s", json={}).raise_for_status()
    publish(api, name, "old", partition=1).raise_for_status()
    shown = resize(api, name, 1)["partitions"]
    assert [each["closing"] for each in shown] == [False, True]
    refused = publish(api, name, "no", partition=1)
    assert (refused.status_code, refused.json()["code"]) == (409, "partition-closed")
    assert [each["value"] for each in receive(api, name, auto_ack=True)] == ["old"]
    api.post(f"/topics/{name}/subscriptions/s/receive", json={"wait_ms": 1500}).raise_for_status()
    assert len(api.get(f"/topics/{name}").json()["partitions"]) == 1


def test_amqp_and_mqtt_consumers_get_a_moved_key_in_order(
    api: httpx.Client, node: LiveNode, name: str
) -> None:
    with Worker(node) as worker:
        worker.connect()
        api.put(
            f"/topics/{name}",
            json={"settings": {"partitions": 1, "retention": {"until_acked": True}}},
        ).raise_for_status()
        worker.join(name, "m")
        api.put(f"/topics/{name}/subscriptions/a", json={}).raise_for_status()
        publish(api, name, "old", key=MOVED).raise_for_status()
        resize(api, name, 2)
        publish(api, name, "new", key=MOVED).raise_for_status()
        assert [worker.take(name).payload for _ in range(2)] == [b"old", b"new"]
    port = node.ports["amqp_port"]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        got = []
        for method, _, body in channel.consume(
            name, arguments={"x-group": "a"}, inactivity_timeout=10
        ):
            assert body is not None
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(got) == 2:
                break
    assert got == [b"old", b"new"]


def test_an_explicit_topic_refuses_who_names_no_partition(
    api: httpx.Client, node: LiveNode, name: str
) -> None:
    made = {"partitions": 2, "partition_strategy": "explicit"}
    api.put(f"/topics/{name}", json={"settings": made}).raise_for_status()
    refused = publish(api, name, "v")
    assert (refused.status_code, refused.json()["code"]) == (400, "partition-required")
    assert publish(api, name, "v", partition=1).is_success
    port = node.ports["amqp_port"]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises((pika.exceptions.NackError, pika.exceptions.ChannelClosedByBroker)):
            channel.basic_publish("", name, b"v")
    with Worker(node) as worker:
        worker.connect()
        assert worker.put(name, b"v") >= 0x80


def test_a_client_that_sends_again_after_a_resize_is_written_once(
    api: httpx.Client, name: str
) -> None:
    api.put(f"/topics/{name}", json={"settings": {"partitions": 1}}).raise_for_status()
    producer = api.post("/producers", json={}).raise_for_status().json()
    headers = {
        "Braid-Producer-Id": str(producer["producer_id"]),
        "Braid-Producer-Epoch": str(producer["epoch"]),
        "Braid-Sequence": "0",
    }
    body = {"messages": [{"value": str(each), "key": str(each)} for each in range(10)]}
    first = api.post(f"/topics/{name}/messages/batch", json=body, headers=headers)
    assert first.is_success, first.text
    resize(api, name, 4)
    again = api.post(f"/topics/{name}/messages/batch", json=body, headers=headers)
    assert again.is_success, again.text
    shown = api.get(f"/topics/{name}").json()["partitions"]
    assert sum(each["next_offset"] for each in shown) == 10
    gap = api.post(
        f"/topics/{name}/messages/batch", json=body, headers={**headers, "Braid-Sequence": "12"}
    )
    assert gap.json()["code"] == "out-of-order-sequence"


def test_the_administration_of_queues_resizes_too(node: LiveNode, name: str) -> None:
    with Worker(node) as worker:
        worker.connect()
        made = worker.ask("create", name=name, partitions=2, partition_strategy="round-robin")
        assert made["queue"]["partition_strategy"] == "round-robin"
        for count in (4, 1):
            changed = worker.ask(f"{name}/config", partitions=count)
            assert changed["queue"]["partitions"] == count


def test_the_client_resizes_too(node: LiveNode, name: str) -> None:
    async def resized() -> list[bool]:
        url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}"
        async with braidmq.connect(url, http_url=node.http_url) as broker:
            await broker.admin.create_topic(name, partitions=2)
            await broker.admin.alter_topic(name, partitions=4)
            await broker.admin.alter_topic(name, partitions=3)
            shown = (await broker.admin.describe_topic(name))["partitions"]
            return [each["closing"] for each in shown]

    assert asyncio.run(resized()) == [False, False, False, True]
