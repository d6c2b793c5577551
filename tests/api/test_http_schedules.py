"""Recurring schedules over HTTP, on a live node."""

import time
from pathlib import Path

import httpx
import pytest

from braidmq.testing.live import LiveNode, live_node

GUEST = ("guest", "guest")
PATH = "/v1/topics/t/schedules/tick"


def client(node: LiveNode) -> httpx.Client:
    return httpx.Client(base_url=node.http_url, auth=GUEST, timeout=30)


@pytest.mark.crash
def test_a_schedule_runs_is_paused_and_survives_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        api.put("/v1/topics/t", json={"settings": {"partitions": 1}}).raise_for_status()
        api.put("/v1/topics/t/subscriptions/s", json={}).raise_for_status()
        made = api.put(PATH, json={"value": "tick", "every_ms": 1000, "headers": {"a": "b"}}).json()
        assert made["next_runs_ms"] == [made["created_ms"] + n * 1000 for n in range(1, 6)]
        receive = "/v1/topics/t/subscriptions/s/receive"
        (got,) = api.post(receive, json={"wait_ms": 20_000}).json()["messages"]
        assert got["value"] == "tick"
        assert got["headers"]["schedule"] == "tick"
        assert got["headers"]["a"] == "b"
        assert int(got["headers"]["scheduled-for"]) == made["next_runs_ms"][0]
        paused = api.post(PATH + "/pause").json()
        assert (paused["paused"], paused["next_runs_ms"]) == (True, [])
        assert [each["name"] for each in api.get("/v1/schedules").json()] == ["tick"]
        node.kill()
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        assert api.get(PATH).json()["paused"]
        resumed = api.post(PATH + "/resume").json()
        assert resumed["next_runs_ms"][0] > time.time() * 1000 - 1000
        wanted = {"wait_ms": 20_000, "limit": 10}
        assert api.post(receive, json=wanted).json()["messages"]
        assert api.delete(PATH).status_code == 204
        assert api.get(PATH).json()["code"] == "unknown-schedule"
        assert api.get("/v1/topics/t/schedules").json() == []


def test_what_is_no_schedule_is_refused(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        assert api.put(PATH, json={"cron": "* * * * *"}).json()["code"] == "unknown-topic"
        api.put("/v1/topics/t", json={}).raise_for_status()
        for body in ({}, {"cron": "nonsense"}, {"cron": "* * * * *", "zone": "Nowhere"}):
            assert api.put(PATH, json=body).json()["code"] == "bad-schedule"
        assert api.put(PATH, json={"every_ms": 1}).status_code == 400
        made = api.put(PATH, json={"cron": "0 9 * * mon", "zone": "Europe/Berlin"}).json()
        assert len(made["next_runs_ms"]) == 5


def test_a_long_list_comes_in_pages_and_says_all_of_each(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, client(node) as api:
        settings = {"settings": {"partitions": 2, "partition_strategy": "explicit"}}
        for topic in ("a", "b"):
            api.put(f"/v1/topics/{topic}", json=settings).raise_for_status()
            for name in ("x", "y", "z"):
                body = {"value": "v", "key": "k", "headers": {"h": "1"}, "partition": 1}
                body |= {"cron": "0 0 1 1 *"}
                api.put(f"/v1/topics/{topic}/schedules/{name}", json=body).raise_for_status()
        refused = api.put("/v1/topics/a/schedules/u", json={"every_ms": 1000})
        assert refused.json()["code"] == "partition-required"
        for path, wanted in (
            ("/v1/schedules", [f"{topic}{name}" for topic in "ab" for name in "xyz"]),
            ("/v1/topics/b/schedules", ["bx", "by", "bz"]),
        ):
            seen, cursor = [], ""
            while True:
                page = api.get(path, params={"limit": 2, "cursor": cursor})
                assert len(page.json()) <= 2
                seen += page.json()
                cursor = page.headers.get("Braid-Next", "")
                if not cursor:
                    break
            assert [each["topic"] + each["name"] for each in seen] == wanted
            said = [(each["key"], each["headers"], each["partition"]) for each in seen]
            assert said == [("k", {"h": "1"}, 1)] * len(wanted)
