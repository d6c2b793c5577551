"""The administrator's HTTP interface, in process; a live node is in tests/test_cli_users.py."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from braidmq.api.access import Access
from braidmq.api.app import App
from braidmq.api.context import ApiContext
from braidmq.api.endpoints import BODY_BYTES_MAX
from braidmq.api.guard import Guard
from braidmq.api.resources.admin import Admin
from braidmq.engine.quotas import Quotas
from braidmq.metrics.settings import MetricsSettings
from braidmq.model.errors import StorageFailed
from braidmq.model.ids import Lsn
from braidmq.net.web_origins import WebCallers
from braidmq.security.accounts import LIMITS, Accounts
from braidmq.security.logins import Logins
from braidmq.security.passwords import PasswordHash
from braidmq.security.token_logins import TokenLogins
from braidmq.security.tokens import Tokens
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.clock import FakeClock

GUEST = ("guest", "guest")


class Commits:
    """Stands in for the node's committer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lsns: list[Lsn] = []
        self.failure: StorageFailed | None = None

    async def __call__(self, lsn: Lsn) -> None:
        if self.failure is not None:
            raise self.failure
        self.store.commit()
        assert self.store.journal.durable_lsn >= lsn
        self.lsns.append(lsn)


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.open(MemoryDisk(), StorageSettings(journal_file_bytes=1 << 20))
    yield opened
    opened.close()


@pytest.fixture
def accounts(store: Store) -> Accounts:
    return Accounts(store)


@pytest.fixture
def commits(store: Store) -> Commits:
    return Commits(store)


@pytest.fixture
def logins(store: Store, accounts: Accounts) -> Iterator[Logins]:
    made = Logins(accounts, TokenLogins(accounts, Tokens(store, accounts), FakeClock()))
    yield made
    made.close()


@pytest.fixture
def app(store: Store, accounts: Accounts, logins: Logins, commits: Commits) -> Any:
    tokens, clock = Tokens(store, accounts), FakeClock()
    admin = Admin(accounts, logins, tokens, commits, clock, Quotas())
    # Nothing of an administrator's concerns the engine.
    access = Access(accounts, logins, TokenLogins(accounts, tokens, clock), clock)
    context = cast(ApiContext, SimpleNamespace(access=access))
    guard = Guard(context, tokens, MetricsSettings())
    return App(guard, [admin], web=WebCallers(["node"]))


def client_of(app: Any, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(peer, 5555))
    return httpx.AsyncClient(transport=transport, base_url="http://node", auth=GUEST)


@pytest.fixture
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as made:
        yield made


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert document["code"] == code
    assert document["title"]
    assert document["detail"]
    return document


async def test_users_from_first_to_last(
    client: httpx.AsyncClient, accounts: Accounts, commits: Commits
) -> None:
    made = await client.put("/v1/users/ann", json={"password": "one", "tags": ["monitoring"]})
    assert (made.status_code, made.content) == (201, b"")
    got = await client.get("/v1/users/ann")
    assert got.json() == {"name": "ann", "tags": ["monitoring"]}
    assert got.headers["cache-control"] == "no-store"
    listed = (await client.get("/v1/users")).json()
    assert [user["name"] for user in listed] == ["ann", "guest"]
    assert "argon2" not in str(listed)

    assert (await client.put("/v1/users/ann", json={"password": "two"})).status_code == 200
    assert accounts.user("ann").tags == {"monitoring"}
    assert accounts.begin("ann", "two", 0, False).verify()
    await client.put("/v1/users/ann/password", json={"password": "three"})
    assert accounts.begin("ann", "three", 0, False).verify()
    await client.put("/v1/users/ann/tags", json={"tags": []})
    assert accounts.user("ann").tags == frozenset()
    assert (await client.delete("/v1/users/ann")).status_code == 204
    assert_problem(await client.get("/v1/users/ann"), 404, "not-found")
    assert len(commits.lsns) == 5


