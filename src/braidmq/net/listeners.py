"""Ports that are open: each listener accepts connections and hands them to a gateway.

What a connection is carried by is decided here and nowhere else: gateways see a ``Transport``.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Collection
from typing import Protocol, cast

from braidmq.model.errors import SetupError
from braidmq.net.admission import admit, has_room
from braidmq.net.link_streams import MakeProtocol, stream_over
from braidmq.net.settings import ListenerSpec, at_host
from braidmq.net.tcp import Poller, TcpLink, accept
from braidmq.net.tls import TlsLink
from braidmq.net.tls_handshakes import TlsPort
from braidmq.net.transport import BufferedReceiver, Carried, Receiver, Transport
from braidmq.net.websocket import WebSocketOptions, WebSocketTransport

logger = logging.getLogger(__name__)

BACKLOG_CONNECTIONS = 4096
"""Connections the kernel holds for us between two turns of the loop; it has limits of its own."""

ACCEPTED_AT_ONCE = 16
"""Then those who are connected have their turn."""

ACCEPT_AGAIN_S = 1.0


class Listener(Protocol):
    """One open port. ``start`` returns once it accepts; ``stop`` once it has let go, which takes
    no longer than ``deadline_s``."""

    @property
    def spec(self) -> ListenerSpec: ...
    @property
    def tls(self) -> TlsPort | None: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def connection_count(self) -> int:
        """Connections that came by it and are open."""

    async def start(self) -> None: ...
    async def stop(self, deadline_s: float) -> None: ...


class Gateway(Protocol):
    """Where connections go."""

    @property
    def connections(self) -> Collection[Carried]: ...
    def connect(self, transport: Transport) -> Receiver: ...


class BufferedGateway(Protocol):
    """One whose connections may have any transport."""

    @property
    def connections(self) -> Collection[Carried]: ...
    def connect(self, transport: Transport) -> BufferedReceiver: ...


class TcpListener:
    """TCP, plain or with TLS, read and written in compiled code."""

    def __init__(
        self,
        spec: ListenerSpec,
        poller: Poller,
        gateway: Gateway,
        receive_bytes: int,
        output_high_bytes: int,
        tls: TlsPort | None = None,
    ) -> None:
        self.spec = spec
        self.tls = tls
        self._poller = poller
        self._gateway = gateway
        self._receive_bytes = receive_bytes
        self._output_high_bytes = output_high_bytes
        self._loop = poller.loop
        self._sock: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def port(self) -> int:
        """What the kernel chose, if it was asked to."""
        assert self._sock is not None, "not started"
        port: int = self._sock.getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        return connections_of(self._gateway.connections, self.spec.name)

    async def start(self) -> None:
        self._sock = bind(self.spec)
        self._resume()

    async def stop(self, deadline_s: float) -> None:
        """At once. What was accepted is its gateway's."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _resume(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._accept, self._sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted = accept(listening.fileno())
            except OSError as error:
                self._pause(listening, error)
                return
            if accepted is None:
                return
            fd, host, port = accepted
            if has_room(fd):
                self._link(fd, host, port)
            else:
                os.close(fd)

    def _link(self, fd: int, host: str, port: int) -> None:
        how = (self._poller, fd, host, port, self._receive_bytes, self._output_high_bytes)
        if self.tls is None:
            link = TcpLink(*how)
            link.listener = self.spec.name
            link.start(self._gateway.connect(link))
        else:
            encrypted = TlsLink(*how)
            encrypted.listener = self.spec.name
            self.tls.begin(encrypted, self._gateway.connect)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Files or memory are used up: who waits is let in when there are some again."""
        logger.warning(
            "connections can't be accepted",
            extra={"listener": self.spec.name, "reason": str(error)},
        )
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(ACCEPT_AGAIN_S, self._resume)


class StreamGateway:
    """Links under protocols that are made for transports of the event loop."""

    def __init__(self, connections: Callable[[], Collection[Carried]], make: MakeProtocol) -> None:
        self._connections = connections
        self._make = make

    @property
    def connections(self) -> Collection[Carried]:
        return self._connections()

    def connect(self, transport: Transport) -> Receiver:
        return stream_over(cast(TlsLink, transport), self._make)


class WebSocketListener:
    """WebSocket over plain TCP, on transports of the event loop."""

    tls = None

    def __init__(
        self,
        spec: ListenerSpec,
        gateway: BufferedGateway,
        options: Callable[[], WebSocketOptions],
    ) -> None:
        self.spec = spec
        self._gateway = gateway
        self._options = options
        self._server: asyncio.Server | None = None

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        return connections_of(self._gateway.connections, self.spec.name)

    async def start(self) -> None:
        # The backlog is said again, or that of the socket would become 100.
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Door(self._carry), sock=bind(self.spec), backlog=BACKLOG_CONNECTIONS
        )

    def _carry(self) -> WebSocketTransport:
        return WebSocketTransport(self._options(), self.spec.name, self._gateway.connect)

    async def stop(self, deadline_s: float) -> None:
        """At once. What was accepted is its gateway's."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def websocket_over_tls(
    spec: ListenerSpec,
    poller: Poller,
    gateway: BufferedGateway,
    options: Callable[[], WebSocketOptions],
    receive_bytes: int,
    output_high_bytes: int,
    tls: TlsPort,
) -> TcpListener:
    streams = StreamGateway(
        lambda: gateway.connections,
        lambda _: WebSocketTransport(options(), spec.name, gateway.connect),
    )
    return TcpListener(spec, poller, streams, receive_bytes, output_high_bytes, tls)


class Door(asyncio.Protocol):
    """What a new connection of other transports meets before its protocol."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if admit(transport):
            protocol = self._make()
            cast(asyncio.Transport, transport).set_protocol(protocol)
            protocol.connection_made(transport)


def connections_of(connections: Collection[Carried], listener: str) -> int:
    return sum(each.transport.listener == listener for each in connections)


def bind(spec: ListenerSpec) -> socket.socket:
    """A listening socket, or an error that names the listener and what to change."""
    sock: socket.socket | None = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # With SO_REUSEADDR two sockets may bind one port; only listening makes it ours.
        sock.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _cannot_listen(spec, error) from error
    sock.setblocking(False)
    return sock


def _cannot_listen(spec: ListenerSpec, error: OSError) -> SetupError:
    wrong_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    what = "host" if wrong_host else "port"
    if spec.at[0] == "entries":
        remedy = f"Give it another {what} in listeners.entries"
        remedy += "" if wrong_host else ", or leave it out"
    elif wrong_host:
        remedy = "Give another --host"
    else:
        flag = "--" + str(spec.at[0]).replace("_", "-")
        remedy = f"Give another {flag}, or 0 to turn this listener off"
    return SetupError(
        f"listener {spec.name!r} cannot listen on {at_host(spec.host)}:{spec.port}:"
        f" {error.strerror}",
        remedy=remedy,
    )
