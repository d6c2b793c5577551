"""Producers, transactions and applications, as the entries of the journal make them.

What happens is an entry, and an entry is applied in one way: when it is written and when it is
replayed. So whatever the node knew before it stopped, it knows again.
"""

from collections.abc import Callable, Container, Iterator
from enum import StrEnum

from braidmq.engine.transactions import entries
from braidmq.engine.transactions.entries import (
    Acknowledged,
    Begun,
    BranchAdded,
    Committing,
    Completed,
    NamespaceForgotten,
    OffsetCommitted,
    Outcome,
    Prepared,
    ProducerForgotten,
    ProducerSet,
    Resized,
    Stamp,
    StampKind,
    TransactionEntry,
)
from braidmq.engine.transactions.sequences import Layout, Layouts, Mark, Sequences, Written
from braidmq.model.ids import PartitionId
from braidmq.storage.entries import decode_records_meta
from braidmq.storage.journal import Kind

OUTCOME_MS = 60 * 60 * 1000
"""For this long a transaction's name tells how it ended."""

OUTCOMES_MAX = 65_536


class TransactionPhase(StrEnum):
    EMPTY = "empty"
    """Begun; nothing was published or acknowledged in it."""
    ONGOING = "ongoing"
    COMMITTING = "committing"
    """What it has staged is being copied to its topics."""
    PREPARED = "prepare"
    """Decided, and being carried out."""
    COMPLETE = "complete"


class Producer(Sequences):
    """Somebody whose messages are numbered. A new epoch shuts out whoever has an older one."""

    __slots__ = ("epoch", "id", "last_seen_ms", "name", "namespace", "owner")

    def __init__(self, made: ProducerSet) -> None:
        super().__init__()
        self.id = made.id
        self.epoch = made.epoch
        self.namespace = made.namespace
        self.name = made.name
        self.owner = made.owner
        self.last_seen_ms = 0


class Branch(Sequences):
    """One of those who publish in a transaction, each with numbers of its own."""

    __slots__ = ("claims", "index", "name", "transaction")

    def __init__(self, transaction: "Transaction", index: int, name: str) -> None:
        super().__init__()
        self.transaction = transaction
        self.index = index
        self.name = name
        self.claims: dict[PartitionId, list[tuple[int, int]]] = {}
        """Where its records are, until their fate is written beside them."""

    def claim(self, partition: PartitionId, start: int, stop: int) -> None:
        ranges = self.claims.setdefault(partition, [])
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))


class Transaction:
    __slots__ = (
        "acknowledged",
        "begun",
        "branches",
        "branches_by_index",
        "committing",
        "completed",
        "deadline_ms",
        "guards",
        "holders",
        "last_seen_ms",
        "marked",
        "offsets",
        "prepared",
        "timer",
    )

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.branches: dict[str, Branch] = {}
        self.branches_by_index: dict[int, Branch] = {}
        self.acknowledged: list[Acknowledged] = []
        self.offsets: dict[tuple[int, int], int] = {}
        """Of a subscription in a partition: everything below is settled with the commit."""
        self.guards: dict[tuple[int, int], Callable[[], object]] = {}
        """Of these, who is asked before it: not kept over a restart, nor are a group's members."""
        self.committing: Committing | None = None
        self.prepared: Prepared | None = None
        self.marked = False
        """Whether its fate stands beside its records already."""
        self.completed = False
        self.last_seen_ms = begun.started_ms
        self.timer = 0
        self.holders: dict[int, int] = {}
        """By subscription, the consumer that stands for this transaction."""
        self.deadline_ms = begun.started_ms + begun.timeout_ms
        self.add_branch(0, "")

    def add_branch(self, index: int, name: str) -> Branch:
        branch = self.branches[name] = self.branches_by_index[index] = Branch(self, index, name)
        return branch

    @property
    def number(self) -> int:
        return self.begun.number

    @property
    def outlives_its_owner(self) -> bool:
        """Whether somebody can go on with it after a restart. One without a name is known only to
        the channel that began it, which is gone then."""
        return bool(self.begun.name)

    @property
    def phase(self) -> TransactionPhase:
        if self.completed:
            return TransactionPhase.COMPLETE
        if self.prepared is not None:
            return TransactionPhase.PREPARED
        if self.committing is not None:
            return TransactionPhase.COMMITTING
        touched = any(branch.claims for branch in self.branches.values())
        if touched or self.acknowledged or self.offsets:
            return TransactionPhase.ONGOING
        return TransactionPhase.EMPTY

    @property
    def partitions(self) -> dict[PartitionId, None]:
        """Those with records of it, in the order it came to them."""
        return {each: None for branch in self.branches.values() for each in branch.claims}

    @property
    def records(self) -> int:
        return sum(
            stop - start
            for branch in self.branches.values()
            for ranges in branch.claims.values()
            for start, stop in ranges
        )

    def losers(self) -> Iterator[Branch]:
        """Branches whose records nobody will see, once it is decided."""
        assert self.prepared is not None
        for branch in self.branches.values():
            if not self.prepared.commit or branch.index not in self.prepared.winners:
                yield branch


