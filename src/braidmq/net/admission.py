"""The door of a node: how many may wait in front of it, and whether one more may come in.

A connection is a file of the process, and so is all that storage writes to. Clients that take the
last one would make the next write fail, which storage does not forgive. Files are numbered from the
lowest that is free: the number of a new connection says how many there are.
"""

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from typing import cast

from braidmq.net.tcp import accept

BACKLOG_CONNECTIONS = 4096
"""Connections the kernel holds for us between two turns of the loop; it has limits of its own."""

STORAGE_FILES = 256
"""Twice what a flush has open at once, for reading, snapshots and the rest."""

ACCEPTED_AT_ONCE = 16
"""Then those who are connected have their turn."""

ACCEPT_AGAIN_S = 1.0

SAY_EVERY_S = 10.0

logger = logging.getLogger(__name__)
_said_s = -SAY_EVERY_S


def connection_files() -> int:
    """How high the files of connections may be numbered; of few files, half are for storage."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most - min(STORAGE_FILES, most // 2)


def has_room(fd: int) -> bool:
    """Whether a connection may have this file."""
    room = connection_files()
    if fd < room:
        return True
    _say(room)
    return False


def admit(transport: asyncio.BaseTransport) -> bool:
    """Close it if there is no room for it."""
    sock = transport.get_extra_info("socket")
    if sock is None or has_room(sock.fileno()):
        return True
    cast(asyncio.Transport, transport).abort()
    return False


def _say(room: int) -> None:
    global _said_s
    if time.monotonic() >= _said_s + SAY_EVERY_S:
        _said_s = time.monotonic()
        logger.warning(
            "connections refused: too many are open. Raise the limit of open files (ulimit -n)",
            extra={"limit": room},
        )


class Listening:
    """Accepts connections of plain TCP, until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        link: Callable[[int, str, int], object],
    ) -> None:
        """``link`` takes over a file, and is told the peer's address and port."""
        self._loop = loop
        self._sock = sock
        self._link = link
        sock.setblocking(False)
        sock.listen(BACKLOG_CONNECTIONS)
        self._resume()

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _accept(self) -> None:
        listener = self._sock.fileno()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted = accept(listener)
            except OSError as error:
                self._pause(error)
                return
            if accepted is None:
                return
            fd, host, port = accepted
            if has_room(fd):
                self._link(fd, host, port)
            else:
                os.close(fd)

    def _pause(self, error: OSError) -> None:
        """Files or memory are used up: who waits is let in when there are some again."""
        logger.warning("connections can't be accepted", extra={"reason": str(error)})
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(ACCEPT_AGAIN_S, self._resume)


class Door(asyncio.Protocol):
    """What a new connection of other transports meets before its protocol."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if admit(transport):
            protocol = self._make()
            cast(asyncio.Transport, transport).set_protocol(protocol)
            protocol.connection_made(transport)


async def listen(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    make: Callable[[], asyncio.BaseProtocol],
) -> asyncio.Server:
    """Accept connections for protocols of asyncio. The backlog is said again, or that of the socket
    would become 100."""
    return await loop.create_server(lambda: Door(make), sock=sock, backlog=BACKLOG_CONNECTIONS)
