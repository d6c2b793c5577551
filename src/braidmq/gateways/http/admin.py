"""Users, permissions and namespaces over HTTP, for administrators.

    GET              /v1/users                              PUT /v1/users/{name}/tags
    GET PUT DELETE   /v1/users/{name}                       PUT /v1/users/{name}/password
    GET              /v1/permissions[/{namespace}]
    GET PUT DELETE   /v1/permissions/{namespace}/{user}
    GET              /v1/namespaces
    GET PUT DELETE   /v1/namespaces/{name}                  PUT /v1/namespaces/{name}/limits

Names are percent-encoded: the namespace ``/`` is ``%2F``. ``If-None-Match: *`` makes a PUT create
or fail. A change is answered once it is durable; an error is a problem document (RFC 9457).
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from braidmq.model.clock import Clock
from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    Kind,
    NotAuthenticated,
    NotFound,
)
from braidmq.model.ids import Lsn
from braidmq.model.limits import KIB
from braidmq.security.accounts import Accounts, is_loopback
from braidmq.security.logins import Logins

BODY_BYTES_MAX = 64 * KIB
"""Ten times three patterns of full length; read before anything is known of its sender's intent."""

STATUSES = {
    Kind.BAD_REQUEST: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.TOO_LARGE: 413,
    Kind.REFUSED: 503,
    Kind.STORAGE: 503,
    Kind.SETUP: 500,
}

NO_STORE = {"cache-control": "no-store"}
CHALLENGE = {"www-authenticate": 'Basic realm="BraidMQ", charset="UTF-8"'}

Commit = Callable[[Lsn], Awaitable[None]]
"""Returns once an entry of the journal is durable, or raises StorageFailed."""


class BodyTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "body-too-large"


class PreconditionFailed(Conflict):
    """RFC 9110, 13.1.2: ``If-None-Match: *``, and there is one."""

    code = "precondition-failed"


