"""Several consumers on one subscription (catalogue rows C6, D7, D8)."""

import random
from collections import Counter, defaultdict

import pytest
from engine_worlds import SECOND, Got, World, flat, roomy, values

from braidmq.engine.dispatching import DELIVERIES_MAX
from braidmq.engine.effects import ActiveConsumerChanged
from braidmq.engine.errors import ExclusiveConsumer
from braidmq.engine.topics import Consumer, Credit, Mode

# --- shared ---


@pytest.mark.parametrize("batch", [1, 7, 600])
def test_consumers_take_turns(batch: int) -> None:
    world = World()
    topic = world.topic(ordering="none")
    consumers = [world.consumer(topic, credits=roomy()) for _ in range(4)]
    got: Counter[int] = Counter()
    for _ in range(1200 // batch):
        world.publish(topic, *[b"x"] * batch)
        while found := world.dispatch():
            got.update(each.consumer.id for each in found)
    assert got.total() == 1200 // batch * batch
    share = got.total() / 4
    assert all(abs(got[each.id] - share) <= share * 0.15 for each in consumers), got


def test_a_crowd_of_consumers_is_served_in_several_goes() -> None:
    """Each delivery is one to make and to write, however small."""
    world = World()
    topic = world.topic(ordering="none")
    many = 3 * DELIVERIES_MAX
    consumers = [world.consumer(topic, credits=roomy()) for _ in range(many)]
    world.publish(topic, *[b"x"] * many)
    goes = []
    while found := world.engine.dispatching.dispatch(world.now_ms):
        goes.append([each.consumer for each in found])
    assert [len(each) for each in goes] == [DELIVERIES_MAX] * 3
    assert [each for go in goes for each in go] == consumers


def test_a_crowd_of_queues_is_served_in_several_goes_and_keeps_its_limits() -> None:
    world = World()
    many = DELIVERIES_MAX + 10
    topics = [
        world.topic(f"t{number}", max_messages=1, overflow="drop-head", limits_count="ready")
        for number in range(many)
    ]
    consumers = [world.consumer(topic, credits=roomy()) for topic in topics]
    world.engine.publishing.fan_out(topics, world.batch(b"a", b"b"), now_ms=world.now_ms)
    first = world.engine.dispatching.dispatch(world.now_ms)
    assert world.engine.has_more
    second = world.engine.dispatching.dispatch(world.now_ms)
    assert not world.engine.has_more
    assert (len(first), len(second)) == (DELIVERIES_MAX, 10)
    assert [each.consumer for each in first + second] == consumers
    # Nobody lost what its consumer could take, because others came first.
    assert {each.stop_index - each.first_index for each in first + second} == {2}


@pytest.mark.parametrize("pushed", [False, True])
def test_partitions_take_turns(pushed: bool) -> None:
    world = World()
    topic = world.topic(partitions=4, ordering="none")
    consumer = world.consumer(topic, credits=[Credit(10)])
    for number in range(4):
        world.publish(topic, *[b"x"] * 100, partition=number)
    got: Counter[int] = Counter()
    for _ in range(20):
        for each in world.dispatch() if pushed else world.pull(consumer, 10):
            got[each.view.partition.number] += 1
            world.ack(each)
    assert got == dict.fromkeys(range(4), 50)


def test_a_slow_consumer_does_not_starve_the_others() -> None:
    world = World()
    topic = world.topic(ordering="none")
    slow = world.consumer(topic, credits=[Credit(5)])
    fast = world.consumer(topic, credits=[Credit(5)])
    got: Counter[int] = Counter()
    for _ in range(50):
        world.publish(topic, *[b"x"] * 10)
        while found := world.dispatch():
            for each in found:
                got[each.consumer.id] += 1
                if each.consumer is fast:
                    world.ack(each)
    assert got == {slow.id: 5, fast.id: 495}
    assert topic.depth == 5


def test_a_paused_consumer_gets_nothing_until_it_resumes() -> None:
    world = World()
    topic = world.topic(ordering="none")
    one, two = world.consumer(topic), world.consumer(topic)
    one.paused = True
    world.publish(topic, *[b"x"] * 10)
    assert {each.consumer for each in world.dispatch()} == {two}
    world.engine.consumers.resume(one)
    world.publish(topic, *[b"x"] * 10)
    assert {each.consumer for each in world.dispatch()} == {one, two}


def test_the_important_consumer_goes_first_while_it_has_room() -> None:
    world = World()
    topic = world.topic(ordering="none")
    spare = world.consumer(topic, credits=roomy())
    important = world.consumer(topic, credits=[Credit(3)], priority=10)
    world.publish(topic, *[b"x"] * 5)
    got = Counter(each.consumer.id for each in world.dispatch())
    assert got == {important.id: 3, spare.id: 2}


def test_in_flight_is_limited_by_default() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, *[b"x"] * 1500)
    got = world.dispatch()
    assert len(got) == consumer.in_flight == 1000
    for each in got[:10]:
        world.ack(each)
    assert len(world.dispatch()) == 10


