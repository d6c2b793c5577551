"""For those who run a node: metrics, the level of the log, the trace of one connection.

    GET              /metrics
    GET PUT          /v1/log-level                     {"level": "debug"}
    GET PUT DELETE   /v1/connections/{id}/trace        PUT begins it, DELETE ends it

``/metrics`` is as public as the configuration says; the rest is for administrators.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from braidmq import logs
from braidmq.gateways.http.admin import (
    NO_STORE,
    Body,
    as_json,
    credentials,
    problem,
    read_body,
)
from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused, BraidError, NotFound
from braidmq.security.accounts import is_loopback
from braidmq.security.logins import Logins

ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsSource(Protocol):
    public: bool

    def pieces(self) -> Iterator[bytes]: ...


class Traceable(Protocol):
    id: int

    @property
    def is_traced(self) -> bool: ...
    def trace(self, wanted: bool) -> None: ...


FindConnection = Callable[[int], Traceable | None]
Handler = Callable[[Request], Awaitable[Response]]


class LevelBody(Body, frozen=True):
    level: logs.Level


def operations_routes(
    logins: Logins, clock: Clock, metrics: MetricsSource, find: FindConnection
) -> list[BaseRoute]:
    return Operations(logins, clock, metrics, find).routes()


class Operations:
    def __init__(
        self, logins: Logins, clock: Clock, metrics: MetricsSource, find: FindConnection
    ) -> None:
        self._logins = logins
        self._clock = clock
        self._metrics = metrics
        self._find = find

    def routes(self) -> list[BaseRoute]:
        private = self._guarded(self.metrics, MONITORING)
        log_level, trace = "/v1/log-level", "/v1/connections/{id:int}/trace"
        return [
            Route("/metrics", self.metrics if self._metrics.public else private),
            Route(log_level, self._guarded(self.get_level), methods=["GET"]),
            Route(log_level, self._guarded(self.put_level), methods=["PUT"]),
            Route(trace, self._guarded(self.get_trace), methods=["GET"]),
            Route(trace, self._guarded(self.change_trace), methods=["PUT", "DELETE"]),
        ]

    def _guarded(self, handler: Handler, *tags: str) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                await self._admit(request, {ADMINISTRATOR, *tags})
                return await handler(request)
            except BraidError as error:
                return problem(error)

        return answer

    async def _admit(self, request: Request, tags: set[str]) -> None:
        name, password = credentials(request.headers.get("authorization"))
        loopback = request.client is not None and is_loopback(request.client.host)
        user = await self._logins.authenticate(name, password, self._clock.now_ms(), loopback)
        if not user.is_administrator and tags.isdisjoint(user.tags):
            raise AccessRefused(f"user {user.name!r} has none of the tags {sorted(tags)}")

    async def metrics(self, _: Request) -> Response:
        text = []
        for piece in self._metrics.pieces():
            text.append(piece)
            # Thousands of topics take a while to count: others have their turn in between.
            await asyncio.sleep(0)
        return Response(b"".join(text), headers={**NO_STORE, "content-type": METRICS_TYPE})

    async def get_level(self, _: Request) -> Response:
        return as_json({"level": logs.level()})

    async def put_level(self, request: Request) -> Response:
        body = await read_body(request, LevelBody)
        logs.set_level(body.level)
        return as_json({"level": logs.level()})

    async def get_trace(self, request: Request) -> Response:
        return self._traced(self._connection(request))

    async def change_trace(self, request: Request) -> Response:
        connection = self._connection(request)
        connection.trace(request.method == "PUT")
        return self._traced(connection)

    def _connection(self, request: Request) -> Traceable:
        number = request.path_params["id"]
        found = self._find(number)
        if found is None:
            raise NotFound(f"there is no connection {number}")
        return found

    def _traced(self, connection: Traceable) -> Response:
        return as_json({"connection": connection.id, "trace": connection.is_traced})
