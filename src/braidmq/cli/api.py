"""A running node as its administrator's commands see it: JSON over HTTP, errors as ours."""

import base64
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any
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
    from rich.console import Console
    from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:8080"
GUEST = "guest"

TIMEOUT_S = 30
"""A node that has not answered by then is stuck: a commit takes milliseconds."""

Url = Annotated[
    str, typer.Option("--url", envvar="BRAID_URL", help="HTTP address of a running node.")
]
User = Annotated[str, typer.Option("--user", envvar="BRAID_USER", help="User to log in as.")]
Secret = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="BRAID_PASSWORD",
        help="Its password; asked for if missing. The environment is safer: other users of this"
        " machine can see flags.",
        show_default="guest, for guest",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", envvar="BRAID_NAMESPACE", help="Namespace of the names."),
]
ROOT = "/"
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many.")]
LIMIT = 100

Query = dict[str, str | int | None]


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
        self, url: str, user: str, password: str | None, namespace: str | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise NodeUnreachable(
                f"{url} is not the URL of a node", remedy=f"Give one such as {DEFAULT_URL}"
            )
        if password is None:
            password = password_of(user)
        self._url = url.rstrip("/")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._query: Query = {} if namespace is None else {"namespace": namespace}

    def get(self, *path: str | int, **query: str | int | None) -> Any:
        return self._call("GET", path, query)

    def put(self, *path: str, body: dict[str, object], only_new: bool = False) -> Any:
        """``only_new``: fail rather than change what is there."""
        return self._call("PUT", path, {}, body, {"If-None-Match": "*"} if only_new else {})

    def patch(self, *path: str, body: dict[str, object]) -> Any:
        return self._call("PATCH", path, {}, body)

    def post(self, *path: str | int, body: dict[str, object] | None = None) -> Any:
        return self._call("POST", path, {}, body)

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
        target = "/".join([self._url, "v1", *(quote(str(part), safe="") for part in path)])
        given = {name: value for name, value in (self._query | query).items() if value is not None}
        if given:
            target += f"?{urlencode(given)}"
        data = None if body is None else json.dumps(body).encode()
        every = {**self._headers, **(headers or {}), "Content-Type": "application/json"}
        status, content = _exchange(self._url, method, target, data, every)
        if status >= 400:
            raise _refusal(status, content)
        try:
            return json.loads(content) if content else None
        except ValueError as error:
            raise NodeUnreachable(f"no node answers at {self._url}: {error}") from error

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """``/health`` or ``/ready``: its status and what it says, whatever that is."""
        status, content = _exchange(self._url, "GET", self._url + path, None, {})
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise NodeUnreachable(f"the server at {self._url} is not a BraidMQ node")
        return status, document


def _exchange(
    node: str, method: str, target: str, data: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    # Here and not above: `braid --version` should not wait for a TLS library.
    import http.client
    import urllib.error
    import urllib.request

    # No proxy: one meant for the web would be asked for a node on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(target, data, headers, method=method)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
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


def show(rows: Iterable[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    rows = list(rows)
    if as_json:
        print_json(rows)
    else:
        console().print(table_of(rows, columns))


def show_one(found: dict[str, Any], fields: Sequence[str], as_json: bool) -> None:
    """One thing: a line for each of its fields."""
    if as_json:
        print_json(found)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for field in fields:
        table.add_row(field.replace("_", " "), Text(cell(found.get(field))))
    console().print(table)


def print_json(found: object) -> None:
    print(json.dumps(found, indent=2))


def console() -> "Console":
    from rich.console import Console

    # A pipe has no width: names in it must not be folded.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    return Console(width=width)


def table_of(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> "Table":
    """Numbers to the right, everything else to the left."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        number = bool(rows) and all(type(row[column]) in (int, float) for row in rows)
        table.add_column(
            column.replace("_", " "), overflow="fold", justify="right" if number else "left"
        )
    for row in rows:
        # Text and not markup: a pattern such as [a-z] would be taken for a style.
        table.add_row(*(Text(cell(row[column])) for column in columns))
    return table


def cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else printable(str(value))


def printable(text: str) -> str:
    """What others wrote must not steer this terminal: control characters are shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\t\n" else repr(each)[1:-1] for each in text
    )
