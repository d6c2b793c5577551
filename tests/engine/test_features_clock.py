"""The wall clock is set, forwards and back: durations take as long as they were to, dates come when
that clock says so, and records are stamped by it."""

import pytest
from engine_worlds import NOW, NS, World, all_records, values
from hypothesis import given
from hypothesis import strategies as st

from braidmq.engine.effects import TopicDeleted
from braidmq.engine.policy import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from braidmq.engine.topics import Topic
from braidmq.record.batch import DATED_DUE, DATED_EXPIRY

STEPS = [
    sign * by
    for by in (1, SECOND_MS, 40 * SECOND_MS, HOUR_MS, DAY_MS, 400 * DAY_MS)
    for sign in (1, -1)
]
step = pytest.mark.parametrize("by_ms", STEPS)


class ClockWorld(World):
    """``now_ms`` is the engine's time, ``wall_ms`` what the clock on the wall says."""

    lead_ms = 0

    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.lead_ms

    def set_clock(self, by_ms: int) -> None:
        self.lead_ms += by_ms
        self.engine.message_times.clock_set(self.lead_ms, now_ms=self.now_ms)

    def restart(self, by_ms: int = 0) -> None:
        """The clock is set while the node is down, which then begins with its time."""
        self.now_ms = self.wall_ms + by_ms
        self.lead_ms = 0
        self.reopen()

    def subscribed(self, name: str = "t", **settings: object) -> Topic:
        topic = self.topic(name, dead_letter={"topic": None}, **settings)
        self.engine.subscriptions.subscribe(topic, "s", now_ms=self.now_ms)
        return topic

    def ready_after(self, topic: Topic, ms: int) -> bool:
        """Whether one message becomes ready after just so long."""
        subscription = topic.subscriptions["s"]
        before = subscription.ready
        self.advance(ms - 20)
        early = subscription.ready
        self.advance(40)
        return (before, early, subscription.ready) == (0, 0, 1)

    def gone_after(self, topic: Topic, ms: int) -> bool:
        before = topic.depth
        self.advance(ms - 20)
        early = topic.depth
        self.advance(40)
        return (before, early, topic.depth) == (1, 1, 0)


# --- durations ---


@step
@pytest.mark.parametrize("published_before", [True, False])
def test_a_delay_takes_its_time(by_ms: int, published_before: bool) -> None:
    world = ClockWorld()
    topic = world.subscribed()
    if published_before:
        world.delay(topic, b"x", 10 * SECOND_MS)
    world.advance(SECOND_MS)
    world.set_clock(by_ms)
    if not published_before:
        world.delay(topic, b"x", 9 * SECOND_MS)
    assert world.engine.delayed.count(topic) == 1
    assert len(world.engine.delayed.find(topic, now_ms=world.now_ms)) == 1
    assert world.ready_after(topic, 9 * SECOND_MS)
    assert values(world.drain(topic)) == [b"x"]


@step
@pytest.mark.parametrize("own", [True, False])
def test_a_time_to_live_is_that_long(by_ms: int, own: bool) -> None:
    world = ClockWorld()
    topic = world.subscribed(ttl_ms=0 if own else 10 * SECOND_MS)
    fields = {"expires_at_ms": world.now_ms + 10 * SECOND_MS} if own else {}
    world.publish(topic, b"x", **fields)
    world.advance(SECOND_MS)
    world.set_clock(by_ms)
    assert world.gone_after(topic, 9 * SECOND_MS)


@step
def test_what_lives_on_is_handed_out(by_ms: int) -> None:
    """The limit is looked at when a message is handed out, too."""
    world = ClockWorld()
    topic = world.subscribed(ttl_ms=10 * SECOND_MS)
    world.publish(topic, b"before")
    world.advance(SECOND_MS)
    world.set_clock(by_ms)
    world.publish(topic, b"after")
    assert values(world.drain(topic)) == [b"before", b"after"]


