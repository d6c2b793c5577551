"""A partition's log against a list, whatever is flushed, evicted, forgotten or reopened between."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from worlds import SMALL, read_all, resident_bytes, run_records, value_batch

from braidmq.model.errors import OffsetOutOfRange
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.checkpoint import Checkpoint
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.store import Store

offsets = st.integers(0, 2**16)
sizes = st.one_of(st.integers(1, 300), st.integers(1, 20_000))


class LogMachine(RuleBasedStateMachine):
    """``rows`` is the log: a record's place in it is its offset."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.store = Store.open(self.disk, SMALL)
        self.log = self.store.create_partition("a/b")
        self.rows: list[tuple[object, ...]] = []
        self.start = 0
        self.running: Checkpoint | None = None

    def pick(self, number: int) -> int:
        """An offset within the log, its end included; near the ends as often as not."""
        return min(number, len(self.rows)) if number % 2 else number % (len(self.rows) + 1)

    # changes

    @rule(
        values=st.lists(st.integers(0, 700), min_size=1, max_size=8),
        time=st.integers(0, 50),
        seed=st.integers(0, 99),
    )
    def append(self, values: list[int], time: int, seed: int) -> None:
        batch, rng = RecordBatch(), random.Random(seed)
        for at, size in enumerate(values):
            key = rng.randbytes(4) if rng.random() < 0.5 else None
            batch.append(rng.randbytes(size), key=key, timestamp_ms=time + at % 3)
        self.rows += [tuple(record[1:]) for record in batch.records()]
        self.store.append(batch, [self.log])

    @rule(number=offsets)
    def advance_start(self, number: int) -> None:
        offset = self.pick(number)
        self.store.advance_start(self.log, offset)
        self.start = max(self.start, offset)

    @precondition(lambda self: self.running is None)
    @rule()
    def begin_checkpoint(self) -> None:
        self.running = self.store.begin_checkpoint()
        self.store.commit()

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish_checkpoint(self) -> None:
        self.running.carry_out(self.disk, self.store.journal, SMALL)
        self.store.finish_checkpoint(self.running)
        self.running = None

    @precondition(lambda self: self.running is None)
    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def evict(self) -> None:
        self.log.evict()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.running = None
        self.store = Store.open(self.disk, SMALL)
        self.log = self.store.logs[self.log.id]

    # questions

    def check(self, records: list[Record]) -> None:
        for record in records:
            assert tuple(record[1:]) == self.rows[record.offset]

    @rule(number=offsets, bytes_max=sizes, count=st.one_of(st.integers(1, 20), st.just(2**40)))
    def read(self, number: int, bytes_max: int, count: int) -> None:
        offset = self.pick(number)
        records = run_records(self.log.read(offset, bytes_max, offset + count))
        first = max(offset, self.start)
        assert [record.offset for record in records] == list(range(first, first + len(records)))
        assert bool(records) == (first < len(self.rows))
        self.check(records)

    @rule(number=offsets, bytes_max=sizes)
    def read_to_the_end(self, number: int, bytes_max: int) -> None:
        offset = self.pick(number)
        records = read_all(self.log, bytes_max, offset)
        expected = range(max(offset, self.start), len(self.rows))
        assert [record.offset for record in records] == list(expected)
        self.check(records)

    @rule(time=st.integers(-1, 55))
    def find_time(self, time: int) -> None:
        later = (n for n in range(self.start, len(self.rows)) if self.rows[n][0] >= time)
        assert self.log.find_time(time) == next(later, len(self.rows))

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (-beyond, len(self.rows) + beyond):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset)

    @invariant()
    def offsets_are_in_order(self) -> None:
        assert self.log.next_offset == len(self.rows)
        assert self.log.start_offset == self.start
        assert self.log.flushed_offset <= self.log.next_offset

    @invariant()
    def memory_adds_up(self) -> None:
        assert self.store.memory.resident == resident_bytes(self.log)
        assert 0 <= self.store.memory.unflushed <= self.store.memory.resident

    def teardown(self) -> None:
        self.store.close()


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    deadline=None,
    max_examples=120,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


# --- by hand ---


def filled(count: int = 30, *, size: int = 100):
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    for n in range(count):
        store.append(value_batch(bytes([n]) * size, timestamp_ms=n), [log])
    return store, log


def test_small_batches_become_one() -> None:
    _, log = filled(30)
    assert len(log.read(0, 1 << 20)) == 1


def test_what_is_planned_grows_no_more() -> None:
    store, log = filled(3)
    running = store.begin_checkpoint()
    store.append(value_batch(b"later"), [log])
    assert sum(batch.count for batch in running.plans[0].batches) == 3
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]


def test_a_read_gives_about_as_much_as_asked_but_never_nothing() -> None:
    store, log = filled(30)
    for flushed in (False, True):
        if flushed:
            store.checkpoint()
            log.evict()
        some = log.read(5, 500)
        size = sum(r.batch.position_at(r.stop) - r.batch.position_at(r.first) for r in some)
        assert 300 < size <= 500
        one = log.read(5, 1)
        assert [record.offset for record in run_records(one)] == [5]


def backlog(count: int) -> PartitionLog:
    """One segment of records that nobody has in memory."""
    store = Store.open(MemoryDisk())
    log = store.create_partition("a")
    batch = RecordBatch()
    batch.extend_values([bytes(128)] * count, 0)
    store.append(batch, [log])
    store.checkpoint()
    log.evict()
    return log


@pytest.mark.parametrize("count", [2000, 4096])
def test_who_takes_many_at_a_time_gets_them_in_one_run(count: int) -> None:
    log = backlog(20_000)
    for offset in range(0, 20_000 - count, count):
        (run,) = log.read(offset, 1 << 20, offset + count)
        assert run.batch.offset_at(run.first) == offset
        assert run.batch.offset_at(run.stop - 1) >= offset + count - 1
        assert run.stop - run.first < count + 100, "more than was asked for was read"


def test_who_takes_few_at_a_time_gets_them_from_one_read() -> None:
    log = backlog(5000)
    (first,) = log.read(0, 1 << 20, 1)
    assert 1000 < first.batch.count < 2000
    for offset in range(1, first.batch.count):
        (run,) = log.read(offset, 1 << 20, offset + 1)
        assert run.batch is first.batch


def test_a_start_within_a_segment_hides_what_is_below() -> None:
    """The first record late enough is below the start; a later one in the same file is not."""
    store, log = filled(30)
    store.checkpoint()
    log.evict()
    store.advance_start(log, 10)
    assert log.find_time(3) == 10
    assert log.find_time(12) == 12


def test_a_start_within_a_batch_in_memory_is_not_taken_for_a_match() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    for time in (9, 1, 1, 9):
        store.append(value_batch(b"x", timestamp_ms=time), [log])
    store.advance_start(log, 1)
    assert log.find_time(5) == 3


def test_an_empty_log() -> None:
    store = Store.open(MemoryDisk(), SMALL)
    log = store.create_partition("a")
    assert log.read(0) == []
    assert log.find_time(0) == 0
    store.checkpoint()
    assert log.segments == []


def test_a_record_larger_than_a_segment() -> None:
    store, log = filled(2)
    store.append(value_batch(bytes(9000)), [log])
    store.append(value_batch(b"after"), [log])
    store.checkpoint()
    log.evict()
    assert [len(record.value or b"") for record in read_all(log, 1)] == [100, 100, 9000, 5]
