"""Limits and times to live of topics that nobody subscribes to (rows B4, D9)."""

import random

import pytest
from engine_worlds import HOUR, MINUTE, NS, SECOND, World, all_records, crashes

from braidmq.engine.errors import TopicFull
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.publishing import Origin

NOWHERE = {"topic": None}


def kept(world: World, topic: Topic) -> list[bytes | None]:
    return [
        record.value
        for partition in range(len(topic.partitions))
        for record in all_records(world, topic, partition)
    ]


def published(world: World, topic: Topic, *contents: bytes) -> int:
    """How many were taken."""
    try:
        return world.publish(topic, *contents)
    except TopicFull:
        return 0


# --- messages and bytes ---


@pytest.mark.parametrize("limit", [{"max_messages": 5}, {"max_bytes": 50}])
@pytest.mark.parametrize("until_acked", [False, True])
def test_a_full_log_refuses(limit: dict[str, int], until_acked: bool) -> None:
    world = World()
    topic = world.topic(overflow="reject", retention={"until_acked": until_acked}, **limit)
    assert published(world, topic, *[b"0123456789"] * 3) == 3
    assert published(world, topic, *[b"0123456789"] * 3) == 2
    assert published(world, topic, b"0123456789") == 0
    world.reopen()
    topic = world.find()
    assert published(world, topic, b"0123456789") == 0
    assert world.engine.retention.purge(topic) == 5
    assert published(world, topic, *[b"0123456789"] * 6) == 5
    assert len(kept(world, world.reopen().find())) == 5


@pytest.mark.parametrize("limit", [{"max_messages": 5}, {"max_bytes": 50}])
@pytest.mark.parametrize("partitions", [1, 3])
def test_or_its_oldest_go(limit: dict[str, int], partitions: int) -> None:
    world = World()
    topic = world.topic(partitions=partitions, overflow="drop-head", dead_letter=NOWHERE, **limit)
    for number in range(40):
        world.publish(topic, b"%010d" % number)
        world.now_ms += 1
        if number % 9 == 0:
            world.checkpoint()
    expected = [b"%010d" % number for number in range(35, 40)]
    assert sorted(kept(world, topic)) == expected
    world.reopen()
    assert sorted(kept(world, world.find())) == expected
    late = world.engine.subscriptions.subscribe(world.find(), "late", now_ms=world.now_ms)
    assert late.depth == 5
    assert sorted(each.value for each in world.drain(world.find(), "late")) == expected


def test_what_goes_can_become_dead_letters() -> None:
    world = World()
    topic = world.topic(max_messages=2, overflow="drop-head")
    for number in range(5):
        world.publish(topic, b"%d" % number)
    assert kept(world, topic) == [b"3", b"4"]
    assert kept(world, world.find("t.dlq")) == [b"0", b"1", b"2"]


def test_what_is_refused_can_become_dead_letters() -> None:
    world = World()
    topic = world.topic(max_messages=2, overflow="dead-letter")
    assert published(world, topic, b"0", b"1", b"2") == 2
    assert kept(world, topic) == [b"0", b"1"]
    assert kept(world, world.find("t.dlq")) == [b"2"]


def test_marks_and_what_was_aborted_do_not_count() -> None:
    world = World()
    topic = world.topic(max_messages=4, overflow="reject")
    for number in range(8):
        transaction, _ = world.engine.transactions.begin(NS, f"x{number}", now_ms=world.now_ms)
        origin = Origin(world.engine.transactions.branch(transaction))
        world.engine.publishing.publish(
            topic, world.batch(b"%d" % number), now_ms=world.now_ms, origin=origin
        )
        end = world.engine.transactions.commit if number % 2 else world.engine.transactions.abort
        end(transaction, now_ms=world.now_ms)
    assert kept(world, topic) == [b"1", b"3", b"5", b"7"]
    assert published(world, topic, b"8") == 0
    world.reopen()
    assert published(world, world.find(), b"8") == 0


def test_subscriptions_take_over_and_hand_back() -> None:
    """While somebody subscribes, what they have not settled counts."""
    world = World()
    topic = world.topic(max_messages=3, overflow="reject")
    assert published(world, topic, *[b"x"] * 4) == 3
    world.drain(topic)
    assert published(world, topic, *[b"y"] * 4) == 3
    assert len(kept(world, topic)) == 6
    world.engine.subscriptions.delete(topic.subscriptions["s"])
    assert published(world, topic, b"z") == 0


@pytest.mark.parametrize("seed", range(5))
def test_counters_are_what_the_log_has(seed: int) -> None:
    world, rng = World(), random.Random(seed)
    topic = world.topic(
        partitions=2, max_messages=20, max_bytes=300, overflow="drop-head", dead_letter=NOWHERE
    )
    for _ in range(150):
        what = rng.randrange(9)
        if what == 0:
            world.checkpoint()
        elif what == 1:
            world.reopen()
        elif what == 2:
            world.advance(rng.randrange(3) * MINUTE)
        elif what == 3:
            world.engine.retention.purge(world.find())
        elif what == 4:
            world.publish(world.find(), bytes(rng.randrange(40)), expires_at_ms=world.now_ms + 90)
        else:
            world.publish(world.find(), *[bytes(rng.randrange(40))] * rng.randrange(1, 6))
        topic = world.find()
        values = kept(world, topic)
        assert topic.load == (len(values), sum(len(each or b"") for each in values))
        assert topic.load[0] <= 20
        assert topic.load[1] <= 300


