"""What every gateway keeps of its connections: who they are, what they carried, their upkeep."""

from typing import Generic, Protocol, TypeVar

from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.pauses import BEAT_S
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins


class Connection(Protocol):
    login_end: int
    """The timer of its token's end."""

    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...


C = TypeVar("C", bound=Connection)


class Gateway(Generic[C]):
    def __init__(self, node_loop: NodeLoop, accounts: Accounts, logins: Logins) -> None:
        self.node_loop = node_loop
        self.accounts = accounts
        self.logins = logins
        self.connections: set[C] = set()
        self.connections_opened = self.publishers_slowed = 0
        self._past_received_bytes = self._past_sent_bytes = 0
        self._beat = node_loop.loop.call_later(BEAT_S, self._beats)

    def beat(self, now: float) -> None:
        """Called about once a second, when all that peers have said in time is read."""
        raise NotImplementedError

    def _beats(self) -> None:
        if not self.node_loop.is_catching_up():
            self.beat(self.node_loop.loop.time())
        self._beat = self.node_loop.loop.call_later(BEAT_S, self._beats)

    def stop_beats(self) -> None:
        self._beat.cancel()

    def forget(self, connection: C) -> None:
        """A connection is over; what it carried still counts."""
        if connection in self.connections:
            self.node_loop.login_ends.cancel(connection.login_end)
            self.connections.discard(connection)
            self.node_loop.admission.leave(connection)
            self._past_received_bytes += connection.received_bytes
            self._past_sent_bytes += connection.sent_bytes

    def note_end(self, why: str) -> None:
        """A token's end was that of a connection."""
        if self.logins.tokens is not None:
            self.logins.tokens.ended[why] += 1

    # --- what metrics read ---

    @property
    def connection_count(self) -> int:
        return len(self.connections)

    @property
    def received_bytes(self) -> int:
        return self._past_received_bytes + sum(each.received_bytes for each in self.connections)

    @property
    def sent_bytes(self) -> int:
        return self._past_sent_bytes + sum(each.sent_bytes for each in self.connections)
