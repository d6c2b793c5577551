"""Random histories of producers, zombies and transactions against a plain list of what happened.

The model is the history itself: every call that is one journal entry is one event, and what there
is to see follows from the events. A crash may lose events from the end, but only unsynced ones, and
none from the middle: after it the engine must show what some prefix of the history gives.

Retention and compaction are no events: the engine comes to them when it thinks it is time. What
they took is checked for what they may take.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.engine.engine import Engine
from braidmq.engine.policy import QUEUE_SETTINGS
from braidmq.engine.topics import Consumer, Credit, PartitionView, TopicPartition
from braidmq.engine.transactions.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    TransactionAborted,
    TransactionCommitted,
)
from braidmq.engine.transactions.ledger import Producer, Transaction
from braidmq.engine.transactions.publishing import Origin
from braidmq.record.batch import RecordBatch
from braidmq.storage.settings import StorageSettings
from braidmq.testing.faulty_disk import CrashChoice, CutAt, FaultyDisk, KeepAll, LoseAll, Random

SMALL = StorageSettings(
    segment_bytes_max=1024, index_interval_bytes=128, journal_file_bytes=16384, tail_bytes_max=0
)
HERE = "n"
TIMEOUT_MS = 60_000
SESSION_MS = 30_000
TICK_MS = 10
"""Timers may be late by less than this: the times of a history are multiples of it."""
SHORT = 6
TOPICS: dict[str, dict[str, Any]] = {
    "log": {"partitions": 2},
    "short": {"partitions": 1, "retention": {"messages": SHORT}},
    "keyed": {
        "partitions": 1,
        "compaction": {"enabled": True, "lag_ms": 0, "interval_ms": 1},
    },
    "queue": QUEUE_SETTINGS,
}
PLACES = [("log", 0), ("log", 1), ("short", 0), ("keyed", 0), ("queue", 0)]
Place = tuple[str, int]

picks = st.integers(0, 1 << 16)
places = st.sampled_from([*PLACES, ("queue", 0), ("queue", 0)])
crashes = st.one_of(
    st.just(LoseAll()),
    st.just(KeepAll()),
    st.builds(CutAt, st.integers(0, 1024)),
    st.builds(Random, st.integers(0, 1 << 32)),
)


# --- the model: events, and what they come to ---


@dataclass(frozen=True)
class Wrote:
    place: Place
    first_offset: int
    values: tuple[bytes, ...]
    transaction: str | None = None
    branch: str = ""


@dataclass(frozen=True)
class Began:
    name: str


@dataclass(frozen=True)
class Held:
    """Messages of the queue were acknowledged in a transaction."""

    name: str
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Acked:
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Ended:
    name: str
    committed: bool
    winners: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Opened:
    producer: int
    epoch: int


Event = Wrote | Began | Held | Acked | Ended | Opened


@dataclass
class Scene:
    """What there is to see after some events."""

    records: dict[Place, list[tuple[int, bytes, str | None, str]]] = field(
        default_factory=lambda: {place: [] for place in PLACES}
    )
    open: dict[str, list[bytes]] = field(default_factory=dict)
    """With what each has acknowledged."""
    ended: dict[str, bool] = field(default_factory=dict)
    settled: set[bytes] = field(default_factory=set)
    epochs: dict[int, int] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        match event:
            case Wrote(place, first, values, transaction, branch):
                for index, value in enumerate(values):
                    self.records[place].append((first + index, value, transaction, branch))
            case Began(name):
                self.open[name] = []
                self.ended.pop(name, None)
            case Held(name, values):
                self.open[name] += values
            case Acked(values):
                self.settled |= set(values)
            case Ended(name, committed, winners):
                if committed:
                    self.settled |= set(self.open[name])
                del self.open[name]
                self.ended[name] = committed
                self._decide(name, committed, winners)
            case Opened(producer, epoch):
                self.epochs[producer] = epoch

    def _decide(self, name: str, committed: bool, winners: tuple[str, ...] | None) -> None:
        for place, records in self.records.items():
            kept = []
            for offset, value, transaction, branch in records:
                if transaction != name:
                    kept.append((offset, value, transaction, branch))
                elif committed and (winners is None or branch in winners):
                    kept.append((offset, value, None, ""))
            self.records[place] = kept

    def visible(self, place: Place, *, uncommitted: bool = False) -> list[tuple[int, bytes]]:
        found = []
        for offset, value, transaction, _ in self.records[place]:
            if transaction is not None and not uncommitted:
                break
            found.append((offset, value))
        return found

    def unsettled(self, *, uncommitted: bool = False) -> list[bytes]:
        every = self.visible(("queue", 0), uncommitted=uncommitted)
        return [value for _, value in every if value not in self.settled]


def scene_of(events: list[Event]) -> Scene:
    scene = Scene()
    for event in events:
        scene.apply(event)
    return scene


@dataclass
class Author:
    """Somebody with a producer: what it sent and the number that comes next in each topic."""

    name: str
    producer: Producer
    sent: dict[str, list[tuple[int, tuple[bytes, ...], int]]] = field(default_factory=dict)
    """By topic: number of the first message, messages, partition."""
    following: dict[str, int] = field(default_factory=dict)


class TransactionMachine(RuleBasedStateMachine):
    engine: Engine

    @initialize()
    def begin_everything(self) -> None:
        self.disk = FaultyDisk()
        self.now_ms = 1_700_000_000_000
        self.events: list[Event] = []
        self.synced = 0
        self.synced_start = 0
        self.most_wanted = 0
        """Of ``short``: what was gone by then does not come back."""
        self.numbers = itertools.count()
        self.names = itertools.count()
        self.times: dict[str, tuple[int, int]] = {}
        """Of open transactions: when begun, and when last heard of."""
        self.counts: dict[tuple[str, str, Place], int] = {}
        """By transaction, branch and partition, how many messages were numbered."""
        self.in_flight: list[bytes] = []
        self.authors: list[Author] = []
        self.zombies: list[Author] = []
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        for name, topic_settings in TOPICS.items():
            topic = self.engine.topics.create(HERE, name, topic_settings, now_ms=self.now_ms)
            self.engine.subscriptions.subscribe(topic, "s", now_ms=self.now_ms)
        self.attach()
        self.sync()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.finish_all()
            self.engine.close()

    # --- helpers ---

    def attach(self) -> None:
        topic = self.engine.state.topic(HERE, "queue")
        subscription = self.engine.state.subscription(topic, "s")
        self.consumer: Consumer = self.engine.consumers.attach(
            subscription, now_ms=self.now_ms, credits=[Credit(1 << 40)]
        )
        self.view: PartitionView = subscription.views[0]
        self.in_flight = []

    def happened(self, *events: Event) -> None:
        self.events += events

    def scene(self) -> Scene:
        return scene_of(self.events)

    def new_values(self, count: int) -> tuple[bytes, ...]:
        return tuple(b"%d" % next(self.numbers) for _ in range(count))

    def batch(self, place: Place, values: tuple[bytes, ...]) -> RecordBatch:
        batch = RecordBatch()
        for value in values:
            key = b"%d" % (int(value) % 3) if place[0] == "keyed" else None
            batch.append(value, key=key, timestamp_ms=self.now_ms)
        return batch

    def publish(self, place: Place, values: tuple[bytes, ...], origin: Origin | None = None) -> int:
        """Returns where it went."""
        published = self.engine.publishing.publish(
            self.engine.state.topic(HERE, place[0]),
            self.batch(place, values),
            now_ms=self.now_ms,
            partition=place[1],
            origin=origin,
        )
        ((partition, first, count),) = published.placed
        assert (partition, count) == (place[1], len(values))
        return first

    def transaction(self, pick: int) -> tuple[str, Transaction] | None:
        names = sorted(self.times)
        if not names:
            return None
        name = names[pick % len(names)]
        found = self.engine.transactions.find(HERE, name, now_ms=self.now_ms)
        self.times[name] = (self.times[name][0], self.now_ms)
        return name, found

    def ended(self, name: str, *, committed: bool, winners: tuple[str, ...] | None = None) -> None:
        back = [] if committed else self.scene().open[name]
        del self.times[name]
        self.happened(Ended(name, committed, winners))
        # What was acknowledged in vain is delivered again.
        self.deliver()
        assert set(back) <= set(self.in_flight)

    # --- publishing ---

    @rule(place=places, count=st.integers(1, 4))
    def publish_plainly(self, place: Place, count: int) -> None:
        values = self.new_values(count)
        self.happened(Wrote(place, self.publish(place, values), values))
        self.deliver()

    @rule()
    def begin(self) -> None:
        name = f"t{next(self.names)}"
        self.engine.transactions.begin(HERE, name, now_ms=self.now_ms)
        self.times[name] = (self.now_ms, self.now_ms)
        self.happened(Began(name))

    @rule(
        pick=picks,
        place=places,
        count=st.integers(1, 4),
        branch=st.sampled_from(["", "", "x", "y"]),
        again=st.booleans(),
    )
    def publish_in_transaction(
        self, pick: int, place: Place, count: int, branch: str, again: bool
    ) -> None:
        if not self.times:
            self.begin()
        found = self.transaction(pick)
        assert found is not None
        name, transaction = found
        author = self.engine.transactions.branch(transaction, branch)
        key = (name, branch, place)
        number = author.expected(
            [self.engine.state.topic(HERE, place[0]).partitions[place[1]].log.id]
        )
        values = self.new_values(count)
        first = self.publish(place, values, Origin(author, number))
        if again:
            assert self.publish(place, values, Origin(author, number)) == first
        self.counts[key] = number + count
        with pytest.raises(OutOfOrderSequence):
            self.publish(place, values, Origin(author, number + count + 1))
        self.happened(Wrote(place, first, values, name, branch))

    # --- ending ---

    @precondition(lambda self: self.times)
    @rule(pick=picks, only=st.sampled_from([None, None, None, ("",), ("", "x"), ("y",)]))
    def commit(self, pick: int, only: tuple[str, ...] | None) -> None:
        found = self.transaction(pick)
        assert found is not None
        name, transaction = found
        winners = None
        if only is not None:
            winners = tuple(each for each in only if each in transaction.branches)
        self.engine.transactions.end(HERE, name, commit=True, now_ms=self.now_ms, branches=winners)
        self.ended(name, committed=True, winners=winners)
        self.engine.transactions.end(HERE, name, commit=True, now_ms=self.now_ms)
        with pytest.raises(TransactionCommitted):
            self.engine.transactions.end(HERE, name, commit=False, now_ms=self.now_ms)
        with pytest.raises(TransactionCommitted):
            self.engine.transactions.begin(HERE, name, now_ms=self.now_ms)

    @precondition(lambda self: self.times)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        found = self.transaction(pick)
        assert found is not None
        name, transaction = found
        author = self.engine.transactions.branch(transaction)
        self.engine.transactions.end(HERE, name, commit=False, now_ms=self.now_ms)
        self.ended(name, committed=False)
        with pytest.raises(TransactionAborted):
            self.publish(("log", 0), (b"0",), Origin(author))
        with pytest.raises(TransactionAborted):
            self.engine.transactions.end(HERE, name, commit=True, now_ms=self.now_ms)

    @rule(ms=st.sampled_from([TICK_MS, 1000, 20_000, 31_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.engine.advance(self.now_ms)
        due = {
            name
            for name, (began, seen) in self.times.items()
            if self.now_ms >= min(began + TIMEOUT_MS, seen + SESSION_MS)
        }
        # Which of them comes first is the engine's affair, but a crash may leave just that one.
        order = [name for _, name in self.engine.transactions._ledger.outcomes if name in due]
        assert set(order) == due
        for name in order:
            self.ended(name, committed=False)

    # --- the queue ---

    @rule()
    def deliver(self) -> None:
        for delivery in self.engine.dispatching.dispatch(self.now_ms):
            for index in range(delivery.first_index, delivery.stop_index):
                value = delivery.batch.record(index).value
                assert value is not None
                assert value not in self.in_flight
                self.in_flight.append(value)

    def offsets(self, values: list[bytes]) -> list[int]:
        where = {value: offset for offset, value, _, _ in self.scene().records["queue", 0]}
        return [where[value] for value in values]

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks)
    def acknowledge(self, pick: int) -> None:
        value = self.in_flight.pop(pick % len(self.in_flight))
        (offset,) = self.offsets([value])
        assert self.engine.settling.ack(self.consumer, self.view, offset, offset + 1) == 1
        self.happened(Acked((value,)))

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks, which=picks)
    def acknowledge_in_transaction(self, pick: int, which: int) -> None:
        if not self.times:
            self.begin()
        found = self.transaction(which)
        assert found is not None
        name, transaction = found
        value = self.in_flight.pop(pick % len(self.in_flight))
        (offset,) = self.offsets([value])
        count = self.engine.transactions.acknowledge(
            transaction, self.consumer, self.view, offset, offset + 1
        )
        assert count == 1
        self.happened(Held(name, (value,)))

    @rule()
    def consumer_leaves(self) -> None:
        self.engine.consumers.detach(self.consumer, now_ms=self.now_ms)
        self.attach()

    # --- producers ---

    @rule(pick=picks, fresh=st.booleans())
    def open_producer(self, pick: int, fresh: bool) -> None:
        old = None if fresh or not self.authors else self.authors[pick % len(self.authors)]
        name = f"p{len(self.authors) + len(self.zombies)}" if old is None else old.name
        producer, _ = self.engine.transactions.open_producer(HERE, name, now_ms=self.now_ms)
        self.happened(Opened(producer.id, producer.epoch))
        if old is not None:
            self.authors.remove(old)
            self.zombies.append(old)
        self.authors.append(Author(name, producer))

    @precondition(lambda self: self.authors)
    @rule(pick=picks, place=places, count=st.integers(1, 4))
    def publish_numbered(self, pick: int, place: Place, count: int) -> None:
        author = self.authors[pick % len(self.authors)]
        key = f"{place[0]}/{place[1]}"
        number = author.following.get(key, 0)
        values = self.new_values(count)
        first = self.publish(place, values, Origin(author.producer, number))
        assert self.publish(place, values, Origin(author.producer, number)) == first
        author.following[key] = number + count
        with pytest.raises(OutOfOrderSequence):
            self.publish(place, values, Origin(author.producer, number + count + 1))
        self.happened(Wrote(place, first, values))

    @precondition(lambda self: self.zombies)
    @rule(pick=picks, place=places)
    def zombie_writes(self, pick: int, place: Place) -> None:
        zombie = self.zombies[pick % len(self.zombies)].producer
        with pytest.raises(ProducerFenced):
            self.engine.transactions.producer(HERE, zombie.id, zombie.epoch, now_ms=self.now_ms)
        with pytest.raises(ProducerFenced):
            self.publish(place, (b"0",), Origin(zombie))

    # --- what the node does by itself ---

    @rule()
    def sync(self) -> None:
        self.engine.store.commit()
        self.all_is_synced()

    @rule()
    def checkpoint(self) -> None:
        self.engine.store.checkpoint()
        self.all_is_synced()

    def all_is_synced(self) -> None:
        self.synced = len(self.events)
        self.synced_start = self.short().log.start_offset

    def short(self) -> TopicPartition:
        return self.engine.state.topic(HERE, "short").partitions[0]

    def start_wanted(self) -> int:
        """Where retention may cut ``short`` now: the last messages stay, and what is not decided.
        Marks and what was aborted are no messages."""
        offsets = [offset for offset, _ in self.scene().visible(("short", 0), uncommitted=True)]
        wanted = offsets[-SHORT] if len(offsets) >= SHORT else 0
        return min(wanted, self.short().stable_offset)

    def start_max(self) -> int:
        """Where it may have been cut: what was aborted since had counted."""
        self.most_wanted = max(self.most_wanted, self.start_wanted())
        return self.most_wanted

    @rule()
    def retain_and_compact(self) -> None:
        before = self.short().log.start_offset
        self.engine.retention.enforce(self.engine.state.topic(HERE, "short"), self.now_ms)
        assert self.short().log.start_offset == max(before, self.start_wanted())
        list(self.engine.compacting.compact(self.engine.state.topic(HERE, "keyed"), self.now_ms))

    def crash_while_syncing(self, choice: CrashChoice) -> FaultyDisk:
        """What is left when power goes before what was written is on the disk."""
        left: list[FaultyDisk] = []
        self.disk.slow_sync = lambda: left.append(self.disk.crash(choice))
        self.engine.store.commit()
        return left[0] if left else self.disk.crash(choice)

    @rule(choice=crashes, syncing=st.booleans())
    def crash(self, choice: CrashChoice, syncing: bool) -> None:
        self.disk = self.crash_while_syncing(choice) if syncing else self.disk.crash(choice)
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.attach()
        self.deliver()
        kept = self.surviving_events()
        self.events = self.events[:kept]
        scene = self.scene()
        self.times = {name: (self.times_began(name), self.now_ms) for name in scene.open}
        self.zombies = [
            each
            for each in [*self.zombies, *self.authors]
            if self.epoch_of(each) < scene.epochs.get(each.producer.id, -1)
        ]
        self.authors = [
            Author(name, producer)
            for (_, name), producer in self.engine.transactions._ledger.producers_by_name.items()
        ]
        for author in self.authors:
            for place in PLACES:
                log = self.engine.state.topic(HERE, place[0]).partitions[place[1]].log
                author.following[f"{place[0]}/{place[1]}"] = author.producer.expected([log.id])
        self.sync()

    def epoch_of(self, author: Author) -> int:
        return author.producer.epoch

    def times_began(self, name: str) -> int:
        found = self.engine.transactions.find(HERE, name, now_ms=self.now_ms)
        return found.begun.started_ms

    def surviving_events(self) -> int:
        """The longest prefix of the history that gives what there is now."""
        for kept in range(len(self.events), self.synced - 1, -1):
            if self.differences(scene_of(self.events[:kept])) == []:
                return kept
        raise AssertionError(
            f"no prefix from {self.synced} on fits; the last differs by "
            f"{self.differences(self.scene())}"
        )

    # --- comparing ---

    def read(self, place: Place, *, uncommitted: bool) -> list[tuple[int, bytes]]:
        topic = self.engine.state.topic(HERE, place[0])
        found: list[tuple[int, bytes]] = []
        at = 0
        while runs := self.engine.reading.read(topic, place[1], at, uncommitted=uncommitted):
            for run in runs:
                for index in range(run.first, run.stop):
                    record = run.batch.record(index)
                    assert record.value is not None
                    assert not record.flags & 1
                    found.append((record.offset, record.value))
            at = found[-1][0] + 1
            if at >= topic.partitions[place[1]].log.next_offset:
                break
        return found

    def differences(self, scene: Scene) -> list[Any]:
        found: list[Any] = []
        for place in PLACES:
            for uncommitted in (False, True):
                seen = self.read(place, uncommitted=uncommitted)
                expected = scene.visible(place, uncommitted=uncommitted)
                if place[0] == "short":
                    start = self.short().log.start_offset
                    expected = [each for each in expected if each[0] >= start]
                if place[0] == "keyed":
                    seen, expected = _latest(seen), _latest(expected)
                if place[0] == "queue":
                    settled = self.view.state.settled
                    seen = [each for each in seen if each[0] not in settled]
                    expected = [each for each in expected if each[1] not in scene.settled]
                if seen != expected:
                    found.append((place, uncommitted, seen, expected))
        start, start_max = self.short().log.start_offset, self.start_max()
        if not self.synced_start <= start <= start_max:
            found.append(("retention", self.synced_start, start, start_max))
        open_now = {each.begun.name for each in self.engine.transactions.transactions(HERE)}
        if open_now != set(scene.open):
            found.append(("open", open_now, set(scene.open)))
        epochs = {
            number: each.epoch
            for number, each in self.engine.transactions._ledger.producers.items()
        }
        if epochs != scene.epochs:
            found.append(("epochs", epochs, scene.epochs))
        held = sorted(value for values in scene.open.values() for value in values)
        pinned = self.view.state.in_flight - len(self.in_flight)
        if pinned != len(held):
            found.append(("held", pinned, held))
        return found

    @invariant()
    def all_is_as_it_happened(self) -> None:
        if hasattr(self, "engine"):
            assert self.differences(self.scene()) == []

    def finish_all(self) -> None:
        """In the end everything is decided, and the queue has just what nobody acknowledged."""
        for name in list(self.times):
            self.engine.transactions.end(HERE, name, commit=False, now_ms=self.now_ms)
            self.ended(name, committed=False)
        self.deliver()
        assert sorted(self.in_flight) == sorted(self.scene().unsettled())
        for place in PLACES:
            partition = self.engine.state.topic(HERE, place[0]).partitions[place[1]]
            assert partition.open_transactions is None


def _latest(records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    found: dict[int, tuple[int, bytes]] = {}
    for offset, value in records:
        found[int(value) % 3] = (offset, value)
    return sorted(found.values())


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    settings.get_profile("models"),
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# --- what random histories come to seldom ---


def machine() -> TransactionMachine:
    found = TransactionMachine()
    found.begin_everything()
    return found


def test_retention_comes_by_itself_when_time_passes() -> None:
    history = machine()
    history.publish_plainly(("short", 0), SHORT + 1)
    history.time_passes(TICK_MS)
    assert history.short().log.start_offset == 1
    history.all_is_as_it_happened()
    history.teardown()


def test_retention_leaves_what_is_not_decided() -> None:
    history = machine()
    history.publish_in_transaction(0, ("short", 0), SHORT, "", again=False)
    history.publish_plainly(("short", 0), 2)
    history.time_passes(TICK_MS)
    assert history.short().log.start_offset == 0
    history.abort(0)
    history.publish_plainly(("short", 0), SHORT - 1)
    history.retain_and_compact()
    # The aborted ones, the first of the others, and not the mark of the transaction.
    assert history.short().log.start_offset == SHORT + 1
    history.all_is_as_it_happened()
    history.teardown()


def test_a_transaction_is_aborted_within_a_tick_of_its_time() -> None:
    history = machine()
    history.time_passes(1)
    history.begin()
    history.time_passes(SESSION_MS - TICK_MS)
    history.all_is_as_it_happened()
    history.time_passes(2 * TICK_MS - 1)
    assert not history.times
    history.all_is_as_it_happened()
    history.teardown()


def test_a_crash_leaves_the_later_of_two_transactions_open() -> None:
    """The one that is due first is aborted first, and was begun last here."""
    left = set()
    for kept_bytes in range(0, 512, 16):
        history = machine()
        history.begin()
        history.time_passes(20_000)
        history.begin()
        history.transaction(0)
        history.time_passes(20_000)
        history.transaction(0)
        history.sync()
        history.time_passes(20_000)
        assert not history.times
        history.crash(CutAt(kept_bytes), syncing=True)
        left.add(tuple(sorted(history.times)))
        history.all_is_as_it_happened()
        history.teardown()
    assert left == {("t0", "t1"), ("t0",), ()}
