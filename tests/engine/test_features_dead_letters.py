"""Retry and dead letters (catalogue rows D5, D6)."""

import pytest
from engine_worlds import NS, SECOND, SMALL, World, all_records, crashes, values

from braidmq.engine.effects import DeadLettered
from braidmq.engine.routing.bindings import topic as to_topic
from braidmq.testing.faulty_disk import CutAt, FaultyDisk

TICK_MS = 10


def delays(world: World, failures: int) -> list[int]:
    """How long after each failure the message came again."""
    found = []
    (got,) = world.dispatch()
    for _ in range(failures):
        failed_ms = world.now_ms
        world.nack(got)
        while not (again := world.dispatch()):
            due = world.engine.next_due_ms()
            assert due is not None
            world.now_ms = max(world.now_ms, due)
            world.engine.advance(world.now_ms)
        (got,) = again
        found.append(world.now_ms - failed_ms)
    return found


def test_back_off_doubles_up_to_its_cap() -> None:
    world = World()
    topic = world.topic(retry={"attempts": 0}, visibility_ms=0)
    world.consumer(topic)
    world.publish(topic, b"x")
    expected = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert delays(world, 9) == [seconds * SECOND for seconds in expected]


def test_back_off_goes_on_where_it_was_after_a_restart() -> None:
    world = World()
    topic = world.topic(retry={"attempts": 0}, visibility_ms=0)
    world.consumer(topic)
    world.publish(topic, b"x")
    assert delays(world, 2) == [SECOND, 2 * SECOND]
    world.checkpoint()
    world.reopen()
    world.consumer(world.find())
    assert delays(world, 2) == [8 * SECOND, 16 * SECOND]  # the delivery before counts too


def test_a_retry_survives_a_restart_and_is_not_early() -> None:
    world = World()
    topic = world.topic(retry={"base_ms": 60 * SECOND, "max_ms": 60 * SECOND})
    (got,) = (world.consumer(topic), world.publish(topic, b"x"), world.dispatch())[2]
    world.nack(got)
    world.reopen(after_ms=30 * SECOND)
    consumer = world.consumer(world.find())
    world.advance(30 * SECOND - 1)
    assert world.pull(consumer) == []
    world.advance(TICK_MS)
    assert [each.attempts for each in world.pull(consumer)] == [2]


def test_a_nack_may_choose_its_own_delay() -> None:
    world = World()
    topic = world.topic(visibility_ms=0)
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    (got,) = world.pull(consumer)
    world.nack(got, delay_ms=7 * SECOND)
    world.advance(7 * SECOND - 1)
    assert world.pull(consumer) == []
    world.advance(TICK_MS)
    assert len(world.pull(consumer)) == 1


def fail_until_dead(world: World, error: str = "") -> int:
    consumer = world.consumer(world.find())
    failures = 0
    while world.find().depth:
        for each in world.pull(consumer):
            failures += world.nack(each, error=error)
        world.advance(SECOND)
    world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    return failures


def test_given_up_after_its_attempts_with_everything_kept() -> None:
    world = World()
    topic = world.topic(partitions=3)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"before", partition=2)
    assert values(world.drain(topic)) == [b"before"]
    world.publish(topic, b"x", partition=2, key=b"k", priority=3)
    assert len(world.engine.state.topics_of()) == 1
    assert fail_until_dead(world, "no luck") == 3
    (dead,) = world.drain(world.find("t.dlq"))
    assert (dead.value, dead.record.key, dead.record.priority) == (b"x", b"k", 3)
    headers = dead.headers
    assert headers["x-death-topic"] == b"t"
    assert headers["x-death-partition"] == b"2"
    assert headers["x-death-offset"] == b"1"
    assert headers["x-death-reason"] == b"max-attempts"
    assert headers["x-death-attempts"] == b"3"
    assert headers["x-death-error"] == b"no luck"
    assert headers["x-death-subscription"] == b"s"
    assert int(headers["x-death-time"]) <= world.now_ms


def test_given_up_after_its_total_time() -> None:
    world = World()
    world.consumer(world.topic(retry={"attempts": 0, "total_ms": 10 * SECOND}))
    world.publish(world.find(), b"x")
    started = world.now_ms
    fail_until_dead(world)
    (dead,) = world.drain(world.find("t.dlq"))
    assert dead.headers["x-death-reason"] == b"max-age"
    assert world.now_ms - started >= 10 * SECOND


def test_a_rejected_message_is_given_up_at_once() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    (got,) = world.pull(consumer)
    assert world.reject(got, "bad") == 1
    (dead,) = world.drain(world.find("t.dlq"))
    assert dead.headers["x-death-reason"] == b"rejected"
    assert dead.headers["x-death-error"] == b"bad"
    assert dead.headers["x-death-attempts"] == b"1"


