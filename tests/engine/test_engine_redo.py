"""Doing is redoing: an engine that is made from the entries of another is in the same state.

The machines of the other model tests run, and at random points a second engine is opened from a
copy of the disk: from the whole journal, or from a snapshot and what came after it. Everything
durable is compared; ``braidmq.testing.durable_state`` sees to it that nothing is forgotten.
"""

from typing import Any

from engine_model_world import batches, picks
from engine_worlds import NS, World, all_records, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from test_engine_model import EngineMachine
from test_transactions_model import TransactionMachine

from braidmq.engine.engine import Engine
from braidmq.engine.policy import QUEUE_SETTINGS, merge
from braidmq.engine.topics import Consumer
from braidmq.engine.transactions.entries import (
    Acknowledged,
    Application,
    Begun,
    BranchAdded,
    Completed,
    NamespaceForgotten,
    OffsetCommitted,
    Prepared,
    ProducerForgotten,
    ProducerSet,
    Stamp,
    StampKind,
    encode_entry,
)
from braidmq.engine.transactions.ledger import Ledger
from braidmq.engine.transactions.publishing import Origin
from braidmq.model.ids import PartitionId
from braidmq.storage.entries import RECORDS_HEAD, TARGET
from braidmq.storage.journal import Kind
from braidmq.testing.durable_state import differences, state_of_engine, state_of_ledger
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll


def check_redone(engine: Engine, disk: FaultyDisk, now_ms: int) -> None:
    engine.store.commit()
    copy = Engine.open(disk.crash(KeepAll()), now_ms, engine.store.settings)
    try:
        redone, done = state_of_engine(copy, now_ms), state_of_engine(engine, now_ms)
        assert not (found := differences(redone, done)), "\n".join(found)
    finally:
        copy.close()


class RedoneEngine(EngineMachine):
    """Without transient records: they are in no entry."""

    @rule(pick=picks, wanted=batches)
    def publish(self, pick: int, wanted: list[dict[str, Any]]) -> None:
        self.world.publish([self.topic_at(pick).name], wanted, durable=True)

    @rule(wanted=batches)
    def fan_out(self, wanted: list[dict[str, Any]]) -> None:
        self.world.publish(list(self.world.model.topics), wanted, durable=True)

    @rule()
    def redo(self) -> None:
        check_redone(self.world.engine, self.world.disk, self.world.now_ms)

    @rule()
    def redo_from_a_snapshot(self) -> None:
        self.world.engine.store.checkpoint()
        self.redo()

    def teardown(self) -> None:
        self.redo()
        super().teardown()


class RedoneTransactions(TransactionMachine):
    @precondition(lambda self: hasattr(self, "engine"))
    @rule()
    def redo(self) -> None:
        self.sync()
        check_redone(self.engine, self.disk, self.now_ms)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.redo()
        super().teardown()


TestRedoneEngine = RedoneEngine.TestCase
TestRedoneTransactions = RedoneTransactions.TestCase
TestRedoneEngine.settings = TestRedoneTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# --- what the machines come to seldom ---


def queue_with_two_released(world: World) -> Consumer:
    queue = world.topic("q", **QUEUE_SETTINGS)
    consumer = world.consumer(queue)
    world.publish(queue, b"a", b"b", b"c")
    for got in world.dispatch()[:2]:
        world.ack(got)
    return consumer


def check_world(world: World) -> None:
    assert isinstance(world.disk, FaultyDisk)
    check_redone(world.engine, world.disk, world.now_ms)


def test_what_a_queue_released_stays_so_when_it_keeps_everything_from_now_on() -> None:
    world = World(FaultyDisk())
    queue_with_two_released(world)
    kept = merge(QUEUE_SETTINGS, {"retention": {"until_acked": False}})
    world.engine.topics.alter(world.find("q"), kept, now_ms=world.now_ms)
    check_world(world)
    assert [each.value for each in all_records(world.reopen(), world.find("q"))] == [b"c"]


def test_what_queues_released_stays_so_when_a_template_that_made_them_queues_goes() -> None:
    """Wherever among them the crash comes, and though they release more while it goes."""
    for steps in range(9):
        world = World(FaultyDisk())
        rule = {"retention": {"until_acked": True}}
        world.engine.templates.put(NS, "queues", ".*", rule, now_ms=world.now_ms)
        names = ["a", "b", "c"]
        consumers = {name: world.consumer(world.topic(name)) for name in names}
        for name in names:
            world.publish(world.find(name), b"0", b"1", b"2")
        waiting = world.dispatch()
        for got in [each for each in waiting if each.value == b"0"]:
            world.ack(got)
        work = world.engine.templates.deleting(NS, "queues", now_ms=world.now_ms)
        for _, _ in zip(range(steps), work, strict=False):
            pass
        for got in [each for each in waiting if each.value == b"1"]:
            world.ack(got)
        kept = {
            name: [each.value for each in all_records(world, world.find(name))] for name in names
        }
        world.engine.store.commit()
        left = world.crash()
        is_gone = not left.engine.state.templates
        for name in names if is_gone else ():
            found = [each.value for each in all_records(left, left.find(name))]
            assert found == kept[name], (steps, name)
            assert b"0" not in found
        assert consumers


