"""Priorities where the order of keys is kept (catalogue rows C6 and F1): lanes by weight, and
messages of one key in the order they came in, whatever their priorities."""

import random
from collections import Counter, defaultdict

import pytest
from engine_worlds import SECOND, Got, World, roomy, values
from hypothesis import given
from hypothesis import strategies as st

from braidmq.engine import dispatching
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.policy import LANE_WEIGHTS, LANES, PRIORITY_OF_LANE
from braidmq.engine.states import Event
from braidmq.engine.topics import Consumer, Credit, Mode, Topic
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetSet

BY_PRIORITY = {PRIORITY_OF_LANE[lane]: lane for lane in LANES}
LANE_OF = bytes(min(priority, 3) for priority in range(256))


def lanes_topic(world: World, **settings: object) -> Topic:
    return world.topic(**{"priority": "lanes", "visibility_ms": 0} | settings)


def keyed(world: World, topic: Topic, **options: object) -> Consumer:
    return world.consumer(topic, mode=Mode.KEY_ORDERED, **{"credits": roomy()} | options)


def publish(world: World, topic: Topic, value: bytes, lane: str, key: bytes | None) -> None:
    world.publish(topic, value, priority=PRIORITY_OF_LANE[lane], key=key)


# --- the kernel ---

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=90),
        ),
        st.tuples(st.just("read"), st.integers(1, 100)),
        st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(1, 8)),
        st.tuples(st.just("give_back"), st.integers(0, 1 << 16)),
        st.tuples(st.just("ack"), st.integers(0, 1 << 16)),
        st.tuples(st.just("drop"), st.integers(0, 1 << 16)),
    ),
    max_size=60,
)


class Pair:
    """The kernel, and what is ready as a dict of offset to key and lane."""

    def __init__(self) -> None:
        self.kernel = DeliveryState(OffsetSet(), 0, 0)
        self.queues = self.kernel.queue_keys()
        self.batches: list[RecordBatch] = []
        self.facts: dict[int, tuple[bytes | None, int]] = {}
        self.ready: set[int] = set()
        self.in_flight: list[int] = []

    def publish(self, records: list[tuple[int, int]]) -> None:
        batch, base = RecordBatch(), len(self.facts)
        for priority, key in records:
            name = b"k%d" % key if key else None
            self.facts[len(self.facts)] = (name, LANE_OF[priority])
            batch.append(b"x", priority=priority, key=name)
        batch.place(base)
        self.batches.append(batch)
        self.kernel.published(batch, base, 0, LANE_OF)
        self.ready.update(range(base, base + batch.count))

    def batch_of(self, offset: int) -> tuple[RecordBatch, int]:
        for batch in self.batches:
            if batch.offset_at(0) <= offset <= batch.offset_at(batch.count - 1):
                return batch, batch.find(offset)
        raise AssertionError(offset)

    def read(self, limit: int) -> None:
        found = self.queues.unread.run(0, limit)
        for offset in range(*found) if found else ():
            batch, index = self.batch_of(offset)
            self.kernel.read_keys(batch, index, index + 1)

    def firsts(self, lane: int) -> list[int]:
        """By the definition."""
        ceiling = self.queues.unread.first()
        seen: set[bytes] = set()
        found = []
        for offset in sorted(self.ready):
            key, its_lane = self.facts[offset]
            if 0 <= ceiling <= offset:
                break
            if (key is None or key not in seen) and its_lane == lane:
                found.append(offset)
            if key is not None:
                seen.add(key)
        return found

    def check(self) -> None:
        for lane in range(4):
            found: list[int] = []
            at = 0
            while run := self.queues.run(lane, at, 7):
                found += range(*run)
                at = run[1]
            assert found == self.firsts(lane)
            flying = [each for each in self.in_flight if self.facts[each][1] == lane]
            assert self.kernel.lane_in_flight(lane) == len(flying)

    def deliver(self, lane: int, limit: int) -> None:
        run = self.queues.run(lane, 0, limit)
        for offset in range(*run) if run else ():
            batch, index = self.batch_of(offset)
            self.kernel.deliver(batch, index, index + 1, 1, 0, 0)
            self.ready.remove(offset)
            self.in_flight.append(offset)

    def answer(self, pick: int, how: str) -> None:
        source = sorted(self.ready) if how == "drop" else self.in_flight
        if not source:
            return
        offset = source[pick % len(source)]
        if how == "give_back":
            self.kernel.apply(Event.NACK, offset, offset + 1, 1)
            self.kernel.apply(Event.RETRY_DUE, offset, offset + 1)
            self.ready.add(offset)
        else:
            event = Event.DROP if how == "drop" else Event.ACK
            self.kernel.apply(event, offset, offset + 1)
        if how == "drop":
            self.ready.remove(offset)
        else:
            self.in_flight.remove(offset)