def test_timeouts_count_as_attempts() -> None:
    world = World()
    topic = world.topic(visibility_ms=5 * SECOND)
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    while topic.depth:
        world.pull(consumer)
        world.advance(SECOND)
    (dead,) = world.drain(world.find("t.dlq"))
    assert dead.headers["x-death-reason"] == b"max-attempts"
    assert dead.headers["x-death-error"] == b"timeout"
    assert consumer.in_flight == 0


def test_the_dead_letter_topic_gives_nothing_up() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    world.reject(world.pull(consumer)[0])
    dlq = world.find("t.dlq")
    reader = world.consumer(dlq)
    for _ in range(10):
        (got,) = world.pull(reader)
        world.nack(got, delay_ms=0)
    assert dlq.depth == 1


# --- exchanges ---


@pytest.mark.parametrize("own_key", [True, False])
def test_through_an_exchange_with_a_routing_key(own_key: bool) -> None:
    world = World()
    rule = {"topic": None, "exchange": "dlx"} | ({} if own_key else {"routing_key": "dead"})
    world.engine.exchanges.declare(NS, "dlx", "direct", durable=True)
    for name, key in (("by-key", b"orders"), ("by-rule", b"dead")):
        world.topic(name)
        world.engine.exchanges.bind(NS, "dlx", to_topic(name), key)
    topic = world.topic(dead_letter=rule)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, b"x", key=b"orders")
    world.reopen()
    world.reject(world.pull(world.consumer(world.find()))[0])
    assert values(world.drain(world.find("by-key" if own_key else "by-rule"))) == [b"x"]
    assert world.drain(world.find("by-rule" if own_key else "by-key")) == []


def test_nowhere_to_go_means_dropped() -> None:
    world = World()
    topic = world.topic(dead_letter={"topic": None, "exchange": "missing"})
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    world.reject(world.pull(consumer)[0])
    assert topic.depth == 0
    assert len(world.engine.state.topics_of()) == 1


# --- alerts ---

HOOK = "https://hooks.example.com/x"


def deaths(world: World) -> list[DeadLettered]:
    return [each for each in world.engine.take_effects() if isinstance(each, DeadLettered)]


def test_a_topic_without_a_webhook_tells_nobody() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    world.reject(world.pull(consumer)[0])
    assert deaths(world) == []


def test_a_webhook_is_told_of_what_died_together() -> None:
    world = World()
    topic = world.topic(dead_letter={"alert_webhook": HOOK})
    consumer = world.consumer(topic)
    for number in range(5):
        world.publish(topic, b"%d" % number)
    world.pull(consumer)
    view = topic.partitions[0].views[0]
    world.engine.settling.reject(consumer, view, 1, 4, now_ms=world.now_ms, error="bad")
    (told,) = deaths(world)
    assert (told.webhook, told.targets) == (HOOK, ("t.dlq",))
    assert (told.first_offset, told.count) == (1, 3)
    death = told.death
    assert (death.topic, death.partition, death.reason) == ("t", 0, "rejected")
    assert (death.attempts, death.subscription, death.error) == (1, "s", "bad")
    assert deaths(world) == []


def test_messages_that_an_exchange_parts_are_told_of_apart() -> None:
    world = World()
    world.engine.exchanges.declare(NS, "dlx", "direct", durable=True)
    for name in ("a", "b"):
        world.topic(name)
        world.engine.exchanges.bind(NS, "dlx", to_topic(name), name.encode())
    topic = world.topic(dead_letter={"exchange": "dlx", "alert_webhook": HOOK})
    consumer = world.consumer(topic)
    for key in (b"a", b"a", b"b", b"nobody's"):
        world.publish(topic, b"x", key=key)
    world.pull(consumer)
    view = topic.partitions[0].views[0]
    world.engine.settling.reject(consumer, view, 0, 4, now_ms=world.now_ms)
    told = [(each.targets, each.first_offset, each.count) for each in deaths(world)]
    assert told == [(("a",), 0, 2), (("b",), 2, 1)]


def test_what_goes_nowhere_is_no_dead_letter() -> None:
    world = World()
    topic = world.topic(dead_letter={"topic": None, "alert_webhook": HOOK})
    consumer = world.consumer(topic)
    world.publish(topic, b"x")
    world.reject(world.pull(consumer)[0])
    assert deaths(world) == []


def test_a_full_topic_tells_of_what_it_did_not_take() -> None:
    world = World()
    topic = world.topic(max_messages=1, overflow="dead-letter", dead_letter={"alert_webhook": HOOK})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    batch = world.batch()
    batch.extend_values([b"x"] * 3, world.now_ms)
    world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)
    told = [(each.death.reason, each.death.partition, each.count) for each in deaths(world)]
    assert told == [("maxlen", -1, 2)]


