"""Retention and compaction (catalogue section M)."""

import random
from typing import Any

import pytest
from engine_worlds import HOUR, MINUTE, NS, SECOND, SMALL, World, all_records, crashes, values

from braidmq.engine.envelope import AMQP, MQTT, encode_headers
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.publishing import Origin
from braidmq.storage.settings import StorageSettings
from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt


def offsets(world: World, topic: Topic) -> list[int]:
    return [record.offset for record in all_records(world, topic)]


# --- by time, bytes and count ---


@pytest.mark.parametrize("checkpointed", [False, True])
def test_by_time(checkpointed: bool) -> None:
    world = World()
    topic = world.topic(retention={"time_ms": HOUR})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(90):
        world.publish(topic, b"%d" % number)
        if checkpointed and number % 30 == 29:
            world.checkpoint()
        world.advance(MINUTE)
    world.advance(5 * MINUTE)
    kept = offsets(world, topic)
    assert kept == list(range(kept[0], 90))
    # At the last sweep everything older than an hour was gone.
    oldest = world.now_ms - all_records(world, topic)[0].timestamp_ms
    assert HOUR - 5 * MINUTE <= oldest <= HOUR + 5 * MINUTE
    assert topic.subscriptions["s"].depth == len(kept)
    assert world.reopen().find().subscriptions["s"].depth == len(kept)


def test_by_count_checked_on_append() -> None:
    world = World()
    topic = world.topic(retention={"messages": 250})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    looked = False
    for _ in range(20):
        world.publish(topic, *[b"x"] * 100)
        due = world.engine.next_due_ms()
        assert due is not None
        assert (due <= world.now_ms) == (len(offsets(world, topic)) > 250 or not looked)
        looked = True
        world.engine.advance(world.now_ms)
        assert len(offsets(world, topic)) <= 250
    assert offsets(world, topic) == list(range(1750, 2000))
    assert topic.depth == 250
    assert topic.depth_bytes == 250
    assert values(world.drain(topic)) == [b"x"] * 250


@pytest.mark.parametrize("checkpointed", [False, True])
def test_by_bytes(checkpointed: bool) -> None:
    world = World()
    topic = world.topic(retention={"bytes": 20_000})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for number in range(100):
        world.publish(topic, *[bytes(100)] * 10)
        if checkpointed and number % 10 == 9:
            world.checkpoint()
        world.engine.advance(world.now_ms)
    log = topic.partitions[0].log
    kept = offsets(world, topic)
    assert kept
    assert kept == list(range(kept[0], 1000))
    # In whole batches and segments, of 4 KiB here.
    assert 10_000 < len(kept) * 140 <= 20_000 + 2 * SMALL.segment_bytes_max
    assert topic.depth == len(kept)
    assert log.start_offset == kept[0]


def test_retention_takes_messages_from_consumers_too() -> None:
    world = World()
    topic = world.topic(retention={"messages": 10}, visibility_ms=0)
    consumer = world.consumer(topic)
    world.publish(topic, *[b"x"] * 50)
    first = world.dispatch()
    assert consumer.in_flight == 50
    world.publish(topic, *[b"y"] * 100)
    world.engine.advance(world.now_ms)
    assert [world.ack(each) for each in first] == [0] * 50
    assert consumer.in_flight == 0
    assert len(world.dispatch()) == 10


def test_a_topic_without_limits_keeps_everything() -> None:
    world = World()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    world.publish(topic, *[b"x"] * 500)
    world.drain(topic)
    world.advance(HOUR)
    assert len(offsets(world, topic)) == 500


# --- until acknowledged ---


