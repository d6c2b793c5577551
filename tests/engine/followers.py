"""A store that is fed the entries of another: a node in permanent recovery."""

from braidmq.engine.recovery import DeliveryNotes
from braidmq.engine.transactions.ledger import Ledger
from braidmq.model.ids import Lsn
from braidmq.storage import journal
from braidmq.storage.journal import Entry, Kind
from braidmq.storage.journal_entry import scan_entries
from braidmq.storage.replication import Group
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll


class Follower:
    """Does what its leader's disk has. Checkpoints of the leader have the digest of its state, and
    nothing here is done that an entry does not say."""

    def __init__(self, settings: StorageSettings) -> None:
        self.ledger = Ledger()
        self.store = Store.open(FaultyDisk(), settings, [DeliveryNotes(), self.ledger])
        self.store.state.checks_digest = True
        self.next_lsn = 1
        self.checked = 0
        """Checkpoints at which both agreed."""
        self._waiting: list[Entry] = []
        self._leader: journal.Journal | None = None

    # --- as the leader's journal sees it ---

    def shipped(self, group: Group) -> None:
        data = b"".join(group.pieces)
        found, end, following = scan_entries(data, 0, group.salt, group.first)
        assert (end, following) == (len(data), group.last + 1)
        for kind, _, lsn, _, meta_start, meta_end, stop in found:
            if kind != Kind.ROLL:
                payload = data[meta_start + (meta_end - meta_start + 7 & ~7) : stop]
                self._waiting.append(Entry(lsn, kind, data[meta_start:meta_end], payload))

    def durable(self, lsn: Lsn) -> None:
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            assert entry.lsn <= lsn
            self.apply(entry)
        assert self._leader is not None
        self._leader.confirm(lsn)

    # --- what it does ---

    def apply(self, entry: Entry) -> None:
        if entry.lsn < self.next_lsn:
            return
        assert entry.lsn == self.next_lsn, "no entry is left out"
        self.store.state.apply(entry)
        self.next_lsn += 1
        self.checked += entry.kind == Kind.CHECKPOINT

    def follow(self, leader: Store) -> None:
        """A leader that was just opened: what of its journal is not here yet, and all to come."""
        self._waiting.clear()
        leader.commit()
        disk = leader.disk
        assert isinstance(disk, FaultyDisk)
        copy = disk.crash(KeepAll())
        first = journal.journal_epochs(copy)[0]
        begins = journal.oldest_lsn(copy)
        if begins:
            journal.recover(copy, first_epoch=first, next_lsn=begins, apply=self.apply)
        assert self.next_lsn == leader.journal.next_lsn, (self.next_lsn, leader.journal.next_lsn)
        self._leader = leader.journal
        leader.journal.replication = self
