"""What a request says and nobody would look at is refused, and what browsers ask is answered."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import GUEST, Api

from braidmq.testing.live import LiveNode, live_node

PAGE = "https://app.example.com"
JSON = {"content-type": "application/json"}


DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
NUMBERS = re.compile(r"\{(partition|offset|channel)\}")
OPERATIONS = [
    pytest.param(method.upper(), path, operation, id=f"{method} {path}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["tags"] != ["health"] and path != "/metrics"
]


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    where = tmp_path_factory.mktemp("open")
    (where / "braid.toml").write_text(f'[http]\nallowed_origins = "{PAGE}"\n')
    config: Path = where / "braid.toml"
    with live_node(where / "data", config=config, mqtt_port=0, ws_port=0) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "code"),
    [
        ("GET", "/v1/log-level?x=1", {}, b"", 400, "bad-request"),
        ("GET", "/v1/log-level", {}, b'{"level": "debug"}', 400, "bad-request"),
        ("GET", "/v1/topics?x=1", {}, b"", 400, "bad-request"),
        ("DELETE", "/v1/users/nobody", {}, b'{"force": true}', 400, "bad-request"),
        ("PUT", "/v1/log-level", {"content-type": "text/xml"}, b"<a/>", 415, None),
        (
            "PUT",
            "/v1/log-level",
            {"content-type": "application/json; charset=latin-1"},
            b"",
            415,
            None,
        ),
        ("PUT", "/v1/log-level", JSON | {"content-encoding": "gzip"}, b"\x1f\x8b", 415, None),
        ("PUT", "/v1/log-level", JSON | {"if-match": '"1"'}, b'{"level":"info"}', 412, None),
        ("PUT", "/v1/log-level", JSON, b'{"level":"info","x":1}', 400, "bad-request"),
        ("PUT", "/v1/log-level", JSON, b'{"level":', 400, "bad-request"),
        ("PUT", "/v1/log-level", JSON, b"[" * 60_000, 400, "bad-request"),
        ("PUT", "/v1/log-level", JSON, b" " * 70_000, 413, "body-too-large"),
        (
            "PUT",
            "/v1/pipelines/p",
            JSON,
            b'{"run": "1", "state": "running", "started_ms": %d}' % (1 << 70),
            400,
            "bad-request",
        ),
        ("GET", f"/v1/dead-letters?since_ms={1 << 70}", {}, b"", 400, "bad-request"),
        ("PUT", "/v1/log-level", JSON | {"if-none-match": "*"}, b'{"level":"info"}', 400, None),
        ("POST", "/v1/log-level", JSON, b"{}", 405, "method-not-allowed"),
    ],
)
def test_refused_with_the_reason(
    api: Api,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    code: str | None,
) -> None:
    answer = api.client.request(method, path, headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert said["code"] == code or code is None
    assert said["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/merge-patch+json"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-encoding": "identity"},
    ],
)
def test_json_by_the_names_it_has(api: Api, headers: dict[str, str]) -> None:
    body = b'{"level": "info"}'
    assert api.client.put("/v1/log-level", headers=headers, content=body).is_success


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_what_no_operation_knows(
    api: Api, method: str, path: str, operation: dict[str, Any]
) -> None:
    """Of things that are not there: what a request says is looked at before what it names."""
    path = re.sub(r"\{\w+\}", "nothing", NUMBERS.sub("0", path))
    json_body = "application/json" in operation.get("requestBody", {}).get("content", {})
    body = b"{}" if json_body else None
    for query in ("misspelt=1", "misspelt=1&misspelt=2"):
        answer = api.client.request(method, f"{path}?{query}", content=body)
        assert answer.status_code == 400, answer.text
        assert "misspelt" in answer.json()["detail"]
    answer = api.client.request("PROPFIND", path)
    assert answer.status_code == 405
    assert method in answer.headers["allow"].split(", ")


def test_a_body_of_nothing_is_none(api: Api) -> None:
    assert api.client.request("GET", "/v1/log-level", headers=JSON, content=b"{}").is_success


def test_health_checks_may_say_what_they_like(api: Api) -> None:
    assert api.client.get("/health?now=1").is_success


def test_options_say_what_a_path_takes(api: Api) -> None:
    answer = api.client.options("/v1/log-level")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, PUT"
    assert httpx.options(api.node.http_url + "/v1/log-level").status_code == 401
    assert api.client.options("/v1/nothing").status_code == 404


def test_a_page_that_is_allowed_can_ask_and_read(open_node: LiveNode) -> None:
    with httpx.Client(base_url=open_node.http_url, headers={"origin": PAGE}) as page:
        asked = page.options(
            "/v1/topics/a",
            headers={
                "access-control-request-method": "PUT",
                "access-control-request-headers": "authorization,content-type",
            },
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert "PUT" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        for answer in (page.get("/v1/topics", auth=GUEST), page.get("/v1/topics")):
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
        assert page.get("/v1/topics", auth=GUEST).status_code == 200


def test_another_page_can_not(open_node: LiveNode) -> None:
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "PUT"}
    asked = httpx.options(open_node.http_url + "/v1/topics/a", headers=headers)
    assert asked.status_code == 403
    assert "access-control-allow-origin" not in asked.headers
    assert json.loads(asked.content)["code"] == "origin-not-allowed"
