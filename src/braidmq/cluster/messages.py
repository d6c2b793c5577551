"""What replicas say to one another. Their form on the wire is a codec's.

A link is opened by who follows, and belongs to one process and one term: HELLO is its first
message, WELCOME, COPY or REFUSED the answer. The first ACK says that what had to be cut is cut;
groups are sent from then on.
"""

from dataclasses import dataclass

from braidmq.cluster.log import TermStart
from braidmq.cluster.shard import DirectoryId, Incarnation, Term
from braidmq.model.ids import Lsn


@dataclass(frozen=True, slots=True)
class Hello:
    directory: DirectoryId
    incarnation: Incarnation
    term: Term
    """The newest that it has heard of."""
    last: Lsn
    terms: tuple[TermStart, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    term: Term
    cut: Lsn
    """Where the follower goes on: what it has above this is not the leader's."""
    committed: Lsn


@dataclass(frozen=True, slots=True)
class Copy:
    """The leader's journal begins later: a snapshot of everything up to ``lsn`` comes first."""

    term: Term
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Refused:
    term: Term
    """The newest that who refuses has heard of."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries ``first`` to ``last``; none, when ``last`` is before ``first``: a heartbeat."""

    term: Term
    first: Lsn
    last: Lsn
    committed: Lsn
    begins: tuple[TermStart, ...] = ()
    """Terms that begin among the entries, as who received them has read them there."""
    entries: object = None


@dataclass(frozen=True, slots=True)
class Ack:
    term: Term
    durable: Lsn


Message = Hello | Welcome | Copy | Refused | Group | Ack
