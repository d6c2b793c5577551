"""A resize is a barrier: what a key has in its new partition comes after what it has in the old."""

from types import SimpleNamespace
from typing import Any

import pytest
from engine_worlds import NS, World, roomy, values

from braidmq.engine.barriers import Barriers, common
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.errors import PartitionClosed, TooManyResizes
from braidmq.engine.records import Resize
from braidmq.engine.resizing import DRAINED_LOOK_MS, RESIZES_MAX
from braidmq.engine.topics import Consumer, Mode, Topic
from braidmq.engine.transactions.publishing import Origin
from braidmq.record.key_hash import partition_for
from braidmq.storage.quarantine import Damage

UNTIL_ACKED = {"retention": {"until_acked": True}}


def resize(world: World, topic: Topic, count: int) -> None:
    settings = {**topic.settings, "partitions": count}
    world.engine.topics.alter(topic, settings, now_ms=world.now_ms)


def key_of(before: int, number: int, after: int, then: int) -> bytes:
    """A key that moves from one partition to another."""
    for each in range(100_000):
        key = b"key-%d" % each
        if partition_for(key, before) == number and partition_for(key, after) == then:
            return key
    raise AssertionError("there is no such key")


def moved(world: World, **settings: Any) -> tuple[Topic, bytes]:
    """Old messages of a key in partition 0 of 1, new ones in partition 1 of 2."""
    topic = world.topic(**settings)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    key = key_of(1, 0, 2, 1)
    world.publish(topic, b"old-1", b"old-2", key=key)
    resize(world, topic, 2)
    world.publish(topic, b"new-1", b"new-2", key=key)
    return topic, key


def reader(world: World, topic: Topic, name: str = "s", **options: Any) -> Consumer:
    return world.consumer(topic, name, credits=roomy(), **options)


def test_keys_come_from_partitions_with_the_same_remainder() -> None:
    for before in range(1, 9):
        for after in range(1, 9):
            for number in range(after):
                hashes = [h for h in range(before * after) if h % after == number]
                divisor = common(Resize(before, after, []))
                found = range(number % divisor, before, divisor)
                assert list(found) == sorted({h % before for h in hashes})


def test_of_many_that_are_waited_for_a_few_are_named() -> None:
    world = World()
    topic = world.topic(partitions=50)
    sub = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(50):
        world.publish(topic, b"old", partition=number)
    resize(world, topic, 49)
    resize(world, topic, 60)
    assert sub.barriers is not None
    for most in (1, 10):
        for number, found in enumerate(sub.barriers.awaited(most)):
            assert len(found) == most
            assert number not in found
            assert set(found) <= set(range(50))


class CountedState:
    """How often it is asked what is unsettled."""

    def __init__(self, state: DeliveryState) -> None:
        self.state = state
        self.looks = 0

    def first_unsettled(self, start: int, stop: int) -> int:
        self.looks += 1
        return self.state.first_unsettled(start, stop)


def test_a_partition_is_looked_at_once_however_many_resizes_there_were() -> None:
    world = World()
    topic = world.topic(partitions=2)
    sub = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(RESIZES_MAX):
        world.publish(topic, b"old", partition=0)
        resize(world, topic, 3 - number % 2)
    (view, *_) = sub.views
    counted: Any = SimpleNamespace(log=view.log, state=CountedState(view.state))
    watched: Any = SimpleNamespace(views=[counted, *sub.views[1:]])
    barriers = Barriers(watched, topic.resizes)
    assert not barriers.look()
    assert counted.state.looks == 1
    assert not barriers.is_over


def test_what_moved_waits_until_everything_before_the_switch_is_settled() -> None:
    world = World()
    topic, _ = moved(world)
    consumer = reader(world, topic)
    old = world.pull(consumer)
    assert values(old) == [b"old-1", b"old-2"]
    assert consumer.subscription.depth == 4
    world.ack(old[1])
    assert world.pull(consumer) == []
    world.nack(old[0])
    assert world.pull(consumer) == []
    world.advance(10_000)
    (again,) = world.pull(consumer)
    assert again.value == b"old-1"
    world.ack(again)
    assert values(world.pull(consumer)) == [b"new-1", b"new-2"]
    assert consumer.subscription.barriers is None


def test_whoever_is_pushed_to_is_told_when_the_barrier_is_lifted() -> None:
    world = World()
    topic, _ = moved(world)
    reader(world, topic)
    old = world.dispatch()
    assert values(old) == [b"old-1", b"old-2"]
    for each in old:
        world.ack(each)
    assert values(world.dispatch()) == [b"new-1", b"new-2"]


