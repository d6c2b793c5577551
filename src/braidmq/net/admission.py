"""Whether one more connection may come in: the one place where connections are counted.

A connection is a file of the process, and so is all that storage writes to. Clients that take the
last one would make the next write fail, which storage does not forgive. Files are numbered from the
lowest that is free: the number of a new connection says how many there are.

Who has logged in counts in its namespace, whatever it speaks and whichever listener it came by.
"""

import asyncio
import logging
import resource
import time
from collections import Counter
from typing import cast

STORAGE_FILES = 256
"""Twice what a flush has open at once, for reading, snapshots and the rest."""

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


class Admission:
    """Connections that are logged in, by namespace."""

    def __init__(self) -> None:
        self._namespace_of: dict[object, str] = {}
        self._counts: Counter[str] = Counter()

    def enter(self, connection: object, namespace: str) -> None:
        """Whether it may have one more is asked before."""
        assert connection not in self._namespace_of, "a connection enters one namespace, once"
        self._namespace_of[connection] = namespace
        self._counts[namespace] += 1

    def leave(self, connection: object) -> None:
        """It is over, whether or not it had come in."""
        namespace = self._namespace_of.pop(connection, None)
        if namespace is not None:
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]

    def count(self, namespace: str) -> int:
        return self._counts[namespace]
