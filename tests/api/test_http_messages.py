"""Publishing, receiving, answering, reading: over HTTP, on a live node."""

import base64
import json
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import GUEST, Api, encoded

from braidmq.testing.live import LiveNode, live_node


def test_every_sort_of_value_comes_back_as_it_was(api: Api) -> None:
    topic = api.topic(partitions=1)
    raw = bytes(range(256))
    messages: list[dict[str, Any]] = [
        {"value": "text é"},
        {"value": ""},
        {"value_base64": base64.b64encode(raw).decode()},
        {"json": {"a": [1, 2.5, None]}},
        {"value": None, "key": "gone"},
        {"value": "k", "key_base64": base64.b64encode(b"\xff").decode()},
    ]
    api.publish(topic, *messages)
    placed = api.ok("POST", f"/v1/topics/{topic}/raw", content=raw)
    assert placed == {"topic": topic, "partition": 0, "offset": 6}
    read = api.ok("GET", f"/v1/topics/{topic}/partitions/0/messages")
    found = read["messages"]
    assert (read["next_offset"], read["end_offset"]) == (7, 7)
    assert [m.get("value") for m in found] == [
        "text é", "", None, '{"a":[1,2.5,null]}', None, "k", None,
    ]  # fmt: skip
    assert "value" in found[4]
    assert (
        base64.b64decode(found[2]["value_base64"])
        == raw
        == base64.b64decode(found[6]["value_base64"])
    )
    assert found[3]["content_type"] == "application/json"
    assert (found[4]["key"], found[5]["key_base64"]) == ("gone", "/w==")
    place = f"/v1/topics/{topic}/partitions/0/messages"
    assert api.call("GET", f"{place}/2/raw").content == raw
    assert api.call("GET", f"{place}/4/raw").status_code == 204
    assert api.ok("GET", f"{place}/0")["value"] == "text é"
    api.fails(404, "unknown-offset", "GET", f"{place}/7")


def test_metadata_of_raw_messages_travels_in_headers(api: Api) -> None:
    topic = api.topic(partitions=1)
    sent = {
        "Braid-Key": "k%20%C3%A9",
        "Braid-Priority": "7",
        "Braid-Correlation-Id": "c-1",
        "Braid-Header-Colour": "bl%C3%BCe",
        "Content-Type": "image/png",
    }
    api.ok("POST", f"/v1/topics/{topic}/raw", content=b"x", headers=sent)
    message = api.ok("GET", f"/v1/topics/{topic}/partitions/0/messages/0")
    assert (message["key"], message["priority"]) == ("k é", 7)
    assert message["headers"] == {"colour": "blüe"}
    assert (message["correlation_id"], message["content_type"]) == ("c-1", "image/png")
    answer = api.call("GET", f"/v1/topics/{topic}/partitions/0/messages/0/raw")
    for name in ("Braid-Priority", "Braid-Correlation-Id", "Braid-Header-Colour"):
        assert answer.headers[name] == sent[name]
    assert answer.headers["braid-content-type"] == "image/png"
    assert answer.headers["content-type"] == "application/octet-stream"


def test_keys_stay_together_and_partitions_can_be_named(api: Api) -> None:
    topic = api.topic(partitions=4)
    placed = api.publish(topic, *({"value": str(n), "key": "same"} for n in range(10)))
    assert [(each["first_offset"], each["count"]) for each in placed["partitions"]] == [(0, 10)]
    answer = api.ok("POST", f"/v1/topics/{topic}/messages", {"value": "x", "partition": 3})
    assert answer["partition"] == 3
    bad = {"messages": [{"value": "x"}, {"value": "x", "partition": 9}]}
    before = api.ok("GET", f"/v1/topics/{topic}")["published"]
    api.fails(404, "unknown-partition", "POST", f"/v1/topics/{topic}/messages/batch", bad)
    assert api.ok("GET", f"/v1/topics/{topic}")["published"] == before


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"value": "a", "json": 1},
        {"value": 5},
        {"value_base64": "***"},
        {"value": "a", "key": "b", "key_base64": "Yg=="},
        {"value": "a", "delay_ms": 1, "deliver_at": 1},
        {"value": "a", "deliver_at": "2026-01-01T00:00:00"},
        {"value": "a", "priority": "urgent"},
        {"value": "a", "priority": 256},
        {"value": "a", "user_id": "somebody"},
        {"value": "a", "content_type": "x", "headers": {"content-type": "y"}},
        {"value": "a", "partitions": 1},
        {"value": "a", "key": "k" * 65_536},
    ],
)
def test_a_bad_message_is_refused_and_its_batch_with_it(api: Api, message: Any) -> None:
    topic = api.topic()
    path = f"/v1/topics/{topic}/messages"
    api.fails(400, "bad-request", "POST", path, message)
    api.fails(400, "bad-request", "POST", f"{path}/batch", {"messages": [{"value": "x"}, message]})
    assert api.ok("GET", f"/v1/topics/{topic}")["published"] == 0