def test_the_topic_can_get_limits_partitions_and_lose_them() -> None:
    world = World()
    topic = world.topic()
    world.publish(topic, *[b"x"] * 10)
    alter = world.engine.topics.alter
    settings = {"max_messages": 4, "overflow": "drop-head", "dead_letter": NOWHERE}
    alter(topic, {"partitions": 1} | settings, now_ms=world.now_ms)
    assert len(kept(world, topic)) == 4
    alter(topic, {"partitions": 2} | settings, now_ms=world.now_ms)
    world.publish(topic, *[b"y"] * 10)
    assert kept(world, topic).count(b"y") == 4
    alter(topic, {"partitions": 2}, now_ms=world.now_ms)
    world.publish(topic, *[b"z"] * 10)
    assert len(kept(world, topic)) == 14
    world.engine.topics.delete(topic)
    assert not world.engine.state.views


# --- times to live ---


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("dead_letters", [False, True])
def test_messages_outlive_nobody(restarted: bool, dead_letters: bool) -> None:
    world = World()
    topic = world.topic(ttl_ms=HOUR, dead_letter={"expired": dead_letters})
    for number in range(6):
        world.publish(topic, b"%d" % number)
        world.advance(20 * MINUTE)
        if restarted:
            world.checkpoint()
            topic = world.reopen().find()
    assert kept(world, topic) == [b"4", b"5"] or kept(world, topic) == [b"3", b"4", b"5"]
    world.advance(SECOND)
    assert kept(world, topic) == [b"4", b"5"]
    assert topic.partitions[0].log.start_offset == 4
    world.advance(2 * HOUR)
    assert kept(world, topic) == []
    if dead_letters:
        assert kept(world, world.find("t.dlq")) == [b"%d" % number for number in range(6)]
    else:
        assert (NS, "t.dlq") not in world.engine.state.topics


@pytest.mark.parametrize("restarted", [False, True])
def test_each_has_its_own_time(restarted: bool) -> None:
    world = World()
    topic = world.topic()
    for number in range(4):
        ttl = [HOUR, MINUTE, 0, MINUTE][number]
        expires = {"expires_at_ms": world.now_ms + ttl} if ttl else {}
        world.publish(topic, b"%d" % number, **expires)
    if restarted:
        topic = world.reopen().find()
    world.advance(2 * MINUTE)
    assert kept(world, topic) == [b"0", b"2"]
    world.advance(HOUR)
    assert kept(world, topic) == [b"2"]
    world.reopen()
    assert kept(world, world.find()) == [b"2"]
    assert [each.value for each in world.drain(world.find())] == [b"2"]


def test_a_crash_anywhere_repeats_no_dead_letter() -> None:
    def prepare(world: World) -> None:
        topic = world.topic(max_messages=3, overflow="drop-head")
        for number in range(3):
            world.publish(topic, b"%d" % number)
        world.engine.store.commit()

    def act(world: World) -> None:
        for number in range(3, 6):
            world.publish(world.find(), b"%d" % number)
            world.engine.store.commit()
        world.checkpoint()

    for world in crashes(prepare, act):
        left = kept(world, world.find())
        dead = []
        if (NS, "t.dlq") in world.engine.state.topics:
            dead = kept(world, world.find("t.dlq"))
        everything = [*dead, *left]
        assert everything == [b"%d" % number for number in range(len(everything))]


def test_partitions_that_are_taken_away_go_when_their_limit_has_emptied_them() -> None:
    world = World()
    settings = {"ttl_ms": HOUR, "max_messages": 10, "overflow": "drop-head", "dead_letter": NOWHERE}
    topic = world.topic(partitions=3, **settings)
    world.publish(topic, *[b"x"] * 9)
    world.engine.topics.alter(topic, settings | {"partitions": 1}, now_ms=world.now_ms)
    world.publish(topic, *[b"y"] * 3)
    assert topic.load[0] == 10
    world.advance(2 * HOUR)
    assert len(topic.partitions) == 1
    assert topic.load == (0, 0)
    world.publish(topic, *[b"z"] * 12)
    assert topic.load[0] == 10
    world.reopen()
    assert world.find().load[0] == 10


def test_what_a_deleted_subscription_leaves_expires() -> None:
    """Though nothing more is published."""
    world = World()
    topic = world.topic(ttl_ms=HOUR)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, *[b"x"] * 5)
    world.advance(MINUTE)
    world.engine.subscriptions.delete(topic.subscriptions["s"])
    world.advance(2 * HOUR)
    assert kept(world, topic) == []
