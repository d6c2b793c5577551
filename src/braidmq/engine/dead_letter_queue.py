"""What happens to dead letters where they lie: they are looked at, brought back, or removed.

Where they lie is a log like others. A letter that was brought back or removed is settled for
everybody, subscriptions to come included (``CANCELLED``), in one step with its second life.
"""

from collections.abc import Iterator
from typing import NamedTuple

from braidmq.engine.appending import Appending, require_writable, split_by_partition
from braidmq.engine.dead_lettering import DeadLettering
from braidmq.engine.errors import (
    LetterInFlight,
    LetterUndecided,
    TopicFull,
    UnknownLetter,
    UnknownSubscription,
)
from braidmq.engine.limits import check_size, has_room
from braidmq.engine.removal import Removal
from braidmq.engine.state import CANCELLED, EngineState
from braidmq.engine.topics import Subscription, Topic, TopicPartition
from braidmq.record.batch import FLAG_CONTROL, Record, RecordBatch


class Revived(NamedTuple):
    """A dead letter, with the envelope for its second life."""

    record: Record
    envelope_format: int
    envelope: bytes
    partition: int | None = None
    """Where it died; where keys decide, what has one goes where its key goes now."""
    subscription: str | None = None
    """Who gave it up, and is the only one to get it again; None: everybody gets it."""


class Planned(NamedTuple):
    """What others that are to go to the same topic take of its room."""

    messages: int = 0
    size: int = 0


NOTHING_PLANNED = Planned()


class DeadLetterQueue:
    def __init__(
        self,
        state: EngineState,
        appending: Appending,
        removal: Removal,
        dead_lettering: DeadLettering,
    ) -> None:
        self._state = state
        self._appending = appending
        self._removal = removal
        self._dead_lettering = dead_lettering

    def records(self, place: Topic, start: int) -> Iterator[Record]:
        """What is there from an offset on, letters or not. May be gone on with later: what has
        gone meanwhile does not come. Raises PartitionQuarantined."""
        partition = place.partitions[0]
        start = max(start, partition.log.start_offset)
        for record in partition.records(start, partition.stable_offset):
            if not record.flags & FLAG_CONTROL and self.has(place, record.offset):
                yield record

    def has(self, place: Topic, offset: int) -> bool:
        """Whether somebody can still get what stands there: a queue's consumers have taken what
        they acknowledged, others may always come to a log."""
        partition = place.partitions[0]
        gone = self._state.cancelled(partition)
        if place.deleted or (gone is not None and offset in gone):
            return False
        if not place.until_acked or not partition.views:
            return True
        return any(offset not in view.state.settled for view in partition.views)

    def count(self, dead: Topic) -> int:
        """How many are there."""
        log = dead.partitions[0].log
        gone = self._state.store.acknowledged.get((CANCELLED, log.id))
        if gone is None:
            return log.next_offset - log.start_offset
        start = max(log.start_offset, gone.floor)
        ranges = gone.ranges_above_floor()
        taken = sum(stop - max(first, start) for first, stop in ranges if stop > start)
        return log.next_offset - start - taken

    def remove(self, place: Topic, offset: int, now_ms: int) -> None:
        """A letter is delivered to nobody any more. Raises UnknownLetter or LetterInFlight."""
        self._require_idle(place, offset)
        partition = place.partitions[0]
        self._state.cancel(partition, [(offset, offset + 1)])
        self._take_out(partition, offset, offset + 1, now_ms)

    def require_returnable(
        self,
        place: Topic,
        target: Topic,
        revived: Revived,
        now_ms: int,
        planned: Planned = NOTHING_PLANNED,
    ) -> None:
        """Raises what ``bring_back`` would, if others went before it."""
        self._plan(place, target, revived, now_ms, planned)

    def bring_back(self, place: Topic, target: Topic, revived: Revived, now_ms: int) -> None:
        """Publish a letter again where it died: in one step with taking it from where it lies, so
        that it is at one of both, whenever the node stops.

        Others than who gave it up had it, or will: they do not get it again. It is not put where
        it would push others out. Raises UnknownLetter, LetterInFlight, UnknownSubscription,
        TopicFull, MessageTooLarge, LetterUndecided, PartitionQuarantined.
        """
        to, batch, only = self._plan(place, target, revived, now_ms, NOTHING_PLANNED)
        partition, offset = place.partitions[0], revived.record.offset
        settled = [(CANCELLED, partition.log.id, offset, offset + 1)]
        self._appending.append([to], batch, now_ms, settled=settled, only=only)
        self._take_out(partition, offset, offset + 1, now_ms)

    def _plan(
        self, place: Topic, target: Topic, revived: Revived, now_ms: int, planned: Planned
    ) -> tuple[TopicPartition, RecordBatch, Subscription | None]:
        target.require_existing()
        self._require_idle(place, revived.record.offset)
        only = None
        if revived.subscription is not None:
            only = target.subscriptions.get(revived.subscription)
            if only is None:
                raise UnknownSubscription(
                    f"topic {target.name!r} has no subscription {revived.subscription!r} any more",
                    remedy="Return it to the topic, for all of its subscriptions",
                )
        batch = _second_life(revived, now_ms)
        check_size(target, batch)
        if not has_room(target, planned.messages + 1, planned.size + batch.value_bytes):
            raise TopicFull(f"topic {target.name!r} has no room for it")
        to = self._partition_for(target, revived, batch)
        if only is not None and to.open_transactions:
            raise LetterUndecided(
                f"a transaction is open in partition {to.number} of {target.name!r}"
            )
        return to, batch, only

    def _partition_for(self, target: Topic, revived: Revived, batch: RecordBatch) -> TopicPartition:
        number, by_key = revived.partition, target.by_key and revived.record.key is not None
        if number is not None and number < target.width and not by_key:
            require_writable(target.partitions[number])
            return target.partitions[number]
        ((to, _),) = split_by_partition(target, batch)
        require_writable(to)
        return to

    def _require_idle(self, place: Topic, offset: int) -> None:
        """Nobody has it: not a consumer, and not dead-lettering, on its way from here."""
        if not self.has(place, offset):
            raise UnknownLetter(f"no dead letter is at offset {offset} of {place.name!r}")
        for view in place.partitions[0].views:
            if view.state.attempt_runs(offset, offset + 1):
                raise LetterInFlight(f"a consumer of {place.name!r} has letter {offset}")
            if self._dead_lettering.is_moving(view, offset):
                raise UnknownLetter(f"letter {offset} of {place.name!r} died there as well")

    def _take_out(self, partition: TopicPartition, start: int, stop: int, now_ms: int) -> None:
        for view in list(partition.views):
            for run in partition.runs(start, stop):
                self._removal.drop(view, run, now_ms, "removed", dead_letter=False)


def _second_life(revived: Revived, now_ms: int) -> RecordBatch:
    record = revived.record
    batch = RecordBatch()
    batch.append(
        record.value,
        key=record.key,
        envelope=revived.envelope,
        envelope_format=revived.envelope_format,
        flags=record.flags & ~FLAG_CONTROL,
        priority=record.priority,
        timestamp_ms=now_ms,
    )
    return batch
