"""Delayed messages (catalogue section E): never early, on their tick, through restarts."""

import random

import pytest
from engine_worlds import DAY, HOUR, MINUTE, NOW, NS, SECOND, World, roomy, values

from braidmq.engine import delay_ends
from braidmq.engine.delay_ends import KEPT_MAX, DelayEnd
from braidmq.engine.errors import NotDelayed
from braidmq.engine.later import waiting_in
from braidmq.engine.transactions.publishing import Origin
from braidmq.record.batch import DATED_DUE

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
    world.engine.delayed.cancel(topic, victim.partition, victim.offset, world.now_ms)
    assert world.engine.delayed.count(topic) == 9
    with pytest.raises(NotDelayed):
        world.engine.delayed.cancel(topic, victim.partition, victim.offset, world.now_ms)
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
    world.engine.delayed.cancel(topic, 0, 0, world.now_ms)
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
    world.engine.delayed.cancel(topic, 0, 0, world.now_ms)
    world.engine.delayed.cancel(topic, 0, 3, world.now_ms)
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
    world.engine.delayed.cancel(topic, 0, 0, world.now_ms)
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
            world.engine.delayed.cancel(topic, 0, offset, world.now_ms)
    assert world.lsn() == before
    world.advance(2 * SECOND)
    world.pull(consumer)
    with pytest.raises(NotDelayed):
        world.engine.delayed.cancel(topic, 0, 1, world.now_ms)


def test_a_delayed_message_does_not_hold_up_those_behind_it() -> None:
    world = World()
    topic = world.topic()
    world.consumer(topic)
    world.delay(topic, b"later", SECOND)
    world.publish(topic, b"a", b"b")
    assert values(world.dispatch()) == [b"a", b"b"]
    world.advance(SECOND + TICK_MS)
    assert values(world.dispatch()) == [b"later"]


def ended(world: World, state: DelayEnd, topic: str = "t") -> list[tuple[int, int, int, int]]:
    return [tuple(each) for each in world.engine.delay_ends.latest(world.find(topic), state, 1000)]


def ends(world: World) -> dict[str, int]:
    counts = world.engine.delay_ends.counts(world.find())
    assert counts == world.engine.state.totals.of(NS).delays_ended
    return {each.value: counts[each] for each in DelayEnd}


@pytest.mark.parametrize("subscriptions", [0, 1, 2])
def test_what_became_of_delayed_messages_is_counted_once(subscriptions: int) -> None:
    """Whether nobody, somebody or several subscribe."""
    world, start = World(), NOW
    topic = world.topic()
    for number in range(subscriptions):
        world.engine.subscriptions.subscribe(topic, f"s{number}", now_ms=world.now_ms)
    world.publish(topic, b"plain")
    world.delay(topic, b"comes", SECOND)
    expires = NOW + 500
    world.publish(topic, b"cancelled", due_at_ms=NOW + SECOND, expires_at_ms=expires)
    world.publish(topic, b"too late", due_at_ms=NOW + HOUR, expires_at_ms=NOW + 2 * SECOND)
    world.publish(topic, b"in time", due_at_ms=NOW + SECOND, expires_at_ms=NOW + 3 * SECOND)
    world.publish(topic, b"no delay", expires_at_ms=NOW + 2 * SECOND)
    world.engine.delayed.cancel(topic, 0, 2, world.now_ms)
    assert ends(world) == {"delivered": 0, "cancelled": 1, "expired": 0}
    for _ in range(8):
        world.advance(SECOND)
    assert ends(world) == {"delivered": 2, "cancelled": 1, "expired": 1}
    due = start + SECOND
    assert [each[:3] for each in ended(world, DelayEnd.DELIVERED)] == [(0, 4, due), (0, 1, due)]
    assert ended(world, DelayEnd.CANCELLED) == [(0, 2, due, start)]
    ((partition, offset, late, at),) = ended(world, DelayEnd.EXPIRED)
    assert (partition, offset, late) == (0, 3, start + HOUR)
    assert 0 <= at - (start + 2 * SECOND) <= SECOND
    world.advance(2 * HOUR)
    assert ends(world) == {"delivered": 2, "cancelled": 1, "expired": 1}


