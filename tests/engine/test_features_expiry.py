"""Time to live of messages and topics (catalogue rows B4, D9)."""

import pytest
from engine_worlds import HOUR, MINUTE, NS, SECOND, World, values

from braidmq.engine.effects import TopicDeleted
from braidmq.engine.errors import UnknownTopic
from braidmq.engine.routing.bindings import topic as to_topic

TTL = 10 * SECOND
KEPT = {"dead_letter": {"topic": "{topic}.dlq", "expired": True}}


def send(world: World, how: str, **settings: object) -> None:
    """One message with a TTL of ten seconds, the topic's or its own."""
    if how == "topic":
        topic = world.topic(ttl_ms=TTL, **settings)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        world.publish(topic, b"x")
    else:
        topic = world.topic(**settings)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        world.publish(topic, b"x", expires_at_ms=world.now_ms + TTL)


both = pytest.mark.parametrize("how", ["topic", "message"])


@both
@pytest.mark.parametrize("restarted", [False, True])
def test_discarded_by_default_also_without_a_consumer(how: str, restarted: bool) -> None:
    world = World()
    send(world, how)
    world.advance(TTL - 1)
    assert world.find().depth == 1
    if restarted:
        world.checkpoint()
        world.reopen()
    world.advance(11)
    assert world.find().depth == 0
    assert world.find().subscriptions["s"].expired == 1
    assert [each.name for each in world.engine.state.topics_of()] == ["t"]


@both
def test_dead_lettered_by_choice_with_the_reason(how: str) -> None:
    world = World()
    send(world, how, **KEPT)
    world.advance(TTL + 10)
    assert world.find().depth == 0
    (dead,) = world.drain(world.find("t.dlq"))
    assert dead.value == b"x"
    assert dead.headers["x-death-reason"] == b"expired"
    assert dead.headers["x-death-topic"] == b"t"
    assert dead.record.expires_at_ms == 0


@both
def test_expired_messages_are_not_delivered_even_before_their_timer(how: str) -> None:
    world = World()
    send(world, how, **KEPT)
    world.now_ms += TTL
    assert world.drain(world.find()) == []
    assert values(world.drain(world.find("t.dlq"))) == [b"x"]


@both
def test_in_flight_does_not_expire_but_does_when_it_comes_back(how: str) -> None:
    world = World()
    send(world, how, visibility_ms=0, **KEPT)
    consumer = world.consumer(world.find())
    (got,) = world.pull(consumer)
    world.advance(3 * TTL)
    assert world.find().subscriptions["s"].in_flight == 1
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    world.advance(2 * SECOND)
    assert world.find().depth == 0
    (dead,) = world.drain(world.find("t.dlq"))
    assert (dead.value, dead.headers["x-death-attempts"]) == (b"x", b"1")
    assert world.ack(got) == 0


@both
def test_what_was_sent_does_not_expire_where_that_is_kept(how: str) -> None:
    world = World()
    send(world, how, visibility_ms=0, **KEPT)
    topic = world.find()
    topic.subscriptions["s"].keeps_sent = True
    consumer = world.consumer(topic)
    world.pull(consumer)
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    world.publish(topic, b"never sent", expires_at_ms=world.now_ms + TTL)
    world.advance(3 * TTL)
    assert values(world.drain(topic)) == [b"x"]
    assert topic.subscriptions["s"].expired == 1


@both
def test_in_flight_can_be_acknowledged_after_its_time(how: str) -> None:
    world = World()
    send(world, how, visibility_ms=0, **KEPT)
    (got,) = world.pull(world.consumer(world.find()))
    world.advance(3 * TTL)
    assert world.ack(got) == 1
    world.advance(MINUTE)
    assert [each.name for each in world.engine.state.topics_of()] == ["t"]


def test_only_what_is_old_enough_expires() -> None:
    world = World()
    topic = world.topic(ttl_ms=TTL)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(5):
        world.publish(topic, b"%d" % number)
        world.advance(3 * SECOND)
    assert topic.depth == 3
    assert values(world.drain(topic)) == [b"2", b"3", b"4"]


def test_lowering_the_ttl_takes_effect_at_once() -> None:
    world = World()
    topic = world.topic(ttl_ms=HOUR)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"x")
    world.advance(MINUTE)
    world.engine.topics.alter(topic, {"partitions": 1, "ttl_ms": TTL}, now_ms=world.now_ms)
    world.advance(10)
    assert topic.depth == 0


