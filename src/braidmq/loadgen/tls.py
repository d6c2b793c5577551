"""TLS under load: records in memory, so that one call of the system brings many of them."""

import socket
import ssl
from typing import cast

from braidmq.client.tls import TlsOptions
from braidmq.model.limits import KIB

RECEIVE_BYTES = 256 * KIB
RECORD_BYTES = 17 * KIB
"""Of plain text there may be one record more than was read."""

_encrypted = bytearray(RECEIVE_BYTES)
_encrypted_view = memoryview(_encrypted)


class Tls:
    def __init__(self, options: TlsOptions, host: str, sock: socket.socket) -> None:
        """Shakes hands over ``sock``, which waits."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = options.context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                got = sock.recv_into(_encrypted_view)
                if not got:
                    raise ConnectionResetError("closed in the middle of the handshake") from None
                self._incoming.write(_encrypted_view[:got])
        sock.sendall(self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def receive_into(self, sock: socket.socket, view: memoryview) -> int | None:
        """How much plain text there is now; 0 at the end, None if nothing is whole yet."""
        room = min(len(view) - RECORD_BYTES, RECEIVE_BYTES)
        got = sock.recv_into(_encrypted_view[:room])
        if not got:
            return 0
        self._incoming.write(_encrypted_view[:got])
        at = 0
        try:
            while True:
                one = cast(int, self._tls.read(len(view) - at, view[at:]))
                at += one
                if not one or not self._incoming.pending:
                    return at
        except ssl.SSLWantReadError:
            return at or None
