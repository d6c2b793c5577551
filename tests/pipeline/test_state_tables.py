"""The state of queues as rows."""

from typing import Any

import pytest
from braid_topics import Topics

from braidmq.model.errors import NotFound
from braidmq.pipeline import tables
from braidmq.pipeline.errors import BadOption


def table(topics: Topics, name: str, **options: Any) -> list[dict[str, Any]]:
    source = topics.source(table=name, **options)
    reader = source.reader(None)
    columns = [part.split()[0] for part in source.schema().split(",")]
    return [
        dict(zip(columns, row, strict=True))
        for partition in reader.partitions()
        for row in reader.read(partition)
    ]


def subscribed(topics: Topics, **settings: Any) -> str:
    topic = topics.create(partitions=2, **settings)
    topics.api.put(f"/v1/topics/{topic}/subscriptions/work", json={}).raise_for_status()
    return topic


def receive(topics: Topics, topic: str, limit: int) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/subscriptions/work/receive"
    return topics.api.post(path, json={"limit": limit}).json()["messages"]


def test_depth_and_lag(topics):
    topic = subscribed(topics)
    topics.publish(topic, [{"value": "abc", "partition": at % 2} for at in range(5)])
    (depth,) = table(topics, "depth", topic=topic)
    assert (depth["topic"], depth["partitions"], depth["depth"]) == (topic, 2, 5)
    assert (depth["depth_bytes"], depth["published"]) == (15, 5)
    assert topic in [row["topic"] for row in table(topics, "depth")]
    first, second = table(topics, "lag", topicPattern=topic)
    assert (first["subscription"], first["partition"], first["lag"]) == ("work", 0, 3)
    assert (second["partition"], second["committed"], second["end"]) == (1, 0, 2)


def test_what_is_at_consumers_page_by_page(topics, monkeypatch):
    monkeypatch.setattr(tables, "PAGE", 3)
    topic = subscribed(topics)
    topics.publish(topic, [{"value": "v", "partition": at % 2} for at in range(10)])
    got = receive(topics, topic, 8)
    found = table(topics, "inflight", topic=topic)
    places = [(row["partition"], row["offset"]) for row in found]
    assert places == sorted((each["partition"], each["offset"]) for each in got)
    assert {row["attempts"] for row in found} == {1}
    assert all(row["deadline"] is not None for row in found)


def test_dead_letters_and_delayed_page_by_page(topics, monkeypatch):
    monkeypatch.setattr(tables, "PAGE", 2)
    topic = subscribed(topics)
    topics.publish(topic, [{"value": f"v{at}", "key": "k"} for at in range(5)])
    for each in receive(topics, topic, 5):
        path = f"/v1/receipts/{each['receipt']}/reject"
        topics.api.post(path, json={"error": "no good"}).raise_for_status()
    dead = table(topics, "deadletters", topic=topic)
    assert sorted(row["value"] for row in dead) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert {(row["reason"], row["error"], row["subscription"], row["key"]) for row in dead} == {
        ("rejected", "no good", "work", b"k")
    }
    later = [{"value": f"l{at}", "partition": at % 2, "delay_ms": 3_600_000} for at in range(5)]
    topics.publish(topic, later)
    waiting = table(topics, "delayed", topic=topic)
    assert sorted(row["value"] for row in waiting) == [b"l0", b"l1", b"l2", b"l3", b"l4"]
    assert [row["partition"] for row in waiting] == [0, 0, 0, 1, 1]


def test_a_table_of_a_topic_that_is_not_there_and_no_stream_of_one(topics):
    with pytest.raises(NotFound):
        table(topics, "lag", topic="missing")
    with pytest.raises(BadOption, match="can't be read as a stream"):
        topics.source(table="lag").streamReader(None)
