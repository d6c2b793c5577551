"""Delayed messages (catalogue section E): never early, on their tick, through restarts."""

import random

import pytest
from engine_worlds import DAY, HOUR, SECOND, World, roomy, values

from braidmq.engine.errors import NotDelayed

TICK_MS = 10
YEAR = 365 * DAY


def arrivals(world: World, until_ms: int) -> dict[bytes, int]:
    """Run the clock and note when each message of topic ``t`` is first handed out."""
    consumer = world.consumer(world.find(), credits=roomy())
    found = {each.value: world.now_ms for each in world.dispatch()}
    while (due := world.engine.next_due_ms()) is not None and due <= until_ms:
        world.now_ms = max(world.now_ms, due)
        world.engine.advance(world.now_ms)
        found |= {each.value: world.now_ms for each in world.dispatch()}
    world.now_ms = until_ms
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    return found


def test_none_is_early_and_each_comes_on_its_tick() -> None:
    world, rng = World(), random.Random(1)
    topic = world.topic(visibility_ms=0, ordering="none")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    due = {}
    for number in range(2000):
        delay = rng.choice((1, 9, 10, 11, 999, 2560, 164_000, 3 * HOUR, 8 * DAY, 30 * DAY))
        due[b"%d" % number] = world.now_ms + delay + rng.randint(0, 3000)
        world.publish(topic, b"%d" % number, due_at_ms=due[b"%d" % number])
    found = arrivals(world, world.now_ms + 31 * DAY)
    assert found.keys() == due.keys()
    assert all(due[each] <= found[each] < due[each] + TICK_MS for each in due)


@pytest.mark.parametrize("delay", [YEAR, 10 * YEAR, 1000 * YEAR])
def test_a_delay_has_no_upper_bound(delay: int) -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.delay(topic, b"later", delay)
    due = world.now_ms + delay
    # In one go: the sweeps of a thousand years would take minutes.
    world.now_ms += delay - 1
    world.engine.advance(world.now_ms)
    assert world.drain(topic) == []
    world.now_ms += TICK_MS
    world.engine.advance(world.now_ms)
    assert values(world.drain(topic)) == [b"later"]
    assert world.now_ms - due < TICK_MS


