"""Who is connected, whatever the protocol: what gateways say of their connections.

A gateway keeps its connections in ``NodeLoop.sessions`` while they are open; whoever lists or
closes them needs to know no protocol.
"""

from typing import Protocol

import msgspec


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


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._last = 0

    def new_id(self, protocol: str) -> str:
        """For a connection that may become a session: its log begins before its login ends."""
        self._last += 1
        return f"{protocol}-{self._last}"

    def add(self, session_id: str, session: Session) -> None:
        self._sessions[session_id] = session

    def remove(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)
