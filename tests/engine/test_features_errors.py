"""What callers get wrong has its own type, and nothing has changed (errors.py, groups.py)."""

from collections.abc import Callable

import pytest
from engine_worlds import NS, SECOND, World, crashes

from braidmq.engine import errors, groups
from braidmq.engine.policy import IllegalPolicy
from braidmq.model.errors import BraidError, Kind, OffsetOutOfRange


def world_with_topic() -> World:
    world = World()
    topic = world.topic(message_bytes_max=10, max_messages=5)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"a", b"b")
    return world


Wrong = Callable[[World], object]
CASES: dict[str, tuple[type[BraidError], Wrong]] = {
    "topic": (errors.UnknownTopic, lambda w: w.find("no")),
    "namespace": (errors.UnknownTopic, lambda w: w.engine.state.topic("other", "t")),
    "twice": (errors.TopicExists, lambda w: w.topic()),
    "subscription": (
        errors.UnknownSubscription,
        lambda w: w.engine.state.subscription(w.find(), "no"),
    ),
    "template": (
        errors.UnknownTemplate,
        lambda w: w.engine.templates.delete(NS, "no", now_ms=w.now_ms),
    ),
    "partition": (errors.UnknownPartition, lambda w: w.publish(w.find(), b"x", partition=1)),
    "negative": (errors.UnknownPartition, lambda w: w.publish(w.find(), b"x", partition=-1)),
    "read": (errors.UnknownPartition, lambda w: w.engine.reading.read(w.find(), 7, 0)),
    "offset": (OffsetOutOfRange, lambda w: w.engine.reading.read(w.find(), 0, 99)),
    "position": (errors.BadPosition, lambda w: w.engine.reading.find_offset(w.find(), 0, "now")),
    "commit": (
        errors.BadPosition,
        lambda w: w.engine.offsets.commit(w.find().partitions[0].views[0], 3),
    ),
    "large": (errors.MessageTooLarge, lambda w: w.publish(w.find(), b"x", bytes(11))),
    "policy": (IllegalPolicy, lambda w: w.topic("new", ordering="sideways")),
    "unknown setting": (IllegalPolicy, lambda w: w.topic("new", colour="red")),
    "no number": (IllegalPolicy, lambda w: w.topic("new", ttl_ms="soon")),
    "no webhook": (
        IllegalPolicy,
        lambda w: w.topic("new", dead_letter={"alert_webhook": "hooks.example.com"}),
    ),
    "no partitions": (IllegalPolicy, lambda w: w.topic("new", partitions=0)),
    "too strict": (IllegalPolicy, lambda w: w.topic("new", partitions=2, ordering="strict")),
    "queue log": (
        IllegalPolicy,
        lambda w: w.topic("q", retention={"until_acked": True}, compaction={"enabled": True}),
    ),
    "alter": (
        IllegalPolicy,
        lambda w: w.engine.topics.alter(w.find(), {"ttl_ms": -1}, now_ms=w.now_ms),
    ),
    "delayed": (errors.NotDelayed, lambda w: w.engine.delayed.cancel(w.find(), 0, 0, w.now_ms)),
    "delayed partition": (
        errors.UnknownPartition,
        lambda w: w.engine.delayed.cancel(w.find(), 3, 0, w.now_ms),
    ),
    "group": (errors.UnknownGroup, lambda w: w.engine.groups.group(NS, "no")),
    "receipt": (errors.BadReceipt, lambda w: w.engine.receipts.redeem("nonsense", NS)),
    "receipt numbers": (
        errors.BadReceipt,
        lambda w: w.engine.receipts.redeem("t:0:x:1:1.1.00", NS),
    ),
    "receipt size": (
        errors.BadReceipt,
        lambda w: w.engine.receipts.redeem(f"t:0:{10**30}:1:1.1.00", NS),
    ),
    "receipt sign": (errors.BadReceipt, lambda w: w.engine.receipts.redeem("t:0:-1:1:1.1.00", NS)),
    "receipt topic": (
        errors.UnknownTopic,
        lambda w: w.engine.receipts.redeem("no:0:0:1:1.1.00", NS),
    ),
    "receipt partition": (
        errors.UnknownPartition,
        lambda w: w.engine.receipts.redeem("t:9:0:1:1.1.00", NS),
    ),
    "receipt group": (
        errors.UnknownSubscription,
        lambda w: w.engine.receipts.redeem("t:0:0:1:ff.1.00", NS),
    ),
    "receipt never": (
        errors.StaleReceipt,
        lambda w: w.engine.receipts.redeem("t:0:0:1:1.1.00", NS),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_its_own_and_nothing_changed(case: str) -> None:
    expected, wrong = CASES[case]
    world = world_with_topic()
    state = (world.depths(world.find()), world.lsn(), len(world.engine.state.topics_of()))
    policy = world.find().policy
    with pytest.raises(expected) as caught:
        wrong(world)
    assert type(caught.value) is expected
    assert caught.value.code
    assert isinstance(caught.value.kind, Kind)
    assert str(caught.value)
    assert (world.depths(world.find()), world.lsn(), len(world.engine.state.topics_of())) == state
    assert world.find().policy is policy
    assert world.engine.take_effects() == []


def test_every_code_is_used_once() -> None:
    found = [
        each
        for module in (errors, groups)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, BraidError) and each is not BraidError
    ]
    codes = {each.code for each in found}
    assert len(codes) == len(set(found))


def test_a_deleted_topic_is_unknown_to_whoever_held_on_to_it() -> None:
    world = world_with_topic()
    topic = world.find()
    subscription = topic.subscriptions["s"]
    world.engine.topics.delete(topic)
    before = world.lsn()
    for call in (
        lambda: world.publish(topic, b"x"),
        lambda: world.engine.publishing.fan_out([topic], world.batch(b"x"), now_ms=world.now_ms),
        lambda: world.engine.subscriptions.subscribe(topic, "n", now_ms=world.now_ms),
        lambda: world.engine.topics.alter(topic, {}, now_ms=world.now_ms),
        lambda: world.engine.topics.delete(topic),
        lambda: world.engine.retention.purge(topic),
    ):
        with pytest.raises(errors.UnknownTopic):
            call()
    for call in (
        lambda: world.engine.consumers.attach(subscription, now_ms=world.now_ms),
        lambda: world.engine.subscriptions.delete(subscription),
    ):
        with pytest.raises(errors.UnknownSubscription):
            call()
    assert world.lsn() == before
    assert world.reopen().engine.state.topics_of() == []


# --- receipts ---


def test_a_receipt_is_good_for_one_delivery() -> None:
    world = world_with_topic()
    consumer = world.consumer(world.find())
    (delivery,) = world.engine.dispatching.pull(consumer, 2, now_ms=world.now_ms)
    first, second = map(str, world.engine.receipts.of(delivery))
    holder, view, offset = world.engine.receipts.redeem(first, NS)
    assert (holder, offset) == (consumer, 0)
    assert world.engine.settling.ack(holder, view, offset, offset + 1) == 1
    for _ in range(2):
        with pytest.raises(errors.StaleReceipt):
            world.engine.receipts.redeem(first, NS)
    world.engine.settling.requeue(consumer, view, 1, 2, now_ms=world.now_ms)
    with pytest.raises(errors.StaleReceipt):
        world.engine.receipts.redeem(second, NS)
    (again,) = world.engine.dispatching.pull(consumer, 1, now_ms=world.now_ms)
    with pytest.raises(errors.StaleReceipt):
        world.engine.receipts.redeem(second, NS)
    assert world.engine.receipts.redeem(str(world.engine.receipts.of(again)[0]), NS)[2] == 1


def test_a_receipt_is_stale_after_its_time() -> None:
    world = world_with_topic()
    consumer = world.consumer(world.find(), visibility_ms=5 * SECOND)
    (delivery,) = world.engine.dispatching.pull(consumer, 1, now_ms=world.now_ms)
    text = str(world.engine.receipts.of(delivery)[0])
    world.advance(4 * SECOND)
    holder, view, offset = world.engine.receipts.redeem(text, NS)
    world.engine.settling.extend(
        holder, view, offset, offset + 1, until_ms=world.now_ms + 5 * SECOND
    )
    world.advance(4 * SECOND)
    assert world.engine.receipts.redeem(text, NS)
    world.advance(2 * SECOND)
    with pytest.raises(errors.StaleReceipt):
        world.engine.receipts.redeem(text, NS)


def test_names_with_colons_are_fine() -> None:
    world = World()
    topic = world.topic("a:b:c")
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    (delivery,) = world.engine.dispatching.pull(consumer, 1, now_ms=world.now_ms)
    assert (
        world.engine.receipts.redeem(str(world.engine.receipts.of(delivery)[0]), NS)[0] is consumer
    )


# --- numbers are never used twice ---


def test_numbers_of_topics_and_subscriptions_are_never_used_again() -> None:
    world = world_with_topic()
    topic = world.find()
    numbers = (topic.id, topic.subscriptions["s"].id)
    world.engine.topics.delete(topic)
    world.checkpoint()
    world.reopen()
    topic = world.topic()
    subscription = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert (topic.id > numbers[0], subscription.id > numbers[1]) == (True, True)
    assert topic.depth == 0


def test_a_crash_while_a_topic_is_made_or_deleted_leaves_all_of_it_or_nothing() -> None:
    def act(world: World) -> None:
        for name in ("one", "two"):
            topic = world.engine.topics.create(NS, name, {"partitions": 4}, now_ms=world.now_ms)
            world.publish(topic, b"x", partition=3)
            world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms, start="latest")
            world.engine.store.commit()
            world.engine.topics.delete(topic)
        world.engine.store.commit()
        world.checkpoint()

    for left in crashes(lambda world: None, act):
        partitions = {
            part.log.id for topic in left.engine.state.topics_of() for part in topic.partitions
        }
        assert left.engine.store.logs.keys() == partitions
        for topic in left.engine.state.topics_of():
            assert len(topic.partitions) == 4
            assert topic.depth == 0  # its subscription began at the end


def test_a_receipt_cannot_be_made_up() -> None:
    """Not by counting on from one that was given, nor with the seal of another."""
    world = world_with_topic()
    consumer = world.consumer(world.find())
    (delivery,) = world.engine.dispatching.pull(consumer, 2, now_ms=world.now_ms)
    mine, other = world.engine.receipts.of(delivery)
    assert world.engine.receipts.redeem(str(other), NS)[2] == 1
    for made_up in (
        other._replace(seal=mine.seal),
        other._replace(seal=""),
        other._replace(seal=other.seal[:-1]),
        other._replace(seal="é"),
        mine._replace(offset=other.offset),
    ):
        with pytest.raises(errors.StaleReceipt):
            world.engine.receipts.redeem(str(made_up), NS)


def test_seals_are_new_with_each_start() -> None:
    first, second = world_with_topic(), world_with_topic()
    (delivery,) = first.engine.dispatching.pull(first.consumer(first.find()), 1, first.now_ms)
    second.engine.dispatching.pull(second.consumer(second.find()), 1, second.now_ms)
    with pytest.raises(errors.StaleReceipt):
        second.engine.receipts.redeem(str(first.engine.receipts.of(delivery)[0]), NS)
