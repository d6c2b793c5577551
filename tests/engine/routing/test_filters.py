"""Filters and subscribers against trying every filter, with and without the cache."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from routing_oracles import mqtt_matches

from braidmq.engine.routing.errors import InvalidFilter
from braidmq.engine.routing.filters import FILTER_LEVELS_MAX, FilterIndex, check_filter

topics = st.lists(st.sampled_from([b"a", b"b", b"", b"$s"]), min_size=2, max_size=3).map(b"/".join)
filters = st.one_of(topics, st.sampled_from([b"#", b"+", b"a/+", b"+/b", b"a/#", b"$s/#", b"+/+"]))


class Subscribing(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.index = FilterIndex(cache_bytes_max=4000)  # full after about twenty topics
        self.pairs: set[tuple[bytes, int]] = set()

    @rule(pattern=filters, subscriber=st.integers(0, 4))
    def subscribe(self, pattern, subscriber):
        new = (pattern, subscriber) not in self.pairs
        assert self.index.subscribe(pattern, subscriber) is new
        self.pairs.add((pattern, subscriber))

    @rule(subscriber=st.integers(0, 4))
    def forget(self, subscriber):
        own = sorted(pattern for pattern, who in self.pairs if who == subscriber)
        assert self.index.forget_subscriber(subscriber) == own
        self.pairs = {pair for pair in self.pairs if pair[1] != subscriber}

    @rule(topic=topics)
    def match(self, topic):
        expected = {who for pattern, who in self.pairs if mqtt_matches(pattern, topic)}
        assert self.index.match(topic) == tuple(sorted(expected))
        assert self.index.match(topic) == tuple(sorted(expected))

    @invariant()
    def counts(self):
        assert len(self.index) == len(self.pairs)


TestSubscribing = Subscribing.TestCase
TestSubscribing.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize(
    "pattern",
    [
        b"",
        b"a#",
        b"#/a",
        b"a/#/b",
        b"a/b#",
        b"##",
        b"a+",
        b"+a/b",
        b"a/++",
        b"/" * FILTER_LEVELS_MAX,
    ],
)
def test_misplaced_wildcards_are_refused(pattern):
    with pytest.raises(InvalidFilter):
        FilterIndex().subscribe(pattern, 1)


@pytest.mark.parametrize("pattern", [b"/", b"#", b"+", b"+/+/#", b"a//b", b"/#", b" ", b"$SYS/#"])
def test_proper_filters_are_taken(pattern):
    check_filter(pattern)


def test_a_filter_without_wildcards_costs_one_answer_of_the_cache():
    index = FilterIndex()
    index.subscribe(b"a/+", 1)
    index.match(b"a/b")
    index.match(b"a/c")
    kept = len(index._cache)
    index.subscribe(b"a/b", 2)
    assert len(index._cache) == kept - 1
    assert index.match(b"a/b") == (1, 2)
    index.subscribe(b"#", 3)
    assert len(index._cache) == 0


def test_an_answer_for_nobody_is_kept_too():
    index = FilterIndex()
    assert index.match(b"a") == ()
    assert len(index._cache) == 1


def test_the_cache_is_bounded():
    index = FilterIndex(cache_bytes_max=10_000)
    for n in range(1000):
        index.match(b"t/%d" % n)
    assert len(index._cache) < 70
    index.match(b"x" * 5000)
    assert index._cache.get(b"x" * 5000) is None
