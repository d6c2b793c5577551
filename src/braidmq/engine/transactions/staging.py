"""Transactions that stage: what is published in them lies outside their topics until the commit.

A transaction as others are holds back its partitions for as long as it is open, and a job may be
open for hours. What such a one publishes goes to logs of its own instead, one for each topic (and
partition, where its publisher names one): topics in a namespace that nobody can name, so that all
that is true of topics is true of them. The commit copies what counts, in slices, in the same
transaction: to a branch that is the only one to win, numbered, so that whoever goes on with it
after a crash writes nothing twice. Then the transaction ends as any other.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.appending import Published
from braidmq.engine.effects import Level
from braidmq.engine.errors import TopicFull, UnknownTopic
from braidmq.engine.limits import check_size, has_room
from braidmq.engine.pressure import Pressure
from braidmq.engine.record_times import shifted
from braidmq.engine.state import STAGING, EngineState
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.coordinator import COPIES, Coordinator
from braidmq.engine.transactions.entries import Committing
from braidmq.engine.transactions.ledger import Branch, Ledger, Transaction
from braidmq.engine.transactions.publishing import Origin, StampedPublishing
from braidmq.model.errors import BraidError
from braidmq.model.ids import PartitionId
from braidmq.record.batch import RecordBatch
from braidmq.storage.partition_log import Run

SLICE_BYTES = 1 << 20
"""Copied before others have their turn."""

Place = tuple[int, int | None]
"""The topic that staged records are for, and its partition where their publisher named one."""


class Staging:
    def __init__(
        self,
        state: EngineState,
        pressure: Pressure,
        topics: TopicAdministration,
        stamped: StampedPublishing,
        transactions: Coordinator,
        ledger: Ledger,
    ) -> None:
        self._state = state
        self._pressure = pressure
        self._topics = topics
        self._stamped = stamped
        self._transactions = transactions
        self._ledger = ledger
        self._places: dict[int, dict[Place, Topic]] = {}
        """By transaction, where what it has staged lies."""
        self._copies: dict[int, Iterator[None]] = {}
        """By transaction, what is being copied."""
        self._resumed: list[Transaction] = []
        """Those whose commit a crash interrupted: nobody waits for them."""
        transactions.over.append(self._drop)

    # --- publishing ---

    def stage(
        self,
        topics: Sequence[Topic],
        batch: RecordBatch,
        now_ms: int,
        origin: Origin,
        partition: int | None,
    ) -> Published:
        """As publishing it to these topics; where it will be is known when it is committed."""
        transaction = _transaction_of(origin)
        for topic in topics:
            check_size(topic, batch)
            if partition is not None:
                topic.open_partition(partition)
            if topic.is_quarantined:
                raise topic.partitions[0].log.quarantined()
            _require_room(topic, batch.count, batch.value_bytes)
        lsn = None
        for topic in topics:
            copy = batch
            if len(topics) > 1:
                copy = RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
            place = self._place(transaction, topic, partition, now_ms)
            lsn = self._stamped.publish(place, copy, now_ms, origin, partition=0).lsn or lsn
        return Published(lsn, batch.count)

    def _place(
        self, transaction: Transaction, topic: Topic, partition: int | None, now_ms: int
    ) -> Topic:
        places = self._places.setdefault(transaction.number, {})
        found = places.get((topic.id, partition))
        if found is None:
            found = places[topic.id, partition] = self._topics.create(
                STAGING,
                f"{transaction.number} {topic.id} {'' if partition is None else partition}",
                {"message_bytes_max": topic.message_bytes_max},
                now_ms=now_ms,
                attributes={
                    "transaction": transaction.number,
                    "topic": topic.id,
                    "partition": partition,
                },
            )
        return found

    def targets(self, transaction: Transaction) -> list[Topic]:
        """Where what it has staged is to go. Raises UnknownTopic for one that is gone."""
        found: dict[Topic, None] = {}
        for number, _ in self._places.get(transaction.number, ()):
            topic = self._state.topics_by_id.get(number)
            if topic is None or topic.deleted:
                raise UnknownTopic("a topic that this transaction has published to was deleted")
            found[topic] = None
        return list(found)

    # --- committing ---

    def committing(
        self, transaction: Transaction, branches: Sequence[str] | None, now_ms: int
    ) -> Iterator[None]:
        """Commit it in steps. Whoever asks for it while it goes on helps, and learns its end.

        Raises what ``Coordinator.commit`` does, and what refuses the copies: it is aborted then.
        """
        if transaction.committing is None:
            self._begin(transaction, branches)
        while transaction.prepared is None:
            self._copy_some(transaction, now_ms)
            yield
        self._transactions.require_committed(transaction)

    def _begin(self, transaction: Transaction, branches: Sequence[str] | None) -> None:
        winners = self._transactions.check_commit(transaction, branches)
        for topic in self.targets(transaction):
            records = [
                stop - start
                for index in winners
                for place, log in self._logs(transaction)
                if place[0] == topic.id
                for start, stop in transaction.branches_by_index[index].claims.get(log, ())
            ]
            _require_room(topic, sum(records), 0)
        self._transactions.branch(transaction, COPIES)
        self._transactions.note(Committing(transaction.number, winners))

    def _logs(self, transaction: Transaction) -> list[tuple[Place, PartitionId]]:
        places = self._places.get(transaction.number, {})
        return [(place, topic.partitions[0].log.id) for place, topic in places.items()]

    def _copy_some(self, transaction: Transaction, now_ms: int) -> None:
        """A slice of it. Its last one ends the transaction, and so does what goes wrong."""
        number = transaction.number
        if self._pressure.level is Level.BLOCKED and not self._pressure.disk_is_blocked:
            # Memory has to come free first. The disk does not: with its end room comes free.
            return
        if number not in self._copies:
            self._copies[number] = self._copying(transaction, now_ms)
        try:
            for _ in self._copies[number]:
                return
            self._transactions.commit(transaction, now_ms=now_ms, branches=[COPIES])
        except BraidError as error:
            self._transactions.abort(transaction, now_ms=now_ms, reason=error.code)
            raise

    def _copying(self, transaction: Transaction, now_ms: int) -> Iterator[None]:
        """What counts, branch by branch, each in its order. Numbers begin at 0 each time: what a
        crash left of an earlier copy is known by them."""
        assert transaction.committing is not None
        copies, sequence = transaction.branches[COPIES], 0
        for index in transaction.committing.winners:
            branch = transaction.branches_by_index[index]
            for place, topic in self._places.get(transaction.number, {}).items():
                for batch in self._staged(branch, topic):
                    origin = Origin(copies, sequence, strict=False)
                    self._stamped.publish(
                        self._target(place[0]), batch, now_ms, origin, partition=place[1]
                    )
                    sequence += batch.count
                    yield

    def _target(self, number: int) -> Topic:
        topic = self._state.topics_by_id.get(number)
        if topic is None or topic.deleted:
            raise UnknownTopic("a topic that this transaction has published to was deleted")
        return topic

    def _staged(self, branch: Branch, topic: Topic) -> Iterator[RecordBatch]:
        log = topic.partitions[0].log
        for start, stop in list(branch.claims.get(log.id, ())):
            at = start
            while at < stop:
                for run in log.read(at, SLICE_BYTES, stop):
                    part = _within(run, at, stop)
                    if part is not None:
                        at = part.batch.offset_at(part.stop - 1) + 1
                        yield self._copy(part)

    def _copy(self, run: Run) -> RecordBatch:
        batch = run.batch
        view = memoryview(batch)[batch.position_at(run.first) : batch.position_at(run.stop)]
        numbered, _ = RecordBatch.scan(view, base_offset=0, verify=False).stamped()
        copy = RecordBatch.scan(numbered, base_offset=0, verify=False)
        lead_ms = self._state.clock.lead_ms
        # Appending stamps with the wall clock's time, which these have already.
        return shifted(copy, -lead_ms) if lead_ms else copy

    # --- time ---

    @property
    def has_pending(self) -> bool:
        return bool(self._resumed)

    def go_on(self, now_ms: int) -> None:
        """A slice of commits that a crash interrupted."""
        transaction = self._resumed[0]
        if transaction.prepared is None:
            with suppress(BraidError):  # it is aborted then, and that is logged
                self._copy_some(transaction, now_ms)
        if transaction.prepared is not None:
            self._resumed.remove(transaction)

    def restore(self) -> None:
        """Before transactions are gone on with: what of each is staged where."""
        for topic in list(self._state.topics.values()):
            if topic.namespace == STAGING:
                place = (topic.attributes["topic"], topic.attributes["partition"])
                self._places.setdefault(topic.attributes["transaction"], {})[place] = topic

    def resume(self) -> None:
        """Afterwards: commits are finished, and what no open transaction has staged goes."""
        for number in list(self._places):
            transaction = self._ledger.transactions.get(number)
            if transaction is None:
                self._drop_places(number)
        self._resumed = [
            each for each in self._ledger.transactions.values() if each.committing is not None
        ]

    def _drop(self, transaction: Transaction) -> None:
        self._copies.pop(transaction.number, None)
        self._drop_places(transaction.number)

    def _drop_places(self, number: int) -> None:
        for topic in self._places.pop(number, {}).values():
            topic.published = 0  # nobody published to it
            self._topics.delete(topic)


def is_staged(origin: Origin | None) -> bool:
    """Whether what it publishes goes elsewhere first."""
    author = origin.author if origin is not None else None
    return isinstance(author, Branch) and author.transaction.begun.staged


def _transaction_of(origin: Origin) -> Transaction:
    assert isinstance(origin.author, Branch)
    return origin.author.transaction


def _within(run: Run, start: int, stop: int) -> Run | None:
    first = max(run.first, run.batch.find(start))
    end = min(run.stop, run.batch.find(stop))
    return Run(run.batch, first, end) if first < end else None


def _require_room(topic: Topic, count: int, size: int) -> None:
    if topic.bounded and not topic.drops_head and not has_room(topic, count, size):
        raise TopicFull(
            f"topic {topic.name!r} has {topic.depth} unsettled messages and no room for {count}"
        )
