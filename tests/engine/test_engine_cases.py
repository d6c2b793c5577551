"""Single cases of an engine that random histories seldom meet."""

from typing import Any

import pytest
from engine_model_world import HERE, QUEUE, SMALL

from braidmq.engine.engine import Engine
from braidmq.engine.policy import QUEUE_SETTINGS, TopicKind
from braidmq.engine.states import State
from braidmq.engine.topics import Credit, Delivery, Mode
from braidmq.record.batch import RecordBatch
from braidmq.testing.faulty_disk import FaultyDisk, LoseAll

NOW = 1_000_000


def open_engine() -> Engine:
    return Engine.open(FaultyDisk(), NOW, SMALL)


def reopen(engine: Engine, now_ms: int = NOW) -> Engine:
    engine.store.commit()
    disk = engine.store.disk
    assert isinstance(disk, FaultyDisk)
    return Engine.open(disk.crash(LoseAll()), now_ms, SMALL)


def plain(*values: bytes, **more: Any) -> RecordBatch:
    batch = RecordBatch()
    for value in values:
        batch.append(value, timestamp_ms=NOW, **more)
    return batch


def values_of(deliveries: list[Delivery]) -> list[bytes | None]:
    return [
        each.batch.record(index).value
        for each in deliveries
        for index in range(each.first_index, each.stop_index)
    ]


def test_a_queue_and_its_dead_letters_get_the_same_batch() -> None:
    engine = open_engine()
    dead = engine.topics.create(HERE, "q.dlq", QUEUE_SETTINGS, now_ms=NOW)
    queue = engine.topics.create(HERE, "q", QUEUE | {"max_messages": 1}, now_ms=NOW)
    subs = [engine.subscriptions.subscribe(topic, "s", now_ms=NOW) for topic in (queue, dead)]
    engine.publishing.fan_out([queue, dead], plain(b"1", b"2"), now_ms=NOW)
    assert [sub.ready for sub in subs] == [1, 3]
    engine.consumers.attach(subs[1], now_ms=NOW)
    assert values_of(engine.dispatching.dispatch(NOW)) == [b"1", b"2", b"1"]


def test_a_timer_of_an_earlier_delivery_does_not_end_one_without_a_timeout() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE, now_ms=NOW)
    sub = engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    engine.publishing.publish(queue, plain(b"1"), now_ms=NOW)
    timed = engine.consumers.attach(sub, now_ms=NOW, visibility_ms=100)
    engine.dispatching.dispatch(NOW)
    engine.consumers.detach(timed, now_ms=NOW)
    patient = engine.consumers.attach(sub, now_ms=NOW, visibility_ms=0)
    assert values_of(engine.dispatching.dispatch(NOW)) == [b"1"]
    engine.advance(NOW + 1000)
    assert patient.in_flight == 1


def test_lost_transient_messages_do_not_hold_up_the_floor() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE, now_ms=NOW)
    engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    engine.publishing.publish(queue, plain(b"1", b"2"), now_ms=NOW, durable=False)
    engine.publishing.publish(queue, plain(b"3"), now_ms=NOW)
    engine = reopen(engine)
    sub = engine.state.subscription(engine.state.topic(HERE, "q"), "s")
    engine.consumers.attach(sub, now_ms=NOW, auto_ack=True)
    assert values_of(engine.dispatching.dispatch(NOW)) == [b"3"]
    assert sub.views[0].state.settled.floor == 3
    assert sub.views[0].log.start_offset == 3


@pytest.mark.parametrize(
    ("kind", "kept"), [("topic", 3), ("stream", 3), ("quorum", 3), ("classic", 1), ("queue", 1)]
)
def test_logs_and_quorum_queues_keep_what_they_take(kind: TopicKind, kept: int) -> None:
    engine = open_engine()
    topic = engine.topics.create(HERE, "t", {"partitions": 1}, now_ms=NOW, kind=kind)
    other = engine.topics.create(HERE, "other", QUEUE, now_ms=NOW)
    for each in (topic, other):
        engine.subscriptions.subscribe(each, "s", now_ms=NOW)
    alone = engine.publishing.publish(topic, plain(b"alone"), now_ms=NOW, durable=False)
    assert (alone.lsn is not None) == (kept == 3), "a confirm says that it is on disk"
    engine.publishing.fan_out([topic, other], plain(b"many"), now_ms=NOW, durable=False)
    engine.publishing.publish(topic, plain(b"durable"), now_ms=NOW)
    engine = reopen(engine)
    for name, count in (("t", kept), ("other", 0)):
        sub = engine.state.subscription(engine.state.topic(HERE, name), "s")
        engine.consumers.attach(sub, now_ms=NOW, auto_ack=True)
        values = [b"alone", b"many", b"durable"][-count:] if count else []
        assert values_of(engine.dispatching.dispatch(NOW)) == values


