"""Transactions and producers: what the random histories of the model do not come to."""

import pytest
from engine_worlds import HOUR, MINUTE, NS, World, values

from braidmq.engine.errors import BadPosition, TopicFull
from braidmq.engine.groups import StaleGeneration
from braidmq.engine.policy import QUEUE_SETTINGS
from braidmq.engine.topics import Mode
from braidmq.engine.transactions import coordinator
from braidmq.engine.transactions.entries import Application
from braidmq.engine.transactions.errors import (
    NotInFlight,
    NotYourTransaction,
    ProducerFenced,
    TooManyBranches,
    TransactionAborted,
    UnknownProducer,
    UnknownTransaction,
)
from braidmq.engine.transactions.ledger import Transaction
from braidmq.engine.transactions.publishing import Origin
from braidmq.model.errors import BadRequest


def begun(world: World, name: str = "x", **options) -> Transaction:
    transaction, _ = world.engine.transactions.begin(NS, name, now_ms=world.now_ms, **options)
    return transaction


def publish(world: World, topic, transaction: Transaction, *contents: bytes) -> None:
    origin = Origin(world.engine.transactions.branch(transaction))
    world.engine.publishing.publish(
        topic, world.batch(*contents), now_ms=world.now_ms, origin=origin
    )


def commit(world: World, transaction: Transaction) -> None:
    world.engine.transactions.commit(transaction, now_ms=world.now_ms)


# --- acknowledging ---


def test_messages_are_acknowledged_all_together_or_none() -> None:
    world = World()
    topic = world.topic(**QUEUE_SETTINGS)
    consumer, other = world.consumer(topic), world.consumer(topic, "s2")
    world.publish(topic, b"a", b"b", b"c")
    first, gone, last = world.pull(consumer)
    elsewhere = world.pull(other)
    world.ack(gone)
    before = world.depths(topic)
    transaction = begun(world)
    transactions, lsn = world.engine.transactions, world.lsn()
    with pytest.raises(NotInFlight):
        transactions.acknowledge_all(
            transaction, [(other, elsewhere[0].view, 0, 3), (consumer, first.view, 0, 3)]
        )
    assert world.depths(topic) == before
    assert world.lsn() == lsn
    assert not transaction.acknowledged
    assert [world.ack(each) for each in (first, last, *elsewhere)] == [1] * 5


def test_offsets_are_committed_all_together_and_not_after_a_restart() -> None:
    """A group's members are not kept over it: others join, and read again what is not settled."""
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"a", b"b")
    (view,) = topic.partitions[0].views
    transaction, lsn = begun(world), world.lsn()
    with pytest.raises(BadPosition):
        world.engine.transactions.commit_offsets(
            transaction, [(view, 1, lambda: None), (view, 3, lambda: None)]
        )
    assert world.lsn() == lsn
    world.engine.transactions.commit_offsets(transaction, [(view, 1, lambda: None)])
    world.reopen()
    transactions = world.engine.transactions
    with pytest.raises(StaleGeneration):
        transactions.end(NS, "x", commit=True, now_ms=world.now_ms)
    assert world.find().depth == 2
    transactions.end(NS, "x", commit=False, now_ms=world.now_ms)


# --- readers ---


def test_an_open_transaction_holds_back_its_own_partitions_only() -> None:
    world = World()
    topic, other = world.topic(partitions=2), world.topic("other")
    transaction = begun(world)
    origin = Origin(world.engine.transactions.branch(transaction))
    world.engine.publishing.publish(
        topic, world.batch(b"undecided"), now_ms=world.now_ms, partition=0, origin=origin
    )
    for partition in (0, 1):
        world.publish(topic, b"%d" % partition, partition=partition)
    world.publish(other, b"other")
    for name in ("s1", "s2"):
        assert values(world.drain(topic, name)) == [b"1"]
        assert values(world.drain(other, name)) == [b"other"]
    (held,) = world.engine.transactions.held(transaction)
    assert (held.topic, held.partition, held.first_offset, held.behind) == (topic, 0, 0, 2)
    world.engine.transactions.abort(transaction, now_ms=world.now_ms)
    assert values(world.drain(topic, "s1")) == [b"0"]


# --- who may ---


def test_a_name_that_is_begun_again_is_another_transaction() -> None:
    world = World()
    topic = world.topic()
    transactions = world.engine.transactions
    old = begun(world)
    publish(world, topic, old, b"half")
    world.advance(31_000)
    new = begun(world)
    publish(world, topic, new, b"of another")
    with pytest.raises(UnknownTransaction):
        transactions.find(NS, "x", now_ms=world.now_ms, number=old.number)
    with pytest.raises(TransactionAborted):
        transactions.conclude(old, commit=True, now_ms=world.now_ms)
    transactions.conclude(old, commit=False, now_ms=world.now_ms)
    assert transactions.find(NS, "x", now_ms=world.now_ms, number=new.number) is new
    commit(world, new)
    # How the second ended says nothing about the first, also after a restart.
    world.checkpoint()
    world.reopen()
    with pytest.raises(UnknownTransaction):
        world.engine.transactions.find(NS, "x", now_ms=world.now_ms, number=old.number)


