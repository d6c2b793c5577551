"""Receiving without being a member: how much may be unanswered, and what a crash leaves of it."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from braidmq.testing.live import LiveNode, live_node

GUEST = ("guest", "guest")
RECEIVE = "/v1/topics/t/subscriptions/s/receive"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[httpx.Client]:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        yield api


def client(node: LiveNode) -> httpx.Client:
    return httpx.Client(base_url=node.http_url, auth=GUEST, timeout=30)


def fill(api: httpx.Client, count: int, **settings: object) -> None:
    api.put("/v1/topics/t", json={"settings": {"partitions": 1, **settings}}).raise_for_status()
    api.put("/v1/topics/t/subscriptions/s", json={}).raise_for_status()
    messages = [{"value": str(number)} for number in range(count)]
    api.post("/v1/topics/t/messages/batch", json={"messages": messages}).raise_for_status()


def received(api: httpx.Client, **wanted: object) -> list[dict[str, object]]:
    answer = api.post(RECEIVE, json={"wait_ms": 0, **wanted})
    assert answer.is_success, answer.text
    found: list[dict[str, object]] = answer.json()["messages"]
    return found


def test_above_the_limit_nothing_is_handed_out_until_something_is_answered(
    api: httpx.Client,
) -> None:
    fill(api, 1005)
    held = received(api, limit=1000)
    assert len(held) == 1000
    refused = api.post(RECEIVE, json={"limit": 1})
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-in-flight")
    assert "in_flight_max" in refused.json()["remedy"]
    api.post("/v1/receipts/ack", json={"receipts": [held[0]["receipt"]]}).raise_for_status()
    assert [each["value"] for each in received(api, limit=10)] == ["1000"]
    assert api.post(RECEIVE, json={}).status_code == 429


def test_the_topic_sets_the_limit_while_in_use(api: httpx.Client) -> None:
    fill(api, 10, in_flight_max=2)
    assert len(received(api, limit=10)) == 2
    assert api.post(RECEIVE, json={"limit": 1}).status_code == 429
    api.patch(
        "/v1/topics/t", json={"settings": {"partitions": 1, "in_flight_max": 5}}
    ).raise_for_status()
    assert len(received(api, limit=10)) == 3
    assert api.post(RECEIVE, json={"limit": 1}).status_code == 429


@pytest.mark.crash
def test_a_deadline_is_on_disk_when_the_message_is_handed_out(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        fill(api, 1)
        assert len(received(api, visibility_ms=3600_000)) == 1
        node.kill()
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        assert received(api) == []


@pytest.mark.crash
def test_what_was_in_flight_at_a_crash_keeps_its_deadline(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        fill(api, 3, retry={"base_ms": 0})
        due = time.time() + 7.9
        soon, later = received(api, limit=1, visibility_ms=8000), received(api, limit=1)
        extended = received(api, limit=1, visibility_ms=8000)
        body = {"receipts": [extended[0]["receipt"]], "visibility_ms": 3600_000}
        assert api.post("/v1/receipts/extend", json=body).json()["count"] == 1
        node.kill()
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        stale = api.post("/v1/receipts/ack", json={"receipts": [later[0]["receipt"]]}).json()
        assert [each["code"] for each in stale["failed"]] == ["stale-receipt"]
        again = received(api, limit=10, wait_ms=20_000)
        assert time.time() >= due
        assert [each["value"] for each in again] == [soon[0]["value"]]
        assert again[0]["delivery_count"] == 2
        assert received(api, limit=10) == []
