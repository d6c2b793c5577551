"""Transactions: begin, publish, acknowledge, then all of it or nothing.

A transaction belongs to its name, not to a connection: whoever may, publishes in it, and somebody
else commits it. Several may publish at once, each in a branch of its own, and the commit says which
of them count. Ending it twice in the same way is answered the same.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from braidmq.engine.appending import Appending
from braidmq.engine.groups import StaleGeneration
from braidmq.engine.hooks import Hooks
from braidmq.engine.offsets import Offsets, require_within
from braidmq.engine.settlement import Settlement, forget_keys
from braidmq.engine.settling import Settling
from braidmq.engine.state import CANCELLED, STAGING, EngineState, TimerKind
from braidmq.engine.states import Event
from braidmq.engine.timers import Timers
from braidmq.engine.topics import (
    Consumer,
    Credit,
    PartitionView,
    Subscription,
    Topic,
    TopicPartition,
)
from braidmq.engine.transactions.applications import (
    instance_of,
    require_instance,
    require_next,
)
from braidmq.engine.transactions.endings import (
    ASKED,
    FENCED,
    OWNER_GONE,
    SILENT,
    TIMED_OUT,
    Claimed,
    log_end,
    lost,
    marker,
    over,
    require_number,
)
from braidmq.engine.transactions.entries import (
    Acknowledged,
    Application,
    Begun,
    BranchAdded,
    Completed,
    NamespaceForgotten,
    OffsetCommitted,
    Outcome,
    Prepared,
    ProducerForgotten,
    ProducerSet,
    Stamp,
    StampKind,
    TransactionEntry,
    encode_entry,
)
from braidmq.engine.transactions.errors import (
    NotInFlight,
    NotYourTransaction,
    ProducerFenced,
    TooManyBranches,
    TransactionCommitted,
    TransactionCommitting,
    UnknownBranch,
    UnknownProducer,
    UnknownTransaction,
)
from braidmq.engine.transactions.ledger import Branch, Ledger, Producer, Transaction
from braidmq.engine.transactions.stability import Stability
from braidmq.model.errors import BadRequest
from braidmq.model.ids import Lsn, SubscriptionId
from braidmq.storage.entries import Settled
from braidmq.storage.journal import Kind

TIMEOUT_MS = 60_000
SESSION_MS = 30_000
"""Catalogue row I2: how long a transaction may take, and how long its owner may be silent."""

DURATION_MS_MAX = 24 * 60 * 60 * 1000
"""Either of them, whatever somebody asks for: readers wait that long for who is gone."""

BRANCHES_MAX = 10_000

PRODUCER_IDLE_MS = 7 * 24 * 60 * 60 * 1000
EPOCH_MAX = 0x7FFF

COPIES = "\0copies"
"""The branch of what was staged, once it is in its topics. No header can name it."""


InFlight = tuple[Consumer, PartitionView, int, int]
"""Messages at a consumer: a view, and offsets from the first to before the last."""


OffsetClaim = tuple[PartitionView, int, Callable[[], object]]
"""Everything below an offset of a view; and what raises when its member may not settle that."""


class Held(NamedTuple):
    """A partition with records of an open transaction."""

    topic: Topic
    partition: int
    first_offset: int
    behind: int
    """Records that readers don't get because of it; 0 when an older one is in the way first."""


class Holder(Consumer):
    """Stands for a transaction at a subscription: it is served nothing."""

    __slots__ = ("transaction",)

    def __init__(
        self, consumer_id: int, subscription: Subscription, transaction: Transaction
    ) -> None:
        super().__init__(consumer_id, subscription, (Credit(),), passive=True)
        self.transaction = transaction