@pytest.mark.parametrize("restarted", ["never", "while it waits", "when it is there"])
def test_the_ttl_begins_when_the_delay_is_over(restarted: str) -> None:
    world = World()
    topic = world.topic(ttl_ms=TTL)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.delay(topic, b"later", HOUR)
    world.publish(topic, b"now")
    world.advance(TTL + 10)
    assert (world.find().depth, world.engine.delayed.count(world.find())) == (1, 1)
    if restarted == "while it waits":
        world.checkpoint()
        world.reopen()
    world.advance(HOUR - 20)
    assert (world.find().depth, world.engine.delayed.count(world.find())) == (1, 0)
    if restarted == "when it is there":
        world.checkpoint()
        world.reopen()
    world.advance(10)
    assert world.find().depth == 0
    assert world.find().subscriptions["s"].expired == 2 - (restarted != "never")


def test_a_ttl_given_later_also_ends_what_was_delayed() -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.delay(topic, b"one", MINUTE)
    world.delay(topic, b"two", MINUTE + TTL)
    world.advance(MINUTE)
    world.engine.topics.alter(topic, {"partitions": 1, "ttl_ms": TTL}, now_ms=world.now_ms)
    world.advance(TTL - 10)
    assert topic.depth == 2
    world.advance(10)
    assert topic.depth == 1
    world.engine.topics.alter(topic, {"partitions": 1, "ttl_ms": 2 * TTL}, now_ms=world.now_ms)
    world.advance(2 * TTL - 10)
    assert topic.depth == 1
    world.advance(10)
    assert topic.depth == 0


def test_a_subscription_that_comes_later_expires_too() -> None:
    world = World()
    topic = world.topic(ttl_ms=TTL)
    world.publish(topic, b"x")
    world.advance(TTL - 1)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert topic.depth == 1
    world.advance(20)
    assert topic.depth == 0


def test_each_subscription_expires_what_it_has() -> None:
    world = World()
    topic = world.topic(ttl_ms=TTL, visibility_ms=0)
    one = world.consumer(topic, "one")
    world.engine.subscriptions.subscribe(topic, "two", now_ms=world.now_ms)
    world.publish(topic, b"a", b"b")
    world.pull(one, 1)
    world.advance(TTL + 10)
    assert {name: sub.depth for name, sub in topic.subscriptions.items()} == {"one": 1, "two": 0}


# --- idle topics ---


def test_an_unused_topic_is_deleted_with_its_bindings() -> None:
    world = World()
    topic = world.topic(idle_expires_ms=MINUTE)
    world.engine.exchanges.bind(NS, "amq.direct", to_topic("t"), b"k")
    world.advance(MINUTE - 10)
    assert not topic.deleted
    world.advance(20)
    assert topic.deleted
    assert TopicDeleted(topic) in world.engine.take_effects()
    with pytest.raises(UnknownTopic):
        world.find()
    assert not world.engine.exchanges.router(NS).resolve("amq.direct", b"k").topics
    world.reopen()
    assert world.engine.state.topics_of() == []
    assert not world.engine.store.logs
    assert not world.engine.exchanges.router(NS).resolve("amq.direct", b"k").topics


def test_a_used_topic_stays() -> None:
    world = World()
    topic = world.topic(idle_expires_ms=MINUTE)
    consumer = world.consumer(topic)
    world.advance(HOUR)
    assert not topic.deleted
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    world.advance(MINUTE - 10)
    world.publish(topic, b"x")
    world.advance(MINUTE - 10)
    assert not topic.deleted
    world.advance(20)
    assert topic.deleted


def test_a_restart_begins_the_idle_time_anew_and_does_not_forget_it() -> None:
    world = World()
    world.topic(idle_expires_ms=MINUTE)
    world.advance(MINUTE - 10)
    world.reopen(after_ms=HOUR)
    world.advance(MINUTE - 10)
    assert world.find()
    world.advance(20)
    assert world.engine.state.topics_of() == []


def test_shortening_the_idle_time_takes_effect() -> None:
    world = World()
    topic = world.topic(idle_expires_ms=HOUR)
    settings = {"partitions": 1, "idle_expires_ms": MINUTE}
    world.engine.topics.alter(topic, settings, now_ms=world.now_ms)
    world.advance(MINUTE + 10)
    assert topic.deleted


@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("ordering", ["strict", "partition"])
def test_what_was_behind_one_that_expires_is_handed_out(ordering: str, dead_letter: bool) -> None:
    """Where order is promised it waited for the retry of the other, and nothing else happens."""
    world = World()
    dead = {"topic": "{topic}.dlq", "expired": dead_letter}
    topic = world.topic(ordering=ordering, dead_letter=dead)
    consumer = world.consumer(topic)
    world.publish(topic, b"first", expires_at_ms=world.now_ms + TTL)
    (got,) = world.dispatch()
    world.engine.settling.nack(
        consumer, topic.subscriptions["s"].views[0], got.offset, got.offset + 1,
        now_ms=world.now_ms, delay_ms=10 * TTL,
    )  # fmt: skip
    world.publish(topic, b"second")
    assert world.dispatch() == []
    world.advance(2 * TTL)
    assert values(world.dispatch()) == [b"second"]