class MethodNotAllowed(BadRequest):
    code = "method-not-allowed"

    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not possible here", remedy=f"Use {' or '.join(allowed)}")
        self.allowed = allowed


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key nobody knows is refused: a misspelt limit must not be taken for none."""


class UserBody(Body, frozen=True):
    password: str | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class PasswordBody(Body, frozen=True):
    password: str


class TagsBody(Body, frozen=True):
    tags: list[str]


class PermissionBody(Body, frozen=True):
    configure: str
    write: str
    read: str


class LimitsBody(Body, frozen=True):
    max_connections: int | UnsetType | None = UNSET
    max_queues: int | UnsetType | None = UNSET

    def given(self) -> dict[str, int | None]:
        limits = {"max_connections": self.max_connections, "max_queues": self.max_queues}
        return {name: value for name, value in limits.items() if not isinstance(value, UnsetType)}


AnyBody = TypeVar("AnyBody", bound=Body)
Handler = Callable[..., Awaitable[Response]]
Methods = Mapping[str, Handler]
Table = Mapping[tuple[str, ...], Methods]
"""By path; ``*`` stands for any one segment, and the handlers get those in order."""


def admin_routes(
    accounts: Accounts, logins: Logins, commit: Commit, clock: Clock, *others: Table
) -> list[BaseRoute]:
    """``commit`` is awaited before a change is answered; ``others`` are for administrators too."""
    return Admin(accounts, logins, commit, clock, *others).routes()


class Admin:
    def __init__(
        self, accounts: Accounts, logins: Logins, commit: Commit, clock: Clock, *others: Table
    ) -> None:
        self._accounts = accounts
        self._logins = logins
        self._commit = commit
        self._clock = clock
        self._table: dict[tuple[str, ...], Methods] = {
            ("users",): {"GET": self.list_users},
            ("users", "*"): {
                "GET": self.get_user,
                "PUT": self.put_user,
                "DELETE": self.delete_user,
            },
            ("users", "*", "tags"): {"PUT": self.put_tags},
            ("users", "*", "password"): {"PUT": self.put_password},
            ("permissions",): {"GET": self.list_permissions},
            ("permissions", "*"): {"GET": self.list_permissions},
            ("permissions", "*", "*"): {
                "GET": self.get_permission,
                "PUT": self.put_permission,
                "DELETE": self.delete_permission,
            },
            ("namespaces",): {"GET": self.list_namespaces},
            ("namespaces", "*"): {
                "GET": self.get_namespace,
                "PUT": self.put_namespace,
                "DELETE": self.delete_namespace,
            },
            ("namespaces", "*", "limits"): {"PUT": self.put_limits},
        }
        for other in others:
            self._table.update(other)

    def routes(self) -> list[BaseRoute]:
        # Starlette matches decoded paths, in which %2F has become one more separator: it only
        # brings requests here, and the table above is matched with the path as it was sent.
        methods = ["GET", "PUT", "DELETE", "POST", "PATCH"]
        return [
            Route(path, self.answer, methods=methods)
            for top in sorted({pattern[0] for pattern in self._table})
            for path in (f"/v1/{top}", f"/v1/{top}/{{rest:path}}")
        ]

    async def answer(self, request: Request) -> Response:
        try:
            await self._admit(request)
            handler, names = self._find(request)
            return await handler(request, *names)
        except BraidError as error:
            return problem(error)

    async def _admit(self, request: Request) -> None:
        name, password = credentials(request.headers.get("authorization"))
        loopback = request.client is not None and is_loopback(request.client.host)
        now_ms = self._clock.now_ms()
        user = await self._logins.authenticate(name, password, now_ms, loopback)
        if not user.is_administrator:
            raise AccessRefused(f"user {user.name!r} is not an administrator")

    def _find(self, request: Request) -> tuple[Handler, list[str]]:
        segments = path_segments(request)[1:]
        for pattern, methods in self._table.items():
            if len(pattern) == len(segments) and all(
                part in ("*", segment) for part, segment in zip(pattern, segments, strict=True)
            ):
                method = "GET" if request.method == "HEAD" else request.method
                if method not in methods:
                    raise MethodNotAllowed(request.method, sorted(methods))
                names = [s for part, s in zip(pattern, segments, strict=True) if part == "*"]
                return methods[method], names
        raise NotFound(f"there is nothing at {request.url.path}")

    # --- users ---

    async def list_users(self, _: Request) -> Response:
        return as_json(self._accounts.users())

    async def get_user(self, _: Request, name: str) -> Response:
        return as_json(self._accounts.user(name))

    async def put_user(self, request: Request, name: str) -> Response:
        body = await read_body(request, UserBody)
        given = body.password
        password = None if isinstance(given, UnsetType) else await self._logins.hash(given)
        tags = None if isinstance(body.tags, UnsetType) else body.tags
        # Nothing is awaited between the question and the change: the answer still holds.
        if self._accounts.has_user(name):
            refuse_if_only_new(request, f"user {name!r}")
            return await self._kept(self._accounts.update_user(name, password, tags), 200)
        if password is None:
            raise BadRequest(f"there is no user {name!r}, and a new one needs a password")
        return await self._kept(self._accounts.add_user(name, password, tags or ()), 201)

    async def put_tags(self, request: Request, name: str) -> Response:
        body = await read_body(request, TagsBody)
        return await self._kept(self._accounts.set_tags(name, body.tags), 200)

    async def put_password(self, request: Request, name: str) -> Response:
        body = await read_body(request, PasswordBody)
        password = await self._logins.hash(body.password)
        return await self._kept(self._accounts.change_password(name, password), 200)

    async def delete_user(self, _: Request, name: str) -> Response:
        return await self._kept(self._accounts.delete_user(name), 204)

    # --- permissions ---

    async def list_permissions(self, _: Request, namespace: str | None = None) -> Response:
        return as_json(self._accounts.permissions(namespace))

    async def get_permission(self, _: Request, namespace: str, user: str) -> Response:
        return as_json(self._accounts.permission(user, namespace))

    async def put_permission(self, request: Request, namespace: str, user: str) -> Response:
        body = await read_body(request, PermissionBody)
        status = 200 if self._accounts.has_permission(user, namespace) else 201
        lsn = self._accounts.set_permission(user, namespace, body.configure, body.write, body.read)
        return await self._kept(lsn, status)

    async def delete_permission(self, _: Request, namespace: str, user: str) -> Response:
        return await self._kept(self._accounts.clear_permission(user, namespace), 204)

    # --- namespaces ---

    async def list_namespaces(self, _: Request) -> Response:
        return as_json(self._accounts.namespaces())

    async def get_namespace(self, _: Request, name: str) -> Response:
        return as_json(self._accounts.namespace(name))

    async def put_namespace(self, request: Request, name: str) -> Response:
        limits = (await read_body(request, LimitsBody)).given()
        if self._accounts.has_namespace(name):
            refuse_if_only_new(request, f"namespace {name!r}")
            return await self._kept(self._accounts.set_limits(name, limits), 200)
        return await self._kept(self._accounts.add_namespace(name, **limits), 201)

    async def put_limits(self, request: Request, name: str) -> Response:
        limits = (await read_body(request, LimitsBody)).given()
        return await self._kept(self._accounts.set_limits(name, limits), 200)

    async def delete_namespace(self, _: Request, name: str) -> Response:
        return await self._kept(self._accounts.delete_namespace(name), 204)

    async def _kept(self, lsn: Lsn, status: int) -> Response:
        """No body: what was made is what was asked for, and a password is not given back."""
        await self._commit(lsn)
        return Response(status_code=status, headers=NO_STORE)


def credentials(header: str | None) -> tuple[str, bytes]:
    """User name and password out of an Authorization header. RFC 7617, 2."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "basic":
        raise NotAuthenticated("HTTP Basic credentials are needed here")
    try:
        name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        if colon:
            return name.decode(), password
    except (binascii.Error, ValueError):
        pass
    raise NotAuthenticated("the Authorization header can't be read")


def path_segments(request: Request) -> list[str]:
    raw: bytes = request.scope["raw_path"]
    try:
        return [unquote_to_bytes(part).decode() for part in raw.lstrip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None


async def read_body(request: Request, wanted: type[AnyBody]) -> AnyBody:
    """An empty body is an object with nothing in it."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES_MAX:
            raise BodyTooLarge(f"a body can't have more than {BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not as expected: {error}") from error


def refuse_if_only_new(request: Request, what: str) -> None:
    if request.headers.get("if-none-match") == "*":
        raise PreconditionFailed(f"there is a {what} already")


def as_json(body: object) -> Response:
    data = msgspec.json.encode(body, order="deterministic")
    return Response(data, media_type="application/json", headers=NO_STORE)


def problem(error: BraidError) -> Response:
    """An error as RFC 9457 wants it; ``code`` is its stable name, ``remedy`` what to do."""
    status, headers = STATUSES[error.kind], dict(NO_STORE)
    if isinstance(error, PreconditionFailed):
        status = 412
    elif isinstance(error, MethodNotAllowed):
        status = 405
        headers["allow"] = ", ".join(error.allowed)
    elif status == 401:
        headers |= CHALLENGE
    document = {
        "type": "about:blank",  # 4.2.1: the title is then that of the status
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error.args[0]),
        "code": error.code,
    }
    if error.remedy:
        document["remedy"] = error.remedy
    return Response(
        msgspec.json.encode(document),
        status,
        headers=headers,
        media_type="application/problem+json",
    )