def test_whoever_waits_is_woken_when_the_barrier_is_lifted() -> None:
    world = World()
    topic, _ = moved(world)
    consumer = reader(world, topic, passive=True)
    old = world.pull(consumer)
    world.engine.dispatching.watch(consumer.subscription)
    world.engine.take_effects()
    world.engine.offsets.commit(consumer.subscription.views[0], 2)
    assert [type(each).__name__ for each in world.engine.take_effects()] == ["SubscriptionReady"]
    assert len(old) == 2
    assert values(world.pull(consumer)) == [b"new-1", b"new-2"]


def test_whoever_waits_is_woken_when_retention_lifts_the_barrier() -> None:
    world = World()
    topic, _ = moved(world)
    consumer = reader(world, topic, passive=True)
    world.engine.dispatching.watch(consumer.subscription)
    world.engine.take_effects()
    world.engine.retention.cut(topic.partitions[0], 2)
    assert [type(each).__name__ for each in world.engine.take_effects()] == ["SubscriptionReady"]
    assert values(world.pull(consumer)) == [b"new-1", b"new-2"]


def test_doubling_pauses_only_new_partitions() -> None:
    world = World()
    topic = world.topic(partitions=2)
    sub = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in (0, 1):
        world.publish(topic, b"old", partition=number)
    resize(world, topic, 4)
    for number in range(4):
        world.publish(topic, b"new", partition=number)
    consumer = reader(world, topic)
    got = world.pull(consumer)
    assert sorted((each.view.partition.number, each.value) for each in got) == [
        *((0, b"new"), (0, b"old"), (1, b"new"), (1, b"old")),
    ]
    assert sub.barriers is not None
    assert sub.barriers.awaited(10) == [[], [], [0], [1]]
    for each in got:
        if each.view.partition.number == 0 and each.value == b"old":
            world.ack(each)
    (free,) = world.pull(consumer)
    assert free.view.partition.number == 2


def test_a_barrier_is_there_again_after_a_restart() -> None:
    world = World()
    moved(world)
    world.reopen()
    topic = world.find()
    consumer = reader(world, topic)
    old = world.pull(consumer)
    assert values(old) == [b"old-1", b"old-2"]
    world.ack(old[0])
    world.reopen(60_000).advance(1)
    consumer = reader(world, world.find())
    assert values(world.pull(consumer)) == [b"old-2"]
    world.checkpoint()
    world.reopen(60_000).advance(1)
    assert values(world.drain(world.find())) == [b"old-2", b"new-1", b"new-2"]


def test_a_barrier_holds_again_after_a_rewind() -> None:
    world = World()
    topic, _ = moved(world)
    assert values(world.drain(topic)) == [b"old-1", b"old-2", b"new-1", b"new-2"]
    consumer = reader(world, topic)
    world.engine.offsets.rewind(consumer.subscription, "earliest", now_ms=world.now_ms)
    assert values(world.pull(consumer)) == [b"old-1", b"old-2"]
    assert world.pull(consumer) == []


def test_what_somebody_has_when_the_barrier_rises_again_can_be_answered() -> None:
    world = World()
    topic, key = moved(world)
    consumer = reader(world, topic)
    for each in world.pull(consumer):
        world.ack(each)
    new = world.pull(consumer)
    assert values(new) == [b"new-1", b"new-2"]
    sub = consumer.subscription
    world.engine.offsets.rewind(sub, "earliest", now_ms=world.now_ms)
    world.publish(topic, b"new-3", key=key)
    assert [world.ack(each) for each in new] == [0, 0]
    assert values(world.pull(consumer)) == [b"old-1", b"old-2"]


def test_one_that_begins_behind_the_switch_waits_for_nothing() -> None:
    world = World()
    topic, key = moved(world)
    for start in ("latest", f"@{world.now_ms + 1}"):
        sub = world.engine.subscriptions.subscribe(
            topic, f"s{start}", now_ms=world.now_ms, start=start
        )
        assert sub.barriers is None
    world.publish(topic, b"new-3", key=key)
    assert values(world.drain(topic, "slatest")) == [b"new-3"]


def test_a_topic_that_promises_no_order_has_no_barriers() -> None:
    world = World()
    topic, _ = moved(world, ordering="none")
    assert len(world.pull(reader(world, topic))) == 4


def test_a_group_that_keeps_the_order_of_keys_does_so_on_any_topic() -> None:
    world = World()
    topic = world.topic(ordering="none")
    consumer = reader(world, topic, "k", mode=Mode.KEY_ORDERED)
    key = key_of(1, 0, 2, 1)
    world.publish(topic, b"old", key=key)
    resize(world, topic, 2)
    world.publish(topic, b"new", key=key)
    (old,) = world.pull(consumer)
    assert world.pull(consumer) == []
    world.ack(old)
    assert values(world.pull(consumer)) == [b"new"]


