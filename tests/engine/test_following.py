"""A state is a function of the entries: a store that is fed another's agrees with it at every
checkpoint, whatever the engine did between them, and whatever crashes it came through."""

import pytest
from engine_model_world import SMALL
from engine_worlds import World
from followers import Follower
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule
from test_engine_crashes import CrashMachine
from test_engine_model import EngineMachine
from test_transactions_model import TransactionMachine

from braidmq.engine.engine import Engine
from braidmq.engine.policy import QUEUE_SETTINGS
from braidmq.engine.transactions.ledger import Ledger
from braidmq.model.errors import StateDiverged
from braidmq.model.ids import SubscriptionId
from braidmq.testing.durable_state import differences, state_of_ledger
from braidmq.testing.faulty_disk import CrashChoice, FaultyDisk


def follow(engine: Engine, follower: Follower) -> None:
    """Whenever it was opened again: a leadership begins."""
    if engine.store.journal.replication is not follower:
        follower.follow(engine.store)
        engine.store.begin_term(engine.store.state.term + 1, bytes(16), 0)


def check_followed(engine: Engine, follower: Follower) -> None:
    """At a checkpoint they agree: its entry says so, and so does whoever looks."""
    before = follower.checked
    engine.store.checkpoint()
    assert follower.checked == before + 1
    theirs, ours = engine.store.state, follower.store.state
    assert ours.digest() == theirs.digest()
    led = theirs.participants["transactions"]
    assert isinstance(led, Ledger)
    found = differences(
        state_of_ledger(follower.ledger, ours.logs), state_of_ledger(led, theirs.logs)
    )
    assert not found, "\n".join(found)


class FollowedEngine(EngineMachine):
    """Crashes come after a commit; transient records come, too."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = Follower(SMALL)
        follow(self.world.engine, self.follower)

    @invariant()
    def followed(self) -> None:
        follow(self.world.engine, self.follower)

    @rule()
    def agree(self) -> None:
        check_followed(self.world.engine, self.follower)

    def teardown(self) -> None:
        follow(self.world.engine, self.follower)
        check_followed(self.world.engine, self.follower)
        super().teardown()


class FollowedCrashes(CrashMachine):
    """Crashes come at any time: what was not durable may be in nobody's journal, or in both."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = Follower(SMALL)
        follow(self.engine, self.follower)

    @invariant()
    def followed(self) -> None:
        follow(self.engine, self.follower)

    @rule()
    def agree(self) -> None:
        check_followed(self.engine, self.follower)

    def teardown(self) -> None:
        follow(self.engine, self.follower)
        check_followed(self.engine, self.follower)
        super().teardown()


class FollowedTransactions(TransactionMachine):
    def __init__(self) -> None:
        super().__init__()
        self.follower = Follower(SMALL)

    def crash_while_syncing(self, choice: CrashChoice) -> FaultyDisk:
        # The sync never ends, and nobody hears that it did.
        self.engine.store.journal.replication = None
        return super().crash_while_syncing(choice)

    @precondition(lambda self: hasattr(self, "engine"))
    @invariant()
    def followed(self) -> None:
        follow(self.engine, self.follower)

    @precondition(lambda self: hasattr(self, "engine"))
    @rule()
    def agree(self) -> None:
        self.sync()
        check_followed(self.engine, self.follower)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            follow(self.engine, self.follower)
            check_followed(self.engine, self.follower)
        super().teardown()


TestFollowedEngine = FollowedEngine.TestCase
TestFollowedCrashes = FollowedCrashes.TestCase
TestFollowedTransactions = FollowedTransactions.TestCase
for case in (TestFollowedEngine, TestFollowedCrashes, TestFollowedTransactions):
    case.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


# --- each place where something was done that no entry said ---


def followed_world() -> tuple[World, Follower]:
    world = World(FaultyDisk())
    follower = Follower(world.settings)
    follow(world.engine, follower)
    return world, follower


def reopen(world: World, follower: Follower) -> None:
    left = world.crash()
    follow(left.engine, follower)
    check_followed(left.engine, follower)


def test_where_a_queue_begins_whose_messages_are_acknowledged() -> None:
    world, follower = followed_world()
    queue = world.topic("q", **QUEUE_SETTINGS)
    world.consumer(queue)
    world.publish(queue, b"a", b"b", b"c")
    for got in world.dispatch()[:2]:
        world.ack(got)
    check_followed(world.engine, follower)
    assert follower.store.logs[queue.partitions[0].log.id].start_offset == 2


def test_where_a_log_ends_behind_records_that_were_never_journaled() -> None:
    world, follower = followed_world()
    topic = world.topic()
    world.consumer(topic)
    world.engine.publishing.publish(
        topic, world.batch(b"a", b"b"), now_ms=world.now_ms, durable=False
    )
    check_followed(world.engine, follower)
    assert follower.store.logs[topic.partitions[0].log.id].next_offset == 2


def test_offsets_that_recovery_passes_over() -> None:
    """The records are lost, and a note of their delivery is not."""
    world, follower = followed_world()
    topic = world.topic()
    world.consumer(topic)
    world.engine.publishing.publish(
        topic, world.batch(b"a", b"b"), now_ms=world.now_ms, durable=False
    )
    assert len(world.dispatch()) == 2
    world.engine.store.commit()
    reopen(world, follower)


def test_acknowledgements_of_a_subscription_that_never_came_to_be() -> None:
    world, follower = followed_world()
    log = world.topic().partitions[0].log
    world.publish(world.find(), b"a")
    stranger = SubscriptionId(99)
    world.engine.store.acknowledge(stranger, log.id, [(0, 1)])
    world.engine.store.commit()
    reopen(world, follower)
    assert (stranger, log.id) not in follower.store.acknowledged


def test_offsets_where_no_record_stands() -> None:
    """Compaction took it, and who begins anew counts what there is."""
    world, follower = followed_world()
    topic = world.topic("t", compaction={"enabled": True, "lag_ms": 0})
    view = world.consumer(topic).subscription.views[0]
    world.publish(topic, b"a", b"b", b"c", key=b"k")
    world.now_ms += 1000
    world.engine.advance(world.now_ms)
    list(world.engine.compacting.compact(topic, world.now_ms))
    check_followed(world.engine, follower)
    world.engine.offsets.rewind(view.subscription, "earliest", now_ms=world.now_ms)
    check_followed(world.engine, follower)
    assert view.state.settled.floor == 2


def test_a_store_that_has_come_to_another_state_says_so() -> None:
    world, follower = followed_world()
    topic = world.topic()
    world.publish(topic, b"a")
    world.engine.store.commit()
    follower.store.state.acknowledge(SubscriptionId(7), topic.partitions[0].log.id, [(0, 1)])
    with pytest.raises(StateDiverged):
        world.engine.store.checkpoint()


def test_nobody_looks_at_the_state_where_nobody_follows() -> None:
    world, follower = followed_world()
    world.engine.store.journal.replication = None
    world.engine.store.checkpoint()
    assert follower.next_lsn == 1
