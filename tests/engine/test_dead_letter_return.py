"""Dead letters go back to where they came from, once, and to nobody who had them (row D10)."""

from collections import Counter

import pytest
from engine_worlds import NS, SECOND, Got, World, crashes, values
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.engine.dead_letter_queue import Planned, Revived
from braidmq.engine.errors import (
    LetterInFlight,
    LetterUndecided,
    MessageTooLarge,
    TopicFull,
    UnknownLetter,
    UnknownSubscription,
    UnknownTopic,
)
from braidmq.engine.routing.bindings import exchange as to_exchange
from braidmq.engine.routing.bindings import topic as to_topic
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.publishing import Origin
from braidmq.gateways.deaths import death_of, without_deaths
from braidmq.record.batch import Record


def letters(world: World, place: str = "t.dlq") -> list[Record]:
    if (NS, place) not in world.engine.state.topics:
        return []
    return list(world.engine.dead_letter_queue.records(world.find(place), 0))


def revived(record: Record, **fields: object) -> Revived:
    death = death_of(record)
    assert death is not None
    said = Revived(record, *without_deaths(record), death.partition, death.subscription)
    return said._replace(**fields)  # type: ignore[arg-type]


def bring_back(world: World, record: Record, place: str = "t.dlq", **fields: object) -> None:
    world.engine.dead_letter_queue.bring_back(
        world.find(place), world.find(), revived(record, **fields), world.now_ms
    )


def kill(world: World, name: str = "a", topic: str = "t") -> list[Got]:
    """All that a subscription has becomes dead letters."""
    consumer = world.consumer(world.find(topic), name)
    got = world.pull(consumer)
    for each in got:
        world.reject(each, f"{name} can't")
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    return got


def shared(world: World, **options: object) -> Topic:
    topic = world.topic(**options)
    for name in ("a", "b"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    return topic


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("lanes", [{}, {"priority": "lanes"}])
def test_only_who_gave_it_up_gets_it_again(restart: bool, lanes: dict[str, str]) -> None:
    world = World()
    topic = shared(world, **lanes)
    world.publish(topic, b"x", b"y")
    assert values(world.drain(topic, "b")) == [b"x", b"y"]
    kill(world)
    for each in letters(world):
        bring_back(world, each)
    world.publish(topic, b"z")
    if restart:
        world.reopen()
    assert world.find().subscriptions["b"].depth == 1
    assert values(world.drain(world.find(), "b")) == [b"z"]
    assert values(world.drain(world.find(), "a")) == [b"x", b"y", b"z"]
    assert letters(world) == []


def test_nobody_in_particular_gave_it_up() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"x")
    kill(world)
    (letter,) = letters(world)
    bring_back(world, letter, subscription=None)
    assert values(world.drain(topic, "a")) == [b"x"]
    assert values(world.drain(topic, "b")) == [b"x", b"x"]


def test_it_is_as_it_was_and_where_it_was() -> None:
    world = World()
    topic = shared(world, partitions=3, deduplication_window_ms=SECOND)
    world.publish(topic, b"x", partition=2, priority=3)
    kill(world)
    (letter,) = letters(world)
    bring_back(world, letter)
    (got,) = world.drain(topic, "a")
    assert (got.view.partition.number, got.record.priority, got.headers) == (2, 3, {})
    assert got.attempts == 1


def test_what_has_a_key_goes_where_its_key_goes() -> None:
    world = World()
    topic = shared(world, partitions=3)
    world.publish(topic, b"x", key=b"k")
    kill(world)
    (letter,) = letters(world)
    bring_back(world, letter, partition=None)
    (got,) = world.drain(topic, "a")
    assert got.view.partition is topic.partition_of(b"k")


def test_where_keys_do_not_decide_it_goes_where_it_was() -> None:
    world = World()
    topic = shared(world, partitions=3, partition_strategy="explicit")
    for number in range(3):
        world.publish(topic, b"x", key=b"k", partition=number)
    kill(world)
    for each in letters(world):
        bring_back(world, each)
    assert sorted(got.view.partition.number for got in world.drain(topic, "a")) == [0, 1, 2]


def test_where_its_partition_is_closed_it_goes_to_another() -> None:
    world = World()
    topic = shared(world, partitions=3)
    world.publish(topic, b"x", partition=2)
    kill(world)
    world.engine.topics.alter(topic, topic.settings | {"partitions": 2}, now_ms=world.now_ms)
    (letter,) = letters(world)
    bring_back(world, letter)
    world.drain(topic, "b")
    (got,) = world.drain(topic, "a")
    assert got.view.partition.number < 2


