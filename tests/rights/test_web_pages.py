"""What a web page can make its visitor's browser send is not done."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rights_users import Rights
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from braidmq.api.assembly import make_api
from braidmq.api.resources.health import Health
from braidmq.engine.engine import Engine
from braidmq.metrics.collector import Metrics
from braidmq.metrics.settings import MetricsSettings
from braidmq.model.clock import SystemClock
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
from braidmq.security.token_logins import TokenLogins
from braidmq.security.tokens import Tokens
from braidmq.storage.disk import MemoryDisk
from braidmq.testing.live import live_node

EVIL = {"Host": "evil.example", "Origin": "http://evil.example"}
ADMINISTRATOR = {"password": "x", "tags": ["administrator"]}


def users(rights: Rights) -> set[str]:
    return {each["name"] for each in rights.ok("GET", "/v1/users")}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (EVIL, "host-not-allowed"),  # DNS rebinding: to the browser we are evil.example
        ({"Host": "evil.example"}, "host-not-allowed"),
        ({"Origin": "http://evil.example"}, "origin-not-allowed"),  # another site's page
        ({"Origin": "null"}, "origin-not-allowed"),  # a sandboxed frame, or a file
        ({"Origin": "http://10.1.1.1"}, "origin-not-allowed"),
        (
            {"Origin": "http://evil.example", "Content-Type": "text/plain"},
            "origin-not-allowed",
        ),  # what a form sends without asking first
    ],
)
def test_a_page_makes_no_administrator(rights: Rights, headers: Any, code: str) -> None:
    before = users(rights)
    answer = rights.http.put("/v1/users/mallory", json=ADMINISTRATOR, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, code)
    assert "allowed_" in answer.json()["remedy"]
    for path in ("/v1/topics", "/health", "/metrics", "/openapi.json"):
        assert rights.http.get(path, headers=headers).status_code == 403
    assert users(rights) == before


def test_two_hosts_are_none(rights: Rights) -> None:
    with socket.create_connection(("127.0.0.1", rights.node.ports["http_port"]), 20) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert sock.recv(100).split()[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Origin": "http://localhost:3000"},
        {"Host": "localhost:8080", "Origin": "http://localhost:8080"},
    ],
)
def test_the_machines_own_pages_and_clients_are_served(rights: Rights, headers: Any) -> None:
    assert rights.http.get("/v1/topics", headers=headers).is_success


@pytest.mark.parametrize("origin", ["http://evil.example", None])
def test_nor_are_figures_streamed_to_a_page(rights: Rights, origin: Any) -> None:
    url = rights.node.http_url.replace("http", "ws") + "/v1/stream/metrics"
    headers = {"Authorization": httpx.BasicAuth("guest", "guest")._auth_header}
    if origin is None:
        with connect(url, additional_headers=headers) as stream:
            stream.recv(20)
        return
    with (
        pytest.raises(InvalidStatus) as raised,
        connect(url, additional_headers=headers, origin=origin),
    ):
        pass
    assert raised.value.response.status_code == 403


def test_names_and_pages_can_be_allowed(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(
        '[http]\nallowed_hosts = "broker.example.com"\nallowed_origins = "https://app.example.com"\n'
    )
    with live_node(tmp_path / "data", config=config) as node, Rights(node) as rights:
        for headers, status in (
            ({"Host": "broker.example.com"}, 200),
            ({"Host": "broker.example.com", "Origin": "https://broker.example.com"}, 200),
            ({"Host": "broker.example.com", "Origin": "https://app.example.com"}, 200),
            ({"Host": "broker.example.com", "Origin": "https://evil.example"}, 403),
            ({"Host": "other.example.com"}, 403),
        ):
            assert rights.http.get("/v1/topics", headers=headers).status_code == status, headers


# --- from another machine ---

Inside = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def from_afar(settings: MetricsSettings) -> AsyncIterator[tuple[httpx.AsyncClient, Accounts]]:
    engine = Engine.open(MemoryDisk(), SystemClock().now_ms())
    broker = NodeLoop(engine, SystemClock(), asyncio.get_running_loop())
    accounts = Accounts(engine.store)
    tokens = Tokens(engine.store, accounts)
    logins = Logins(accounts, TokenLogins(accounts, tokens, SystemClock()))
    health = Health(lambda: None, lambda: None)
    app = make_api(
        broker, accounts, logins, tokens, health, Metrics(engine, {}, lambda: 0, settings)
    )
    transport = httpx.ASGITransport(app, client=("10.0.0.9", 5555))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, accounts
    broker.stop()
    logins.close()
    engine.close()


async def test_metrics_from_another_machine_take_a_login() -> None:
    async with from_afar(MetricsSettings()) as (client, accounts):
        accounts.add_user("eye", "secret", ["monitoring"])
        accounts.add_user("nobody", "secret")
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", auth=("nobody", "secret"))).status_code == 403
        assert (await client.get("/metrics", auth=("eye", "secret"))).status_code == 200
        issued = await client.post("/v1/tokens", json={}, auth=("eye", "secret"))
        headers = {"Authorization": f"Bearer {issued.json()['token']}"}
        assert (await client.get("/metrics", headers=headers)).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_unless_they_are_public() -> None:
    async with from_afar(MetricsSettings(public=True)) as (client, _):
        assert (await client.get("/metrics")).status_code == 200


def test_who_comes_through_a_proxy_on_this_machine_is_not_of_it(rights: Rights) -> None:
    behind = {"X-Forwarded-For": "10.0.0.9"}
    url = rights.node.http_url
    assert httpx.get(f"{url}/metrics").status_code == 200
    assert httpx.get(f"{url}/metrics", headers=behind).status_code == 401
    assert rights.http.get("/v1/topics", headers=behind).status_code == 403  # guest
