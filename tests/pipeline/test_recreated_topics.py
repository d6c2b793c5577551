"""Topics that are deleted, and created again, under a stream: nothing is passed over silently."""

import logging
from dataclasses import replace

import pytest
from braid_topics import Topics, batch, drain, rows, through_json, values, wait_until
from pyspark.sql.streaming.datasource import ReadAllAvailable

from braidmq.model.errors import NotFound
from braidmq.pipeline.errors import DataLoss, TopicRecreated
from braidmq.pipeline.source import SplitPartition

ON = {"failOnDataLoss": "false"}


def delete(topics: Topics, topic: str) -> None:
    topics.api.delete(f"/v1/topics/{topic}").raise_for_status()


def create(topics: Topics, topic: str, partitions: int = 1) -> None:
    body = {"settings": {"partitions": partitions}}
    topics.api.put(f"/v1/topics/{topic}", json=body).raise_for_status()


def recreate(topics: Topics, topic: str, count: int, partitions: int = 1) -> None:
    delete(topics, topic)
    create(topics, topic, partitions)
    topics.fill(topic, count)


def numbers(batches: list[list[dict]]) -> list[int]:
    return sorted(int(row["value"].partition(b":")[0]) for each in batches for row in each)


def test_a_checkpoint_of_a_log_that_is_no_more(topics, running, caplog):
    """The new one is longer than the old: offsets alone show nothing."""
    topic = topics.create(partitions=1)
    topics.fill(topic, 100)
    first = running(topic=topic)
    end, _ = drain(first, through_json(first.initialOffset()))
    first.stop()
    recreate(topics, topic, 150)
    with pytest.raises(TopicRecreated, match="deleted and created again since the checkpoint") as e:
        drain(running(topic=topic), end)
    assert "failOnDataLoss" in e.value.remedy
    reader = running(topic=topic, **ON)
    with caplog.at_level(logging.WARNING):
        after, batches = drain(reader, end)
    assert numbers(batches) == [*range(150)]
    assert "was deleted and created again since the checkpoint; failOnDataLoss" in caplog.text
    reader.stop()
    # What goes on from there has the new log's id, and needs no leave to lose anything.
    topics.fill(topic, 5)
    assert numbers(drain(running(topic=topic), after)[1]) == [*range(5)]


def test_a_batch_that_was_planned_in_a_log_that_is_no_more(topics, running):
    topic = topics.create(partitions=1)
    topics.fill(topic, 100)
    reader = running(topic=topic)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    recreate(topics, topic, 150)
    with pytest.raises(TopicRecreated):
        running(topic=topic).partitions(start, end)
    reader = running(topic=topic, **ON)
    assert batch(reader, start, end) == []
    assert numbers(drain(reader, end)[1]) == [*range(150)]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_deleted_and_created_between_two_batches(topics, running, before, after):
    topic = topics.create(partitions=before)
    topics.fill(topic, 60)
    reader = running(topic=topic, group="watch", maxRecordsPerTrigger=40, **ON)
    start = through_json(reader.initialOffset())
    middle = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert len(batch(reader, start, middle)) == 40
    recreate(topics, topic, 90, partitions=after)
    reader.commit(middle)  # of the old log: it holds nothing in the new one
    end, batches = drain(reader, middle)
    assert numbers(batches) == [*range(90)]
    topics.fill(topic, 3)
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    assert numbers(drain(reader, end)[1]) == [*range(3)]


def test_a_stream_looks_while_its_topic_is_away(topics, running):
    topic = topics.create(partitions=1)
    topics.fill(topic, 10)
    reader = running(topic=topic, pollMilliseconds=1, **ON)
    end, _ = drain(reader, through_json(reader.initialOffset()))
    delete(topics, topic)
    strict = running(topic=topic)
    with pytest.raises(DataLoss, match="is gone"):
        strict.latestOffset(end, ReadAllAvailable())
    end, batches = drain(reader, end)
    assert (end["topics"], batches) == ({}, [[]])
    create(topics, topic)
    topics.fill(topic, 4)
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    assert numbers(drain(reader, end)[1]) == [*range(4)]
    with pytest.raises(NotFound, match="there is no topic"):
        running(topic=f"{topic}-never").initialOffset()


def test_a_pattern_stream_begins_again_after_one_of_its_topics_went(topics, running):
    kept = topics.create(partitions=1)
    gone = f"{kept}-gone"
    create(topics, gone)
    for topic in (kept, gone):
        topics.fill(topic, 10)
    pattern = {"topicPattern": f"{kept}(-gone)?", "group": "watch"}
    first = running(**pattern)
    end, batches = drain(first, through_json(first.initialOffset()))
    assert sum(map(len, batches)) == 20
    first.stop()
    delete(topics, gone)
    topics.fill(kept, 5)
    with pytest.raises(DataLoss, match=f"topic '{gone}' is gone"):
        running(**pattern).latestOffset(end, ReadAllAvailable())
    reader = running(**pattern, **ON)
    end, batches = drain(reader, end)
    assert numbers(batches) == [*range(5)]
    assert list(end["topics"]) == [kept]
    reader.stop()
    # It is behind: whoever minds loss may go on, and the topic is a new one when it comes back.
    create(topics, gone)
    topics.fill(gone, 7)
    assert numbers(drain(running(**pattern), end)[1]) == [*range(7)]


def test_a_checkpoint_of_version_1_takes_the_log_that_it_meets(topics, running, caplog):
    topic = topics.create(partitions=1)
    topics.fill(topic, 10)
    old = {"version": 1, "topics": {topic: {"0": 4}}}
    reader = running(topic=topic)
    with caplog.at_level(logging.WARNING):
        end, batches = drain(reader, old)
    assert numbers(batches) == [*range(4, 10)]
    assert f"does not say which log it was reading of {topic}" in caplog.text
    assert end["logs"] == {topic: topics.log(topic)["id"]}
    recreate(topics, topic, 20)
    with pytest.raises(TopicRecreated):
        drain(running(topic=topic), end)


@pytest.mark.parametrize("count", [0, 10, 200])
def test_a_log_that_changes_under_a_task(topics, running, count):
    """Of the new log not a row comes, whether it is shorter or longer; nor of none."""
    topic = topics.create(partitions=1)
    topics.fill(topic, 100)
    reader = running(topic=topic, readMode="broker")
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    part = SplitPartition(replace(part.value, start=50))
    delete(topics, topic)
    if count:
        create(topics, topic)
        topics.fill(topic, count)
    with pytest.raises(DataLoss, match="while it was read"):
        rows(reader.read(part))
    assert rows(running(topic=topic, readMode="broker", **ON).read(part)) == []


def test_a_partition_that_is_taken_away_and_comes_back_within_one_log(topics, running):
    """Its offsets go on: they never mean other messages, and nothing is lost."""
    topic = topics.create(partitions=2, retention={"until_acked": True})
    reader = running(topic=topic, group="watch")
    start = through_json(reader.initialOffset())
    topics.publish(topic, [{"value": "a", "partition": 1}])
    wait_until(lambda: reader.latestOffset(start, ReadAllAvailable()) != start)
    end, batches = drain(reader, start)
    assert values(batches[0]) == [b"a"]
    reader.stop()
    for width in (1, 2):
        body = {"settings": {"partitions": width}}
        topics.api.patch(f"/v1/topics/{topic}", json=body).raise_for_status()
        wait_until(lambda width=width: len(topics.log(topic)["partitions"]) == width)
    topics.publish(topic, [{"value": "b", "partition": 1}])
    reader = running(topic=topic, group="watch")
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    assert values([row for each in drain(reader, end)[1] for row in each]) == [b"b"]
