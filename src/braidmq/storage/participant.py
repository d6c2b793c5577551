"""Who keeps state of its own in the journal and in snapshots of a store."""

from typing import Protocol

from braidmq.storage.journal import Kind


class Participant(Protocol):
    """State that somebody above keeps, made durable through the store's journal and snapshots."""

    name: str
    kinds: frozenset[Kind]

    def restore(self, data: bytes) -> None:
        """Begin from what ``dump`` gave."""

    def replay(self, kind: Kind, meta: bytes) -> None:
        """Do again what was noted after that. Of RECORDS entries only those with a stamp come."""

    def dump(self) -> bytes: ...
