"""The timer wheel against a sorted list."""

import bisect
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.engine.timer_wheel import TimerWheel

TICK_MS = 10
LEVEL_TICKS = [1, 2**8, 2**14, 2**20, 2**26]  # one slot of levels 0-3, and a whole revolution
REVOLUTION_MS = LEVEL_TICKS[-1] * TICK_MS
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
NOW_MS = 1_700_000_000_123
INT64_MAX = 2**63 - 1
UINT32_MAX = 2**32 - 1

near_a_slot = st.builds(
    lambda ticks, count, near: ticks * count * TICK_MS + near,
    st.sampled_from(LEVEL_TICKS),
    st.integers(0, 70),
    st.integers(-11, 11),
)
delays = st.one_of(
    st.integers(-50, 50),
    st.integers(0, 3000),
    near_a_slot,
    st.integers(0, 3 * YEAR_MS),
)
jumps = st.one_of(
    st.integers(0, 30), st.integers(0, 3000), near_a_slot.map(abs), st.integers(0, 3 * YEAR_MS)
)
limits = st.one_of(st.integers(0, 4), st.just(INT64_MAX))
starts = st.one_of(st.integers(0, 30), st.integers(0, 2 * REVOLUTION_MS), st.just(NOW_MS))


def tick_of(due_ms: int, now_ms: int) -> int:
    return now_ms // TICK_MS if due_ms <= now_ms else -(-due_ms // TICK_MS)


