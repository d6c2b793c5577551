"""Doing is redoing: a store that is made from the entries of another is in the same state.

Random changes of every kind, and at random points a second store is opened from a copy of the disk:
from the whole journal, or from a snapshot and what came after it.
"""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SMALL, random_batch

from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.storage.catalogue import SUBSCRIPTIONS
from braidmq.storage.checkpoint import Checkpoint
from braidmq.storage.entries import Settled, encode_records_meta
from braidmq.storage.journal import Kind
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.durable_state import FIELDS, differences, fields_of, state_of
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll

ROOMY = StorageSettings(
    segment_bytes_max=4096, index_interval_bytes=256, journal_file_bytes=1 << 18
)
"""Nothing rolls by itself: all that was done is redone from the first entry on."""

QUEUE = SubscriptionId(1)
SUBSCRIBERS = [QUEUE, SubscriptionId(2), SubscriptionId(3)]


class Diary:
    """A participant that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.name = "diary"
        self.kinds = frozenset({Kind.DELIVERY, Kind.TRANSACTION, Kind.RECORDS})
        self.told: list[tuple[int, bytes]] = []
        self.transient: set[PartitionId] = set()

    def replay(self, kind: Kind, meta: bytes) -> None:
        self.told.append((kind, meta))

    def forget_partition(self, partition: PartitionId) -> None:
        if partition not in self.transient:
            self.told.append((0, b"%d" % partition))

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(self.told)

    def restore(self, data: bytes) -> None:
        self.told = msgspec.msgpack.decode(data, type=list[tuple[int, bytes]])


class Redo:
    """A store, and what of it is in no entry."""

    def __init__(self, given: StorageSettings) -> None:
        self.disk = FaultyDisk()
        self.diary = Diary()
        self.store = Store.open(self.disk, given, [self.diary])
        self.checkpoint: Checkpoint | None = None
        self.transient: set[tuple[int, int]] = set()
        """Records that no checkpoint has moved to segments."""
        self.moving: set[tuple[int, int]] = set()

    def log(self, rng: random.Random) -> PartitionLog:
        durable = [log for log in self.store.logs.values() if log.durable]
        return rng.choice(durable) if durable else self.create()

    def create(self) -> PartitionLog:
        log = self.store.create_partition(f"t/{self.store.journal.next_lsn}")
        as_queue(self.store, log)
        return log

    def span(self, rng: random.Random, log: PartitionLog) -> tuple[int, int]:
        start = rng.randint(log.start_offset, log.next_offset)
        return start, rng.randint(start, log.next_offset)

    def settled(self, rng: random.Random, log: PartitionLog) -> list[Settled]:
        start, stop = self.span(rng, log)
        return [(rng.choice(SUBSCRIBERS), log.id, start, stop)] if start < stop else []

    def append(self, rng: random.Random, settled: list[Settled]) -> None:
        every = [log for log in self.store.logs.values() if log.durable]
        logs = rng.sample(every, rng.randint(1, len(every)))
        stamp = rng.choice([b"", b"", b"stamp"])
        meta = encode_records_meta(logs, settled, stamp)
        self.store.append(random_batch(rng), logs, settled, stamp)
        if stamp:
            self.diary.replay(Kind.RECORDS, meta)

    def note(self, kind: Kind, meta: bytes) -> None:
        self.store.note(kind, meta)
        self.diary.replay(kind, meta)

    def append_transient(self, rng: random.Random, log: PartitionLog) -> None:
        before = log.next_offset
        self.store.append_transient(random_batch(rng), log)
        if log.durable:
            self.transient |= {(log.id, at) for at in range(before, log.next_offset)}

    def reset(self, subscription: SubscriptionId, log: PartitionLog, floor: int) -> None:
        self.store.reset_offsets(subscription, log.id, floor)
        log.evict()  # memory may hold what was settled, and is in no segment

    def begin(self) -> None:
        if self.checkpoint is None:
            self.checkpoint = self.store.begin_checkpoint()
            self.moving = set(self.transient)

    def finish(self) -> None:
        if self.checkpoint is not None:
            done, self.checkpoint = self.checkpoint, None
            self.store.commit()
            done.carry_out(self.disk, self.store.journal, self.store.settings)
            self.store.finish_checkpoint(done)
            self.transient -= self.moving

    def step(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        log = self.log(rng)
        match name:
            case "create":
                self.create()
            case "create transient":
                made = self.store.create_partition("memory", durable=False)
                self.diary.transient.add(made.id)
                self.append_transient(rng, made)
                self.store.offsets_of(QUEUE, made.id).add(0, 1)
            case "delete":
                self.store.delete_partition(rng.choice(list(self.store.logs)))
            case "append":
                self.append(rng, [])
            case "move":
                self.append(rng, self.settled(rng, log))
            case "transient":
                self.append_transient(rng, log)
            case "acknowledge":
                spans = sorted(self.span(rng, log) for _ in range(rng.randint(1, 3)))
                ranges = [span for span in spans if span[0] < span[1]]
                self.store.acknowledge(rng.choice(SUBSCRIBERS), log.id, ranges)
                if log.acknowledged:
                    self.store.release(log, log.acknowledged[0].floor)
            case "reset":
                self.reset(rng.choice(SUBSCRIBERS), log, self.span(rng, log)[0])
            case "advance":
                self.store.advance_start(log, self.span(rng, log)[0])
            case "change":
                value = rng.choice([None, rng.randbytes(3)])
                self.store.change([("facts", f"k{rng.randint(0, 3)}", value), ("facts", "k", b"")])
            case "subscription":
                subscription = rng.choice(SUBSCRIBERS[1:])
                self.store.append(random_batch(rng), [log])
                settled = (log.start_offset, log.next_offset)
                self.store.acknowledge(subscription, log.id, [settled])
                value = rng.choice([None, b"row"])
                self.store.change([(SUBSCRIPTIONS, str(subscription), value)])
            case "note":
                kind = rng.choice([Kind.DELIVERY, Kind.TRANSACTION])
                self.note(kind, rng.randbytes(rng.randint(0, 9)))
            case "begin":
                self.begin()
            case "finish":
                self.finish()
            case "redo":
                self.check(rng)

    def speak(self, rng: random.Random) -> None:
        """Entries that say how far partitions have been numbered, and the offsets of each."""
        self.create()
        for log in [each for each in self.store.logs.values() if each.durable]:
            end = log.next_offset
            match rng.randint(0, 3):
                case 0 if end:
                    self.store.acknowledge(SubscriptionId(3), log.id, [(end - 1, end)])
                case 1:
                    self.reset(SubscriptionId(3), log, end)
                case 2 if end:
                    settled = [(SubscriptionId(3), log.id, end - 1, end)]
                    other = self.create()
                    self.store.append(random_batch(rng), [other], settled)
                case 3:
                    self.store.append(random_batch(rng), [log])
                case _:
                    self.store.advance_start(log, end)

    def check(self, rng: random.Random) -> None:
        self.speak(rng)
        self.store.commit()
        done = state_of(self.store)
        redone = Store.open(self.disk.crash(KeepAll()), self.store.settings, [Diary()])
        for log in redone.logs.values():
            as_queue(redone, log)
        for number, shown in done["logs"].items():  # type: ignore[attr-defined]
            shown["records"] = [
                each for each in shown["records"] if (number, each[0]) not in self.transient
            ]
        found = differences(state_of(redone), done)
        redone.close()
        assert not found, "\n".join(found)


def as_queue(store: Store, log: PartitionLog) -> None:
    """Every second one forgets what is acknowledged."""
    if log.id % 2 and log.durable:
        log.acknowledged = (store.offsets_of(QUEUE, log.id),)


STEPS = [
    *["append"] * 5,
    *["move", "transient", "acknowledge", "subscription", "redo"] * 2,
    *["create", "create transient", "delete", "reset", "advance", "change"],
    *["note", "begin", "finish"],
]


@pytest.mark.parametrize("given_settings", [SMALL, ROOMY], ids=["small files", "one file"])
@settings(max_examples=150)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1 << 32)), max_size=60))
def test_what_was_done_is_redone(
    given_settings: StorageSettings, steps: list[tuple[str, int]]
) -> None:
    redo = Redo(given_settings)
    for name, seed in steps:
        redo.step(name, seed)
    redo.check(random.Random(len(steps)))
    redo.finish()
    redo.check(random.Random(0))


def test_a_new_field_is_durable_or_not() -> None:
    """Uncompiled or not, its fields are found."""
    state = Redo(ROOMY).store.state
    fields = FIELDS[type(state)]
    assert fields_of(state) == fields.durable | fields.volatile.keys()
    FIELDS[type(state)] = fields._replace(durable=fields.durable - {"acknowledged"})
    try:
        with pytest.raises(AssertionError, match=r"StoreState: durable or not.*acknowledged"):
            state_of(Redo(ROOMY).store)
    finally:
        FIELDS[type(state)] = fields
