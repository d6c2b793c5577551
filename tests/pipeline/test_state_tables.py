"""The state of queues as rows."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from braid_topics import Topics

from braidmq.model.errors import AccessRefused, NotAuthenticated, NotFound
from braidmq.pipeline import tables
from braidmq.pipeline.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
QUERY = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def table(topics: Topics, name: str, **options: Any) -> list[dict[str, Any]]:
    source = topics.source(table=name, **options)
    reader = source.reader(source.schema())
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def subscribed(topics: Topics, **settings: Any) -> str:
    topic = topics.create(partitions=2, **settings)
    topics.api.put(f"/v1/topics/{topic}/subscriptions/work", json={}).raise_for_status()
    return topic


def receive(topics: Topics, topic: str, limit: int, wait_ms: int = 0) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/subscriptions/work/receive"
    # As long as a slow machine takes for what comes next.
    body = {"limit": limit, "wait_ms": wait_ms, "visibility_ms": 3_600_000}
    return topics.api.post(path, json=body).json()["messages"]


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
    with pytest.raises(NotFound):
        table(topics, "deadletters", topic="missing")
    with pytest.raises(BadOption, match="can't be read as a stream"):
        topics.source(table="lag").streamReader(None)


def test_what_a_table_can_not_do_is_refused_with_the_reason(topics: Topics) -> None:
    with pytest.raises(BadOption, match="of the whole node"):
        table(topics, "audit", topic="a")
    with pytest.raises(BadOption, match="metering"):
        table(topics, "metering")
    with pytest.raises(BadOption, match="startingOffsets is for messages"):
        table(topics, "lag", startingOffsets="earliest")
    with pytest.raises(BadOption, match="both"):
        table(topics, "lag", topic="a", topicPattern="a.*")
    source = topics.source(table="lag")
    with pytest.raises(BadOption, match="schema of its own"):
        source.reader(topics.source(table="depth").schema())


def test_subscriptions(topics: Topics) -> None:
    topic = subscribed(topics)
    topics.publish(topic, [{"value": "v"} for _ in range(5)])
    first, *_ = receive(topics, topic, 2)
    topics.api.post(f"/v1/receipts/{first['receipt']}/ack").raise_for_status()
    (found,) = table(topics, "subscriptions", topic=topic)
    assert (found["subscription"], found["mode"], found["partitions"]) == ("work", "shared", 2)
    counts = ("lag", "ready", "in_flight", "delivered", "acked", "dead_lettered")
    assert [found[name] for name in counts] == [4, 3, 1, 2, 1, 0]


def test_large_dead_letters_are_all_there(topics: Topics) -> None:
    """The broker ends a page where it gets large: a short page is not the last."""
    topic = subscribed(topics)
    for at in range(7):
        topics.publish(topic, [{"value": f"{at}".ljust(900_000, "x")}])
    while received := receive(topics, topic, 7):
        for each in received:
            topics.api.post(f"/v1/receipts/{each['receipt']}/reject").raise_for_status()
    dead = table(topics, "deadletters", topic=topic)
    assert sorted(row["value"][:1] for row in dead) == [b"%d" % at for at in range(7)]
    assert {(row["topic"], row["dead_letter_topic"]) for row in dead} == {(topic, f"{topic}.dlq")}
    assert len(table(topics, "deadletters", topicPattern=f"{topic}|none")) == 7


def test_a_table_has_what_its_user_may_read(topics: Topics) -> None:
    """Others are listed for whoever may write to them, which must not fail a look at all."""
    mine, others = subscribed(topics), subscribed(topics)
    for topic in (mine, others):
        topics.publish(topic, [{"value": "v"}, {"value": "later", "delay_ms": 3_600_000}])
        for each in receive(topics, topic, 1):
            topics.api.post(f"/v1/receipts/{each['receipt']}/reject").raise_for_status()
    topics.api.put("/v1/users/limited", json={"password": "secret-1"}).raise_for_status()
    rights = {"read": f"^{mine}$", "write": f"^({mine}|{others})$", "configure": ""}
    topics.api.put("/v1/permissions/%2F/limited", json=rights).raise_for_status()
    who = {"user": "limited", "password": "secret-1"}
    for name in ("subscriptions", "lag", "deadletters", "delayed"):
        assert {row["topic"] for row in table(topics, name, **who)} == {mine}, name
    with pytest.raises(AccessRefused):
        table(topics, "lag", topic=others, **who)
    for name in ("usage", "audit"):
        with pytest.raises(AccessRefused):
            table(topics, name, **who)


def test_a_token_stands_for_its_user(topics: Topics) -> None:
    topic = subscribed(topics)
    made = topics.api.post("/v1/tokens", json={"description": "spark"}).json()
    assert table(topics, "lag", topic=topic, token=made["token"])
    with pytest.raises(NotAuthenticated):
        table(topics, "lag", topic=topic, token="none")
    with pytest.raises(BadOption, match="token is a login of its own"):
        table(topics, "lag", topic=topic, token="none", user="guest")


def test_usage_is_what_was_published(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create(partitions=1)
    before = sum(row["published_bytes"] for row in table(topics, "usage"))
    topics.publish(topic, [{"value": "x" * 10} for _ in range(7)])
    topics.api.post(f"/v1/topics/{topic}/purge").raise_for_status()
    monkeypatch.setattr(tables, "PAGE", 1)
    rows = table(topics, "usage")
    assert sum(row["published_bytes"] for row in rows) == before + 70
    assert {row["namespace"] for row in rows} == {"/"}
    with pytest.raises(BadOption):
        table(topics, "usage", topic=topic)


def test_audit_says_who_did_what(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE", 2)
    topic = topics.create(partitions=1)
    path = f"/v1/topics/{topic}"
    topics.api.delete(path).raise_for_status()
    rows = [row for row in table(topics, "audit") if topic in row["object"] + row["facts"]]
    assert {row["user"] for row in rows} == {"guest"}
    assert {row["kind"] for row in rows} == {"object"}
    assert len({row["operation"] for row in rows}) == 2, "made, and deleted"
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)


def test_the_queries_of_the_page(topics: Topics, spark: "SparkSession") -> None:
    topic = subscribed(topics)
    topics.publish(topic, [{"value": f"v{at}", "partition": at % 2} for at in range(6)])
    topics.api.put(f"/v1/topics/{topic}/subscriptions/idle", json={}).raise_for_status()
    (tried,) = receive(topics, topic, 1)
    path = f"/v1/receipts/{tried['receipt']}/nack"
    topics.api.post(path, json={"delay_ms": 0}).raise_for_status()
    received: list[dict[str, Any]] = []
    while len(received) < 6:
        received += receive(topics, topic, 6, wait_ms=10_000)
    once = next(each for each in received if each["delivery_count"] == 1)
    path = f"/v1/receipts/{once['receipt']}/reject"
    topics.api.post(path, json={"error": "no stock"}).raise_for_status()
    topics.publish(topic, [{"value": "later", "delay_ms": 3_600_000}])
    for name in tables.SCHEMAS:
        reader = spark.read.format("braid").option("url", topics.node.http_url)
        if name not in tables.OF_NO_TOPIC:
            reader = reader.option("topic", topic)
        reader.option("table", name).load().createOrReplaceTempView(name)
    rows = [spark.sql(query).collect() for query in QUERY.findall(PAGE.read_text())]
    assert len(rows) == len(tables.SCHEMAS)
    assert all(rows), "each finds something here"
    assert rows[4][0]["error"] == "no stock"