# --- what stays ---


def stays(world: World, error: type[Exception], place: str = "t.dlq", **fields: object) -> None:
    before = world.lsn()
    (letter, *_) = letters(world, place)
    with pytest.raises(error):
        bring_back(world, letter, place, **fields)
    assert world.lsn() == before
    assert letter in letters(world, place)


def test_not_twice() -> None:
    world = World()
    shared(world)
    world.publish(world.find(), b"x")
    kill(world)
    (letter,) = letters(world)
    bring_back(world, letter)
    for _ in range(2):
        with pytest.raises(UnknownLetter):
            bring_back(world, letter)
        with pytest.raises(UnknownLetter):
            world.engine.dead_letter_queue.remove(world.find("t.dlq"), 0, world.now_ms)
        world.reopen()
    assert values(world.drain(world.find(), "a")) == [b"x"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject", "dead-letter"])
@pytest.mark.parametrize("limit", [{"max_messages": 1}, {"max_bytes": 1}])
def test_not_into_a_topic_without_room(overflow: str, limit: dict[str, int]) -> None:
    world = World()
    topic = shared(world, overflow=overflow, **limit)
    world.publish(topic, b"x")
    kill(world)
    world.drain(topic, "b")
    world.publish(topic, b"y")
    stays(world, TopicFull)
    assert values(world.drain(topic, "a")) == [b"y"]
    world.drain(topic, "b")
    (letter,) = letters(world)
    queue = world.engine.dead_letter_queue
    place = world.find("t.dlq")
    with pytest.raises(TopicFull):
        queue.require_returnable(place, topic, revived(letter), world.now_ms, Planned(1, 1))
    queue.require_returnable(place, topic, revived(letter), world.now_ms)
    bring_back(world, letter)
    assert values(world.drain(topic, "a")) == [b"x"]


def test_not_if_it_is_too_large_now() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"xxx")
    kill(world)
    settings = topic.settings | {"message_bytes_max": 2}
    world.engine.topics.alter(topic, settings, now_ms=world.now_ms)
    stays(world, MessageTooLarge)


def test_not_without_who_gave_it_up() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"x")
    kill(world)
    world.engine.subscriptions.delete(topic.subscriptions["a"])
    stays(world, UnknownSubscription)


def test_not_into_a_topic_that_is_gone() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"x")
    kill(world)
    (letter,) = letters(world)
    world.engine.topics.delete(topic)
    with pytest.raises(UnknownTopic):
        world.engine.dead_letter_queue.bring_back(
            world.find("t.dlq"), topic, revived(letter), world.now_ms
        )
    assert letters(world) == [letter]


def test_not_while_a_consumer_has_it() -> None:
    world = World()
    shared(world)
    world.publish(world.find(), b"x")
    kill(world)
    reader = world.consumer(world.find("t.dlq"), "reader")
    (got,) = world.pull(reader)
    stays(world, LetterInFlight)
    with pytest.raises(LetterInFlight):
        world.engine.dead_letter_queue.remove(world.find("t.dlq"), 0, world.now_ms)
    world.nack(got, delay_ms=0)
    (letter,) = letters(world)
    bring_back(world, letter)
    assert world.pull(reader) == []


def test_not_behind_a_transaction_that_is_open() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"x")
    kill(world)
    transactions = world.engine.transactions
    begun, _ = transactions.begin(NS, now_ms=world.now_ms)
    origin = Origin(transactions.branch(begun))
    world.engine.publishing.publish(topic, world.batch(b"y"), world.now_ms, origin=origin)
    stays(world, LetterUndecided)
    (letter,) = letters(world)
    bring_back(world, letter, subscription=None)
    transactions.commit(begun, now_ms=world.now_ms)
    assert values(world.drain(topic, "a")) == [b"y", b"x"]


# --- queues behind an exchange ---


