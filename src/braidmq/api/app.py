"""The ASGI app of a node: finds the operation a request means, calls it, answers.

Paths are matched as they were sent, segment by segment: ``%2F`` is part of a name and not a
separator, which frameworks that match decoded paths can't know.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from braidmq.api.bodies import Bodies
from braidmq.api.cors import allow_origin, is_preflight, preflight
from braidmq.api.endpoints import (
    BODY_BYTES_MAX,
    Bound,
    Call,
    bound_operations,
    headers_from,
    query_from,
    require_no_query,
    respond,
    segments_from,
)
from braidmq.api.guard import Guard
from braidmq.api.http_timeouts import ARRIVAL, Arrival
from braidmq.api.openapi import describing
from braidmq.api.problems import (
    InternalError,
    MethodNotAllowed,
    PreconditionFailed,
    UnsupportedMediaType,
    problem,
)
from braidmq.api.reference_page import page
from braidmq.api.requests import REQUEST_ID_HEADER, RequestIds, RequestInfo, log_request
from braidmq.api.resources.metrics_stream import MetricsStream
from braidmq.api.settings import HttpSettings
from braidmq.logs import about
from braidmq.model.errors import BadRequest, BraidError, NotFound
from braidmq.net.input_budget import InputBudget
from braidmq.net.web_origins import LOCALHOST, WebCallers
from braidmq.runtime.rate_limits import RateExceeded, RateLimits
from braidmq.security.rights import MONITORING, USER, Who

OPENAPI_PATH = ("openapi.json",)
DOCS_PATH = ("docs",)
DOCS_HEADERS = {
    # It is one file, with nothing in it that runs.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "referrer-policy": "no-referrer",
}
NOTHING = (b"", b"{}")
"""Bodies of clients that always send one."""
ABSOLUTE = re.compile(rb"^https?://[^/]*", re.IGNORECASE)

log = logging.getLogger(__name__)

JSON_TYPES = re.compile(
    r"(application/([\w.+-]+\+)?json|application/x-www-form-urlencoded)"
    r"""(\s*;\s*charset="?utf-8"?)?\s*""",
    re.IGNORECASE,
)
"""What JSON may be called. The second is what curl says unless it is told otherwise."""


class App:
    """``stream`` answers WebSockets; without it there are none."""

    def __init__(
        self,
        guard: Guard,
        resources: Iterable[object],
        stream: MetricsStream | None = None,
        web: WebCallers | None = None,
        input_budget: InputBudget | None = None,
        rates: RateLimits | None = None,
    ) -> None:
        self._guard = guard
        self.rates = rates
        """What the connections of its listeners are held to."""
        self._web = web or WebCallers((LOCALHOST,))
        self._live = stream
        self._bodies = Bodies(input_budget)
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Bound]]]] = {}
        self.operations = [each for one in resources for each in bound_operations(one)]
        for bound in self.operations:
            self._add(bound)
        self._openapi: bytes | None = None
        self._docs: bytes | None = None
        self._request_ids = RequestIds()
        self._describing = asyncio.Lock()
        self.on_stop: list[Callable[[], None]] = []
        self.on_settings: list[Callable[[HttpSettings], None]] = []

    def stop(self) -> None:
        """The node stops: requests that wait for something are answered."""
        for each in self.on_stop:
            each()

    def replace(self, settings: HttpSettings) -> None:
        """For requests that come from now on."""
        self._web.replace(settings.hosts, settings.origins)
        for each in self.on_settings:
            each(settings)

    def _add(self, bound: Bound) -> None:
        pattern = tuple("*" if part[:1] == "{" else part for part in bound.operation.pattern)
        among = self._by_length.setdefault(len(pattern), [])
        for known, methods in among:
            if known == pattern:
                assert bound.operation.method not in methods, bound.operation.path
                methods[bound.operation.method] = bound
                return
        among.append((pattern, {bound.operation.method: bound}))
        # A fixed word goes before a name, and has all the methods of its path.
        among.sort(key=lambda each: each[0].count("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            info = RequestInfo(self._request_ids.of(request))
            about.set(info)  # a request is a task, with a context of its own
            response = await self._answer(request, info)
            response.headers[REQUEST_ID_HEADER] = info.request_id
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._stream(WebSocket(scope, receive, send))

    async def _answer(self, request: Request, info: RequestInfo) -> Response:
        try:
            arrival: Arrival | None = getattr(request.state, ARRIVAL, None)
            if arrival is not None:
                await arrival.let_in()
        except RateExceeded as error:
            response = problem(error)
            response.headers["connection"] = "close"
            return response
        try:
            return await self._perform(request, info)
        except BraidError as error:
            return problem(error)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            return problem(InternalError("the node failed to handle the request"))

    async def _perform(self, request: Request, info: RequestInfo) -> Response:
        self._web.check(request)
        try:
            is_asked = is_preflight(request)
            response = preflight(request) if is_asked else await self._operate(request, info)
        except BraidError as error:
            response = problem(error)
        allow_origin(request, response)
        return response

    async def _operate(self, request: Request, info: RequestInfo) -> Response:
        segments = path_segments(request.scope["raw_path"])
        if request.method in ("GET", "HEAD"):
            if tuple(segments) == OPENAPI_PATH:
                return Response(await self.openapi(), media_type="application/json")
            if tuple(segments) == DOCS_PATH:
                return Response(await self.docs(), headers=DOCS_HEADERS, media_type="text/html")
        bound, methods = self._find(request.method, segments)
        if bound is None:
            # A stranger does not learn what there is.
            await self._guard.caller(request, USER)
            if methods and request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": ", ".join(methods_of(methods))})
            if methods:
                raise MethodNotAllowed(request.method, methods_of(methods))
            raise NotFound(f"there is nothing at {request.url.path}")
        right = bound.operation.right
        caller = await self._guard.caller(request, right)
        info.user = caller.user.name
        refuse_conditions(bound, request)
        arguments = self._named(bound, request, segments)
        call = Call(request, caller, self._guard.admit(right, caller, arguments))
        if bound.operation.body is not None:
            check_content(bound, request)
            arguments["body"] = await self._body(bound, request)
            self._guard.admit_body(right, call, arguments)
        elif right.who is not Who.ANYONE:
            await self._require_no_body(request)
        response = respond(bound.operation, await bound.handler(call=call, **arguments))
        if not bound.operation.traffic:
            if call.known_grants is not None:
                info.facts["namespace"] = call.known_grants.namespace
            log_request(bound.operation, request, info, response.status_code)
        return response

    def _find(self, method: str, segments: list[str]) -> tuple[Bound | None, dict[str, Bound]]:
        for pattern, methods in self._by_length.get(len(segments), ()):
            if all(p in ("*", s) for p, s in zip(pattern, segments, strict=True)):
                return methods.get("GET" if method == "HEAD" else method), methods
        return None, {}

    def _named(self, bound: Bound, request: Request, segments: list[str]) -> dict[str, Any]:
        """What is known before the body is."""
        operation = bound.operation
        arguments = segments_from(operation, segments)
        if operation.query is not None:
            arguments["query"] = query_from(request, operation.query)
        elif operation.right.who is not Who.ANYONE:
            require_no_query(request)
        if operation.headers is not None:
            arguments["headers"] = headers_from(request, operation.headers)
        return arguments

    async def _require_no_body(self, request: Request) -> None:
        has_body = request.headers.get("content-length", "0") != "0"
        if not has_body and "transfer-encoding" not in request.headers:
            return
        if await self._bodies.read(request, BODY_BYTES_MAX) not in NOTHING:
            raise BadRequest("this takes no body", remedy="Leave it out: it would change nothing")

    async def _body(self, bound: Bound, request: Request) -> Any:
        data = await self._bodies.read(request, bound.operation.body_bytes_max)
        return data if bound.decode_body is None else decoded(bound, data)

    async def _stream(self, socket: WebSocket) -> None:
        try:
            self._web.check(socket)
            segments = path_segments(socket.scope["raw_path"])
            if self._live is None or tuple(segments) != self._live.PATH:
                raise NotFound(f"there is no stream at {socket.url.path}")
            caller = await self._guard.caller(socket, MONITORING)
            await self._live.serve(socket, caller)
        except BraidError as error:
            await socket.send_denial_response(problem(error))

    async def openapi(self) -> bytes:
        """Written for who asks first, and others are served between: anyone may ask."""
        async with self._describing:
            if self._openapi is None:
                document: dict[str, Any] = {}
                for _ in describing([each.operation for each in self.operations], document):
                    await asyncio.sleep(0)
                self._openapi = msgspec.json.encode(document)
            return self._openapi

    async def docs(self) -> bytes:
        document = await self.openapi()
        if self._docs is None:
            self._docs = page(msgspec.json.decode(document)).encode()
        return self._docs


def methods_of(methods: Iterable[str]) -> list[str]:
    """All that a path takes, with what is there of itself."""
    found = {*methods, "OPTIONS"}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def refuse_conditions(bound: Bound, request: Request) -> None:
    """RFC 9110, 13.1.1: nothing here has an ETag, so that none matches. To leave the header out of
    account would lose the change that its sender wants to see kept. So it would where only what is
    new may be made, and the operation does not look whether it is."""
    if request.method in ("GET", "HEAD"):
        return
    if "if-match" in request.headers:
        raise PreconditionFailed(
            "nothing here has an ETag, so If-Match can't match", remedy="Leave If-Match out"
        )
    looks = PreconditionFailed in bound.operation.errors
    if not looks and request.headers.get("if-none-match") == "*":
        raise BadRequest(
            "this does not look at what is there before, so If-None-Match: * can't be kept",
            remedy="Leave If-None-Match out, and ask with GET first",
        )


def check_content(bound: Bound, request: Request) -> None:
    """Whether a body is in the form that its operation reads."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaType(
            f"bodies that are encoded as {encoding[:100]!r} are not read here",
            remedy="Send it as it is, without Content-Encoding",
        )
    given = request.headers.get("content-type")
    if bound.decode_body is not None and given is not None and not JSON_TYPES.fullmatch(given):
        raise UnsupportedMediaType(
            f"the body is said to be {given[:100]!r}; JSON in UTF-8 is wanted",
            remedy="Send it with Content-Type: application/json",
        )


def decoded(bound: Bound, data: bytes) -> Any:
    """An empty body is an object with nothing in it."""
    assert bound.decode_body is not None
    try:
        return bound.decode_body(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the request body is invalid: {error}") from None


def path_segments(raw: bytes) -> list[str]:
    # RFC 9112, 3.2.2: the form that proxies are sent, and servers must understand.
    raw = ABSOLUTE.sub(b"", raw)
    try:
        return [unquote_to_bytes(part).decode() for part in raw.lstrip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
