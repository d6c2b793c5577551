"""A walk through topics that come and go."""

from hypothesis import given, settings
from hypothesis import strategies as st
from test_retained import FILTERS, TOPICS, matches

from braidmq.gateways.mqtt.topic_tree import TopicTree


@settings(max_examples=200)
@given(
    st.sets(TOPICS, max_size=12),
    FILTERS.filter(bool),
    st.lists(st.tuples(st.integers(0, 4), TOPICS), max_size=12),
)
def test_what_stays_is_found_once_whatever_comes_and_goes(
    topics: set[str], pattern: str, changes: list[tuple[int, str]]
) -> None:
    tree, there = TopicTree(topics), set(topics)
    stayed, ever = set(topics), set(topics)
    walk, found = tree.walk(pattern), []
    for steps, topic in [*changes, (10_000, "")]:
        while steps and not walk.is_over:
            steps -= 1
            found.append(walk.step())
        if topic in there:
            tree.remove(topic)
            there.discard(topic)
            stayed.discard(topic)
        elif topic:
            tree.add(topic)
            there.add(topic)
            ever.add(topic)
    got = [each for each in found if each is not None]
    wanted = {each for each in stayed if matches(pattern.split("/"), each.split("/"))}
    assert wanted <= set(got)
    assert all(got.count(each) == 1 for each in wanted)
    assert set(got) <= {each for each in ever if matches(pattern.split("/"), each.split("/"))}