@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("step", [-30 * MINUTE, 30 * MINUTE])
def test_a_date_that_the_clock_moved_is_counted_once(subscribed: bool, step: int) -> None:
    world = World()
    topic = world.topic()
    if subscribed:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"at noon", due_at_ms=NOW + HOUR, dated=DATED_DUE)
    world.engine.message_times.clock_set(step, world.now_ms)
    world.advance(HOUR - step - MINUTE)
    assert ends(world)["delivered"] == 0
    world.advance(MINUTE + SECOND)
    assert ends(world)["delivered"] == 1
    world.advance(DAY)
    assert ends(world)["delivered"] == 1
    ((_, _, due, _),) = ended(world, DelayEnd.DELIVERED)
    assert due == NOW + HOUR


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("until_acked", [False, True])
def test_what_nobody_subscribes_to_is_counted_as_it_is_listed(seed: int, until_acked: bool) -> None:
    """Against a list: published, committed and aborted, cancelled, compacted, purged, restarted,
    the clock set, and now and then somebody subscribes for a while."""
    world, rng = World(), random.Random(seed)
    topic = world.topic(
        partitions=2,
        retention={"until_acked": until_acked},
        compaction={"enabled": seed % 2 == 1 and not until_acked},
    )
    # By partition and offset: when it is due, by the wall clock.
    model: dict[tuple[int, int], int] = {}
    gone: dict[tuple[int, int], int] = {}  # their time came, but their date may come again
    lead_ms = cancelled = 0

    def published(due: int, how: str) -> None:
        number = rng.randrange(2)
        offset = world.find().partitions[number].log.next_offset
        fields = {"due_at_ms": due, "dated": DATED_DUE, "key": b"%d" % rng.randrange(40)}
        if how == "plain":
            world.publish(world.find(), b"x", partition=number, **fields)
        else:
            work = world.engine.transactions
            transaction, _ = work.begin(NS, f"x{offset}-{number}", now_ms=world.now_ms)
            world.engine.publishing.publish(
                world.find(),
                world.batch(b"x", **fields),
                now_ms=world.now_ms,
                partition=number,
                origin=Origin(work.branch(transaction)),
            )
            end = work.commit if how == "committed" else work.abort
            end(transaction, now_ms=world.now_ms)
        if how != "aborted":
            model[number, offset] = due

    for _ in range(300):
        topic = world.find()
        wall_ms = world.now_ms + lead_ms
        waiting = [
            (each.partition, each.offset)
            for each in world.engine.delayed.find(topic, world.now_ms, limit=1000)
        ]
        match rng.randrange(14):
            case 0 | 1 | 2 | 3 | 4 | 5:
                due = wall_ms + rng.choice((0, SECOND, MINUTE, HOUR, DAY))
                published(due, rng.choice(("plain", "plain", "committed", "aborted")))
            case 6 | 7:
                world.advance(rng.choice((SECOND, 10 * SECOND, MINUTE)))
            case 8 if waiting:
                number, offset = rng.choice(waiting)
                world.engine.delayed.cancel(topic, number, offset, world.now_ms)
                model.pop((number, offset), None)
                gone.pop((number, offset), None)
                cancelled += 1
            case 9:
                world.checkpoint()
                world.reopen(after_ms=rng.choice((0, MINUTE)))
                lead_ms = cancelled = 0
                model |= {each: due for each, due in gone.items() if due > world.now_ms}
            case 10:
                found = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
                published(wall_ms + HOUR, "plain")
                world.engine.subscriptions.delete(found)
                model |= {each: due for each, due in gone.items() if due > wall_ms}
            case 11 if rng.random() < 0.3:
                world.engine.retention.purge(topic)
                model.clear()
                gone.clear()
            case 12:
                lead_ms = rng.choice((-MINUTE, 0, MINUTE))
                world.engine.message_times.clock_set(lead_ms, world.now_ms)
                world.advance(TICK_MS)
            case _:
                continue
        for key in [each for each, due in model.items() if due <= world.now_ms + lead_ms]:
            gone[key] = model.pop(key)
        topic = world.find()
        listed = world.engine.delayed.find(topic, world.now_ms, limit=1000)
        found = [(each.partition, each.offset) for each in listed]
        if seed % 2 and not until_acked:  # what is compacted, this model does not know
            assert model.keys() >= set(found)
        else:
            assert found == sorted(model)
        assert world.engine.delayed.count(topic) == waiting_in(topic) == len(found)
        assert ends(world)["cancelled"] == cancelled


def test_the_last_that_ended_are_kept() -> None:
    world = World()
    topic = world.topic()
    for number in range(KEPT_MAX + 20):
        world.delay(topic, b"x", HOUR + number * SECOND)
    for offset in range(KEPT_MAX + 20):
        world.engine.delayed.cancel(topic, 0, offset, world.now_ms)
    assert ends(world)["cancelled"] == KEPT_MAX + 20
    found = ended(world, DelayEnd.CANCELLED)
    assert [each[1] for each in found] == list(range(KEPT_MAX + 19, 19, -1))
    assert len(world.engine.delay_ends.latest(topic, DelayEnd.CANCELLED, 3)) == 3


def test_of_many_topics_the_quietest_lose_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_ends, "TOPICS_MAX", 2)
    world = World()
    for name, offset in (("a", 0), ("b", 0), ("a", 1), ("c", 0)):
        found = world.engine.state.topics.get((NS, name)) or world.topic(name)
        world.delay(found, b"x", HOUR)
        world.engine.delayed.cancel(found, 0, offset, world.now_ms)
    kept = {name: len(ended(world, DelayEnd.CANCELLED, name)) for name in "abc"}
    assert kept == {"a": 2, "b": 0, "c": 1}
    assert world.engine.delay_ends.counts(world.find("b"))[DelayEnd.CANCELLED] == 1


def test_a_topic_takes_what_is_known_of_it_along() -> None:
    world = World()
    topic = world.topic()
    world.delay(topic, b"x", HOUR)
    world.engine.delayed.cancel(topic, 0, 0, world.now_ms)
    world.engine.topics.delete(topic)
    world.topic()
    assert ended(world, DelayEnd.CANCELLED) == []
    assert not world.engine.delay_ends.counts(world.find())
    assert not world.engine.delay_ends.counts(topic)
    assert world.engine.state.totals.of(NS).delays_ended["cancelled"] == 1
