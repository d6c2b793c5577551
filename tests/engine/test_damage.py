"""Flip, cut and delete at every kind of file of a populated directory.

Whatever is damaged: nothing is lost in silence, no file goes that was not known to be dead, all
other topics are served, and whoever is refused something is told the file and the byte.

``DAMAGE_CASES`` and ``DAMAGE_SEED`` ask for more, or for the same again: ``make damage CASES=500``.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from engine_worlds import DAY, NOW, NS, SMALL, roomy

from braidmq.engine.engine import Engine
from braidmq.engine.topics import Topic
from braidmq.model.errors import BraidError, CorruptData, ForeignFile, PartitionQuarantined
from braidmq.record.batch import RecordBatch
from braidmq.storage import aside, journal, snapshot
from braidmq.storage.disk import Disk
from braidmq.storage.repair import Dropped, skip_damaged_entry
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll

CASES = int(os.environ.get("DAMAGE_CASES", "60"))
SEED = int(os.environ.get("DAMAGE_SEED", "15"))
REPAIRS_MAX = 20

QUEUES = ("orders", "left", "right", "healthy")
TOPICS = (*QUEUES, "prices")
"""``left`` and ``right`` share their bodies; ``prices`` is compacted."""

QUEUE = {"partitions": 1, "retention": {"until_acked": True}}
COMPACTED = {"partitions": 1, "compaction": {"enabled": True}, "retention": {}}
HARMS = ("flip", "cut", "delete")


@dataclass
class Populated:
    disk: FaultyDisk
    expected: dict[str, list[bytes]] = field(default_factory=dict)
    """What a reader of each topic has to get."""
    lsns: dict[bytes, int] = field(default_factory=dict)
    """The entry that each value came with."""
    acknowledged: set[bytes] = field(default_factory=set)
    """Nobody misses these."""
    kinds: dict[str, list[str]] = field(default_factory=dict)
    records_lost_max: int = 1
    """By one flipped bit: a block of compressed records is lost as a whole."""
    used: dict[str, int] = field(default_factory=dict)
    """How much of a file means anything: journal files are as long as they may get."""


def batch_of(*values: bytes, key: bytes | None = None) -> RecordBatch:
    batch = RecordBatch()
    for value in values:
        batch.append(value, key=key, timestamp_ms=NOW)
    return batch


def populate(compression: str) -> Populated:
    found = Populated(FaultyDisk(), records_lost_max=1 if compression == "none" else 3 * 12)
    engine = Engine.open(found.disk, NOW, SMALL)
    for name in QUEUES:
        settings = QUEUE | {"compression": compression}
        topic = engine.topics.create(NS, name, settings, now_ms=NOW)
        engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    engine.topics.create(NS, "prices", COMPACTED | {"compression": compression}, now_ms=NOW)
    for round_number in range(14):
        publish_round(engine, found, round_number)
        if round_number % 3 == 2:
            engine.store.checkpoint()
        if round_number == 9:
            list(engine.compacting.compact(engine.state.topic(NS, "prices"), NOW + DAY))
            engine.store.checkpoint()
    engine.store.journal.roll()
    publish_round(engine, found, 14)
    engine.store.commit()
    acknowledge_some(engine, found)
    engine.close()
    reread(found)
    classify(found)
    return found


def publish_round(engine: Engine, found: Populated, number: int) -> None:
    def note(values: list[bytes], lsn: int | None) -> None:
        assert lsn is not None
        found.lsns |= dict.fromkeys(values, lsn)

    for name in ("orders", "healthy"):
        for part in range(3):
            values = [b"%s-%d-%d-%d" % (name.encode(), number, part, at) * 4 for at in range(3)]
            note(
                values,
                engine.publishing.publish(
                    engine.state.topic(NS, name), batch_of(*values), now_ms=NOW
                ).lsn,
            )
    for part in range(2):
        values = [b"shared-%d-%d-%d" % (number, part, at) * 40 for at in range(2)]
        both = [engine.state.topic(NS, "left"), engine.state.topic(NS, "right")]
        note(values, engine.publishing.fan_out(both, batch_of(*values), now_ms=NOW).lsn)
    for at in range(12):
        value = b"price-%d-%d" % (number, at) * 6
        key = b"key-%d" % (at % 9 + number % 4) if at else b"only-%d" % number
        batch = batch_of(value, key=key)
        note(
            [value],
            engine.publishing.publish(engine.state.topic(NS, "prices"), batch, now_ms=NOW).lsn,
        )
    engine.store.commit()


def acknowledge_some(engine: Engine, found: Populated) -> None:
    """So that acknowledgements are in the journal, too, and gaps in the queue."""
    subscription = engine.state.topic(NS, "orders").subscriptions["s"]
    consumer = engine.consumers.attach(subscription, now_ms=NOW, credits=roomy(7), passive=True)
    for each in engine.dispatching.pull(consumer, 7, now_ms=NOW):
        found.acknowledged |= {
            each.batch.record(at).value or b"" for at in range(each.first_index, each.stop_index)
        }
        engine.settling.ack(consumer, each.view, each.start_offset, each.end_offset)
    engine.store.commit()


def reread(found: Populated) -> None:
    engine = Engine.open(found.disk.crash(KeepAll()), NOW, SMALL)
    found.expected = {name: read(engine, engine.state.topic(NS, name)) for name in TOPICS}
    assert len(found.expected["healthy"]) == 15 * 9
    engine.close()


def classify(found: Populated) -> None:
    disk, kinds = found.disk, found.kinds
    newest, older = snapshot.names(disk)
    first_epoch = snapshot.load(disk, newest).first_epoch
    kinds |= {"snapshot in use": [newest], "older snapshot": [older]}
    kinds["both snapshots"] = [newest]
    with_entries = []
    for epoch in journal.journal_epochs(disk):
        path = journal.file_name(epoch)
        view = disk.open(path).map()
        salt = journal.check_file_header(path, view, epoch)
        lsn = journal.first_lsn(view, journal.ENTRIES_START, salt)
        _, found.used[path], _ = journal.scan_entries(view, journal.ENTRIES_START, salt, lsn)
        if epoch < first_epoch:
            kinds.setdefault("journal of the older snapshot", []).append(path)
        elif lsn:
            with_entries.append(path)
    kinds |= {"current journal": with_entries[-1:], "closed journal": with_entries[:-1]}
    state = snapshot.load(disk, newest).state
    for each in [each for partition in state.partitions for each in partition.segments]:
        found.used[each.path] = each.size
        kinds.setdefault("sealed segment" if each.sealed else "open segment", []).append(each.path)
        if each.generation:
            kinds.setdefault("compacted segment", []).append(each.path)
    for suffix in ("index", "keys", "bodies"):
        names = [name for name in disk.list("segments") if name.endswith(f".{suffix}")]
        kinds[suffix] = [f"segments/{name}" for name in names]
    kinds |= {"FORMAT": ["FORMAT"], "LOCK": ["LOCK"]}
    assert all(kinds.values()), kinds
    assert len(kinds) == 14, "every kind of file is there"


@pytest.fixture(scope="module", params=["none", "zstd"])
def populated(request: pytest.FixtureRequest) -> Populated:
    return populate(request.param)


# --- harming ---


@dataclass
class Case:
    kind: str
    path: str
    harm: str
    position: int

    def apply(self, disk: FaultyDisk) -> None:
        paths = snapshot.names(disk) if self.kind == "both snapshots" else [self.path]
        for path in paths:
            if self.harm == "delete":
                disk.remove(path)
            elif self.harm == "cut":
                disk.open(path).truncate(min(self.position, disk.size(path) - 1))
            else:
                disk.flip_bit(path, min(self.position, disk.size(path) - 1), self.position % 8)


def cases(found: Populated, count: int, seed: int) -> Iterator[Case]:
    """Each kind of file with each harm comes before any comes twice."""
    rng = random.Random(seed)
    every = [(kind, harm) for kind in found.kinds for harm in HARMS]
    for number in range(count):
        if number % len(every) == 0:
            rng.shuffle(every)
        kind, harm = every[number % len(every)]
        path = rng.choice(found.kinds[kind])
        size = found.disk.size(path)
        if rng.random() < 0.9:
            size = min(size, found.used.get(path, size))
        if size == 0:
            harm = "delete"
        yield Case(kind, path, harm, rng.randrange(max(size, 1)))


# --- looking at what is left ---


def contents(disk: Disk) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    folders = ["", "journal", "segments", "snapshots"]
    folders += [f"aside/{name}" for name in disk.list("aside")]
    for folder in folders:
        for name in disk.list(folder):
            path = f"{folder}/{name}" if folder else name
            if path not in ("journal", "segments", "snapshots", "aside", "LOCK"):
                file = disk.open(path)
                found[path] = file.read(file.size(), 0)
    return found


def read(engine: Engine, topic: Topic) -> list[bytes]:
    """Everything a topic has, by offset. Raises PartitionQuarantined."""
    found: list[bytes] = []
    at = 0
    while runs := engine.reading.read(topic, 0, at, 4000):
        for run in runs:
            found += [run.batch.record(each).value or b"" for each in range(run.first, run.stop)]
            at = run.batch.offset_at(run.stop - 1) + 1
    return found


def consume(engine: Engine, topic: Topic) -> list[bytes]:
    """What is pushed to a consumer of a queue; nothing is acknowledged."""
    consumer = engine.consumers.attach(topic.subscriptions["s"], now_ms=NOW, credits=roomy())
    found: list[bytes] = []
    while deliveries := engine.dispatching.dispatch(NOW):
        for each in deliveries:
            found += [
                each.batch.record(at).value or b""
                for at in range(each.first_index, each.stop_index)
            ]
    engine.consumers.detach(consumer, now_ms=NOW)
    return found


class Checker:
    def __init__(self, found: Populated, case: Case) -> None:
        self.found = found
        self.case = case
        self.disk = found.disk.crash(KeepAll())
        case.apply(self.disk)
        self.harmed = contents(self.disk)
        self.outcome = "nothing to see"

    def run(self) -> str:
        try:
            engine = Engine.open(self.disk, NOW, SMALL)
        except (CorruptData, ForeignFile) as error:
            self.outcome = "refused"
            self.check_refusal(error)
            return self.outcome
        self.check_started(engine)
        return self.outcome

    # --- a node that does not start ---

    def check_refusal(self, error: BraidError) -> None:
        case = self.case
        assert contents(self.disk) == self.harmed, "a refusal changes nothing"
        if case.kind == "FORMAT":
            assert "FORMAT" in str(error)
            return
        assert isinstance(error, CorruptData)
        assert case.kind in ("current journal", "closed journal", "both snapshots"), error
        if case.kind == "both snapshots":
            assert error.file.startswith("snapshots")
            self.check_rebuilt()
            return
        assert error.file == case.path
        if case.harm == "flip":
            # The beginning of the entry, or of the header, that the bit is in.
            assert error.position <= case.position
        self.check_repaired()

    def check_rebuilt(self) -> None:
        engine = Engine.open(self.disk, NOW, SMALL, rebuild=True)
        for name in TOPICS:
            # Without what was acknowledged, so that some come again; but all come.
            assert set(self.found.expected[name]) <= set(
                read(engine, engine.state.topic(NS, name))
            ), name
        assert self.is_nothing_removed()
        engine.store.checkpoint()
        engine.close()
        again = Engine.open(self.disk, NOW, SMALL)
        assert sorted(topic.name for topic in again.state.topics_of()) == sorted(TOPICS)
        assert set(self.found.expected["orders"]) <= set(
            consume_of(again, again.state.topic(NS, "orders"), "queue")
        )

    def check_repaired(self) -> None:
        """Going on without it loses what is said to be lost, and no more."""
        dropped: list[Dropped] = []
        for _ in range(REPAIRS_MAX):
            one = skip_damaged_entry(self.disk)
            if one is None:
                break
            dropped.append(one)
        assert dropped
        if self.case.harm != "delete":
            assert self.harmed[self.case.path] == contents(self.disk)[dropped[0].aside]
        engine = Engine.open(self.disk, NOW, SMALL)
        assert self.is_nothing_removed()
        lost = {
            value
            for name in TOPICS
            if (topic := engine.state.topics.get((NS, name))) is not None
            for value in set(self.found.expected[name]) - set(read(engine, topic))
        } - self.found.acknowledged
        numbers = {self.found.lsns[value] for value in lost}
        if self.case.harm == "flip" or self.case.kind == "closed journal":
            said = {lsn for each in dropped for lsn in range(each.first_lsn, each.last_lsn + 1)}
            assert numbers <= said, (dropped, sorted(numbers))
        elif numbers:
            # Behind a cut nobody knows how many there were: but all of them were behind it.
            kept = {lsn for value, lsn in self.found.lsns.items() if value not in lost}
            assert min(numbers) > max(kept - numbers, default=0)

    # --- a node that starts ---

    def check_started(self, engine: Engine) -> None:
        assert self.is_nothing_removed()
        self.check_topics(engine)
        list(engine.compacting.compact(engine.state.topic(NS, "prices"), NOW + DAY))
        for _ in range(2):
            for name in TOPICS:
                self.publish(engine, name)
            engine.store.checkpoint()
        assert engine.store.failure() is None
        damaged = [log for log in engine.store.quarantined() if log.damage is not None]
        if damaged:
            self.outcome = "quarantined"
            self.check_quarantined(engine)
        left = self.wanted(engine)
        engine.store.commit()
        engine.close()
        again = Engine.open(self.disk, NOW, SMALL)
        assert self.wanted(again) == left
        again.close()

    def wanted(self, engine: Engine) -> dict[str, list[bytes]]:
        gone = self.found.acknowledged
        return {
            name: [
                value for value in read(engine, engine.state.topic(NS, name)) if value not in gone
            ]
            for name in TOPICS
        }

    def publish(self, engine: Engine, name: str) -> None:
        topic = engine.state.topic(NS, name)
        try:
            engine.publishing.publish(
                topic, batch_of(b"more for " + name.encode(), key=b"k"), now_ms=NOW
            )
        except PartitionQuarantined:
            assert topic.quarantined

    def check_topics(self, engine: Engine) -> None:
        for name in TOPICS:
            topic = engine.state.topic(NS, name)
            try:
                got = read(engine, topic)
            except PartitionQuarantined as error:
                self.check_error(error, name)
            else:
                assert got == self.found.expected[name], f"{name} lost something in silence"
            if name in QUEUES and not topic.quarantined:
                assert set(consume(engine, topic)) <= set(self.found.expected[name])

    def check_error(self, error: PartitionQuarantined, name: str) -> None:
        case = self.case
        assert case.kind in (
            "sealed segment",
            "open segment",
            "compacted segment",
            "bodies",
        ), f"{case.kind} is not {name}'s alone"
        assert error.file == case.path
        if case.harm == "flip":
            assert error.position <= case.position
        elif case.harm == "cut":
            assert error.position <= max(case.position, 64)

    def check_quarantined(self, engine: Engine) -> None:
        """What is not damaged is there again once the damage is skipped; the file is kept."""
        names = [name for name in TOPICS if engine.state.topic(NS, name).quarantined]
        limit = 2 if self.case.kind == "bodies" else 1
        assert len(names) <= limit, "others are not concerned"
        told: list[object] = []
        for log in engine.store.quarantined():
            engine.store.skip_damage(log, told.append)
        engine.store.checkpoint()
        assert not engine.store.quarantined()
        for name in names:
            lost = set(self.found.expected[name]) - set(read(engine, engine.state.topic(NS, name)))
            if self.case.harm == "flip":
                assert len(lost - self.found.acknowledged) <= self.found.records_lost_max
            self.publish(engine, name)
            assert b"more for " + name.encode() in read(engine, engine.state.topic(NS, name))
        if self.case.kind != "bodies" and self.case.harm != "delete":
            moved = contents(self.disk)[f"aside/{self.case.path}"]
            assert moved.startswith(self.harmed[self.case.path])

    def is_nothing_removed(self) -> bool:
        """Every file is where it was, or aside. What is appended to may be longer."""
        now = contents(self.disk)
        moved = {path: data for path, data in now.items() if path.startswith(aside.DIRECTORY)}
        for path, data in self.harmed.items():
            there = now.get(path)
            if there is not None and (there == data or path.startswith("journal")):
                continue
            assert any(
                place.startswith(f"aside/{path}") and content == data
                for place, content in moved.items()
            ), f"{path} is gone"
        return True


def consume_of(engine: Engine, topic: Topic, name: str) -> list[bytes]:
    consumer = engine.consumers.attach(topic.subscriptions[name], now_ms=NOW, credits=roomy())
    found: list[bytes] = []
    while deliveries := engine.dispatching.dispatch(NOW):
        for each in deliveries:
            found += [
                each.batch.record(at).value or b""
                for at in range(each.first_index, each.stop_index)
            ]
    engine.consumers.detach(consumer, now_ms=NOW)
    return found


@pytest.mark.timeout(60 + 2 * CASES)
def test_damage_anywhere_is_contained_or_refused_and_always_named(populated: Populated) -> None:
    print(f"DAMAGE_SEED={SEED} DAMAGE_CASES={CASES}")  # noqa: T201
    outcomes: Counter[tuple[str, str, str]] = Counter()
    for number, case in enumerate(cases(populated, CASES, SEED)):
        try:
            outcome = Checker(populated, case).run()
        except Exception as error:
            raise AssertionError(f"seed {SEED}, case {number}: {case}: {error!r}") from error
        outcomes[case.kind, case.harm, outcome] += 1
    for key, count in sorted(outcomes.items()):
        print(*key, count)  # noqa: T201
    seen = {outcome for _, _, outcome in outcomes}
    assert seen == {"nothing to see", "quarantined", "refused"}
