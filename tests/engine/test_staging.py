"""Transactions that stage: nothing of theirs is in a topic before the commit, all of it after."""

import pytest
from engine_worlds import NS, World, crashes, values

from braidmq.engine.errors import TopicFull, UnknownTopic
from braidmq.engine.state import STAGING
from braidmq.engine.topics import Topic
from braidmq.engine.transactions import staging
from braidmq.engine.transactions.entries import Application
from braidmq.engine.transactions.errors import (
    OtherInstance,
    TransactionAborted,
    TransactionCommitting,
)
from braidmq.engine.transactions.ledger import Transaction
from braidmq.engine.transactions.publishing import Origin
from braidmq.model.errors import BadRequest


def begun(world: World, name: str = "x", **options) -> Transaction:
    transaction, _ = world.engine.transactions.begin(
        NS, name, now_ms=world.now_ms, staged=True, **options
    )
    return transaction


def stage(
    world: World,
    topic: Topic,
    transaction: Transaction,
    *contents: bytes,
    branch: str = "a",
    sequence: int = -1,
    partition: int | None = None,
) -> None:
    origin = Origin(world.engine.transactions.branch(transaction, branch), sequence)
    world.engine.publishing.publish(
        topic, world.batch(*contents), now_ms=world.now_ms, origin=origin, partition=partition
    )


def commit(world: World, transaction: Transaction, *branches: str) -> None:
    for _ in world.engine.staging.committing(transaction, branches or None, world.now_ms):
        pass


def read(world: World, topic: Topic) -> list[bytes]:
    return [
        record.value
        for partition in range(len(topic.partitions))
        for run in world.engine.reading.read(topic, partition, 0)
        for record in run.batch.records()[run.first : run.stop]
    ]


def test_others_are_read_while_it_is_open() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    transaction = begun(world)
    stage(world, topic, transaction, b"staged")
    world.publish(topic, b"plain")
    assert values(world.pull(consumer)) == [b"plain"]
    assert not topic.partitions[0].open_transactions
    commit(world, transaction)
    assert values(world.pull(consumer)) == [b"staged"]


def test_only_branches_that_are_named_count_in_their_order() -> None:
    world = World()
    topic = world.topic()
    transaction = begun(world)
    for branch, value in (("a", b"1"), ("b", b"2"), ("lost", b"x"), ("a", b"3")):
        stage(world, topic, transaction, value, branch=branch)
    commit(world, transaction, "b", "a")
    assert read(world, topic) == [b"2", b"1", b"3"]


def test_what_is_sent_twice_counts_once() -> None:
    world = World()
    topic = world.topic(partitions=2)
    transaction = begun(world)
    for _ in range(2):
        stage(world, topic, transaction, b"a", b"b", sequence=0, partition=1)
        stage(world, topic, transaction, b"c", sequence=0)
    commit(world, transaction)
    assert sorted(read(world, topic)) == [b"a", b"b", b"c"]
    assert topic.partitions[1].log.next_offset >= 2


@pytest.mark.parametrize("commits", [True, False])
def test_nothing_is_left_of_the_staging(commits: bool) -> None:
    world = World()
    topic = world.topic()
    transaction = begun(world)
    stage(world, topic, transaction, b"a")
    assert [each.namespace for each in world.engine.state.topics.values()] == [NS, STAGING]
    assert world.engine.state.topics_of() == [topic]
    if commits:
        commit(world, transaction)
    else:
        world.engine.transactions.abort(transaction, now_ms=world.now_ms)
    assert list(world.engine.state.topics.values()) == [topic]
    assert read(world, topic) == ([b"a"] if commits else [])
    world.reopen()
    assert len(world.engine.state.topics) == 1


