"""Whatever moment the power fails, what was confirmed is there and nothing is half there."""

import contextlib
import random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import SMALL, STEPS, World, files, read_all, record_spans, value_batch, view

from braidmq.model.errors import CorruptData, NoSnapshot, PartitionQuarantined
from braidmq.storage import journal, snapshot
from braidmq.storage.journal import Kind
from braidmq.storage.journal_entry import scan_entries
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, KeepAll, LoseAll, Random

steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**32)), max_size=40)
crashes = st.one_of(
    st.just(LoseAll()),
    st.just(KeepAll()),
    st.builds(Random, st.integers(0, 2**32)),
    st.builds(CutAt, st.integers(0, 40_000)),
)
lives = st.lists(st.tuples(steps, crashes), min_size=1, max_size=3)


def live(world: World, history) -> World:
    for name, seed in history:
        world.step(name, seed)
    return world


# --- any history, any crash, several times over ---


@settings(deadline=None, max_examples=250, suppress_health_check=list(HealthCheck))
@given(lives, st.booleans())
def test_a_crash_leaves_a_prefix_with_all_that_was_confirmed(several, compressed) -> None:
    world = World(compressed=compressed)
    for history, crash in several:
        live(world, history)
        assert view(world.store) == world.now
        world = world.check_recovered(world.disk.crash(crash))
    # Once more, with nothing done in between: recovering changes nothing that is found.
    world.check_recovered(world.disk.crash(LoseAll()))


def test_files_that_a_crash_brings_back_are_known_to_be_dead() -> None:
    """Their removal was not on disk, nor was that of the snapshot that named them."""
    steps = ("append", "checkpoint", "delete", "checkpoint", "checkpoint")
    world = live(World(), [(name, 0) for name in steps])
    world.check_recovered(world.disk.crash(LoseAll()))


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps, st.integers(0, 2**32), st.booleans())
def test_one_moment_crashed_in_many_ways(history, seed, compressed) -> None:
    world = live(World(compressed=compressed), history)
    rng = random.Random(seed)
    cuts = [CutAt(rng.randint(0, world.disk.unsynced_bytes)) for _ in range(4)]
    for crash in (LoseAll(), KeepAll(), *cuts, *(Random(rng.getrandbits(32)) for _ in range(6))):
        world.check_recovered(world.disk.crash(crash))


def busy_world(disk: FaultyDisk | None = None, *, seed: int = 7, length: int = 40) -> World:
    """Two partitions, a few checkpoints, entries since the last one, all durable."""
    rng = random.Random(seed)
    world = World(disk)
    world.create()
    world.create()
    for at in range(length):
        name = rng.choice(["append", "append", "append", "acknowledge", "change", "commit"])
        world.step("checkpoint" if at in (12, 24) else name, rng.getrandbits(32))
    world.store.commit()
    return world


def test_a_cut_at_every_byte_of_the_unsynced_tail() -> None:
    world = busy_world()
    for name, seed in tail_steps():
        world.step(name, seed)
    tail = write_without_sync(world)
    found = set()
    for cut in range(tail + 1):
        reopened = world.check_recovered(world.disk.crash(CutAt(cut)))
        found.add(reopened.recovered_lsn)
    # Every prefix was seen: none of the five entries, one, … all.
    assert len(found) == 6


def tail_steps() -> list[tuple[str, int]]:
    return [(name, n) for n, name in enumerate(("append", "acknowledge", "change", "append"))] + [
        ("append", 99)
    ]


def write_without_sync(world: World) -> int:
    """Have a commit write its group and stop before the sync; returns the bytes at stake."""

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    world.disk.slow_sync = stop
    with pytest.raises(Stop):
        world.store.commit()
    world.disk.slow_sync = None
    return world.disk.unsynced_bytes


# --- a crash between any two disk operations ---


class PowerCut(BaseException):
    """Not an OSError: nobody may handle it."""