@pytest.mark.parametrize("checkpointed", [False, True])
def test_until_acked_waits_for_every_subscription(checkpointed: bool) -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True})
    for name in ("a", "b"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    for number in range(100):
        world.publish(topic, b"%d" % number)
    if checkpointed:
        world.checkpoint()
    a, b = (world.consumer(topic, name) for name in ("a", "b"))
    for each in world.pull(a, 60):
        world.ack(each)
    assert topic.partitions[0].log.start_offset == 0
    for each in world.pull(b, 40):
        world.ack(each)
    assert topic.partitions[0].log.start_offset == 40
    world.engine.subscriptions.delete(b.subscription)
    assert topic.partitions[0].log.start_offset == 60
    if checkpointed:
        world.checkpoint()
    assert values(world.reopen().drain(world.find(), "a")) == [b"%d" % n for n in range(60, 100)]


def test_a_checkpoint_leaves_out_what_is_settled_in_the_middle() -> None:
    world = World()
    topic = world.topic(retention={"until_acked": True})
    consumer = world.consumer(topic)
    world.publish(topic, *[bytes(100)] * 200)
    got = world.pull(consumer, 200)
    for each in got[1:]:
        world.ack(each)
    world.checkpoint()
    segments = topic.partitions[0].log.segments
    assert sum(each.records for each in segments) <= 1
    world.reopen().advance(MINUTE)  # what was in flight keeps its deadline
    assert [each.offset for each in world.drain(world.find())] == [0]


# --- compaction ---

COMPACTED = {"compaction": {"enabled": True, "lag_ms": 0}}


def envelopes(key: bytes) -> dict[str, dict[str, Any]]:
    """The same key as each protocol says it."""
    text = key.decode()
    amqp_text = encode_properties(Properties(headers={"other": [1, {}], "id": text}))
    amqp_number = encode_properties(Properties(content_type="a/b", headers={"id": int(text)}))
    mqtt = encode_mqtt(MqttProperties(user_properties=(("other", "1"), ("id", text))), Kind.PUBLISH)
    return {
        "key": {"key": key},
        "native": {"envelope": encode_headers({"x": b"", "id": key})},
        "amqp": {"envelope": b"\x01e\x02rk" + amqp_text, "envelope_format": AMQP},
        "amqp number": {"envelope": b"\0\0" + amqp_number, "envelope_format": AMQP},
        "mqtt": {"envelope": b"\x01\0\x03a/b" + mqtt, "envelope_format": MQTT},
    }


def seal(world: World, topic: Topic) -> None:
    """Fill the last segment with records of no key, so that compaction looks into it."""
    world.checkpoint()
    world.publish(topic, bytes(SMALL.segment_bytes_max))
    world.checkpoint()


WRITTEN = ["key", "native", "amqp", "amqp number", "mqtt", "any"]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("flushed", [True, False])
def test_the_latest_of_each_key_stays(written: str, flushed: bool) -> None:
    """Whichever protocol wrote it, in whatever segment it is, or in none yet."""
    world, rng = World(), random.Random(7)
    rule = {"enabled": True, "lag_ms": 0, "header": "" if written == "key" else "id"}
    topic = world.topic(compaction=rule)
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    for number in range(400):
        key = b"%d" % rng.randrange(40)
        value = rng.choice([None, b""]) if rng.random() < 0.2 else b"v%d" % number
        how = rng.choice(WRITTEN[1:-1]) if written == "any" else written
        world.publish(topic, value, **envelopes(key)[how])
        latest[key] = (topic.partitions[0].log.next_offset - 1, value)
        if number % 30 == 0 and (flushed or number < 350):
            world.checkpoint()
        if number == 200:
            world.publish(topic, b"no key")
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    alive = {offset: value for offset, value in latest.values() if value} | {201: b"no key"}
    for _ in range(2):
        # Offsets never change.
        assert {each.offset: each.value for each in all_records(world, world.find())} == alive
        world.reopen()
    assert world.engine.store.recovery.notes == []


def test_compaction_asks_for_its_checkpoint_and_only_with_something_to_do() -> None:
    world = World(settings=StorageSettings())
    topic = world.topic(compaction={"enabled": True, "lag_ms": 0, "interval_ms": 3000})
    world.publish(topic, b"v", key=b"k")
    world.advance(3000)
    assert not world.engine.store.wants_checkpoint()
    world.publish(topic, b"w", key=b"k")
    world.advance(2900)
    assert not world.engine.store.wants_checkpoint()
    world.advance(100)
    assert world.engine.store.wants_checkpoint()
    world.checkpoint()
    assert offsets(world, topic) == [1]
    world.advance(HOUR)
    assert not world.engine.store.wants_checkpoint()


def test_a_tombstone_stays_while_what_it_removes_does() -> None:
    """Or the value would be the latest of its key again."""
    world = World()
    topic = world.topic(visibility_ms=0, **COMPACTED)
    reader = world.consumer(topic)
    world.publish(topic, b"value", key=b"k")
    (held,) = world.pull(reader, 1)
    world.publish(topic, None, key=b"k")
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    assert offsets(world, topic) == [0, 1]
    world.ack(held)
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    assert offsets(world, topic) == []
    assert world.reopen().find().depth == 0


def test_small_segments_become_one() -> None:
    """An open segment is sealed for each compaction: that must not make ever more files."""
    world = World()
    topic = world.topic(**COMPACTED)
    for number in range(300):
        world.publish(topic, b"v", key=b"%d" % (number % 200))
        world.publish(topic, b"w", key=b"%d" % (number % 200))
        list(world.engine.compacting.compact(topic, world.now_ms))
        world.checkpoint()
    kept = [(each.key, each.value) for each in all_records(world, topic)]
    assert len(kept) == len(set(kept)) == 200
    assert len(topic.partitions[0].log.segments) < 20
    world.reopen()
    assert [(each.key, each.value) for each in all_records(world, world.find())] == kept
    assert world.engine.store.recovery.notes == []


def test_a_compaction_is_done_in_slices() -> None:
    world = World()
    rule = {"enabled": True, "lag_ms": 0, "interval_ms": 3000}
    topic = world.topic(partitions=4, compaction=rule)
    for partition in range(4):
        for _ in range(3):
            world.publish(topic, *[bytes(100_000)] * 10, key=b"k", partition=partition)
    world.now_ms += 3000
    slices = 0
    world.engine.advance(world.now_ms)
    while world.engine.compacting.has_pending:
        assert world.engine.has_more
        assert world.engine.next_due_ms() <= world.now_ms
        world.engine.advance(world.now_ms)
        slices += 1
    assert slices > 8
    assert world.engine.compacting.records_compacted == 4 * 29


def test_younger_than_the_lag_stays() -> None:
    world = World()
    topic = world.topic(compaction={"enabled": True, "lag_ms": 5 * MINUTE})
    for number in range(100):
        world.publish(topic, b"%d" % number, key=b"k")
        if number == 49:
            world.advance(6 * MINUTE)
        if number % 25 == 24:
            world.checkpoint()
    seal(world, topic)
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    assert [each for each in offsets(world, topic) if each < 100] == list(range(50, 100))


@pytest.mark.parametrize("how", ["created", "altered", "restarted"])
def test_a_compaction_interval_shorter_than_a_sweep_is_kept(how: str) -> None:
    world = World()
    rule = {"enabled": True, "lag_ms": 0, "interval_ms": 3000}
    topic = world.topic(**({} if how == "altered" else {"compaction": rule}))
    if how == "altered":
        world.engine.topics.alter(topic, {"partitions": 1, "compaction": rule}, now_ms=world.now_ms)
    for _ in range(3):
        before = world.engine.compacting.records_compacted
        world.publish_each(topic, [b"v"] * 100, key=b"k")
        seal(world, topic)
        if how == "restarted":
            world = world.reopen()
            topic, before = world.find(), 0
        world.advance(2900)
        assert world.engine.compacting.records_compacted == before
        world.advance(100)
        assert world.engine.compacting.records_compacted > before + 50


def test_one_topic_is_compacted_at_its_interval_whatever_that_of_another() -> None:
    world = World()
    quick = world.topic("quick", compaction={"enabled": True, "lag_ms": 0, "interval_ms": 2000})
    rare = world.topic("rare", compaction={"enabled": True, "lag_ms": 0, "interval_ms": 20_000})
    for topic in (quick, rare):
        world.publish_each(topic, [b"v"] * 100, key=b"k")
        seal(world, topic)
    world.advance(2000)
    once = world.engine.compacting.records_compacted
    assert 50 < once <= 100
    world.advance(18_000)
    assert world.engine.compacting.records_compacted > once + 50


def test_compaction_runs_at_its_interval_in_the_background() -> None:
    world = World()
    topic = world.topic(**COMPACTED)
    world.publish_each(topic, [b"v"] * 100, key=b"k")
    seal(world, topic)
    world.advance(11 * MINUTE)
    marked = world.engine.compacting.records_compacted
    assert marked > 50
    world.advance(HOUR)
    assert world.engine.compacting.records_compacted == marked  # each counts once
    world.checkpoint()
    assert [each for each in offsets(world, topic) if each < 100] == [99]


def test_subscriptions_see_no_gaps_and_counters_are_right() -> None:
    world = World()
    topic = world.topic(visibility_ms=0, **COMPACTED)
    reader = world.consumer(topic, "in-flight")
    for name in ("fresh", "half"):
        world.engine.subscriptions.subscribe(topic, name, now_ms=world.now_ms)
    for number in range(200):
        world.publish(topic, b"%03d" % number, key=b"%d" % (number % 10))
    half = world.consumer(topic, "half")
    for each in world.pull(half, 100):
        world.ack(each)
    held = world.pull(reader, 20)
    seal(world, topic)
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    kept = offsets(world, topic)
    assert set(range(20)) <= set(kept)  # in flight somewhere: they stay this time
    assert len(kept) < 60
    depths = world.depths(topic)
    size = sum(len(record.value or b"") for record in all_records(world, topic))
    assert depths["fresh"][:2] == (len(kept), size)
    assert depths["in-flight"][:2] == (len(kept), size)
    assert depths["half"][0] == len([each for each in kept if each >= 100])
    assert [world.ack(each) for each in held] == [1] * 20
    world.reopen()
    again = world.depths(world.find())
    assert {name: found[:3] for name, found in again.items() if name != "in-flight"} == {
        name: found[:3] for name, found in depths.items() if name != "in-flight"
    }
    assert [each.offset for each in world.drain(world.find(), "fresh")] == kept
    assert b"199" in values(world.drain(world.find(), "half"))
    assert world.drain(world.find(), "in-flight")[0].offset >= 20
    assert world.find().depth == 0


def test_reading_from_an_offset_that_is_gone_goes_on_behind_it() -> None:
    world = World()
    topic = world.topic(**COMPACTED)
    world.publish_each(topic, [b"v"] * 200, key=b"k")
    seal(world, topic)
    list(world.engine.compacting.compact(topic, world.now_ms))
    world.checkpoint()
    kept = offsets(world, topic)
    assert kept[0] > 100
    for at in (0, 1, 50, kept[0]):
        run = world.engine.reading.read(topic, 0, at)[0]
        assert run.batch.offset_at(run.first) == kept[0]
    world.engine.subscriptions.subscribe(topic, "late", now_ms=world.now_ms, start=10)
    assert [each.offset for each in world.drain(topic, "late")] == kept


def test_a_crash_anywhere_in_the_rewriting_checkpoint_loses_nothing() -> None:
    def prepare(world: World) -> None:
        topic = world.topic(**COMPACTED)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        for number in range(150):
            world.publish(topic, b"%d" % number, key=b"%d" % (number % 7))
            if number % 30 == 29:
                world.checkpoint()

    def act(world: World) -> None:
        list(world.engine.compacting.compact(world.find(), world.now_ms))
        assert world.engine.compacting.records_compacted > 50
        world.engine.store.commit()
        world.checkpoint()
        world.publish(world.find(), b"150", key=b"0")
        world.checkpoint()

    count = 0
    for left in crashes(prepare, act):
        count += 1
        topic = left.find()
        latest = {record.key: record.value for record in all_records(left, topic)}
        expected = {b"%d" % (number % 7): b"%d" % number for number in range(150)}
        assert latest in (expected, expected | {b"0": b"150"})
        depth = topic.depth
        got = left.drain(topic)
        assert len(got) == depth
        assert {each.record.key: each.value for each in got} == latest
        left.checkpoint()
        left.reopen()
        assert left.find().depth == 0
    assert count > 50


# --- purge ---


def test_purge_leaves_what_is_in_flight() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(topic)
    world.publish(topic, *[b"x"] * 10)
    world.publish(topic, b"later", due_at_ms=world.now_ms + SECOND)
    first = world.pull(consumer, 3)
    assert world.engine.retention.purge(topic) == 8
    assert topic.depth == 3
    assert [world.ack(each) for each in first] == [1, 1, 1]
    world.advance(2 * SECOND)
    assert world.dispatch() == []
    assert world.reopen().find().depth == 0


# --- how often it is looked at ---


def test_what_a_partition_keeps_is_looked_at_every_so_many_messages() -> None:
    world = World(upkeep=RetentionSettings(check_messages=40))
    topic = world.topic(retention={"messages": 10})
    world.publish(topic, *[b"x"] * 5)
    world.engine.advance(world.now_ms)
    for number in range(6, 46):
        assert len(offsets(world, topic)) == number - 1
        world.publish(topic, b"x")
        world.engine.advance(world.now_ms)
    assert offsets(world, topic) == list(range(35, 45))


def test_and_in_the_background_at_the_interval_that_is_set() -> None:
    world = World(upkeep=RetentionSettings(check_interval_s=7.0))
    topic = world.topic(retention={"time_ms": MINUTE})
    world.publish(topic, b"x")
    world.engine.advance(world.now_ms)
    world.advance(62 * SECOND)
    assert offsets(world, topic) == [0]
    world.advance(SECOND)
    assert offsets(world, topic) == []


def test_an_operator_says_how_often_topics_may_be_compacted() -> None:
    upkeep = RetentionSettings(compaction_interval_min_s=60, first_compaction_s=90)
    world = World(upkeep=upkeep)
    quick = world.topic(
        "quick", compaction={"enabled": True, "lag_ms": 0, "interval_ms": 2 * SECOND}
    )
    rare = world.topic("rare", compaction={"enabled": True, "lag_ms": 0, "interval_ms": HOUR})
    for topic, due in ((quick, MINUTE), (rare, 30 * SECOND)):
        before = world.engine.compacting.records_compacted
        world.publish(quick if topic is quick else rare, b"v", key=b"k")
        world.publish(quick if topic is quick else rare, b"w", key=b"k")
        world.advance(due - 1)
        assert world.engine.compacting.records_compacted == before
        world.advance(1)
        assert world.engine.compacting.records_compacted == before + 1


def test_marks_of_transactions_are_no_messages() -> None:
    world = World()
    topic = world.topic(retention={"messages": 10})
    for number in range(60):
        transaction, _ = world.engine.transactions.begin(NS, f"t{number}", now_ms=world.now_ms)
        branch = world.engine.transactions.branch(transaction)
        world.engine.publishing.publish(
            topic,
            world.batch(b"%d" % number),
            now_ms=world.now_ms,
            origin=Origin(branch),
        )
        if number % 3:
            world.engine.transactions.commit(transaction, now_ms=world.now_ms)
        else:
            world.engine.transactions.abort(transaction, now_ms=world.now_ms)
    world.advance(5 * MINUTE)
    assert [each.value for each in all_records(world, topic)] == [
        b"%d" % number for number in range(45, 60) if number % 3
    ]
