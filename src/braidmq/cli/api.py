"""A running node as its administrator's commands see it: JSON over HTTP, errors as ours."""

import base64
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import typer

from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    NotAuthenticated,
    NotFound,
    SetupError,
    StorageError,
)

if TYPE_CHECKING:
    from braidmq.client.tls import TlsOptions

DEFAULT_URL = "http://127.0.0.1:8080"
GUEST = "guest"

TIMEOUT_S = 30
"""A node that has not answered by then is stuck: a commit takes milliseconds."""

ROOT = "/"
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]
LIMIT = 100
PAGE = 1000
"""What one request asks for at most."""

Query = dict[str, str | int | None]


CA, CERT, KEY = "BRAID_CA", "BRAID_CERT", "BRAID_KEY"
"""Variables that say whom an https:// URL is trusted by, and what is shown to it."""


def tls_options() -> "TlsOptions":
    from braidmq.client.tls import TlsOptions

    return TlsOptions(*(os.environ.get(name) or None for name in (CA, CERT, KEY)))


class NodeUnreachable(SetupError):
    code = "node-unreachable"
    remedy = "Start it with `braid serve`, or give another --url"


ERRORS: dict[int, type[BraidError]] = {
    401: NotAuthenticated,
    403: AccessRefused,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    503: StorageError,
}


class Api:
    """``namespace``: what names in paths are looked for in, where that matters."""

    def __init__(
        self,
        url: str,
        user: str,
        password: str | None,
        namespace: str | None = None,
        *,
        token: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise NodeUnreachable(
                f"{url} is not the URL of a node", remedy=f"Give one such as {DEFAULT_URL}"
            )
        self._url = url.rstrip("/")
        self._headers = {"Authorization": _authorization(user, password, token)}
        self._timeout_s: float = TIMEOUT_S
        self._query: Query = {} if namespace is None else {"namespace": namespace}

    def within(self, timeout_s: float) -> "Api":
        """For who can't wait for an answer."""
        self._timeout_s = timeout_s
        return self

    def get(self, *path: str | int, **query: str | int | None) -> Any:
        return self._call("GET", path, query)

    def pages(self, *path: str | int, **query: str | int | None) -> Iterator[Any]:
        """Of a list that may be long."""
        cursor: str | None = None
        while True:
            found, cursor = self._page(path, {**query, "cursor": cursor})
            yield found
            if cursor is None:
                return

    def every(self, *path: str | int, **query: str | int | None) -> list[Any]:
        """All of a list, in as many requests as it takes."""
        return [each for page in self.pages(*path, **query) for each in page]

    def first(
        self, *path: str | int, limit: int, key: str = "", **query: str | int | None
    ) -> list[Any]:
        """At most so many of a list, in as many requests as it takes; ``key`` has it in a page."""
        found: list[Any] = []
        for page in self.pages(*path, limit=min(limit, PAGE), **query):
            found += page[key] if key else page
            if len(found) >= limit:
                break
        return found[:limit]

    def put(self, *path: str, body: dict[str, object], only_new: bool = False) -> Any:
        """``only_new``: fail rather than change what is there."""
        return self._call("PUT", path, {}, body, {"If-None-Match": "*"} if only_new else {})

    def patch(self, *path: str, body: dict[str, object]) -> Any:
        return self._call("PATCH", path, {}, body)

    def post(
        self,
        *path: str | int,
        body: dict[str, object] | None = None,
        **query: str | int | None,
    ) -> Any:
        return self._call("POST", path, query, body)

    def delete(self, *path: str | int, **query: str | int | None) -> Any:
        return self._call("DELETE", path, query)

    def _call(
        self,
        method: str,
        path: Sequence[str | int],
        query: Query,
        body: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        return self._decoded(self._ask(method, path, query, body, headers))

    def _page(self, path: Sequence[str | int], query: Query) -> tuple[Any, str | None]:
        reply = self._ask("GET", path, query)
        return self._decoded(reply), reply.next

    def _decoded(self, reply: "Reply") -> Any:
        try:
            return json.loads(reply.body) if reply.body else None
        except ValueError as error:
            raise NodeUnreachable(f"no node answers at {self._url}: {error}") from error

    def _ask(
        self,
        method: str,
        path: Sequence[str | int],
        query: Query,
        body: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> "Reply":
        target = "/".join([self._url, "v1", *(quote(str(part), safe="") for part in path)])
        given = {name: value for name, value in (self._query | query).items() if value is not None}
        if given:
            target += f"?{urlencode(given)}"
        data = None if body is None else json.dumps(body).encode()
        every = {**self._headers, **(headers or {}), "Content-Type": "application/json"}
        reply = _exchange(self._url, method, target, data, every, self._timeout_s)
        if reply.status >= 400:
            raise _refusal(reply.status, reply.body)
        return reply

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """``/health`` or ``/ready``: its status and what it says, whatever that is."""
        reply = _exchange(self._url, "GET", self._url + path, None, {}, self._timeout_s)
        try:
            document = json.loads(reply.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise NodeUnreachable(f"the server at {self._url} is not a BraidMQ node")
        return reply.status, document


class Reply(NamedTuple):
    status: int
    body: bytes
    next: str | None = None
    """The cursor of the next page, where there is one."""


def _authorization(user: str, password: str | None, token: str | None) -> str:
    if token is not None:
        if not token.isprintable() or not token.isascii():
            raise BadRequest("the token has characters that no token has")
        return f"Bearer {token}"
    secret = password_of(user) if password is None else password
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


def _exchange(
    node: str,
    method: str,
    target: str,
    data: bytes | None,
    headers: dict[str, str],
    timeout_s: float,
) -> Reply:
    # Here and not above: `braid --version` should not wait for a TLS library.
    import http.client
    import urllib.error
    import urllib.request

    # No proxy: one meant for the web would be asked for a node on this machine.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if node.startswith("https://"):
        handlers.append(urllib.request.HTTPSHandler(context=tls_options().context()))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(target, data, headers, method=method)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return Reply(answer.status, answer.read(), answer.headers.get("braid-next"))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise NodeUnreachable(f"no node answers at {node}: {reason}") from error


def _refusal(status: int, content: bytes) -> BraidError:
    kind = ERRORS.get(status, BadRequest)
    try:
        document = json.loads(content)
        return kind(str(document["detail"]), remedy=str(document.get("remedy", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return kind(f"the node answered {status}", remedy="Is this the HTTP port of a node?")


def password_of(user: str) -> str:
    return GUEST if user == GUEST else ask_password(f"Password of {user}")


def ask_password(prompt: str, *, confirm: bool = False) -> str:
    """From the keyboard unseen, or a line of what is piped in."""
    if sys.stdin.isatty():
        return str(typer.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise SetupError(f"{prompt}: missing", remedy="Give it as a flag, or pipe it in")
    return line