def test_a_new_message_is_not_taken_for_a_lost_one_that_expired() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE, now_ms=NOW)
    engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    batch = plain(b"old", expires_at_ms=NOW + 100)
    engine.publishing.publish(queue, batch, now_ms=NOW, durable=False)
    engine.advance(NOW + 200)
    engine = reopen(engine, NOW + 300)
    engine.publishing.publish(engine.state.topic(HERE, "q"), plain(b"new"), now_ms=NOW + 300)
    engine = reopen(engine, NOW + 400)
    sub = engine.state.subscription(engine.state.topic(HERE, "q"), "s")
    engine.consumers.attach(sub, now_ms=NOW + 400)
    assert values_of(engine.dispatching.dispatch(NOW + 400)) == [b"new"]


def test_a_message_that_is_requeued_for_ever() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE, now_ms=NOW)
    sub = engine.subscriptions.subscribe(queue, "s", now_ms=NOW, durable=False)
    batch = plain(b"poison")
    engine.publishing.publish(queue, batch, now_ms=NOW)
    view = sub.views[0]
    view.state.restore(queue.partitions[0].log.read(0)[0].batch, 0, 1, 0xFFFE, State.READY, 0)
    engine.consumers.attach(sub, now_ms=NOW)
    for _ in range(3):
        (delivery,) = engine.dispatching.dispatch(NOW)
        assert delivery.attempts == 0xFFFF
        assert engine.receipts.of(delivery)[0].attempts == 0xFFFF
        consumer, _, _ = engine.receipts.redeem(str(engine.receipts.of(delivery)[0]), HERE)
        assert engine.settling.requeue(consumer, view, 0, 1, now_ms=NOW) == 1


def test_rewinding_a_queue_finds_only_what_is_still_stored() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE, now_ms=NOW)
    sub = engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    consumer = engine.consumers.attach(sub, now_ms=NOW)
    engine.publishing.publish(queue, plain(b"0", b"1", b"2"), now_ms=NOW)
    engine.dispatching.dispatch(NOW)
    engine.settling.ack(consumer, sub.views[0], 1, 3)
    engine.store.checkpoint()
    engine.offsets.rewind(sub, "earliest", now_ms=NOW)
    assert (sub.depth, sub.depth_bytes) == (1, 1)
    assert values_of(engine.dispatching.dispatch(NOW)) == [b"0"]


def test_room_in_a_shared_credit_wakes_every_subscription() -> None:
    engine = open_engine()
    credit = Credit(1)
    consumers = []
    for name in ("p", "q"):
        topic = engine.topics.create(HERE, name, QUEUE, now_ms=NOW)
        sub = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
        consumers.append(engine.consumers.attach(sub, now_ms=NOW, credits=[credit]))
        engine.publishing.publish(topic, plain(name.encode()), now_ms=NOW)
    (first,) = engine.dispatching.dispatch(NOW)
    assert engine.dispatching.dispatch(NOW) == []
    engine.settling.ack(first.consumer, first.view, 0, 1)
    (second,) = engine.dispatching.dispatch(NOW)
    assert {first.consumer, second.consumer} == set(consumers)


def test_only_the_subscription_that_lags_loses_its_head() -> None:
    engine = open_engine()
    queue = engine.topics.create(HERE, "q", QUEUE | {"max_messages": 2}, now_ms=NOW)
    quick, slow = (
        engine.subscriptions.subscribe(queue, name, now_ms=NOW) for name in ("quick", "slow")
    )
    engine.publishing.publish(queue, plain(b"1", b"2"), now_ms=NOW)
    engine.consumers.attach(quick, now_ms=NOW, auto_ack=True)
    engine.dispatching.dispatch(NOW)
    engine.publishing.publish(queue, plain(b"3"), now_ms=NOW)
    assert (quick.ready, slow.ready) == (1, 2)


