"""Token buckets against an oracle of whole numbers, with time as it comes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.security.token_bucket import AMOUNT_MAX, Bucket, Level, Throttle

NOW_MS = 1_700_000_000_123
YEAR_MS = 365 * 86_400_000

rates = st.one_of(st.integers(1, 5), st.integers(1, 100_000), st.integers(1, AMOUNT_MAX))
bursts = st.one_of(st.integers(1, 5), st.integers(1, 100_000), st.integers(1, AMOUNT_MAX))
periods = st.sampled_from([1, 10, 1000, 60_000])
steps = st.one_of(
    st.just(0), st.integers(1, 30), st.integers(1, 5000), st.integers(1, 50 * YEAR_MS)
)
back = st.one_of(steps, st.integers(-5000, -1), st.integers(-YEAR_MS, -1))
counts = st.one_of(st.integers(0, 10), st.integers(0, 10_000), st.integers(0, AMOUNT_MAX))


class Oracle:
    """The same in fractions of tokens."""

    def __init__(self, rate: int, burst: int, period_ms: int, now_ms: int) -> None:
        self.rate, self.burst = Fraction(rate, period_ms), burst
        self.tokens, self.at_ms = Fraction(burst), now_ms

    def look(self, now_ms: int) -> None:
        if now_ms > self.at_ms:
            self.tokens = min(self.tokens + self.rate * (now_ms - self.at_ms), Fraction(self.burst))
        self.at_ms = now_ms


class OneBucket(RuleBasedStateMachine):
    @initialize(rate=rates, burst=bursts, period_ms=periods)
    def begin(self, rate: int, burst: int, period_ms: int) -> None:
        self.now_ms, self.passed_ms = NOW_MS, 0
        self.bucket = Bucket(rate, burst, NOW_MS, period_ms)
        self.oracle = Oracle(rate, burst, period_ms, NOW_MS)
        self.granted, self.rate, self.burst = 0, Fraction(rate, period_ms), burst

    @rule(step=back)
    def time_passes(self, step: int) -> None:
        self.now_ms += step
        self.passed_ms += max(step, 0)
        # The clock is looked at, as each message does: what went by unseen can't be known.
        self.oracle.look(self.now_ms)
        self.bucket.wait_ms(self.now_ms)

    @rule(count=counts)
    def take(self, count: int) -> None:
        there = max(int(self.oracle.tokens // 1), 0)
        taken = self.bucket.take(count, self.now_ms)
        assert taken == min(count, there), "neither more than there is nor less"
        self.oracle.tokens -= taken
        self.granted += taken

    @rule(count=counts)
    def wait(self, count: int) -> None:
        wanted = min(Fraction(count), Fraction(self.burst)) - self.oracle.tokens
        exact = max(wanted / self.rate, Fraction(0))
        wait_ms = self.bucket.wait_ms(self.now_ms, count)
        assert exact <= wait_ms < exact + 1

    @rule(count=st.integers(0, 10_000))
    def spend(self, count: int) -> None:
        self.oracle.tokens -= count
        self.granted += count
        wait_ms = self.bucket.spend(count, self.now_ms)
        exact = max((1 - self.oracle.tokens) / self.rate, Fraction(0))
        assert exact <= wait_ms < exact + 1

    @invariant()
    def is_within_its_rate(self) -> None:
        """What was granted, less what is owed, is what time has brought, at most."""
        if hasattr(self, "oracle"):
            owed = max(-self.oracle.tokens, Fraction(0))
            assert self.granted - owed <= self.rate * self.passed_ms + self.burst


TestOneBucket = OneBucket.TestCase


@given(
    rate=st.integers(1, 10_000),
    burst=st.integers(1, 1000),
    asked=st.lists(st.integers(0, 400), max_size=60),
)
def test_who_always_asks_gets_all_that_the_rate_allows(rate, burst, asked):
    """However the asking is cut up: what is left of a token is not lost."""
    bucket, now_ms, granted = Bucket(rate, burst, NOW_MS), NOW_MS, burst
    assert bucket.take(AMOUNT_MAX, NOW_MS) == burst
    most_ms = (burst - 1) * 1000 // rate
    for step in asked:
        step = min(step, most_ms)  # never so long that it was full, with what is left of a token
        now_ms += step
        granted += bucket.take(AMOUNT_MAX, now_ms)
    assert granted == burst + rate * (now_ms - NOW_MS) // 1000


@given(gap_ms=st.integers(0, 2**62), rate=rates, burst=bursts)
def test_a_gap_of_any_length_fills_it_and_no_more(gap_ms, rate, burst):
    bucket = Bucket(rate, burst, 0)
    bucket.take(burst, 0)
    assert bucket.take(AMOUNT_MAX, gap_ms) == min(burst, rate * gap_ms // 1000)


def test_a_clock_that_went_back_brings_nothing_and_goes_on_from_there():
    bucket = Bucket(1000, 10, NOW_MS)
    assert bucket.take(10, NOW_MS) == 10
    assert bucket.take(1, NOW_MS - YEAR_MS) == 0
    assert bucket.take(10, NOW_MS - YEAR_MS + 5) == 5


def test_other_values_keep_what_was_used():
    bucket = Bucket(10, 100, NOW_MS)
    assert bucket.take(90, NOW_MS) == 90
    bucket.set(20, 200, NOW_MS)
    assert bucket.take(1000, NOW_MS) == 110
    bucket.set(20, 50, NOW_MS)
    assert bucket.take(1000, NOW_MS) == 0, "what it owes is not given back by a smaller one"


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (-1, 1), (AMOUNT_MAX + 1, 1), (1, 2**62)])
def test_a_bucket_that_can_not_be(wrong):
    with pytest.raises(ValueError, match="a bucket of"):
        Bucket(*wrong, NOW_MS)


limits = st.tuples(
    st.one_of(st.just(0), st.integers(1, 2000)),
    st.integers(1, 300),
    st.one_of(st.just(0), st.integers(1, 100_000)),
    st.integers(1, 20_000),
)


class Hierarchy(RuleBasedStateMachine):
    """Two clients of one node: each has its own level, and both have the node's."""

    @initialize(node=limits, first=limits, second=limits)
    def begin(self, node: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> None:
        self.now_ms = NOW_MS
        self.oracles: list[list[Oracle | None]] = []
        levels = []
        for messages, burst, size, size_burst in (node, first, second):
            level = Level()
            level.set(messages, burst, size, size_burst, NOW_MS)
            levels.append(level)
            self.oracles.append(
                [
                    Oracle(messages, burst, 1000, NOW_MS) if messages else None,
                    Oracle(size, size_burst, 1000, NOW_MS) if size else None,
                ]
            )
        self.clients = [Throttle([levels[0], levels[1]]), Throttle([levels[0], levels[2]])]

    def of(self, who: int) -> list[list[Oracle | None]]:
        return [self.oracles[0], self.oracles[1 + who]]

    @rule(step=st.integers(0, 3000))
    def time_passes(self, step: int) -> None:
        self.now_ms += step
        for pair in self.oracles:
            for each in pair:
                if each is not None:
                    each.look(self.now_ms)

    @rule(who=st.integers(0, 1), count=st.integers(1, 500), each_bytes=st.integers(0, 5000))
    def take(self, who: int, count: int, each_bytes: int) -> None:
        room = count
        for messages, size in self.of(who):
            if messages is not None:
                room = min(room, max(int(messages.tokens // 1), 0))
            if size is not None and size.tokens < 1:
                room = 0
        assert self.clients[who].has_room(count, self.now_ms) == (room == count)
        taken = self.clients[who].take(count, count * each_bytes, self.now_ms)
        assert taken == room, "the least that any level has"
        self._charge(who, taken, taken * each_bytes)

    @rule(who=st.integers(0, 1), count=st.integers(1, 50), each_bytes=st.integers(0, 5000))
    def admit(self, who: int, count: int, each_bytes: int) -> None:
        """All or none."""
        may = self.clients[who].has_room(count, self.now_ms)
        assert self.clients[who].admit(count, count * each_bytes, self.now_ms) == may
        if may:
            self._charge(who, count, count * each_bytes)

    @rule(who=st.integers(0, 1), count=st.integers(0, 500), each_bytes=st.integers(0, 5000))
    def spend(self, who: int, count: int, each_bytes: int) -> None:
        wait_ms = self.clients[who].spend(count, count * each_bytes, self.now_ms)
        self._charge(who, count, count * each_bytes)
        exact = Fraction(0)
        for pair in self.of(who):
            for each in pair:
                if each is not None:
                    exact = max(exact, (1 - each.tokens) / each.rate)
        assert exact <= wait_ms < exact + 1, "the longest that any level has to wait"

    def _charge(self, who: int, count: int, size: int) -> None:
        for messages, by_size in self.of(who):
            if messages is not None:
                messages.tokens -= count
            if by_size is not None:
                by_size.tokens -= size


TestHierarchy = Hierarchy.TestCase


def test_no_limits_let_everything_by():
    throttle = Throttle([Level(), Level()])
    assert throttle.take(10**9, 10**12, NOW_MS) == 10**9
    assert throttle.spend(10**9, 10**12, NOW_MS) == 0