def test_limits_of_messages_and_topics(api: Api) -> None:
    topic = api.topic(partitions=1, message_bytes_max=10, max_messages=3)
    path = f"/v1/topics/{topic}/messages"
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.fails(413, "message-too-large", "POST", path, {"value": "x" * 11})
    answer = api.publish(topic, *({"value": str(n)} for n in range(5)))
    assert (answer["count"], answer["refused"]) == (3, [3, 4])
    api.fails(429, "topic-full", "POST", path, {"value": "x"})
    assert api.call("POST", path, {"value": "x"}).headers["retry-after"] == "1"


def test_a_long_poll_is_woken_by_a_message(api: Api) -> None:
    topic = api.topic(partitions=1)
    subscription = f"/v1/topics/{topic}/subscriptions/s"
    api.ok("PUT", subscription, {})
    with ExitStack() as stack:
        polls = []
        for waiting in (1, 2):
            poll = begin_poll(api.node, f"{subscription}/receive")
            polls.append(stack.enter_context(closing(poll)))
            wait_until_waiting(api, subscription, waiting)
        for waiting, value in ((1, "one"), (0, "two")):
            api.publish(topic, {"value": value})
            wait_until_waiting(api, subscription, waiting)
        answers = [json.loads(poll.getresponse().read()) for poll in polls]
    values = [message["value"] for answer in answers for message in answer["messages"]]
    assert values == ["one", "two"]  # who waited longer is served first


def wait_until_waiting(api: Api, subscription: str, polls: int) -> None:
    while api.ok("GET", subscription)["waiting"] != polls:
        pass