def test_a_delayed_message_that_is_not_due_holds_nothing() -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    key = key_of(1, 0, 2, 1)
    world.publish(topic, b"later", key=key, due_at_ms=world.now_ms + 5000)
    resize(world, topic, 2)
    world.publish(topic, b"new", key=key)
    assert values(world.pull(reader(world, topic))) == [b"new"]


@pytest.mark.parametrize("how", ["purge", "reject", "expire", "retention", "delete", "commit"])
def test_whatever_takes_old_messages_away_lifts_the_barrier(how: str) -> None:
    world = World()
    topic = world.topic()
    consumer = reader(world, topic)
    key = key_of(1, 0, 2, 1)
    fields = {"expires_at_ms": world.now_ms + 100} if how == "expire" else {}
    world.publish(topic, b"old-1", b"old-2", key=key, **fields)
    resize(world, topic, 2)
    world.publish(topic, b"new", key=key)
    view = consumer.subscription.views[0]
    if how == "purge":
        world.engine.retention.purge(topic)
        world.publish(topic, b"new", key=key)
    elif how == "reject":
        for each in world.dispatch():
            world.reject(each)
    elif how == "expire":
        world.advance(200)
    elif how == "retention":
        world.engine.retention.cut(topic.partitions[0], 2)
    elif how == "delete":
        for each in world.dispatch():
            world.ack(each)
    else:
        world.engine.offsets.commit(view, 2)
    assert values(world.dispatch()) == [b"new"]


def test_records_of_an_open_transaction_hold_the_barrier() -> None:
    world = World()
    topic = world.topic()
    consumer = reader(world, topic)
    key = key_of(1, 0, 2, 1)
    coordinator = world.engine.transactions
    transaction, _ = coordinator.begin(NS, "tx", now_ms=world.now_ms)
    branch = transaction.branches[""]
    world.engine.publishing.publish(
        topic, world.batch(b"old", key=key), world.now_ms, origin=Origin(branch)
    )
    resize(world, topic, 2)
    world.publish(topic, b"new", key=key)
    assert world.dispatch() == []
    coordinator.commit(transaction, now_ms=world.now_ms)
    (old,) = world.dispatch()
    assert old.value == b"old"
    world.ack(old)
    assert values(world.dispatch()) == [b"new"]
    assert consumer.subscription.barriers is None


def test_a_key_that_skipped_a_partition_still_waits_for_the_one_before() -> None:
    """1 → 2 → 4: nothing was published while there were two."""
    world = World()
    topic = world.topic()
    reader(world, topic)
    key = key_of(1, 0, 4, 3)
    world.publish(topic, b"k-1", key=key)
    resize(world, topic, 2)
    world.publish(topic, b"other", partition=0)
    resize(world, topic, 4)
    world.publish(topic, b"k-2", key=key)
    old = world.dispatch()
    assert values(old) == [b"k-1", b"other"]
    world.ack(old[0])
    assert values(world.dispatch()) == [b"k-2"]


def test_a_resize_without_messages_is_kept_behind_one_that_is_waited_for() -> None:
    """2 → 1 → 4 → 8: partition 3 of four waits for partition 1 of two by way of the only one, which
    held nothing when it was left."""
    world = World()
    topic = world.topic(partitions=2)
    consumer = reader(world, topic)
    key = key_of(2, 1, 4, 3)
    world.publish(topic, b"old", key=key)
    resize(world, topic, 1)
    resize(world, topic, 4)
    world.publish(topic, b"new", key=key)
    resize(world, topic, 8)
    (old,) = world.pull(consumer)
    assert old.value == b"old"
    world.ack(old)
    assert values(world.pull(consumer)) == [b"new"]


def test_priorities_count_below_the_barrier() -> None:
    """What is held back in a more important lane does not stop the others."""
    world = World()
    topic = world.topic(partitions=2, priority="lanes")
    sub = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in (0, 1):
        world.publish(topic, b"low", partition=number, priority=2)
    resize(world, topic, 3)
    world.publish(topic, b"high", partition=1, priority=5)
    consumer = reader(world, topic)
    old = world.pull(consumer)
    assert values(old) == [b"low", b"low"]
    assert (sub.ready, sub.depth, sub.views[1].state.held) == (0, 3, 1)
    for each in old:
        world.ack(each)
    assert values(world.pull(consumer)) == [b"high"]


def test_a_quarantined_source_holds_until_it_can_be_read_or_is_skipped() -> None:
    world = World()
    topic, _ = moved(world)
    world.engine.store.quarantine(topic.partitions[0].log, Damage("segment", 0, "test"))
    consumer = reader(world, topic)
    assert world.pull(consumer) == []
    sub = consumer.subscription
    assert sub.barriers is not None
    assert sub.barriers.awaited(10)[1] == [0]
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    world.engine.store.lift(topic.partitions[0].log)
    assert values(world.drain(topic)) == [b"old-1", b"old-2", b"new-1", b"new-2"]


