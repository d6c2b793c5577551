"""Producers whose topic gets more or fewer partitions: each message is written once, however often
it is sent, and in order."""

import itertools
from collections import Counter
from typing import Any

import pytest
from engine_worlds import NS, SMALL, World, all_records
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braidmq.engine.engine import Engine
from braidmq.engine.errors import PartitionClosed, PartitionRequired
from braidmq.engine.transactions.errors import OutOfOrderSequence, ProducerFenced
from braidmq.engine.transactions.ledger import Producer
from braidmq.engine.transactions.publishing import Origin
from braidmq.engine.transactions.sequences import LAYOUTS_MAX, WINDOW
from braidmq.model.errors import BraidError
from braidmq.record.batch import RecordBatch
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, KeepAll, LoseAll, Random

NOW = 1_000_000
KEYS = [None, b"a", b"b", b"c", b"d", b"e"]
Message = tuple[int, bytes | None]
"""Number and key."""


def batch_of(messages: list[Message]) -> RecordBatch:
    batch = RecordBatch()
    for number, key in messages:
        batch.append(b"%d" % number, key=key, timestamp_ms=NOW)
    return batch


class ProducerMachine(RuleBasedStateMachine):
    """A producer that sends its batches in order, and again, in order, what is not confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.engine = Engine.open(self.disk, NOW, SMALL)
        made = {"partitions": 2}
        self.topic = self.engine.topics.create(NS, "t", made, now_ms=NOW)
        self.producer, _ = self.engine.transactions.open_producer(NS, "p", now_ms=NOW)
        self.engine.store.commit()
        self.next = 0
        self.sent: list[list[Message]] = []
        """All batches, in order."""
        self.confirmed = 0
        """So many of them are on disk."""

    def send(self, batch: list[Message]) -> None:
        self.engine.publishing.publish(
            self.topic, batch_of(batch), NOW, origin=Origin(self.producer, batch[0][0])
        )

    @precondition(lambda self: len(self.sent) - self.confirmed < WINDOW)
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def publish(self, keys: list[bytes | None]) -> None:
        batch = list(zip(range(self.next, self.next + len(keys)), keys, strict=True))
        self.next += len(keys)
        self.sent.append(batch)
        self.send(batch)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(1, WINDOW))
    def send_again(self, back: int) -> None:
        for batch in self.sent[-back:]:
            self.send(batch)

    @precondition(lambda self: self.sent)
    @rule()
    def leave_a_gap(self) -> None:
        before = self.engine.store.journal.last_lsn
        with pytest.raises(OutOfOrderSequence):
            self.send([(self.next + 1, b"a")])
        assert self.engine.store.journal.last_lsn == before

    @rule(count=st.integers(1, 7))
    def resize(self, count: int) -> None:
        self.alter(partitions=count)

    @rule(strategy=st.sampled_from(["hash", "round-robin"]))
    def deal(self, strategy: str) -> None:
        self.alter(partition_strategy=strategy)

    def alter(self, **changes: Any) -> None:
        self.engine.topics.alter(self.topic, {**self.topic.settings, **changes}, now_ms=NOW)

    @rule()
    def confirm(self) -> None:
        self.engine.store.commit()
        self.confirmed = len(self.sent)

    @rule()
    def checkpoint(self) -> None:
        self.engine.store.checkpoint()
        self.confirmed = len(self.sent)

    @rule(
        choice=st.one_of(
            st.just(LoseAll()), st.just(KeepAll()), st.builds(Random, st.integers(0, 1 << 32))
        ),
        count=st.sampled_from([None, 1, 2, 3, 4, 6]),
    )
    def crash(self, choice: Any, count: int | None) -> None:
        """A batch may be written in part, and there may be a resize before it comes again."""
        self.disk = self.disk.crash(choice)
        self.engine = Engine.open(self.disk, NOW, SMALL)
        self.topic = self.engine.state.topic(NS, "t")
        found = self.engine.transactions.producer(
            NS, self.producer.id, self.producer.epoch, now_ms=NOW
        )
        assert isinstance(found, Producer)
        self.producer = found
        if count is not None:
            self.resize(count)
        for batch in self.sent[self.confirmed :]:
            self.send(batch)

    @invariant()
    def each_is_written_once_and_in_order(self) -> None:
        world = World.__new__(World)
        world.engine = self.engine
        written: Counter[int] = Counter()
        for number in range(len(self.topic.partitions)):
            values = [int(each.value or b"") for each in all_records(world, self.topic, number)]
            assert values == sorted(values), "order within a partition"
            written.update(values)
        assert written == Counter(number for batch in self.sent for number, _ in batch)


ProducerMachine.TestCase.settings = settings(
    settings.get_profile("models"),
    deadline=None,
    max_examples=150,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
TestProducer = ProducerMachine.TestCase


# --- single cases ---


def publish(
    world: World, author: Producer, first: int, *keys: bytes | None, **more: Any
) -> tuple[tuple[int, int, int], ...]:
    batch = batch_of(list(zip(itertools.count(first), keys)))
    done = world.engine.publishing.publish(
        world.find(), batch, world.now_ms, origin=Origin(author, first), **more
    )
    return tuple(done.placed)


def resize(world: World, count: int, **more: Any) -> None:
    settings = {**world.find().settings, "partitions": count, **more}
    world.engine.topics.alter(world.find(), settings, now_ms=world.now_ms)


def written(world: World) -> list[bytes | None]:
    topic = world.find()
    return sorted(
        each.value or b""
        for number in range(len(topic.partitions))
        for each in all_records(world, topic, number)
    )


def test_a_batch_that_comes_again_is_answered_with_where_it_went() -> None:
    world = World()
    world.topic(partitions=2)
    producer, _ = world.engine.transactions.open_producer(NS, now_ms=world.now_ms)
    keys = [b"%d" % each for each in range(8)]
    first = publish(world, producer, 0, *keys)
    resize(world, 5)
    assert sorted(publish(world, producer, 0, *keys)) == sorted(first)
    assert len(written(world)) == 8


def test_what_a_crash_cut_off_is_written_when_it_comes_again_after_a_resize() -> None:
    """One partition has its part of a batch, the other has not: its messages are no duplicates."""
    disk = FaultyDisk()
    world = World(disk)
    world.topic(partitions=2)
    producer, _ = world.engine.transactions.open_producer(NS, "p", now_ms=world.now_ms)
    keys = [b"%d" % each for each in range(8)]
    world.engine.store.commit()
    publish(world, producer, 0, *keys)
    cuts: list[FaultyDisk] = []

    def crash_everywhere() -> None:
        cuts.extend(disk.crash(CutAt(cut)) for cut in range(0, disk.unsynced_bytes + 1, 8))

    disk.slow_sync = crash_everywhere
    world.engine.store.commit()
    halves = [left for left in map(World, cuts) if 0 < len(written(left)) < len(keys)]
    assert halves
    for left in halves:
        resize(left, 3)
        for _ in range(2):
            publish(left, left.engine.transactions.producer(NS, 1, 0, now_ms=NOW), 0, *keys)
            assert written(left) == [b"%d" % each for each in range(8)]


def test_marks_of_a_partition_that_was_closed_still_count() -> None:
    world = World()
    topic = world.topic(partitions=3, retention={"until_acked": True})
    producer, _ = world.engine.transactions.open_producer(NS, now_ms=world.now_ms)
    keys = [b"%d" % each for each in range(12)]
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    publish(world, producer, 0, *keys)
    resize(world, 1)
    assert len(world.drain(topic)) == 12
    world.advance(6 * 60 * 1000)
    assert len(topic.partitions) == 1
    end = topic.partitions[0].log.next_offset
    publish(world, producer, 0, *keys)
    assert topic.partitions[0].log.next_offset == end
    world.reopen()
    publish(world, world.engine.transactions.producer(NS, 1, 0, now_ms=NOW), 0, *keys)
    assert world.find().partitions[0].log.next_offset == end
    with pytest.raises(OutOfOrderSequence):
        publish(world, world.engine.transactions.producer(NS, 1, 0, now_ms=NOW), 13, b"k")


def test_after_many_resizes_numbers_still_count() -> None:
    world = World()
    world.topic(partitions=2)
    producer, _ = world.engine.transactions.open_producer(NS, now_ms=world.now_ms)
    keys = [b"%d" % each for each in range(8)]
    publish(world, producer, 0, *keys)
    for number in range(3 * LAYOUTS_MAX):
        resize(world, 3 + number % 5)
        publish(world, producer, 8 + number, b"x")
    for _ in range(2):
        publish(world, producer, 0, *keys)
        publish(world, producer, 8, b"x")
    assert len(written(world)) == 8 + 3 * LAYOUTS_MAX


def test_an_older_epoch_is_fenced_after_a_resize() -> None:
    world = World()
    world.topic(partitions=1)
    old, _ = world.engine.transactions.open_producer(NS, "p", now_ms=world.now_ms)
    publish(world, old, 0, b"a")
    world.engine.transactions.open_producer(NS, "p", now_ms=world.now_ms)
    resize(world, 2)
    with pytest.raises(ProducerFenced):
        publish(world, old, 1, b"a")


def test_a_batch_to_a_partition_by_name_comes_again_after_that_was_taken_away() -> None:
    world = World()
    world.topic(partitions=2)
    producer, _ = world.engine.transactions.open_producer(NS, now_ms=world.now_ms)
    first = publish(world, producer, 0, b"a", b"b", partition=1)
    resize(world, 1)
    assert publish(world, producer, 0, b"a", b"b", partition=1) == first
    with pytest.raises(PartitionClosed):
        publish(world, producer, 2, b"c", partition=1)
    assert len(written(world)) == 2


# --- strategies ---


def test_round_robin_deals_out_whatever_the_key() -> None:
    world = World()
    topic = world.topic(partitions=4, partition_strategy="round-robin")
    world.publish(topic, *[b"v"] * 8, key=b"same")
    assert [each.log.next_offset for each in topic.partitions] == [2, 2, 2, 2]


def test_explicit_refuses_who_names_no_partition() -> None:
    world = World()
    topic = world.topic(partitions=2, partition_strategy="explicit")
    before = world.lsn()
    other = world.topic("other")
    refused: list[Any] = [
        lambda: world.publish(topic, b"v", key=b"k"),
        lambda: world.engine.publishing.fan_out(
            [other, topic], world.batch(b"v"), now_ms=world.now_ms
        ),
    ]
    before = world.lsn()
    for publish_it in refused:
        with pytest.raises(PartitionRequired) as refusal:
            publish_it()
        assert isinstance(refusal.value, BraidError)
        assert refusal.value.remedy
    assert world.lsn() == before
    assert world.publish(topic, b"v", partition=1) == 1
