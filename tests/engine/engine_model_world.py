"""An engine and the plain model of it, changed together and compared."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from kept_model import Pieces, check_within, compact, follow, forget, forget_partition

from braidmq.engine.engine import Engine
from braidmq.engine.envelope import AMQP, MQTT, NATIVE, encode_headers
from braidmq.engine.errors import StaleReceipt, TopicFull
from braidmq.engine.policy import QUEUE_SETTINGS, merge
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, Delivery, Mode, PartitionView
from braidmq.gateways.translation import native_headers
from braidmq.model.errors import NotFound
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.settings import StorageSettings
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll, Random
from braidmq.wire.amqp.properties import Properties
from braidmq.wire.envelopes import amqp_envelope
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt
from model import FOREVER, Cell, Message, Model, Sub, Topic, View

SMALL = StorageSettings(
    segment_bytes_max=4096,
    index_interval_bytes=256,
    journal_file_bytes=16384,
    tail_bytes_max=2048,
)
"""Journals, segments and memory fill up after a handful of batches."""

SELDOM = RetentionSettings(first_compaction_s=86_400, compaction_interval_min_s=86_400)
"""Topics are compacted when the model is told."""

HERE = "n"
DEAD = {"dead_letter": {"topic": "{topic}.dlq", "expired": True}}
QUEUE = merge(QUEUE_SETTINGS, DEAD)
NOWHERE = {"dead_letter": {"topic": None}}
COMPACTED = {"enabled": True, "lag_ms": 0}
RETRY = {"retry": {"base_ms": 100, "attempts": 3}, "visibility_ms": 500}
PROFILES: list[dict[str, Any]] = [
    QUEUE,
    merge(QUEUE, {"retry": {"base_ms": 50, "attempts": 2}}),
    merge(QUEUE, {"priority": "lanes"}),
    merge(QUEUE, {"priority": "strict", "priority_levels": 4}),
    {"partitions": 2, "ordering": "none", **RETRY, **DEAD},
    {"partitions": 2, "ordering": "partition", **RETRY},
    {"partitions": 1, "ordering": "strict", **RETRY, **DEAD},
    {"partitions": 3, "retention": {"until_acked": True}, **RETRY, **DEAD},
    merge(QUEUE, {"durability": "memory"}),
    {"partitions": 2, "ordering": "partition", "durability": "memory", **RETRY, **DEAD},
]
KEPT_PROFILES: list[dict[str, Any]] = [
    # What a limit lets go at the time of a failure may be a dead letter or not: here it never is.
    {"partitions": 2, "ordering": "none", "retention": {"messages": 8}, **RETRY, **NOWHERE},
    {"partitions": 1, "retention": {"messages": 5, "time_ms": 2000}, **RETRY, **NOWHERE},
    {"partitions": 2, "retention": {"time_ms": 1000}, **RETRY, **NOWHERE},
    {"partitions": 1, "retention": {"bytes": 2000}, **RETRY, **NOWHERE},
    merge(QUEUE_SETTINGS, {"retention": {"messages": 10}, **NOWHERE}),
    {"partitions": 1, "retention": {"messages": 6}, "durability": "memory", **RETRY, **NOWHERE},
    merge(QUEUE_SETTINGS, {"retention": {"keep_acked_ms": 1000}, **NOWHERE}),
    merge(QUEUE_SETTINGS, {"retention": {"keep_acked_bytes": 1500}, **NOWHERE}),
    {
        "partitions": 2,
        "retention": {"until_acked": True, "keep_acked_ms": 3000, "keep_acked_bytes": 3000},
        **RETRY,
        **NOWHERE,
    },
    {"partitions": 2, "compaction": COMPACTED, **RETRY, **DEAD},
    {"partitions": 1, "ordering": "none", "compaction": COMPACTED | {"lag_ms": 300}, **RETRY},
    {"partitions": 1, "compaction": COMPACTED | {"header": "k"}, **RETRY, **DEAD},
    {"partitions": 2, "ordering": "none", "compaction": COMPACTED | {"header": "k"}, **RETRY},
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
        "envelope": st.sampled_from([NATIVE, NATIVE, AMQP, MQTT]),
        "header": st.sampled_from([None, None, "x", "y"]),
        "empty": st.sampled_from([False, False, False, False, True]),
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


PLAIN: dict[str, Any] = {
    "key": None,
    "priority": 0,
    "delay": 0,
    "ttl": 0,
    "padding": 10,
    "envelope": NATIVE,
    "header": None,
    "empty": False,
}


def envelope_of(envelope_format: int, headers: dict[str, str]) -> bytes:
    """Headers as the protocols write them."""
    if envelope_format == AMQP:
        return amqp_envelope(b"e", b"rk", Properties(headers={"other": [1, {}], **headers}))
    if envelope_format == MQTT:
        written = MqttProperties(user_properties=tuple(headers.items()))
        return b"\x01\0\x03a/b" + encode_mqtt(written, Kind.PUBLISH)
    return encode_headers({name: value.encode() for name, value in headers.items()})


def name_of(record: Record) -> bytes:
    """What the model knows a message by."""
    return record.value or dict(native_headers(record))["name"]


def offsets_in(engine: Engine, topic: Any, number: int) -> set[int]:
    found: set[int] = set()
    at, end = 0, topic.partitions[number].log.next_offset
    while at < end and (runs := engine.reading.read(topic, number, at)):
        for run in runs:
            found.update(run.batch.offset_at(index) for index in range(run.first, run.stop))
        at = max(found) + 1
    return found


class EngineWorld:
    """An engine and its model, changed together."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.now_ms = 1_000_000
        self.engine = Engine.open(self.disk, self.now_ms, SMALL, upkeep=SELDOM)
        self.model = Model()
        self.consumers: list[Consumer] = []
        """Those that may answer, cancelled ones among them."""
        self.credits: list[Credit] = []
        self.receipts: list[tuple[str, Consumer, View, Cell, object]] = []
        self.numbers = itertools.count()
        self.settings: dict[str, dict[str, Any]] = {}
        self.followed_ms = self.now_ms
        self.pieces: dict[tuple[str, int], Pieces] = {}
        """Of logs, before the engine looked at them."""
        self.dead_read: dict[str, int] = {}
        self.dead_seen: Counter[tuple[object, ...]] = Counter()

    # --- topics and subscriptions ---

    def create(self, name: str, profile: dict[str, Any], modes: list[Mode]) -> None:
        made = self.engine.topics.create(HERE, name, profile, now_ms=self.now_ms)
        parts: list[dict[int, Message]] = [{} for _ in made.partitions]
        self.model.topics[name] = Topic(name, made.policy, parts)
        self.settings[name] = profile
        self.followed_ms = self.now_ms
        for index, mode in enumerate(modes):
            self.subscribe(name, f"s{index}", mode)

    def subscribe(self, topic: str, name: str, mode: Mode) -> None:
        self.finish_compaction(self.model.topics[topic])
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
                if not theirs.consumers and theirs.mode is not Mode.ASSIGNED:
                    if len(self.consumers) % 2 == 0:
                        self.credits.append(Credit(6))  # every second one shares it
                    consumer = self.engine.consumers.attach(
                        theirs, now_ms=self.now_ms, credits=self.credits[-1:] or [Credit(6)]
                    )
                    self.consumers.append(consumer)

    def unsubscribe(self, sub: Sub) -> None:
        topic = sub.topic
        theirs = self.engine.state.topic(HERE, topic.name).subscriptions[sub.name]
        self.consumers = [each for each in self.consumers if each.subscription is not theirs]
        self.engine.subscriptions.delete(theirs)
        del topic.subs[sub.name]
        if not topic.subs:
            for number in range(len(topic.partitions)):
                self.start(topic.stand_in, number, 0)

    def start(self, sub: Sub, number: int, target: int, present: set[int] | None = None) -> None:
        """What is there, unless it is said: a limit may have dropped some of it at once."""
        if present is None:
            present = self.present(sub.topic, number)
        self.model.start(sub, number, target, present, self.now_ms)
        if sub.topic.policy.retention.keeps_acked:
            # What is there is wanted again, or may be: its time begins anew.
            sub.topic.may_go = {where for where in sub.topic.may_go if where[0] != number}

    def finish_compaction(self, topic: Topic) -> None:
        """Who begins anew between a compaction and its checkpoint counts what the latter takes."""
        if topic.policy.compaction.enabled:
            self.engine.store.checkpoint()
            self.follow_logs()

    def target(self, view: View, position: int | str) -> int:
        """Where a rewind leads to: a queue does not bring back what outlived its TTL."""
        topic, policy = self.engine.state.topic(HERE, view.sub.topic.name), view.sub.topic.policy
        found = self.engine.reading.find_offset(topic, view.number, position)
        if not policy.retention.keeps_acked or not policy.ttl_ms:
            return found
        messages = view.sub.topic.partitions[view.number]
        living = [
            at for at, each in messages.items() if each.stamped_ms > self.now_ms - policy.ttl_ms
        ]
        end = topic.partitions[view.number].log.next_offset
        floor = self.theirs(view).state.settled.floor
        return max(found, min(min(living, default=end), floor))

    def present(self, topic: Topic, number: int) -> set[int]:
        return offsets_in(self.engine, self.engine.state.topic(HERE, topic.name), number)

    def theirs(self, view: View) -> PartitionView:
        topic = self.engine.state.topic(HERE, view.sub.topic.name)
        return topic.subscriptions[view.sub.name].views[view.number]

    def ours(self, view: PartitionView) -> View:
        topic = self.model.topics[view.partition.topic.name]
        return topic.subs[view.subscription.name].views[view.partition.number]

    def resize(self, topic: Topic, count: int) -> None:
        theirs = self.engine.state.topic(HERE, topic.name)
        self.settings[topic.name] = merge(self.settings[topic.name], {"partitions": count})
        changed = merge(theirs.settings, {"partitions": count})
        self.engine.topics.alter(theirs, changed, now_ms=self.now_ms)
        topic.resized = True
        for number in range(len(topic.partitions), count):
            topic.partitions.append({})
            for sub in [*topic.subs.values(), topic.stand_in]:
                sub.views.append(View(sub, number))
        assert theirs.width == count
        self.policies_changed(topic)

    def is_closed(self, view: View) -> bool:
        """Nothing is left in its partition, which was taken away."""
        topic = self.engine.state.topic(HERE, view.sub.topic.name)
        return view.number >= len(topic.partitions)

    def follow_closed(self) -> None:
        """Partitions that were taken away are closed some time after nobody wants them."""
        for topic in self.model.topics.values():
            theirs = self.engine.state.topic(HERE, topic.name)
            while len(topic.partitions) > len(theirs.partitions):
                topic.partitions.pop()
                gone = [sub.views.pop() for sub in topic.holders()]
                if topic.subs:
                    topic.stand_in.views.pop()
                assert not any(view.cells for view in gone), "closed, but not read to its end"
                forget_partition(topic, len(topic.partitions))
            assert len(theirs.partitions) >= theirs.width

    def policies_changed(self, altered: Topic | None = None) -> None:
        for topic in self.model.topics.values():
            old, topic.policy = topic.policy, self.engine.state.topic(HERE, topic.name).policy
            if topic is altered or topic.policy != old:
                self.model.drop_overflow(topic)

    # --- publishing ---

    def batch(self, wanted: list[dict[str, Any]]) -> RecordBatch:
        batch = RecordBatch()
        for each in wanted:
            name = f"m{next(self.numbers)}."
            headers = {"k": each["header"]} if each["header"] is not None else {}
            if each["empty"]:
                headers["name"] = name
            batch.append(
                b"" if each["empty"] else name.encode() + b"x" * each["padding"],
                envelope=envelope_of(each["envelope"], headers),
                envelope_format=each["envelope"],
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
        order = {name_of(record): at for at, record in enumerate(records)}
        for number, end in enumerate(ends):
            if len(ends) == 1:
                # A queue may have dropped some of them from its head already.
                found = [r._replace(offset=end + at) for at, r in enumerate(records)]
            else:
                found = read_all(self.engine, theirs, number, end)
            places = [order.pop(name_of(record)) for record in found]
            assert places == sorted(places), "order within a partition"
            arrived = [
                Message(
                    record.offset,
                    name_of(record),
                    record.value or b"",
                    record.key,
                    dict(native_headers(record)).get("k"),
                    record.priority,
                    record.timestamp_ms,
                    record.due_at_ms,
                    record.expires_at_ms,
                    (durable or not topic.policy.retention.until_acked)
                    and topic.policy.durability != "memory",
                )
                for record in found
            ]
            self.model.published(topic, number, arrived, self.now_ms)
        assert not order, "records that are in no partition"

    # --- delivering ---

    def delivered(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            consumer, view = delivery.consumer, self.ours(delivery.view)
            papers = [] if consumer.auto_ack else self.engine.receipts.of(delivery)
            until = self.now_ms + consumer.visibility_ms if consumer.visibility_ms else 0
            for at, index in enumerate(range(delivery.first_index, delivery.stop_index)):
                record = delivery.batch.record(index)
                cell = self.model.deliver(
                    view, record.offset, consumer.id, delivery.attempts, until, self.now_ms
                )
                assert (record.value or b"") == cell.message.value
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

    def has_room(self, view: View) -> bool:
        """Whoever a partition is assigned to."""
        consumer = self.theirs(view).subscription.assignment.get(view.number)
        return consumer is not None and consumer.room > 0

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
                    if self.theirs(view).state.held:
                        continue
                    if sub.mode is Mode.ASSIGNED and not self.has_room(view):
                        continue
                    waits = view.among(0, FOREVER, State.WAITING)
                    if topic.policy.ordering == "none" or not waits:
                        left = view.among(0, FOREVER, State.READY)
                        assert not left, f"{left} was not handed out"

    # --- time ---

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.look_at_pieces()
        for _ in range(5):
            self.engine.advance(self.now_ms)
            due = self.engine.next_due_ms()
            if due is None or due > self.now_ms:
                break
        else:
            raise AssertionError("time does not come to rest")
        self.model.advance(self.now_ms)
        self.observe()
        self.follow_closed()
        self.observe()
        self.follow_logs()
        for view in self.model.views():
            for cell in view.cells.values():
                overdue = cell.message.expired(view.sub.topic.policy, self.now_ms)
                assert not overdue or cell.attempts or cell.lazy, f"{cell} should have expired"

    # --- retention and compaction ---

    def look_at_pieces(self) -> None:
        """Only then are whole ones let go."""
        self.pieces = {
            (name, partition.number): partition.log.pieces()
            for name in self.model.topics
            for partition in self.engine.state.topic(HERE, name).partitions
        }

    def follow_logs(self) -> None:
        """Tell the model what is gone from the logs, and let it say whether that may be."""
        for topic in self.model.topics.values():
            theirs = self.engine.state.topic(HERE, topic.name)
            for partition in theirs.partitions:
                follow(
                    topic,
                    partition.number,
                    self.present(topic, partition.number),
                    (self.followed_ms, self.now_ms),
                    partition.log.next_offset,
                    self.pieces.get((topic.name, partition.number), []),
                )
        self.followed_ms = self.now_ms

    def enforce(self, topic: Topic) -> None:
        theirs = self.engine.state.topic(HERE, topic.name)
        self.look_at_pieces()
        self.engine.retention.enforce(theirs, self.now_ms)
        self.follow_logs()
        for number, partition in enumerate(theirs.partitions):
            present = self.present(topic, number)
            check_within(topic, number, present, self.now_ms, partition.log.pieces())

    def compact(self, topic: Topic, *, checkpoint: bool) -> None:
        theirs = self.engine.state.topic(HERE, topic.name)
        numbers = range(len(theirs.partitions))
        before = [self.present(topic, number) for number in numbers]
        for _ in self.engine.compacting.compact(theirs, self.now_ms):
            pass
        gone = [compact(topic, number, before[number], self.now_ms) for number in numbers]
        if checkpoint or not topic.subs:
            self.engine.store.checkpoint()
            for number in numbers:
                assert self.present(topic, number) == before[number] - gone[number]
        self.follow_logs()

    def is_settled(self, view: View, offset: int) -> bool:
        if self.is_closed(view):
            return True
        if view.sub is view.sub.topic.stand_in:
            return offset not in self.present(view.sub.topic, view.number)
        return offset in self.theirs(view).state.settled

    def observe(self) -> None:
        """Expired messages leave at some time after; tell the model which have."""
        for view in list(self.model.views()):
            policy = view.sub.topic.policy
            stale = [c for c in view.cells.values() if c.message.expired(policy, self.now_ms)]
            for cell in sorted(stale, key=lambda c: c.offset):
                if self.is_settled(view, cell.offset) and cell.state is not State.IN_FLIGHT:
                    self.model.expire(view, cell)

    # --- crashing ---

    def crash(self, choice: Any, outage_ms: int) -> None:
        self.engine.store.commit()
        policies = {name: topic.policy for name, topic in self.model.topics.items()}
        self.disk = self.disk.crash(choice)
        self.now_ms += outage_ms
        self.engine = Engine.open(self.disk, self.now_ms, SMALL, upkeep=SELDOM)
        self.consumers.clear()
        self.credits.clear()
        assert policies == {
            topic.name: topic.policy
            for topic in self.engine.state.topics_of(HERE)
            if not topic.name.endswith(".dlq")
        }
        self._forget_lost()
        self.follow_logs()
        self.model.reopen(self.now_ms)
        # Receipts of before are of no use: there is no delivery they could name.
        self.receipts = [(*paper[:4], None) for paper in self.receipts]

    def _forget_lost(self) -> None:
        """What was not published durably may be gone; of topics in memory, all is."""
        for topic in self.model.topics.values():
            for number, held in enumerate(topic.partitions):
                present = self.present(topic, number)
                assert not present or topic.policy.durability != "memory"
                for offset in [at for at in held if at not in present]:
                    if not held[offset].durable:
                        forget(topic, number, offset)

    def checkpoint_if_due(self) -> None:
        if self.engine.store.wants_checkpoint():
            self.engine.store.checkpoint()

    # --- what must hold at any time ---

    def check(self) -> None:
        self.follow_logs()
        for view in self.model.views():
            if view.sub is view.sub.topic.stand_in:
                present = self.present(view.sub.topic, view.number)
                assert view.cells.keys() == present, "what nobody subscribes to"
            else:
                self._check_view(view, self.theirs(view))
        self._check_consumers()
        self._check_dead()

    def _check_view(self, view: View, theirs: PartitionView) -> None:
        state = theirs.state
        shown = {name: getattr(state, name) for name in view.counts()}
        shown["ready"] += state.held
        assert shown == view.counts(), (
            f"{view.sub.topic.name}/{view.sub.name}/{view.number}: {view.counts()}"
        )
        for cell in view.cells.values():
            entry = state.look(cell.offset)
            if entry is None:
                assert state.is_ready(cell.offset)
                assert (cell.state, cell.attempts) == (State.READY, 0)
            else:
                assert entry[:3] == (cell.state, cell.attempts, cell.holder), f"{cell}"
            assert cell.offset not in state.settled
        if view.cells:
            present = self.present(view.sub.topic, view.number)
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
                headers = {key: each.decode() for key, each in native_headers(record)}
                self.dead_seen[
                    topic.name,
                    record.value or b"",
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
                if subscription.mode is not Mode.ASSIGNED:
                    consumer = self.engine.consumers.attach(subscription, now_ms=self.now_ms)
                    self.consumers.append(consumer)
        for _ in range(10):
            self.ack_all()
            while self.dispatch():
                self.ack_all()
            self.check()
            if not any(sub.depth for t in self.model.topics.values() for sub in t.subs.values()):
                return
            self.advance(1000)
        raise AssertionError("messages that nobody gets")
