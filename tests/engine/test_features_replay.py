"""Replay (catalogue row C7): rewind a subscription or read a range; others do not notice."""

import pytest
from engine_worlds import HOUR, MINUTE, SECOND, World, values

from braidmq.engine.errors import BadPosition, UnknownSubscription
from braidmq.engine.topics import Mode


def filled(checkpointed: bool = False, **settings: object) -> World:
    """A hundred messages a second apart, read by two subscriptions."""
    world = World()
    topic = world.topic(**settings)
    for name in ("s", "other"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    for number in range(100):
        world.publish(topic, b"%d" % number)
        world.advance(SECOND)
        if checkpointed and number % 40 == 39:
            world.checkpoint()
    return world


def numbers(start: int, stop: int = 100) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("where", ["earliest", "offset", "time", "latest"])
def test_rewind(where: str, restarted: bool, checkpointed: bool) -> None:
    world = filled(checkpointed)
    topic = world.find()
    began = world.now_ms - 100 * SECOND
    assert values(world.drain(topic)) == numbers(0)
    world.drain(topic, "other")
    other = topic.subscriptions["other"]
    counters = (other.depth, other.delivered, other.acked)
    to, first = {
        "earliest": ("earliest", 0),
        "offset": (30, 30),
        "time": (f"@{began + 70 * SECOND}", 70),
        "latest": ("latest", 100),
    }[where]
    world.engine.offsets.rewind(topic.subscriptions["s"], to, now_ms=world.now_ms)
    assert (other.depth, other.delivered, other.acked) == counters
    if restarted:
        world.reopen()
        topic = world.find()
    assert topic.subscriptions["s"].depth == 100 - first
    assert topic.subscriptions["s"].depth_bytes == sum(map(len, numbers(first)))
    got = world.drain(topic)
    assert values(got) == numbers(first)
    assert {each.attempts for each in got} <= {1}
    assert world.drain(topic, "other") == []


def test_rewinding_takes_back_what_is_in_flight() -> None:
    world = filled()
    consumer = world.consumer(world.find())
    got = world.pull(consumer, 10)
    assert world.find().depth == 100
    world.engine.offsets.rewind(consumer.subscription, 50, now_ms=world.now_ms)
    assert consumer.in_flight == 0
    assert [world.ack(each) for each in got] == [0] * 10
    assert values(world.dispatch()) == numbers(50)


def test_rewinding_forward_skips() -> None:
    world = filled()
    world.engine.offsets.rewind(world.find().subscriptions["s"], 90, now_ms=world.now_ms)
    assert values(world.reopen().drain(world.find())) == numbers(90)


def test_rewinding_a_key_ordered_subscription_frees_its_keys() -> None:
    world = World()
    topic = world.topic(visibility_ms=0)
    one = world.consumer(topic, mode=Mode.KEY_ORDERED)
    world.publish(topic, b"a", b"b", key=b"k")
    world.dispatch()
    two = world.consumer(topic, mode=Mode.KEY_ORDERED)
    one.paused = True
    world.engine.offsets.rewind(one.subscription, "latest", now_ms=world.now_ms)
    world.publish(topic, b"c", key=b"k")
    assert [(each.consumer, each.value) for each in world.dispatch()] == [(two, b"c")]


def test_reading_a_range_of_time_touches_nobody() -> None:
    world = filled(checkpointed=True)
    topic = world.find()
    began = world.now_ms - 100 * SECOND
    before, lsn = world.depths(topic), world.lsn()
    start = world.engine.reading.find_offset(topic, 0, f"@{began + 20 * SECOND}")
    stop = world.engine.reading.find_offset(topic, 0, f"@{began + 60 * SECOND}")
    found = []
    while start < stop:
        for run in world.engine.reading.read(topic, 0, start):
            records = [run.batch.record(index) for index in range(run.first, run.stop)]
            found += [each.value for each in records if each.offset < stop]
            start = records[-1].offset + 1
    assert found == numbers(20, 60)
    assert (world.depths(topic), world.lsn()) == (before, lsn)


@pytest.mark.parametrize("where", ["latest", 40, "@future", "earliest"])
def test_a_subscription_may_begin_anywhere(where: str | int) -> None:
    world = filled()
    topic = world.find()
    start = f"@{world.now_ms + HOUR}" if where == "@future" else where
    world.engine.subscriptions.subscribe(topic, "new", now_ms=world.now_ms, start=start)
    world.reopen()
    topic = world.find()
    world.publish(topic, b"100")
    first = {"latest": 100, 40: 40, "@future": 100, "earliest": 0}[where]
    assert values(world.drain(topic, "new")) == numbers(first, 101)


@pytest.mark.parametrize("to", [-1, 101, "begin", "@", "@-5", "@x"])
def test_bad_positions_change_nothing(to: int | str) -> None:
    world = filled()
    topic = world.find()
    before, lsn = world.depths(topic), world.lsn()
    with pytest.raises(BadPosition):
        world.engine.offsets.rewind(topic.subscriptions["s"], to, now_ms=world.now_ms)
    with pytest.raises(BadPosition):
        world.engine.subscriptions.subscribe(topic, "new", now_ms=world.now_ms, start=to)
    with pytest.raises(BadPosition):
        world.engine.reading.find_offset(topic, 0, to)
    assert (world.depths(topic), world.lsn()) == (before, lsn)


def test_a_time_beyond_all_numbers_is_the_end() -> None:
    world = filled()
    assert world.engine.reading.find_offset(world.find(), 0, "@" + "9" * 40) == 100


def test_one_bad_partition_leaves_all_alone() -> None:
    world = World()
    topic = world.topic(partitions=2)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"a", b"b", partition=0)
    world.drain(topic)
    with pytest.raises(BadPosition):
        world.engine.offsets.rewind(topic.subscriptions["s"], 1, now_ms=world.now_ms)
    assert topic.depth == 0


def test_a_deleted_subscription_can_not_be_rewound() -> None:
    world = filled()
    subscription = world.find().subscriptions["s"]
    world.engine.subscriptions.delete(subscription)
    before = world.lsn()
    with pytest.raises(UnknownSubscription):
        world.engine.offsets.rewind(subscription, 0, now_ms=world.now_ms)
    assert world.lsn() == before
    world.advance(MINUTE)


def test_an_amqp_queue_that_forgets_can_be_rewound_to_what_is_left() -> None:
    world = filled(retention={"until_acked": True})
    topic = world.find()
    world.drain(topic)
    subscription = topic.subscriptions["s"]
    world.engine.offsets.rewind(subscription, "earliest", now_ms=world.now_ms)
    assert values(world.drain(topic)) == numbers(0)  # the other subscription still wants them
    world.drain(topic, "other")
    world.engine.offsets.rewind(subscription, "earliest", now_ms=world.now_ms)
    assert world.drain(topic) == []