def test_one_setting_of_dead_letters_leaves_the_others() -> None:
    world = World()
    topic = world.topic(dead_letter={"expired": True})
    assert topic.policy.dead_letter.topic == "{topic}.dlq"


# --- circles ---


def circle(world: World, *names: str) -> None:
    for name, following in zip(names, (*names[1:], names[0]), strict=True):
        rule = {"topic": following, "expired": True}
        topic = world.topic(name, ttl_ms=SECOND, dead_letter=rule, visibility_ms=0)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(world.find(names[0]), b"x")


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_circle_without_a_consumers_choice_is_dropped(names: list[str]) -> None:
    world = World()
    circle(world, *names)
    world.advance(len(names) * (SECOND + TICK_MS) + SECOND)
    assert {name: world.find(name).depth for name in names} == dict.fromkeys(names, 0)
    world.advance(10 * SECOND)
    assert sum(world.find(name).published for name in names) == len(names)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_circle_that_a_consumer_wants_goes_on(names: list[str]) -> None:
    world = World()
    circle(world, *names)
    for turn in range(6):
        topic = world.find(names[turn % len(names)])
        consumer = world.consumer(topic)
        (got,) = world.pull(consumer)
        world.reject(got)
        world.engine.consumers.detach(consumer, now_ms=world.now_ms)
    assert sum(world.find(name).depth for name in names) == 1


# --- exactly once ---


def names_and_values(world: World) -> list[bytes]:
    found = []
    for topic in world.engine.state.topics_of():
        for partition in topic.partitions:
            settled = [view.state.settled for view in partition.views]
            found += [
                record.value or b""
                for record in all_records(world, topic, partition.number)
                if not (settled and all(record.offset in each for each in settled))
            ]
    return sorted(found)


@pytest.mark.parametrize("through", ["topic", "exchange"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_dead_lettering_is_exactly_once_whenever_it_crashes(
    through: str, checkpointed: bool
) -> None:
    """Every message is either still in its topic or in a dead-letter topic, never both."""

    def prepare(world: World) -> None:
        rule: dict[str, object] = {"topic": "{topic}.dlq"}
        if through == "exchange":
            rule = {"topic": None, "exchange": "dlx"}
            world.engine.exchanges.declare(NS, "dlx", "direct", durable=True)
            for number in (0, 1):
                world.topic(f"dead-{number}")
                world.engine.exchanges.bind(NS, "dlx", to_topic(f"dead-{number}"), b"%d" % number)
        topic = world.topic(dead_letter=rule)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        batch = world.batch()
        for number in range(8):
            batch.append(b"%d" % number, key=b"%d" % (number // 2 % 2), timestamp_ms=world.now_ms)
        world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)

    def act(world: World) -> None:
        consumer = world.consumer(world.find())
        world.pull(consumer)
        view = world.find().partitions[0].views[0]
        world.engine.settling.reject(consumer, view, 0, 3, now_ms=world.now_ms)
        world.engine.store.commit()
        if checkpointed:
            world.checkpoint()
        world.engine.settling.reject(consumer, view, 3, 8, now_ms=world.now_ms)
        world.engine.store.commit()
        if checkpointed:
            world.checkpoint()

    for left in crashes(prepare, act):
        assert names_and_values(left) == [b"%d" % number for number in range(8)]


def test_entries_of_one_dead_lettering_may_be_cut_anywhere() -> None:
    """As above, but a crash falls between the journal entries of a single step: the journal is
    cut at every byte."""
    disk = FaultyDisk()
    world = World(disk, SMALL)
    world.engine.exchanges.declare(NS, "dlx", "direct", durable=True)
    for number in (0, 1):
        world.topic(f"dead-{number}")
        world.engine.exchanges.bind(NS, "dlx", to_topic(f"dead-{number}"), b"%d" % number)
    topic = world.topic(dead_letter={"topic": None, "exchange": "dlx"})
    consumer = world.consumer(topic)
    batch = world.batch()
    for number in range(4):
        batch.append(b"%d" % number, key=b"%d" % (number % 2), timestamp_ms=world.now_ms)
    world.engine.publishing.publish(topic, batch, now_ms=world.now_ms)
    world.pull(consumer)
    world.engine.store.commit()
    world.engine.settling.reject(consumer, topic.partitions[0].views[0], 0, 4, now_ms=world.now_ms)
    cuts = []

    def crash_everywhere() -> None:
        cuts.extend(disk.crash(CutAt(cut)) for cut in range(0, disk.unsynced_bytes + 1, 16))

    disk.slow_sync = crash_everywhere
    world.engine.store.commit()
    assert len(cuts) > 20
    for moment in cuts:
        left = World(moment, SMALL)
        assert names_and_values(left) == [b"%d" % number for number in range(4)]