def test_a_producer_is_its_owners() -> None:
    world = World()
    transactions = world.engine.transactions
    producer, _ = transactions.open_producer(NS, "p", owner="a", now_ms=world.now_ms)
    with pytest.raises(NotYourTransaction):
        transactions.producer(NS, producer.id, 0, owner="b", now_ms=world.now_ms)
    with pytest.raises(NotYourTransaction):
        transactions.open_producer(NS, "p", owner="b", now_ms=world.now_ms)
    assert transactions.producer(NS, producer.id, 0, owner="a", now_ms=world.now_ms) is producer


def test_the_last_epoch_is_fenced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "EPOCH_MAX", 1)
    world = World()
    topic = world.topic()
    transactions = world.engine.transactions
    opened = [transactions.open_producer(NS, "p", now_ms=world.now_ms)[0] for _ in range(3)]
    assert [each.epoch for each in opened] == [0, 1, 0]
    assert opened[2].id != opened[1].id
    for old in opened[:2]:
        with pytest.raises((UnknownProducer, ProducerFenced)):
            world.engine.publishing.publish(
                topic, world.batch(b"0"), now_ms=world.now_ms, origin=Origin(old, 0)
            )
    world.reopen()
    for old in opened[:2]:
        with pytest.raises(UnknownProducer):
            world.engine.transactions.producer(NS, old.id, old.epoch, now_ms=world.now_ms)


# --- what is kept ---


def test_a_producer_without_a_name_is_forgotten_when_it_is_closed() -> None:
    world = World()
    topic = world.topic()
    transactions = world.engine.transactions
    unnamed, _ = transactions.open_producer(NS, now_ms=world.now_ms)
    named, _ = transactions.open_producer(NS, "p", now_ms=world.now_ms)
    for producer in (unnamed, named):
        transactions.close_producer(producer)
        transactions.close_producer(producer)
    with pytest.raises(UnknownProducer):
        transactions.producer(NS, unnamed.id, 0, now_ms=world.now_ms)
    with pytest.raises(UnknownProducer):
        world.engine.publishing.publish(
            topic, world.batch(b"0"), now_ms=world.now_ms, origin=Origin(unnamed, 0)
        )
    assert transactions.producer(NS, named.id, 0, now_ms=world.now_ms) is named
    assert transactions.producer_count == 1
    again, _ = transactions.open_producer(NS, now_ms=world.now_ms)
    assert again.id not in (unnamed.id, named.id)


def test_producers_forget_what_they_had_in_topics_that_are_gone() -> None:
    world = World()
    producer, _ = world.engine.transactions.open_producer(NS, "p", now_ms=world.now_ms)
    for name in ("gone", "kept"):
        origin = Origin(producer, 0)
        world.engine.publishing.publish(
            world.topic(name), world.batch(b"0"), now_ms=world.now_ms, origin=origin
        )
    world.engine.topics.delete(world.find("gone"))
    kept = {world.find("kept").partitions[0].log.id}
    world.advance(world.engine.state.upkeep.check_interval_ms)
    assert producer.marks.keys() == kept
    # The journal tells of both again.
    world.reopen()
    producer = world.engine.transactions.producer(NS, producer.id, 0, now_ms=world.now_ms)
    assert producer.marks.keys() == kept


def test_a_namespace_is_deleted_with_its_transactions() -> None:
    world = World()
    transactions = world.engine.transactions
    step = Application("app", 1, 5)
    commit(world, begun(world, "done", application=step))
    producer, _ = transactions.open_producer(NS, "p", now_ms=world.now_ms)
    left_open = begun(world, "open")
    publish(world, world.topic(), left_open, b"a")
    elsewhere, _ = transactions.begin("other", "x", now_ms=world.now_ms)
    world.engine.namespaces.delete(NS, now_ms=world.now_ms)
    for _ in range(2):
        transactions = world.engine.transactions
        assert [each.number for each in transactions.transactions()] == [elsewhere.number]
        assert transactions.last_committed(NS, "app") is None
        with pytest.raises(UnknownProducer):
            transactions.producer(NS, producer.id, 0, now_ms=world.now_ms)
        with pytest.raises(UnknownTransaction):
            transactions.outcome(NS, "done")
        world.reopen()


def test_a_transaction_has_not_more_branches_than_can_be_numbered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "BRANCHES_MAX", 3)
    world = World()
    transaction = begun(world)
    for name in ("", "a", "b"):
        world.engine.transactions.branch(transaction, name)
    with pytest.raises(TooManyBranches):
        world.engine.transactions.branch(transaction, "c")
    assert world.engine.transactions.branch(transaction, "a").index == 1


# --- time ---


def test_nobody_may_hold_readers_back_for_ever() -> None:
    world = World()
    for name in ("timeout_ms", "session_ms"):
        with pytest.raises(BadRequest):
            begun(world, **{name: coordinator.DURATION_MS_MAX + 1})


