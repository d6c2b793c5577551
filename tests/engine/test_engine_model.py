"""Random histories of an engine against the plain model of it: counters, order, attempts, dead
letters, receipts, crashes."""

import itertools
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from braidmq.engine import receipts
from braidmq.engine.engine import Engine
from braidmq.engine.envelope import decode_headers
from braidmq.engine.errors import NotDelayed, StaleReceipt, TopicFull
from braidmq.engine.policy import QUEUE_SETTINGS, merge
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, Delivery, Mode, PartitionView
from braidmq.model.errors import NotFound
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.settings import StorageSettings
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll, Random
from model import FOREVER, Cell, Message, Model, Sub, Topic, View

SMALL = StorageSettings(
    segment_bytes_max=4096,
    index_interval_bytes=256,
    journal_file_bytes=16384,
    tail_bytes_max=2048,
)
"""Journals, segments and memory fill up after a handful of batches."""

HERE = "n"
DEAD = {"dead_letter": {"topic": "{topic}.dlq", "expired": True}}
QUEUE = merge(QUEUE_SETTINGS, DEAD)
RETRY = {"retry": {"base_ms": 100, "attempts": 3}, "visibility_ms": 500}
PROFILES: list[dict[str, Any]] = [
    QUEUE,
    merge(QUEUE, {"retry": {"base_ms": 50, "attempts": 2}}),
    merge(QUEUE, {"priority": "lanes"}),
    merge(QUEUE, {"priority": "strict", "priority_levels": 4}),
    {"partitions": 2, "ordering": "none", **RETRY, **DEAD},
    {"partitions": 2, "ordering": "partition", **RETRY},
    {"partitions": 1, "ordering": "strict", **RETRY, **DEAD},
]
CHANGES: list[dict[str, Any]] = [
    {},
    {"ttl_ms": 200},
    {"ttl_ms": 1000},
    {"max_messages": 3, "overflow": "drop-head"},
    {"max_messages": 6, "overflow": "reject"},
    {"max_messages": 4, "overflow": "dead-letter"},
    {"max_bytes": 100, "overflow": "drop-head"},
    {"max_bytes": 100, "overflow": "reject"},
    {"retry": {"attempts": 1}},
    {"retry": {"attempts": 0, "base_ms": 0}},
    {"retry": {"total_ms": 300, "attempts": 0}},
    {"dead_letter": {"topic": None}},
    {"dead_letter": {"topic": "{topic}.dlq", "expired": False}},
    {"priority": "lanes"},
    {"priority": "strict", "priority_levels": 3},
    {"priority": "none"},
    {"retention": {"until_acked": False}},
]
MODES = [Mode.SHARED, Mode.SHARED, Mode.SHARED, Mode.SINGLE_ACTIVE, Mode.KEY_ORDERED]

picks = st.integers(0, 1 << 16)
rarely = st.sampled_from([False, False, False, True])
"""For what takes away much of what was built up."""
delays = st.sampled_from([0, 0, 0, 0, 100, 300, 2000])
crashes = st.one_of(
    st.just(LoseAll()), st.just(KeepAll()), st.builds(Random, st.integers(0, 1 << 32))
)
messages = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, None, b"a", b"b", b"c"]),
        "priority": st.sampled_from([0, 0, 1, 3, 5, 9]),
        "delay": delays,
        "ttl": st.sampled_from([0, 0, 0, 0, 200, 1000]),
        "padding": st.sampled_from([0, 10, 200]),
    }
)
batches = st.lists(messages, min_size=1, max_size=5)


def read_all(engine: Engine, topic: Any, number: int, start: int = 0) -> list[Record]:
    found: list[Record] = []
    at, end = start, topic.partitions[number].log.next_offset
    while at < end and (runs := engine.reading.read(topic, number, at)):
        found += [run.batch.record(i) for run in runs for i in range(run.first, run.stop)]
        at = found[-1].offset + 1
    return found