class CuttingDisk(FaultyDisk):
    """Raises PowerCut before the operation that is ``countdown`` operations away."""

    countdown = -1

    def tick(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            raise PowerCut

    def change_names(self, changes) -> None:
        self.tick()
        super().change_names(changes)

    def change_bytes(self, content, position, data) -> None:
        self.tick()
        super().change_bytes(content, position, data)

    def change_size(self, content, size) -> None:
        self.tick()
        super().change_size(content, size)

    def sync_contents(self, contents) -> None:
        self.tick()
        super().sync_contents(contents)

    def sync_directory(self, path) -> None:
        self.tick()
        super().sync_directory(path)


CRASHES = [LoseAll(), KeepAll(), CutAt(100), CutAt(3000), *(Random(seed) for seed in range(5))]


def crash_everywhere(prepare, act) -> int:
    """Stop ``act`` before each of its operations, and crash in several ways; returns how many."""
    count = 0
    while True:
        count += 1
        disk = CuttingDisk()
        world = prepare(disk)
        disk.countdown = count
        try:
            act(world)
        except PowerCut:
            for crash in CRASHES:
                world.check_recovered(disk.crash(crash))
        else:
            return count - 1


def test_a_crash_between_any_two_operations_of_a_checkpoint() -> None:
    def prepare(disk: FaultyDisk) -> World:
        world = busy_world(disk)
        rng = random.Random(5)
        for name in ("append", "advance", "append", "append", "delete", "create", "append"):
            world.step(name, rng.getrandbits(32))
        return world

    assert crash_everywhere(prepare, lambda world: world.take_checkpoint()) > 20


def test_a_crash_between_any_two_operations_of_a_checkpoint_that_shares_bodies() -> None:
    """It writes a body file, and removes one that only deleted partitions referred to."""

    def prepare(disk: FaultyDisk) -> World:
        world = World(disk)
        for _ in range(3):
            world.create()
        for seed in range(6):
            world.step("fan out", seed)
        world.take_checkpoint()
        for log in list(world.store.logs.values()):
            world.store.advance_start(log, log.next_offset)
            part = world.now.partitions[log.id].from_start(log.next_offset)
            world.note(partitions={**world.now.partitions, log.id: part})
        for seed in range(10, 16):
            world.step("fan out", seed)
        return world

    def act(world: World) -> None:
        before = body_files(world.disk)
        world.take_checkpoint()
        after = body_files(world.disk)
        assert len(before) == len(after) == 1
        assert before != after

    assert crash_everywhere(prepare, act) > 15


def body_files(disk: FaultyDisk) -> list[str]:
    return [name for name in disk.list("segments") if name.endswith(".bodies")]


def test_a_crash_between_any_two_operations_of_the_first_checkpoint() -> None:
    """There is no snapshot yet, and the segments it leaves may be empty or half written."""

    def prepare(disk: FaultyDisk) -> World:
        world = World(disk)
        world.create()
        rng = random.Random(6)
        for _ in range(15):
            world.append(rng)
        return world

    assert crash_everywhere(prepare, lambda world: world.take_checkpoint()) > 10


def test_a_crash_between_any_two_operations_of_a_roll_for_an_oversize_entry() -> None:
    def prepare(disk: FaultyDisk) -> World:
        world = busy_world(disk)
        world.store.journal.prepare()
        return world

    def act(world: World) -> None:
        for seed in (2, 3):
            world.step("large", seed)
            world.store.commit()
            world.store.journal.prepare()

    assert crash_everywhere(prepare, act) > 8


def test_a_crash_between_any_two_operations_of_recovery() -> None:
    """The first crash leaves a torn tail and a checkpoint half done; the second meets recovery."""

    def torn(disk: FaultyDisk) -> World:
        world = busy_world(disk)
        for name, seed in tail_steps():
            world.step(name, seed)
        write_without_sync(world)
        return world

    for crash in (KeepAll(), CutAt(300)):
        count = 0
        while True:
            count += 1
            world = torn(FaultyDisk())
            left = world.disk.crash(crash)
            disk = CuttingDisk()
            disk.__dict__.update(left.__dict__)
            disk.countdown = count
            try:
                Store.open(disk, SMALL)
            except PowerCut:
                for second in CRASHES:
                    world.check_recovered(disk.crash(second))
            else:
                break
        assert count > 3


def test_what_was_recovered_from_the_page_cache_survives_a_power_loss() -> None:
    """Killed before the sync: the next process finds the entries and stands on them."""
    world = busy_world()
    for name, seed in tail_steps():
        world.step(name, seed)
    write_without_sync(world)
    reopened = world.check_recovered(world.disk.crash(KeepAll()))
    assert reopened.now == world.now
    reopened.check_recovered(reopened.disk.crash(LoseAll()))


def test_a_torn_tail_is_cut_off_once() -> None:
    world = busy_world()
    world.step("append", 1)
    tail = write_without_sync(world)
    reopened = world.check_recovered(world.disk.crash(CutAt(tail - 50)))
    assert reopened.store.recovery.torn_bytes > 0
    again = reopened.check_recovered(reopened.disk.crash(LoseAll()))
    assert again.store.recovery.torn_bytes == 0


def test_a_checkpoint_stands_on_durable_entries_only() -> None:
    world = busy_world()
    world.append(random.Random(1))
    world.store.checkpoint()
    # Without its snapshot, the journal alone has to tell what came after the one before.
    disk = world.disk.crash(LoseAll())
    disk.remove(snapshot.names(disk)[0])
    assert world.check_recovered(disk).now == world.now


def test_a_mark_left_when_idle_is_not_missed_after_a_roll() -> None:
    """It was never synced, and the next entry is in the next file."""
    world = busy_world()
    world.store.journal.note_idle()
    batch = value_batch(bytes(20_000))
    log = next(iter(world.store.logs.values()))
    world.store.append(batch, [log])
    world.store.commit()
    reopened = Store.open(world.disk.crash(LoseAll()), SMALL)
    assert read_all(reopened.logs[log.id])[-1].value == bytes(20_000)


def test_records_gone_while_a_checkpoint_ran_do_not_take_later_ones_along() -> None:
    """The last segment grows in the checkpoint; what it held before is forgotten meanwhile."""
    world = World()
    world.create()
    log = world.store.logs[1]
    world.append(random.Random(1))
    world.take_checkpoint()
    held = log.next_offset
    world.append(random.Random(2))
    world.begin()
    world.store.advance_start(log, held)
    world.note(partitions={1: world.now.partitions[1].from_start(held)})
    world.finish()
    world.take_checkpoint()
    log.evict()
    assert view(world.store) == world.now
    world.check_recovered(world.disk.crash(LoseAll()))


# --- damage to what was durable ---


class Found(NamedTuple):
    """An entry, a mark or a roll in a journal file."""

    path: str
    start: int
    end: int
    lsn: int
    kind: int


def entry_positions(disk: FaultyDisk) -> list[Found]:
    """All there are, of all files."""
    found = []
    for epoch in journal.journal_epochs(disk):
        path = journal.file_name(epoch)
        view_of = disk.open(path).map()
        salt = journal.check_file_header(path, view_of, epoch)
        at = journal.ENTRIES_START
        while lsn := journal.first_lsn(view_of, at, salt):
            entries, end, _ = scan_entries(view_of, at, salt, lsn, 1, 1)
            kind = entries[0][0] if entries and entries[0][3] == at else Kind.MARK
            end = at + journal.MARK_SIZE if kind == Kind.MARK else entries[0][6]
            found.append(Found(path, at, end, lsn, kind))
            at = end
    return found


def many_groups(*, idle: bool, roll: bool) -> World:
    world = World()
    world.create()
    rng = random.Random(11)
    for at in range(12):
        world.append(rng)
        if at % 3 == 2:
            world.store.commit()
        if roll and at == 7:
            world.store.journal.roll()
    if idle:
        world.store.journal.note_idle()
    return world


@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_a_flipped_bit_in_the_journal_is_found_and_nothing_is_changed(idle, roll) -> None:
    """Every group but the last is vouched for by the mark of the one after it.

    Nothing that was written after the last group says that its sync returned: its own mark was
    written with it. A damaged entry there looks just as one that a power loss tore before the
    sync, so it is cut off. The mark that ``note_idle`` leaves behind the last group tells them
    apart, and while the broker runs the next group's mark does.
    """
    world = many_groups(idle=idle, roll=roll)
    world.store.close()
    if not idle:
        # close() leaves such a mark too: take the state before it.
        world = many_groups(idle=idle, roll=roll)
    entries = entry_positions(world.disk)
    numbered = [each for each in entries if each.kind not in (Kind.MARK, Kind.ROLL)]
    last_group = entries[-1].start if idle else numbered[-3].start
    rng = random.Random(1)
    refused = 0
    for path, start, end, _, kind in entries:
        for position in {start, start + 9, end - 1, *(rng.randrange(start, end) for _ in range(3))}:
            disk = world.disk.crash(KeepAll())
            disk.flip_bit(path, position, rng.randrange(8))
            before = files(disk)
            if path == entries[-1].path and start >= last_group:
                found = Store.open(disk, SMALL)
                assert view(found) in [each for _, each in world.history]
                assert view(found) == world.now or not idle
                continue
            if kind == Kind.ROLL and position < start + 24:
                # It may not look like anything. It only said that there is another file, and there
                # is; what it says is refused when it is wrong.
                with contextlib.suppress(CorruptData):
                    assert view(Store.open(disk, SMALL)) == world.now
                continue
            with pytest.raises(CorruptData) as caught:
                Store.open(disk, SMALL)
            assert caught.value.file == path
            assert start <= caught.value.position < end
            assert files(disk) == before
            disk.flip_bit(path, position, 0)
            refused += 1
    assert refused > 40


def test_a_refused_directory_can_be_opened_once_the_file_is_restored() -> None:
    world = many_groups(idle=True, roll=False)
    disk = world.disk.crash(KeepAll())
    path, start, *_ = entry_positions(disk)[2]
    disk.flip_bit(path, start + 5)
    with pytest.raises(CorruptData):
        Store.open(disk, SMALL)
    disk.flip_bit(path, start + 5)
    world.check_recovered(disk)


def flushed_world() -> World:
    """One partition with several segments, everything in them, nothing in memory."""
    world = World()
    world.create()
    rng = random.Random(21)
    for at in range(60):
        world.append(rng)
        if at % 10 == 9:
            world.take_checkpoint()
    world.store.logs[1].evict()
    return world


def readable(store: Store) -> tuple[set[int], list[CorruptData]]:
    """Offsets that can be read one at a time, and what the others answer."""
    log, found, errors = store.logs[1], set(), []
    for offset in range(log.start_offset, log.next_offset):
        try:
            runs = log.read(offset, 1)
        except CorruptData as error:
            errors.append(error)
        else:
            # The next one, where it is gone.
            found |= {run.batch.record(run.first).offset for run in runs}
    return found, errors


def test_a_flipped_bit_in_a_segment_is_found_and_the_rest_stays_readable() -> None:
    world = flushed_world()
    rng = random.Random(4)
    assert len(world.store.logs[1].segments) > 2
    for each in world.store.logs[1].segments:
        spans = record_spans(world.disk, each)
        for _ in range(12):
            disk = world.disk.crash(LoseAll())
            start, stop = rng.choice(spans)
            position = rng.randrange(start, stop)
            disk.flip_bit(each.path, position, rng.randrange(8))
            store = Store.open(disk, SMALL)
            _, errors = readable(store)
            assert {(error.file, error.position) for error in errors} == {(each.path, start)}
            # From then on all of it is quarantined; who skips the damage loses what it hit.
            told: list[object] = []
            store.skip_damage(store.logs[1], told.append)
            store.checkpoint()
            assert len(told) == 1
            found, errors = readable(store)
            assert not errors
            everything = set(range(world.store.logs[1].next_offset))
            assert everything - found == {each.base_offset + spans.index((start, stop))}


def test_records_before_the_damage_come_before_the_error() -> None:
    world = flushed_world()
    each = world.store.logs[1].segments[0]
    disk = world.disk.crash(LoseAll())
    disk.flip_bit(each.path, record_spans(disk, each)[-1][1] - 1)
    log = Store.open(disk, SMALL).logs[1]
    run = log.read(0, 100_000)[-1]
    assert run.batch.offset_at(run.stop - 1) == each.end_offset - 2
    with pytest.raises(PartitionQuarantined):
        log.read(each.end_offset - 1)
    with pytest.raises(PartitionQuarantined):
        log.read(each.end_offset)


# --- damage to what can be made again ---


def rich_world() -> World:
    world = busy_world(length=60)
    for _ in range(2):
        for name, seed in tail_steps():
            world.step(name, seed)
        world.take_checkpoint()
    for name, seed in tail_steps():
        world.step(name, seed)
    world.store.commit()
    assert len(snapshot.names(world.disk)) == 2
    return world


@pytest.mark.parametrize("reopens", [0, 1, 2])
def test_a_flipped_bit_in_the_newest_snapshot(reopens: int) -> None:
    """The older one and the journal since then give the same state.

    Not within the magic and the version: those say whose file it is, see test_store.
    """
    world = rich_world()
    for _ in range(reopens):
        world = world.check_recovered(world.disk.crash(KeepAll()))
    newest = snapshot.names(world.disk)[0]
    size = world.disk.size(newest)
    for position in [*range(12, 44), *range(44, size, 7), size - 1]:
        disk = world.disk.crash(LoseAll())
        disk.flip_bit(newest, position, position % 8)
        reopened = world.check_recovered(disk)
        assert any(newest in note for note in reopened.store.recovery.notes)
        assert reopened.now == world.now


def test_a_missing_newest_snapshot() -> None:
    world = rich_world()
    disk = world.disk.crash(LoseAll())
    disk.remove(snapshot.names(disk)[0])
    reopened = world.check_recovered(disk)
    assert reopened.now == world.now
    # And it goes on from there: new segments, new snapshots, more crashes.
    for seed in range(30):
        reopened.step("checkpoint" if seed % 9 == 8 else "append", seed)
    reopened.store.commit()
    reopened.check_recovered(reopened.disk.crash(LoseAll()))


def test_no_snapshot_at_all() -> None:
    world = rich_world()
    disk = world.disk.crash(LoseAll())
    for path in snapshot.names(disk):
        disk.remove(path)
    before = files(disk)
    with pytest.raises(NoSnapshot):
        Store.open(disk, SMALL)
    assert files(disk) == before
    store = Store.open(disk, SMALL, rebuild=True)
    assert any("rebuilding from segments" in note for note in store.recovery.notes)
    expected = {key: part.records for key, part in world.now.partitions.items()}
    assert {key: part.records for key, part in view(store).partitions.items()} == expected
    assert [part.label for part in view(store).partitions.values()] == [
        part.label for part in world.now.partitions.values()
    ]


def test_no_snapshot_and_a_damaged_segment_header() -> None:
    world = rich_world()
    disk = world.disk.crash(LoseAll())
    for path in snapshot.names(disk):
        disk.remove(path)
    damaged = next(iter(world.store.logs.values())).segments[0].path
    disk.flip_bit(damaged, 20)
    before = files(disk)
    with pytest.raises(CorruptData) as caught:
        Store.open(disk, SMALL, rebuild=True)
    assert caught.value.file == damaged
    assert files(disk) == before


@pytest.mark.parametrize("harm", ["remove", "flip"])
def test_indexes_are_built_again(harm: str) -> None:
    world = rich_world()
    names = [name for name in world.disk.list("segments") if name.endswith(".index")]
    assert names
    for bit in range(1 if harm == "remove" else 8):
        disk = world.disk.crash(LoseAll())
        for name in names:
            path = f"segments/{name}"
            if harm == "remove":
                disk.remove(path)
            else:
                disk.flip_bit(path, (disk.size(path) * bit) // 8, bit)
        reopened = world.check_recovered(disk)
        for log in reopened.store.logs.values():
            for offset in range(log.start_offset, log.next_offset):
                run = log.read(offset, 1)[0]
                assert run.batch.record(run.first).offset == offset


def test_a_missing_journal_file_is_named() -> None:
    """The one that the newest snapshot says comes first: nothing after it would tell."""
    world = rich_world()
    disk = world.disk.crash(LoseAll())
    gone = journal.file_name(world.store.journal.epoch)
    disk.remove(gone)
    before = files(disk)
    with pytest.raises(CorruptData) as caught:
        Store.open(disk, SMALL)
    assert caught.value.file == gone
    assert files(disk) == before


def test_a_missing_segment_quarantines_its_partition() -> None:
    world = flushed_world()
    world.store.commit()
    disk = world.disk.crash(LoseAll())
    gone = world.store.logs[1].segments[1].path
    disk.remove(gone)
    store = Store.open(disk, SMALL)
    assert store.logs[1].damage is not None
    assert store.logs[1].damage.file == gone