def test_a_credit_may_be_shared_by_a_channels_consumers() -> None:
    world = World()
    topics = [world.topic(name) for name in ("a", "b")]
    channel = Credit(4)
    consumers = [world.consumer(topic, credits=[Credit(3), channel]) for topic in topics]
    for topic in topics:
        world.publish(topic, *[b"x"] * 10)
    first = world.dispatch()
    assert Counter(each.consumer.id for each in first) == {consumers[0].id: 3, consumers[1].id: 1}
    assert channel.room == 0
    for each in first[:3]:
        world.ack(each)
    world.engine.consumers.resume(consumers[1])
    assert len(world.dispatch()) == 3
    assert channel.used == 4


@pytest.mark.parametrize("gone", ["subscription", "topic", "consumer"])
def test_what_goes_away_gives_its_credit_back(gone: str) -> None:
    world = World()
    topics = [world.topic(name) for name in ("a", "b")]
    channel = Credit(4)
    one, two = (world.consumer(topic, credits=[channel]) for topic in topics)
    for topic in topics:
        world.publish(topic, *[b"x"] * 10)
    assert {each.consumer for each in world.dispatch()} == {one}
    if gone == "subscription":
        world.engine.subscriptions.delete(one.subscription)
    elif gone == "topic":
        world.engine.topics.delete(topics[0])
    else:
        world.engine.consumers.detach(one, now_ms=world.now_ms)
    assert channel.used == channel.bytes_used == 0
    world.engine.consumers.resume(two)
    assert {each.consumer for each in world.dispatch()} == {two}


def test_bytes_can_be_limited_too() -> None:
    world = World()
    topic = world.topic(ordering="none")
    consumer = world.consumer(topic, credits=[Credit(bytes_limit=100)])
    world.publish_each(topic, [bytes(40)] * 10)
    got = [each for _ in range(10) for each in world.pull(consumer, 1)]
    # The limit stops what follows once it is reached: one message may reach beyond.
    assert len(got) == 3
    world.ack(got[0])
    assert len(world.pull(consumer, 1)) == 1


def test_auto_ack_settles_on_delivery() -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True})
    consumer = world.consumer(topic, auto_ack=True)
    world.publish(topic, *[b"x"] * 3000)
    got = []
    while found := world.dispatch():
        got += found
    assert len(got) == 3000
    assert (consumer.in_flight, topic.depth) == (0, 0)
    assert world.reopen().find().depth == 0


# --- one at a time ---


def test_single_active_consumer_hands_over() -> None:
    world = World()
    topic = world.topic()
    one = world.consumer(topic, mode=Mode.SINGLE_ACTIVE)
    two = world.consumer(topic, mode=Mode.SINGLE_ACTIVE)
    three = world.consumer(topic, mode=Mode.SINGLE_ACTIVE, priority=5)
    world.engine.take_effects()
    world.publish(topic, b"a", b"b")
    assert {each.consumer for each in world.dispatch()} == {one}
    assert world.pull(two) == []
    world.engine.consumers.detach(one, now_ms=world.now_ms)
    assert world.engine.take_effects() == [ActiveConsumerChanged(three)]
    got = world.dispatch()
    assert values(got) == [b"a", b"b"]
    assert {(each.consumer, each.attempts) for each in got} == {(three, 2)}
    world.engine.consumers.detach(three, now_ms=world.now_ms)
    assert {each.consumer for each in world.dispatch()} == {two}


@pytest.mark.parametrize("by", ["mode", "consumer"])
def test_exclusive_refuses_a_second_and_stays_so(by: str) -> None:
    world = World()
    topic = world.topic()
    mode = Mode.EXCLUSIVE if by == "mode" else Mode.SHARED
    options = {} if by == "mode" else {"exclusive": True}
    world.publish(topic, b"x")
    for _ in range(2):
        consumer = world.consumer(topic, mode=mode, **options)
        assert values(world.dispatch()) == [b"x"]
        with pytest.raises(ExclusiveConsumer):
            world.consumer(topic, mode=mode)
        assert topic.subscriptions["s"].consumers == {consumer: None}
        world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    assert topic.subscriptions["s"].mode is mode


