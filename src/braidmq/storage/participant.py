"""Who keeps state of its own in the journal and in snapshots of a store."""

from typing import Protocol

from braidmq.model.ids import PartitionId
from braidmq.storage.journal import Kind


class Participant(Protocol):
    """State that somebody above keeps, made durable through the store's journal and snapshots."""

    name: str
    kinds: frozenset[Kind]

    def restore(self, data: bytes) -> None:
        """Begin from what ``dump`` gave."""

    def replay(self, kind: Kind, meta: bytes) -> None:
        """Do again what was noted after that, with the code that did it the first time. Of RECORDS
        entries only those with a stamp come."""

    def forget_partition(self, partition: PartitionId) -> None:
        """It was deleted: told when that is journaled, and when it is replayed."""

    def dump(self) -> bytes: ...