@given(steps)
def test_firsts_of_keys_are_those_of_a_simple_model(todo: list[tuple]) -> None:
    pair = Pair()
    for step in todo:
        match step:
            case ("publish", records):
                pair.publish(records)
            case ("read", limit):
                pair.read(limit)
            case ("deliver", lane, limit):
                pair.deliver(lane, limit)
            case (how, pick):
                pair.answer(pick, how)
        pair.check()


def test_a_table_of_many_keys_grows_and_shrinks() -> None:
    kernel = DeliveryState(OffsetSet(), 0, 0)
    queues = kernel.queue_keys()
    batch = RecordBatch()
    for number in range(20_000):
        batch.append(b"", key=b"k%d" % (number % 9000))
    batch.place(0)
    kernel.published(batch, 0, 0, LANE_OF)
    kernel.read_keys(batch, 0, batch.count)
    order = list(range(20_000))
    random.Random(4).shuffle(order)
    for offset in order[:19_000]:
        kernel.apply(Event.DROP, offset, offset + 1)
    left = sorted(order[19_000:])
    firsts: dict[int, int] = {}
    for offset in left:
        firsts.setdefault(offset % 9000, offset)
    found, at = [], 0
    while run := queues.run(0, at, 100):
        found += range(*run)
        at = run[1]
    assert found == sorted(firsts.values())


# --- lanes and keys ---


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keys", [None, 100_000])
def test_key_ordered_consumers_are_served_by_weight(seed: int, keys: int | None) -> None:
    world, rng = World(), random.Random(seed)
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    # Every lane stands far behind the one before it, the most important last.
    for lane in reversed(LANES):
        for _ in range(1200):
            key = None if keys is None else b"%d" % rng.randrange(keys)
            publish(world, topic, b"x", lane, key)
    served: Counter[str] = Counter()
    while served.total() < 2000:
        got = world.pull(consumer, min(rng.randint(1, 137), 2000 - served.total()))
        served.update(BY_PRIORITY[each.record.priority] for each in got)
    for lane, weight in zip(LANES, LANE_WEIGHTS, strict=True):
        # Some keys come twice, and wait for each other.
        assert abs(100 * served[lane] / 2000 - weight) <= 2, served


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("room", [1, 2, 7])
def test_weights_hold_for_who_takes_a_few_at_a_time(room: int, consumers: int) -> None:
    """Pushed, as over AMQP and ``$queue``: whoever has no room is no reason to pass over a lane."""
    world = World()
    topic = lanes_topic(world)
    for _ in range(consumers):
        keyed(world, topic, credits=roomy(room))
    for number in range(800):
        for lane in LANES:
            publish(world, topic, b"x", lane, b"%s-%d" % (lane.encode(), number))
    served: Counter[str] = Counter()
    while served.total() < 1000:
        for got in world.dispatch():
            served.update([BY_PRIORITY[got.record.priority]])
            world.ack(got)
    for lane, weight in zip(LANES, LANE_WEIGHTS, strict=True):
        assert abs(100 * served[lane] / served.total() - weight) <= 2, served


def test_what_is_urgent_goes_before_a_window_full_of_what_is_not() -> None:
    world = World()
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    for number in range(3 * dispatching.KEY_WINDOW):
        publish(world, topic, b"later", "background", b"%d" % number)
    publish(world, topic, b"now", "critical", b"urgent")
    assert values(world.pull(consumer, 1)) == [b"now"]


def test_a_window_full_of_one_blocked_key_does_not_hold_up_another_lane() -> None:
    world = World()
    topic = lanes_topic(world)
    full = keyed(world, topic, credits=[Credit(1)])
    for _ in range(2 * dispatching.KEY_WINDOW):
        publish(world, topic, b"x", "critical", b"busy")
    assert [each.consumer for each in world.dispatch()] == [full]
    free = keyed(world, topic)
    publish(world, topic, b"low", "low", b"other")
    (got,) = world.dispatch()
    assert (got.consumer, got.value) == (free, b"low")


