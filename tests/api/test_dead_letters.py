"""Dead letters of the whole node: found, and returned (catalogue rows D6, D10)."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import Api, encoded

from braidmq.testing.live import live_node

RETURN = "/v1/dead-letters/return"


def killed(api: Api, topic: str, *values: str, by: str = "s", error: str = "why") -> None:
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/{by}", {})
    api.publish(topic, *[{"value": value} for value in values])
    got = api.receive(topic, by, limit=len(values))
    receipts = [each["receipt"] for each in got]
    api.ok("POST", "/v1/receipts/reject", {"receipts": receipts, "error": error})


def found(api: Api, limit: int = 1000, **wanted: Any) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    for page in api.pages("/v1/dead-letters", limit=limit, **wanted):
        assert len(page["letters"]) <= limit
        letters += page["letters"]
    return letters


def values(letters: list[dict[str, Any]]) -> list[str]:
    return [each["message"]["value"] for each in letters]


def behind_an_exchange(api: Api) -> tuple[str, list[str]]:
    """A topic whose dead go to one of two queues by their key."""
    queues = [api.topic(), api.topic()]
    exchange = api.topic()
    api.ok("PUT", f"/v1/exchanges/{exchange}", {"kind": "direct"})
    for key, queue in zip(("a", "b"), queues, strict=True):
        body = {"source": exchange, "destination": queue, "routing_key": key}
        api.ok("POST", "/v1/bindings", body)
    topic = api.topic(partitions=1, dead_letter={"topic": None, "exchange": exchange})
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    api.publish(topic, *[{"value": key, "key": key} for key in ("a", "b", "a")])
    receipts = [each["receipt"] for each in api.receive(topic, "s", limit=3)]
    api.ok("POST", "/v1/receipts/reject", {"receipts": receipts})
    return topic, queues


def test_letters_of_all_topics(api: Api) -> None:
    one, other = api.topic(partitions=1), api.topic(partitions=1)
    killed(api, one, "1", "2", error="first")
    killed(api, other, "3", by="t")
    every = [each for each in found(api) if each["topic"] in (one, other)]
    assert sorted(values(every)) == ["1", "2", "3"]
    first = next(each for each in every if each["message"]["value"] == "1")
    assert {
        "namespace": "/",
        "queue": f"{one}.dlq",
        "offset": 0,
        "topic": one,
        "partition": 0,
        "original_offset": 0,
        "reason": "rejected",
        "attempts": 1,
        "subscription": "s",
        "error": "first",
    }.items() <= first.items()
    at_ms = first["at_ms"]
    assert values(found(api, topic=one)) == ["1", "2"]
    assert values(found(api, topic=one, limit=1)) == ["1", "2"]
    assert values(found(api, queue=f"{other}.dlq")) == ["3"]
    assert values(found(api, topic=other, subscription="t", reason="rejected")) == ["3"]
    assert found(api, topic=other, subscription="s") == []
    assert found(api, topic=other, reason="expired") == []
    assert values(found(api, topic=one, since_ms=at_ms)) == ["1", "2"]
    assert found(api, topic=one, until_ms=at_ms) == []
    assert found(api, topic=one, since_ms=at_ms + 3_600_000) == []
    assert values(found(api, topic=one, namespace="/")) == ["1", "2"]
    assert found(api, topic="nobody's") == found(api, queue="nobody's") == []


def test_letters_behind_an_exchange(api: Api) -> None:
    topic, queues = behind_an_exchange(api)
    path = f"/v1/topics/{topic}/dead-letters"
    assert sorted(values(found(api, topic=topic))) == ["a", "a", "b"]
    letters = [each for page in api.pages(path, limit=1) for each in page["letters"]]
    assert sorted((each["queue"], each["offset"]) for each in letters) == sorted(
        [(queues[0], 0), (queues[0], 1), (queues[1], 0)]
    )
    api.fails(400, "bad-request", "GET", f"{path}/0")
    of_one = api.ok("GET", f"{path}/0", params={"queue": queues[1]})
    assert of_one["message"]["value"] == "b"
    assert api.ok("GET", f"{path}/1")["message"]["value"] == "a"
    api.fails(404, "unknown-dead-letter", "GET", f"{path}/1?queue={queues[1]}")
    api.fails(404, "unknown-dead-letter", "GET", f"{path}?queue=elsewhere")
    done = api.ok("POST", RETURN, {"topic": topic})
    assert (done["count"], done["stayed_count"], done["next"]) == (3, 0, "")
    back = api.receive(topic, "s", limit=9)
    assert sorted(each["value"] for each in back) == ["a", "a", "b"]
    assert found(api, topic=topic) == []


def test_a_return_is_shown_before_it_is_done(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/other", {})
    killed(api, topic, *[str(number) for number in range(12)])
    assert len(api.receive(topic, "other", limit=20, auto_ack=True)) == 12
    plan = api.ok("POST", RETURN, {"topic": topic, "dry_run": True})
    assert (plan["count"], plan["stayed_count"], len(plan["examples"])) == (12, 0, 10)
    assert plan["examples"][0]["error"] == "why"
    assert "message" not in plan["examples"][0]
    assert len(found(api, topic=topic)) == 12
    one = {"namespace": "/", "queue": f"{topic}.dlq", "offset": 3}
    assert api.ok("POST", RETURN, one)["count"] == 1
    assert api.ok("POST", RETURN, one)["count"] == 0
    some = api.ok("POST", RETURN, {"topic": topic, "limit": 5})
    assert some["count"] == 5
    assert some["next"]
    rest = api.ok("POST", RETURN, {"topic": topic, "cursor": some["next"]})
    assert (rest["count"], rest["next"]) == (6, "")
    assert len(api.receive(topic, "s", limit=20, auto_ack=True)) == 12
    assert api.receive(topic, "other", limit=20) == []


def test_what_can_not_go_back_stays(api: Api) -> None:
    topic = api.topic(partitions=1, max_messages=3, overflow="drop-head")
    killed(api, topic, "1", "2", "3")
    api.publish(topic, {"value": "here"})
    for dry_run in (True, False):
        done = api.ok("POST", RETURN, {"topic": topic, "dry_run": dry_run})
        assert (done["count"], done["stayed_count"], done["next"]) == (2, 1, "")
        assert [each["code"] for each in done["stayed"]] == ["topic-full"]
        assert done["stayed"][0]["letter"]["offset"] == 2
    got = [each["value"] for each in api.receive(topic, "s", limit=9, auto_ack=True)]
    assert got == ["here", "1", "2"]
    api.ok("DELETE", f"/v1/topics/{topic}/subscriptions/s")
    api.fails(404, "unknown-subscription", "POST", f"/v1/topics/{topic}/dead-letters/2/retry")
    done = api.ok("POST", RETURN, {"topic": topic})
    assert [each["code"] for each in done["stayed"]] == ["unknown-subscription"]
    assert api.ok("POST", f"/v1/topics/{topic}/dead-letters/retry")["stayed"] == 1
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/late", {"start": "latest"})
    assert api.ok("POST", RETURN, {"topic": topic, "to": "topic"})["count"] == 1
    assert [each["value"] for each in api.receive(topic, "late", limit=9)] == ["3"]


def test_letters_of_a_topic_that_is_gone(api: Api) -> None:
    topic = api.topic(partitions=1)
    killed(api, topic, "1")
    api.ok("DELETE", f"/v1/topics/{topic}")
    assert values(found(api, topic=topic)) == ["1"]
    done = api.ok("POST", RETURN, {"topic": topic})
    assert [each["code"] for each in done["stayed"]] == ["unknown-topic"]


def test_nobody_returns_everything_by_mistake(api: Api) -> None:
    for body in ({}, {"dry_run": True}, {"to": "topic", "namespace": "/"}, {"offset": 3}):
        api.fails(400, "bad-request", "POST", RETURN, body)
    api.fails(400, "bad-request", "POST", RETURN, {"queue": "q", "offset": 3})
    assert api.ok("POST", RETURN, {"all": True, "dry_run": True})["count"] >= 0
    wrong = urlsafe_b64encode(json.dumps(["/", 5, "x"]).encode()).decode()
    for cursor in ("what", "é", wrong):
        path = f"/v1/dead-letters?cursor={encoded(cursor)}"
        api.fails(400, "bad-request", "GET", path)


def test_a_message_that_says_it_died(api: Api) -> None:
    """Whoever may write to a topic for dead letters can write what it likes: nobody stumbles."""
    topic = api.topic(partitions=1)
    killed(api, topic, "1")
    forged = [
        {"x-death-topic": topic},
        {"x-death-topic": topic, "x-death-reason": "mine", "x-death-partition": "many"},
        {"x-death-path": "\u0001"},
    ]
    api.publish(f"{topic}.dlq", *[{"value": "forged", "headers": each} for each in forged])
    assert values(found(api, topic=topic)) == ["1", "forged"]
    assert len(api.ok("GET", f"/v1/topics/{topic}/dead-letters")["letters"]) == 2
    assert api.ok("POST", RETURN, {"topic": topic})["count"] == 2


# --- who may ---


@pytest.fixture
def namespaces(api: Api) -> list[str]:
    """Two, each with a topic ``t``, a topic ``hidden``, and a dead letter of both."""
    names = [f"ns-{api.topic()}" for _ in range(2)]
    for name in names:
        api.ok("PUT", f"/v1/namespaces/{name}", {})
        patterns = {"configure": ".*", "write": ".*", "read": ".*"}
        api.ok("PUT", f"/v1/permissions/{name}/guest", patterns)
        for topic in ("t", "hidden"):
            query = f"?namespace={name}"
            api.ok("PUT", f"/v1/topics/{topic}{query}", {"settings": {"partitions": 1}})
            api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s{query}", {})
            api.ok("POST", f"/v1/topics/{topic}/messages{query}", {"value": f"{name} {topic}"})
            got = api.ok("POST", f"/v1/topics/{topic}/subscriptions/s/receive{query}", {})
            receipt = encoded(got["messages"][0]["receipt"])
            api.ok("POST", f"/v1/receipts/{receipt}/reject{query}", {})
    return names


AsUser = Callable[..., Api]


@pytest.fixture
def as_user(api: Api) -> Iterator[AsUser]:
    """A user with permissions by namespace."""
    with ExitStack() as stack:

        def made(**permissions: dict[str, str]) -> Api:
            name = api.topic()
            api.ok("PUT", f"/v1/users/{name}", {"password": "secret"})
            for namespace, patterns in permissions.items():
                api.ok("PUT", f"/v1/permissions/{encoded(namespace)}/{name}", patterns)
            client = httpx.Client(base_url=api.node.http_url, auth=(name, "secret"), timeout=60)
            return Api(api.node, stack.enter_context(client))

        yield made


def test_only_what_one_may_read_is_there(api: Api, namespaces: list[str], as_user: AsUser) -> None:
    first, second = namespaces
    every = values(found(api, reason="rejected"))
    assert {f"{name} {topic}" for name in namespaces for topic in ("t", "hidden")} <= set(every)
    reading = {"configure": "", "write": "", "read": "^t$"}
    reader = as_user(**{first: reading})
    assert values(found(reader)) == [f"{first} t"]
    reader.fails(403, "access-refused", "GET", f"/v1/dead-letters?namespace={second}")
    done = reader.ok("POST", RETURN, {"all": True})
    assert (done["count"], done["stayed_count"]) == (0, 1)
    assert done["stayed"][0]["code"] == "access-refused"
    both = as_user(**{name: reading | {"write": "^t$"} for name in namespaces})
    assert values(found(both)) == [f"{name} t" for name in sorted(namespaces)]
    assert both.ok("POST", RETURN, {"all": True, "namespace": second})["count"] == 1
    assert values(found(both)) == [f"{first} t"]
    assert found(as_user()) == []


def test_queues_behind_an_exchange_are_for_their_readers(api: Api, as_user: AsUser) -> None:
    topic, queues = behind_an_exchange(api)
    mine = {"configure": f"^{topic}$", "write": f"^{topic}$", "read": f"^({topic}|{queues[1]})$"}
    owner = as_user(**{"/": mine})
    assert values(found(owner)) == ["b"]
    path = f"/v1/topics/{topic}/dead-letters"
    assert values(owner.ok("GET", path)["letters"]) == ["b"]
    owner.fails(404, "unknown-dead-letter", "GET", f"{path}/1")
    assert owner.ok("DELETE", path)["count"] == 1
    assert values(found(api, topic=topic)) == ["a", "a"]


# --- kills ---


@contextmanager
def started(data_dir: Path) -> Iterator[Api]:
    with (
        live_node(data_dir, mqtt_port=0, ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=60) as client,
    ):
        yield Api(node, client)


def test_a_killed_node_has_each_letter_here_or_there(tmp_path: Path) -> None:
    count = 40
    with started(tmp_path) as api:
        api.ok("PUT", "/v1/topics/t", {"settings": {"partitions": 2}})
        api.ok("PUT", "/v1/topics/t/subscriptions/other", {})
        killed(api, "t", *[str(number) for number in range(count)])
        assert len(api.receive("t", "other", limit=100, auto_ack=True)) == count
        done = api.ok("POST", RETURN, {"topic": "t", "limit": count // 2})
        assert done["count"] == count // 2
        api.node.kill()
    with started(tmp_path) as api:
        assert len(found(api, topic="t")) == count // 2
        assert api.ok("POST", RETURN, {"topic": "t"})["count"] == count // 2
        got = [each["value"] for each in api.receive("t", "s", limit=100)]
        assert sorted(got, key=int) == [str(number) for number in range(count)]
        assert api.receive("t", "other", limit=100) == []
