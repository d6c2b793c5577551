"""Many messages that die at once are moved in slices, and each of them just once."""

import pytest
from engine_worlds import World, crashes, roomy, values

from braidmq.engine.dead_lettering import MOVED_AT_ONCE
from braidmq.engine.envelope import AMQP, MQTT, Death, annotate
from braidmq.engine.topics import Topic
from braidmq.gateways.deaths import death_of
from braidmq.gateways.translation import amqp_headers  # which says how AMQP's are written
from braidmq.record.batch import Record
from braidmq.wire.amqp.properties import Properties
from braidmq.wire.envelopes import amqp_envelope

MANY = 3 * MOVED_AT_ONCE + 7


def bodies(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def rejected(world: World, count: int = MANY, **settings: object) -> Topic:
    topic = world.topic(retention={"until_acked": True}, dead_letter={"topic": "dead"}, **settings)
    consumer = world.consumer(topic, credits=roomy(), passive=True)
    world.publish(topic, *bodies(count))
    world.pull(consumer)
    view = topic.partitions[0].views[0]
    world.engine.settling.reject(consumer, view, 0, count, now_ms=world.now_ms)
    return topic


def dead(world: World) -> int:
    return world.find("dead").partitions[0].log.next_offset


def test_a_turn_moves_so_many_and_the_next_the_rest() -> None:
    world = World()
    topic = rejected(world)
    assert topic.depth == 0
    seen = []
    while world.engine.has_more:
        assert world.engine.next_due_ms() <= world.now_ms
        world.engine.advance(world.now_ms)
        world.engine.dispatching.dispatch(world.now_ms)
        seen.append(dead(world))
    assert seen == [MOVED_AT_ONCE, 2 * MOVED_AT_ONCE, 3 * MOVED_AT_ONCE, MANY]
    assert values(world.drain(world.find("dead"))) == bodies(MANY)
    assert topic.partitions[0].log.start_offset == MANY
    assert world.engine.next_due_ms() != world.now_ms


def test_a_few_go_at_once_but_not_before_those_that_died_earlier() -> None:
    world = World()
    topic = rejected(world)
    consumer = world.consumer(topic, passive=True)
    world.publish(topic, b"later")
    (got,) = world.pull(consumer)
    world.reject(got)
    world.advance(0)
    assert values(world.drain(world.find("dead"))) == [*bodies(MANY), b"later"]


@pytest.mark.parametrize("how", ["rewind", "lanes"])
def test_who_counts_messages_again_finds_none_of_them(how: str) -> None:
    world = World()
    topic = rejected(world)
    world.engine.advance(world.now_ms)
    if how == "rewind":
        world.engine.offsets.rewind(topic.subscriptions["s"], "latest", now_ms=world.now_ms)
    else:
        settings = topic.settings | {"priority": "lanes"}
        world.engine.topics.alter(topic, settings, now_ms=world.now_ms)
    world.advance(0)
    assert (topic.depth, dead(world)) == (0, MANY)


def test_what_goes_with_its_topic_is_not_moved() -> None:
    world = World()
    topic = rejected(world)
    world.engine.advance(world.now_ms)
    world.engine.topics.delete(topic)
    world.advance(0)
    assert dead(world) == MOVED_AT_ONCE
    assert not world.engine.has_more


def test_after_a_crash_each_is_here_or_there() -> None:
    count = MOVED_AT_ONCE + 3

    def act(world: World) -> None:
        rejected(world, count)
        while world.engine.has_more:
            world.engine.store.commit()
            world.engine.advance(world.now_ms)
        world.engine.store.commit()

    seen = set()
    for world in crashes(lambda world: None, act):
        topics = {topic.name: topic for topic in world.engine.state.topics_of()}
        if "t" not in topics or "s" not in topics["t"].subscriptions:
            continue
        there = dead(world) if "dead" in topics else 0
        published = topics["t"].partitions[0].log.next_offset
        assert topics["t"].depth + there == published
        seen.add(there)
    assert {0, MOVED_AT_ONCE, count} <= seen


@pytest.mark.parametrize("came", [AMQP, MQTT])
def test_many_that_are_alike_keep_their_own_offsets(came: int) -> None:
    """Those that die a second time, or came over MQTT, are written by Python: once for all."""
    envelope = b"\1\0\3a/b"
    if came == AMQP:
        record = Record(0, 0, None, b"v", amqp_envelope(b"x", b"k", Properties()), AMQP)
        envelope = annotate(record, Death("expired", "/", "u", 0, 0, "s", 5))[1]
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, *[b"v"] * 5, envelope=envelope, envelope_format=came)
    world.pull(consumer)
    view = topic.partitions[0].views[0]
    world.engine.settling.reject(consumer, view, 1, 4, now_ms=world.now_ms, error="e")
    got = world.drain(world.find("t.dlq"))
    assert all("x-death" in amqp_headers(each.record) for each in got)
    found = [death_of(each.record) for each in got]
    assert [each.offset for each in found if each is not None] == [1, 2, 3]
    assert {each.error for each in found if each is not None} == {"e"}
