"""Body files: who reads a log does not see that there are any, and one is there exactly as long as
some segment refers to it."""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import SMALL, World, files, random_batch, read_all, value_batch, view

from braidmq.model.errors import CorruptData
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits
from braidmq.storage import bodies, snapshot
from braidmq.storage.checkpoint import Checkpoint
from braidmq.storage.disk import Disk, MemoryDisk
from braidmq.storage.flush import SegmentWriter
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.segment import Segment, bodies_path
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll, LoseAll, Random

SUBSCRIPTION = 1


def body_names(disk: Disk) -> set[str]:
    return {name for name in disk.list("segments") if name.endswith(".bodies")}


def referenced(store: Store) -> set[str]:
    return {
        bodies_path(number).removeprefix("segments/")
        for log in store.logs.values()
        for each in log.segments
        for number in each.bodies
    }


def stored_records(log: PartitionLog, bytes_max: int) -> dict[int, bytes]:
    """Every record that the log shows, as an unshared segment would store it."""
    found: dict[int, bytes] = {}
    offset = log.start_offset
    while runs := log.read(offset, bytes_max):
        for run in runs:
            batch = run.batch
            if batch.dense:
                data = bytes(batch.slice(batch.base_offset, batch.next_offset))
                data = RecordBatch.scan(data, base_offset=batch.base_offset).stamped()[0]
                batch = RecordBatch.scan(data)
            for at in range(run.first, run.stop):
                offset = batch.offset_at(at)
                found[offset] = bytes(batch.slice(offset, offset + 1))
            offset += 1
    return found