class Ledger:
    """The store's participant for stamped records and TRANSACTION entries."""

    def __init__(self) -> None:
        self.name = "transactions"
        self.kinds = frozenset({Kind.TRANSACTION, Kind.RECORDS})
        self.producers: dict[int, Producer] = {}
        self.producers_by_name: dict[tuple[str, str], Producer] = {}
        self.transactions: dict[int, Transaction] = {}
        """Those that are not complete."""
        self.by_name: dict[tuple[str, str], Transaction] = {}
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.applications: dict[tuple[str, str], tuple[int, int]] = {}
        self.application_owners: dict[tuple[str, str], str] = {}
        """Epoch and number of what each application committed last."""
        self.application_instances: dict[tuple[str, str], str] = {}
        """Who committed that, where it said so."""
        self.layouts: dict[int, Layouts] = {}
        """By topic, of those whose partitions became more or fewer."""
        self._layouts_of: dict[PartitionId, Layouts] = {}
        self.next_producer = 1
        self.next_transaction = 1

    def generation_of(self, partition: PartitionId) -> int:
        found = self._layouts_of.get(partition)
        return found.generation if found is not None else 0

    def remembers(self, partition: PartitionId) -> bool:
        """Whether what somebody had in a partition that is gone still counts."""
        return any(each.remembers(partition) for each in self.layouts.values())

    def keep_layouts(self, topics: Container[int]) -> None:
        """Of those that are not durable nothing is left after a restart."""
        self.layouts = {topic: each for topic, each in self.layouts.items() if topic in topics}

    def forget_layouts(self, topic: int, *, deleted: bool) -> None:
        """Nothing is sent again to one that is deleted."""
        gone = self.layouts.pop(topic, None) if deleted else None
        if gone is not None:
            for partition in [each for each, of in self._layouts_of.items() if of is gone]:
                del self._layouts_of[partition]

    # --- entries ---

    def replay(self, kind: Kind, meta: bytes) -> None:
        if kind is Kind.TRANSACTION:
            self.apply(entries.decode_entry(meta))
            return
        targets, _, stamp = decode_records_meta(meta)
        self.stamped(
            [(PartitionId(partition), base) for partition, base in targets],
            entries.decode_stamp(stamp),
        )

    def apply(self, entry: TransactionEntry) -> None:
        match entry:
            case Begun():
                self._begin(entry)
            case BranchAdded(number, index, name):
                if (transaction := self.transactions.get(number)) is not None:
                    transaction.add_branch(index, name)
            case Acknowledged():
                if (transaction := self.transactions.get(entry.transaction)) is not None:
                    transaction.acknowledged.append(entry)
            case OffsetCommitted(number, subscription, partition, offset):
                if (transaction := self.transactions.get(number)) is not None:
                    transaction.offsets[subscription, partition] = offset
            case Committing():
                if (transaction := self.transactions.get(entry.transaction)) is not None:
                    transaction.committing = entry
            case Prepared():
                if (transaction := self.transactions.get(entry.transaction)) is not None:
                    transaction.prepared = entry
                    self._count(transaction)
            case Completed():
                self._complete(entry)
            case ProducerSet():
                self._set_producer(entry)
            case ProducerForgotten(number):
                self._forget_producer(number)
            case NamespaceForgotten(namespace):
                self._forget_namespace(namespace)
            case Resized():
                self._resize(entry)

    def stamped(self, targets: list[tuple[PartitionId, int]], stamp: Stamp) -> None:
        """Records with a stamp were appended: partitions and first offsets."""
        if stamp.kind in (StampKind.COMMIT_MARKER, StampKind.ABORT_MARKER):
            if (transaction := self.transactions.get(stamp.transaction)) is not None:
                transaction.marked = True
                for branch in transaction.branches.values():
                    branch.claims.clear()
            return
        who: Sequences | None = self.producers.get(stamp.producer)
        if stamp.kind == StampKind.IN_TRANSACTION:
            transaction = self.transactions.get(stamp.transaction)
            if transaction is None:
                return
            branch = transaction.branches_by_index[stamp.branch]
            for partition, base in targets:
                branch.claim(partition, base, base + stamp.records)
            who = branch
        elif isinstance(who, Producer) and who.epoch != stamp.epoch:
            return
        if who is not None and stamp.last >= 0:
            for partition, base in targets:
                written = Written(stamp.sequence, base, stamp.records)
                who.note(partition, stamp.last, written, self.generation_of(partition))

    def _resize(self, entry: Resized) -> None:
        found = self.layouts.get(entry.topic)
        if found is None:
            found = self.layouts[entry.topic] = Layouts()
        found.follow(
            [PartitionId(each) for each in entry.before],
            entry.by_key,
            [PartitionId(each) for each in entry.after],
        )
        for partition in found.current:
            self._layouts_of[partition] = found

    def _begin(self, begun: Begun) -> None:
        transaction = Transaction(begun)
        self.transactions[begun.number] = transaction
        self.next_transaction = max(self.next_transaction, begun.number + 1)
        if begun.name:
            self.by_name[begun.namespace, begun.name] = transaction
            self.outcomes.pop((begun.namespace, begun.name), None)

    def _count(self, transaction: Transaction) -> None:
        """What an application committed is never committed again."""
        application, decided = transaction.begun.application, transaction.prepared
        if application is not None and decided is not None and decided.commit:
            key = (transaction.begun.namespace, application.name)
            self.applications[key] = (application.epoch, application.sequence)
            self.application_owners[key] = transaction.begun.owner
            self.application_instances[key] = application.instance

    def _complete(self, entry: Completed) -> None:
        transaction = self.transactions.pop(entry.transaction, None)
        if transaction is None:
            return
        transaction.completed = True
        begun, decided = transaction.begun, transaction.prepared
        if begun.name and decided is not None:
            key = (begun.namespace, begun.name)
            if self.by_name.get(key) is transaction:
                del self.by_name[key]
            self.outcomes[key] = Outcome(
                *key, begun.owner, decided.commit, decided.reason, entry.ended_ms, begun.number
            )
            self._forget_outcomes(entry.ended_ms)

    def _forget_outcomes(self, now_ms: int) -> None:
        """Oldest first: they are kept in the order in which they came."""
        while self.outcomes:
            oldest = next(iter(self.outcomes))
            old = now_ms - self.outcomes[oldest].ended_ms >= OUTCOME_MS
            if not old and len(self.outcomes) <= OUTCOMES_MAX:
                return
            del self.outcomes[oldest]

    def _set_producer(self, made: ProducerSet) -> None:
        producer = self.producers[made.id] = Producer(made)
        self.next_producer = max(self.next_producer, made.id + 1)
        if made.name:
            self.producers_by_name[made.namespace, made.name] = producer

    def _forget_producer(self, number: int) -> None:
        producer = self.producers.pop(number, None)
        if producer is not None and producer.name:
            self.producers_by_name.pop((producer.namespace, producer.name), None)

    def _forget_namespace(self, namespace: str) -> None:
        for producer in list(self.producers.values()):
            if producer.namespace == namespace:
                self._forget_producer(producer.id)
        for outcome in [key for key in self.outcomes if key[0] == namespace]:
            del self.outcomes[outcome]
        for application in [key for key in self.applications if key[0] == namespace]:
            del self.applications[application]
            self.application_owners.pop(application, None)
            self.application_instances.pop(application, None)

    def forget_partition(self, partition: PartitionId) -> None:
        """It is gone, and what open transactions had in it. Producers may be many, and forget it in
        their time: its number is nobody else's."""
        layouts = self._layouts_of.pop(partition, None)
        if layouts is not None and partition in layouts.current:
            layouts.current.remove(partition)
            if not layouts.current:
                self.layouts = {key: each for key, each in self.layouts.items() if each.current}
        is_remembered = self.remembers(partition)
        for transaction in self.transactions.values():
            for branch in transaction.branches.values():
                if not is_remembered:
                    branch.marks.pop(partition, None)
                branch.claims.pop(partition, None)

    # --- the snapshot ---

    def dump(self) -> bytes:
        return entries.encode_state(
            entries.LedgerState(
                self.next_producer,
                self.next_transaction,
                [_dump_producer(each) for each in self.producers.values()],
                [_dump_transaction(each) for each in self.transactions.values()],
                list(self.outcomes.values()),
                [
                    entries.ApplicationState(
                        *key,
                        *last,
                        self.application_owners.get(key, ""),
                        self.application_instances.get(key, ""),
                    )
                    for key, last in self.applications.items()
                ],
                [_dump_layouts(*each) for each in self.layouts.items()],
            )
        )

    def restore(self, data: bytes) -> None:
        state = entries.decode_state(data)
        self.next_producer = state.next_producer
        self.next_transaction = state.next_transaction
        for producer in state.producers:
            self._set_producer(
                ProducerSet(
                    producer.id,
                    producer.epoch,
                    producer.namespace,
                    producer.name,
                    producer.owner,
                )
            )
            _load_marks(self.producers[producer.id], producer.marks)
        for each in state.transactions:
            self._restore_transaction(each)
        self.outcomes = {(each.namespace, each.name): each for each in state.outcomes}
        for application in state.applications:
            key = (application.namespace, application.name)
            self.applications[key] = (application.epoch, application.sequence)
            self.application_owners[key] = application.owner
            self.application_instances[key] = application.instance
        for layouts in state.layouts:
            self._restore_layouts(layouts)

    def _restore_layouts(self, state: entries.LayoutsState) -> None:
        found = self.layouts[state.topic] = Layouts()
        found.generation = state.generation
        found.current = [PartitionId(each) for each in state.current]
        found.past = [
            Layout(each.generation, [PartitionId(at) for at in each.partitions], each.by_key)
            for each in state.past
        ]
        for partition in found.current:
            self._layouts_of[partition] = found

    def _restore_transaction(self, state: entries.TransactionState) -> None:
        self._begin(state.begun)
        transaction = self.transactions[state.begun.number]
        for each in state.branches:
            branch = transaction.add_branch(each.index, each.name)
            branch.claims = {
                PartitionId(number): list(ranges) for number, ranges in each.claims.items()
            }
            _load_marks(branch, each.marks)
        transaction.acknowledged = list(state.acknowledged)
        for committed in state.offsets:
            key = (committed.subscription, committed.partition)
            transaction.offsets[key] = committed.offset
        transaction.committing = state.committing
        transaction.prepared = state.prepared
        transaction.marked = state.marked


