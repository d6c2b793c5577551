"""Every list comes in pages, which together are the list, whatever changes between two of them."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from http_api import GUEST, Api
from hypothesis import given
from hypothesis import strategies as st

from braidmq.api.assembly import openapi_text
from braidmq.api.paging import ITEMS_PER_TURN, ListQuery, page_of
from braidmq.model.errors import BadRequest
from braidmq.testing.live import live_node

LISTS = {
    path: methods["get"]["operationId"]
    for path, methods in json.loads(openapi_text())["paths"].items()
    if "get" in methods and "cursor" in {each["name"] for each in methods["get"]["parameters"]}
}
ELSEWHERE = {
    "listSessions": "tests/clients/mqtt/test_listings.py",
    "listFilters": "tests/clients/mqtt/test_listings.py",
    "listRetained": "tests/clients/mqtt/test_listings.py",
    "listUsage": "tests/clients/mqtt/test_usage_live.py",
    "exportUsage": "tests/clients/mqtt/test_usage_live.py",
    "priorityStats": "tests/api/test_http_statistics.py",
    "listAllDeadLetters": "tests/api/test_letters.py",
    "listDeadLetters": "tests/api/test_letters.py",
    "listAudit": "tests/audit/test_audit_live.py",
}
NAMED = {
    "topic": "b",
    "subscription": "s2",
    "namespace": "%2F",
    "pipeline": "nightly",
    "name": "a",
}
CHANGING = ("_ms", "_per_s")


@dataclass
class Furnished:
    api: Api
    connection: str

    def pages(self, path: str, limit: int) -> list[Any]:
        for name, value in (NAMED | {"connection": self.connection}).items():
            path = path.replace(f"{{{name}}}", value)
        return [steady(items(page)) for page in self.api.pages(path, limit=limit)]


def items(page: Any) -> list[Any]:
    """Of one answer, whatever is around its list."""
    if isinstance(page, list):
        return page
    return [each for value in page.values() if isinstance(value, list) for each in value]


def steady(found: Any) -> Any:
    if isinstance(found, list):
        return [steady(each) for each in found]
    if isinstance(found, dict):
        kept = {name: each for name, each in found.items() if not name.endswith(CHANGING)}
        return {name: steady(each) for name, each in kept.items()}
    return found


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    data = tmp_path_factory.mktemp("data")
    with (
        live_node(data, mqtt_port=0, ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client,
    ):
        api = Api(node, client)
        furnish(api)
        set_aside(data)
        parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        pika.BlockingConnection(parameters).close()
        pika.BlockingConnection(parameters).close()
        connections = [pika.BlockingConnection(parameters) for _ in range(3)]
        for each in connections:
            for topic in "ba":
                each.channel().basic_consume(topic, lambda *_: None, arguments={"x-group": "s0"})
        yield Furnished(api, api.ok("GET", "/v1/connections")[0]["id"])
        for each in connections:
            each.close()


def furnish(api: Api) -> None:
    """At least three of everything."""
    for name in "bca":
        queue = {"settings": {"partitions": 1, "retention": {"until_acked": True}}}
        api.ok("PUT", f"/v1/topics/{name}", queue)
    for number, name in enumerate("bca"):
        api.ok("PUT", f"/v1/exchanges/ex-{name}", {})
        api.ok("PUT", f"/v1/templates/{name}", {"pattern": f"^{name}$", "settings": {}})
        api.ok(
            "PUT", f"/v1/policies/%2F/{name}", {"pattern": "^none$", "definition": {"expires": 9}}
        )
        api.ok("PUT", f"/v1/users/{name}", {"password": "x"})
        api.ok("PUT", f"/v1/permissions/%2F/{name}", {"configure": "", "write": "", "read": ""})
        api.ok("PUT", f"/v1/namespaces/{name}", {})
        api.ok("POST", "/v1/tokens", {})
        api.ok("POST", "/v1/transactions", {"name": name})
        api.ok("POST", f"/v1/groups/{name}/members", {"topics": ["c"]})
        position = {"topic": "b", "partition": 0, "offset": 0}
        api.ok("PUT", f"/v1/leases/{name}", {"positions": [position]})
        tick = {"value": "x", "every_ms": 3_600_000}
        for topic in "bc":
            api.ok("PUT", f"/v1/topics/{topic}/schedules/{name}", tick)
        for run in "12":
            # Two that differ in nothing but their parameters, and in nothing but their id.
            said = {"run": f"{name}{run}", "state": "running", "started_ms": 5}
            api.ok("PUT", "/v1/pipelines/nightly", said | {"parameters": {"topic": run}})
        binding = {"source": "amq.headers", "destination": "b", "routing_key": "k"}
        api.ok("POST", "/v1/bindings", binding | {"arguments": {"x": name}})
        api.ok("POST", "/v1/topics/b/messages", {"value": "later", "delay_ms": 3_600_000})
        api.ok("PUT", f"/v1/topics/b/subscriptions/s{number}", {})
    quotas = {"max_topics": 9, "max_queues": 9, "max_channels": 9}
    api.ok("PUT", "/v1/namespaces/a/limits", quotas)
    api.publish("b", *({"value": each} for each in "xyz"))
    assert len(api.receive("b", "s2", limit=3)) == 3


def set_aside(data: Path) -> None:
    for name in "12":
        path = data / "aside" / "segments" / f"0000002a-{name}.segment"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_every_list_is_tried() -> None:
    root = Path(__file__).parents[2]
    for file in ELSEWHERE.values():
        assert (root / file).exists()
    assert set(ELSEWHERE) <= set(LISTS.values())


@pytest.mark.parametrize(
    "path", [path for path, operation in LISTS.items() if operation not in ELSEWHERE]
)
def test_pages_of_one_are_the_whole_list_in_its_order(path: str, furnished: Furnished) -> None:
    (whole,) = furnished.pages(path, 1000)
    pages = furnished.pages(path, 1)
    assert len(whole) > 1
    assert [each for page in pages for each in page] == whole
    assert all(len(page) == 1 for page in pages)


@pytest.mark.parametrize("cursor", ["nonsense", "W10=", "WzFd", "eyJhIjoxfQ=="])
@pytest.mark.parametrize("path", ["/v1/users", "/v1/bindings", "/v1/subscriptions"])
def test_a_cursor_that_is_none_of_ours_is_refused(
    path: str, cursor: str, furnished: Furnished
) -> None:
    refused = furnished.api.call("GET", path, params={"cursor": cursor})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad-request")
    assert "Braid-Next" in refused.json()["remedy"]


# --- while it changes ---


def page(found: list[int], limit: int, cursor: str, hidden: int) -> tuple[list[int], str]:
    return asyncio.run(
        page_of(
            found,
            ListQuery(cursor=cursor, limit=limit),
            lambda each: (each,),
            tuple[int],
            keep=lambda each: each % hidden > 0,
        )
    )


changes = st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=60)


@given(
    st.lists(st.integers(0, 40), unique=True), changes, st.integers(1, 7), st.sampled_from([3, 99])
)
def test_what_is_there_all_the_time_is_listed_once(
    first: list[int], toggled: list[set[int]], limit: int, hidden: int
) -> None:
    there, always, ever = list(first), set(first), set(first)
    seen: list[int] = []
    cursor, turns = "", iter(toggled)
    while True:
        found, cursor = page(there, limit, cursor, hidden)
        assert len(found) <= limit
        seen += found
        if not cursor:
            break
        now = set(there) ^ next(turns, set())
        there, always, ever = sorted(now, key=hash, reverse=True), always & now, ever | now
    assert seen == sorted(set(seen))
    assert {each for each in always if each % hidden} <= set(seen) <= ever


def test_others_have_their_turn_during_a_long_list() -> None:
    async def run() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        found, cursor = await page_of(
            range(10 * ITEMS_PER_TURN, 0, -1), ListQuery(limit=3), lambda each: (each,), tuple[int]
        )
        task.cancel()
        assert (found, bool(cursor)) == ([1, 2, 3], True)
        return turns

    assert asyncio.run(run()) >= 9


def test_what_goes_while_it_is_looked_for_is_left_out() -> None:
    every = list(range(2 * ITEMS_PER_TURN))
    gone: set[int] = set()

    async def run() -> list[int]:
        asyncio.get_running_loop().call_soon(gone.add, 1)
        query = ListQuery(limit=3)
        found, _ = await page_of(
            every, query, lambda each: (each,), tuple[int], keep=lambda each: each not in gone
        )
        return found

    assert asyncio.run(run()) == [0, 2]


def test_another_lists_cursor_is_refused() -> None:
    _, cursor = page([1, 2, 3], 1, "", 99)
    query = ListQuery(cursor=cursor)
    with pytest.raises(BadRequest):
        asyncio.run(page_of(["a"], query, lambda each: (each,), tuple[str]))