def queues(world: World) -> None:
    """``t`` sends its dead through ``dlx``, that to ``q1``, to ``inner`` and so to ``q2``; what it
    has no way for goes by ``other`` to ``q3``."""
    exchanges = world.engine.exchanges
    exchanges.declare(NS, "other", "fanout", durable=True)
    exchanges.declare(NS, "inner", "fanout", durable=True)
    exchanges.declare(NS, "dlx", "direct", durable=True, alternate_exchange="other")
    for name in ("q1", "q2", "q3", "unbound"):
        topic = world.topic(name, retention={"until_acked": True})
        world.engine.subscriptions.subscribe(topic, "queue", now_ms=world.now_ms)
    exchanges.bind(NS, "dlx", to_topic("q1"), b"k1")
    exchanges.bind(NS, "dlx", to_exchange("inner"), b"k2")
    exchanges.bind(NS, "inner", to_topic("q2"), b"")
    exchanges.bind(NS, "inner", to_exchange("dlx"), b"")
    exchanges.bind(NS, "other", to_topic("q3"), b"")
    topic = world.topic("t", dead_letter={"topic": None, "exchange": "dlx"})
    world.engine.subscriptions.subscribe(topic, "a", now_ms=world.now_ms)


def names(world: World) -> list[str]:
    return [each.name for each in world.engine.dead_letter_places.of(world.find())]


def test_letters_behind_an_exchange_are_found() -> None:
    world = World()
    queues(world)
    for key in (b"k1", b"k2", b"k3"):
        world.publish(world.find(), key, key=key)
    kill(world)
    assert names(world) == ["q1", "q2", "q3"]
    found = [record.value for name in names(world) for record in letters(world, name)]
    assert found == [b"k1", b"k2", b"k3"]
    every = [each.name for each in world.engine.dead_letter_places.all_of([NS]) if each is not None]
    assert every == ["q1", "q2", "q3"]
    for name in names(world):
        (letter,) = letters(world, name)
        bring_back(world, letter, name)
        assert world.find(name).depth == 0
    world.reopen()
    assert sorted(values(world.drain(world.find(), "a"))) == [b"k1", b"k2", b"k3"]
    assert [letters(world, name) for name in names(world)] == [[], [], []]


def test_what_a_queues_consumers_took_is_no_letter_any_more() -> None:
    world = World()
    queues(world)
    for _ in range(3):
        world.publish(world.find(), b"x", key=b"k1")
    kill(world)
    consumer = world.consumer(world.find("q1"), "queue")
    _, second, _ = world.pull(consumer)
    before = letters(world, "q1")
    world.ack(second)
    assert [each.offset for each in letters(world, "q1")] == [0, 2]
    with pytest.raises(UnknownLetter):
        bring_back(world, before[1], "q1")


def test_where_they_went_before_is_looked_at_too() -> None:
    world = World()
    topic = shared(world)
    world.publish(topic, b"x")
    kill(world)
    world.engine.topics.alter(
        topic, topic.settings | {"dead_letter": {"topic": "other"}}, now_ms=world.now_ms
    )
    assert names(world) == ["t.dlq"]
    world.publish(topic, b"y")
    kill(world)
    assert names(world) == ["other", "t.dlq"]


def test_the_default_exchange_leads_to_the_queue_of_the_key_or_to_any() -> None:
    world = World()
    world.topic("q")
    world.topic("r")
    world.topic("t", dead_letter={"topic": None, "exchange": "", "routing_key": "q"})
    assert names(world) == ["q"]
    world.topic("u", dead_letter={"topic": None, "exchange": ""})
    found = world.engine.dead_letter_places.of(world.find("u"))
    assert [each.name for each in found] == ["q", "r", "t", "u"]


def test_what_died_there_as_well_is_not_taken_twice() -> None:
    """Many of them wait to be moved on, and are in no state meanwhile."""
    world = World()
    queues(world)
    q1 = world.find("q1")
    world.engine.topics.alter(
        q1, q1.settings | {"dead_letter": {"topic": "further"}}, now_ms=world.now_ms
    )
    for _ in range(300):
        world.publish(world.find(), b"x", key=b"k1")
    kill(world)
    world.advance(0)
    found = letters(world, "q1")
    consumer = world.consumer(q1, "queue")
    world.pull(consumer)
    view = q1.partitions[0].views[0]
    world.engine.settling.reject(consumer, view, 0, 300, now_ms=world.now_ms)
    with pytest.raises(UnknownLetter):
        bring_back(world, found[299], "q1")
    world.advance(0)
    assert len(letters(world, "further")) == 300


# --- crashes ---


