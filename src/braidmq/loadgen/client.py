"""One AMQP connection: calls while it is set up, then bytes."""

import socket
import time
from typing import TypeVar

from braidmq.client.address import Address
from braidmq.model.errors import BraidError, SetupError
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.handshake import start_ok, tune_ok
from braidmq.wire.amqp.load import Arrivals, Consumer, Publisher, scan
from braidmq.wire.amqp.methods import (
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    Method,
    decode,
    method_frame,
)

CHANNEL = 1
"""The one channel of each connection."""

CALL_S_MAX = 60.0
"""RabbitMQ takes seconds for some calls while it drops a long queue."""

RECEIVE_BYTES = 512 * 1024
"""Shared by all connections, as in the broker: what is not a whole frame is copied out."""

_MethodT = TypeVar("_MethodT", bound=Method)
_receive_buffer = bytearray(RECEIVE_BYTES)
_receive_view = memoryview(_receive_buffer)


class LoadFailed(BraidError):
    """The broker closed a connection, or went silent."""

    code = "load-failed"


class Client:
    """``call`` blocks; after ``start`` there are only ``receive`` and ``send``."""

    def __init__(self, address: Address) -> None:
        try:
            self.socket = socket.create_connection((address.host, address.port), CALL_S_MAX)
        except OSError as error:
            raise SetupError(
                f"no broker answers at {address.host}:{address.port}: {error}",
                remedy="Start one, for instance with `braid serve`, or give another --url",
            ) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""
        self._unsent = memoryview(b"")
        self.blocked = False
        self.server = ""
        self._log_in(address)

    def _log_in(self, address: Address) -> None:
        self.socket.sendall(PROTOCOL_HEADER)
        start = self._expect(ConnectionStart)
        properties = start.server_properties
        named = (properties.get(name) for name in ("product", "version"))
        self.server = " ".join(each for each in named if isinstance(each, str))
        answer = start_ok("braid bench", address.user, address.password)
        tune = self._ask(answer, ConnectionTune, channel=0)
        # No heartbeats: a run is shorter than any timeout worth having, and always busy.
        self._write(0, tune_ok(tune, heartbeat_s=0))
        self._ask(ConnectionOpen(address.vhost), ConnectionOpenOk, channel=0)
        self._ask(ChannelOpen(), ChannelOpenOk)

    # --- set-up, blocking ---

    def call(self, method: Method) -> Method:
        return self._ask(method, method.REPLIES[0])

    def _ask(self, method: Method, reply: type[_MethodT], channel: int = CHANNEL) -> _MethodT:
        self._write(channel, method)
        return self._expect(reply)

    def _write(self, channel: int, method: Method) -> None:
        self.socket.sendall(method_frame(channel, method))

    def _expect(self, wanted: type[_MethodT]) -> _MethodT:
        while True:
            for method in self.receive(None, None, None):
                if isinstance(method, wanted):
                    return method

    def close(self) -> None:
        try:
            self.socket.settimeout(CALL_S_MAX)
            self._ask(ConnectionClose(200, "done"), ConnectionCloseOk, channel=0)
        except (OSError, LoadFailed, ValueError):
            pass  # whatever was to be learnt is known by now
        finally:
            self.socket.close()

    # --- load ---

    def start(self) -> None:
        self.socket.setblocking(False)

    def receive(
        self, publisher: Publisher | None, consumer: Consumer | None, arrivals: Arrivals | None
    ) -> list[Method]:
        """Take what is there; gives the methods that are neither confirms nor deliveries."""
        kept = len(self._tail)
        _receive_view[:kept] = self._tail
        try:
            got = self.socket.recv_into(_receive_view[kept:])
        except BlockingIOError:
            return []
        except OSError as error:
            raise LoadFailed(f"connection lost: {error}") from error
        if not got:
            raise LoadFailed("the broker closed the connection without a word")
        size = kept + got
        took, frames = scan(
            _receive_buffer, size, publisher, consumer, arrivals, time.perf_counter_ns()
        )
        self._tail = bytes(_receive_view[took:size])
        return [self._read(payload) for kind, _, payload in frames if kind == FrameKind.METHOD]

    def _read(self, payload: bytes) -> Method:
        method = decode(payload)
        if isinstance(method, ConnectionClose | ChannelClose):
            raise LoadFailed(f"the broker closed: {method.reply_code} {method.reply_text}")
        if isinstance(method, ConnectionBlocked | ConnectionUnblocked):
            self.blocked = isinstance(method, ConnectionBlocked)
        return method

    def send_method(self, method: Method) -> None:
        self.send(method_frame(CHANNEL, method))

    @property
    def unsent(self) -> bool:
        return len(self._unsent) > 0

    def send(self, data: bytes = b"") -> bool:
        """Send what waits and ``data``; whether all of it went."""
        if self._unsent:
            view = memoryview(bytes(self._unsent) + data) if data else self._unsent
        else:
            view = memoryview(data)
        try:
            while view:
                view = view[self.socket.send(view) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LoadFailed(f"connection lost: {error}") from error
        self._unsent = view
        return not view
