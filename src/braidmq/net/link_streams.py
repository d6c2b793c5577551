"""Links under protocols that are made for transports of an event loop: HTTP and WebSocket over TLS.

There is one TLS for all listeners, with its limits and its certificates. What stands on asyncio's
transports is offered one that a link carries.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from braidmq.net.tls import TlsLink
from braidmq.net.transport import Receiver


@runtime_checkable
class Refusable(Protocol):
    """A protocol that wants to know why it is cut off."""

    def refuse_output(self, text: str) -> None: ...


MakeProtocol = Callable[[TlsLink], asyncio.Protocol]


def stream_over(link: TlsLink, make: MakeProtocol) -> Receiver:
    """The link's receiver, with a new protocol on it."""
    protocol = make(link)
    stream = LinkStream(link, protocol)
    protocol.connection_made(stream)
    return stream


class LinkStream(asyncio.Transport):
    """A transport to the protocol above, a receiver to the link below."""

    wanted_bytes = 0

    def __init__(self, link: TlsLink, protocol: asyncio.BaseProtocol) -> None:
        super().__init__(
            {
                "peername": (link.host, int(link.peer.rpartition(":")[2])),
                "sockname": link.local,
                "sslcontext": link.version,
                "certified_user": link.certified_user,
            }
        )
        self._link = link
        self._protocol = cast(asyncio.Protocol, protocol)

    # --- as the link sees it ---

    def receive(self, data: memoryview, size: int) -> int:
        self._protocol.data_received(bytes(data[:size]))
        return size

    def pause_output(self, paused: bool) -> None:
        if paused:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def refuse_output(self, text: str) -> None:
        if isinstance(self._protocol, Refusable):
            self._protocol.refuse_output(text)

    def lost(self) -> None:
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        protocol.connection_lost(None)

    # --- as the protocol sees it ---

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def is_reading(self) -> bool:
        return self._link.is_reading

    def pause_reading(self) -> None:
        self._link.pause()

    def resume_reading(self) -> None:
        self._link.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """A link has the limit it was made with."""

    def get_write_buffer_size(self) -> int:
        return self._link.unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._link.write(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._link.is_closing

    def close(self) -> None:
        self._link.close()

    def abort(self) -> None:
        self._link.abort()
