"""Bringing the engine back: topics and subscriptions from the catalogue, delivery state from the
notes, messages from the logs."""

import struct
from dataclasses import dataclass, field

import msgspec

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.barriers import raise_barriers
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.policy import Template
from braidmq.engine.rebuilding import Note, Rebuilding
from braidmq.engine.record_times import RecordClock
from braidmq.engine.records import SubscriptionRecord, TopicRecord
from braidmq.engine.settlement import NOTE, RESET_NOTE
from braidmq.engine.state import CANCELLED, TEMPLATES, TOPICS, EngineState
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.topics import Mode, Subscription, Topic, TopicPartition
from braidmq.engine.transactions.coordinator import Coordinator
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.record.offset_set import OffsetSet
from braidmq.storage.catalogue import SUBSCRIPTIONS
from braidmq.storage.journal import Kind, Progress

_HEAD = struct.Struct("<QQqI")
_RUN = struct.Struct("<qqHBq")


@dataclass(slots=True)
class Noted:
    """What is noted of a subscription's deliveries from a partition."""

    cursor: int = 0
    runs: list[Note] = field(default_factory=list)

    def note(self, start: int, stop: int, attempts: int, state: int, deadline: int) -> None:
        if state == RESET_NOTE:
            self.cursor = start
            self.runs.clear()
        else:
            self.cursor = max(self.cursor, stop)
            self.runs.append((start, stop, attempts, state, deadline))