def test_a_resize_is_forgotten_when_nothing_from_before_it_is_left() -> None:
    world = World()
    topic, _ = moved(world, **UNTIL_ACKED)
    assert len(topic.resizes) == 1
    world.drain(topic)
    resize(world, topic, 3)
    assert [(each.before, each.after) for each in topic.resizes] == []


def test_an_empty_topic_keeps_no_resizes() -> None:
    world = World()
    topic = world.topic()
    resize(world, topic, 5)
    assert topic.resizes == ()


def test_a_topic_keeps_a_bounded_number_of_resizes() -> None:
    world = World()
    topic = world.topic()
    world.publish(topic, b"old")
    for number in range(RESIZES_MAX):
        resize(world, topic, 2 - number % 2)
    before, width = world.lsn(), topic.width
    with pytest.raises(TooManyResizes):
        resize(world, topic, 7)
    assert (topic.width, world.lsn()) == (width, before)


# --- fewer ---


def test_a_partition_that_was_taken_away_is_read_to_its_end_and_closed() -> None:
    world = World()
    topic = world.topic(partitions=3, **UNTIL_ACKED)
    for number in range(3):
        world.publish(topic, b"old-%d" % number, partition=number)
    consumer = reader(world, topic)
    resize(world, topic, 1)
    with pytest.raises(PartitionClosed):
        world.publish(topic, b"no", partition=2)
    for number in range(20):
        world.publish(topic, b"new", key=b"%d" % number)
    world.advance(DRAINED_LOOK_MS)
    assert len(topic.partitions) == 3
    old = world.dispatch()
    assert sorted(values(old)) == [b"old-0", b"old-1", b"old-2"]
    for each in old:
        world.ack(each)
    got = world.dispatch()
    assert values(got) == [b"new"] * 20
    logs = [each.log.id for each in topic.partitions]
    world.advance(DRAINED_LOOK_MS)
    assert (len(topic.partitions), len(consumer.subscription.views)) == (1, 1)
    assert set(world.engine.store.logs) & set(logs[1:]) == set()
    world.reopen()
    assert (len(world.find().partitions), world.find().width) == (1, 1)


def test_growing_again_opens_what_was_not_closed_yet() -> None:
    world = World()
    topic = world.topic(partitions=2)
    key = key_of(2, 1, 1, 0)
    consumer = reader(world, topic)
    world.publish(topic, b"1", key=key)
    resize(world, topic, 1)
    world.publish(topic, b"2", key=key)
    resize(world, topic, 2)
    world.publish(topic, b"3", key=key)
    found = []
    while got := world.dispatch():
        for each in got:
            world.ack(each)
        found += got
    assert values(found) == [b"1", b"2", b"3"]
    assert [each.view.partition.number for each in found] == [1, 0, 1]
    assert consumer.subscription.barriers is None


def test_a_number_that_is_used_again_has_nothing_of_the_partition_before() -> None:
    world = World()
    topic = world.topic(partitions=2, **UNTIL_ACKED)
    key = key_of(2, 1, 1, 0)
    reader(world, topic)
    world.publish(topic, b"kept", partition=0)
    world.publish(topic, b"1", b"2", b"3", key=key)
    resize(world, topic, 1)
    for each in world.dispatch():
        if each.value != b"kept":
            world.ack(each)
    world.advance(DRAINED_LOOK_MS)
    assert len(topic.partitions) == 1
    resize(world, topic, 2)
    world.publish(topic, b"4", key=key)
    assert world.dispatch() == [], "partition 0 still has a message from before"
    world.reopen(60_000).advance(1)
    consumer = reader(world, world.find())
    (kept,) = world.dispatch()
    world.ack(kept)
    assert values(world.dispatch()) == [b"4"]
    view = consumer.subscription.views[1]
    assert (view.state.end, view.log.start_offset) == (4, 3), "it goes on from the old one's end"


def test_a_kept_partition_stays_readable_after_it_was_taken_away() -> None:
    world = World()
    topic = world.topic(partitions=2)
    world.publish(topic, b"kept", partition=1)
    assert len(world.drain(topic)) == 1
    resize(world, topic, 1)
    world.advance(10 * DRAINED_LOOK_MS)
    assert len(topic.partitions) == 2
    assert values(world.drain(topic, "late")) == [b"kept"]
    world.engine.retention.cut(topic.partitions[1], 1)
    world.advance(DRAINED_LOOK_MS)
    assert len(topic.partitions) == 1


def test_a_default_does_not_take_partitions_away() -> None:
    world = World()
    topic = world.topic(partitions=8)
    world.engine.topics.alter(topic, {"ttl_ms": 5}, now_ms=world.now_ms)
    assert (topic.width, topic.policy.partitions, topic.policy.ttl_ms) == (8, 8, 5)
