"""A data directory in the simulator: it keeps what was synced, and nothing else."""

from dataclasses import dataclass, field

from braidmq.cluster.log import LogView, TermStart
from braidmq.cluster.shard import DirectoryId, Term
from braidmq.model.ids import Lsn

Entry = tuple[int, int]
"""The term that it was written in, and a number that no other entry has; 0 begins the term."""


@dataclass
class SimulatedDisk:
    directory: DirectoryId
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    first: int = 1
    """Where the journal begins; a snapshot has what is below."""
    snapshot_committed: int = 0
    known_committed: int = 0
    """The highest that any process on it was told: for the checker, a process does not see it."""
    syncing_to: int | None = None
    uses: int = 0
    """Goes up when a sync that is under way counts no more."""
    stalled_until_ms: int = 0
    copying: bool = False

    def view(self) -> LogView:
        return LogView(
            first=Lsn(self.first),
            last=Lsn(self.synced),
            committed=Lsn(self.snapshot_committed),
            terms=self.begins(1, self.synced),
        )

    def begins(self, first: int, last: int) -> tuple[TermStart, ...]:
        entries = self.entries
        return tuple(
            TermStart(Term(entries[lsn - 1][0]), Lsn(lsn))
            for lsn in range(first, last + 1)
            if entries[lsn - 1][1] == 0
        )

    def lose_unsynced(self) -> None:
        del self.entries[self.synced :]
        self._begin_use()
        if self.copying:
            self.clear()

    def cut(self, lsn: int) -> None:
        del self.entries[lsn:]
        self.synced = min(self.synced, lsn)
        self._begin_use()

    def clear(self) -> None:
        self.entries.clear()
        self.synced = self.snapshot_committed = self.known_committed = 0
        self.first = 1
        self.copying = False
        self._begin_use()

    def install(self, entries: list[Entry]) -> None:
        """A snapshot: it is committed, all of it."""
        self.clear()
        self.entries = entries
        self.synced = self.snapshot_committed = self.known_committed = len(entries)
        self.first = len(entries) + 1

    def _begin_use(self) -> None:
        self.uses += 1
        self.syncing_to = None