@dataclass
class DeliveryNotes:
    """What the journal knows of deliveries: the engine's participant in the store.

    The first time a kernel decides and does in one step, and what came of it is noted: while the
    node runs the kernels hold the truth, and ``dump`` asks them. This gathers what is replayed,
    until the records are there too and ``Recovery`` can give both to the kernels. That this comes
    to the same is what tests/engine/test_engine_redo.py checks.
    """

    name: str = "deliveries"
    kinds: frozenset[Kind] = frozenset({Kind.DELIVERY})
    state: EngineState | None = None
    replayed: dict[int, dict[int, Noted]] = field(default_factory=dict)
    """By partition and subscription."""
    kept: dict[tuple[int, int], list[Note]] = field(default_factory=dict)
    """Of quarantined partitions, whose messages the kernels could not be told of."""

    def of(self, subscription: int, partition: int) -> Noted:
        subscriptions = self.replayed.setdefault(partition, {})
        found = subscriptions.get(subscription)
        if found is None:
            found = subscriptions[subscription] = Noted()
        return found

    def restore(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            subscription, partition, cursor, count = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            runs: list[Note] = [
                _RUN.unpack_from(data, at + index * _RUN.size) for index in range(count)
            ]
            at += count * _RUN.size
            self.replayed.setdefault(partition, {})[subscription] = Noted(cursor, runs)

    def replay(self, kind: Kind, meta: bytes) -> None:
        subscription, partition, *note = NOTE.unpack(meta)
        self.of(subscription, partition).note(*note)

    def forget_partition(self, partition: PartitionId) -> None:
        self.replayed.pop(partition, None)

    def dump(self) -> bytes:
        assert self.state is not None
        parts: list[bytes] = []
        outliving = self.state.outliving_consumers()
        for view in self.state.views.values():
            if not view.subscription.journaled or view.subscription.id == CANCELLED:
                continue
            key = (view.subscription.id, view.partition_id)
            notes = self.kept.get(key) or view.state.notes(outliving)
            parts.append(
                _HEAD.pack(view.subscription.id, view.partition_id, view.state.cursor, len(notes))
            )
            lead_ms = self.state.clock.lead_ms
            parts += [_RUN.pack(*note[:4], note[4] and note[4] + lead_ms) for note in notes]
        return b"".join(parts)

    def forget(self) -> None:
        """The kernels know."""
        self.replayed.clear()

    def follow(self, state: EngineState) -> None:
        """From now on this is the state to dump."""
        self.state = state


class Recovery:
    def __init__(
        self,
        state: EngineState,
        notes: DeliveryNotes,
        rebuilding: Rebuilding,
        subscriptions: Subscriptions,
        topics: TopicAdministration,
        transactions: Coordinator,
    ) -> None:
        self._state = state
        self._notes = notes
        self._rebuilding = rebuilding
        self._subscriptions = subscriptions
        self._topics = topics
        self._transactions = transactions
        notes.follow(state)

    def run(self, now_ms: int, progress: Progress) -> None:
        catalogue = self._state.store.catalogue
        for key, value in catalogue.items(TEMPLATES):
            namespace, _, name = key.partition("\0")
            template = msgspec.msgpack.decode(value, type=Template)
            self._state.templates[namespace, name] = template
        self._pass_lost_records()
        for _, value in catalogue.items(TOPICS):
            self._restore_topic(msgspec.msgpack.decode(value, type=TopicRecord), now_ms)
        self._transactions.restore_claims()
        subscriptions = list(catalogue.items(SUBSCRIPTIONS))
        for done, (_, value) in enumerate(subscriptions):
            progress("subscriptions", done, len(subscriptions))
            self._restore_subscription(
                msgspec.msgpack.decode(value, type=SubscriptionRecord), now_ms
            )
        self._forget_strangers()
        for topic in self._state.topics.values():
            if any(each.log.next_offset > each.log.start_offset for each in topic.partitions):
                self._subscriptions.set_stand_in(topic, now_ms)
        for partition in self._state.partitions.values():
            self._rebuilding.set_timers(partition, now_ms)
        self._notes.forget()

    def _pass_lost_records(self) -> None:
        """Records that were never journaled are gone, but what was journaled of their deliveries
        is not: their offsets must not come to mean other messages."""
        logs = self._state.store.logs
        for partition, subscriptions in self._notes.replayed.items():
            if (log := logs.get(PartitionId(partition))) is not None:
                reached = max(each.cursor for each in subscriptions.values())
                self._state.store.state.pass_over(log, reached)

    def _clock_ahead(self, now_ms: int) -> RecordClock:
        """Reads records that are stamped with times to come as if it had been now."""
        if len(self._state.clocks) == 1:
            self._state.clocks.append(RecordClock(0, now_ms))
        return self._state.clocks[1]

    def _restore_topic(self, record: TopicRecord, now_ms: int) -> None:
        logs = [self._state.store.log(PartitionId(number)) for number in record.partitions]
        topic = Topic(
            record.id,
            record.namespace,
            record.name,
            record.settings,
            self._topics.restored_policy(record, in_memory=any(log.in_memory for log in logs)),
            durable=True,
            now_ms=record.created_ms,
            kind=record.kind,
            attributes=record.attributes,
        )
        topic.width = record.width or len(record.partitions)
        topic.closed = record.closed or None
        topic.resizes = record.resizes
        for place, log in enumerate(logs):
            for resize in record.resizes:
                if place < len(resize.ends):
                    # Records that were never journaled may have been there.
                    self._state.store.state.pass_over(log, resize.ends[place])
            partition = self._topics.add_partition(topic, log)
            if log.latest_ms > now_ms:
                # The clock was set back while the node was down. Nothing takes longer for that.
                partition.older_clocks += ((log.next_offset, self._clock_ahead(now_ms)),)
        self._topics.register(topic)

    def _restore_subscription(self, record: SubscriptionRecord, now_ms: int) -> None:
        topic = self._state.topics_by_id.get(record.topic)
        if topic is None:
            return
        subscription = Subscription(
            SubscriptionId(record.id),
            topic,
            record.name,
            Mode(record.mode),
            durable=True,
            uncommitted=record.uncommitted,
        )
        self._subscriptions.register(subscription)
        for partition in topic.partitions:
            self._restore_view(subscription, partition, now_ms)
        raise_barriers(subscription)

    def _restore_view(
        self, subscription: Subscription, partition: TopicPartition, now_ms: int
    ) -> None:
        log = partition.log
        if log.in_memory:
            settled = OffsetSet(log.start_offset)
        else:
            settled = self._state.store.offsets_of(subscription.id, log.id)
        if settled.floor < log.start_offset:
            # Retention moved the start of the log over unread records.
            settled.add(settled.floor, log.start_offset)
        self._subscriptions.settle_cancelled(subscription, partition, settled)
        noted = self._notes.of(subscription.id, log.id)
        cursor = max(noted.cursor, settled.floor)
        end = log.next_offset if subscription.uncommitted else partition.stable_offset
        state = DeliveryState(settled, cursor, max(cursor, end))
        # Receipts of an earlier life must not name deliveries of this one.
        state.nonce = (now_ms << 8) & 0xFFFFFFFF
        view = self._subscriptions.attach_view(subscription, partition, state, now_ms)
        self._rebuilding.rebuild(view, now_ms, noted.runs)

    def _forget_strangers(self) -> None:
        """Acknowledgements of subscriptions that never came to be, or were deleted after they were
        journaled. Whoever follows forgets them, too."""
        store = self._state.store
        strangers = {number for number, _ in store.acknowledged} - self._state.subscriptions.keys()
        for subscription in sorted(strangers - {CANCELLED}):
            store.change([(SUBSCRIPTIONS, str(subscription), None)])