async def test_a_namespace_in_memory_is_so_for_good(
    client: httpx.AsyncClient, store: Store
) -> None:
    made = await client.put("/v1/namespaces/m", json={"storage": "memory", "max_queues": 5})
    assert made.status_code == 201
    assert (await client.get("/v1/namespaces/m")).json()["storage"] == "memory"
    assert (await client.put("/v1/namespaces/d")).status_code == 201
    assert (await client.get("/v1/namespaces/d")).json()["storage"] == "disk"
    assert Accounts(store).namespace("m").storage == "memory"
    changed = await client.put("/v1/namespaces/m", json={"storage": "memory", "max_queues": 6})
    assert changed.status_code == 200
    for name, storage in (("m", "disk"), ("d", "memory")):
        refused = await client.put(f"/v1/namespaces/{name}", json={"storage": storage})
        assert_problem(refused, 409, "storage-is-fixed")
    assert_problem(
        await client.put("/v1/namespaces/x", json={"storage": "ssd"}), 400, "bad-request"
    )
    assert (await client.delete("/v1/namespaces/m")).status_code == 204
    assert (await client.put("/v1/namespaces/m")).status_code == 201
    assert (await client.get("/v1/namespaces/m")).json()["storage"] == "disk"


async def test_namespaces_and_permissions_with_names_that_need_encoding(
    client: httpx.AsyncClient, accounts: Accounts
) -> None:
    accounts.add_user("a/b é", PasswordHash("x"))
    limits = {"max_connections": 5, "max_queues": None}
    assert (await client.put("/v1/namespaces/sh%2Fop", json=limits)).status_code == 201
    got = await client.get("/v1/namespaces/sh%2Fop")
    none = dict.fromkeys(LIMITS)
    assert got.json() == {"name": "sh/op", **none, **limits, "storage": "disk"}
    await client.put("/v1/namespaces/sh%2Fop/limits", json={"max_queues": 3})
    assert accounts.namespace("sh/op").max_connections == 5
    assert accounts.namespace("sh/op").max_queues == 3
    assert (await client.put("/v1/namespaces/plain")).status_code == 201

    path = "/v1/permissions/sh%2Fop/a%2Fb%20%C3%A9"
    patterns = {"configure": "", "write": "^w[a-z]$", "read": ".*"}
    assert (await client.put(path, json=patterns)).status_code == 201
    assert (await client.put(path, json=patterns)).status_code == 200
    assert (await client.get(path)).json() == {
        "namespace": "sh/op",
        "user": "a/b é",
        **patterns,
    }
    assert len((await client.get("/v1/permissions")).json()) == 2
    assert len((await client.get("/v1/permissions/%2F")).json()) == 1
    assert (await client.delete(path)).status_code == 204
    assert_problem(await client.get(path), 404, "not-found")
    assert (await client.delete("/v1/namespaces/sh%2Fop")).status_code == 204
    assert [n["name"] for n in (await client.get("/v1/namespaces")).json()] == ["/", "plain"]
    assert_problem(await client.delete("/v1/namespaces/%2F"), 409, "conflict")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer x",
        "Basic",
        "Basic ???",
        "Basic Z3Vlc3Q=",
        "Basic /////w==",
        "Basic Z3Vlc3Q6eA==",
    ],
)
async def test_without_the_right_credentials_there_is_a_challenge(
    app: Any, header: str | None
) -> None:
    async with client_of(app) as client:
        client.auth = None  # type: ignore[assignment]
        headers = {} if header is None else {"authorization": header}
        for path in ("/v1/users", "/v1/nothing-here", "/v1/users/guest/what"):
            response = await client.get(path, headers=headers)
            assert_problem(response, 401, "not-authenticated")
            assert response.headers["www-authenticate"].startswith("Basic ")


async def test_only_administrators(client: httpx.AsyncClient, accounts: Accounts) -> None:
    accounts.add_user("ann", "secret", ["monitoring"])
    response = await client.get("/v1/users", auth=("ann", "secret"))
    assert_problem(response, 403, "access-refused")
    accounts.set_tags("ann", ["administrator"])
    assert (await client.get("/v1/users", auth=("ann", "secret"))).status_code == 200


