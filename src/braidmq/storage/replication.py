"""Who else is to have what a journal writes. Storage says when; who does it is above."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from braidmq.model.ids import Lsn
from braidmq.record.buffer import Buffer


class Group(NamedTuple):
    """Entries that are written together to one file, as they stand there; marks may be among them.
    ``pieces`` are views of what is being written: who keeps them keeps it in memory."""

    salt: int
    first: Lsn
    last: Lsn
    pieces: Sequence[Buffer]


class Replication(Protocol):
    """Told in the thread that appends."""

    def shipped(self, group: Group) -> None:
        """At the beginning of a commit, before anything of it is written here."""

    def durable(self, lsn: Lsn) -> None:
        """At its end: everything up to this entry is on this disk."""