def test_a_crash_leaves_each_at_one_place() -> None:
    def prepare(world: World) -> None:
        topic = shared(world, partitions=2)
        world.publish(topic, b"1", b"2", b"3")
        world.drain(topic, "b")
        kill(world)

    def act(world: World) -> None:
        for each in letters(world):
            bring_back(world, each)
            world.engine.store.commit()

    seen = set()
    for world in crashes(prepare, act):
        there = [each.value for each in letters(world)]
        back = values(world.drain(world.find(), "a"))
        assert sorted(there + back) == [b"1", b"2", b"3"]
        assert world.find().subscriptions["b"].depth == 0
        assert world.drain(world.find(), "b") == []
        seen.add(len(back))
    assert seen == {0, 1, 2, 3}


class Returning(RuleBasedStateMachine):
    """Each message is once at each subscription: to be delivered, acknowledged or a dead letter."""

    @initialize(partitions=st.integers(1, 3), lanes=st.booleans(), keeps=st.booleans())
    def begin(self, partitions: int, lanes: bool, keeps: bool) -> None:
        self.world = World()
        self.serial = 0
        self.where: dict[tuple[str, bytes], str] = {}
        options = {"priority": "lanes"} if lanes else {}
        retention = {"until_acked": not keeps}
        retry = {"attempts": 0}
        topic = self.world.topic(partitions=partitions, retention=retention, retry=retry, **options)
        for name in ("a", "b", "c"):
            self.world.engine.subscriptions.subscribe(topic, name, now_ms=self.world.now_ms)

    @rule(keyed=st.booleans(), priority=st.integers(0, 4))
    def publish(self, keyed: bool, priority: int) -> None:
        self.serial += 1
        value = b"%d" % self.serial
        key = value[-1:] if keyed else None
        self.world.publish(self.world.find(), value, key=key, priority=priority)
        self.where |= {(name, value): "ready" for name in "abc"}

    @rule(name=st.sampled_from("abc"), how=st.sampled_from(["ack", "reject", "keep"]))
    def consume(self, name: str, how: str) -> None:
        world = self.world
        consumer = world.consumer(world.find(), name)
        for got in world.pull(consumer, 2):
            assert self.where[name, got.value] == "ready"
            if how == "ack":
                world.ack(got)
                self.where[name, got.value] = "acked"
            elif how == "reject":
                world.reject(got, "why")
                self.where[name, got.value] = "dead"
        world.engine.consumers.detach(consumer, now_ms=world.now_ms)

    @precondition(lambda self: "dead" in self.where.values())
    @rule(index=st.integers(0, 100), every=st.booleans())
    def bring_back(self, index: int, every: bool) -> None:
        found = letters(self.world)
        chosen = found if every else [found[index % len(found)]]
        for record in chosen:
            death = death_of(record)
            assert death is not None
            assert record.value is not None
            bring_back(self.world, record)
            self.where[death.subscription or "", record.value] = "ready"

    @precondition(lambda self: "dead" in self.where.values())
    @rule(index=st.integers(0, 100))
    def remove(self, index: int) -> None:
        found = letters(self.world)
        record = found[index % len(found)]
        death = death_of(record)
        assert death is not None
        assert record.value is not None
        place = self.world.find("t.dlq")
        self.world.engine.dead_letter_queue.remove(place, record.offset, self.world.now_ms)
        self.where[death.subscription or "", record.value] = "removed"

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        if checkpoint:
            self.world.checkpoint()
        self.world.reopen()

    @invariant()
    def nothing_is_lost_and_nothing_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        topic = self.world.find()
        for name, subscription in topic.subscriptions.items():
            found: Counter[bytes] = Counter()
            for view in subscription.views:
                log = view.partition.log
                for record in view.partition.records(log.start_offset, log.next_offset):
                    if record.offset not in view.state.settled:
                        found[record.value or b""] += 1
            expected = [
                value for (who, value), is_ in self.where.items() if is_ == "ready" and who == name
            ]
            assert found == Counter(expected)
            assert subscription.depth == len(expected)
        dead = Counter(
            (death.subscription, record.value)
            for record in letters(self.world)
            if (death := death_of(record)) is not None
        )
        assert dead == Counter(each for each, is_ in self.where.items() if is_ == "dead")


TestReturning = Returning.TestCase
TestReturning.settings = settings(
    settings.get_profile("models"), max_examples=60, stateful_step_count=30, deadline=None
)
