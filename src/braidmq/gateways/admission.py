"""The door of a node: how many may wait in front of it, and whether one more may come in.

A connection is a file of the process, and so is all that storage writes to. Clients that take the
last one would make the next write fail, which storage does not forgive. Files are numbered from the
lowest that is free: the number of a new connection says how many there are.
"""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import cast

BACKLOG_CONNECTIONS = 4096
"""Connections the kernel holds for us between two turns of the loop; it has limits of its own."""

STORAGE_FILES = 256
"""Twice what a flush has open at once, for reading, snapshots and the rest."""

SAY_EVERY_S = 10.0

logger = logging.getLogger(__name__)
_said_s = -SAY_EVERY_S


def connection_files() -> int:
    """How high the files of connections may be numbered; of few files, half are for storage."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most - min(STORAGE_FILES, most // 2)


def admit(transport: asyncio.BaseTransport) -> bool:
    """Close it if there is no room for it."""
    sock = transport.get_extra_info("socket")
    room = connection_files()
    if sock is None or sock.fileno() < room:
        return True
    cast(asyncio.Transport, transport).abort()
    _say(room)
    return False


def _say(room: int) -> None:
    global _said_s
    if time.monotonic() >= _said_s + SAY_EVERY_S:
        _said_s = time.monotonic()
        logger.warning(
            "connections refused: too many are open. Raise the limit of open files (ulimit -n)",
            extra={"limit": room},
        )


class Door(asyncio.Protocol):
    """What a new connection meets before its protocol."""

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
    """Accept connections. The backlog is said again, or that of the socket would become 100."""
    return await loop.create_server(lambda: Door(make), sock=sock, backlog=BACKLOG_CONNECTIONS)