class Coordinator:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        settlement: Settlement,
        appending: Appending,
        stability: Stability,
        settling: Settling,
        offsets: Offsets,
        ledger: Ledger,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._appending = appending
        self._stability = stability
        self._settling = settling
        self._offsets = offsets
        self._ledger = ledger
        self._partitions_gone = False
        self.committed = 0
        self.aborted = 0
        self.over: list[Callable[[Transaction], None]] = []
        """For who keeps something of transactions: this one has ended."""
        timers.register(TimerKind.TRANSACTION, self._expire)
        timers.register(TimerKind.SWEEP, self._sweep)
        hooks.topic_deleted.append(self._forget_topic)
        hooks.partitions_changed.append(lambda topic, _: self._forget_topic(topic))
        hooks.namespace_deleted.append(self._forget_namespace)

    def note(self, entry: TransactionEntry) -> Lsn:
        lsn = self._state.store.note(Kind.TRANSACTION, encode_entry(entry))
        self._ledger.apply(entry)
        return lsn

    # --- producers ---

    def open_producer(
        self, namespace: str, name: str = "", *, owner: str = "", now_ms: int
    ) -> tuple[Producer, Lsn]:
        """A producer to number messages with. One that has a name has a new epoch each time, and
        whatever an earlier instance left undecided is aborted."""
        known = self._ledger.producers_by_name.get((namespace, name)) if name else None
        number, epoch = self._ledger.next_producer, 0
        if known is not None:
            self._require_producers_owner(owner, known)
            for transaction in list(self._ledger.transactions.values()):
                if transaction.begun.producer == known.id:
                    self.abort(transaction, now_ms=now_ms, reason=FENCED)
            if known.epoch < EPOCH_MAX:
                number, epoch = known.id, known.epoch + 1
            else:
                # It goes on with another number, and whoever has the last epoch may write no more.
                self.note(ProducerForgotten(known.id))
        lsn = self.note(ProducerSet(number, epoch, namespace, name, owner))
        producer = self._ledger.producers[number]
        producer.last_seen_ms = now_ms
        return producer, lsn

    def producer(
        self, namespace: str, number: int, epoch: int, *, owner: str = "", now_ms: int
    ) -> Producer:
        """Raises UnknownProducer, ProducerFenced or NotYourTransaction."""
        producer = self._ledger.producers.get(number)
        if producer is None or producer.namespace != namespace:
            raise UnknownProducer(f"there is no producer {number} in namespace {namespace!r}")
        self._require_producers_owner(owner, producer)
        if epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {number} is at epoch {producer.epoch}: epoch {epoch} can no longer write"
            )
        if epoch > producer.epoch:
            raise UnknownProducer(f"producer {number} has not reached epoch {epoch}")
        producer.last_seen_ms = now_ms
        return producer

    def _require_producers_owner(self, owner: str, producer: Producer) -> None:
        """Numbers that somebody else used up would make its owner's messages duplicates."""
        if owner != producer.owner:
            raise NotYourTransaction(
                f"producer {producer.name or producer.id!r} belongs to another user"
            )

    @property
    def producer_count(self) -> int:
        return len(self._ledger.producers)

    def close_producer(self, producer: Producer) -> None:
        """Whoever had it says that it is done with. One with a name keeps its epoch."""
        if not producer.name and self._ledger.producers.get(producer.id) is producer:
            self.note(ProducerForgotten(producer.id))

    def _sweep(self, _owner: int, _a: int, _b: int, now_ms: int) -> None:
        """Producers that nobody has used for long are forgotten, and what they all had in
        partitions that are no more."""
        for producer in list(self._ledger.producers.values()):
            if now_ms - producer.last_seen_ms >= PRODUCER_IDLE_MS:
                self.note(ProducerForgotten(producer.id))
        if self._partitions_gone:
            self._partitions_gone = False
            self._forget_gone_partitions()

    def _forget_gone_partitions(self) -> None:
        for producer in self._ledger.producers.values():
            for number in producer.marks.keys() - self._state.partitions.keys():
                if not self._ledger.remembers(number):
                    del producer.marks[number]

    # --- beginning and finding ---

    def begin(
        self,
        namespace: str,
        name: str = "",
        *,
        now_ms: int,
        owner: str = "",
        producer: Producer | None = None,
        application: Application | None = None,
        timeout_ms: int = TIMEOUT_MS,
        session_ms: int = SESSION_MS,
        staged: bool = False,
    ) -> tuple[Transaction, Lsn | None]:
        """The open transaction of that name, begun if there is none.

        Raises TransactionCommitted for one that is over and went well.
        """
        if max(timeout_ms, session_ms) > DURATION_MS_MAX:
            raise BadRequest(f"a transaction can take at most {DURATION_MS_MAX} ms")
        require_instance(self._ledger, namespace, application)
        ledger, key = self._ledger, (namespace, name)
        if name and key in ledger.by_name:
            transaction = ledger.by_name[key]
            self._require_owner(owner, transaction.begun.owner, name)
            self._require_not_committing(transaction)
            if instance_of(transaction.begun.application) != instance_of(application):
                # Another run of the program: it does not go on with this one's.
                self.abort(transaction, now_ms=now_ms, reason=FENCED)
            else:
                transaction.last_seen_ms = now_ms
                return transaction, None
        outcome = ledger.outcomes.get(key) if name else None
        if outcome is not None and outcome.committed:
            self._require_owner(owner, outcome.owner, name)
            raise TransactionCommitted(f"transaction {name!r} is committed already")
        require_next(self._ledger, namespace, application, owner)
        self._state.quotas.require(namespace, "max_transactions")
        if producer is not None:
            self._abort_unfinished(producer, now_ms)
        number = ledger.next_transaction
        lsn = self.note(
            Begun(
                number,
                namespace,
                name,
                owner,
                producer.id if producer is not None else 0,
                application,
                now_ms,
                timeout_ms,
                session_ms,
                staged,
            )
        )
        transaction = ledger.transactions[number]
        self._arm(transaction)
        return transaction, lsn

    def open_count(self, namespace: str) -> int:
        """Transactions that are begun and not over."""
        every = self._ledger.transactions.values()
        return sum(each.begun.namespace == namespace for each in every)

    def _abort_unfinished(self, producer: Producer, now_ms: int) -> None:
        """A producer has one transaction at a time: it has given up the one before."""
        for each in list(self._ledger.transactions.values()):
            if each.begun.producer == producer.id:
                self.abort(each, now_ms=now_ms)

    def last_committed(self, namespace: str, application: str) -> tuple[int, int] | None:
        """Epoch and number of the last transaction an application has committed."""
        return self._ledger.applications.get((namespace, application))

    def application_owner(self, namespace: str, application: str) -> str | None:
        """Whose it is; None for what has committed nothing, or did before owners were kept."""
        return self._ledger.application_owners.get((namespace, application)) or None

    def find(
        self, namespace: str, name: str, *, now_ms: int, owner: str = "", number: int = 0
    ) -> Transaction:
        """An open transaction by name, for somebody who goes on with it. Raises how it ended.

        A name may be begun again after an abort. Who says the ``number`` of the one it was in does
        not get into another: half of its work would be that one's.
        """
        transaction = self._ledger.by_name.get((namespace, name))
        if transaction is None:
            outcome = self.outcome(namespace, name, owner)
            require_number(name, number, outcome.number)
            raise over(name, outcome.committed, outcome.reason)
        self._require_owner(owner, transaction.begun.owner, name)
        require_number(name, number, transaction.number)
        transaction.last_seen_ms = now_ms
        return transaction

    def outcome(self, namespace: str, name: str, owner: str = "") -> Outcome:
        """How a transaction ended. Raises UnknownTransaction."""
        outcome = self._ledger.outcomes.get((namespace, name))
        if outcome is None:
            raise UnknownTransaction(f"there is no transaction {name!r}")
        self._require_owner(owner, outcome.owner, name)
        return outcome

    def require_number(self, namespace: str, name: str, number: int) -> None:
        """Raises UnknownTransaction where the last of a name is another than somebody was in."""
        transaction = self._ledger.by_name.get((namespace, name))
        outcome = self._ledger.outcomes.get((namespace, name))
        if transaction is not None:
            require_number(name, number, transaction.number)
        elif outcome is not None:
            require_number(name, number, outcome.number)

    def owner_of(self, namespace: str, name: str) -> str:
        """Whose it is, or was: for those who may do what only an owner may."""
        transaction = self._ledger.by_name.get((namespace, name))
        if transaction is not None:
            return transaction.begun.owner
        outcome = self._ledger.outcomes.get((namespace, name))
        if outcome is None:
            raise UnknownTransaction(f"there is no transaction {name!r}")
        return outcome.owner

    def _require_owner(self, owner: str, expected: str, name: str) -> None:
        if owner != expected:
            raise NotYourTransaction(f"transaction {name!r} belongs to another user")

    def require_open(self, transaction: Transaction) -> None:
        """Somebody may hold on to a transaction that is over, or is being committed."""
        self._require_undecided(transaction)
        self._require_not_committing(transaction)

    def _require_not_committing(self, transaction: Transaction) -> None:
        if transaction.committing is not None:
            raise TransactionCommitting(
                f"transaction {transaction.begun.name!r} is being committed: no more goes into it"
            )

    def _require_undecided(self, transaction: Transaction) -> None:
        if transaction.prepared is not None:
            decided = transaction.prepared
            name = transaction.begun.name or str(transaction.number)
            raise over(name, decided.commit, decided.reason)

    def require_writable(self, author: Producer | Branch, now_ms: int) -> None:
        """Somebody may hold on to a producer or branch that may write no more. Who may is alive."""
        if isinstance(author, Branch):
            self._require_undecided(author.transaction)
            if author.name != COPIES:
                self._require_not_committing(author.transaction)
            author.transaction.last_seen_ms = now_ms
            return
        known = self._ledger.producers.get(author.id)
        if known is None:
            raise UnknownProducer(f"producer {author.id} has expired")
        if known is not author:
            raise ProducerFenced(f"producer {author.id} was opened by another client since")
        author.last_seen_ms = now_ms

    def branch(self, transaction: Transaction, name: str = "") -> Branch:
        """Where somebody publishes in a transaction, made when it is not there."""
        self.require_open(transaction)
        found = transaction.branches.get(name)
        if found is None:
            index = len(transaction.branches)
            if index >= BRANCHES_MAX:
                raise TooManyBranches(f"a transaction can have at most {BRANCHES_MAX} branches")
            self.note(BranchAdded(transaction.number, index, name))
            found = transaction.branches[name]
        return found

    def transactions(self, namespace: str | None = None) -> list[Transaction]:
        """Those that are open, the oldest first."""
        every = self._ledger.transactions.values()
        return [each for each in every if namespace in (None, each.begun.namespace)]

    def held(self, transaction: Transaction) -> list[Held]:
        """Where it has records, and how many readers miss because of it."""
        found = []
        for number in transaction.partitions:
            partition = self._state.partitions.get(number)
            if partition is None or not partition.open_transactions:
                continue
            if partition.topic.namespace == STAGING:
                continue  # nobody reads there
            first = partition.open_transactions.get(transaction.number)
            if first is None:
                continue
            in_the_way = first == partition.stable_offset
            behind = partition.log.next_offset - first if in_the_way else 0
            found.append(Held(partition.topic, partition.number, first, behind))
        return found

    # --- acknowledging in a transaction ---

    def acknowledge_all(self, transaction: Transaction, runs: Sequence[InFlight]) -> int:
        """As ``acknowledge``, all of them or none: raises NotInFlight if one is not there."""
        self.require_open(transaction)
        for consumer, view, start, stop in runs:
            there = view.state.attempt_runs(start, stop, consumer.id)
            if sum(high - low for low, high, _ in there) < stop - start:
                raise NotInFlight(
                    f"{view.log.label}: offsets {start} to {stop - 1} are not all in flight"
                    " at this consumer"
                )
        return sum(self.acknowledge(transaction, *run) for run in runs)

    def acknowledge(
        self,
        transaction: Transaction,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        stop: int,
    ) -> int:
        """Settle messages in flight at a consumer when the transaction commits.

        Until then they are the transaction's: they don't time out, and outlive their consumer.
        """
        self.require_open(transaction)
        holder = self._holder(transaction, view)
        ranges, count, size = view.state.hand_over(start, stop, consumer.id, holder.id)
        if not count:
            raise NotInFlight(
                f"{view.log.label}: none of offsets {start} to {stop - 1} is in flight"
                " at this consumer"
            )
        self._settlement.give_back(consumer, count, size)
        holder.took(count, size)
        self._state.mark_dirty(view.subscription)
        self.note(Acknowledged(transaction.number, view.subscription.id, view.partition_id, ranges))
        return count

    def commit_offsets(self, transaction: Transaction, claims: Sequence[OffsetClaim]) -> None:
        """Settle everything below some offsets when the transaction commits; all or none.

        With each comes who knows whether the partition is still its member's. It is asked again at
        the commit: a partition that went to another member meanwhile is read again from where it
        was, and what this one made of it must not count too.
        """
        self.require_open(transaction)
        for view, offset, _ in claims:
            require_within(view, offset)
        for view, offset, require_member in claims:
            key = (view.subscription.id, view.partition_id)
            self.note(OffsetCommitted(transaction.number, *key, offset))
            transaction.guards[key] = require_member

    def _require_members(self, transaction: Transaction) -> None:
        for key in transaction.offsets:
            if self._view(*key) is None:
                continue
            guard = transaction.guards.get(key)
            if guard is None:
                raise StaleGeneration(
                    "the node was restarted since the offsets were committed, and the group has"
                    " other members",
                    remedy="Abort, and join the group again",
                )
            guard()

    def _holder(self, transaction: Transaction, view: PartitionView) -> Consumer:
        subscription = view.subscription
        number = transaction.holders.get(subscription.id)
        if number is None or number not in self._state.consumers:
            number = self._state.next_id("consumer")
            transaction.holders[subscription.id] = number
            self._state.consumers[number] = Holder(number, subscription, transaction)
        return self._state.consumers[number]

    def held_by(self, consumer: Consumer) -> Transaction | None:
        """The transaction that a consumer stands for, if it does."""
        return consumer.transaction if isinstance(consumer, Holder) else None

    # --- ending ---

    def commit(
        self, transaction: Transaction, *, now_ms: int, branches: Sequence[str] | None = None
    ) -> Lsn:
        """Make all of it visible, or all of some branches and nothing of the others."""
        if transaction.begun.staged and transaction.committing is None:
            raise BadRequest(
                f"this protocol can't commit {transaction.begun.name!r}, which is staged",
                remedy="Commit it over HTTP",
            )
        numbers = self.check_commit(transaction, branches)
        self.note(Prepared(transaction.number, True, "", numbers))
        self.committed += 1
        return self._finish(transaction, now_ms)

    def check_commit(self, transaction: Transaction, branches: Sequence[str] | None) -> list[int]:
        """The branches that count, by number. Raises what keeps it from being committed."""
        self._require_undecided(transaction)
        self._require_members(transaction)
        begun = transaction.begun
        require_instance(self._ledger, begun.namespace, begun.application)
        require_next(self._ledger, begun.namespace, begun.application, begun.owner)
        winners = list(transaction.branches) if branches is None else branches
        for name in winners:
            if name not in transaction.branches:
                raise UnknownBranch(f"no branch {name!r} has published in this transaction")
        return [transaction.branches[name].index for name in winners]

    def require_committed(self, transaction: Transaction) -> None:
        """Raises how else it ended."""
        decided = transaction.prepared
        assert decided is not None
        if not decided.commit:
            raise over(transaction.begun.name, committed=False, reason=decided.reason)

    def abort(self, transaction: Transaction, *, now_ms: int, reason: str = ASKED) -> Lsn:
        """Nothing of it is ever visible; what it acknowledged is delivered again."""
        self._require_undecided(transaction)
        self.note(Prepared(transaction.number, False, reason, []))
        self.aborted += 1
        return self._finish(transaction, now_ms)

    def end(
        self,
        namespace: str,
        name: str,
        *,
        commit: bool,
        now_ms: int,
        owner: str = "",
        branches: Sequence[str] | None = None,
    ) -> Lsn:
        """Commit or abort by name; to do it again is answered the same."""
        if (namespace, name) not in self._ledger.by_name:
            outcome = self.outcome(namespace, name, owner)
            if outcome.committed != commit:
                raise over(name, outcome.committed, outcome.reason)
            return self._state.store.journal.last_lsn
        transaction = self.find(namespace, name, owner=owner, now_ms=now_ms)
        return self.conclude(transaction, commit=commit, now_ms=now_ms, branches=branches)

    def conclude(
        self,
        transaction: Transaction,
        *,
        commit: bool,
        now_ms: int,
        branches: Sequence[str] | None = None,
    ) -> Lsn:
        """As ``end``, by who has the transaction itself, whatever else has its name by now."""
        decided = transaction.prepared
        if decided is not None and decided.commit == commit:
            return self._state.store.journal.last_lsn
        if commit:
            return self.commit(transaction, now_ms=now_ms, branches=branches)
        return self.abort(transaction, now_ms=now_ms)

    def _finish(self, transaction: Transaction, now_ms: int) -> Lsn:
        """Carry out what is decided; after a crash, what is left of it."""
        decided = transaction.prepared
        assert decided is not None
        answered = self._answer(transaction) if decided.commit else []
        partitions = [
            self._state.partitions[number]
            for number in transaction.partitions
            if number in self._state.partitions
        ]
        # Asked now: with its marker nobody remembers what it wrote.
        gone = lost(transaction, partitions)
        settled = [*answered, *self._cancel(gone, partitions)]
        if partitions:
            self._appending.append(
                partitions,
                marker(transaction, now_ms),
                now_ms,
                settled=settled,
                stamp=Stamp(
                    kind=StampKind.COMMIT_MARKER if decided.commit else StampKind.ABORT_MARKER,
                    transaction=transaction.number,
                    records=1,
                ),
            )
        else:
            for subscription, number, start, stop in settled:
                self._state.store.acknowledge(subscription, number, [(start, stop)])
        self._after_answers(answered)
        if decided.commit:
            self._commit_offsets(transaction)
        else:
            self._give_back(transaction, now_ms)
        for holder in transaction.holders.values():
            self._state.consumers.pop(holder, None)
        for partition in partitions:
            self._appending.decided(partition, transaction.number, now_ms)
        self._drop_aborted(gone, now_ms)
        self._state.wheel.cancel(transaction.timer)
        log_end(transaction)
        self.note(Completed(transaction.number, now_ms))
        for told in self.over:
            told(transaction)
        return self._state.store.journal.last_lsn

    def _cancel(
        self, lost: Sequence[Claimed], partitions: Sequence[TopicPartition]
    ) -> list[Settled]:
        """Records that nobody gets: markers, and those of branches that lost."""
        here = {partition.log.id: partition for partition in partitions}
        ranges = [*lost]
        for partition in partitions:
            at = partition.log.next_offset
            ranges.append((partition.log.id, at, at + 1))
        settled: list[Settled] = []
        for number, start, stop in ranges:
            if here[number].topic.journaled:
                settled.append((CANCELLED, number, start, stop))
            else:
                self._state.store.offsets_of(CANCELLED, number).add(start, stop)
        return settled

    def _drop_aborted(self, lost: Sequence[Claimed], now_ms: int) -> None:
        """Subscriptions to what is undecided, too, were told of records that nobody gets."""
        for number, start, stop in lost:
            for view in self._state.partitions[number].views:
                if view.subscription.uncommitted:
                    self._settling.drop_cancelled(view, start, stop, now_ms)

    def _view(self, subscription: int, partition: int) -> PartitionView | None:
        found = self._state.subscriptions.get(SubscriptionId(subscription))
        for view in found.views if found is not None else ():
            if view.partition_id == partition:
                return view
        return None

    def _answer(self, transaction: Transaction) -> list[Settled]:
        """Messages acknowledged in the transaction, as far as they are still its own."""
        settled: list[Settled] = []
        for entry in transaction.acknowledged:
            view = self._view(entry.subscription, entry.partition)
            if view is None:
                continue
            holder = self._holder(transaction, view)
            for start, stop in entry.ranges:
                ranges, count, size = view.state.apply(Event.ACK, start, stop, holder.id)
                holder.gave_back(count, size)
                view.subscription.acked += count
                for low, high in ranges:
                    if view.subscription.journaled:
                        settled.append((view.subscription.id, view.partition_id, low, high))
                    else:
                        self._settlement.settle(view, [(low, high)])
                        self._state.mark_dirty(view.subscription)
        return settled

    def _after_answers(self, answered: Sequence[Settled]) -> None:
        for subscription, partition, start, stop in answered:
            view = self._view(subscription, partition)
            assert view is not None
            self._settlement.release(view.partition)
            if view.subscription.keys is not None:
                forget_keys(view, [(start, stop)])
            self._state.mark_dirty(view.subscription)

    def _commit_offsets(self, transaction: Transaction) -> None:
        for (subscription, partition), offset in transaction.offsets.items():
            view = self._view(subscription, partition)
            if view is not None:
                self._offsets.settle_up_to(view, min(offset, view.state.end))

    def _give_back(self, transaction: Transaction, now_ms: int) -> None:
        """What an aborted transaction had acknowledged is ready again, in its old place."""
        for number in transaction.holders.values():
            holder = self._state.consumers.get(number)
            if holder is not None:
                self._settling.disconnect(holder, now_ms)

    # --- time ---

    def _arm(self, transaction: Transaction) -> None:
        silent_ms = transaction.last_seen_ms + transaction.begun.session_ms
        due = min(transaction.deadline_ms, silent_ms)
        transaction.timer = self._state.wheel.schedule(
            due, TimerKind.TRANSACTION, transaction.number
        )

    def _expire(self, number: int, _a: int, _b: int, now_ms: int) -> None:
        """A transaction's timer fired; signs of life only move its deadline."""
        transaction = self._ledger.transactions.get(number)
        if transaction is None:
            return
        if transaction.committing is not None:
            # The node itself works on it, and tells how it ends.
            transaction.last_seen_ms = now_ms
            transaction.deadline_ms = max(
                transaction.deadline_ms, now_ms + transaction.begun.session_ms
            )
            self._arm(transaction)
        elif now_ms >= transaction.deadline_ms:
            self.abort(transaction, now_ms=now_ms, reason=TIMED_OUT)
        elif now_ms >= transaction.last_seen_ms + transaction.begun.session_ms:
            self.abort(transaction, now_ms=now_ms, reason=SILENT)
        else:
            self._arm(transaction)

    # --- coming back ---

    def restore_claims(self) -> None:
        """Before subscriptions are brought back: how far each may see."""
        firsts = sorted(
            (min(start for start, _ in ranges), number, transaction.number)
            for transaction in self._ledger.transactions.values()
            for branch in transaction.branches.values()
            for number, ranges in branch.claims.items()
            if number in self._state.partitions
        )
        for first, number, transaction in firsts:
            self._stability.hold_back(self._state.partitions[number], transaction, first)
        for _, number, _ in firsts:
            self._stability.count_undecided(self._state.partitions[number])

    def resume(self, now_ms: int) -> None:
        """Afterwards: what is decided is finished, what somebody can go on with stays open, and the
        rest is aborted: its records would hold up their partitions until it timed out."""
        for producer in self._ledger.producers.values():
            producer.last_seen_ms = now_ms
        self._ledger.keep_layouts(self._state.topics_by_id)
        self._forget_gone_partitions()
        for transaction in list(self._ledger.transactions.values()):
            for entry in transaction.acknowledged:
                view = self._view(entry.subscription, entry.partition)
                if view is None:
                    continue
                holder = self._holder(transaction, view)
                for start, stop in entry.ranges:
                    _, count, size = view.state.hand_over(start, stop, 0, holder.id)
                    holder.took(count, size)
            transaction.last_seen_ms = now_ms
            # The clock may have been set back while the node was down.
            timeout_ms = transaction.begun.timeout_ms
            transaction.deadline_ms = min(transaction.deadline_ms, now_ms + timeout_ms)
            if transaction.prepared is not None:
                self._finish(transaction, now_ms)
            elif transaction.outlives_its_owner:
                self._arm(transaction)
            else:
                self.abort(transaction, now_ms=now_ms, reason=OWNER_GONE)

    def _forget_topic(self, topic: Topic) -> None:
        """What open transactions had in it, or in partitions of it, went with them."""
        self._partitions_gone = True
        self._ledger.forget_layouts(topic.id, deleted=topic.deleted)

    def _forget_namespace(self, namespace: str, now_ms: int) -> None:
        """It is deleted, with its producers and transactions, and what applications committed."""
        for transaction in self.transactions(namespace):
            self.abort(transaction, now_ms=now_ms)
        self.note(NamespaceForgotten(namespace))