class Sharing:
    """A store beside the records of each partition, by offset, as an unshared segment has them.

    What is settled may go or stay; all else is to be found as it was.
    """

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, bytes]] = {}
        self.settled: dict[int, set[int]] = {}
        self.files_removed = 0
        self.open(FaultyDisk())
        for _ in range(3):
            self.create()

    def open(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.running: Checkpoint | None = None
        self.store = Store.open(disk, SMALL)
        for log in self.store.logs.values():
            self.watch(log)

    def watch(self, log: PartitionLog) -> None:
        log.acknowledged = (self.store.offsets_of(SUBSCRIPTION, log.id),)

    def pick(self, rng: random.Random) -> PartitionLog:
        return rng.choice(list(self.store.logs.values()))

    # changes

    def create(self) -> None:
        log = self.store.create_partition("a/b")
        self.watch(log)
        self.rows[log.id], self.settled[log.id] = {}, set()

    def publish(self, rng: random.Random) -> None:
        logs = list(self.store.logs.values())
        targets = rng.sample(logs, rng.randint(1, len(logs)))
        batch = random_batch(rng, value_max=rng.choice([60, 300, 300, 2000]))
        for log in targets:
            placed = RecordBatch.scan(bytes(batch), base_offset=log.next_offset).stamped()[0]
            each = RecordBatch.scan(placed)
            for at in range(each.count):
                offset = each.offset_at(at)
                self.rows[log.id][offset] = bytes(each.slice(offset, offset + 1))
        self.store.append(batch, targets)

    def acknowledge(self, rng: random.Random) -> None:
        log = self.pick(rng)
        if log.next_offset:
            start = rng.randrange(log.next_offset)
            stop = rng.randint(start + 1, log.next_offset)
            self.store.acknowledge(SUBSCRIPTION, log.id, [(start, stop)])
            self.settled[log.id] |= set(range(start, stop))
            if rng.random() < 0.5:
                self.store.release(log, self.store.offsets_of(SUBSCRIPTION, log.id).floor)

    def purge(self, rng: random.Random) -> None:
        log = self.pick(rng)
        offset = rng.randint(log.start_offset, log.next_offset)
        self.store.advance_start(log, offset)

    def purge_all(self) -> None:
        for log in self.store.logs.values():
            self.store.advance_start(log, log.next_offset)

    def compact(self, rng: random.Random) -> None:
        log = self.pick(rng)
        unwanted = OffsetBits()
        for offset in range(log.start_offset, log.next_offset):
            if rng.random() < 0.8:
                unwanted.add(offset, offset + 1)
                self.settled[log.id].add(offset)
        self.store.rewrite(log, unwanted)

    def delete(self, rng: random.Random) -> None:
        log = self.pick(rng)
        self.store.delete_partition(log.id)
        del self.rows[log.id]
        self.create()

    # disk work

    def begin(self) -> None:
        if self.running is None:
            self.running = self.store.begin_checkpoint()
            self.store.commit()

    def finish(self) -> None:
        if self.running is not None:
            done, self.running = self.running, None
            done.carry_out(self.disk, self.store.journal, SMALL)
            self.store.finish_checkpoint(done)
            self.files_removed += len(done.obsolete_bodies)

    def checkpoint(self) -> None:
        self.finish()
        self.begin()
        self.finish()

    def evict(self) -> None:
        for log in self.store.logs.values():
            log.evict()

    def crash(self, rng: random.Random) -> None:
        self.store.commit()
        self.open(self.disk.crash(LoseAll() if rng.random() < 0.5 else Random(rng.getrandbits(32))))

    def step(self, name: str, seed: int) -> None:
        step = getattr(self, name)
        if name in ("begin", "finish", "checkpoint", "evict", "purge_all", "settle"):
            step()
        else:
            step(random.Random(seed))

    # questions

    def read(self, rng: random.Random) -> None:
        for log in self.store.logs.values():
            rows = self.rows[log.id]
            found = stored_records(log, rng.choice([1, 500, 100_000]))
            assert all(rows[offset] == record for offset, record in found.items())
            wanted = {offset for offset in rows if offset >= log.start_offset}
            assert wanted - self.settled[log.id] <= set(found) <= wanted

    def nothing_is_missing(self) -> None:
        assert referenced(self.store) <= body_names(self.disk)

    def settle(self) -> None:
        """What is obsolete goes with the next checkpoint, what that one replaces with another: then
        nothing is left behind."""
        for _ in range(2):
            self.checkpoint()
        assert body_names(self.disk) == referenced(self.store)
        sizes = {bodies_path(each): size for each, size in self.store.bodies.sizes.items()}
        assert sizes == {path: self.disk.size(path) for path in sizes}
        assert len(sizes) == len(body_names(self.disk))


SHARING_STEPS = [
    *["publish"] * 12,
    *["checkpoint"] * 5,
    *["begin", "finish"] * 2,
    *["evict", "read", "acknowledge", "purge", "compact"] * 2,
    *["purge_all", "delete", "crash", "settle"],
]


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(SHARING_STEPS), st.integers(0, 2**32)), min_size=20, max_size=60
    )
)
def test_nobody_sees_that_bodies_are_shared(history: list[tuple[str, int]]) -> None:
    world = Sharing()
    for name, seed in history:
        world.step(name, seed)
        world.nothing_is_missing()
    world.evict()
    world.read(random.Random(0))
    world.settle()
    world.store.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_long_history_of_sharing(seed: int) -> None:
    """Long enough that files are written, outlive some of those that refer to them, and go."""
    world = Sharing()
    rng = random.Random(seed)
    written = set()
    for _ in range(400):
        world.step(rng.choice(SHARING_STEPS), rng.getrandbits(32))
        world.nothing_is_missing()
        written |= body_names(world.disk)
    assert len(written) > 20
    assert world.files_removed > 10
    world.purge_all()
    world.settle()
    assert body_names(world.disk) == set()
    world.store.close()


# --- how much is written ---

BODY = random.Random(1).randbytes(4096)
LARGE = StorageSettings()


def fanned_out(count: int, *messages: bytes, disk: Disk | None = None) -> Store:
    """Each message to all of some partitions whose subscribers are away."""
    store = Store.open(disk or MemoryDisk(), LARGE)
    logs = [store.create_partition(f"session/{n}") for n in range(count)]
    for message in messages:
        store.append(value_batch(message), logs)
    return store


def segment_bytes(disk: Disk) -> tuple[int, int]:
    """Bytes of segments and of body files."""
    sizes = {name: disk.size(f"segments/{name}") for name in disk.list("segments")}
    shared = sum(size for name, size in sizes.items() if name.endswith(".bodies"))
    return sum(sizes.values()) - shared, shared


HEADER_BYTES, REFERENCE_BYTES = 64, 56


@pytest.mark.parametrize(("count", "recovered"), [(1000, False), (100, True)])
def test_one_message_to_many_partitions_is_written_once(count: int, recovered: bool) -> None:
    disk = FaultyDisk()
    store = fanned_out(count, BODY, disk=disk)
    store.commit()
    if recovered:
        disk = disk.crash(KeepAll())
        store = Store.open(disk, LARGE)
    store.checkpoint()
    assert segment_bytes(disk) == (
        count * (HEADER_BYTES + REFERENCE_BYTES),
        bodies.START + len(BODY),
    )
    assert store.checkpoints.bytes_written == count * REFERENCE_BYTES + len(BODY)
    found = Store.open(disk.crash(LoseAll()), LARGE)
    for log in found.logs.values():
        (record,) = read_all(log)
        assert record.value == BODY


