"""The trie against trying every pattern, one by one and every way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from routing_oracles import amqp_matches, matches, mqtt_matches, words_of

from braidmq.engine.routing.topic_trie import TopicTrie

WORDS = [b"a", b"b", b"", b"$x", b"*", b"+", b"#", b"longer-than-8-bytes", b"longer-than-8-bytez"]
amqp_patterns = st.lists(st.sampled_from([*WORDS, b"*", b"#", b"#"]), max_size=6).map(b".".join)
amqp_keys = st.lists(st.sampled_from(WORDS), max_size=6).map(b".".join)
mqtt_topics = st.lists(
    st.sampled_from([b"a", b"b", b"", b"$x", b"longer-than-8-bytes"]), min_size=1, max_size=5
).map(b"/".join)
mqtt_patterns = st.builds(
    lambda levels, last: b"/".join([*levels, *last]) or b"#",
    st.lists(st.sampled_from([b"a", b"b", b"", b"$x", b"+", b"longer-than-8-bytes"]), max_size=4),
    st.sampled_from([[], [b"#"]]),
)


def amqp() -> TopicTrie:
    return TopicTrie(b".", b"*", b"#")


def mqtt() -> TopicTrie:
    return TopicTrie(b"/", b"+", b"#", hidden=b"$")


def filled(trie: TopicTrie, patterns: list[bytes]) -> TopicTrie:
    for target, pattern in enumerate(patterns):
        trie.add(pattern, target)
    return trie


@settings(max_examples=500)
@given(st.lists(amqp_patterns, max_size=30), st.lists(amqp_keys, max_size=8))
def test_amqp_patterns_against_the_oracle(patterns, keys):
    trie = filled(amqp(), patterns)
    for key in keys:
        expected = tuple(n for n, p in enumerate(patterns) if amqp_matches(p, key))
        assert trie.match(key) == expected


@settings(max_examples=500)
@given(st.lists(mqtt_patterns, max_size=30), st.lists(mqtt_topics.filter(bool), max_size=8))
def test_mqtt_filters_against_the_oracle(patterns, topics):
    trie = filled(mqtt(), patterns)
    for topic in topics:
        expected = tuple(n for n, p in enumerate(patterns) if mqtt_matches(p, topic))
        assert trie.match(topic) == expected


@settings(max_examples=300)
@given(st.lists(amqp_patterns, max_size=20), st.lists(amqp_keys, max_size=8))
def test_multi_that_needs_a_word_against_the_oracle(patterns, keys):
    trie = filled(TopicTrie(b".", b"*", b"#", multi_matches_parent=False), patterns)
    for key in keys:
        expected = tuple(
            n
            for n, p in enumerate(patterns)
            if matches(
                words_of(p, b"."), words_of(key, b"."), b"*", b"#", multi_matches_parent=False
            )
        )
        assert trie.match(key) == expected


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        (b"#", b"", True),
        (b"*", b"", False),
        (b"", b"", True),
        (b"", b"a", False),
        (b"a.#", b"a", True),
        (b"#.a", b"a", True),
        (b"#.#", b"a", True),
        (b"*.#.*", b"a", False),
        (b"*.#.*", b"a.b", True),
        (b"a.*", b"a.", True),
        (b"*.*", b".", True),
        (b"a*", b"ab", False),
        (b"a*", b"a*", True),
    ],
)
def test_amqp_corners(pattern, key, expected):
    assert bool(filled(amqp(), [pattern]).match(key)) is expected


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        (b"sport/#", b"sport", True),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"#", b"$SYS/uptime", False),
        (b"+/uptime", b"$SYS/uptime", False),
        (b"$SYS/#", b"$SYS/uptime", True),
        (b"$SYS/+", b"$SYS/uptime", True),
        (b"a/+", b"a/$b", True),
        (b"a/#", b"a/$b", True),
    ],
)
def test_mqtt_corners(pattern, topic, expected):
    assert bool(filled(mqtt(), [pattern]).match(topic)) is expected


class Changing(RuleBasedStateMachine):
    """Adding and removing, with counts, against a dict of counts."""

    def __init__(self):
        super().__init__()
        self.trie = amqp()
        self.counts: dict[tuple[bytes, int], int] = {}

    @rule(pattern=amqp_patterns, number=st.sampled_from([-(2**63), 0, 1, 2, 300, 2**63 - 1]))
    def add(self, pattern, number):
        pair = pattern, number
        assert self.trie.add(*pair) is (pair not in self.counts)
        self.counts[pair] = self.counts.get(pair, 0) + 1

    @rule(data=st.data())
    def remove(self, data):
        if not self.counts:
            return
        pair = data.draw(st.sampled_from(sorted(self.counts)))
        self.counts[pair] -= 1
        assert self.trie.remove(*pair) is (self.counts[pair] == 0)
        if not self.counts[pair]:
            del self.counts[pair]

    @rule(pattern=amqp_patterns, number=st.integers(0, 2))
    def remove_what_is_not_there(self, pattern, number):
        if (pattern, number) not in self.counts:
            with pytest.raises(KeyError):
                self.trie.remove(pattern, number)

    @rule(key=amqp_keys)
    def match(self, key):
        expected = {target for pattern, target in self.counts if amqp_matches(pattern, key)}
        assert self.trie.match(key) == tuple(sorted(expected))

    @invariant()
    def only_what_is_needed_is_kept(self):
        paths = {()}
        for pattern, _ in self.counts:
            words = words_of(pattern, b".")
            paths |= {tuple(words[:n]) for n in range(1, len(words) + 1)}
        assert self.trie.node_count == len(paths)
        assert len(self.trie) == len(self.counts)


TestChanging = Changing.TestCase
TestChanging.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_many_words_come_and_go():
    trie = amqp()
    patterns = [b"w%d.%d.*" % (n % 100, n) for n in range(5000)]
    filled(trie, patterns)
    for target in range(0, 5000, 2):
        trie.remove(patterns[target], target)
    for target in range(5000):
        expected = (target,) if target % 2 else ()
        assert trie.match(b"w%d.%d.x" % (target % 100, target)) == expected
    for target in range(1, 5000, 2):
        trie.remove(patterns[target], target)
    assert trie.node_count == 1


def test_many_targets_of_one_pattern_are_sorted():
    trie = amqp()
    for target in reversed(range(1000)):
        trie.add(b"a", target)
        trie.add(b"#", target + 500)
    assert trie.match(b"a") == tuple(range(1500))


def test_hostile_patterns_are_not_exponential():
    trie = amqp()
    trie.add(b".".join([b"#", b"a"] * 60), 1)
    assert trie.match(b".".join([b"a"] * 120)) == (1,)
    assert trie.match(b".".join([b"a"] * 3000 + [b"b"])) == ()


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", b"*", b"#"),
        (b"..", b"*", b"#"),
        (b".", b"", b"#"),
        (b".", b"*", b"*"),
        (b".", b"a.b", b"#"),
    ],
)
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match=r"one byte|wildcards are"):
        TopicTrie(*arguments)
