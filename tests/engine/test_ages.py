"""How long the oldest message waits, and the oldest delivery is unanswered (catalogue row P6)."""

import pytest
from engine_worlds import MINUTE, SECOND, World, roomy

from braidmq.engine.ages import in_flight_age_ms, oldest, ready_age_ms
from braidmq.engine.topics import Consumer


def ages(world: World, consumer: Consumer) -> tuple[int | None, int | None]:
    subscription = consumer.subscription
    return (
        ready_age_ms(subscription, world.now_ms),
        in_flight_age_ms(subscription, world.now_ms),
    )


def test_both_follow_the_oldest() -> None:
    world = World()
    topic = world.topic(visibility_ms=0, ordering="none")
    consumer = world.consumer(topic, credits=roomy())
    assert ages(world, consumer) == (None, None)
    for content in (b"a", b"b", b"c"):
        world.publish(topic, content)
        world.advance(SECOND)
    assert ages(world, consumer) == (3 * SECOND, None)
    (first,) = world.pull(consumer, 1)
    world.advance(SECOND)
    (second,) = world.pull(consumer, 1)
    world.advance(SECOND)
    assert ages(world, consumer) == (3 * SECOND, 2 * SECOND)
    world.ack(first)
    assert ages(world, consumer) == (3 * SECOND, SECOND)
    world.requeue(second)
    assert ages(world, consumer) == (4 * SECOND, None)
    assert oldest(topic, world.now_ms) == (4 * SECOND, None)


def test_a_delivery_counts_from_the_last_time_it_was_handed_out() -> None:
    world = World()
    consumer = world.consumer(world.topic(visibility_ms=0, ordering="none"), credits=roomy())
    world.publish(consumer.subscription.topic, b"a")
    for _ in range(3):
        (got,) = world.pull(consumer)
        world.advance(MINUTE)
        assert ages(world, consumer) == (None, MINUTE)
        world.requeue(got)


def test_a_delayed_message_waits_from_when_it_is_due() -> None:
    world = World()
    consumer = world.consumer(world.topic())
    world.delay(consumer.subscription.topic, b"later", MINUTE)
    world.advance(30 * SECOND)
    assert ages(world, consumer) == (None, None)
    world.advance(31 * SECOND)
    assert ages(world, consumer) == (SECOND, None)


@pytest.mark.parametrize("priority", ["none", "strict", "lanes"])
def test_the_oldest_of_all_lanes_and_partitions(priority: str) -> None:
    world = World()
    topic = world.topic(partitions=2, priority=priority)
    consumer = world.consumer(topic, passive=True)
    world.publish(topic, b"first", partition=1, priority=0)
    world.advance(SECOND)
    world.publish(topic, b"urgent", partition=0, priority=9)
    world.advance(SECOND)
    assert ages(world, consumer) == (2 * SECOND, None)


def test_a_restart_changes_neither_what_waits_nor_for_how_long() -> None:
    world = World()
    topic = world.topic(visibility_ms=0, ordering="none")
    consumer = world.consumer(topic, credits=roomy())
    world.publish(topic, b"a", b"b")
    world.pull(consumer, 1)
    world.reopen(after_ms=MINUTE)
    again = world.consumer(world.find(), credits=roomy())
    # What was at a consumer is ready again.
    assert ages(world, again) == (MINUTE, None)
    world.pull(again, 1)
    world.advance(SECOND)
    assert ages(world, again) == (MINUTE + SECOND, SECOND)


def test_looking_again_reads_nothing() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, b"a", b"b")
    assert ages(world, consumer) == (0, None)
    # In this one the message would not be found.
    topic.partitions[0].log = world.topic("empty").partitions[0].log
    world.now_ms += SECOND
    assert ages(world, consumer) == (SECOND, None)


def test_many_moments_of_delivery_are_told_apart() -> None:
    """Each in flight for another time: the oldest answer leaves the next."""
    world = World()
    topic = world.topic(visibility_ms=0, ordering="none")
    consumer = world.consumer(topic, credits=roomy())
    got = []
    for number in range(200):
        world.publish(topic, b"%d" % number)
        got += world.pull(consumer, 1)
        world.advance(SECOND)
    for number, each in enumerate(got):
        assert ages(world, consumer) == (None, (200 - number) * SECOND)
        world.ack(each)
    assert ages(world, consumer) == (None, None)
