"""Streams by the reader class, without a JVM: what Spark would call, in its order."""

from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from braid_topics import GUEST, Topics, batch, drain, through_json, values, wait_until
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from braidmq.pipeline import source
from braidmq.pipeline.errors import BadOption, DataLoss
from braidmq.pipeline.planning import find_logs
from braidmq.testing.live import free_ports, live_node


def test_batches_follow_each_other_without_gap_or_overlap(topics, running):
    topic = topics.create()
    sent = [each["value"].encode() for each in topics.fill(topic, 3000)]
    reader = running(topic=topic, maxRecordsPerTrigger=700)
    start = through_json(reader.initialOffset())
    logs = {topic: topics.log(topic)["id"]}
    assert start == {"version": 2, "topics": {topic: {"0": 0, "1": 0}}, "logs": logs}
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    end, batches = drain(reader, start)
    assert [len(each) for each in batches] == [700, 700, 700, 700, 200]
    assert values([row for each in batches for row in each]) == sorted(sent)
    more = [each["value"].encode() for each in topics.fill(topic, 10)]
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    _, batches = drain(reader, end)
    assert values(batches[0]) == sorted(more)


def test_the_same_range_gives_the_same_rows_wherever_they_lie_by_then(topics, running):
    topic = topics.create()
    topics.fill(topic, 500)
    reader = running(topic=topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    first = batch(reader, start, end)
    topics.fill(topic, 4000)
    wait_until(lambda: topics.sealed(topic) > 0)
    assert batch(running(topic=topic), start, end) == first


def test_limits_by_bytes(topics, running):
    topic = topics.create()
    topics.fill(topic, 1000, size=1000)
    reader = running(topic=topic, maxBytesPerTrigger="100k")
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxBytes)
    start = reader.initialOffset()
    _, batches = drain(reader, start)
    assert sum(map(len, batches)) == 1000
    assert all(60 <= len(each) <= 140 for each in batches[:-1])


def test_available_now_ends_where_it_began_to_look(topics, running):
    topic = topics.create()
    topics.fill(topic, 100)
    reader = running(topic=topic, maxRecordsPerTrigger=30)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    topics.fill(topic, 50)
    _, batches = drain(reader, start)
    assert [len(each) for each in batches] == [30, 30, 30, 10]


def test_a_stream_begins_at_the_end_unless_told_otherwise(topics):
    topic = topics.create(partitions=1)
    topics.fill(topic, 10)
    reader = topics.stream_reader(topic=topic)
    assert reader.initialOffset()["topics"] == {topic: {"0": 10}}


def test_new_partitions_and_topics_are_read_from_their_beginning(topics, running):
    topic = topics.create(partitions=1)
    topics.fill(topic, 10)
    reader = running(topicPattern=f"{topic}.*")
    end, batches = drain(reader, reader.initialOffset())
    assert sum(map(len, batches)) == 10
    topics.api.patch(f"/v1/topics/{topic}", json={"settings": {"partitions": 3}}).raise_for_status()
    topics.api.put(f"/v1/topics/{topic}-more", json={}).raise_for_status()
    topics.publish(topic, [{"value": "a", "partition": 2}])
    topics.publish(f"{topic}-more", [{"value": "b"}])
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    _, batches = drain(reader, end)
    assert values([row for each in batches for row in each]) == [b"a", b"b"]


def test_a_partition_that_is_taken_away_is_read_to_its_end(topics, running):
    topic = topics.create(partitions=3, retention={"until_acked": True})
    reader = running(topic=topic, group="g")
    start = through_json(reader.initialOffset())
    topics.publish(topic, [{"value": "a", "partition": 2}])
    wait_until(lambda: reader.latestOffset(start, ReadAllAvailable()) != start)
    end, batches = drain(reader, start)
    assert values(batches[0]) == [b"a"]
    topics.api.patch(f"/v1/topics/{topic}", json={"settings": {"partitions": 1}}).raise_for_status()
    wait_until(lambda: len(topics.log(topic)["partitions"]) == 1)
    closed = topics.log(topic)["closed"]
    assert [(each["partition"], each["end_offset"]) for each in closed] == [(1, 0), (2, 1)]
    topics.publish(topic, [{"value": "b"}])
    wait_until(lambda: reader.latestOffset(end, ReadAllAvailable()) != end)
    end, batches = drain(reader, end)
    assert values([row for each in batches for row in each]) == [b"b"]
    topics.api.patch(f"/v1/topics/{topic}", json={"settings": {"partitions": 3}}).raise_for_status()
    topics.publish(topic, [{"value": "c", "partition": 2}])
    again = running(topic=topic, group="g")
    wait_until(lambda: again.latestOffset(end, ReadAllAvailable()) != end)
    _, batches = drain(again, end)
    assert values([row for each in batches for row in each]) == [b"c"]


