"""Message ids within a topic's window (catalogue row I1)."""

import pytest
from engine_worlds import MINUTE, SECOND, World, all_records, values

from braidmq.engine.envelope import encode_headers
from braidmq.engine.errors import TopicFull
from braidmq.engine.transactions.publishing import Origin
from braidmq.record.batch import RecordBatch


def named(world: World, *names: str) -> RecordBatch:
    """Messages whose values are their ids; those that begin with a dash have none."""
    batch = RecordBatch()
    for name in names:
        has_id = not name.startswith("-")
        envelope = encode_headers({"message-id": name.encode()}) if has_id else b""
        batch.append(name.encode(), envelope=envelope, timestamp_ms=world.now_ms)
    return batch


def publish(world: World, *names: str, topic: str = "t"):
    return world.engine.publishing.publish(
        world.find(topic), named(world, *names), now_ms=world.now_ms
    )


def kept(world: World, topic: str = "t") -> list[bytes | None]:
    return [each.value for each in all_records(world, world.find(topic))]


def test_a_message_id_counts_once_within_the_window():
    world = World()
    world.topic(deduplication_window_ms=MINUTE)
    assert publish(world, "a", "b").placed == [(0, 0, 2)]
    again = publish(world, "a", "c", "a", "c", "-", "-")
    assert again.accepted == 6
    assert again.lsn is not None
    assert publish(world, "a").accepted == 1
    assert kept(world) == [b"a", b"b", b"c", b"-", b"-"]
    world.advance(MINUTE)
    publish(world, "a")
    assert kept(world)[-1] == b"a"


def test_without_the_policy_ids_mean_nothing():
    world = World()
    world.topic()
    publish(world, "a")
    publish(world, "a")
    assert kept(world) == [b"a", b"a"]


def test_a_restart_remembers_the_window():
    world = World()
    world.topic(deduplication_window_ms=MINUTE, partitions=3)
    publish(world, "old")
    world.advance(50 * SECOND)
    publish(world, "new", "other", "third")
    world = world.reopen(after_ms=20 * SECOND)
    publish(world, "old", "new", "other", "third")
    found = [r.value for n in range(3) for r in all_records(world, world.find(), n)]
    assert sorted(found) == [b"new", b"old", b"old", b"other", b"third"]


def test_what_is_refused_may_come_again():
    world = World()
    topic = world.topic(deduplication_window_ms=MINUTE, max_messages=2)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    publish(world, "a")
    assert publish(world, "a", "b", "a", "c", "d").accepted == 3
    with pytest.raises(TopicFull):
        publish(world, "c")
    assert values(world.drain(topic)) == [b"a", b"b"]
    assert publish(world, "b", "c").accepted == 2
    assert values(world.drain(topic)) == [b"c"]


def test_fanned_out_each_topic_has_its_own_ids():
    world = World()
    topics = [world.topic("t", deduplication_window_ms=MINUTE), world.topic("u")]
    for _ in range(2):
        done = world.engine.publishing.fan_out(topics, named(world, "a"), now_ms=world.now_ms)
        assert done.accepted == 1
    assert kept(world) == [b"a"]
    assert kept(world, "u") == [b"a", b"a"]


def test_what_was_aborted_may_come_again_after_a_restart():
    world = World()
    topic = world.topic(deduplication_window_ms=MINUTE)
    transactions = world.engine.transactions
    transaction, _ = transactions.begin("n", "x", now_ms=world.now_ms)
    origin = Origin(transactions.branch(transaction))
    world.engine.publishing.publish(topic, named(world, "a"), now_ms=world.now_ms, origin=origin)
    transactions.abort(transaction, now_ms=world.now_ms)
    world = world.reopen()
    publish(world, "a")
    assert kept(world) == [b"a"]


def test_a_policy_that_is_changed_looks_at_the_log_again():
    world = World()
    topic = world.topic()
    publish(world, "a")
    world.engine.topics.alter(topic, {"deduplication_window_ms": MINUTE}, now_ms=world.now_ms)
    publish(world, "a", "b")
    assert kept(world) == [b"a", b"b"]
