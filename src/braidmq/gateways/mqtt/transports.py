"""What carries MQTT's bytes: TCP, and WebSocket over TCP."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import InvalidOrigin
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from braidmq.gateways.mqtt.connection import OUTPUT_HIGH_BYTES, MqttConnection
from braidmq.security.accounts import is_loopback

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.listener import MqttGateway

RECEIVE_BYTES = 1 << 18
SUBPROTOCOL = Subprotocol("mqtt")

_receive_buffer = bytearray(RECEIVE_BYTES)
_receive_view = memoryview(_receive_buffer)
# One buffer for all connections: it is filled and scanned within one callback of the loop.


class _Socket(ABC):
    """What both have in common: the transport of asyncio below, a connection above."""

    transport: asyncio.Transport
    connection: MqttConnection

    def __init__(self, gateway: "MqttGateway") -> None:
        self._gateway = gateway
        self.host = self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        self.transport.set_write_buffer_limits(high=OUTPUT_HIGH_BYTES)
        self.connection = MqttConnection(self._gateway, self)

    def connection_lost(self, _error: Exception | None) -> None:
        self.connection.lost()

    def pause_writing(self) -> None:
        self.connection.pause_output(True)

    def resume_writing(self) -> None:
        self.connection.pause_output(False)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._read_rest()

    @abstractmethod
    def _read_rest(self) -> None:
        """What came while nobody was to read it."""

    def finish(self) -> None:
        """A socket closed with input unread would be reset, and what we said last be lost: the
        peer closes first, or the connection's patience ends."""
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


class TcpTransport(_Socket, asyncio.BufferedProtocol):
    def __init__(self, gateway: "MqttGateway") -> None:
        super().__init__(gateway)
        self._tail = b""
        self._large: bytearray | None = None
        """Of a packet that does not fit into the common buffer: as much of it as came."""
        self._large_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Nothing of ours between a connection and its socket.
        self.write = self.transport.write  # type: ignore[method-assign]

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_bytes :]
        if not self._tail:
            return _receive_view
        tail = len(self._tail)
        _receive_buffer[:tail] = self._tail
        return _receive_view[tail:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            size = len(self._tail) + nbytes
            used = self.connection.receive(_receive_view, size)
            if used == size:
                self._tail = b""
            else:
                self._keep(_receive_view, used, size)
            return
        self._large_bytes += nbytes
        if self._large_bytes == len(self._large):
            whole, self._large = self._large, None
            self._read(memoryview(whole), len(whole))

    def _read(self, view: memoryview, size: int) -> None:
        used = self.connection.receive(view, size)
        if used == size:
            self._tail = b""
        else:
            self._keep(view, used, size)

    def _keep(self, view: memoryview, used: int, size: int) -> None:
        """The beginning of a packet waits for the rest of it."""
        wanted = self.connection.wanted_bytes
        if wanted > RECEIVE_BYTES // 2:
            self._large = bytearray(wanted)
            self._large_bytes = size - used
            self._large[: size - used] = view[used:size]
            self._tail = b""
        else:
            self._tail = bytes(view[used:size])

    def _read_rest(self) -> None:
        if self._tail:
            rest = self._tail
            self._tail = b""
            self._read(memoryview(rest), len(rest))


class WebSocketTransport(_Socket, asyncio.Protocol):
    """Packets may be cut anywhere by frames (MQTT-6.0.0-2): their payloads are one stream."""

    def __init__(self, gateway: "MqttGateway") -> None:
        super().__init__(gateway)
        self._protocol = _Handshake(
            gateway.settings.allowed_origins,
            subprotocols=[SUBPROTOCOL],
            max_size=gateway.settings.packet_bytes_max + 16,
        )
        self._pending = bytearray()

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._accept(event)
            else:
                self._take(cast(Frame, event))
        self._push()
        self._read_rest()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._push()

    def _accept(self, request: Request) -> None:
        response = self._protocol.accept(request)
        if response.status_code == 101 and self._protocol.subprotocol is None:
            # MQTT-6.0.0-3
            response = self._protocol.reject(400, "the subprotocol must be mqtt\n")
        self._protocol.send_response(response)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._pending += frame.data
        elif frame.opcode is Opcode.TEXT:
            # MQTT-6.0.0-1
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is sent in binary frames")

    def _push(self) -> None:
        """Send what the protocol wants sent: answers to pings, closing frames."""
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
        if self._protocol.close_expected() and self._protocol.state is State.CLOSED:
            self.transport.close()

    def _read_rest(self) -> None:
        if self._pending:
            used = self.connection.receive(self._pending, len(self._pending))
            del self._pending[:used]

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._push()

    def finish(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self.transport.resume_reading()
            self._push()
        else:
            self.transport.close()


class _Handshake(ServerProtocol):
    """The opening of a WebSocket, with our rule of origins: a page of any web site could speak to
    a broker on the machine of whoever looks at it."""

    def __init__(
        self, allowed: Sequence[str], *, subprotocols: Sequence[Subprotocol], max_size: int
    ) -> None:
        super().__init__(
            subprotocols=subprotocols,
            select_subprotocol=_select_subprotocol,
            max_size=max_size,
        )
        self._allowed = allowed

    def process_origin(self, headers: Headers) -> Origin | None:
        origin = headers.get("Origin")
        if origin is not None and not origin_allowed(origin, self._allowed):
            raise InvalidOrigin(origin)
        return None if origin is None else Origin(origin)


def _select_subprotocol(
    _protocol: ServerProtocol, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def origin_allowed(origin: str, allowed: Sequence[str]) -> bool:
    """``https://app.example.com`` allows just that, ``*.example.com`` every host below it, with
    any scheme and port, and ``*`` everybody."""
    parts = urlsplit(origin.lower())
    host = parts.hostname or ""
    if host == "localhost" or is_loopback(host):
        return True
    return any(_matches(rule.lower(), origin.lower(), host) for rule in allowed)


def _matches(rule: str, origin: str, host: str) -> bool:
    if rule.startswith("*."):
        return re.fullmatch(r"[a-z0-9.-]+" + re.escape(rule[1:]), host) is not None
    return rule in ("*", origin)