def test_a_long_poll_ends_with_its_subscription_and_its_node(tmp_path: Path) -> None:
    with (
        live_node(tmp_path, mqtt_port=0, ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client,
        ExitStack() as stack,
    ):
        api = Api(node, client)
        topic = api.topic()
        polls = {}
        for name in ("gone", "kept"):
            api.ok("PUT", f"/v1/topics/{topic}/subscriptions/{name}", {})
            path = f"/v1/topics/{topic}/subscriptions/{name}/receive"
            polls[name] = stack.enter_context(closing(begin_poll(node, path)))
            wait_until_waiting(api, f"/v1/topics/{topic}/subscriptions/{name}", 1)
        api.ok("DELETE", f"/v1/topics/{topic}/subscriptions/gone")
        assert polls["gone"].getresponse().status == 404
        assert node.stop() == 0
        assert json.loads(polls["kept"].getresponse().read()) == {"messages": []}


def begin_poll(node: LiveNode, path: str) -> HTTPConnection:
    """A poll whose answer is not read yet."""
    connection = HTTPConnection("127.0.0.1", node.ports["http_port"], timeout=30)
    token = base64.b64encode(":".join(GUEST).encode()).decode()
    connection.request("POST", path, b'{"wait_ms": 30000}', {"Authorization": f"Basic {token}"})
    return connection


def test_answers_by_receipt(api: Api) -> None:
    topic = api.topic(partitions=1, ordering="none")
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.publish(topic, *({"value": str(n)} for n in range(6)))
    got = api.receive(topic, "s", limit=6)
    receipts = [m["receipt"] for m in got]
    assert [(m["delivery_count"], m["redelivered"]) for m in got] == [(1, False)] * 6
    one = f"/v1/receipts/{encoded(receipts[0])}"
    api.ok("POST", f"{one}/extend", {"visibility_ms": 60_000})
    api.ok("POST", f"{one}/ack")
    api.fails(409, "stale-receipt", "POST", f"{one}/ack")
    api.fails(400, "bad-receipt", "POST", "/v1/receipts/what/ack")
    settled = api.ok("POST", "/v1/receipts/ack", {"receipts": [receipts[0], *receipts[1:3], "x"]})
    assert settled["count"] == 2
    assert [each["code"] for each in settled["failed"]] == ["stale-receipt", "bad-receipt"]
    api.ok("POST", "/v1/receipts/nack", {"receipts": [receipts[3]], "delay_ms": 0})
    (again,) = api.receive(topic, "s", limit=6, wait_ms=10_000)
    assert (again["value"], again["delivery_count"], again["redelivered"]) == ("3", 2, True)
    api.ok("POST", "/v1/receipts/reject", {"receipts": receipts[4:], "error": "no good"})
    letters = api.ok("GET", f"/v1/topics/{topic}/dead-letters")["letters"]
    assert [(each["message"]["value"], each["reason"]) for each in letters] == [
        ("4", "rejected"),
        ("5", "rejected"),
    ]


def test_an_unanswered_message_comes_again(api: Api) -> None:
    topic = api.topic(partitions=1, retry={"base_ms": 0})
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.publish(topic, {"value": "x"})
    (first,) = api.receive(topic, "s", visibility_ms=1)
    (second,) = api.receive(topic, "s", wait_ms=20_000)
    assert second["delivery_count"] == 2
    api.fails(409, "stale-receipt", "POST", f"/v1/receipts/{encoded(first['receipt'])}/ack")
    assert api.receive(topic, "s", auto_ack=True) == []


def test_dead_letters_are_inspected_retried_and_removed(api: Api) -> None:
    topic = api.topic(partitions=2)
    path = f"/v1/topics/{topic}/dead-letters"
    assert api.ok("GET", path) == {"topic": "", "letters": []}
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    sent = [{"value": str(n), "key": "k", "headers": {"a": "b"}} for n in range(4)]
    api.publish(topic, *sent)
    receipts = [m["receipt"] for m in api.receive(topic, "s", limit=4)]
    api.ok("POST", "/v1/receipts/reject", {"receipts": receipts, "error": "broken"})
    letters = api.ok("GET", path)["letters"]
    assert [each["message"]["value"] for each in letters] == ["0", "1", "2", "3"]
    first = api.ok("GET", f"{path}/0")
    assert (first["subscription"], first["attempts"], first["error"]) == ("s", 1, "broken")
    assert (first["topic"], first["original_offset"]) == (topic, 0)
    api.ok("POST", f"{path}/0/retry")
    api.fails(404, "unknown-dead-letter", "POST", f"{path}/0/retry")
    api.fails(405, "method-not-allowed", "GET", f"{path}/retry")
    api.ok("DELETE", f"{path}/1")
    (back,) = api.receive(topic, "s", limit=4)
    assert (back["value"], back["key"], back["headers"]) == ("0", "k", {"a": "b"})
    assert api.ok("POST", f"{path}/retry") == {"count": 2, "more": False, "stayed": 0}
    assert [m["value"] for m in api.receive(topic, "s", limit=4)] == ["2", "3"]
    assert api.ok("DELETE", path) == {"count": 0, "stayed": 0}


def test_delayed_messages_are_listed_and_cancelled(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    hour = 3_600_000
    api.publish(
        topic,
        {"value": "later", "delay_ms": hour},
        {"value": "at once", "deliver_at": 1},
        {"value": "dated", "deliver_at": "2099-01-01T00:00:00Z"},
        {"value": "soon", "delay_ms": 20},
    )
    (now,) = api.receive(topic, "s")
    assert now["value"] == "at once"
    (soon,) = api.receive(topic, "s", wait_ms=20_000)
    assert soon["value"] == "soon"
    waiting = api.ok("GET", f"/v1/topics/{topic}/delayed")
    assert waiting["count"] == 2
    assert [m["value"] for m in waiting["messages"]] == ["later", "dated"]
    assert waiting["messages"][1]["deliver_at_ms"] == 4_070_908_800_000
    api.ok("DELETE", f"/v1/topics/{topic}/delayed/0/0")
    api.fails(404, "not-delayed", "DELETE", f"/v1/topics/{topic}/delayed/0/0")
    assert api.ok("GET", f"/v1/topics/{topic}/delayed")["count"] == 1


def test_reading_touches_no_subscription(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.publish(topic, *({"value": str(n)} for n in range(10)))
    before = api.ok("GET", f"/v1/topics/{topic}/subscriptions/s")
    assert before.pop("oldest_ready_ms") is not None
    path = f"/v1/topics/{topic}/partitions/0/messages"
    page = api.ok("GET", f"{path}?start=4&limit=2")
    assert [m["value"] for m in page["messages"]] == ["4", "5"]
    assert page["next_offset"] == 6
    time = page["messages"][0]["timestamp_ms"]
    assert len(api.ok("GET", f"{path}?start=@{time}")["messages"]) == 10
    assert api.ok("GET", f"{path}?start=@{time + 60_000}")["messages"] == []
    api.fails(400, "bad-position", "GET", f"{path}?start=99")
    after = api.ok("GET", f"/v1/topics/{topic}/subscriptions/s")
    assert after.pop("oldest_ready_ms") is not None
    assert after == before


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node, httpx.Client(auth=GUEST) as client:
        client.base_url = httpx.URL(node.http_url)
        api = Api(node, client)
        topic = api.topic(partitions=1)
        api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
        api.publish(topic, *({"value": str(n)} for n in range(3)))
        (got,) = api.receive(topic, "s")
        api.ok("POST", f"/v1/receipts/{encoded(got['receipt'])}/ack")
        token = api.ok("POST", "/v1/tokens", {})["token"]
        node.kill()
    bearer = {"authorization": f"Bearer {token}"}
    with (
        live_node(tmp_path, mqtt_port=0, ws_port=0) as node,
        httpx.Client(headers=bearer) as client,
    ):
        client.base_url = httpx.URL(node.http_url)
        api = Api(node, client)
        assert [m["value"] for m in api.receive(topic, "s", limit=9)] == ["1", "2"]
