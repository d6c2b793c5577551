"""A listener of HTTP: uvicorn as a guest in the node's loop."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import uvicorn

from braidmq.api.access import CERTIFIED_USER
from braidmq.api.app import App
from braidmq.api.http_timeouts import TimeoutProtocol
from braidmq.api.stream_protocol import ListenerProtocol
from braidmq.model.limits import KIB
from braidmq.net.listeners import BACKLOG_CONNECTIONS, StreamGateway, TcpListener, bind
from braidmq.net.settings import ListenerSpec
from braidmq.net.tcp import Poller
from braidmq.net.tls import TlsLink
from braidmq.net.tls_handshakes import TlsPort

KEEP_ALIVE_S = 75
"""How long HTTP connections stay without a request. Longer than most clients keep them: when both
let go at the same time, as httpx and uvicorn do after 5 s, a request may be lost."""

RECEIVE_BYTES = 256 * KIB
OUTPUT_HIGH_BYTES = 64 * KIB
"""Of a connection with TLS, as the loop's transports have it."""


def _is_news(record: logging.LogRecord) -> bool:
    """Uvicorn takes a WebSocket that is refused with an answer for a mistake of the app: a line for
    every stranger who tries."""
    return "without completing handshake" not in record.getMessage()


logging.getLogger("uvicorn.error").addFilter(_is_news)


class _Uvicorn(uvicorn.Server):
    """The node handles signals, and learns when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    def protocol(self, link: TlsLink) -> TimeoutProtocol:
        """For a connection that does not come by a socket of its own."""
        state = {**self.lifespan.state, CERTIFIED_USER: link.certified_user}
        make = cast(Callable[..., TimeoutProtocol], self.config.http)
        return make(config=self.config, server_state=self.server_state, app_state=state)


class HttpListener:
    """Several may have one app."""

    def __init__(
        self, spec: ListenerSpec, tls: TlsPort | None = None, *, app: App, poller: Poller
    ) -> None:
        self.spec = spec
        self._app = app
        self.tls = tls
        self._poller = poller
        self._encrypted: TcpListener | None = None
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        server = self._server
        return server is not None and server.up.is_set() and not server.should_exit

    @property
    def connection_count(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def start(self) -> None:
        sockets = [bind(self.spec)] if self.tls is None else []
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=partial(TimeoutProtocol, rates=self._app.rates),  # type: ignore[arg-type]
            ws=ListenerProtocol,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG_CONNECTIONS,
        )
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({up, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            await self._serving  # it ended before it was up: raise what ended it
        if self.tls is not None:
            self._encrypted = self._listen_encrypted(self._server, self.tls)
            await self._encrypted.start()

    def _listen_encrypted(self, server: _Uvicorn, tls: TlsPort) -> TcpListener:
        streams = StreamGateway(lambda: (), server.protocol)
        return TcpListener(self.spec, self._poller, streams, RECEIVE_BYTES, OUTPUT_HIGH_BYTES, tls)

    async def stop(self, deadline_s: float) -> None:
        assert self._server is not None, "stopped before it was started"
        assert self._serving is not None
        if self._encrypted is not None:
            await self._encrypted.stop(deadline_s)
        self._server.config.timeout_graceful_shutdown = deadline_s  # type: ignore[assignment]
        self._server.should_exit = True
        self._app.stop()
        await self._serving
