"""Figures of reliability, delays, priorities and transactions (catalogue rows F3, O5)."""

import time
from typing import Any

import httpx
from http_api import Api

from braidmq.engine.policy import LANE_WEIGHTS, LANES
from braidmq.record.batch import RecordBatch


def made_namespace(api: Api, name: str) -> dict[str, Any]:
    """One that no other test counts in."""
    api.ok("PUT", f"/v1/namespaces/{name}", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.ok("PUT", f"/v1/permissions/{name}/guest", everything)
    return {"params": {"namespace": name}}


def test_lanes_of_a_partition(api: Api) -> None:
    topic = api.topic(partitions=1, priority="lanes")
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {"mode": "key-ordered"})
    for lane in ("critical", "critical", "low"):
        api.publish(topic, {"value": "x", "priority": lane})
    got = api.receive(topic, "s", limit=1)
    found = api.ok("GET", "/v1/priority/stats", params={"topic": topic})
    assert "next" not in found
    (partition,) = found["partitions"]
    assert (partition["topic"], partition["subscription"], partition["partition"]) == (
        topic,
        "s",
        0,
    )
    lanes = {each["lane"]: each for each in partition["lanes"]}
    assert list(lanes) == list(LANES)
    assert [each["weight"] for each in partition["lanes"]] == list(LANE_WEIGHTS)
    shown = {
        name: (each["ready"], each["in_flight"], each["served"]) for name, each in lanes.items()
    }
    assert shown == {
        "critical": (1, 1, 1),
        "high": (0, 0, 0),
        "normal": (0, 0, 0),
        "low": (1, 0, 0),
        "background": (0, 0, 0),
    }
    assert lanes["critical"]["last_served_ms"] >= got[0]["timestamp_ms"]
    assert lanes["critical"]["served_per_second"] > 0
    assert "last_served_ms" not in lanes["low"]
    api.ok("POST", "/v1/receipts/ack", {"receipts": [got[0]["receipt"]]})
    (partition,) = api.ok("GET", "/v1/priority/stats", params={"topic": topic})["partitions"]
    assert partition["lanes"][0]["in_flight"] == 0


def test_levels_that_are_in_use(api: Api) -> None:
    topic = api.topic(partitions=1, priority="strict", priority_levels=200)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.publish(topic, {"value": "x", "priority": 7}, {"value": "x", "priority": 199})
    (partition,) = api.ok("GET", "/v1/priority/stats", params={"topic": topic})["partitions"]
    assert [(each["lane"], each["ready"]) for each in partition["lanes"]] == [("199", 1), ("7", 1)]
    assert "weight" not in partition["lanes"][0]


def test_lanes_come_in_pages(api: Api) -> None:
    where = made_namespace(api, "pages")
    for name in "ab":
        settings = {"settings": {"partitions": 2, "priority": "lanes"}}
        api.ok("PUT", f"/v1/topics/{name}", settings, **where)
        for subscription in "st":
            api.ok("PUT", f"/v1/topics/{name}/subscriptions/{subscription}", {}, **where)
    api.ok("PUT", "/v1/topics/plain", {}, **where)
    seen = []
    for found in api.pages("/v1/priority/stats", namespace="pages", limit=3):
        seen += [(p["topic"], p["subscription"], p["partition"]) for p in found["partitions"]]
        assert len(found["partitions"]) <= 3
    assert seen == [(t, s, p) for t in "ab" for s in "st" for p in (0, 1)]


def test_reliability_counts_what_became_of_messages(api: Api) -> None:
    where = made_namespace(api, "reliable")
    settings = {"partitions": 1, "retry": {"attempts": 1}}
    api.ok("PUT", "/v1/topics/t", {"settings": settings}, **where)
    api.ok("PUT", "/v1/topics/t/subscriptions/s", {}, **where)
    messages = {"messages": [{"value": str(number)} for number in range(6)]}
    api.ok("POST", "/v1/topics/t/messages/batch", messages, **where)
    got = api.ok("POST", "/v1/topics/t/subscriptions/s/receive", {"limit": 5}, **where)["messages"]
    receipts = [each["receipt"] for each in got]
    api.ok("POST", "/v1/receipts/ack", {"receipts": receipts[:2]}, **where)
    api.ok("POST", "/v1/receipts/reject", {"receipts": receipts[2:3]}, **where)
    found = api.ok("GET", "/v1/reliability/stats", **where)
    expected = {"subscriptions": 1, "ready": 1, "in_flight": 2, "delivered": 5, "acked": 2}
    expected |= {"rejected": 1, "dead_lettered": 1, "timed_out": 0, "topics": 2}
    assert {name: found[name] for name in expected} == expected
    assert found["dead_letters_by_reason"] == {"rejected": 1}


def test_delays_by_topic(api: Api) -> None:
    where = made_namespace(api, "later")
    for name, count in (("a", 1), ("b", 3)):
        api.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1}}, **where)
        for subscription in "st":
            api.ok("PUT", f"/v1/topics/{name}/subscriptions/{subscription}", {}, **where)
        messages = {"messages": [{"value": "x", "delay_ms": 3_600_000}] * count}
        api.ok("POST", f"/v1/topics/{name}/messages/batch", messages, **where)
    # Nobody subscribes; with a limit somebody counts in a subscriber's place.
    for name, settings in (("c", {"max_messages": 9}), ("d", {})):
        api.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1} | settings}, **where)
        message = {"value": "x", "delay_ms": 3_600_000}
        api.ok("POST", f"/v1/topics/{name}/messages", message, **where)
    found = api.ok("GET", "/v1/delay/stats", **where)
    assert found["pending"] == 6
    none = {"delivered": 0, "cancelled": 0, "expired": 0}
    waiting = [
        {"topic": name, "pending": count} for name, count in zip("bacd", (3, 1, 1, 1), strict=True)
    ]
    assert found["topics"] == [each | none for each in waiting]
    text = httpx.get(f"{api.node.http_url}/metrics").text
    assert 'braid_delayed_messages{namespace="later"} 10.0' in text  # two subscriptions, and two
    assert found["timers"] >= 6
    assert found["next_timer_ms"] > 1_700_000_000_000