def test_who_is_alone_pays_nothing() -> None:
    """A queue that no message shares with another, and a message that others have acknowledged."""
    store = Store.open(MemoryDisk(), LARGE)
    alone, one, other = (store.create_partition(name) for name in ("a", "b", "c"))
    store.append(value_batch(BODY), [alone])
    store.append(value_batch(BODY), [one, other])
    other.acknowledged = (store.offsets_of(SUBSCRIPTION, other.id),)
    store.acknowledge(SUBSCRIPTION, other.id, [(0, 1)])
    checkpoint = store.begin_checkpoint()
    assert [plan.shares for plan in checkpoint.plans] == [False, True, True]
    store.commit()
    checkpoint.carry_out(store.disk, store.journal, LARGE)
    store.finish_checkpoint(checkpoint)
    assert segment_bytes(store.disk) == (2 * (HEADER_BYTES + 40 + len(BODY)), 0)


def test_statistics_and_limits_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where segments end, bytes that a limit counts, values: the same as if all were there."""

    def flushed() -> list[PartitionLog]:
        store = Store.open(MemoryDisk(), SMALL)
        logs = [store.create_partition("a/b") for _ in range(2)]
        for n in range(100):
            store.append(value_batch(bytes([n]) * 500), logs)
        store.checkpoint()
        return logs

    shared = flushed()
    monkeypatch.setattr(SegmentWriter, "find_shared", lambda writer, plans: None)
    plain = flushed()
    for each, log in zip(shared, plain, strict=True):
        assert [(s.base_offset, s.end_offset, s.whole_size) for s in each.segments] == [
            (s.base_offset, s.end_offset, s.size) for s in log.segments
        ]
        assert len(each.segments) > 5
        assert sum(s.value_bytes for s in each.segments) == 100 * 500
        assert sum(s.size for s in each.segments) < 100 * 100
        each.evict()
        log.evict()
        for bytes_max in (0, 1, 5000, 20_000, 10**6):
            assert each.start_for_bytes(bytes_max) == log.start_for_bytes(bytes_max)


def test_a_read_is_no_larger_than_asked() -> None:
    """References are short: a read of some of them must not bring all their bodies."""
    store = Store.open(MemoryDisk(), LARGE)
    logs = [store.create_partition("a/b") for _ in range(2)]
    for n in range(200):
        store.append(value_batch(bytes([n]) * 4096), logs)
    store.checkpoint()
    log = logs[1]
    log.evict()
    for bytes_max in (1, 10_000, 100_000):
        runs = log.read(3, bytes_max)
        assert all(run.batch.size < bytes_max + 3 * 4200 for run in runs)
        taken = sum(r.batch.position_at(r.stop) - r.batch.position_at(r.first) for r in runs)
        assert 0 < taken < bytes_max + 4200
    found = read_all(log, 50_000)
    assert [record.value for record in found] == [bytes([n]) * 4096 for n in range(200)]


# --- damage ---


def flushed_pair(count: int = 30) -> World:
    world = World()
    world.create()
    world.create()
    logs = list(world.store.logs.values())
    for n in range(count):
        world.store.append(value_batch(bytes([n]) * 200), logs)
    world.take_checkpoint()
    return world


def only_body_file(disk: Disk) -> str:
    (name,) = body_names(disk)
    return f"segments/{name}"


@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_damage_to_a_body_is_named_and_hides_nothing_before_it(harm: str) -> None:
    world = flushed_pair()
    path = only_body_file(world.disk)
    for damaged in (0, 7, 29):
        disk = world.disk.crash(LoseAll())
        position = bodies.START + 200 * damaged
        if harm == "flip":
            disk.flip_bit(path, position + 100)
        else:
            disk.open(path).truncate(position + 199)
        store = Store.open(disk, SMALL)
        for log in store.logs.values():
            assert [record.offset for record in read_until_damage(log)] == list(range(damaged))
            with pytest.raises(CorruptData) as caught:
                log.read(damaged)
            assert (caught.value.file, caught.value.position) == (path, position)
            assert log.damage is not None
            told: list[object] = []
            store.skip_damage(log, told.append)
        store.checkpoint()
        lost = 1 if harm == "flip" else 30 - damaged
        for log in store.logs.values():
            assert log.damage is None
            offsets = [record.offset for record in read_all(log)]
            assert offsets == [at for at in range(30) if not damaged <= at < damaged + lost]
        assert store.failure() is None


def read_until_damage(log: PartitionLog) -> list:
    found: list = []
    while True:
        try:
            runs = log.read(found[-1].offset + 1 if found else 0, 1000)
        except CorruptData:
            return found
        found += [run.batch.record(at) for run in runs for at in range(run.first, run.stop)]


def test_a_damaged_header_of_a_body_file() -> None:
    world = flushed_pair()
    path = only_body_file(world.disk)
    log_id = next(iter(world.store.logs))
    for position in (0, 9, 17, 25):
        disk = world.disk.crash(LoseAll())
        disk.flip_bit(path, position)
        store = Store.open(disk, SMALL)
        with pytest.raises(CorruptData, match=path):
            store.logs[log_id].read(0)


def test_a_missing_body_file_quarantines_all_that_refer_to_it() -> None:
    world = flushed_pair()
    other = world.store.create_partition("other")
    world.store.append(value_batch(b"mine"), [other])
    world.take_checkpoint()
    disk = world.disk.crash(LoseAll())
    path = only_body_file(disk)
    disk.remove(path)
    before = {name: data for name, data in files(disk).items() if name.startswith("segments")}
    store = Store.open(disk, SMALL)
    damages = [log.damage for log in store.logs.values()]
    assert [each and each.file for each in damages] == [path, path, None]
    assert [record.value for record in read_all(store.logs[other.id])] == [b"mine"]
    after = {name: data for name, data in files(disk).items() if name.startswith("segments")}
    assert after == before


def test_one_that_goes_missing_later_is_named() -> None:
    world = flushed_pair()
    path = only_body_file(world.disk)
    store = Store.open(world.disk.crash(LoseAll()), SMALL)
    store.disk.remove(path)
    with pytest.raises(CorruptData, match="the body file is missing"):
        next(iter(store.logs.values())).read(0)


# --- life ---


def test_a_body_file_goes_with_the_last_segment_that_refers_to_it() -> None:
    world = flushed_pair()
    path = only_body_file(world.disk)
    first, second = world.store.logs.values()
    world.store.advance_start(first, first.next_offset)
    world.take_checkpoint()
    assert world.disk.exists(path)
    world.store.advance_start(second, second.next_offset)
    assert world.disk.exists(path), "a snapshot still names its segments"
    world.take_checkpoint()
    assert world.disk.list("segments") == []
    assert world.store.bodies.sizes == {}


def test_one_that_was_left_by_a_crash_goes_at_the_start() -> None:
    world = flushed_pair()
    disk = world.disk.crash(LoseAll())
    disk.open(bodies_path(0x99), create=True).write(bodies.encode_header(0x99) + b"left", 0)
    Store.open(disk, SMALL)
    assert not disk.exists(bodies_path(0x99))
    assert disk.exists(only_body_file(world.disk))


def test_without_snapshots_segments_still_say_what_they_refer_to() -> None:
    world = flushed_pair()
    expected = view(world.store)
    # As far from its first entry as it takes for the segments to be believed.
    world.take_checkpoint()
    world.take_checkpoint()
    disk = world.disk.crash(LoseAll())
    for path in snapshot.names(disk):
        disk.remove(path)
    store = Store.open(disk, SMALL, rebuild=True)
    assert any("rebuilding from segments" in note for note in store.recovery.notes)
    assert view(store).partitions == expected.partitions
    assert body_names(disk) == referenced(store) != set()


def test_a_number_is_not_used_twice() -> None:
    """Not even when the journal and all snapshots are lost, and entries are counted anew."""
    files_known = bodies.BodyFiles()
    files_known.change(7, 100, ())
    files_known.change(8, 100, ())
    assert [files_known.new_number(lsn) for lsn in (6, 7, 8, 9)] == [6, 9, 9, 9]
    files_known.change(9, 0, (7,))
    assert files_known.sizes == {8: 100}


def test_a_segment_of_an_earlier_build_refers_to_none() -> None:
    segment = Segment(1, 0, 10, 500, 10, 99, True, bodies=(7, 9), shared_bytes=800)
    stored = msgspec.to_builtins(segment)
    assert msgspec.convert(stored, Segment) == segment
    if isinstance(stored, dict):  # compiled, it is one by names
        old = {name: value for name, value in stored.items() if "bodies" not in name}
        del old["shared_bytes"]
    else:
        old = stored[:-2]
    found = msgspec.convert(old, Segment)
    assert (found.bodies, found.shared_bytes, found.whole_size) == ((), 0, 500)
