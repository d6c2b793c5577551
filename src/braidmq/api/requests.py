"""A request as the log knows it: its id, who sent it, and what it changed."""

import itertools
import secrets
from typing import Any

from starlette.requests import Request

from braidmq.api.endpoints import Operation
from braidmq.logs import about, log_change
from braidmq.security.rights import Who

REQUEST_ID_HEADER = "X-Request-Id"
REQUEST_ID_CHARS_MAX = 128


class RequestIds:
    """The caller's own where it sent one, so that its log and ours tell of the same; otherwise
    one that no other request has."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def of(self, request: Request) -> str:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        if 0 < len(given) <= REQUEST_ID_CHARS_MAX and given.isascii() and given.isprintable():
            return given
        return f"{self._run}-{next(self._numbers)}"


class RequestInfo:
    """Whose doing a line of the log is."""

    __slots__ = ("facts", "request_id", "user")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.user = ""
        self.facts: dict[str, object] = {}
        """What an operation says of the change it made."""

    def log_fields(self) -> dict[str, Any]:
        known = {"user": self.user} if self.user else {}
        return {"request_id": self.request_id, **known}


def note(**facts: object) -> None:
    """What is to be known of a change beside its path; never a secret."""
    subject = about.get()
    if isinstance(subject, RequestInfo):
        subject.facts |= facts


def log_request(operation: Operation, request: Request, info: RequestInfo, status: int) -> None:
    """Who changed what, once it is done."""
    query = request.url.query
    is_administration = operation.right.who is Who.ADMINISTRATOR or operation.tag == "users"
    log_change(
        "http",
        operation.summary[:1].lower() + operation.summary[1:],
        request.url.path,
        kind="administration" if is_administration else "object",
        request=f"{request.method} {request.url.path}" + (f"?{query}" if query else ""),
        status=status,
        peer="?" if request.client is None else request.client.host,
        **info.facts,
    )