def test_what_became_of_delayed_messages(api: Api) -> None:
    where = made_namespace(api, "ended")
    query = {"namespace": "ended"}
    api.ok("PUT", "/v1/topics/t", {"settings": {"partitions": 1}}, **where)
    api.ok("PUT", "/v1/topics/t/subscriptions/s", {}, **where)
    hour = 3_600_000
    # A time to live begins when a message is due: only records say that they expire before it.
    batch, now_ms = RecordBatch(), int(time.time() * 1000)
    batch.append(b"x", timestamp_ms=now_ms, due_at_ms=now_ms + hour, expires_at_ms=now_ms + 20)
    sent = {"content": bytes(memoryview(batch)), "auth": ("guest", "guest"), "params": query}
    httpx.post(f"{api.node.http_url}/v1/topics/t/records", **sent).raise_for_status()
    for message in (
        {"value": "cancelled", "delay_ms": hour},
        {"value": "waits", "delay_ms": hour},
        {"value": "comes", "delay_ms": 200},
    ):
        api.ok("POST", "/v1/topics/t/messages", message, **where)
    api.ok("DELETE", "/v1/topics/t/delayed/0/1", **where)
    receive = "/v1/topics/t/subscriptions/s/receive"
    (got,) = api.ok("POST", receive, {"wait_ms": 20_000}, **where)["messages"]
    assert got["value"] == "comes"
    for state, offset in (("expired", 0), ("cancelled", 1), ("delivered", 3)):
        found = api.ok("GET", "/v1/topics/t/delayed", params=query | {"state": state})
        assert (found["count"], found["messages"]) == (1, [])
        (ended,) = found["ended"]
        assert (ended["offset"], ended["state"]) == (offset, state)
        assert (ended["ended_ms"] >= ended["deliver_at_ms"]) == (state == "delivered")
    pending = api.ok("GET", "/v1/topics/t/delayed", **where)
    assert ([each["offset"] for each in pending["messages"]], pending["ended"]) == ([2], [])
    figures = api.ok("GET", "/v1/delay/stats", **where)
    (topic,) = figures["topics"]
    states = ("pending", "delivered", "cancelled", "expired")
    assert topic == {"topic": "t"} | dict.fromkeys(states, 1)
    assert {name: figures[name] for name in states} == dict.fromkeys(states, 1)
    text = httpx.get(f"{api.node.http_url}/metrics").text
    assert 'braid_delays_ended_total{namespace="ended",state="expired"} 1.0' in text
    path = "/v1/topics/t/delayed?namespace=ended&state="
    api.fails(400, "bad-request", "GET", f"{path}expired&cursor=WzAsM10=")
    api.fails(400, "bad-request", "GET", f"{path}no")


def test_transactions_of_the_node(api: Api) -> None:
    before = api.ok("GET", "/v1/transactions/stats")
    for name in ("one", "two", "three"):
        api.ok("POST", "/v1/transactions", {"name": name})
    api.ok("POST", "/v1/transactions/one/commit", {})
    api.ok("POST", "/v1/transactions/two/abort", {})
    found = api.ok("GET", "/v1/transactions/stats")
    grown = {name: found[name] - before[name] for name in ("open", "committed", "aborted")}
    assert grown == {"open": 1, "committed": 1, "aborted": 1}
    assert found["open_by_namespace"]["/"] == found["open"]
    assert found["oldest_age_ms"] >= 0
    api.ok("POST", "/v1/transactions/three/abort", {})
    api.fails(400, "bad-request", "POST", "/v1/transactions", {"name": "stats"})


def test_only_what_one_may_read_is_counted(api: Api) -> None:
    where = made_namespace(api, "shared")
    for name in ("mine", "yours"):
        api.ok("PUT", f"/v1/topics/{name}", {"settings": {"priority": "lanes"}}, **where)
        api.ok("PUT", f"/v1/topics/{name}/subscriptions/s", {}, **where)
        api.ok("POST", f"/v1/topics/{name}/messages", {"value": "x", "delay_ms": 60_000}, **where)
    api.ok("PUT", "/v1/users/reader", {"password": "secret"})
    api.ok("PUT", "/v1/permissions/shared/reader", {"configure": "", "write": "", "read": "^mine$"})
    with httpx.Client(base_url=api.node.http_url, auth=("reader", "secret")) as reader:
        found = reader.get("/v1/reliability/stats", **where).json()
        assert (found["topics"], found["subscriptions"]) == (1, 1)
        assert "dead_letters_by_reason" not in found
        delays = reader.get("/v1/delay/stats", **where).json()
        assert [each["topic"] for each in delays["topics"]] == ["mine"]
        lanes = reader.get("/v1/priority/stats", **where).json()["partitions"]
        assert {each["topic"] for each in lanes} == {"mine"}
        named = {"namespace": "shared", "topic": "yours"}
        assert reader.get("/v1/priority/stats", params=named).json()["partitions"] == []
        assert reader.get("/v1/transactions/stats").status_code == 403