def test_idle_polling_leaves_the_broker_alone(topics, running, monkeypatch):
    topic = topics.create()
    reader = running(topic=topic, pollMilliseconds=100)
    start = reader.initialOffset()
    now_s, looks = [1000.0], []

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    def look(*args: object, **options: object) -> object:
        looks.append(now_s[0])
        return find_logs(*args, **options)

    monkeypatch.setattr(source.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(source.time, "sleep", sleep)
    monkeypatch.setattr(source, "find_logs", look)
    for _ in range(20):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert all(after - before >= 0.099 for before, after in pairwise(looks))


def test_a_stream_holds_a_lease_that_moves_with_it(topics, running):
    topic = topics.create(partitions=1, retention={"messages": 100})
    topics.fill(topic, 90)
    reader = running(topic=topic, maxRecordsPerTrigger=40)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    topics.fill(topic, 3000)

    def held() -> list[int]:
        positions = [at for lease in topics.leases() for at in lease["positions"]]
        return [at["offset"] for at in positions if at["topic"] == topic]

    assert held() == [0]
    assert len(batch(reader, start, end)) == 40
    reader.commit(end)
    assert held() == [40]
    # What was let go of may go, and what was not stays, though there is far too much.
    assert topics.log(topic)["partitions"][0]["start_offset"] == 40
    reader.stop()
    assert held() == []
    wait_until(lambda: topics.log(topic)["partitions"][0]["start_offset"] > 2900)


def test_a_stream_that_fails_leaves_its_lease_for_the_next_try(topics, running, monkeypatch):
    monkeypatch.setattr(source, "ORDER_S_MAX", 0.0)
    topic = topics.create(partitions=1)
    reader = running(topic=topic)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    def held() -> bool:
        return any(topic in str(lease["positions"]) for lease in topics.leases())

    def as_when_the_driver_is_gone() -> None:
        try:
            raise EOFError
        finally:
            reader.stop()

    with pytest.raises(EOFError):
        as_when_the_driver_is_gone()
    assert held()
    reader.stop()
    assert not held()


def test_a_group_shows_how_far_a_stream_is(topics, running):
    topic = topics.create(partitions=1)
    topics.fill(topic, 50)
    reader = running(topic=topic, group="dashboard", maxRecordsPerTrigger=20)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.commit(end)
    shown = topics.api.get(f"/v1/topics/{topic}/subscriptions/dashboard").json()
    assert (shown["lag"], shown["partitions"][0]["committed"]) == (30, 20)


def test_retention_that_overtook_a_stopped_stream(topics, running):
    topic = topics.create(partitions=1, retention={"messages": 100})
    topics.fill(topic, 5000)
    wait_until(lambda: topics.log(topic)["partitions"][0]["start_offset"] > 4000)
    start = {"version": 1, "topics": {topic: {"0": 10}}}
    with pytest.raises(DataLoss, match=r"offsets 10 to \d+ are gone"):
        running(topic=topic).latestOffset(start, ReadAllAvailable())
    lenient = running(topic=topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match=r"offsets 10 to \d+ are gone"):
        running(topic=topic).partitions(start, end)
    kept = topics.log(topic)["partitions"][0]
    assert len(batch(lenient, start, end)) == kept["end_offset"] - kept["start_offset"]


def test_a_topic_made_anew_is_loss(topics, running):
    topic = topics.create(partitions=1)
    topics.fill(topic, 5)
    start = {"version": 1, "topics": {topic: {"0": 1000}}}
    with pytest.raises(DataLoss, match="it was made anew"):
        running(topic=topic).partitions(start, {"version": 1, "topics": {topic: {"0": 5}}})


def test_offsets_of_a_later_version_are_refused(running):
    with pytest.raises(BadOption, match="offsets of version 3, this BraidMQ reads 1 to 2"):
        running(topic="any").latestOffset({"version": 3, "topics": {}}, ReadAllAvailable())


def test_a_broker_that_restarts_in_the_middle(tmp_path: Path):
    """The stream waits for it, and what was confirmed before is all there once."""
    (port,) = free_ports(1)

    def fresh() -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=GUEST, timeout=60)

    with live_node(tmp_path, http_port=port, ws_port=0, mqtt_port=0) as node, fresh() as client:
        topics = Topics(node, client)
        topic = topics.create(partitions=1)
        topics.fill(topic, 100)
        reader = topics.stream_reader(topic=topic, startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        (lease,) = topics.leases()
        node.kill()
    with live_node(tmp_path, http_port=port, ws_port=0, mqtt_port=0) as node, fresh() as client:
        topics = Topics(node, client)
        assert [each["name"] for each in topics.leases()] == [lease["name"]]
        assert len(batch(reader, start, end)) == 100
        topics.fill(topic, 20)
        assert len(drain(reader, end)[1][0]) == 20
        reader.stop()
        assert topics.leases() == []