@pytest.mark.parametrize("checkpointed", [False, True])
def test_delays_survive_several_restarts(checkpointed: bool) -> None:
    world = World()
    topic = world.topic(partitions=2, visibility_ms=0, ordering="none")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    due = {}
    for number in range(200):
        name, delay = b"%d" % number, (number * 37) % 100 * HOUR + YEAR
        due[name] = world.now_ms + delay
        world.publish(topic, name, due_at_ms=due[name])
    for _ in range(4):
        if checkpointed:
            world.checkpoint()
        world.advance(HOUR)
        world.reopen(after_ms=30 * DAY)
        assert world.engine.delayed.count(world.find()) == 200
        assert world.drain(world.find()) == []
    if checkpointed:
        assert all(part.log.segments for part in world.find().partitions)
    found = arrivals(world, world.now_ms + 2 * YEAR)
    assert {each: at // TICK_MS for each, at in found.items()} == {
        each: -(-at // TICK_MS) for each, at in due.items()
    }


def test_what_became_due_while_the_node_was_down_comes_at_once() -> None:
    world = World()
    topic = world.topic(ordering="none")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.delay(topic, b"hour", HOUR)
    world.delay(topic, b"day", DAY)
    world.reopen(after_ms=2 * HOUR)
    assert values(world.drain(world.find())) == [b"hour"]
    assert world.engine.delayed.count(world.find()) == 1


@pytest.mark.parametrize("delay", [0, -1, -YEAR])
def test_zero_or_past_means_at_once(delay: int) -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.delay(topic, b"now", delay)
    assert world.engine.delayed.count(topic) == 0
    assert values(world.dispatch()) == [b"now"]
    assert world.engine.settling.ack(consumer, topic.partitions[0].views[0], 0, 1) == 1


def test_list_count_and_cancel() -> None:
    world = World()
    topic = world.topic(partitions=2)
    for name in ("a", "b"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    for number in range(10):
        world.publish(
            topic,
            b"%d" % number,
            due_at_ms=world.now_ms + HOUR + number * SECOND,
            partition=number % 2,
        )
    world.publish(topic, b"plain", partition=0)
    listed = world.engine.delayed.find(topic, now_ms=world.now_ms)
    assert sorted(int(each.record.value or b"") for each in listed) == list(range(10))
    assert all(each.due_ms == each.record.due_at_ms for each in listed)
    assert len(world.engine.delayed.find(topic, now_ms=world.now_ms, limit=3)) == 3
    victim = next(each for each in listed if each.record.value == b"4")
    world.engine.delayed.cancel(topic, victim.partition, victim.offset)
    assert world.engine.delayed.count(topic) == 9
    with pytest.raises(NotDelayed):
        world.engine.delayed.cancel(topic, victim.partition, victim.offset)
    world.advance(2 * HOUR)
    expected = {b"plain", *(b"%d" % number for number in range(10))} - {b"4"}
    for name in ("a", "b"):
        assert {each.value for each in world.drain(topic, name)} == expected
    assert world.engine.delayed.count(topic) == 0
    assert topic.depth == 0


def test_a_subscription_that_began_later_does_not_hide_what_others_wait_for() -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "old", now_ms=world.now_ms)
    world.delay(topic, b"x", HOUR)
    world.engine.subscriptions.delete(world.engine.state.subscription(topic, "old"))
    world.engine.subscriptions.subscribe(topic, "late", now_ms=world.now_ms, start="latest")
    world.engine.subscriptions.subscribe(topic, "new", now_ms=world.now_ms)
    assert world.engine.delayed.count(topic) == 1
    assert len(world.engine.delayed.find(topic, now_ms=world.now_ms)) == 1
    world.engine.delayed.cancel(topic, 0, 0)
    assert world.engine.delayed.count(topic) == 0


@pytest.mark.parametrize("checkpointed", [False, True])
def test_cancelled_is_never_delivered_not_even_after_restarts_or_to_newcomers(
    checkpointed: bool,
) -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(5):
        world.delay(topic, b"%d" % number, HOUR)
    world.engine.delayed.cancel(topic, 0, 0)
    world.engine.delayed.cancel(topic, 0, 3)
    for _ in range(3):
        if checkpointed:
            world.checkpoint()
        world.reopen()
    topic = world.find()
    assert world.engine.delayed.count(topic) == 3
    world.engine.subscriptions.subscribe(topic, "newcomer", now_ms=world.now_ms)
    world.advance(HOUR + SECOND)
    assert values(world.drain(topic)) == [b"1", b"2", b"4"]
    assert values(world.drain(topic, "newcomer")) == [b"1", b"2", b"4"]
    world.engine.offsets.rewind(
        world.engine.state.subscription(topic, "s"), "earliest", now_ms=world.now_ms
    )
    assert values(world.drain(topic)) == [b"1", b"2", b"4"]


def test_cancelling_without_any_subscription() -> None:
    world = World()
    topic = world.topic()
    world.delay(topic, b"a", HOUR)
    world.delay(topic, b"b", HOUR)
    assert world.engine.delayed.count(topic) == 2
    world.engine.delayed.cancel(topic, 0, 0)
    assert world.engine.delayed.count(topic) == 1
    world.reopen()
    topic = world.find()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.advance(2 * HOUR)
    assert values(world.drain(topic)) == [b"b"]


def test_only_what_waits_can_be_cancelled() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, b"plain")
    world.delay(topic, b"delayed", SECOND)
    before = world.lsn()
    for offset in (0, 2, -1):
        with pytest.raises(NotDelayed):
            world.engine.delayed.cancel(topic, 0, offset)
    assert world.lsn() == before
    world.advance(2 * SECOND)
    world.pull(consumer)
    with pytest.raises(NotDelayed):
        world.engine.delayed.cancel(topic, 0, 1)


def test_a_delayed_message_does_not_hold_up_those_behind_it() -> None:
    world = World()
    topic = world.topic()
    world.consumer(topic)
    world.delay(topic, b"later", SECOND)
    world.publish(topic, b"a", b"b")
    assert values(world.dispatch()) == [b"a", b"b"]
    world.advance(SECOND + TICK_MS)
    assert values(world.dispatch()) == [b"later"]
