"""What a store keeps, as its snapshot and the entries of its journal make it.

Doing is redoing: for every kind of entry there is one method that changes the state. ``Store``
calls it with what it has just journaled, and ``apply`` with the same read back from a journal:

    the first time    journal.append(kind, contents) ─┐
                                                      ├─► one method a kind ─► the state
    again             apply(entry): decode contents ──┘

Recovery replays the journal through ``apply``, and so will whoever follows another node's.
What is not journaled when it is done is said with the next checkpoint: where logs begin whose
records all have acknowledged, and where they end behind records that were never journaled
(``unsaid``), by its own entry; where no record stands (``left_out``), by an acknowledgement before
it. So at every checkpoint the state is a function of the entries: ``digest`` is the same for all
who have them.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from braidmq.model.errors import StateDiverged
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits, OffsetSet
from braidmq.storage import quarantine
from braidmq.storage.catalogue import (
    COUNTERS,
    IN_MEMORY,
    PARTITIONS,
    SUBSCRIPTIONS,
    Catalogue,
    Change,
    decode_changes,
)
from braidmq.storage.entries import (
    LOG_START,
    RESET,
    TERM,
    LogEnds,
    Ranges,
    Settled,
    decode_acknowledged,
    decode_checkpoint,
    decode_records_meta,
)
from braidmq.storage.journal import Entry, Kind
from braidmq.storage.leftovers import RecoveryReport
from braidmq.storage.participant import Participant
from braidmq.storage.partition_log import Memory, PartitionLog
from braidmq.storage.quarantine import QUARANTINE, Damage
from braidmq.storage.segment import OpenFiles, Segment
from braidmq.storage.snapshot import AcknowledgedState, PartitionState, State

FEW_PARTITIONS = 16
"""So many of a subscription are copied each time another comes."""

DIGEST_SIZE = 8

OnDamage = Callable[[PartitionLog, Damage], None]


class StoreState:
    def __init__(
        self,
        files: OpenFiles,
        index_interval: int,
        on_damage: OnDamage,
        participants: Sequence[Participant],
    ) -> None:
        self.catalogue = Catalogue()
        self.logs: dict[PartitionId, PartitionLog] = {}
        self.acknowledged: dict[tuple[SubscriptionId, PartitionId], OffsetSet] = {}
        self.next_partition = 1
        self.terms: list[tuple[int, int]] = []
        """Terms, and the LSN of the entry that each began with; none where nobody ever followed."""
        self.participants = {each.name: each for each in participants}
        self.memory = Memory()
        self.recovery = RecoveryReport()
        self.dirty: dict[PartitionId, PartitionLog] = {}
        """Logs with records that no checkpoint has moved to segments."""
        self.evictable: OrderedDict[PartitionId, PartitionLog] = OrderedDict()
        self.unsaid: dict[PartitionId, PartitionLog] = {}
        """Logs of which no entry says where they begin or end: the next checkpoint's does."""
        self.left_out: dict[tuple[SubscriptionId, PartitionId], OffsetBits] = {}
        """Where no record stands, so that it counts as acknowledged, and no entry says so."""
        self.checks_digest = False
        """Whether these are another's entries: what their checkpoints say of the state has to be
        true of this one."""
        self.obsolete: list[Segment] = []
        """Segments that nobody wants: the next checkpoint removes them."""
        self._subscribers: dict[PartitionId, dict[SubscriptionId, None]] = {}
        self._acknowledging: dict[
            SubscriptionId, tuple[PartitionId, ...] | dict[PartitionId, None]
        ] = {}
        """Mostly one: a tuple takes a quarter of the memory of a dict, and topics are many."""
        self.by_kind = {kind: each for each in participants for kind in each.kinds}
        self._files = files
        self._index_interval = index_interval
        self._on_damage = on_damage

    # --- one method a kind: the first time, and when it is replayed ---

    def append(
        self, batch: RecordBatch, logs: Sequence[PartitionLog], settled: Sequence[Settled]
    ) -> None:
        """RECORDS: a batch at the end of each log, and what is settled in the same step."""
        if settled:
            for subscription, partition, start, stop in settled:
                self.acknowledge(subscription, partition, [(start, stop)])
        first = logs[0]
        batch.place(first.next_offset)
        # Before it is in a log: there it may grow, which moves its memory.
        twins = [batch.at_offset(log.next_offset) for log in logs[1:]] if len(logs) > 1 else []
        first.append(batch)
        self.dirty[first.id] = first
        for index, twin in enumerate(twins, 1):
            log = logs[index]
            log.append(twin)
            self.dirty[log.id] = log

    def acknowledge(
        self, subscription: SubscriptionId, partition: PartitionId, ranges: Ranges
    ) -> None:
        """ACKNOWLEDGED"""
        offsets = self.offsets_of(subscription, partition)
        for start, stop in ranges:
            offsets.add(start, stop)

    def change(self, changes: Sequence[Change]) -> None:
        """CATALOGUE: rows, and what stands and falls with them."""
        self.catalogue.apply(changes)
        for table, key, value in changes:
            if table == PARTITIONS:
                self._set_partition(PartitionId(int(key)), value)
            elif table == SUBSCRIPTIONS:
                if value is None:
                    self.forget_subscription(SubscriptionId(int(key)))
            elif table == QUARANTINE:
                self._set_quarantine(PartitionId(int(key)), value)
            elif table == IN_MEMORY:
                self._set_in_memory(PartitionId(int(key)), value)
            elif table == COUNTERS and key == PARTITIONS and value is not None:
                self.next_partition = max(self.next_partition, int(value))

    def advance_start(self, log: PartitionLog, offset: int) -> None:
        """LOG_START"""
        self.obsolete.extend(log.advance_start(offset))

    def reset(self, subscription: SubscriptionId, partition: PartitionId, floor: int) -> None:
        """RESET"""
        self.offsets_of(subscription, partition).reset(floor)

    def begin_term(self, term: int, lsn: int) -> None:
        """TERM"""
        self.terms.append((term, lsn))

    @property
    def term(self) -> int:
        """That of the last entry; 0 before the first."""
        return self.terms[-1][0] if self.terms else 0

    def checkpoint(self, ends: Sequence[LogEnds]) -> None:
        """CHECKPOINT: whether a snapshot came of it, the file tells."""
        for partition, start, following in ends:
            log = self.logs.get(PartitionId(partition))
            if log is not None:
                log.pass_over(following)
                self.advance_start(log, start)
        self.unsaid.clear()
        self.left_out.clear()

    # --- entries that are read back ---

    def apply(self, entry: Entry) -> None:
        """Do what an entry says, as it was done when it was written."""
        _APPLY[Kind(entry.kind)](self, entry)

    def _apply_records(self, entry: Entry) -> None:
        targets, moved, stamp = decode_records_meta(entry.meta)
        settled = [
            (SubscriptionId(subscription), PartitionId(partition), start, stop)
            for subscription, partition, start, stop in moved
        ]
        logs = [self._target(PartitionId(partition)) for partition, _ in targets]
        bases = [base for _, base in targets]
        # The entry's own checksum has vouched for these bytes.
        batch = RecordBatch.scan(entry.payload, base_offset=bases[0], verify=False)
        if any(base < log.flushed_offset for log, base in zip(logs, bases, strict=True)):
            self._append_missing(batch, logs, bases, settled)
        else:
            for log, base in zip(logs, bases, strict=True):
                log.pass_over(base)
            self.append(batch, logs, settled)
            self.recovery.records += batch.count * len(logs)
        for _, partition, _, stop in settled:
            self._reach(partition, stop)  # only now: it may be one of these records
        if stamp:
            self.by_kind[Kind.RECORDS].replay(Kind.RECORDS, entry.meta)

    def _target(self, partition: PartitionId) -> PartitionLog:
        if partition not in self.logs:
            self.recovery.notes.append(f"partition {partition} has records but no name any more")
            self.change([(PARTITIONS, str(partition), f"partition-{partition}".encode())])
        return self.logs[partition]

    def _append_missing(
        self,
        batch: RecordBatch,
        logs: Sequence[PartitionLog],
        bases: Sequence[int],
        settled: Sequence[Settled],
    ) -> None:
        """Rebuilt without a snapshot: the segments may hold some of these already."""
        for subscription, partition, start, stop in settled:
            self.acknowledge(subscription, partition, [(start, stop)])
        for log, base in zip(logs, bases, strict=True):
            whole = batch.at_offset(base)
            start = min(max(base, log.flushed_offset), whole.next_offset)
            rest = RecordBatch.scan(
                whole.slice(start, whole.next_offset), base_offset=start, verify=False
            )
            if rest.count:
                log.pass_over(start)
                self.append(rest, [log], ())
                self.recovery.records += rest.count

    def _apply_acknowledged(self, entry: Entry) -> None:
        subscription, partition, ranges = decode_acknowledged(entry.meta)
        if ranges:
            self._reach(partition, ranges[-1][1])
        self.acknowledge(subscription, partition, ranges)

    def _apply_catalogue(self, entry: Entry) -> None:
        self.change(decode_changes(entry.meta))

    def _apply_log_start(self, entry: Entry) -> None:
        partition, offset = LOG_START.unpack(entry.meta)
        self._reach(PartitionId(partition), offset)
        log = self.logs.get(PartitionId(partition))
        if log is not None:
            self.advance_start(log, offset)

    def _apply_reset(self, entry: Entry) -> None:
        subscription, partition, floor = RESET.unpack(entry.meta)
        self._reach(PartitionId(partition), floor)
        self.reset(SubscriptionId(subscription), PartitionId(partition), floor)

    def _apply_note(self, entry: Entry) -> None:
        self.by_kind[Kind(entry.kind)].replay(Kind(entry.kind), entry.meta)

    def _apply_term(self, entry: Entry) -> None:
        term, _, _ = TERM.unpack(entry.meta)
        self.begin_term(term, entry.lsn)

    def _apply_checkpoint(self, entry: Entry) -> None:
        ends, digest = decode_checkpoint(entry.meta)
        self.checkpoint(ends)
        if digest and self.checks_digest and digest != self.digest():
            raise StateDiverged(entry.lsn)

    def _reach(self, partition: PartitionId, offset: int) -> None:
        """An entry speaks of offsets below this one. Transient records had them, if nothing in the
        journal has: they are not used again."""
        log = self.logs.get(partition)
        if log is not None:
            log.pass_over(offset)

    # --- what stands and falls with rows of the catalogue ---

    def _set_partition(self, partition: PartitionId, label: bytes | None) -> None:
        if label is None:
            self.drop_log(partition)
            key = str(partition)
            self.catalogue.apply([(QUARANTINE, key, None), (IN_MEMORY, key, None)])
        elif partition not in self.logs:
            self.add_log(partition, label.decode())

    def add_log(self, partition: PartitionId, label: str) -> PartitionLog:
        log = self.logs[partition] = PartitionLog(
            partition,
            label,
            memory=self.memory,
            files=self._files,
            index_interval=self._index_interval,
        )
        log.on_damage = self._on_damage
        self.next_partition = max(self.next_partition, partition + 1)
        return log

    def drop_log(self, partition: PartitionId) -> None:
        """With all that anybody keeps of it."""
        log = self.logs.pop(partition, None)
        if log is not None:
            self.obsolete.extend(log.advance_start(log.next_offset))
            self.dirty.pop(partition, None)
            self.unsaid.pop(partition, None)
            self.evictable.pop(partition, None)
        self.forget_progress(partition)

    def _set_in_memory(self, partition: PartitionId, reserved: bytes | None) -> None:
        log = self.logs.get(partition)
        if log is not None and reserved is not None:
            log.keep_in_memory(int(reserved))

    def begin_anew(self) -> None:
        """After a restart: of logs in memory nothing is left, nor of what anybody had done with
        their records."""
        for log in [log for log in self.logs.values() if log.in_memory]:
            self.forget_progress(log.id)
            log.begin_anew()

    def forget_progress(self, partition: PartitionId) -> None:
        """What anybody keeps of a partition's records."""
        for subscription in list(self._subscribers.get(partition, ())):
            self.forget_offsets(subscription, partition)
        for participant in self.participants.values():
            participant.forget_partition(partition)

    def _set_quarantine(self, partition: PartitionId, value: bytes | None) -> None:
        log = self.logs.get(partition)
        if log is not None:
            log.damage = quarantine.decode_damage(value) if value is not None else None

    # --- what subscriptions have acknowledged ---

    def offsets_of(self, subscription: SubscriptionId, partition: PartitionId) -> OffsetSet:
        found = self.acknowledged.get((subscription, partition))
        if found is None:
            found = OffsetSet()
            self._add_offsets(subscription, partition, found)
        return found

    def _add_offsets(
        self, subscription: SubscriptionId, partition: PartitionId, offsets: OffsetSet
    ) -> None:
        if (subscription, partition) not in self.acknowledged:
            self._subscribers.setdefault(partition, {})[subscription] = None
            known = self._acknowledging.get(subscription, ())
            if isinstance(known, dict):
                known[partition] = None
            elif len(known) < FEW_PARTITIONS:
                self._acknowledging[subscription] = (*known, partition)
            else:
                self._acknowledging[subscription] = dict.fromkeys((*known, partition))
        self.acknowledged[subscription, partition] = offsets

    def forget_offsets(self, subscription: SubscriptionId, partition: PartitionId) -> None:
        self._forget_offsets(subscription, partition)
        known = self._acknowledging.get(subscription)
        if isinstance(known, dict):
            known.pop(partition, None)
        elif known == (partition,):
            del self._acknowledging[subscription]

    def forget_subscription(self, subscription: SubscriptionId) -> None:
        for partition in self._acknowledging.pop(subscription, ()):
            self._forget_offsets(subscription, partition)

    def _forget_offsets(self, subscription: SubscriptionId, partition: PartitionId) -> None:
        if self.acknowledged.pop((subscription, partition), None) is not None:
            subscribers = self._subscribers[partition]
            del subscribers[subscription]
            if not subscribers:
                del self._subscribers[partition]

    # --- what others have to agree on ---

    def ends(self) -> list[LogEnds]:
        """What the next checkpoint has to say."""
        return [
            (log.id, log.start_offset, log.next_offset)
            for log in self.unsaid.values()
            if log.is_kept and self.logs.get(log.id) is log
        ]

    def leave_out(
        self, subscription: SubscriptionId, partition: PartitionId, start: int, stop: int
    ) -> None:
        """A subscription's set has these, and only this was told of it."""
        found = self.left_out.get((subscription, partition))
        if found is None:
            found = self.left_out[subscription, partition] = OffsetBits()
        found.add(start, stop)

    def take_left_out(self) -> Iterator[tuple[SubscriptionId, PartitionId, Ranges]]:
        """What of it still holds: a set may have begun anew since."""
        taken, self.left_out = self.left_out, {}
        for (subscription, partition), bits in taken.items():
            log = self.logs.get(partition)
            offsets = self.acknowledged.get((subscription, partition))
            if log is None or not log.is_kept or offsets is None:
                continue
            ranges: list[tuple[int, int]] = []
            for start, stop in bits.ranges(log.start_offset, log.next_offset):
                if start < offsets.floor:
                    ranges.append((start, min(stop, offsets.floor)))
                ranges += offsets.ranges(max(start, offsets.floor), stop)
            if ranges:
                yield subscription, partition, ranges

    def pass_over(self, log: PartitionLog, offset: int) -> None:
        """Records that were never journaled had the offsets below, and no entry says it."""
        if offset > log.next_offset:
            log.pass_over(offset)
            self.unsaid[log.id] = log

    def digest(self) -> bytes:
        """Of everything but records and what participants keep: whoever has done the same entries
        up to a checkpoint's has the same. Nothing is below the start of a log, and a set of nothing
        is none."""
        kept = sorted((log for log in self.logs.values() if log.is_kept), key=lambda log: log.id)
        starts = {log.id: log.start_offset for log in kept}
        rows = [(log.id, log.label, log.start_offset, log.next_offset) for log in kept]
        sets = [
            (*key, settled.to_bytes())
            for key, offsets in sorted(self.acknowledged.items())
            if (start := starts.get(key[1])) is not None
            if (settled := _from_start(offsets, start)) is not None
        ]
        whole = msgspec.msgpack.encode((self.catalogue.rows(), rows, sets, self.terms))
        return hashlib.blake2b(whole, digest_size=DIGEST_SIZE).digest()

    # --- snapshots ---

    def load(self, state: State) -> None:
        """Begin from a snapshot."""
        self.catalogue.load(state.catalogue)
        counter = self.catalogue.get(COUNTERS, PARTITIONS)
        self.next_partition = int(counter) if counter is not None else 1
        for key, label in self.catalogue.items(PARTITIONS):
            self.add_log(PartitionId(int(key)), label.decode())
        for key, reserved in self.catalogue.items(IN_MEMORY):
            self._set_in_memory(PartitionId(int(key)), reserved)
        for key, damage in self.catalogue.items(QUARANTINE):
            self._set_quarantine(PartitionId(int(key)), damage)
        for each in state.partitions:
            log = self.logs.get(PartitionId(each.partition))
            if log is not None:
                log.start_offset = each.start_offset
                log.next_offset = each.next_offset
                log.flushed_offset = each.flushed_offset
                log.segments = list(each.segments)
        for acknowledged in state.acknowledged:
            self._add_offsets(
                SubscriptionId(acknowledged.subscription),
                PartitionId(acknowledged.partition),
                OffsetSet.from_bytes(acknowledged.offsets),
            )
        self.terms = list(state.terms)
        for name, participant in self.participants.items():
            if name in state.sections:
                participant.restore(state.sections[name])

    def dump_acknowledged(self) -> list[AcknowledgedState]:
        return [
            AcknowledgedState(subscription, partition, offsets.to_bytes())
            for (subscription, partition), offsets in self.acknowledged.items()
            if (log := self.logs.get(partition)) is not None and log.is_kept
        ]

    def dump_logs(self, planned: set[PartitionId]) -> list[PartitionState]:
        """Of logs that a checkpoint leaves as they are."""
        return [
            PartitionState(
                log.id, log.start_offset, log.next_offset, log.flushed_offset, log.segments[:]
            )
            for log in self.logs.values()
            if log.is_kept and log.id not in planned
        ]

    def dump_sections(self) -> dict[str, bytes]:
        return {name: each.dump() for name, each in self.participants.items()}

    def adopt(self, label: str, found: Segment) -> PartitionLog:
        """Without a snapshot: what a segment says of itself has to do."""
        partition = PartitionId(found.partition)
        if partition not in self.logs:
            self.change([(PARTITIONS, str(partition), label.encode())])
        log = self.logs[partition]
        if not log.segments:
            log.start_offset = found.base_offset
        log.segments.append(found)
        log.flushed_offset = log.next_offset = found.end_offset
        return log

    def segments(self) -> list[Segment]:
        return [each for log in self.logs.values() for each in log.segments]


def _from_start(offsets: OffsetSet, start: int) -> OffsetSet | None:
    """None when there is nothing of it."""
    found = OffsetSet.from_bytes(offsets.to_bytes())
    found.add(0, start)
    return found if found.floor > start or found.ranges_above_floor() else None


_APPLY: dict[Kind, Callable[[StoreState, Entry], None]] = {
    Kind.RECORDS: StoreState._apply_records,
    Kind.ACKNOWLEDGED: StoreState._apply_acknowledged,
    Kind.CATALOGUE: StoreState._apply_catalogue,
    Kind.LOG_START: StoreState._apply_log_start,
    Kind.RESET: StoreState._apply_reset,
    Kind.TRANSACTION: StoreState._apply_note,
    Kind.DELIVERY: StoreState._apply_note,
    Kind.CHECKPOINT: StoreState._apply_checkpoint,
    Kind.TERM: StoreState._apply_term,
}
