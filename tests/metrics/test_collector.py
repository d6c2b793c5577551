"""What a node counts, against what was done to an engine, as Prometheus' own parser reads it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from braidmq.engine.engine import Engine
from braidmq.engine.record_times import AGE_BOUNDS_MS, Ages, RecordClock
from braidmq.engine.topics import Topic
from braidmq.metrics.collector import Metrics
from braidmq.metrics.settings import MetricsSettings
from braidmq.metrics.topics import SUBSCRIPTION_FAMILIES, TOPIC_FAMILIES
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
QUEUE = {"partitions": 1, "retry": {"attempts": 2, "base_ms": 0}}


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine.open(MemoryDisk(), 1000, StorageSettings(journal_file_bytes=1 << 20))
    yield engine
    engine.close()


def scraped(engine: Engine, topics_max: int = 1000, lanes_max: int = 5000) -> Values:
    settings = MetricsSettings(topics_max=topics_max, lanes_max=lanes_max)
    text = Metrics(engine, {}, lambda: 0, settings).render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    return values[name, frozenset(labels.items())]


def publish(engine: Engine, topic: Topic, count: int, now_ms: int = 1000) -> None:
    batch = RecordBatch()
    batch.extend_values([b"value"] * count, now_ms)
    engine.publishing.publish(topic, batch, now_ms=now_ms)


def test_counts_are_what_was_done(engine: Engine) -> None:
    topic = engine.topics.create("n", "t", QUEUE, now_ms=1000)
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=1000)
    publish(engine, topic, 10)
    consumer = engine.consumers.attach(subscription, now_ms=1000)
    view = subscription.views[0]
    assert (
        sum(each.stop_index - each.first_index for each in engine.dispatching.dispatch(1004)) == 10
    )
    engine.settling.ack(consumer, view, 0, 4)
    engine.settling.reject(consumer, view, 4, 6, now_ms=1004)
    engine.settling.nack(consumer, view, 6, 9, now_ms=1004)
    assert (
        sum(each.stop_index - each.first_index for each in engine.dispatching.dispatch(1005)) == 3
    )
    engine.settling.nack(consumer, view, 6, 7, now_ms=1005)  # its second attempt was its last

    values = scraped(engine)
    whole = {"namespace": "n", "topic": "t", "subscription": "s"}
    for name, expected in {
        "delivered": 13,
        "redelivered": 3,
        "acknowledged": 4,
        "nacked": 4,
        "rejected": 2,
        "expired": 0,
    }.items():
        counter = f"{name}_messages_total"
        assert value(values, f"braid_{counter}", namespace="n") == expected
        assert value(values, f"braid_subscription_{counter}", **whole) == expected
    assert value(values, "braid_subscription_dead_lettered_messages_total", **whole) == 3
    died = "braid_dead_lettered_messages_total"
    assert value(values, died, namespace="n", reason="rejected") == 2
    assert value(values, died, namespace="n", reason="max-attempts") == 1
    # The dead were published a second time.
    assert value(values, "braid_published_messages_total", namespace="n") == 13
    assert value(values, "braid_topic_published_messages_total", namespace="n", topic="t") == 10
    assert value(values, "braid_subscription_in_flight_messages", **whole) == 3
    assert value(values, "braid_in_flight_messages", namespace="n") == 3
    assert value(values, "braid_subscription_unsettled_bytes", **whole) == 15
    assert value(values, "braid_consumers", namespace="n") == 1
    assert value(values, "braid_topics", namespace="n") == 2
    latency = "braid_delivery_latency_seconds"
    assert value(values, f"{latency}_count") == 10
    assert value(values, f"{latency}_sum") == pytest.approx(0.04)
    assert value(values, f"{latency}_bucket", le="0.002") == 0
    assert value(values, f"{latency}_bucket", le="0.005") == 10


def test_what_had_nowhere_to_go_is_counted_too(engine: Engine) -> None:
    settings = {"partitions": 1, "ttl_ms": 5, "dead_letter": {"topic": None}}
    topic = engine.topics.create("n", "t", settings, now_ms=1000)
    engine.subscriptions.subscribe(topic, "s", now_ms=1000)
    publish(engine, topic, 3)
    engine.advance(2000)
    values = scraped(engine)
    assert value(values, "braid_dropped_messages_total", namespace="n", reason="expired") == 3
    assert value(values, "braid_expired_messages_total", namespace="n") == 3


def test_sums_do_not_go_back_when_topics_go(engine: Engine) -> None:
    topic = engine.topics.create("n", "t", QUEUE, now_ms=1000)
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=1000)
    engine.consumers.attach(subscription, now_ms=1000, auto_ack=True)
    publish(engine, topic, 5)
    engine.dispatching.dispatch(1000)
    before = scraped(engine)
    engine.topics.delete(topic)
    after = scraped(engine)
    for name in ("published", "delivered", "acknowledged"):
        counter = f"braid_{name}_messages_total"
        assert value(before, counter, namespace="n") == value(after, counter, namespace="n") == 5
    assert not [name for name, _ in after if name.startswith("braid_subscription_")]
    assert value(before, "braid_topics", namespace="n") == 1


def test_with_too_many_topics_only_sums_are_given(engine: Engine) -> None:
    for number in range(3):
        topic = engine.topics.create("n", f"t{number}", QUEUE, now_ms=1000)
        engine.subscriptions.subscribe(topic, "s", now_ms=1000)
        publish(engine, topic, 2)
    few, many = scraped(engine, 3), scraped(engine, 2)
    assert value(few, "braid_topics_without_series") == 0
    assert value(many, "braid_topics_without_series") == 3
    assert not [
        name for name, _ in many if name.startswith(("braid_topic_", "braid_subscription_"))
    ]
    for values in (few, many):
        assert value(values, "braid_ready_messages", namespace="n") == 6
        assert value(values, "braid_published_messages_total", namespace="n") == 6


def test_ten_thousand_topics_are_written_in_small_pieces(engine: Engine) -> None:
    for number in range(10_000):
        topic = engine.topics.create("n", f"t{number}", QUEUE, now_ms=1000, durable=False)
        engine.subscriptions.subscribe(topic, "s", now_ms=1000)
    pieces = list(Metrics(engine, {}, lambda: 0, MetricsSettings(topics_max=10_000)).pieces())
    assert len(pieces) > 50
    families = len(TOPIC_FAMILIES) + len(SUBSCRIPTION_FAMILIES)
    assert [piece.count(b"\n") for piece in pieces[-families:]] == [10_000 + 2] * families


@given(st.text(), st.text(min_size=1))
def test_any_name_can_be_read_back(namespace: str, name: str) -> None:
    engine = Engine.open(MemoryDisk(), 1000, StorageSettings(journal_file_bytes=1 << 16))
    topic = engine.topics.create(namespace, name, QUEUE, now_ms=1000, durable=False)
    engine.subscriptions.subscribe(topic, name, now_ms=1000)
    values = scraped(engine)
    labels = {"namespace": namespace, "topic": name, "subscription": name}
    assert value(values, "braid_subscription_ready_messages", **labels) == 0
    engine.close()


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000_000), st.one_of(st.none(), st.integers(0, 10_000_000))),
        min_size=1,
    ),
    st.data(),
)
def test_ages_agree_with_a_plain_count(
    times: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    batch = RecordBatch()
    for stamped, due in sorted(times, key=lambda each: each[0]):
        batch.append(b"", timestamp_ms=stamped, due_at_ms=due or 0)
    first = data.draw(st.integers(0, batch.count))
    stop = data.draw(st.integers(first, batch.count))
    now_ms = data.draw(st.integers(0, 20_000_000))
    ages = Ages()
    ages.observe(batch, first, stop, now_ms, RecordClock(0))
    expected = [0] * (len(AGE_BOUNDS_MS) + 1)
    total = 0
    for record in batch.records()[first:stop]:
        age = max(0, now_ms - max(record.timestamp_ms, record.due_at_ms))
        expected[sum(age > bound for bound in AGE_BOUNDS_MS)] += 1
        total += age
    assert (ages.counts, ages.total_ms) == (expected, total)


def test_lanes_have_series_up_to_a_limit(engine: Engine) -> None:
    topic = engine.topics.create("n", "t", {"partitions": 1, "priority": "lanes"}, now_ms=1000)
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=1000)
    publish(engine, topic, 3)
    consumer = engine.consumers.attach(subscription, now_ms=1000)
    engine.dispatching.pull(consumer, 2, 5000)
    where = {"namespace": "n", "topic": "t", "subscription": "s", "partition": "0"}
    values = scraped(engine, lanes_max=5)
    lane = where | {"lane": "normal"}
    assert value(values, "braid_lane_ready_messages", **lane) == 1
    assert value(values, "braid_lane_in_flight_messages", **lane) == 2
    assert value(values, "braid_lane_served_messages_total", **lane) == 2
    assert value(values, "braid_lane_last_served_timestamp_seconds", **lane) == 5
    assert value(values, "braid_lane_ready_messages", **where, lane="critical") == 0
    assert value(values, "braid_lanes") == 5
    values = scraped(engine, lanes_max=4)
    assert value(values, "braid_lanes") == 5
    assert not [name for name, _ in values if name.startswith("braid_lane_")]
