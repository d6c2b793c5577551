"""Who is connected, whatever the protocol: what gateways say of their connections.

A gateway keeps its connections in ``NodeLoop.sessions`` while they are open; whoever lists or
closes them needs to know no protocol.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Protocol, runtime_checkable

import msgspec

HISTORY_MAX = 1000
"""Connections that are remembered after their end."""

HISTORY_TEXT_MAX = 256
"""Characters of what a peer says of itself: it chooses how long that is."""


PEER_GONE = "the peer is gone"


class ChannelInfo(msgspec.Struct, frozen=True):
    """A part of a connection that can be closed by itself."""

    number: int
    consumers: int
    unacked: int
    prefetch: int
    confirms: bool


class SessionInfo(msgspec.Struct, frozen=True):
    id: str
    protocol: str
    user: str
    namespace: str
    peer: str
    connected_ms: int
    client: str
    channels: int
    blocked: bool
    listener: str = ""
    """The name of the one it came by."""


class PastConnection(msgspec.Struct, frozen=True):
    """A connection that was logged in and is over."""

    number: int
    """Counts up: the later ended, the higher."""
    id: str
    protocol: str
    user: str
    namespace: str
    peer: str
    client: str
    listener: str
    connected_ms: int
    ended_ms: int
    reason: str


class ClientInfo(msgspec.Struct, frozen=True):
    """Who consumes."""

    protocol: str
    user: str
    tag: str = ""
    """What its client calls the consumer: AMQP's consumer tag, MQTT's filter, a member."""
    connection: str = ""
    peer: str = ""
    client: str = ""


@runtime_checkable
class OfClient(Protocol):
    """A receiver of deliveries that can say whose it is."""

    def client_info(self) -> ClientInfo: ...


class Session(Protocol):
    def describe(self) -> SessionInfo: ...

    def describe_channels(self) -> list[ChannelInfo]: ...

    def end(self, reason: str) -> None:
        """Tell the peer, then close."""

    def end_channel(self, number: int, reason: str) -> bool:
        """False when there is no such channel."""

    @property
    def is_traced(self) -> bool: ...

    def trace(self, wanted: bool) -> None:
        """Begin or stop to log everything that is said."""


def client_of(session: Session, tag: str = "") -> ClientInfo:
    """A consumer's client, where it has a connection."""
    was = session.describe()
    return ClientInfo(was.protocol, was.user, tag, was.id, was.peer, was.client)


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._last = 0
        self._past: deque[PastConnection] = deque(maxlen=HISTORY_MAX)
        self._ended = 0

    def new_id(self, protocol: str) -> str:
        """For a connection that may become a session: its log begins before its login ends."""
        self._last += 1
        return f"{protocol}-{self._last}"

    def add(self, session_id: str, session: Session) -> None:
        self._sessions[session_id] = session

    def remove(self, session_id: str, reason: str, now_ms: int) -> None:
        """It is over; it stands in the history from now on. What never was a session doesn't."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        was = session.describe()
        self._ended += 1
        self._past.append(
            PastConnection(
                self._ended,
                was.id,
                was.protocol,
                was.user,
                was.namespace,
                was.peer,
                was.client[:HISTORY_TEXT_MAX],
                was.listener,
                was.connected_ms,
                now_ms,
                (reason or PEER_GONE)[:HISTORY_TEXT_MAX],
            )
        )

    def history(self, before: int | None = None) -> Iterator[PastConnection]:
        """Those that are over, the last first; only those before a number."""
        newer = 0 if before is None else max(self._ended - before + 1, 0)
        return islice(reversed(self._past), newer, None)

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)
