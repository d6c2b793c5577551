"""Limits of topics (catalogue row B4): how full, how large, and what happens beyond."""

import pytest
from engine_worlds import World, values

from braidmq.engine.errors import MessageTooLarge, TopicFull

LIMITS = [{"max_messages": 3}, {"max_bytes": 30}]
TEN = b"0123456789"


def ten(number: int) -> bytes:
    return b"%010d" % number


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kept", [False, True])
def test_drop_head_takes_out_the_oldest(limit: dict[str, int], kept: bool) -> None:
    world = World()
    dead = {"topic": "dead" if kept else None}
    topic = world.topic(overflow="drop-head", dead_letter=dead, **limit)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(5):
        assert world.publish(topic, ten(number)) == 1
    assert topic.depth == 3
    assert topic.depth_bytes == 30
    assert world.publish(topic, *map(ten, range(5, 10))) == 5
    assert values(world.drain(topic)) == [ten(7), ten(8), ten(9)]
    if kept:
        dropped = world.drain(world.find("dead"))
        assert values(dropped) == [ten(number) for number in range(7)]
        assert {each.headers["x-death-reason"] for each in dropped} == {b"maxlen"}


def test_drop_head_takes_out_the_oldest_of_all_partitions() -> None:
    world = World()
    topic = world.topic(
        partitions=3, overflow="drop-head", max_messages=2, dead_letter={"topic": "dead"}
    )
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for partition, value in ((2, b"a"), (0, b"b"), (1, b"c"), (2, b"d"), (0, b"e")):
        world.publish(topic, value, partition=partition)
        world.advance(10)
    assert values(world.drain(world.find("dead"))) == [b"a", b"b", b"c"]
    assert sorted(values(world.drain(topic))) == [b"d", b"e"]


def test_what_a_limit_drops_says_how_often_it_was_delivered() -> None:
    world = World()
    topic = world.topic(
        overflow="drop-head", max_messages=2, dead_letter={"topic": "dead"}, ordering="none"
    )
    consumer = world.consumer(topic)
    world.publish(topic, b"a", b"b")
    for _ in range(2):
        (got,) = world.pull(consumer, 1)
        world.requeue(got)
    world.publish(topic, b"c", b"d")
    dropped = world.drain(world.find("dead"))
    assert values(dropped) == [b"a", b"b"]
    assert [each.headers["x-death-attempts"] for each in dropped] == [b"2", b"0"]


def test_drop_head_leaves_what_is_in_flight() -> None:
    world = World()
    topic = world.topic(overflow="drop-head", max_messages=2)
    consumer = world.consumer(topic)
    world.publish(topic, b"a", b"b")
    first = world.pull(consumer, 2)
    world.publish(topic, b"c")
    assert topic.depth == 2
    assert [world.ack(each) for each in first] == [1, 1]
    world.publish(topic, b"d")
    assert values(world.drain(topic)) == [b"d"]


@pytest.mark.parametrize("limit", LIMITS)
def test_reject_refuses_what_does_not_fit(limit: dict[str, int]) -> None:
    world = World()
    topic = world.topic(overflow="reject", **limit)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert world.publish(topic, ten(0)) == 1
    assert world.publish(topic, *map(ten, range(1, 6))) == 2
    before, lsn, end = world.depths(topic), world.lsn(), topic.partitions[0].log.next_offset
    with pytest.raises(TopicFull):
        world.publish(topic, ten(9))
    assert (world.depths(topic), world.lsn()) == (before, lsn)
    assert topic.partitions[0].log.next_offset == end
    assert values(world.drain(topic)) == [ten(0), ten(1), ten(2)]
    assert world.publish(topic, ten(9)) == 1


@pytest.mark.parametrize("limit", LIMITS)
def test_dead_letter_overflow_keeps_what_does_not_fit_elsewhere(limit: dict[str, int]) -> None:
    world = World()
    topic = world.topic(overflow="dead-letter", dead_letter={"topic": "dead"}, **limit)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert world.publish(topic, *map(ten, range(5))) == 3
    with pytest.raises(TopicFull):
        world.publish(topic, ten(5))
    assert values(world.drain(topic)) == [ten(0), ten(1), ten(2)]
    refused = world.drain(world.find("dead"))
    assert values(refused) == [ten(3), ten(4), ten(5)]
    assert {each.headers["x-death-reason"] for each in refused} == {b"maxlen"}


def test_the_fullest_subscription_counts() -> None:
    world = World()
    topic = world.topic(max_messages=3)
    for name in ("fast", "slow"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    world.publish(topic, b"a", b"b", b"c")
    world.drain(topic, "fast")
    with pytest.raises(TopicFull):
        world.publish(topic, b"d")
    world.drain(topic, "slow")
    assert world.publish(topic, b"d") == 1


def test_the_limit_counts_over_all_partitions() -> None:
    world = World()
    topic = world.topic(partitions=3, max_messages=5)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert world.publish(topic, *[b"x"] * 9) == 5
    assert topic.depth == 5


def test_a_limit_of_zero_is_a_limit() -> None:
    world = World()
    topic = world.topic(max_messages=0)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    with pytest.raises(TopicFull):
        world.publish(topic, b"x")


def test_lowering_a_drop_head_limit_drops_at_once() -> None:
    world = World()
    topic = world.topic(overflow="drop-head")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, *map(ten, range(10)))
    settings = {"partitions": 1, "overflow": "drop-head", "max_messages": 2}
    world.engine.topics.alter(topic, settings, now_ms=world.now_ms)
    assert values(world.drain(topic)) == [ten(8), ten(9)]


@pytest.mark.parametrize("many", [False, True])
def test_a_message_too_large_is_refused_with_its_batch(many: bool) -> None:
    world = World()
    topics = [world.topic(name, message_bytes_max=10) for name in ("a", "b")]
    for topic in topics:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    batch, before = world.batch(b"fits", TEN + b"!"), world.lsn()
    targets = topics if many else topics[:1]
    with pytest.raises(MessageTooLarge):
        world.engine.publishing.fan_out(targets, batch, now_ms=world.now_ms)
    assert world.lsn() == before
    assert [topic.depth for topic in topics] == [0, 0]
    assert world.publish(topics[0], TEN) == 1


def test_counters_are_right_after_a_restart() -> None:
    world = World()
    topic = world.topic(overflow="drop-head", max_bytes=100)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(50):
        world.publish(topic, ten(number))
        if number == 30:
            world.checkpoint()
    before = world.depths(topic)
    assert before["s"][:2] == (10, 100)
    assert world.reopen().depths(world.find()) == before
    world.publish(world.find(), ten(50))
    assert world.depths(world.find()) == before


def test_a_queue_counts_what_it_has_before_anybody_subscribes() -> None:
    world = World()
    topic = world.topic(max_messages=3, partitions=2, retention={"until_acked": True})
    assert world.publish(topic, *map(ten, range(5))) == 3
    with pytest.raises(TopicFull):
        world.publish(topic, ten(9))
    assert len(world.drain(topic)) == 3
    assert world.publish(topic, ten(9)) == 1
