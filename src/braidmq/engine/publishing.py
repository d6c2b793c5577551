"""Publishing: limits, partitions, the log, and telling every subscription."""

from collections.abc import Callable, Sequence

from braidmq.engine.deduplication import Deduplication, picked
from braidmq.engine.errors import MessageTooLarge, TopicFull
from braidmq.engine.partitioner import split
from braidmq.engine.record_times import RecordClock, shifted
from braidmq.engine.settling import OFFSET_MAX, Settling
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.entries import Stamp
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import Lsn
from braidmq.record.batch import FLAG_TIMED, RecordBatch
from braidmq.storage.entries import Settled

Placed = tuple[int, int, int]
"""Partition, first offset, count."""


class Published:
    """What became of a batch."""

    __slots__ = ("accepted", "lsn", "placed")

    def __init__(self, lsn: Lsn | None, accepted: int, placed: Sequence[Placed] = ()) -> None:
        self.lsn = lsn
        """When this is durable the batch is; None when it needs no disk."""
        self.accepted = accepted
        """Records taken, from the first; fewer than given when the topic became full."""
        self.placed = placed
        """Where those of one topic went."""


def require_writable(target: TopicPartition) -> None:
    if target.log.damage is not None:
        raise target.log.quarantined()


class Publishing:
    def __init__(self, state: EngineState, settling: Settling) -> None:
        self._state = state
        self._settling = settling
        self.deduplication = Deduplication()
        self.retention_due: dict[Topic, None] = {}
        self.on_stamped: Callable[[list[tuple[TopicPartition, int]], Stamp], None]
        """Records that somebody numbered, or of a transaction, were appended."""
        self.on_undecided: Callable[[TopicPartition, RecordBatch, int, int], None]
        """Records were appended behind a partition's stable offset."""

    def publish(
        self,
        topic: Topic,
        batch: RecordBatch,
        now_ms: int,
        *,
        partition: int | None = None,
        durable: bool = True,
    ) -> Published:
        """Take a batch for a topic. Raises TopicFull when not even one record fits."""
        self.check_size(topic, batch)
        if topic.is_quarantined:
            raise topic.partitions[0].log.quarantined()
        if topic.deduplicates:
            return self._publish_new(topic, batch, now_ms, partition, durable)
        return self._publish(topic, batch, now_ms, partition, durable)

    def _publish_new(
        self, topic: Topic, batch: RecordBatch, now_ms: int, partition: int | None, durable: bool
    ) -> Published:
        """Without the messages that were published before: those count as taken."""
        new = self.deduplication.new_ones(topic, batch, now_ms)
        # What was written before may still be on its way to the disk.
        before = None if len(new) == batch.count else self._state.store.journal.last_lsn
        if not new:
            return Published(before, batch.count)
        chosen = picked(batch, [index for index, _ in new])
        done = self._publish(topic, chosen, now_ms, partition, durable)
        self.deduplication.note(topic, [name for _, name in new[: done.accepted]], now_ms)
        accepted = batch.count if done.accepted == len(new) else new[done.accepted][0]
        return Published(done.lsn or before, accepted, done.placed)

    def _publish(
        self, topic: Topic, batch: RecordBatch, now_ms: int, partition: int | None, durable: bool
    ) -> Published:
        fitting = batch.count
        if topic.bounded:
            fitting = self.room(topic, batch)
            if fitting < batch.count:
                batch = self._cut(topic, batch, fitting, now_ms)
        lsn: Lsn | None = None
        placed: list[Placed] = []
        for target, part in self.split(topic, batch, partition):
            placed.append((target.number, target.log.next_offset, part.count))
            lsn = self.append([target], part, now_ms, durable=durable) or lsn
        return Published(lsn, fitting, placed)

    def fan_out(
        self, topics: Sequence[Topic], batch: RecordBatch, now_ms: int, *, durable: bool = True
    ) -> Published:
        """One batch for many topics, its bytes written once.

        Topics that are full or quarantined refuse it for themselves; ``accepted`` is the least any
        topic took.
        """
        targets: list[TopicPartition] = []
        accepted = batch.count
        lsn: Lsn | None = None
        for topic in topics:
            self.check_size(topic, batch)
        for topic in topics:
            fitting = self.room(topic, batch) if topic.bounded else batch.count
            plain = not topic.deduplicates and not topic.quarantined
            if len(topic.partitions) == 1 and plain and fitting == batch.count:
                targets.append(topic.partitions[0])
                continue
            if plain and not fitting:
                self._refuse(topic, batch, 0, now_ms)
                accepted = 0
                continue
            # Its records part ways, or not all are written: it needs a batch of its own.
            try:
                copy = RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
                one = self.publish(topic, copy, now_ms, durable=durable)
                accepted, lsn = min(accepted, one.accepted), one.lsn or lsn
            except TopicFull:
                accepted = 0
            except PartitionQuarantined:
                self._state.totals.of(topic.namespace).dropped["quarantined"] += batch.count
                accepted = 0
        if targets:
            lsn = self.append(targets, batch, now_ms, durable=durable) or lsn
        return Published(lsn, accepted)

    def check_size(self, topic: Topic, batch: RecordBatch) -> None:
        if batch.value_bytes_max > topic.message_bytes_max:
            raise MessageTooLarge(
                f"a message of {batch.value_bytes_max} bytes, topic {topic.name!r} takes at most "
                f"{topic.message_bytes_max}"
            )

    # --- limits ---

    def room(self, topic: Topic, batch: RecordBatch) -> int:
        """How many records of the batch the topic takes, before it refuses."""
        if topic.drops_head or not topic.has_load:
            return batch.count
        policy, fitting = topic.policy, batch.count
        count, size = self._load(topic)
        if topic.counts_ready and policy.max_messages != 0 and topic.subscriptions:
            awaited = min(each.awaited for each in topic.subscriptions.values())
            if awaited >= count + fitting:
                return fitting  # all of it is as good as delivered
            count -= awaited
        if policy.max_messages is not None:
            fitting = min(fitting, max(0, policy.max_messages - count))
        if policy.max_bytes is not None:
            room = policy.max_bytes - size
            if batch.value_bytes_between(0, fitting) > room:
                fitting = max(batch.reach(0, fitting, room + 1) - 1, 0) if room >= 0 else 0
        return fitting

    def _load(self, topic: Topic) -> tuple[int, int]:
        """What counts towards the limits before something is refused, with what is undecided:
        subscriptions are not told of it yet, but it may come."""
        count, size = topic.load
        undecided = sum([each.undecided for each in topic.partitions])
        if undecided:
            more = sum([each.undecided_bytes for each in topic.partitions])
            for subscription in topic.subscriptions.values():
                if not subscription.uncommitted:
                    its_count, its_size = subscription.load
                    count = max(count, its_count + undecided)
                    size = max(size, its_size + more)
        return count, size

    def is_full(self, topic: Topic) -> bool:
        """Whether a topic that refuses takes no more."""
        policy = topic.policy
        if topic.drops_head or not topic.has_load:
            return False
        count, size = self._load(topic)
        return (policy.max_messages is not None and count >= policy.max_messages) or (
            policy.max_bytes is not None and size >= policy.max_bytes
        )

    def _cut(self, topic: Topic, batch: RecordBatch, fitting: int, now_ms: int) -> RecordBatch:
        """Refuse what does not fit, by the topic's policy."""
        self._refuse(topic, batch, fitting, now_ms)
        if not fitting:
            raise TopicFull(
                f"topic {topic.name!r} has {topic.load[0]} unsettled messages and takes no more"
            )
        head = bytes(memoryview(batch)[: batch.position_at(fitting)])
        return RecordBatch.scan(head, base_offset=0, verify=False)

    def _refuse(self, topic: Topic, batch: RecordBatch, first: int, now_ms: int) -> None:
        """Records of a batch from ``first`` on: dead letters of who wants them."""
        if topic.policy.overflow == "dead-letter":
            self._settling.dead_letter_unpublished(topic, batch, first, now_ms)

    def split(
        self, topic: Topic, batch: RecordBatch, partition: int | None = None
    ) -> list[tuple[TopicPartition, RecordBatch]]:
        if partition is not None:
            target = self._state.partition(topic, partition)
            require_writable(target)
            return [(target, batch)]
        if len(topic.partitions) == 1:
            return [(topic.partitions[0], batch)]
        parts, topic.round_robin = split(batch, len(topic.partitions), topic.round_robin)
        pairs = zip(topic.partitions, parts, strict=True)
        found = [(target, part) for target, part in pairs if part is not None]
        if topic.quarantined:
            for target, _ in found:
                require_writable(target)
        return found

    # --- appending ---

    def append(
        self,
        targets: Sequence[TopicPartition],
        batch: RecordBatch,
        now_ms: int,
        *,
        durable: bool = True,
        settled: Sequence[Settled] = (),
        stamp: Stamp | None = None,
    ) -> Lsn | None:
        """Append to partitions and tell their subscriptions. No limits are checked."""
        store = self._state.store
        if self._state.clock.lead_ms:
            # Stamped with the engine's time; people are shown the wall clock's.
            batch = shifted(batch, self._state.clock.lead_ms)
        on_disk: list[TopicPartition] = []
        in_memory: list[TopicPartition] = []
        waits = False
        for target in targets:
            if durable and target.topic.journaled:
                on_disk.append(target)
                waits = waits or target.topic.policy.durability == "disk"
            else:
                in_memory.append(target)
        bases = [target.log.next_offset for target in targets]
        # Before it is in a log: that is to know that it shares the batch with others.
        twins = [
            batch.at_offset(target.log.next_offset) for target in in_memory[0 if on_disk else 1 :]
        ]
        lsn: Lsn | None = None
        if on_disk:
            meta = stamp.encode() if stamp is not None else b""
            lsn = store.append(batch, [t.log for t in on_disk], settled, meta)
        elif settled:
            for subscription, partition, start, stop in settled:
                store.acknowledge(subscription, partition, [(start, stop)])
        copies = twins if on_disk else [batch, *twins]
        for index, target in enumerate(in_memory):
            store.append_transient(copies[index], target.log)
        if stamp is not None:
            self.on_stamped(list(zip(targets, bases, strict=True)), stamp)
        for index, target in enumerate(targets):
            self._arrived(target, batch, bases[index], now_ms)
        # Only now: what one topic can't hold may go to another of them.
        for target in targets:
            if target.topic.bounded:
                self._settling.drop_overflow(target.topic, now_ms, arriving=True)
        return lsn if waits else None

    def _arrived(
        self, target: TopicPartition, batch: RecordBatch, base_offset: int, now_ms: int
    ) -> None:
        topic, state = target.topic, self._state
        topic.published += batch.count
        topic.last_used_ms = now_ms
        if target.open_transactions:
            self.on_undecided(target, batch, base_offset, now_ms)
        else:
            if batch.summary & FLAG_TIMED:
                self.schedule(target, batch, base_offset, now_ms)
            for view in target.views:
                view.state.published(batch, base_offset, now_ms, topic.lane_of, target.clock)
                state.mark_dirty(view.subscription)
        policy = topic.policy
        if policy.ttl_ms and not target.head_timer:
            due = now_ms + policy.ttl_ms
            target.head_timer = state.wheel.schedule(due, TimerKind.HEAD, target.log.id)
        if topic.limited and target.may_exceed(now_ms):
            self.retention_due[topic] = None

    def schedule(
        self,
        target: TopicPartition,
        batch: RecordBatch,
        base_offset: int,
        now_ms: int,
        start: int = 0,
        stop: int = OFFSET_MAX,
        clock: RecordClock | None = None,
    ) -> None:
        """Timers for records that become visible or expire at times of their own, in so far as
        they stand at offsets ``start`` … ``stop - 1``."""
        wheel, ahead = self._state.wheel, base_offset - batch.base_offset
        for offset, due, expires, dated in (clock or target.clock).timed(batch):
            offset += ahead
            if start <= offset < stop:
                if due > now_ms:
                    wheel.schedule(due, TimerKind.DUE, target.log.id, offset)
                if expires:
                    wheel.schedule(expires, TimerKind.EXPIRY, target.log.id, offset)
                if dated:
                    target.has_dates = True
