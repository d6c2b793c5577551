"""What a client can make long goes by blocks, by consumers or by slices, not message by message.
Counted in steps and journal entries, not timed."""

import sys

import pytest
from engine_worlds import NS, World, roomy, values

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.dispatching import KEY_WINDOW, LOOKS_MAX
from braidmq.engine.states import Event, State
from braidmq.engine.timers import TIMERS_PER_TURN
from braidmq.engine.topics import Consumer, Mode, Topic
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetSet

MANY = 1000
LANES = bytes(min(priority, 3) for priority in range(256))


def bodies(count: int = MANY) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def calls_of(name: str, action: object) -> int:
    """How often Python functions of that name are called meanwhile; works for sources only."""
    found = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal found
        if event == "call" and frame.f_code.co_name == name:  # type: ignore[attr-defined]
            found += 1

    sys.setprofile(count)
    try:
        action()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return found


# --- priorities: blocks of messages that are alike ---


@pytest.mark.parametrize("sizes", [[1000], [1] * 300, [7] * 100, [64, 1, 63, 200]])
@pytest.mark.parametrize("even", [True, False])
def test_prioritised_messages_count_the_same_however_they_came(
    sizes: list[int], even: bool
) -> None:
    kernel, expected = DeliveryState(OffsetSet(), 0, 0), [0, 0]
    batches = []
    for number, size in enumerate(sizes):
        batch, base = RecordBatch(), kernel.end
        for index in range(size):
            value = b"v" * (5 if even else 1 + index % 3)
            batch.append(value, priority=number % 2)
            expected[0] += 1
            expected[1] += len(value)
        batch.place(base)
        kernel.published(batch, base, 0, LANES)
        batches.append(batch)
    assert (kernel.ready, kernel.ready_bytes, kernel.fresh) == (*expected, 0)
    again = DeliveryState(OffsetSet(), 0, kernel.end)
    for batch in batches:
        again.rebuild(batch, 0, batch.count, 0, LANES)
    again.rebuild_done()
    assert (again.ready, again.ready_bytes, again.fresh) == (*expected, 0)
    assert [each.ranges() for each in again.lanes if each is not None] == [
        each.ranges() for each in kernel.lanes if each is not None
    ]
    # Some go one by one, and all the others at once.
    first = batches[0]
    _, count, size = again.take_out(Event.DROP, first, 0, 1)
    assert (count, size) == (1, len(first.record(0).value or b""))
    ranges, count, rest = again.apply(Event.DROP, 0, again.end)
    assert (count, rest + size) == (expected[0] - 1, expected[1])
    assert ranges == [(1, again.end)]
    assert (again.ready, again.ready_bytes) == (0, 0)


@pytest.mark.parametrize("how", ["purge", "limit", "ttl"])
def test_what_goes_of_a_queue_with_priorities_is_one_entry(how: str) -> None:
    world = World()
    topic = world.topic(
        retention={"until_acked": True},
        priority="lanes",
        overflow="drop-head",
        dead_letter={"topic": None},
    )
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, *bodies())
    before = world.lsn()
    if how == "purge":
        assert world.engine.retention.purge(topic) == MANY
        assert world.lsn() - before == 1
        return
    changed = {"limit": {"max_messages": 1}, "ttl": {"ttl_ms": 1}}[how]
    world.now_ms += 1000
    world.engine.topics.alter(topic, topic.settings | changed, now_ms=world.now_ms)
    world.advance(0)
    assert topic.depth == (1 if how == "limit" else 0)
    # The settings themselves are one.
    assert world.lsn() - before <= 3


# --- what is at consumers ---


def taken(world: World, topic: Topic, *, passive: bool) -> list[Consumer]:
    consumers = [world.consumer(topic, credits=roomy(300), passive=passive) for _ in range(4)]
    world.publish(topic, *bodies())
    if passive:
        for _ in range(MANY):
            for consumer in consumers:
                world.pull(consumer, 1)
    else:
        world.dispatch()
    assert topic.subscriptions["s"].in_flight == MANY
    return consumers


@pytest.mark.parametrize("passive", [True, False])
@pytest.mark.parametrize("how", ["rewind", "commit"])
def test_what_consumers_have_is_taken_back_consumer_by_consumer(passive: bool, how: str) -> None:
    world = World()
    topic = world.topic()
    consumers = taken(world, topic, passive=passive)
    view = topic.partitions[0].views[0]

    def act() -> None:
        if how == "rewind":
            world.engine.offsets.rewind(view.subscription, "latest", now_ms=world.now_ms)
        else:
            world.engine.offsets.commit(view, MANY)

    assert calls_of("_take_from", act) <= len(consumers)
    assert (topic.depth, view.state.in_flight) == (0, 0)
    assert [(each.in_flight, each.room) for each in consumers] == [(0, 300)] * 4


def test_what_is_at_consumers_behind_an_offset_stays_there() -> None:
    world = World()
    topic = world.topic()
    consumers = taken(world, topic, passive=True)
    view = topic.partitions[0].views[0]
    world.engine.offsets.commit(view, 401)
    assert view.state.in_state(State.IN_FLIGHT) == [(401, MANY)]
    assert sum(each.in_flight for each in consumers) == MANY - 401


# --- time ---


