"""Who has much takes nothing from who has little: partitions, topics and queues of one consumer."""

import pytest
from engine_worlds import NS, World, roomy

from braidmq.engine.topics import Credit, Mode

MANY = 200


def test_partitions_of_a_member_take_turns() -> None:
    """Whatever the other members take meanwhile: turns are its own."""
    world = World()
    topic = world.topic(partitions=4)
    subscription = world.engine.subscriptions.subscribe(
        topic, "s", now_ms=world.now_ms, mode=Mode.ASSIGNED
    )
    members = [
        world.engine.consumers.attach(subscription, now_ms=world.now_ms, passive=True)
        for _ in range(2)
    ]
    for number in range(4):
        subscription.assignment[number] = members[number % 2]
        contents = [b"%d" % number] * (1 if number >= 2 else MANY)
        world.publish(topic, *contents, partition=number)
    for member, quiet in zip(members, (2, 3), strict=True):
        got = [world.pull(each, 10) for _ in range(2) for each in (member, members[0])]
        assert quiet in {each.view.partition.number for part in got for each in part}


@pytest.mark.parametrize("priority", ["none", "strict"])
def test_partitions_in_key_order_take_turns(priority: str) -> None:
    """However many keys the busy one has."""
    for keys in (1, 2, 3, MANY):
        world = World()
        topic = world.topic(partitions=2, priority=priority)
        world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy(1))
        for number in range(MANY):
            world.publish(topic, b"busy", key=b"k%d" % (number % keys), partition=0)
        world.publish(topic, b"quiet", key=b"q", partition=1)
        seen = []
        for _ in range(4):
            (got,) = world.dispatch()
            seen.append(got.value)
            world.ack(got)
        assert b"quiet" in seen


def test_queues_that_share_a_credit_take_turns() -> None:
    """A channel's prefetch, and what a session may have in flight: a message that arrives in the
    busy queue before each answer does not put it first."""
    world = World()
    shared = Credit(1)
    topics = [world.topic(name) for name in ("busy", "quiet")]
    for topic in topics:
        world.consumer(topic, credits=[shared])
    world.publish(topics[0], *[b"busy"] * MANY)
    (got,) = world.dispatch()
    world.publish(topics[1], b"quiet")
    seen = []
    for _ in range(4):
        world.publish(topics[0], b"busy")
        assert world.dispatch() == []
        world.publish(topics[0], b"busy")
        world.ack(got)
        (got,) = world.dispatch()
        seen.append(got.value)
    assert b"quiet" in seen


def test_topics_of_a_consumer_that_pulls_are_known_by_who_waits_longest() -> None:
    world = World()
    consumers = []
    for name in "ab":
        topic = world.topic(name)
        world.publish(topic, *[b"x"] * MANY)
        subscription = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        consumers.append(
            world.engine.consumers.attach(subscription, now_ms=world.now_ms, passive=True)
        )
    for _ in range(4):
        first, second = sorted(consumers, key=lambda each: each.served)
        assert world.pull(first, 1)
        assert first.served > second.served
    assert world.engine.state.topics_of(NS)