def test_a_commit_that_a_crash_interrupts_is_finished_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each step of it: what was copied before is not copied again."""
    monkeypatch.setattr(staging, "SLICE_BYTES", 1)
    for steps in range(8):
        world = World()
        topic = world.topic(partitions=2)
        transaction = begun(world, application=Application("app", 0, steps))
        for number in range(3):
            contents = [b"%d%d" % (number, each) for each in range(3)]
            stage(world, topic, transaction, *contents, branch=str(number))
        work = world.engine.staging.committing(transaction, ["0", "2"], world.now_ms)
        for _ in range(steps):
            next(work, None)
        world.reopen()
        topic = world.engine.state.topic(NS, topic.name)
        for _ in range(20):
            world.engine.advance(world.now_ms)
        found = read(world, topic)
        if steps:
            assert sorted(found) == [b"00", b"01", b"02", b"20", b"21", b"22"], steps
            assert world.engine.transactions.last_committed(NS, "app") == (0, steps)
            assert not world.engine.transactions.transactions()
        else:
            assert found == []
            assert len(world.engine.transactions.transactions()) == 1
        assert len(world.engine.state.topics) == (1 if steps else 2)


def test_nobody_gets_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE_BYTES", 1)
    world = World()
    topic = world.topic()
    transaction = begun(world)
    for value in (b"a", b"b", b"c"):
        stage(world, topic, transaction, value)
        world.publish(topic, b"between")
    work = world.engine.staging.committing(transaction, None, world.now_ms)
    next(work)
    with pytest.raises(TransactionCommitting):
        stage(world, topic, transaction, b"late")
    with pytest.raises(TransactionCommitting):
        begun(world)
    assert read(world, topic) == [b"between"] * 3
    for _ in work:
        pass
    assert read(world, topic) == [b"between"] * 3 + [b"a", b"b", b"c"]


def test_an_abort_while_it_is_copied_takes_all_of_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE_BYTES", 1)
    world = World()
    topic = world.topic()
    transaction = begun(world)
    stage(world, topic, transaction, b"a")
    stage(world, topic, transaction, b"b")
    work = world.engine.staging.committing(transaction, None, world.now_ms)
    next(work)
    world.engine.transactions.abort(transaction, now_ms=world.now_ms)
    with pytest.raises(TransactionAborted):
        next(work)
    world.publish(topic, b"c")
    assert read(world, topic) == [b"c"]


def test_a_topic_that_is_gone_or_full_refuses_the_commit() -> None:
    world = World()
    kept, gone = world.topic(max_messages=2, overflow="reject"), world.topic("gone")
    world.engine.subscriptions.subscribe(kept, "s", now_ms=world.now_ms)
    transaction = begun(world)
    stage(world, kept, transaction, b"a", b"b")
    with pytest.raises(TopicFull):
        stage(world, kept, transaction, b"c", b"d", b"e")
    world.publish(kept, b"first")
    with pytest.raises(TopicFull):
        commit(world, transaction)
    stage(world, gone, transaction, b"c")
    world.engine.topics.delete(gone)
    with pytest.raises(UnknownTopic):
        commit(world, transaction)
    assert read(world, kept) == [b"first"]


def test_its_owner_is_gone() -> None:
    world = World()
    topic = world.topic()
    transaction = begun(world, session_ms=15_000, timeout_ms=86_400_000)
    stage(world, topic, transaction, b"a")
    world.now_ms += 14_000
    world.engine.advance(world.now_ms)
    assert world.engine.transactions.transactions() == [transaction]
    world.now_ms += 1_000
    world.engine.advance(world.now_ms)
    assert world.engine.transactions.transactions() == []
    assert list(world.engine.state.topics.values()) == [topic]


def test_one_that_is_staged_is_committed_in_steps_or_not_at_all() -> None:
    world = World()
    transaction = begun(world)
    with pytest.raises(BadRequest, match="HTTP"):
        world.engine.transactions.commit(transaction, now_ms=world.now_ms)


def test_another_instance_does_not_go_on_counting() -> None:
    world = World()
    commit(world, begun(world, "one", application=Application("app", 0, 0, "query-1")))
    with pytest.raises(OtherInstance, match="query-1"):
        begun(world, "two", application=Application("app", 0, 0, "query-2"))
    world.reopen()
    with pytest.raises(OtherInstance):
        begun(world, "two", application=Application("app", 0, 1, "query-2"))
    begun(world, "two", application=Application("app", 1, 0, "query-2"))


def test_a_crash_anywhere_leaves_all_of_it_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE_BYTES", 1)
    expected = [b"00", b"01", b"20", b"21"]

    def prepare(world: World) -> None:
        topic = world.topic(partitions=2)
        transaction = begun(world, application=Application("app", 0, 7))
        for number in range(3):
            contents = [b"%d%d" % (number, each) for each in range(2)]
            stage(world, topic, transaction, *contents, branch=str(number))

    def act(world: World) -> None:
        (transaction,) = world.engine.transactions.transactions()
        for _ in world.engine.staging.committing(transaction, ["0", "2"], world.now_ms):
            world.engine.store.commit()
        world.engine.store.commit()
        world.checkpoint()

    ends = set()
    for left in crashes(prepare, act):
        while left.engine.has_more:
            left.engine.advance(left.now_ms)
        open_ones = left.engine.transactions.transactions()
        found = sorted(read(left, left.find()))
        ends.add(bool(open_ones))
        assert found == ([] if open_ones else expected)
        for transaction in open_ones:
            commit(left, transaction, "0", "2")
        assert sorted(read(left, left.find())) == expected
        assert len(left.engine.state.topics) == 1
    assert ends == {True, False}