async def test_guest_from_elsewhere_is_refused(app: Any, accounts: Accounts) -> None:
    accounts.add_user("ann", "secret", ["administrator"])
    async with client_of(app, "10.0.0.7") as client:
        document = assert_problem(await client.get("/v1/users"), 403, "access-refused")
        assert "braid users add" in document["remedy"]
        assert (await client.get("/v1/users", auth=("ann", "secret"))).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "/v1/users/ann", b"{", 400, "bad-request"),
        ("PUT", "/v1/users/ann", b"[]", 400, "bad-request"),
        ("PUT", "/v1/users/ann", b"\xff", 400, "bad-request"),
        ("PUT", "/v1/users/ann", b'{"tags": []}', 400, "bad-request"),
        ("PUT", "/v1/users/ann", b'{"password": ""}', 400, "bad-request"),
        ("PUT", "/v1/users/ann", b'{"passwort": "x"}', 400, "bad-request"),
        ("PUT", "/v1/users/a%3Ab", b'{"password": "x"}', 400, "bad-request"),
        ("PUT", "/v1/users/%FF", b'{"password": "x"}', 400, "bad-request"),
        ("PUT", "/v1/users/", b'{"password": "x"}', 400, "bad-request"),
        ("PUT", "/v1/users/ann/tags", b'{"tags": []}', 404, "not-found"),
        ("PUT", "/v1/users/ann/password", b'{"password": "x"}', 404, "not-found"),
        ("PUT", "/v1/users/guest/tags", b'{"tags": ["a b"]}', 400, "bad-request"),
        ("PUT", "/v1/permissions/%2F/guest", b'{"configure": "("}', 400, "bad-request"),
        (
            "PUT",
            "/v1/permissions/%2F/guest",
            b'{"configure": "(", "write": "", "read": ""}',
            400,
            "bad-request",
        ),
        ("PUT", "/v1/namespaces/shop", b'{"max_queues": -2}', 400, "bad-request"),
        ("PUT", "/v1/namespaces/shop", b'{"max_queues": "3"}', 400, "bad-request"),
        ("PUT", "/v1/namespaces/shop/limits", b"{}", 404, "not-found"),
        ("POST", "/v1/users", b"{}", 405, "method-not-allowed"),
        ("DELETE", "/v1/users", b"", 405, "method-not-allowed"),
        ("GET", "/v1/users/guest/tags", b"", 405, "method-not-allowed"),
        ("GET", "/v1/users/a/b/c", b"", 404, "not-found"),
        ("PUT", "/v1/users/ann", b"x" * (BODY_BYTES_MAX + 1), 413, "body-too-large"),
    ],
)
async def test_mistakes_are_problem_documents_and_change_nothing(
    client: httpx.AsyncClient,
    accounts: Accounts,
    method: str,
    path: str,
    body: bytes,
    status: int,
    code: str,
) -> None:
    response = await client.request(method, path, content=body)
    assert_problem(response, status, code)
    assert accounts.generation == 0
    if status == 405:
        assert response.headers["allow"]


async def test_a_put_that_must_create(client: httpx.AsyncClient, accounts: Accounts) -> None:
    new = {"if-none-match": "*"}
    for path in ("/v1/users/guest", "/v1/namespaces/%2F"):
        body = {"password": "x"} if "users" in path else {}
        response = await client.put(path, json=body, headers=new)
        assert_problem(response, 412, "precondition-failed")
    assert accounts.generation == 0
    response = await client.put("/v1/users/ann", json={"password": "x"}, headers=new)
    assert response.status_code == 201


async def test_a_change_the_disk_refused_is_not_confirmed(
    client: httpx.AsyncClient, commits: Commits
) -> None:
    commits.failure = StorageFailed("journal/1: No space left on device")
    response = await client.put("/v1/users/ann", json={"password": "x"})
    document = assert_problem(response, 503, "storage-failed")
    assert "restart the node" in document["remedy"]