def test_expired_messages_between_living_ones_are_settled_in_one_step() -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True}, dead_letter={"topic": None})
    consumer = world.consumer(topic, credits=roomy(), passive=True, auto_ack=True)
    batch = RecordBatch()
    for number, body in enumerate(bodies()):
        expires = world.now_ms + (10 if number % 2 else 10**9)
        batch.append(body, timestamp_ms=world.now_ms, expires_at_ms=expires)
    world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)
    world.now_ms += 1000
    before = world.lsn()
    got = world.pull(consumer)
    assert values(got) == bodies()[::2]
    # Each living one is a delivery of its own; the others are one entry, or one for a read.
    assert world.lsn() - before <= len(got) + 3
    assert (topic.depth, topic.subscriptions["s"].expired) == (0, MANY // 2)


def test_a_turn_ends_after_so_many_timers() -> None:
    world = World()
    topic = world.topic(dead_letter={"topic": None})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    count = 3 * TIMERS_PER_TURN
    world.publish(topic, *bodies(count), expires_at_ms=world.now_ms + 10)
    world.now_ms += 1000
    seen = []
    while topic.depth:
        world.engine.advance(world.now_ms)
        seen.append(topic.depth)
    assert seen == [2 * TIMERS_PER_TURN, TIMERS_PER_TURN, 0]


# --- who is served ---


def test_keys_are_served_a_window_a_turn() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy())
    batch = RecordBatch()
    count = 3 * KEY_WINDOW
    keys: list[bytes | None] = [b"k%d" % (number % 100) for number in range(count)]
    batch.extend_values(bodies(count), world.now_ms, keys=keys)
    world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)
    seen = []
    while world.engine.has_more:
        seen.append(len(world.dispatch()))
    assert max(seen) <= KEY_WINDOW
    assert sum(seen) == count
    view = topic.partitions[0].views[0]
    assert world.engine.settling.ack(consumer, view, 0, count) == count
    keyed = topic.subscriptions["s"].keys
    assert keyed is not None
    assert (keyed.slot_of, keyed.pending, keyed.owner) == ({}, {}, {})


LARGE = 100_000


IN_A_MEGABYTE = 12


@pytest.mark.parametrize("priority", ["none", "strict"])
@pytest.mark.parametrize("flushed", [False, True])
def test_in_key_order_about_a_megabyte_is_read_in_one_go(priority: str, flushed: bool) -> None:
    """However large the messages of a window are; so it is after a restart, when the keys of what
    waits for its retry have to be known first."""
    world = World()
    topic = world.topic(priority=priority, retry={"attempts": 9, "base_ms": 10, "max_ms": 10})
    consumer = world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy())
    count = 60
    for number in range(count):
        world.publish(topic, b"%06d" % number * (LARGE // 6), key=b"k%d" % number)
    if flushed:
        world.checkpoint()

    def dispatched() -> list[bytes]:
        found = []
        for _ in range(count):  # one that only reads hands out nothing
            got = values(world.dispatch())
            assert len(got) <= IN_A_MEGABYTE
            found += got
        return found

    assert len(dispatched()) == count
    view = topic.partitions[0].views[0]
    world.engine.settling.nack(consumer, view, 0, count, now_ms=world.now_ms)
    assert view.state.waiting == count
    world.reopen()
    topic = world.find()
    world.publish(topic, b"overtakes", key=b"k7")
    consumer = world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy())
    known = 0
    while known < count:
        assert world.dispatch() == []
        keyed = topic.subscriptions["s"].keys
        assert keyed is not None
        assert known < len(keyed.slot_of) <= known + IN_A_MEGABYTE
        known = len(keyed.slot_of)
    assert world.dispatch() == []
    world.advance(20)
    found = dispatched()
    assert len(found) == count + 1
    assert found.index(b"%06d" % 7 * (LARGE // 6)) < found.index(b"overtakes")


def test_keys_that_cannot_go_are_looked_at_a_window_at_a_time() -> None:
    """Of many messages that came back, all of one key, the rest waits for the first."""
    world = World()
    topic = world.topic()
    gone = world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy())
    count = 20 * KEY_WINDOW
    batch = RecordBatch()
    keys: list[bytes | None] = [b"k%d" % (number % 900) for number in range(count)]
    batch.extend_values(bodies(count), world.now_ms, keys=keys)
    world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)
    while world.engine.has_more:
        world.dispatch()
    world.consumer(topic, mode=Mode.KEY_ORDERED, credits=roomy(1))
    world.engine.consumers.detach(gone, now_ms=world.now_ms)
    world.dispatch()
    keyed = topic.subscriptions["s"].keys
    assert keyed is not None
    assert len(keyed.known_in(0)) <= 2 * KEY_WINDOW


def test_many_consumers_with_little_room_take_turns() -> None:
    """Each round asks all of them; those of the highest priority come first all the same."""
    world = World()
    topic = world.topic()
    subscription = world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    number = LOOKS_MAX // 4
    consumers = [
        world.engine.consumers.attach(
            subscription, now_ms=world.now_ms, credits=roomy(1), priority=each // 500
        )
        for each in range(number)
    ]
    world.publish(topic, *bodies(number))
    turns = 0
    got = []
    while world.engine.has_more:
        got += world.dispatch()
        turns += 1
    assert [each.consumer.priority for each in got] == sorted(
        [each.priority for each in consumers], reverse=True
    )
    assert len(got) == number
    assert turns > 1


# --- deleting ---


def test_a_topic_goes_with_its_subscriptions_in_one_step_each() -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True})
    for number in range(200):
        world.consumer(topic, f"s{number}")
    wanted = calls_of("set_wanted", lambda: world.engine.topics.delete(topic))
    assert wanted <= len(topic.partitions)
    assert not world.engine.state.views
    assert not world.engine.state.consumers
    assert not world.engine.state.subscriptions
    assert [each.name for each in world.engine.state.topics_of(NS)] == []


def test_what_is_kept_for_subscriptions_is_what_they_have_not_settled() -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True})
    log = topic.partitions[0].log
    for name in ("a", "b", "c"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    assert len(log.acknowledged) == 3
    world.engine.subscriptions.delete(topic.subscriptions["b"])
    states = [each.views[0].state.settled for each in topic.subscriptions.values()]
    assert list(log.acknowledged) == states