def test_what_a_queue_released_stays_so_when_its_subscription_is_deleted() -> None:
    world = World(FaultyDisk())
    consumer = queue_with_two_released(world)
    world.engine.subscriptions.delete(consumer.subscription)
    check_world(world)
    world.reopen()
    assert values(world.drain(world.find("q"), "new")) == [b"c"]


def test_what_a_queue_keeps_of_acknowledged_messages_is_there_for_who_comes_next() -> None:
    world = World(FaultyDisk())
    rule = {"retention": {"until_acked": True, "keep_acked_ms": 1000}}
    queue = world.topic("q", **merge(QUEUE_SETTINGS, rule))
    consumer = world.consumer(queue)
    world.publish(queue, b"a", b"b")
    world.ack(world.dispatch()[0])
    world.engine.subscriptions.delete(consumer.subscription)
    check_world(world)
    assert values(world.drain(world.find("q"), "new")) == [b"a", b"b"]
    world.reopen()
    assert values(world.drain(world.find("q"), "newer")) == [b"a", b"b"]


def test_what_a_transaction_has_in_a_topic_goes_with_it() -> None:
    world = World(FaultyDisk())
    gone, left = world.topic("gone"), world.topic("left")
    transaction = world.engine.transactions.begin(NS, "t", now_ms=world.now_ms)[0]
    branch = world.engine.transactions.branch(transaction)
    for topic in (gone, left):
        world.engine.publishing.publish(
            topic, world.batch(b"x"), now_ms=world.now_ms, origin=Origin(branch, 0)
        )
    world.engine.topics.delete(gone)
    check_world(world)


def test_an_aborted_transaction_is_left_out_once_an_older_one_is_decided() -> None:
    world = World(FaultyDisk())
    log, transactions = world.topic("log"), world.engine.transactions
    view = world.engine.subscriptions.subscribe(log, "s", now_ms=world.now_ms).views[0]
    older, newer = (transactions.begin(NS, name, now_ms=world.now_ms)[0] for name in ("t", "u"))
    for transaction in (older, newer):
        origin = Origin(transactions.branch(transaction), 0)
        world.engine.publishing.publish(
            log, world.batch(b"x"), now_ms=world.now_ms, partition=0, origin=origin
        )
    transactions.abort(newer, now_ms=world.now_ms)
    check_world(world)
    transactions.commit(older, now_ms=world.now_ms)
    check_world(world)
    assert view.state.settled.ranges_above_floor() == [(1, 4)]


# --- the ledger, entry by entry ---

PARTITIONS = [PartitionId(1), PartitionId(2)]
numbers = st.integers(1, 3)
names = st.sampled_from(["", "a", "b"])
offsets = st.integers(0, 9)
namespaces = st.sampled_from(["n", "m"])
applications = st.none() | st.builds(Application, names, numbers, numbers)
transaction_entries = st.one_of(
    st.builds(ProducerSet, numbers, numbers, namespaces, names, names),
    st.builds(ProducerForgotten, numbers),
    st.builds(
        Begun, numbers, namespaces, names, names, numbers, applications, offsets, offsets, offsets
    ),
    st.builds(BranchAdded, numbers, st.integers(0, 1), st.sampled_from(["", "x"])),
    st.builds(
        Acknowledged, numbers, numbers, numbers, st.lists(st.tuples(offsets, offsets), max_size=2)
    ),
    st.builds(OffsetCommitted, numbers, numbers, numbers, offsets),
    st.builds(Prepared, numbers, st.booleans(), names, st.lists(st.integers(0, 1), max_size=2)),
    st.builds(Completed, numbers, offsets),
    st.builds(NamespaceForgotten, namespaces),
)
stamps = st.builds(
    Stamp,
    producer=numbers,
    epoch=numbers,
    kind=st.sampled_from(StampKind),
    branch=st.just(0),
    transaction=numbers,
    sequence=offsets,
    last=st.integers(-1, 9),
    records=numbers,
)
stamped = st.tuples(
    stamps,
    st.lists(st.tuples(st.sampled_from(PARTITIONS), offsets), min_size=1, max_size=2),
)


BEFORE = [
    ProducerSet(1, 1, "n", "a", ""),
    *(Begun(number, "n", f"t{number}", "", 1, None, 0, 9, 9) for number in (1, 2)),
]


@settings(max_examples=300)
@given(happened=st.lists(transaction_entries | stamped, max_size=40))
def test_the_ledger_is_the_same_after_every_entry(happened: list[Any]) -> None:
    done, redone = Ledger(), Ledger()
    for each in [*BEFORE, *happened]:
        if isinstance(each, tuple):
            stamp, targets = each
            done.stamped(targets, stamp)
            head = RECORDS_HEAD.pack(len(targets), 0)
            meta = b"".join([head, *(TARGET.pack(*to) for to in targets), stamp.encode()])
            redone.replay(Kind.RECORDS, meta)
        else:
            done.apply(each)
            redone.replay(Kind.TRANSACTION, encode_entry(each))
        compare(redone, done)
    restored = Ledger()
    restored.restore(done.dump())
    compare(restored, done)


def compare(redone: Ledger, done: Ledger) -> None:
    found = differences(state_of_ledger(redone, PARTITIONS), state_of_ledger(done, PARTITIONS))
    assert not found, "\n".join(found)