class Model:
    """Pending timers as a sorted list of (tick, number); the number is also ``a``."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.timers: list[tuple[int, int]] = []
        self.dues: list[int] = []

    def schedule(self, due_ms: int) -> int:
        number = len(self.dues)
        self.dues.append(due_ms)
        bisect.insort(self.timers, (tick_of(due_ms, self.now_ms), number))
        return number

    def cancel(self, number: int) -> bool:
        left = [timer for timer in self.timers if timer[1] != number]
        found = len(left) < len(self.timers)
        self.timers = left
        return found

    def advance(self, now_ms: int, limit: int) -> list[int]:
        if now_ms < self.now_ms:
            return []
        self.now_ms = now_ms
        count = min(limit, bisect.bisect(self.timers, (now_ms // TICK_MS, INT64_MAX)))
        fired, self.timers = self.timers[:count], self.timers[count:]
        return [number for _, number in fired]


def event_of(number: int) -> tuple[int, int, int, int]:
    return number % 256, UINT32_MAX - number, number, -number


class WheelMachine(RuleBasedStateMachine):
    """Handles are kept for ever: most are stale, and must not touch the timer that came after."""

    @initialize(now_ms=starts)
    def begin(self, now_ms):
        self.wheel = TimerWheel(now_ms)
        self.model = Model(now_ms)
        self.handles = []

    def schedule_at(self, due_ms):
        number = self.model.schedule(due_ms)
        kind, owner, a, b = event_of(number)
        self.handles.append(self.wheel.schedule(due_ms, kind, owner, a, b))

    def advance_to(self, now_ms, limit=INT64_MAX):
        expected = self.model.advance(now_ms, limit)
        assert self.wheel.advance(now_ms, limit) == [event_of(number) for number in expected]
        return expected

    @rule(delay=delays)
    def schedule(self, delay):
        self.schedule_at(self.model.now_ms + delay)

    @rule(delays=st.lists(delays, min_size=2, max_size=30))
    def schedule_some(self, delays):
        for delay in delays:
            self.schedule_at(self.model.now_ms + delay)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def schedule_beside_another(self, data):
        """One tick reached over different levels: the order is still that of scheduling."""
        due_ms = data.draw(st.sampled_from(self.model.dues))
        self.schedule_at(due_ms + data.draw(st.integers(-10, 10)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cancel(self, data):
        number = data.draw(st.integers(0, len(self.handles) - 1))
        assert self.wheel.cancel(self.handles[number]) is self.model.cancel(number)
        assert self.wheel.cancel(self.handles[number]) is False

    @rule(jump=jumps, limit=limits)
    def advance(self, jump, limit):
        self.advance_to(self.model.now_ms + jump, limit)

    @rule(limit=limits)
    def advance_with_the_same_time(self, limit):
        self.advance_to(self.model.now_ms, limit)

    @rule(back=st.integers(1, YEAR_MS))
    def time_going_backwards(self, back):
        assert self.advance_to(self.model.now_ms - back) == []

    @rule()
    def sleep_until_something_fires(self):
        """As the event loop does; a cascade on the way is one more waking, and there are few."""
        pending = len(self.wheel)
        for _ in range(pending + 5 * len(LEVEL_TICKS)):
            if not pending or len(self.wheel) < pending:
                return
            self.advance_to(max(self.wheel.next_due_ms(), self.model.now_ms))
        raise AssertionError("woken again and again for nothing")

    @precondition(lambda self: self.model.timers)
    @rule(limit=limits)
    def advance_around_the_first(self, limit):
        due_ms = self.model.timers[0][0] * TICK_MS
        if due_ms > self.model.now_ms:
            assert self.advance_to(due_ms - 1) == []
        self.advance_to(max(due_ms, self.model.now_ms), limit)

    @rule(ticks=st.integers(1, 600))
    def advance_tick_by_tick(self, ticks):
        for _ in range(ticks):
            self.advance_to(self.model.now_ms + TICK_MS)

    @invariant()
    def same_timers(self):
        assert len(self.wheel) == len(self.model.timers)
        assert self.wheel.now_ms == self.model.now_ms
        pending = dict.fromkeys(number for _, number in self.model.timers)
        for number, handle in enumerate(self.handles):
            expected = self.model.dues[number] if number in pending else None
            assert self.wheel.due_of(handle) == expected

    @invariant()
    def wakes_in_time(self):
        at_ms = self.wheel.next_due_ms()
        if not self.model.timers:
            assert at_ms is None
            return
        first_ms = self.model.timers[0][0] * TICK_MS
        assert at_ms <= first_ms
        assert at_ms == first_ms or at_ms % (LEVEL_TICKS[1] * TICK_MS) == 0

    def teardown(self):
        if hasattr(self, "wheel"):
            self.advance_to(self.model.now_ms + 10 * YEAR_MS)
            assert len(self.wheel) == 0


TestWheel = WheelMachine.TestCase
TestWheel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# --- when ---


@given(starts, st.lists(st.integers(-30, 12_000), max_size=40))
@settings(deadline=None)
def test_each_fires_once_on_its_tick(start, delays):
    wheel, fired_at = TimerWheel(start), {}
    for number, delay in enumerate(delays):
        wheel.schedule(start + delay, 1, 2, number)
    for now_ms in range(start, start + 12_020, TICK_MS // 2):
        for _, _, number, _ in wheel.advance(now_ms):
            assert number not in fired_at
            fired_at[number] = now_ms
    assert len(fired_at) == len(delays)
    for number, delay in enumerate(delays):
        due_ms = start + delay
        assert fired_at[number] >= due_ms
        expected = max(tick_of(due_ms, start) * TICK_MS, start)
        assert expected <= fired_at[number] < expected + TICK_MS // 2


@pytest.mark.parametrize("delay_ms", [1, 7, 8, 10, 17])
def test_never_early_by_a_millisecond(delay_ms):
    due_ms = NOW_MS + delay_ms  # NOW_MS ends in 3
    wheel = TimerWheel(NOW_MS)
    wheel.schedule(due_ms, 0, 0)
    fires_ms = -(-due_ms // TICK_MS) * TICK_MS
    for now_ms in range(NOW_MS, fires_ms):
        assert wheel.advance(now_ms) == []
    assert wheel.advance(fires_ms) == [(0, 0, 0, 0)]


@pytest.mark.parametrize("due_ms", [NOW_MS, NOW_MS - 1, NOW_MS - YEAR_MS, 0, -5, -(2**63)])
def test_overdue_fires_on_the_next_advance(due_ms):
    wheel = TimerWheel(NOW_MS)
    handle = wheel.schedule(due_ms, 3, 4)
    assert wheel.due_of(handle) == due_ms
    assert wheel.next_due_ms() <= NOW_MS
    assert wheel.advance(NOW_MS) == [(3, 4, 0, 0)]
    assert wheel.advance(NOW_MS) == []


@pytest.mark.parametrize("years", [1, 3, 100])
@pytest.mark.parametrize("by_jump", [True, False], ids=["in one jump", "waking when told"])
def test_a_delay_of_years(years, by_jump):
    due_ms = NOW_MS + years * YEAR_MS
    wheel = TimerWheel(NOW_MS)
    wheel.schedule(due_ms, 1, 2, 3, 4)
    wakings = 0
    while not by_jump and wheel.next_due_ms() < due_ms:
        assert wheel.advance(wheel.next_due_ms()) == []
        wakings += 1
    assert wakings <= len(LEVEL_TICKS)
    fires_ms = -(-due_ms // TICK_MS) * TICK_MS
    assert wheel.advance(fires_ms - 1) == []
    assert wheel.advance(fires_ms) == [(1, 2, 3, 4)]


def test_a_century_of_timers_in_one_jump():
    wheel = TimerWheel(NOW_MS)
    delays = [TICK_MS * ticks for ticks in LEVEL_TICKS] + [year * YEAR_MS for year in range(1, 101)]
    for delay in reversed(delays):
        wheel.schedule(NOW_MS + delay, 0, 0, delay)
    assert [a for _, _, a, _ in wheel.advance(NOW_MS + 101 * YEAR_MS)] == delays


def test_the_end_of_time():
    wheel = TimerWheel(NOW_MS)
    last = wheel.schedule(INT64_MAX, 0, 0)
    wheel.schedule(INT64_MAX - 7, 0, 0, 1)
    assert wheel.due_of(last) == INT64_MAX
    # The tick after the last millisecond that can be told: the last timer stays.
    assert wheel.advance(INT64_MAX) == [(0, 0, 1, 0)]
    assert wheel.next_due_ms() == INT64_MAX + 3
    assert wheel.cancel(last)


@pytest.mark.parametrize("ticks", LEVEL_TICKS[1:])
@pytest.mark.parametrize("near", [-1, 0, 1])
def test_the_edge_of_each_level(ticks, near):
    start = 5 * REVOLUTION_MS
    due_ms = start + (ticks + near) * TICK_MS
    for from_ms in (start, start + TICK_MS, due_ms - TICK_MS):
        wheel = TimerWheel(from_ms)
        wheel.schedule(due_ms, 0, 0)
        assert wheel.advance(due_ms - 1) == []
        assert wheel.advance(due_ms) == [(0, 0, 0, 0)]


# --- in which order ---


@pytest.mark.parametrize("ticks", LEVEL_TICKS)
def test_one_tick_fires_in_order_of_scheduling_from_any_distance(ticks):
    due_ms = 3 * REVOLUTION_MS + 7 * TICK_MS
    wheel = TimerWheel(due_ms - ticks * TICK_MS - YEAR_MS // 100)
    for number, before in enumerate(sorted({ticks, *LEVEL_TICKS}, reverse=True)):
        wheel.advance(due_ms - before * TICK_MS)
        wheel.schedule(due_ms, 0, 0, number)
    assert [a for _, _, a, _ in wheel.advance(due_ms)] == list(range(len(LEVEL_TICKS)))


def test_a_limit_keeps_the_rest_in_order():
    wheel = TimerWheel(0)
    for number in range(10):
        wheel.schedule(1000 * (1 + number // 4), 0, 0, number)
    now_ms = 5000
    assert [a for _, _, a, _ in wheel.advance(now_ms, 3)] == [0, 1, 2]
    assert wheel.advance(now_ms, 0) == []
    assert wheel.next_due_ms() <= now_ms
    wheel.schedule(now_ms, 0, 0, 10)
    wheel.schedule(1000, 0, 0, 11)  # overdue: of the tick of now, behind what waits already
    wheel.schedule(now_ms + 1, 0, 0, 12)
    assert [a for _, _, a, _ in wheel.advance(now_ms, 3)] == [3, 4, 5]
    assert [a for _, _, a, _ in wheel.advance(now_ms)] == [6, 7, 8, 9, 10, 11]
    assert [a for _, _, a, _ in wheel.advance(now_ms + TICK_MS)] == [12]


def test_a_timer_may_be_cancelled_while_it_waits_behind_a_limit():
    wheel = TimerWheel(0)
    handles = [wheel.schedule(50, 0, 0, number) for number in range(4)]
    assert [a for _, _, a, _ in wheel.advance(YEAR_MS, 1)] == [0]
    assert [wheel.cancel(handle) for handle in handles] == [False, True, True, True]
    assert wheel.advance(YEAR_MS) == []
    assert wheel.next_due_ms() is None


def test_what_is_scheduled_by_what_fired():
    """A retry every second, each scheduled by the one before."""
    wheel, fired = TimerWheel(0), []
    wheel.schedule(1000, 0, 0)
    while len(fired) < 2000:
        now_ms = wheel.next_due_ms()
        for _ in wheel.advance(now_ms):
            fired.append(now_ms)
            wheel.schedule(now_ms + 1000, 0, 0)
    assert fired == [1000 * n for n in range(1, 2001)]


# --- handles ---


def test_a_stale_handle_is_refused():
    wheel = TimerWheel(0)
    stale = []
    for round_ in range(1, 6):
        handle = wheel.schedule(100 * round_, 0, 0)
        assert handle not in stale
        assert [wheel.cancel(old) for old in stale] == [False] * len(stale)
        assert [wheel.due_of(old) for old in stale] == [None] * len(stale)
        assert wheel.due_of(handle) == 100 * round_
        stale.append(handle)
        if round_ % 2:
            assert wheel.cancel(handle)
        else:
            assert len(wheel.advance(100 * round_)) == 1
    assert len(wheel) == 0


@pytest.mark.parametrize("handle", [0, 1, 2, 1 << 32, 2 << 32, (1 << 32) | 2, 2**64 - 1])
def test_a_handle_never_given_out_is_refused(handle):
    wheel = TimerWheel(0)
    assert wheel.schedule(10, 0, 0) not in (0, handle)
    assert wheel.cancel(handle) is False
    assert wheel.due_of(handle) is None
    assert len(wheel) == 1


# --- limits ---


def test_values_at_their_limits():
    wheel = TimerWheel(0)
    extremes = [(0, 0, -(2**63), -(2**63)), (255, UINT32_MAX, INT64_MAX, INT64_MAX)]
    for event in extremes:
        wheel.schedule(0, *event)
    assert wheel.advance(0) == extremes


@pytest.mark.parametrize(
    "arguments",
    [(0, 256, 0), (0, -1, 0), (0, 0, 2**32), (0, 0, -1), (2**63, 0, 0), (0, 0, 0, 2**63)],
)
def test_values_beyond_their_limits_are_refused(arguments):
    wheel = TimerWheel(0)
    with pytest.raises(OverflowError):
        wheel.schedule(*arguments)
    assert len(wheel) == 0
    assert wheel.next_due_ms() is None


def test_negative_times_and_limits_are_refused():
    with pytest.raises(ValueError, match="negative"):
        TimerWheel(-1)
    with pytest.raises(ValueError, match="negative"):
        TimerWheel(0).advance(0, -1)


# --- many ---


def test_a_hundred_thousand():
    """Spread over all levels; half cancelled in random order; the rest fires in order."""
    chance = random.Random(7)
    wheel, model = TimerWheel(NOW_MS), {}
    for number in range(100_000):
        due_ms = NOW_MS + 1 + int(10 ** chance.uniform(0, 10.5))
        model[number] = (due_ms, wheel.schedule(due_ms, 1, 2, number))
    for number in chance.sample(range(100_000), 50_000):
        assert wheel.cancel(model.pop(number)[1])
    assert len(wheel) == 50_000
    expected = sorted(model, key=lambda number: (-(-model[number][0] // TICK_MS), number))
    fired = []
    for day in (0.001, 0.1, 1, 8, 30, 400):
        fired += wheel.advance(NOW_MS + int(day * DAY_MS))
    assert [a for _, _, a, _ in fired] == expected
    assert len(wheel) == 0


def test_memory_is_used_again():
    wheel = TimerWheel(0)
    empty_bytes = wheel.memory_bytes
    handles = [wheel.schedule(5000 * number, 0, 0) for number in range(1000)]
    full_bytes = wheel.memory_bytes
    assert 1000 * 64 < full_bytes - empty_bytes < 2000 * 64
    for round_ in range(20):
        for handle in handles[::2]:
            wheel.cancel(handle)
        wheel.advance(wheel.now_ms + 10 * DAY_MS)
        assert len(wheel) == 0
        start = wheel.now_ms
        handles = [wheel.schedule(start + round_ * number, 0, 0) for number in range(1000)]
    assert wheel.memory_bytes == full_bytes
