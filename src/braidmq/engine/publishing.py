"""Publishing: sizes and limits, what was published before, and partitions."""

from collections.abc import Sequence

from braidmq.engine.appending import (
    Appending,
    Placed,
    Published,
    split_by_partition,
)
from braidmq.engine.dead_lettering import DeadLettering
from braidmq.engine.deduplication import Deduplication, picked
from braidmq.engine.errors import TopicFull
from braidmq.engine.limits import check_place, check_size, room
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.engine.transactions.publishing import Origin, StampedPublishing
from braidmq.engine.transactions.staging import Staging, is_staged
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import Lsn
from braidmq.record.batch import RecordBatch


class Publishing:
    def __init__(
        self,
        state: EngineState,
        appending: Appending,
        dead_lettering: DeadLettering,
        deduplication: Deduplication,
        stamped: StampedPublishing,
        staging: Staging,
    ) -> None:
        self._state = state
        self._appending = appending
        self._dead_lettering = dead_lettering
        self._deduplication = deduplication
        self._stamped = stamped
        self._staging = staging

    def publish(
        self,
        topic: Topic,
        batch: RecordBatch,
        now_ms: int,
        *,
        partition: int | None = None,
        durable: bool = True,
        origin: Origin | None = None,
    ) -> Published:
        """Take a batch for a topic; it is confirmed once ``Published.lsn`` is durable. Raises
        TopicFull when not even one record fits.

        With an ``origin`` it is written once, however often it is sent, or visible only when its
        transaction commits.
        """
        if topic.deleted:
            topic.require_existing()
        if partition is None and topic.needs_partition:
            check_place(topic)
        if self._state.quotas.limits_storage:
            self._state.quotas.store(topic.namespace, batch.size)
        if origin is not None:
            if is_staged(origin):
                return self._staging.stage([topic], batch, now_ms, origin, partition)
            return self._stamped.publish(
                topic, batch, now_ms, origin, partition=partition, durable=durable
            )
        return self._take(topic, batch, now_ms, partition, durable)

    def _take(
        self, topic: Topic, batch: RecordBatch, now_ms: int, partition: int | None, durable: bool
    ) -> Published:
        check_size(topic, batch)
        if topic.is_quarantined:
            raise topic.partitions[0].log.quarantined()
        if topic.deduplicates:
            return self._publish_new(topic, batch, now_ms, partition, durable)
        return self._publish(topic, batch, now_ms, partition, durable)

    def _publish_new(
        self, topic: Topic, batch: RecordBatch, now_ms: int, partition: int | None, durable: bool
    ) -> Published:
        """Without the messages that were published before: those count as taken."""
        new = self._deduplication.new_ones(topic, batch, now_ms)
        # What was written before may still be on its way to the disk.
        before = None if len(new) == batch.count else self._state.store.journal.last_lsn
        if not new:
            return Published(before, batch.count)
        chosen = picked(batch, [index for index, _ in new])
        done = self._publish(topic, chosen, now_ms, partition, durable)
        self._deduplication.note(topic, [name for _, name in new[: done.accepted]], now_ms)
        accepted = batch.count if done.accepted == len(new) else new[done.accepted][0]
        return Published(done.lsn or before, accepted, done.placed)

    def _publish(
        self, topic: Topic, batch: RecordBatch, now_ms: int, partition: int | None, durable: bool
    ) -> Published:
        fitting = batch.count
        if topic.bounded:
            fitting = room(topic, batch)
            if fitting < batch.count:
                batch = self._cut(topic, batch, fitting, now_ms)
        lsn: Lsn | None = None
        placed: list[Placed] = []
        for target, part in split_by_partition(topic, batch, partition):
            placed.append((target.number, target.log.next_offset, part.count))
            lsn = self._appending.append([target], part, now_ms, durable=durable) or lsn
        return Published(lsn, fitting, placed)

    def fan_out(
        self,
        topics: Sequence[Topic],
        batch: RecordBatch,
        now_ms: int,
        *,
        partition: int | None = None,
        durable: bool = True,
        origin: Origin | None = None,
    ) -> Published:
        """One batch for many topics, its bytes written once.

        Topics that are full or quarantined refuse it for themselves; ``accepted`` is the least any
        topic took. A ``partition`` is one of each topic: where one of them has none of that number
        nothing is written.
        """
        for topic in topics:
            topic.require_existing()
            if partition is None:
                check_place(topic)
        if self._state.quotas.limits_storage and topics:
            self._state.quotas.store(topics[0].namespace, batch.size * len(topics))
        if origin is not None:
            if is_staged(origin):
                return self._staging.stage(topics, batch, now_ms, origin, partition)
            return self._stamped.fan_out(
                topics, batch, now_ms, origin, partition=partition, durable=durable
            )
        if partition is not None:
            for topic in topics:
                topic.open_partition(partition)
        if len(topics) == 1:
            return self._take(topics[0], batch, now_ms, partition, durable)
        targets: list[TopicPartition] = []
        accepted = batch.count
        lsn: Lsn | None = None
        for topic in topics:
            check_size(topic, batch)
        for topic in topics:
            fitting = room(topic, batch) if topic.bounded else batch.count
            plain = not topic.deduplicates and not topic.quarantined
            together = partition is not None or topic.width == 1
            if together and plain and fitting == batch.count:
                targets.append(topic.partitions[partition or 0])
                continue
            if plain and not fitting:
                self._refuse(topic, batch, 0, now_ms)
                accepted = 0
                continue
            # Its records part ways, or not all are written: it needs a batch of its own.
            try:
                copy = RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
                one = self._take(topic, copy, now_ms, partition, durable)
                accepted, lsn = min(accepted, one.accepted), one.lsn or lsn
            except TopicFull:
                accepted = 0
            except PartitionQuarantined:
                self._state.totals.of(topic.namespace).dropped["quarantined"] += batch.count
                accepted = 0
        if targets:
            lsn = self._appending.append(targets, batch, now_ms, durable=durable) or lsn
        return Published(lsn, accepted)

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
            self._dead_lettering.move_unpublished(topic, batch, first, now_ms)