def test_an_urgent_message_waits_for_an_earlier_one_of_its_key() -> None:
    world = World()
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    publish(world, topic, b"1", "background", b"k")
    publish(world, topic, b"2", "critical", b"k")
    publish(world, topic, b"other", "normal", b"o")
    assert values(world.pull(consumer, 10)) == [b"other", b"1", b"2"]


def test_what_is_handed_back_goes_before_what_follows_it() -> None:
    world = World()
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    publish(world, topic, b"1", "background", b"k")
    publish(world, topic, b"2", "critical", b"k")
    (first,) = world.pull(consumer, 1)
    world.requeue(first)
    assert values(world.pull(consumer, 10)) == [b"1", b"2"]


def test_an_expired_message_holds_back_nobody() -> None:
    world = World()
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    world.publish(
        topic,
        b"1",
        key=b"k",
        priority=PRIORITY_OF_LANE["background"],
        expires_at_ms=world.now_ms + SECOND,
    )
    publish(world, topic, b"2", "critical", b"k")
    publish(world, topic, b"other", "normal", b"o")
    world.pull(consumer, 0)
    world.advance(2 * SECOND)
    assert values(world.pull(consumer, 1)) == [b"2"]


def test_a_starved_lane_is_boosted_in_key_order() -> None:
    world = World()
    topic = lanes_topic(world)
    consumer = keyed(world, topic)
    for lane in LANES:
        for number in range(200):
            publish(world, topic, b"x", lane, b"%s%d" % (lane.encode(), number))
    last = dict.fromkeys(LANES, world.now_ms)
    for _ in range(200):
        (got,) = world.pull(consumer, 1)
        lane = BY_PRIORITY[got.record.priority]
        assert world.now_ms - last[lane] <= (30 + len(LANES)) * SECOND
        last[lane] = world.now_ms
        world.advance(SECOND)


def test_a_backlog_is_read_in_slices_and_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read is served as far as it is known to be first."""
    monkeypatch.setattr(dispatching, "KEYS_READ_MAX", 10)
    world = World()
    topic = lanes_topic(world)
    for number in range(35):
        publish(world, topic, b"%d" % number, LANES[number % 5], b"k%d" % (number % 7))
    world = world.reopen()
    topic = world.find()
    keyed(world, topic)
    goes = []
    while found := world.engine.dispatching.dispatch(world.now_ms):
        goes.append(sum(each.end_offset - each.start_offset for each in found))
    assert sum(goes) == 35
    assert goes[0] == 10
    assert not world.engine.has_more


class KeyedRun:
    """Publishers and consumers that do as they like; each key must come in order."""

    def __init__(self, seed: int, **settings: object) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        retry = {"attempts": 0, "base_ms": 100}
        self.topic = lanes_topic(self.world, retry=retry, partitions=2, **settings)
        self.consumers = [
            keyed(self.world, self.topic, credits=[Credit(self.rng.randint(1, 30))])
            for _ in range(4)
        ]
        self.sent: defaultdict[bytes, list[int]] = defaultdict(list)
        self.acked: defaultdict[bytes, list[int]] = defaultdict(list)
        self.pending: list[Got] = []

    def publish(self, number: int) -> None:
        key = b"k%d" % self.rng.randrange(40)
        publish(self.world, self.topic, b"%d" % number, self.rng.choice(LANES), key)
        self.sent[key].append(number)

    def answer(self) -> None:
        self.pending += self.world.dispatch()
        for consumer in self.consumers:
            mine = [each for each in self.pending if each.consumer is consumer]
            for each in mine[: self.rng.randint(0, len(mine))]:
                if self.rng.random() < 0.85:
                    assert self.world.ack(each) == 1
                    self.acked[each.record.key or b""].append(int(each.value))
                    self.pending.remove(each)
                    continue
                again = [
                    other
                    for other in mine
                    if other.record.key == each.record.key and other in self.pending
                ]
                for other in reversed(again):
                    (self.world.nack if self.rng.random() < 0.5 else self.world.requeue)(other)
                    self.pending.remove(other)
                break


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("priority", ["lanes", "strict"])
def test_each_key_comes_in_order_whatever_its_priorities(seed: int, priority: str) -> None:
    run = KeyedRun(seed, priority=priority)
    for number in range(500):
        run.publish(number)
        if run.rng.random() < 0.5:
            run.answer()
        run.world.advance(10)
    for _ in range(4000):
        if not run.topic.depth:
            break
        run.answer()
        run.world.advance(50)
    assert run.topic.depth == 0
    assert run.acked == run.sent
