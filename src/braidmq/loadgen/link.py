"""A socket under load: whatever the protocol, bytes in and bytes out without waiting."""

import socket

from braidmq.client.tls import TlsOptions
from braidmq.loadgen.tls import Tls
from braidmq.model.errors import BraidError, Kind, SetupError

CALL_S_MAX = 60.0
"""RabbitMQ takes seconds for some calls while it drops a long queue."""

RECEIVE_BYTES = 512 * 1024
"""Shared by all connections, as in the broker: what is not a whole frame is copied out."""

_receive_buffer = bytearray(RECEIVE_BYTES)
_receive_view = memoryview(_receive_buffer)


class LoadFailed(BraidError):
    """The broker closed a connection, or went silent."""

    kind = Kind.REFUSED
    code = "load-failed"


class Link:
    """Blocks until ``start``, and not after it."""

    def __init__(self, host: str, port: int, tls: TlsOptions | None = None) -> None:
        try:
            self.socket = socket.create_connection((host, port), CALL_S_MAX)
            self._tls = None if tls is None else Tls(tls, host, self.socket)
        except OSError as error:
            raise SetupError(
                f"no broker answers at {host}:{port}: {error.strerror or error}",
                remedy="Start one, for instance with `braid serve`, or give another --url",
            ) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""
        self._unsent = memoryview(b"")

    def start(self) -> None:
        self.socket.setblocking(False)

    def say(self, data: bytes) -> None:
        """While it is set up: waits until all of it is sent."""
        self.socket.sendall(data if self._tls is None else self._tls.encrypt(data))

    def _fill(self) -> tuple[bytearray, int]:
        """A buffer with what came, behind what was kept, and how much that is; 0: nothing new."""
        kept = len(self._tail)
        _receive_view[:kept] = self._tail
        try:
            if self._tls is None:
                got = self.socket.recv_into(_receive_view[kept:])
            else:
                found = self._tls.receive_into(self.socket, _receive_view[kept:])
                if found is None:
                    return _receive_buffer, 0
                got = found
        except BlockingIOError:
            return _receive_buffer, 0
        except OSError as error:
            raise LoadFailed(f"connection lost: {error}") from error
        if not got:
            raise LoadFailed("the broker closed the connection without giving a reason")
        return _receive_buffer, kept + got

    def _keep(self, first: int, stop: int) -> None:
        """What is not complete waits for the next time."""
        self._tail = bytes(_receive_view[first:stop])

    @property
    def unsent(self) -> bool:
        return len(self._unsent) > 0

    def send(self, data: bytes = b"") -> bool:
        """Send what waits and ``data``; whether all of it went."""
        if data and self._tls is not None:
            data = self._tls.encrypt(data)
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