@step
def test_retries_and_overdue_deliveries_come_in_time(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed(retry={"base_ms": 10 * SECOND_MS, "attempts": 9})
    consumer = world.consumer(topic, visibility_ms=10 * SECOND_MS, passive=True)
    world.publish(topic, b"x")
    (got,) = world.pull(consumer)
    world.set_clock(by_ms)
    assert not world.ready_after(topic, 9 * SECOND_MS)
    # Overdue after ten seconds, and then it waits for its retry as long.
    assert world.ready_after(topic, 10 * SECOND_MS + 980)
    (got,) = world.pull(consumer)
    world.nack(got, delay_ms=5 * SECOND_MS)
    world.set_clock(-by_ms)
    assert world.ready_after(topic, 5 * SECOND_MS)


@step
def test_an_age_at_which_retries_end_is_counted_from_publishing(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed(retry={"base_ms": 0, "attempts": 0, "total_ms": 10 * SECOND_MS})
    consumer = world.consumer(topic, passive=True)
    world.publish(topic, b"x")
    world.set_clock(by_ms)
    for _ in range(2):
        (got,) = world.pull(consumer)
        world.nack(got)
        world.advance(6 * SECOND_MS)
    (got,) = world.pull(consumer)
    world.nack(got)
    assert topic.depth == 0


@step
def test_leases_transactions_and_idle_topics_end_in_time(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed(idle_expires_ms=20 * SECOND_MS)
    kept = world.subscribed("kept")
    world.publish(kept, b"x")
    engine = world.engine
    engine.leases.hold(
        NS, "job", {kept.partitions[0]: 0}, now_ms=world.now_ms, ttl_ms=10 * SECOND_MS
    )
    engine.transactions.begin(NS, "t", now_ms=world.now_ms, timeout_ms=10 * SECOND_MS)
    world.set_clock(by_ms)
    world.advance(9 * SECOND_MS)
    assert engine.leases.list(NS)
    assert engine.transactions.transactions()
    world.advance(2 * SECOND_MS)
    assert not engine.leases.list(NS)
    assert not engine.transactions.transactions()
    assert not topic.deleted
    world.advance(10 * SECOND_MS)
    assert topic.deleted
    assert any(isinstance(each, TopicDeleted) for each in engine.take_effects())


@step
def test_retention_by_time_keeps_what_is_younger(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.topic(retention={"time_ms": HOUR_MS})
    world.publish(topic, b"a")
    world.advance(40 * MINUTE_MS)
    world.publish(topic, b"b")
    world.set_clock(by_ms)
    world.publish(topic, b"c")
    for wait, kept in ((0, [b"a", b"b", b"c"]), (30, [b"b", b"c"]), (40, [])):
        world.advance(wait * MINUTE_MS)
        assert [each.value for each in all_records(world, topic)] == kept


@step
def test_a_message_id_is_remembered_for_its_window(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed(deduplication_window_ms=10 * SECOND_MS)
    named = {"envelope": b"\x01\x00\x0a\x00message-id\x01\x00\x00\x00a"}
    world.publish(topic, b"x", **named)
    world.set_clock(by_ms)
    # What was seen is read from the log again.
    world.engine.topics.alter(topic, topic.settings, now_ms=world.now_ms)
    world.advance(9 * SECOND_MS)
    world.publish(topic, b"x", **named)
    assert topic.depth == 1
    world.advance(2 * SECOND_MS)
    world.publish(topic, b"x", **named)
    assert topic.depth == 2


# --- dates ---


@step
def test_a_date_comes_when_the_clock_says_so(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed()
    due = NOW + 10 * SECOND_MS
    world.publish(topic, b"x", due_at_ms=due, dated=DATED_DUE)
    world.set_clock(by_ms)
    world.advance(0)
    left = due - world.wall_ms
    if left <= 0:
        assert topic.subscriptions["s"].ready == 1
    else:
        assert world.ready_after(topic, left)


@step
def test_who_expires_at_a_date_does(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed()
    until = NOW + 10 * SECOND_MS
    world.publish(topic, b"x", expires_at_ms=until, dated=DATED_EXPIRY)
    world.set_clock(by_ms)
    world.advance(0)
    left = until - world.wall_ms
    if left <= 0:
        assert topic.depth == 0
    else:
        assert world.gone_after(topic, left)


def test_a_date_may_be_put_off_and_brought_forward_again() -> None:
    world = ClockWorld()
    topic = world.subscribed()
    world.publish(topic, b"x", due_at_ms=NOW + 10 * SECOND_MS, dated=DATED_DUE)
    world.set_clock(-HOUR_MS)
    world.advance(20 * SECOND_MS)
    assert topic.subscriptions["s"].ready == 0
    world.set_clock(HOUR_MS)
    world.advance(0)
    assert topic.subscriptions["s"].ready == 1


# --- stamps ---


@step
def test_records_are_stamped_by_the_wall(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed()
    world.publish(topic, b"a")
    world.set_clock(by_ms)
    world.publish(topic, b"b")
    stamps = [each.timestamp_ms for each in all_records(world, topic)]
    assert stamps == [NOW, NOW + by_ms]
    found = world.engine.reading.find_offset(topic, 0, f"@{NOW + by_ms}")
    assert found == (1 if by_ms > 0 else 0)


# --- over a restart ---


@step
@pytest.mark.parametrize("checkpoint", [False, True])
def test_nothing_takes_longer_than_it_was_to_for_a_clock_set_while_down(
    by_ms: int, checkpoint: bool
) -> None:
    world = ClockWorld()
    delayed = world.subscribed("delayed")
    living = world.subscribed("living", ttl_ms=10 * SECOND_MS)
    world.delay(delayed, b"x", 10 * SECOND_MS)
    world.publish(living, b"x")
    if checkpoint:
        world.checkpoint()
    world.restart(by_ms)
    delayed, living = world.find("delayed"), world.find("living")
    world.advance(10 * SECOND_MS + 20)
    assert delayed.subscriptions["s"].ready == 1
    assert living.depth == 0


@step
def test_a_restart_after_the_clock_was_set_goes_on_with_what_is_left(by_ms: int) -> None:
    world = ClockWorld()
    topic = world.subscribed()
    world.set_clock(by_ms)
    world.delay(topic, b"x", 10 * SECOND_MS)
    waiting = world.subscribed("waiting", retry={"base_ms": 10 * SECOND_MS, "attempts": 9})
    world.publish(waiting, b"x")
    consumer = world.consumer(waiting, passive=True)
    world.nack(*world.pull(consumer))
    world.advance(SECOND_MS)
    world.restart()
    topic, waiting = world.find(), world.find("waiting")
    assert (topic.subscriptions["s"].ready, waiting.subscriptions["s"].ready) == (0, 0)
    assert world.ready_after(topic, 9 * SECOND_MS)
    assert waiting.subscriptions["s"].ready == 1


def test_a_date_is_the_same_after_a_restart() -> None:
    world = ClockWorld()
    topic = world.subscribed()
    world.publish(topic, b"x", due_at_ms=NOW + HOUR_MS, dated=DATED_DUE)
    world.restart(-HOUR_MS)
    topic = world.find()
    world.advance(HOUR_MS + MINUTE_MS)
    assert topic.subscriptions["s"].ready == 0
    assert world.ready_after(topic, HOUR_MS - MINUTE_MS)


# --- all of it, compared with a world whose clock nobody sets ---

moment = st.integers(0, 30 * SECOND_MS)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(STEPS)),
        st.tuples(st.just("wait"), moment),
        st.tuples(st.just("publish"), moment),
        st.tuples(st.just("delay"), moment),
        st.tuples(st.just("expire"), moment),
        st.tuples(st.just("retry"), moment),
        st.tuples(st.just("checkpoint"), moment),
    ),
    max_size=30,
)


def history(commands: list[tuple[str, int]], *, clock_is_set: bool) -> list[tuple[int, ...]]:
    """What there is after each action, and while time passes."""
    world = ClockWorld()
    topic = world.subscribed(ttl_ms=40 * SECOND_MS, retry={"attempts": 0})
    consumer = world.consumer(topic, visibility_ms=7 * SECOND_MS, passive=True)
    state = topic.partitions[0].views[0].state
    seen = []
    for action, number in commands:
        if action == "set" and clock_is_set:
            world.set_clock(number)
        elif action == "wait":
            world.advance(number)
        elif action == "publish":
            world.publish(topic, b"x", b"y")
        elif action == "delay":
            world.delay(topic, b"d", number + 1)
        elif action == "expire":
            world.publish(topic, b"e", expires_at_ms=world.now_ms + number + 1)
        elif action == "retry":
            for got in world.pull(consumer, 1):
                world.nack(got, delay_ms=number)
            world.pull(consumer, 1)
        elif action == "checkpoint":
            world.checkpoint()
        seen.append((state.ready, state.in_flight, state.waiting, state.delayed, state.depth_bytes))
    return seen


@given(actions)
def test_durations_do_not_know_of_the_wall_clock(commands: list[tuple[str, int]]) -> None:
    expected = history(commands, clock_is_set=False)
    assert history(commands, clock_is_set=True) == expected
