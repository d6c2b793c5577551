"""Priority (catalogue section F): weighted lanes, starvation, strict levels, persistence."""

import random
from collections import Counter

import pytest
from engine_worlds import SECOND, World, roomy, values

from braidmq.engine.policy import LANE_WEIGHTS, LANES, PRIORITY_OF_LANE

BY_PRIORITY = {PRIORITY_OF_LANE[lane]: lane for lane in LANES}


def lane_of(priority: int) -> str:
    return BY_PRIORITY[priority]


@pytest.mark.parametrize("seed", range(3))
def test_backlogged_lanes_share_by_weight_whatever_the_sizes_of_pulls(seed: int) -> None:
    world, rng = World(), random.Random(seed)
    topic = world.topic(priority="lanes", ordering="none")
    consumer = world.consumer(topic, credits=roomy())
    for lane in LANES:
        for _ in range(6):
            world.publish(topic, *[b"x"] * 1000, priority=PRIORITY_OF_LANE[lane])
    served: Counter[str] = Counter()
    while served.total() < 10_000:
        got = world.pull(consumer, min(rng.randint(1, 137), 10_000 - served.total()))
        served.update(lane_of(each.record.priority) for each in got)
    for lane, weight in zip(LANES, LANE_WEIGHTS, strict=True):
        assert abs(100 * served[lane] / 10_000 - weight) < 1, served


def test_a_lane_that_was_not_served_for_thirty_seconds_goes_first() -> None:
    world = World()
    topic = world.topic(priority="lanes", ordering="none", visibility_ms=0)
    consumer = world.consumer(topic, credits=roomy())
    for lane in LANES:
        world.publish(topic, *[b"x"] * 200, priority=PRIORITY_OF_LANE[lane])
    last = dict.fromkeys(LANES, world.now_ms)
    for _ in range(200):
        (got,) = world.pull(consumer, 1)
        lane = lane_of(got.record.priority)
        # One message a second: by weight alone the last lane would wait for 97 s. Several lanes
        # may be due in the same second, and one is served in each.
        assert world.now_ms - last[lane] <= (30 + len(LANES)) * SECOND
        last[lane] = world.now_ms
        world.advance(SECOND)


def test_unset_priority_is_normal() -> None:
    world = World()
    topic = world.topic(priority="lanes", ordering="none")
    consumer = world.consumer(topic)
    world.publish(topic, b"unset")
    world.publish(topic, b"low", priority=PRIORITY_OF_LANE["low"])
    world.publish(topic, b"normal", priority=PRIORITY_OF_LANE["normal"])
    assert values(world.pull(consumer)) == [b"unset", b"normal", b"low"]


@pytest.mark.parametrize("levels", [2, 10, 256])
def test_strict_levels_go_strictly_by_level_and_first_in_first_out_within(levels: int) -> None:
    world, rng = World(), random.Random(levels)
    topic = world.topic(priority="strict", priority_levels=levels, ordering="none")
    consumer = world.consumer(topic, credits=roomy())
    sent = []
    for number in range(500):
        priority = rng.randint(0, 255)
        sent.append((min(priority, levels - 1), number))
        world.publish(topic, b"%d" % number, priority=priority)
    got = [each for _ in range(600) for each in world.pull(consumer, 1)]
    expected = sorted(sent, key=lambda each: (-each[0], each[1]))
    assert [int(each.value) for each in got] == [number for _, number in expected]


def test_a_later_more_important_message_overtakes() -> None:
    world = World()
    topic = world.topic(priority="strict", priority_levels=10, ordering="none")
    consumer = world.consumer(topic)
    world.publish(topic, b"a", b"b", b"c", priority=1)
    assert values(world.pull(consumer, 1)) == [b"a"]
    world.publish(topic, b"urgent", priority=9)
    assert values(world.pull(consumer, 2)) == [b"urgent", b"b"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_priority_persists(checkpointed: bool) -> None:
    world = World()
    topic = world.topic(priority="strict", priority_levels=10, ordering="none")
    world.consumer(topic)
    for number in range(100):
        world.publish(topic, b"%d" % number, priority=number % 10)
        if checkpointed and number % 30 == 0:
            world.checkpoint()
    world.reopen()
    if checkpointed:
        world.checkpoint()
        world.reopen()
    got = world.drain(world.find())
    expected = sorted(range(100), key=lambda number: (-(number % 10), number))
    assert [int(each.value) for each in got] == expected


@pytest.mark.parametrize("mode", ["strict", "lanes"])
def test_a_requeued_message_returns_to_its_lane_and_place(mode: str) -> None:
    world = World()
    topic = world.topic(priority=mode, priority_levels=6, ordering="none", starvation_ms=0)
    consumer = world.consumer(topic)
    for number in range(6):
        world.publish(topic, b"%d" % number, priority=5 if number % 2 else 2)
    first = world.pull(consumer, 3)
    assert values(first) == [b"1", b"3", b"5"]
    world.requeue(first[1])
    world.requeue(first[0])
    state = topic.partitions[0].views[0].state
    assert [state.lane_ready(lane) for lane in (0, 3)] == [2, 3]
    again = world.pull(consumer)
    assert [(each.value, each.attempts) for each in again] == [
        (b"1", 2),
        (b"3", 2),
        (b"0", 1),
        (b"2", 1),
        (b"4", 1),
    ]


def test_a_message_that_was_in_flight_at_a_restart_keeps_lane_and_attempts() -> None:
    world = World()
    topic = world.topic(priority="strict", priority_levels=10, ordering="none")
    consumer = world.consumer(topic, visibility_ms=0)
    world.publish(topic, b"low", priority=1)
    world.publish(topic, b"high", priority=9)
    assert values(world.pull(consumer, 1)) == [b"high"]
    got = world.reopen().drain(world.find())
    assert [(each.value, each.attempts) for each in got] == [(b"high", 2), (b"low", 1)]


def test_priorities_can_be_switched_on_and_off_at_run_time() -> None:
    world = World()
    topic = world.topic(ordering="none")
    consumer = world.consumer(topic)
    for number in range(4):
        world.publish(topic, b"%d" % number, priority=number)
    strict = {"partitions": 1, "ordering": "none", "priority": "strict", "priority_levels": 10}
    world.engine.topics.alter(topic, strict, now_ms=world.now_ms)
    assert values(world.pull(consumer, 2)) == [b"3", b"2"]
    world.engine.topics.alter(topic, {"partitions": 1, "ordering": "none"}, now_ms=world.now_ms)
    assert values(world.pull(consumer)) == [b"0", b"1"]


def test_counters_per_priority() -> None:
    world = World()
    topic = world.topic(priority="lanes", ordering="none")
    consumer = world.consumer(topic)
    world.publish(topic, b"a", b"b", priority=PRIORITY_OF_LANE["critical"])
    world.publish(topic, b"c", priority=PRIORITY_OF_LANE["background"])
    view = topic.partitions[0].views[0]
    assert [view.state.lane_ready(lane) for lane in range(5)] == [2, 0, 0, 0, 1]
    world.advance(SECOND)
    world.pull(consumer)
    assert view.lanes is not None
    assert view.lanes.served == [2, 0, 0, 0, 1]
    assert view.lanes.last_served_ms[0] == world.now_ms
