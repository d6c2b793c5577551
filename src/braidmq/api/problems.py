"""Errors as HTTP answers them: problem documents (RFC 9457), and nothing else.

``code`` is the stable name of what went wrong, ``remedy`` what to do about it.
"""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from braidmq.engine.errors import TooManyInFlight, TopicFull
from braidmq.engine.routing.errors import RoutingRefused
from braidmq.model.errors import AccessRefused, BadRequest, BadSetting, BraidError, Conflict, Kind
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.failed_logins import TooManyFailures
from braidmq.security.logins import TooManyLogins

PROBLEM_TYPE = "application/problem+json"
NO_STORE = {"cache-control": "no-store"}
CHALLENGE = {"www-authenticate": 'Basic realm="BraidMQ", charset="UTF-8"'}

RETRY_AFTER_S = 1
"""What a publisher is told to wait: pressure is looked at twice a second."""

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


class Problem(msgspec.Struct, frozen=True):
    """What went wrong (RFC 9457)."""

    type: Annotated[str, Meta(description="Always about:blank: `code` tells them apart")]
    title: Annotated[str, Meta(description="The name of the status")]
    status: int
    detail: Annotated[str, Meta(description="What happened, for people")]
    code: Annotated[str, Meta(description="What happened, for programs: it does not change")]
    remedy: Annotated[str, Meta(description="What to do about it")] | UnsetType = UNSET


# --- what only HTTP can get wrong ---


class BodyTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "body-too-large"


class UnsupportedMediaType(BraidError):
    """A body in a form that is not read here."""

    kind = Kind.BAD_REQUEST
    code = "unsupported-media-type"


class SlowRequest(BraidError):
    """The rest of a request did not come."""

    kind = Kind.BAD_REQUEST
    code = "request-timeout"


class PreconditionFailed(Conflict):
    """RFC 9110, 13.1.2: ``If-None-Match: *``, and there is one."""

    code = "precondition-failed"


class MethodNotAllowed(BadRequest):
    code = "method-not-allowed"

    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not allowed here", remedy=f"Use {' or '.join(allowed)}")
        self.allowed = allowed


class NotAdministrator(AccessRefused):
    code = "access-refused"


class MemoryLow(BraidError):
    kind = Kind.REFUSED
    code = "memory-low"
    remedy = "Try again later, when consumers have caught up"


class DiskLow(BraidError):
    kind = Kind.REFUSED
    code = "disk-low"
    remedy = "Try again later, when the node has free disk space"


class InternalError(BraidError):
    kind = Kind.SETUP
    code = "internal-error"
    remedy = "This is a bug in BraidMQ; the node's log has the details"


OWN_STATUS: dict[type[BraidError], int] = {
    PreconditionFailed: 412,
    MethodNotAllowed: 405,
    SlowRequest: 408,
    UnsupportedMediaType: 415,
    RoutingRefused: 403,
    TopicFull: 429,
    TooManyInFlight: 429,
    TooManyLogins: 429,
    TooManyFailures: 429,
    RateExceeded: 429,
    BadSetting: 409,
    MemoryLow: 429,
    DiskLow: 507,
}
"""Where a kind of error is too coarse for HTTP."""


def status_of(error: type[BraidError]) -> int:
    for each in error.__mro__:
        if each in OWN_STATUS:
            return OWN_STATUS[each]
    return STATUSES[error.kind]


def document_of(error: BraidError) -> Problem:
    status = status_of(type(error))
    return Problem(
        "about:blank",  # 4.2.1: the title is then that of the status
        HTTPStatus(status).phrase,
        status,
        str(error.args[0]),
        error.code,
        error.remedy or UNSET,
    )


def problem(error: BraidError) -> Response:
    document = document_of(error)
    headers: dict[str, Any] = dict(NO_STORE)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    elif document.status == 401:
        headers |= CHALLENGE
    elif document.status in (429, 507):
        wait_ms = error.wait_ms if isinstance(error, RateExceeded | TooManyFailures) else 0
        headers["retry-after"] = str(max(-(-wait_ms // 1000), RETRY_AFTER_S))
    elif document.status in (408, 413):
        headers["connection"] = "close"  # what is still to come of it is not read
    return Response(
        msgspec.json.encode(document),
        document.status,
        headers=headers,
        media_type=PROBLEM_TYPE,
    )
