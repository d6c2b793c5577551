"""What the core wants done. The node performs these, in order, and reports what came of them."""

from dataclasses import dataclass

from braidmq.cluster.messages import Group, Hello, Message
from braidmq.cluster.shard import DirectoryId, Incarnation, Revision, ShardState, Term
from braidmq.model.ids import Lsn


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link with this as its first message; the one that there was is closed."""

    peer: DirectoryId
    hello: Hello


@dataclass(frozen=True, slots=True)
class Disconnect:
    peer: DirectoryId
    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    peer: DirectoryId
    message: Message


@dataclass(frozen=True, slots=True)
class Ship:
    """Send these entries of our log, as groups of this term."""

    peer: DirectoryId
    term: Term
    first: Lsn
    last: Lsn
    committed: Lsn


@dataclass(frozen=True, slots=True)
class Append:
    """Write the leader's entries to the journal; ``on_durable`` tells when they are on disk."""

    group: Group


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the journal behind ``lsn`` and sync it; then ``on_cut``. A sync that was under way is
    waited for first, and not reported: what it wrote is gone."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """Take the leader's snapshot in place of everything here; then ``on_copied``."""

    peer: DirectoryId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Guard:
    """Whether this process is registered has to be so when the swap is made."""

    directory: DirectoryId
    incarnation: Incarnation
    registered: bool


@dataclass(frozen=True, slots=True)
class Cas:
    """Put ``state`` where ``revision`` is the newest, and report what the key holds then. No answer
    is none: the core asks again, and the swap may still be made."""

    revision: Revision
    state: ShardState
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Revoke:
    """End this lease: its process is gone, and nobody has to wait until it ends by itself."""

    lease: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything up to ``lsn`` is confirmed by a leader, applied by a follower."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Lead:
    """Append the entry TERM at ``lsn``, apply everything before it and begin to serve."""

    term: Term
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hold publishers back, or no longer."""

    on: bool


@dataclass(frozen=True, slots=True)
class Deposed:
    """Drop all clients and begin again as a follower, in a new process."""

    term: Term


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop, and tell an operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class TransferRefused:
    target: DirectoryId
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """This process leads nothing, and the shard has enough others: it may stop."""


Effect = (
    Connect
    | Disconnect
    | Send
    | Ship
    | Append
    | Truncate
    | CopyFrom
    | Cas
    | Revoke
    | Commit
    | Lead
    | Quiet
    | Deposed
    | Halt
    | TransferRefused
    | Drained
)
