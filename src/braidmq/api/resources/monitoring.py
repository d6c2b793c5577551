"""For those who run a node: its metrics, the level of its log, the trace of one connection."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

import msgspec
from starlette.responses import Response

from braidmq import logs
from braidmq.api.context import ApiContext
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.problems import NO_STORE
from braidmq.api.resources.node import UnknownConnection
from braidmq.model.errors import AccessRefused, NotAuthenticated
from braidmq.runtime.sessions import Session
from braidmq.security.rights import ADMINISTRATOR, LOCAL

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsSource(Protocol):
    public: bool
    local: bool

    def pieces(self) -> Iterator[bytes]: ...


class LogLevel(Body, frozen=True):
    level: logs.Level


class TraceInfo(msgspec.Struct, frozen=True):
    connection: str
    trace: bool


class Monitoring:
    def __init__(self, context: ApiContext, metrics: MetricsSource) -> None:
        self._context = context
        self._metrics = metrics

    @operation(
        "GET",
        "/metrics",
        right=LOCAL.noting("`metrics.public = true` opens it to anyone"),
        tag="node",
        errors=(NotAuthenticated, AccessRefused),
        binary=True,
    )
    async def metrics(self, call: Call) -> Response:
        """Give what the node counts, as Prometheus reads it."""
        text = []
        for piece in self._metrics.pieces():
            text.append(piece)
            # Thousands of topics take a while to count: others have their turn in between.
            await asyncio.sleep(0)
        return Response(b"".join(text), headers={**NO_STORE, "content-type": METRICS_TYPE})

    @operation("GET", "/v1/log-level", right=ADMINISTRATOR, tag="node")
    async def get_log_level(self, call: Call) -> LogLevel:
        """Say which lines are logged."""
        return LogLevel(logs.level())

    @operation("PUT", "/v1/log-level", right=ADMINISTRATOR, tag="node")
    async def set_log_level(self, call: Call, body: LogLevel) -> LogLevel:
        """Log more or less, until the node is started again."""
        logs.set_level(body.level)
        return LogLevel(logs.level())

    @operation(
        "GET",
        "/v1/connections/{connection}/trace",
        right=ADMINISTRATOR,
        tag="node",
        errors=(UnknownConnection,),
    )
    async def get_trace(self, call: Call, connection: str) -> TraceInfo:
        """Say whether a connection is traced."""
        return TraceInfo(connection, self._found(connection).is_traced)

    @operation(
        "PUT",
        "/v1/connections/{connection}/trace",
        right=ADMINISTRATOR,
        tag="node",
        errors=(UnknownConnection,),
    )
    async def begin_trace(self, call: Call, connection: str) -> TraceInfo:
        """Log everything that a connection says and hears, from now on."""
        self._found(connection).trace(True)
        return TraceInfo(connection, True)

    @operation(
        "DELETE",
        "/v1/connections/{connection}/trace",
        right=ADMINISTRATOR,
        tag="node",
        errors=(UnknownConnection,),
    )
    async def end_trace(self, call: Call, connection: str) -> TraceInfo:
        """Stop to log what a connection says and hears."""
        self._found(connection).trace(False)
        return TraceInfo(connection, False)

    def _found(self, connection: str) -> Session:
        session = self._context.node_loop.sessions.get(connection)
        if session is None:
            raise UnknownConnection(f"there is no connection {connection!r}")
        return session