def test_nobody_becomes_exclusive_beside_others() -> None:
    world = World()
    topic = world.topic()
    world.consumer(topic)
    with pytest.raises(ExclusiveConsumer):
        world.consumer(topic, exclusive=True)
    world.consumer(topic)


@pytest.mark.parametrize("mode", [Mode.KEY_ORDERED, Mode.SINGLE_ACTIVE])
def test_an_exclusive_consumer_does_not_change_the_mode(mode: Mode) -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic, mode=mode, exclusive=True)
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    assert topic.subscriptions["s"].mode is mode


# --- key order ---


class KeyedRun:
    """Consumers that ack, nack, requeue and vanish at random, and what each key saw."""

    def __init__(self, seed: int, keys: int, consumers: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        retry = {"attempts": 0, "base_ms": 100}
        self.topic = self.world.topic(retry=retry, visibility_ms=0)
        self.consumers = [self.attach() for _ in range(consumers)]
        self.keys = keys
        self.sent: defaultdict[bytes, list[int]] = defaultdict(list)
        self.acked: defaultdict[bytes, list[int]] = defaultdict(list)
        self.by_consumer: Counter[int] = Counter()
        self.pending: list[Got] = []

    def attach(self) -> Consumer:
        return self.world.consumer(self.topic, mode=Mode.KEY_ORDERED, credits=[Credit(20)])

    def publish(self, number: int) -> None:
        key = b"k%d" % self.rng.randrange(self.keys)
        self.world.publish(self.topic, b"%d" % number, key=key)
        self.sent[key].append(number)

    def take(self) -> None:
        self.pending += self.world.dispatch()
        held: dict[bytes, Consumer] = {}
        for each in self.pending:
            key = each.record.key or b""
            assert held.setdefault(key, each.consumer) is each.consumer

    def answer(self) -> None:
        """Each consumer works in the order it got things, as far as it likes."""
        self.rng.shuffle(self.consumers)
        for consumer in self.consumers:
            mine = [each for each in self.pending if each.consumer is consumer]
            for each in mine[: self.rng.randint(0, len(mine))]:
                roll = self.rng.random()
                if roll < 0.8:
                    assert self.world.ack(each) == 1
                    self.acked[each.record.key or b""].append(int(each.value))
                    self.by_consumer[consumer.id] += 1
                    self.pending.remove(each)
                    continue
                # Giving one back means giving back what follows it with the same key.
                again = [
                    other
                    for other in mine
                    if other.record.key == each.record.key and other in self.pending
                ]
                for other in reversed(again):
                    (self.world.nack if roll < 0.9 else self.world.requeue)(other)
                    self.pending.remove(other)
                break

    def vanish(self) -> None:
        gone = self.consumers.pop(self.rng.randrange(len(self.consumers)))
        self.world.engine.consumers.detach(gone, now_ms=self.world.now_ms)
        self.pending = [each for each in self.pending if each.consumer is not gone]
        self.consumers.append(self.attach())


@pytest.mark.parametrize("seed", range(6))
def test_many_consumers_on_one_partition_keep_the_order_of_each_key(seed: int) -> None:
    run = KeyedRun(seed, keys=30, consumers=5)
    for number in range(600):
        run.publish(number)
        run.take()
        run.answer()
        if number % 60 == 59:
            run.vanish()
        run.world.advance(10)
    for _ in range(4000):
        if not run.topic.depth:
            break
        run.take()
        run.answer()
        run.world.advance(50)
    assert run.topic.depth == 0
    assert run.acked == run.sent


def test_keys_are_spread_over_consumers() -> None:
    world = World()
    topic = world.topic()
    consumers = [
        world.consumer(topic, mode=Mode.KEY_ORDERED, credits=[Credit(100)]) for _ in range(4)
    ]
    for number in range(4000):
        world.publish(topic, b"%d" % number, key=b"key-%d" % (number % 200))
    got: Counter[int] = Counter()
    while found := world.dispatch():
        for each in found:
            got[each.consumer.id] += 1
            world.ack(each)
    assert got.total() == 4000
    assert all(got[each.id] > 600 for each in consumers), got


def test_a_waiting_key_does_not_hold_up_the_others() -> None:
    world = World()
    topic = world.topic(visibility_ms=0)
    world.consumer(topic, mode=Mode.KEY_ORDERED)
    for number in range(4):
        world.publish(topic, b"%d" % number, key=b"ab"[number % 2 : number % 2 + 1])
    got = world.dispatch()
    for each in got:
        if each.record.key == b"a":
            world.nack(each)
        else:
            world.ack(each)
    world.publish(topic, b"4", key=b"a")
    world.publish(topic, b"5", key=b"b")
    assert values(world.dispatch()) == [b"5"]
    world.advance(SECOND + 10)
    assert values(world.dispatch()) == [b"0", b"2", b"4"]


def test_a_cancelled_consumer_gets_no_more_of_its_keys() -> None:
    world = World()
    topic = world.topic(visibility_ms=0)
    one = world.consumer(topic, mode=Mode.KEY_ORDERED)
    world.publish(topic, b"a", key=b"k")
    (first,) = world.dispatch()
    two = world.consumer(topic, mode=Mode.KEY_ORDERED)
    world.engine.consumers.detach(one, now_ms=world.now_ms, requeue=False)
    world.publish(topic, b"b", key=b"k")
    assert world.dispatch() == []
    world.ack(first)
    (second,) = world.dispatch()
    assert (second.consumer, second.value) == (two, b"b")


def test_without_a_key_there_is_no_order_to_keep() -> None:
    """Key-ordered: keyless messages are spread, and one that waits holds back no other."""
    world = World()
    topic = world.topic(partitions=2)
    consumers = [world.consumer(topic, mode=Mode.KEY_ORDERED, credits=[Credit(4)]) for _ in "ab"]
    world.publish(topic, *(b"%d" % number for number in range(12)))
    got = flat(world.engine.dispatching.dispatch(world.now_ms))
    assert Counter(each.consumer for each in got) == dict.fromkeys(consumers, 4)
    first = got[0]
    world.engine.settling.nack(
        first.consumer, first.view, first.offset, first.offset + 1, now_ms=world.now_ms
    )
    more = flat(world.engine.dispatching.dispatch(world.now_ms))
    assert len(more) == 1
    assert more[0].value != first.value


def test_partitions_take_turns_in_key_order() -> None:
    world = World()
    topic = world.topic(partitions=4)
    consumer = world.consumer(topic, mode=Mode.KEY_ORDERED, credits=[Credit(1)])
    for number in range(4):
        for _ in range(10):
            world.publish(topic, b"", partition=number)
    seen = set()
    for _ in range(12):
        (got,) = flat(world.engine.dispatching.dispatch(world.now_ms))
        seen.add(got.view.partition.number)
        world.engine.settling.ack(consumer, got.view, got.offset, got.offset + 1)
    assert seen == {0, 1, 2, 3}


def test_credit_that_was_held_back_is_given_to_whoever_waits() -> None:
    world = World()
    shared = Credit(1)
    topics = [world.topic(name) for name in "ab"]
    consumers = [world.consumer(topic, credits=[shared]) for topic in topics]
    shared.used += 1
    for topic in topics:
        world.publish(topic, b"x")
    assert world.engine.dispatching.dispatch(world.now_ms) == []
    world.engine.consumers.release(shared, 1)
    (got,) = flat(world.engine.dispatching.dispatch(world.now_ms))
    assert got.consumer in consumers


# --- how much one may have ---


@pytest.mark.parametrize("asked", [1 << 40, 50, 2])
def test_a_topic_says_how_much_one_consumer_may_have(asked: int) -> None:
    world = World()
    topic = world.topic(ordering="none", consumer_prefetch_max=3)
    consumers = [world.consumer(topic, credits=roomy(asked)) for _ in range(2)]
    world.publish(topic, *[b"x"] * 10)
    got = world.dispatch()
    most = min(asked, 3)
    assert Counter(each.consumer for each in got) == dict.fromkeys(consumers, most)
    assert [each.prefetch for each in consumers] == [most, most]
    world.ack(got[0])
    assert [each.consumer for each in world.dispatch()] == [got[0].consumer]


def test_it_may_say_otherwise_while_they_are_there() -> None:
    world = World()
    topic = world.topic(ordering="none")
    consumer = world.consumer(topic, credits=roomy(5))
    world.publish(topic, *[b"x"] * 10)
    got = world.dispatch()
    assert len(got) == 5

    def allow(most: int | None) -> int:
        settings = {"partitions": 1, "ordering": "none", "consumer_prefetch_max": most}
        world.engine.topics.alter(topic, settings, now_ms=world.now_ms)
        return len(world.dispatch())

    assert allow(2) == 0
    for each in got[:3]:
        world.ack(each)
    # It has two, as many as it may.
    assert (consumer.in_flight, world.dispatch()) == (2, [])
    assert allow(4) == 2
    assert allow(None) == 1
    assert (consumer.in_flight, consumer.prefetch) == (5, 5)


def test_who_needs_not_answer_is_not_held_back() -> None:
    world = World()
    topic = world.topic(ordering="none", consumer_prefetch_max=1)
    world.consumer(topic, credits=roomy(), auto_ack=True)
    world.publish(topic, *[b"x"] * 10)
    assert len(world.dispatch()) == 10