def test_a_clock_that_was_set_back_does_not_prolong_a_transaction() -> None:
    world = World()
    transaction = begun(world, timeout_ms=MINUTE, session_ms=HOUR)
    world.reopen(after_ms=-10 * HOUR)
    world.advance(MINUTE)
    with pytest.raises(TransactionAborted):
        world.engine.transactions.find(NS, "x", now_ms=world.now_ms)
    assert not world.engine.transactions.transactions()
    assert transaction.number


def test_time_that_passes_while_the_node_is_down_counts_for_the_timeout() -> None:
    world = World()
    topic = world.topic()
    publish(world, topic, begun(world, timeout_ms=MINUTE), b"a")
    world.publish(topic, b"b")
    world.reopen(after_ms=MINUTE)
    world.advance(1)
    assert values(world.drain(world.find())) == [b"b"]


# --- limits ---

TEN = b"0123456789"


@pytest.mark.parametrize("limit", [{"max_messages": 3}, {"max_bytes": 30}])
def test_what_is_undecided_counts_towards_a_topics_limits(limit: dict[str, int]) -> None:
    world = World()
    topic = world.topic(overflow="reject", **limit)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.engine.subscriptions.subscribe(topic, "all", now_ms=world.now_ms, uncommitted=True)
    first, second = begun(world, "1"), begun(world, "2")
    publish(world, topic, first, TEN)
    publish(world, topic, second, TEN)
    assert world.publish(topic, TEN, TEN) == 1
    with pytest.raises(TopicFull):
        publish(world, topic, first, TEN)
    with pytest.raises(TopicFull):
        world.publish(topic, TEN)
    for _ in range(2):
        # What was aborted leaves room, also behind one that is still open, and after a restart.
        world.engine.transactions.end(NS, "2", commit=False, now_ms=world.now_ms)
        topic = world.find()
        partition = topic.partitions[0]
        for either in ({"max_messages": None, "max_bytes": None}, limit):
            world.engine.topics.alter(topic, either, now_ms=world.now_ms)
        assert (partition.undecided, partition.undecided_bytes) == (2, 20)
        world.reopen()
    topic = world.find()
    first = world.engine.transactions.find(NS, "1", now_ms=world.now_ms)
    publish(world, topic, first, TEN)
    with pytest.raises(TopicFull):
        world.publish(topic, TEN)
    commit(world, first)
    assert (topic.partitions[0].undecided, topic.partitions[0].undecided_bytes) == (0, 0)
    assert len(world.drain(topic)) == 3
    world.drain(topic, "all")
    assert world.publish(topic, TEN, TEN) == 2


def test_a_queue_that_drops_its_head_drops_at_the_commit() -> None:
    world = World()
    topic = world.topic(overflow="drop-head", max_messages=2)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"old")
    kept, aborted = begun(world, "1"), begun(world, "2")
    publish(world, topic, kept, b"a", b"b", b"c")
    publish(world, topic, aborted, b"x", b"y")
    world.engine.transactions.abort(aborted, now_ms=world.now_ms)
    assert topic.depth == 1
    commit(world, kept)
    assert values(world.drain(topic)) == [b"b", b"c"]


# --- readers of what is undecided ---


@pytest.mark.parametrize("settings", [{}, QUEUE_SETTINGS])
def test_what_was_aborted_nobody_gets_not_even_readers_of_undecided_records(settings) -> None:
    world = World()
    topic = world.topic(partitions=1, **{k: v for k, v in settings.items() if k != "partitions"})
    world.engine.subscriptions.subscribe(topic, "all", now_ms=world.now_ms, uncommitted=True)
    consumer = world.consumer(topic, "all", visibility_ms=0)
    kept, aborted = begun(world, "1"), begun(world, "2")
    publish(world, topic, aborted, b"had", b"never")
    publish(world, topic, kept, b"kept")
    (had,) = world.pull(consumer, limit=1)
    assert had.value == b"had"
    world.engine.transactions.abort(aborted, now_ms=world.now_ms)
    world.nack(had, delay_ms=0)
    assert values(world.pull(consumer)) == [b"kept"]
    assert topic.subscriptions["all"].depth == 1
    commit(world, kept)
    world.reopen()
    assert values(world.drain(world.find(), "all")) == [b"kept"]


# --- what was received without a connection ---


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_ORDERED])
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_has_after_a_restart_what_was_received_without_a_connection(
    mode: Mode, committed: bool
) -> None:
    """That keeps its deadline over a restart, but as the transaction's it has none."""
    world = World()
    topic = world.topic(retention={"until_acked": True}, visibility_ms=30_000)
    consumer = world.consumer(topic, mode=mode, passive=True)
    world.publish(topic, b"job")
    (got,) = world.pull(consumer)
    transaction = begun(world, timeout_ms=10_000_000, session_ms=10_000_000)
    world.engine.transactions.acknowledge(transaction, consumer, got.view, 0, 1)
    world.reopen()
    world.advance(60_000)
    assert world.drain(world.find()) == []
    transaction = world.engine.transactions.find(NS, "x", now_ms=world.now_ms)
    if committed:
        commit(world, transaction)
    else:
        world.engine.transactions.abort(transaction, now_ms=world.now_ms)
    world.advance(60_000)
    assert values(world.drain(world.find())) == ([] if committed else [b"job"])