def test_key_order_holds_over_a_restart() -> None:
    engine = open_engine()
    settings_of = {"partitions": 1, "retry": {"base_ms": 1000}, "ordering": "none"}
    topic = engine.topics.create(HERE, "t", settings_of, now_ms=NOW)
    sub = engine.subscriptions.subscribe(topic, "s", now_ms=NOW, mode=Mode.KEY_ORDERED)
    consumer = engine.consumers.attach(sub, now_ms=NOW, credits=[Credit(1)])
    engine.publishing.publish(topic, plain(b"1", b"2", key=b"k"), now_ms=NOW)
    engine.dispatching.dispatch(NOW)
    assert engine.settling.nack(consumer, sub.views[0], 0, 1, now_ms=NOW) == 1
    engine = reopen(engine)
    sub = engine.state.subscription(engine.state.topic(HERE, "t"), "s")
    engine.consumers.attach(sub, now_ms=NOW)
    assert values_of(engine.dispatching.dispatch(NOW)) == []
    engine.advance(NOW + 1000)
    assert values_of(engine.dispatching.dispatch(NOW + 1000)) == [b"1", b"2"]


def test_a_delayed_message_is_found_again_by_a_rewind_after_a_restart() -> None:
    engine = open_engine()
    topic = engine.topics.create(HERE, "t", {"partitions": 1}, now_ms=NOW)
    sub = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    engine.publishing.publish(topic, plain(b"later", due_at_ms=NOW + 1000), now_ms=NOW)
    engine.offsets.rewind(sub, "latest", now_ms=NOW)
    engine = reopen(engine)
    sub = engine.state.subscription(engine.state.topic(HERE, "t"), "s")
    engine.offsets.rewind(sub, "earliest", now_ms=NOW)
    engine.consumers.attach(sub, now_ms=NOW)
    engine.advance(NOW + 1000)
    assert values_of(engine.dispatching.dispatch(NOW + 1000)) == [b"later"]


def test_only_messages_that_are_too_old_are_given_up() -> None:
    engine = open_engine()
    rule_of = {"partitions": 1, "retry": {"total_ms": 500, "attempts": 0, "base_ms": 100}}
    topic = engine.topics.create(HERE, "t", rule_of, now_ms=NOW)
    sub = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    consumer = engine.consumers.attach(sub, now_ms=NOW, visibility_ms=0)
    batch = plain(b"old")
    batch.append(b"young", timestamp_ms=NOW + 400)
    engine.publishing.publish(topic, batch, now_ms=NOW + 400)
    engine.dispatching.dispatch(NOW + 400)
    assert engine.settling.nack(consumer, sub.views[0], 0, 2, now_ms=NOW + 600) == 2
    assert sub.views[0].state.in_state(State.WAITING) == [(1, 2)]
    assert sub.dead_lettered == 1


@pytest.mark.parametrize("rule", ["compaction", "retention"])
def test_nobody_waits_behind_a_retry_that_is_gone(rule: str) -> None:
    engine = open_engine()
    limit = {
        "compaction": {"compaction": {"enabled": True, "lag_ms": 0}},
        "retention": {"retention": {"messages": 2}},
    }[rule]
    settings_of = {"partitions": 1, "retry": {"base_ms": 100_000}, **limit}
    topic = engine.topics.create(HERE, "t", settings_of, now_ms=NOW)
    sub = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    consumer = engine.consumers.attach(sub, now_ms=NOW)
    engine.publishing.publish(topic, plain(b"1", key=b"k"), now_ms=NOW)
    engine.dispatching.dispatch(NOW)
    assert engine.settling.nack(consumer, sub.views[0], 0, 1, now_ms=NOW) == 1
    engine.publishing.publish(topic, plain(b"2", b"3", key=b"k"), now_ms=NOW)
    assert values_of(engine.dispatching.dispatch(NOW)) == []
    if rule == "compaction":
        for _ in engine.compacting.compact(topic, NOW):
            pass
    else:
        engine.retention.enforce(topic, NOW)
    left = [b"3"] if rule == "compaction" else [b"2", b"3"]
    assert values_of(engine.dispatching.dispatch(NOW)) == left