def _dump_producer(producer: Producer) -> entries.ProducerState:
    return entries.ProducerState(
        producer.id,
        producer.epoch,
        producer.namespace,
        producer.name,
        producer.owner,
        _dump_marks(producer),
    )


def _dump_transaction(transaction: Transaction) -> entries.TransactionState:
    return entries.TransactionState(
        transaction.begun,
        [
            entries.BranchState(each.index, each.name, _dump_marks(each), _plain(each.claims))
            for each in transaction.branches.values()
        ],
        transaction.acknowledged,
        [
            OffsetCommitted(transaction.number, subscription, partition, offset)
            for (subscription, partition), offset in transaction.offsets.items()
        ],
        transaction.prepared,
        transaction.marked,
        transaction.committing,
    )


def _plain(claims: dict[PartitionId, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    return {partition: list(ranges) for partition, ranges in claims.items()}


def _dump_layouts(topic: int, layouts: Layouts) -> entries.LayoutsState:
    past = [entries.LayoutState(each[0], list(each[1]), each[2]) for each in layouts.past]
    return entries.LayoutsState(topic, layouts.generation, list(layouts.current), past)


def _dump_marks(sequences: Sequences) -> list[entries.MarkState]:
    return [
        entries.MarkState(
            partition,
            mark.highest,
            [(*each,) for each in mark.recent],
            mark.generation,
            mark.older,
        )
        for partition, mark in sequences.marks.items()
    ]


def _load_marks(sequences: Sequences, marks: list[entries.MarkState]) -> None:
    for state in marks:
        mark = Mark(state.highest, state.generation)
        sequences.marks[PartitionId(state.partition)] = mark
        mark.older = list(state.older)
        mark.recent.extend(Written(*each) for each in state.recent)