class EngineWorld:
    """An engine and its model, changed together."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.now_ms = 1_000_000
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.model = Model()
        self.consumers: list[Consumer] = []
        """Those that may answer, cancelled ones among them."""
        self.credits: list[Credit] = []
        self.receipts: list[tuple[str, Consumer, View, Cell, object]] = []
        self.numbers = itertools.count()
        self.settings: dict[str, dict[str, Any]] = {}
        self.dead_read: dict[str, int] = {}
        self.dead_seen: Counter[tuple[object, ...]] = Counter()

    # --- topics and subscriptions ---

    def create(self, name: str, profile: dict[str, Any], modes: list[Mode]) -> None:
        made = self.engine.topics.create(HERE, name, profile, now_ms=self.now_ms)
        parts: list[dict[int, Message]] = [{} for _ in made.partitions]
        self.model.topics[name] = Topic(name, made.policy, parts)
        self.settings[name] = profile
        for index, mode in enumerate(modes):
            self.subscribe(name, f"s{index}", mode)

    def subscribe(self, topic: str, name: str, mode: Mode) -> None:
        theirs = self.engine.state.topic(HERE, topic)
        self.engine.subscriptions.subscribe(theirs, name, now_ms=self.now_ms, mode=mode)
        ours = self.model.topics[topic]
        sub = ours.subs[name] = Sub(ours, name, mode)
        for number, partition in enumerate(theirs.partitions):
            sub.views.append(View(sub, number))
            self.start(sub, number, partition.log.start_offset)

    def attach_all(self) -> None:
        """Somebody for each subscription that has nobody."""
        for topic in self.model.topics:
            for theirs in self.engine.state.topic(HERE, topic).subscriptions.values():
                if not theirs.consumers:
                    if len(self.consumers) % 2 == 0:
                        self.credits.append(Credit(6))  # every second one shares it
                    consumer = self.engine.consumers.attach(
                        theirs, now_ms=self.now_ms, credits=self.credits[-1:] or [Credit(6)]
                    )
                    self.consumers.append(consumer)

    def start(self, sub: Sub, number: int, target: int) -> None:
        topic = self.engine.state.topic(HERE, sub.topic.name)
        present = {record.offset for record in read_all(self.engine, topic, number)}
        self.model.start(sub, number, target, present, self.now_ms)

    def theirs(self, view: View) -> PartitionView:
        topic = self.engine.state.topic(HERE, view.sub.topic.name)
        return topic.subscriptions[view.sub.name].views[view.number]

    def ours(self, view: PartitionView) -> View:
        topic = self.model.topics[view.partition.topic.name]
        return topic.subs[view.subscription.name].views[view.partition.number]

    def policies_changed(self, altered: Topic | None = None) -> None:
        for topic in self.model.topics.values():
            old, topic.policy = topic.policy, self.engine.state.topic(HERE, topic.name).policy
            if topic is altered or topic.policy != old:
                self.model.drop_overflow(topic)

    # --- publishing ---

    def batch(self, wanted: list[dict[str, Any]]) -> RecordBatch:
        batch = RecordBatch()
        for each in wanted:
            batch.append(
                b"m%d." % next(self.numbers) + b"x" * each["padding"],
                key=each["key"],
                priority=each["priority"],
                timestamp_ms=self.now_ms,
                due_at_ms=self.now_ms + each["delay"] if each["delay"] else 0,
                expires_at_ms=self.now_ms + each["ttl"] if each["ttl"] else 0,
            )
        return batch

    def publish(self, names: list[str], wanted: list[dict[str, Any]], *, durable: bool) -> None:
        batch = self.batch(wanted)
        records = batch.records()
        sizes = [len(record.value or b"") for record in records]
        topics = [self.model.topics[name] for name in names]
        rooms = [topic.room(sizes) for topic in topics]
        before = [self._ends(name) for name in names]
        targets = [self.engine.state.topic(HERE, name) for name in names]
        if len(targets) == 1 and not rooms[0]:
            with pytest.raises(TopicFull):
                self.engine.publishing.publish(
                    targets[0], batch, now_ms=self.now_ms, durable=durable
                )
        else:
            published = self.engine.publishing.fan_out(
                targets, batch, now_ms=self.now_ms, durable=durable
            )
            assert published.accepted == min(rooms)
        for topic, room, ends in zip(topics, rooms, before, strict=True):
            if topic.policy.overflow == "dead-letter":
                for record in records[room:]:
                    self.model.refuse(topic, record.value or b"")
            self._arrived(topic, records[:room], ends, durable=durable)
        for topic in topics:
            self.model.drop_overflow(topic)

    def _ends(self, name: str) -> list[int]:
        return [each.log.next_offset for each in self.engine.state.topic(HERE, name).partitions]

    def _arrived(
        self, topic: Topic, records: list[Record], ends: list[int], *, durable: bool
    ) -> None:
        theirs = self.engine.state.topic(HERE, topic.name)
        order = {record.value: at for at, record in enumerate(records)}
        for number, end in enumerate(ends):
            if len(ends) == 1:
                # A queue may have dropped some of them from its head already.
                found = [r._replace(offset=end + at) for at, r in enumerate(records)]
            else:
                found = read_all(self.engine, theirs, number, end)
            places = [order.pop(record.value) for record in found]
            assert places == sorted(places), "order within a partition"
            arrived = [
                Message(
                    record.offset,
                    record.value or b"",
                    record.key,
                    record.priority,
                    record.timestamp_ms,
                    record.due_at_ms,
                    record.expires_at_ms,
                    durable,
                )
                for record in found
            ]
            self.model.published(topic, number, arrived, self.now_ms)
        assert not order, "records that are in no partition"

    # --- delivering ---

    def delivered(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            consumer, view = delivery.consumer, self.ours(delivery.view)
            papers = [] if consumer.auto_ack else receipts.receipts_of(delivery)
            until = self.now_ms + consumer.visibility_ms if consumer.visibility_ms else 0
            for at, index in enumerate(range(delivery.first_index, delivery.stop_index)):
                record = delivery.batch.record(index)
                cell = self.model.deliver(
                    view, record.offset, consumer.id, delivery.attempts, until, self.now_ms
                )
                assert record.value == cell.message.value
                if consumer.auto_ack:
                    self.model.settle(view, [cell])
                else:
                    paper = (str(papers[at]), consumer, view, cell, cell.delivery)
                    self.receipts.append(paper)

    def dispatch(self) -> list[Delivery]:
        deliveries = self.engine.dispatching.dispatch(self.now_ms)
        self.delivered(deliveries)
        self.observe()
        self.check_nothing_left()
        return deliveries

    def check_nothing_left(self) -> None:
        """Whoever has room has been given what there is."""
        for topic in self.model.topics.values():
            for sub in topic.subs.values():
                theirs = self.engine.state.topic(HERE, topic.name).subscriptions[sub.name]
                able = [each for each in theirs.consumers if each.room > 0]
                if sub.mode is Mode.SINGLE_ACTIVE:
                    able = [each for each in able if each is theirs.active]
                if not able or sub.mode is Mode.KEY_ORDERED:
                    continue
                for view in sub.views:
                    waits = view.among(0, FOREVER, State.WAITING)
                    if topic.policy.ordering == "none" or not waits:
                        left = view.among(0, FOREVER, State.READY)
                        assert not left, f"{left} was not handed out"

    # --- time ---

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for _ in range(5):
            self.engine.advance(self.now_ms)
            due = self.engine.next_due_ms()
            if due is None or due > self.now_ms:
                break
        else:
            raise AssertionError("time does not come to rest")
        self.model.advance(self.now_ms)
        self.observe()
        for view in self.model.views():
            for cell in view.cells.values():
                overdue = cell.message.expired(view.sub.topic.policy, self.now_ms)
                assert not overdue or cell.attempts or cell.lazy, f"{cell} should have expired"

    def observe(self) -> None:
        """Expired messages leave at some time after; tell the model which have."""
        for view in list(self.model.views()):
            policy = view.sub.topic.policy
            stale = [c for c in view.cells.values() if c.message.expired(policy, self.now_ms)]
            for cell in sorted(stale, key=lambda c: c.offset):
                settled = cell.offset in self.theirs(view).state.settled
                if settled and cell.state is not State.IN_FLIGHT:
                    self.model.expire(view, cell)

    # --- crashing ---

    def crash(self, choice: Any, outage_ms: int) -> None:
        self.engine.store.commit()
        policies = {name: topic.policy for name, topic in self.model.topics.items()}
        self.disk = self.disk.crash(choice)
        self.now_ms += outage_ms
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.consumers.clear()
        self.credits.clear()
        assert policies == {
            topic.name: topic.policy
            for topic in self.engine.state.topics_of(HERE)
            if not topic.name.endswith(".dlq")
        }
        self._forget_lost()
        self.model.reopen(self.now_ms)
        # Receipts of before are of no use: there is no delivery they could name.
        self.receipts = [(*paper[:4], None) for paper in self.receipts]

    def _forget_lost(self) -> None:
        """What was not published durably may be gone, nothing else."""
        for topic in self.model.topics.values():
            theirs = self.engine.state.topic(HERE, topic.name)
            for number, held in enumerate(topic.partitions):
                present = {record.offset for record in read_all(self.engine, theirs, number)}
                for sub in topic.subs.values():
                    view = sub.views[number]
                    lost = [cell for at, cell in view.cells.items() if at not in present]
                    assert not any(cell.message.durable for cell in lost), f"{lost} is lost"
                    self.model.settle(view, lost)
                for offset in [at for at in held if at not in present]:
                    del held[offset]

    def checkpoint_if_due(self) -> None:
        if self.engine.store.wants_checkpoint():
            self.engine.store.checkpoint()

    # --- what must hold at any time ---

    def check(self) -> None:
        for view in self.model.views():
            self._check_view(view, self.theirs(view))
        self._check_consumers()
        self._check_dead()

    def _check_view(self, view: View, theirs: PartitionView) -> None:
        state = theirs.state
        shown = {name: getattr(state, name) for name in view.counts()}
        assert shown == view.counts(), f"{view.sub.topic.name}/{view.sub.name}/{view.number}"
        for cell in view.cells.values():
            entry = state.look(cell.offset)
            if entry is None:
                assert state.is_ready(cell.offset)
                assert (cell.state, cell.attempts) == (State.READY, 0)
            else:
                assert entry[:3] == (cell.state, cell.attempts, cell.holder), f"{cell}"
            assert cell.offset not in state.settled
        if view.cells:
            lowest = min(view.cells)
            topic = theirs.partition.topic
            present = {r.offset for r in read_all(self.engine, topic, view.number, lowest)}
            assert view.cells.keys() <= present, "a message without its record"

    def _check_consumers(self) -> None:
        held: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for view in self.model.views():
            for cell in view.cells.values():
                if cell.state is State.IN_FLIGHT:
                    held[cell.holder] += 1
                    sizes[cell.holder] += len(cell.message.value)
        for consumer in self.consumers:
            assert consumer.in_flight == held[consumer.id]
        for credit in self.credits:
            sharing = [each for each in self.consumers if credit in each.credits]
            assert credit.used == sum(held[each.id] for each in sharing)
            assert credit.bytes_used == sum(sizes[each.id] for each in sharing)

    def _check_dead(self) -> None:
        for topic in self.engine.state.topics_of(HERE):
            if not topic.name.endswith(".dlq"):
                continue
            for record in read_all(self.engine, topic, 0, self.dead_read.get(topic.name, 0)):
                self.dead_read[topic.name] = record.offset + 1
                headers = {key: each.decode() for key, each in decode_headers(record.envelope)[:-1]}
                self.dead_seen[
                    topic.name,
                    record.value,
                    headers["x-death-reason"],
                    int(headers["x-death-attempts"]),
                    headers["x-death-subscription"],
                    headers["x-death-topic"],
                ] += 1
        assert self.dead_seen == Counter(dead.row() for dead in self.model.dead)

    def check_receipts(self) -> None:
        for text, consumer, view, cell, delivery in self.receipts:
            if delivery is not None and cell.delivery is delivery and self._is_current(view, cell):
                assert self.engine.receipts.redeem(text, HERE) == (
                    consumer,
                    self.theirs(view),
                    cell.offset,
                )
            else:
                with pytest.raises((StaleReceipt, NotFound)):
                    self.engine.receipts.redeem(text, HERE)

    def _is_current(self, view: View, cell: Cell) -> bool:
        known = any(each is view for each in self.model.views())
        return known and view.cell(cell.offset) is cell and cell.state is State.IN_FLIGHT

    # --- the end ---

    def ack_all(self) -> None:
        for consumer in self.consumers:
            for view in consumer.subscription.views:
                ours = self.ours(view)
                count = self.engine.settling.ack(consumer, view, 0, view.state.end)
                assert count == self.model.settle(ours, self.model.held(ours, consumer.id))

    def drain(self) -> None:
        """Everything that is neither dead nor gone reaches its subscription."""
        for consumer in self.consumers:
            if consumer in consumer.subscription.consumers:
                self.engine.consumers.resume(consumer)
        for topic in self.engine.state.topics_of(HERE):
            for subscription in topic.subscriptions.values():
                self.consumers.append(
                    self.engine.consumers.attach(subscription, now_ms=self.now_ms)
                )
        for _ in range(10):
            self.ack_all()
            while self.dispatch():
                self.ack_all()
            self.check()
            if not any(view.cells for view in self.model.views()):
                return
            self.advance(1000)
        raise AssertionError("messages that nobody gets")


class EngineMachine(RuleBasedStateMachine):
    """Every crash comes after a commit: the model knows exactly what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.world = EngineWorld()

    @initialize(
        profiles=st.lists(st.sampled_from(PROFILES), min_size=2, max_size=3),
        modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
    )
    def begin(self, profiles: list[dict[str, Any]], modes: list[Mode]) -> None:
        for index, profile in enumerate(profiles):
            self.world.create(f"t{index}", profile, modes[: 1 + index % 2])
        self.world.attach_all()

    # --- choosing ---

    def topic_at(self, pick: int) -> Topic:
        return list(self.world.model.topics.values())[pick % len(self.world.model.topics)]

    def sub_at(self, pick: int) -> Sub:
        subs = [sub for t in self.world.model.topics.values() for sub in t.subs.values()]
        return subs[pick % len(subs)]

    def held_at(self, pick: int) -> tuple[Consumer, View, Cell] | None:
        world = self.world
        found = [
            (consumer, world.ours(view), cell)
            for consumer in world.consumers
            for view in consumer.subscription.views
            for cell in world.model.held(world.ours(view), consumer.id)
        ]
        return found[pick % len(found)] if found else None

    def in_flight(self) -> bool:
        return any(consumer.in_flight for consumer in self.world.consumers)

    # --- publishing ---

    @rule(pick=picks, wanted=batches, durable=st.sampled_from([True, True, True, False]))
    def publish(self, pick: int, wanted: list[dict[str, Any]], durable: bool) -> None:
        self.world.publish([self.topic_at(pick).name], wanted, durable=durable)

    @rule(pick=picks, count=st.integers(5, 40))
    def publish_many(self, pick: int, count: int) -> None:
        plain = {"key": None, "priority": 0, "delay": 0, "ttl": 0, "padding": 10}
        self.world.publish([self.topic_at(pick).name], [plain] * count, durable=True)

    @rule(wanted=batches, durable=st.booleans())
    def fan_out(self, wanted: list[dict[str, Any]], durable: bool) -> None:
        self.world.publish(list(self.world.model.topics), wanted, durable=durable)

    # --- consumers ---

    @rule(
        pick=picks,
        priority=st.integers(0, 1),
        limit=st.sampled_from([1, 2, 5, 100]),
        shared=st.booleans(),
        auto_ack=st.sampled_from([False, False, False, True]),
        visibility_ms=st.sampled_from([None, 0, 300]),
    )
    def attach(
        self,
        pick: int,
        priority: int,
        limit: int,
        shared: bool,
        auto_ack: bool,
        visibility_ms: int | None,
    ) -> None:
        world, sub = self.world, self.sub_at(pick)
        if sub.depth > 300 or len(world.consumers) > 8:
            return
        if not shared or not world.credits:
            world.credits.append(Credit(limit))
        theirs = world.engine.state.topic(HERE, sub.topic.name).subscriptions[sub.name]
        consumer = world.engine.consumers.attach(
            theirs,
            now_ms=world.now_ms,
            credits=[world.credits[-1]],
            priority=priority,
            auto_ack=auto_ack,
            visibility_ms=visibility_ms,
        )
        world.consumers.append(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, requeue=st.booleans(), really=rarely)
    def detach(self, pick: int, requeue: bool, really: bool) -> None:
        if not really:
            return
        world = self.world
        consumer = world.consumers[pick % len(world.consumers)]
        world.engine.consumers.detach(consumer, now_ms=world.now_ms, requeue=requeue)
        if requeue:
            for theirs in consumer.subscription.views:
                view = world.ours(theirs)
                world.model.fail(view, world.model.held(view, consumer.id), world.now_ms, 0)
            world.consumers.remove(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, paused=st.booleans())
    def pause_or_resume(self, pick: int, paused: bool) -> None:
        consumer = self.world.consumers[pick % len(self.world.consumers)]
        if paused:
            consumer.paused = True
        elif consumer in consumer.subscription.consumers:
            self.world.engine.consumers.resume(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, limit=st.sampled_from([1, 3, 50]))
    def change_credit(self, pick: int, limit: int) -> None:
        consumer = self.world.consumers[pick % len(self.world.consumers)]
        consumer.credits[0].limit = limit
        for each in self.world.consumers:
            if each.credits == consumer.credits and not each.paused:
                self.world.engine.consumers.resume(each)

    @rule()
    def dispatch(self) -> None:
        self.world.dispatch()

    @rule()
    def dispatch_again(self) -> None:
        self.world.dispatch()

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, limit=st.integers(1, 10))
    def pull(self, pick: int, limit: int) -> None:
        world = self.world
        consumer = world.consumers[pick % len(world.consumers)]
        deliveries = world.engine.dispatching.pull(consumer, limit, now_ms=world.now_ms)
        assert sum(each.stop_index - each.first_index for each in deliveries) <= limit
        assert all(each.consumer is consumer for each in deliveries)
        world.delivered(deliveries)
        world.observe()

    # --- answers ---

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 1, 2, 5, 100]), everything=st.booleans())
    def ack(self, pick: int, width: int, everything: bool) -> None:
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start = 0 if everything else cell.offset
        theirs = self.world.theirs(view)
        count = self.world.engine.settling.ack(consumer, theirs, start, cell.offset + width)
        held = self.world.model.held(view, consumer.id, start, cell.offset + width)
        assert count == self.world.model.settle(view, held)

    @precondition(in_flight)
    @rule(
        pick=picks,
        width=st.sampled_from([1, 2, 5]),
        delay_ms=st.sampled_from([None, None, 0, 40, 700]),
    )
    def nack(self, pick: int, width: int, delay_ms: int | None) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.nack(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms, delay_ms=delay_ms
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == world.model.fail(view, held, world.now_ms, delay_ms)

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 2, 5]))
    def requeue(self, pick: int, width: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.requeue(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == world.model.fail(view, held, world.now_ms, 0)

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 2, 5]))
    def reject(self, pick: int, width: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.reject(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms, error="no"
        )
        assert count == world.model.reject(view, world.model.held(view, consumer.id, start, stop))

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 3]), more_ms=st.sampled_from([10, 200, 2000]))
    def extend(self, pick: int, width: int, more_ms: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop, until = cell.offset, cell.offset + width, world.now_ms + more_ms
        count = world.engine.settling.extend(
            consumer, world.theirs(view), start, stop, until_ms=until
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == len(held)
        for each in held:
            each.until_ms = until

    @precondition(lambda self: len(self.world.consumers) > 1)
    @rule(pick=picks, other=picks)
    def answer_for_somebody_else(self, pick: int, other: int) -> None:
        found = self.held_at(pick)
        stranger = self.world.consumers[other % len(self.world.consumers)]
        if found is not None and stranger is not found[0]:
            theirs, at = self.world.theirs(found[1]), found[2].offset
            assert self.world.engine.settling.ack(stranger, theirs, at, at + 1) == 0

    @rule(
        pick=picks,
        answer=st.sampled_from(["ack", "nack", "requeue", "reject", "time", "crash"]),
        width=st.sampled_from([1, 2, 5]),
        crash=crashes,
    )
    def work(self, pick: int, answer: str, width: int, crash: Any) -> None:
        """What a consumer does most of the time, in one step."""
        self.world.dispatch()
        if answer == "time":
            self.world.advance(500)
        elif answer == "crash":
            self.world.crash(crash, 10)
            self.world.check()
            self.world.attach_all()
        elif not self.in_flight():
            return
        elif answer == "ack":
            self.ack(pick, width, False)
        elif answer == "nack":
            self.nack(pick, width, None)
        elif answer == "requeue":
            self.requeue(pick, width)
        else:
            self.reject(pick, width)

    @rule()
    def redeem(self) -> None:
        self.world.check_receipts()
        del self.world.receipts[:-100]

    # --- time ---

    @rule(by_ms=st.sampled_from([10, 50, 100, 200, 500, 3000, 400_000]))
    def advance(self, by_ms: int) -> None:
        self.world.advance(by_ms)

    # --- moving and removing ---

    @rule(pick=picks, to=st.sampled_from(["earliest", "latest", "offset", "time"]), at=picks)
    def rewind(self, pick: int, to: str, at: int) -> None:
        world, sub = self.world, self.sub_at(pick)
        topic = world.engine.state.topic(HERE, sub.topic.name)
        end = min(each.log.next_offset for each in topic.partitions)
        start = max(each.log.start_offset for each in topic.partitions)
        where: Any = {"offset": start + at % max(end - start, 1), "time": f"@{world.now_ms - 300}"}
        position = where.get(to, to)
        if to == "offset" and position > end:
            return
        targets = [
            world.engine.reading.find_offset(topic, number, position)
            for number in range(len(topic.partitions))
        ]
        world.engine.offsets.rewind(topic.subscriptions[sub.name], position, now_ms=world.now_ms)
        for number, target in enumerate(targets):
            world.start(sub, number, target)

    @rule(pick=picks, really=rarely)
    def purge(self, pick: int, really: bool) -> None:
        if not really:
            return
        topic = self.topic_at(pick)
        count = self.world.engine.retention.purge(self.world.engine.state.topic(HERE, topic.name))
        assert count == self.world.model.purge(topic)

    @rule(pick=picks, number=picks, at=picks)
    def commit_offset(self, pick: int, number: int, at: int) -> None:
        sub = self.sub_at(pick)
        view = sub.views[number % len(sub.views)]
        theirs = self.world.theirs(view)
        offset = at % (theirs.state.end + 1)
        self.world.engine.offsets.commit(theirs, offset)
        self.world.model.settle(view, view.among(0, offset, *State))

    @rule(pick=picks, at=picks)
    def cancel_delayed(self, pick: int, at: int) -> None:
        topic = self.topic_at(pick)
        theirs = self.world.engine.state.topic(HERE, topic.name)
        delayed = [
            (each.partition, each.offset)
            for each in self.world.engine.delayed.find(theirs, now_ms=self.world.now_ms)
        ]
        expected = {
            (view.number, cell.offset)
            for sub in topic.subs.values()
            for view in sub.views
            for cell in view.among(0, FOREVER, State.DELAYED)
        }
        assert set(delayed) == expected
        assert self.world.engine.delayed.count(theirs) == len(expected)
        number, offset = delayed[at % len(delayed)] if delayed else (0, at % 10)
        if self.world.model.cancel(topic, number, offset):
            self.world.engine.delayed.cancel(theirs, number, offset)
        else:
            with pytest.raises(NotDelayed):
                self.world.engine.delayed.cancel(theirs, number, offset)

    # --- administration ---

    @rule(pick=picks, change=st.sampled_from(CHANGES))
    def alter(self, pick: int, change: dict[str, Any]) -> None:
        world, topic = self.world, self.topic_at(pick)
        theirs = world.engine.state.topic(HERE, topic.name)
        changed = merge(world.settings[topic.name], change)
        world.engine.topics.alter(theirs, changed, now_ms=world.now_ms)
        world.policies_changed(topic)

    @rule(pick=picks, change=st.sampled_from([{"ttl_ms": 300}, {"max_messages": 5}, {}]))
    def set_template(self, pick: int, change: dict[str, Any]) -> None:
        world, name = self.world, self.topic_at(pick).name
        world.engine.templates.put(HERE, "one", f"^{name}$", change, now_ms=world.now_ms)
        world.policies_changed()

    @precondition(lambda self: self.world.engine.state.templates)
    @rule()
    def delete_template(self) -> None:
        self.world.engine.templates.delete(HERE, "one", now_ms=self.world.now_ms)
        self.world.policies_changed()

    @rule(
        pick=picks,
        profile=st.sampled_from(PROFILES),
        modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
        really=rarely,
    )
    def recreate(self, pick: int, profile: dict[str, Any], modes: list[Mode], really: bool) -> None:
        if not really:
            return
        world, name = self.world, self.topic_at(pick).name
        theirs = world.engine.state.topic(HERE, name)
        gone = [c for c in world.consumers if c.subscription.topic is theirs]
        world.engine.topics.delete(theirs)
        world.consumers = [each for each in world.consumers if each not in gone]
        assert not any(each.in_flight for each in gone)
        del world.model.topics[name]
        world.create(name, profile, modes)
        world.attach_all()

    @rule(pick=picks, mode=st.sampled_from(MODES), really=rarely)
    def resubscribe(self, pick: int, mode: Mode, really: bool) -> None:
        if not really:
            return
        world, sub = self.world, self.sub_at(pick)
        theirs = world.engine.state.topic(HERE, sub.topic.name).subscriptions[sub.name]
        world.consumers = [each for each in world.consumers if each.subscription is not theirs]
        world.engine.subscriptions.delete(theirs)
        del sub.topic.subs[sub.name]
        world.subscribe(sub.topic.name, sub.name, mode)
        world.attach_all()

    # --- the disk ---

    @rule()
    def commit(self) -> None:
        self.world.engine.store.commit()

    @rule()
    def checkpoint(self) -> None:
        self.world.engine.store.checkpoint()

    @rule(choice=crashes, outage_ms=st.sampled_from([10, 500]), really=rarely)
    def crash(self, choice: Any, outage_ms: int, really: bool) -> None:
        if not really:
            return
        self.world.crash(choice, outage_ms)
        self.world.check()
        self.world.attach_all()

    @invariant()
    def agrees(self) -> None:
        self.world.checkpoint_if_due()
        self.world.check()

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # what failed says more than what follows from it
        self.world.check_receipts()
        self.world.drain()


EngineMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=200,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestEngine = EngineMachine.TestCase


class CrashMachine(RuleBasedStateMachine):
    """Crashes come at any time. What was durable holds; what was not may have happened or not."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.now_ms = 1_000_000
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.numbers = itertools.count()
        self.published: dict[tuple[str, bytes], int] = {}
        """Topic and value → the LSN that makes it durable."""
        self.settled: dict[tuple[str, str, bytes], int] = {}
        """Acknowledged or rejected: topic, subscription and value → LSN."""
        self.arrived: Counter[tuple[str, str, bytes]] = Counter()
        self.held: dict[tuple[str, str, bytes], tuple[Consumer, PartitionView, int]] = {}
        self.attempts: dict[tuple[str, str, bytes], int] = {}
        for name, profile, subs in (("q", QUEUE, "a"), ("t", PROFILES[4], "ab")):
            topic = self.engine.topics.create(HERE, name, profile, now_ms=self.now_ms)
            for each in subs:
                self.engine.subscriptions.subscribe(topic, each, now_ms=self.now_ms)
        self.engine.store.commit()
        self.attach()

    @property
    def lsn(self) -> int:
        return self.engine.store.journal.next_lsn - 1

    def topics(self) -> list[Any]:
        return [self.engine.state.topic(HERE, name) for name in "qt"]

    def attach(self) -> None:
        for topic in self.topics():
            for subscription in topic.subscriptions.values():
                for _ in range(2):
                    self.engine.consumers.attach(
                        subscription, now_ms=self.now_ms, credits=[Credit(5)]
                    )

    # --- rules ---

    @rule(count=st.integers(1, 12), fan_out=st.booleans(), delay=delays, padding=st.booleans())
    def publish(self, count: int, fan_out: bool, delay: int, padding: bool) -> None:
        batch = RecordBatch()
        for _ in range(count):
            batch.append(
                b"m%d." % next(self.numbers) + b"x" * 100 * padding,
                timestamp_ms=self.now_ms,
                due_at_ms=self.now_ms + delay if delay else 0,
            )
        topics = self.topics()[: 1 + fan_out]
        values = [record.value for record in batch.records()]
        self.engine.publishing.fan_out(topics, batch, now_ms=self.now_ms)
        self.published |= {(topic.name, v): self.lsn for topic in topics for v in values}

    @rule()
    def dispatch(self) -> None:
        for delivery in self.engine.dispatching.dispatch(self.now_ms):
            view = delivery.view
            for index in range(delivery.first_index, delivery.stop_index):
                record = delivery.batch.record(index)
                where = (view.partition.topic.name, view.subscription.name, record.value)
                assert where not in self.settled, "settled, and here again"
                assert where not in self.held, "in flight twice"
                self.arrived[where] += 1
                assert 1 <= delivery.attempts <= self.arrived[where]
                assert delivery.attempts == self.attempts.get(where, delivery.attempts - 1) + 1
                self.attempts[where] = delivery.attempts
                self.held[where] = (delivery.consumer, view, record.offset)

    @precondition(lambda self: self.held)
    @rule(pick=picks, answer=st.sampled_from(["ack", "ack", "ack", "nack", "requeue", "reject"]))
    def answer(self, pick: int, answer: str) -> None:
        where = list(self.held)[pick % len(self.held)]
        consumer, view, at = self.held.pop(where)
        timed = {} if answer == "ack" else {"now_ms": self.now_ms}
        assert getattr(self.engine.settling, answer)(consumer, view, at, at + 1, **timed) == 1
        if answer in ("ack", "reject") or view.state.look(at) is None:
            self.settled[where] = self.lsn

    @rule(by_ms=st.sampled_from([10, 200, 600]))
    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.engine.advance(self.now_ms)
        for where, (consumer, view, at) in list(self.held.items()):
            entry = view.state.look(at)
            if entry is None:
                self.settled[where] = self.lsn
            if entry is None or (entry[0], entry[2]) != (State.IN_FLIGHT, consumer.id):
                del self.held[where]

    @rule()
    def commit(self) -> None:
        self.engine.store.commit()

    @rule()
    def checkpoint(self) -> None:
        self.engine.store.checkpoint()

    @rule(choice=crashes)
    def crash(self, choice: Any) -> None:
        durable = self.engine.store.journal.durable_lsn
        self.disk = self.disk.crash(choice)
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.held.clear()
        self.attempts.clear()
        self.published = {key: 0 for key, lsn in self.published.items() if lsn <= durable}
        self.settled = {key: 0 for key, lsn in self.settled.items() if lsn <= durable}
        self.attach()

    @invariant()
    def dead_once(self) -> None:
        if self.engine.store.wants_checkpoint():
            self.engine.store.checkpoint()
        dead = self.dead()
        assert max(dead.values(), default=1) == 1
        assert not dead.keys() & self.held.keys()

    def dead(self) -> Counter[tuple[str, str, bytes]]:
        found: Counter[tuple[str, str, bytes]] = Counter()
        for topic in self.engine.state.topics_of(HERE):
            if topic.name.endswith(".dlq"):
                for record in read_all(self.engine, topic, 0):
                    headers = dict(decode_headers(record.envelope))
                    sub = headers["x-death-subscription"].decode()
                    found[topic.name.removesuffix(".dlq"), sub, record.value or b""] += 1
        return found

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return
        for _ in range(200):
            self.dispatch()
            while self.held:
                self.answer(0, "ack")
            if not any(s.depth for topic in self.topics() for s in topic.subscriptions.values()):
                break
            self.advance(500)
        for topic in self.topics():
            for sub in topic.subscriptions.values():
                assert sub.depth == 0
                for name, value in self.published:
                    assert name != topic.name or self.arrived[name, sub.name, value], "never came"


CrashMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=120,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestCrash = CrashMachine.TestCase


# --- single cases that random histories seldom meet ---

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
        assert receipts.receipts_of(delivery)[0].attempts == 0xFFFF
        consumer, _, _ = engine.receipts.redeem(str(receipts.receipts_of(delivery)[0]), HERE)
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
