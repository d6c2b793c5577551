"""``startingOffsets=committed``: what some subscription has not settled, and nothing before it."""

from typing import Any

import pytest
from braid_topics import Topics, wait_until

from braidmq.pipeline.definition import BadPipeline, find, load
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import parse_options
from braidmq.pipeline.reading import SplitReader

MESSAGES = 3000


def subscribe(topics: Topics, topic: str, name: str, *committed: int) -> None:
    """A group that has settled what is before these offsets."""
    path = f"/v1/topics/{topic}/subscriptions/{name}"
    topics.api.put(path, json={"start": "earliest"}).raise_for_status()
    offsets = [{"partition": number, "offset": at} for number, at in enumerate(committed)]
    topics.api.post(f"{path}/commit", json={"offsets": offsets}).raise_for_status()


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found]


def test_from_the_lowest_that_is_committed(topics: Topics) -> None:
    topic = topics.create(partitions=3)
    for number in range(3):
        topics.publish(topic, [{"value": f"{at}", "partition": number} for at in range(20)])
    assert topics.read(topic=topic, startingOffsets="committed") == []  # nobody waits for any
    subscribe(topics, topic, "slow", 5, 20, 18)
    subscribe(topics, topic, "quick", 12, 20, 20)
    found = topics.read(topic=topic, startingOffsets="committed")
    assert places(found) == [*((0, at) for at in range(5, 20)), (2, 18), (2, 19)]


def test_what_retention_took_is_no_loss(topics: Topics) -> None:
    topic = topics.create(partitions=1, retention={"messages": 50})
    topics.publish(topic, [{"value": "early"}])
    topics.api.put(f"/v1/topics/{topic}/subscriptions/slow", json={"start": "earliest"})
    topics.publish(topic, [{"value": "v"}] * 200)
    wait_until(lambda: topics.log(topic)["partitions"][0]["start_offset"] > 0)
    start = topics.log(topic)["partitions"][0]["start_offset"]
    found = topics.read(topic=topic, startingOffsets="committed")
    assert places(found) == [(0, at) for at in range(start, 201)]


def test_latency_reads_what_is_not_settled_and_no_values(topics: Topics) -> None:
    """However much was settled before: whole segments of it here."""
    topic = topics.create(partitions=1)
    topics.fill(topic, MESSAGES)
    wait_until(lambda: topics.sealed(topic) > 1)
    subscribe(topics, topic, "readers", MESSAGES - 7)
    messages = load(find("latency"), {"topics": topic}).sources[0]
    options = {"topicPattern": messages.topic_pattern, **messages.options}
    found = topics.read(**options)
    assert [row["offset"] for row in found] == list(range(MESSAGES - 7, MESSAGES))
    assert set(found[0]) == {"topic", "partition", "offset", "timestamp"}
    (part,) = topics.batch_reader(**options).partitions()
    reader = SplitReader(part.value, parse_options({"url": topics.node.http_url, "topic": topic}))
    assert sum(batch.num_rows for batch in reader.read()) == 7
    assert reader.bytes_read < 100_000  # of some 700 000


def test_it_is_not_for_streams_nor_for_ends(topics: Topics, tmp_path) -> None:
    with pytest.raises(BadOption, match="read at once"):
        topics.stream_reader(topic="t", startingOffsets="committed")
    with pytest.raises(BadOption, match="endingOffsets"):
        topics.batch_reader(topic="t", endingOffsets="committed")
    file = tmp_path / "stream.toml"
    file.write_text("""
name = "stream"
[[source]]
name = "messages"
topic = "orders"
options = { startingOffsets = "committed" }
[[sink]]
from = "messages"
topic = "copies"
""")
    with pytest.raises(BadPipeline, match=r"stream.toml:6: .*read at once"):
        load(file)
