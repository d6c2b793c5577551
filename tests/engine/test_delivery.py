"""The delivery kernel against a dictionary of cells, and against the table of states."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.engine import states
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.states import TERMINAL, TRANSITIONS, Event, State
from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetSet

FOREVER = 1 << 62
DOCUMENT = Path(__file__).parents[2] / "docs" / "delivery-states.md"
LANES = bytes(min(priority, 3) for priority in range(256))


def batch_of(*rows: tuple[int, int, int], base_offset: int = 0) -> RecordBatch:
    """Records of (size, priority, due)."""
    batch = RecordBatch()
    for size, priority, due in rows:
        batch.append(b"v" * size, priority=priority, due_at_ms=due)
    batch.place(base_offset)
    return batch


# --- the table ---


def test_the_document_is_drawn_from_the_table() -> None:
    assert DOCUMENT.read_text() == states.document()


def in_state(state: State) -> tuple[DeliveryState, RecordBatch]:
    """A kernel with one message, in a state."""
    batch = batch_of((5, 0, 100 if state is State.DELAYED else 0))
    kernel = DeliveryState(OffsetSet(), 0, 0)
    kernel.published(batch, 0, 10)
    if state is State.DELAYED:
        return kernel, batch
    kernel.deliver(batch, 0, 1, 7, 0, 0)
    way = {
        State.READY: [Event.NACK, Event.RETRY_DUE],
        State.IN_FLIGHT: [],
        State.WAITING: [Event.NACK],
        State.ACKED: [Event.ACK],
        State.DEAD: [Event.REJECT],
        State.EXPIRED: [Event.NACK, Event.EXPIRE],
        State.DISCARDED: [Event.NACK, Event.DROP],
    }
    for event in way[state]:
        assert kernel.apply(event, 0, 1)[1] == 1
    return kernel, batch


def shown(kernel: DeliveryState) -> tuple[int, int, int, int]:
    return kernel.ready, kernel.in_flight, kernel.waiting, kernel.delayed


def expected(state: State) -> tuple[int, ...]:
    order = (State.READY, State.IN_FLIGHT, State.WAITING, State.DELAYED)
    return tuple(int(state is each) for each in order)


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("state", list(State))
def test_every_pair_goes_where_the_table_says(state: State, event: Event) -> None:
    kernel, _ = in_state(state)
    assert shown(kernel) == expected(state)
    following = TRANSITIONS[state].get(event)
    before = kernel.look(0)
    ranges, count, size = kernel.apply(event, 0, 1, 0, 50)
    if following is None:
        assert (ranges, count, size) == ([], 0, 0)
        assert kernel.look(0) == before
        assert shown(kernel) == expected(state)
        return
    assert (ranges, count, size) == ([(0, 1)], 1, 5)
    assert shown(kernel) == expected(following)
    entry = kernel.look(0)
    assert entry is None if following in TERMINAL else entry is not None and entry[0] == following


@pytest.mark.parametrize("event", [Event.EXPIRE, Event.DROP])
@pytest.mark.parametrize("state", list(State))
def test_taking_out_goes_by_the_table_too(state: State, event: Event) -> None:
    kernel, batch = in_state(state)
    taken = kernel.take_out(event, batch, 0, 1)
    if event in TRANSITIONS[state]:
        assert taken == ([(0, 1)], 1, 5)
        assert (kernel.depth, kernel.depth_bytes) == (0, 0)
    else:
        assert taken == ([], 0, 0)
        assert shown(kernel) == expected(state)


def test_fresh_messages_are_ready_by_the_table() -> None:
    for event in (Event.EXPIRE, Event.DROP):
        kernel = DeliveryState(OffsetSet(), 0, 0)
        batch = batch_of((5, 0, 0), (6, 0, 0))
        kernel.published(batch, 0, 0)
        assert kernel.take_out(event, batch, 0, 1) == ([(0, 1)], 1, 5)
        assert (kernel.ready, kernel.ready_bytes) == (1, 6)
        assert kernel.next_run(0, 10) == (1, 2, 0)


# --- single cases ---


def test_a_delayed_message_that_is_due_does_not_overtake() -> None:
    kernel = DeliveryState(OffsetSet(), 0, 0)
    batch = batch_of((1, 0, 0), (1, 0, 0), (1, 0, 100), (1, 0, 0))
    kernel.published(batch, 0, 10)
    assert kernel.apply(Event.DUE, 2, 3)[1] == 1
    order = []
    while (run := kernel.next_run(0, 10)) is not None:
        order.append(run)
        kernel.deliver(batch, run[0], run[1], 1, 0, 0)
    assert order == [(0, 2, 0), (2, 3, 0), (3, 4, 0)]


def test_changing_lanes_leaves_in_flight_what_is() -> None:
    kernel = DeliveryState(OffsetSet(), 0, 0)
    batch = batch_of((1, 2, 0), (1, 1, 0), (1, 0, 0))
    kernel.published(batch, 0, 0)
    kernel.deliver(batch, 0, 1, 7, 0, 0)
    kernel.recount()
    kernel.rebuild(batch, 0, 3, 0, LANES)
    kernel.rebuild_done()
    assert kernel.held_by(7) == [(0, 1)]
    assert (kernel.in_flight, kernel.ready, kernel.depth_bytes) == (1, 2, 3)
    assert kernel.ready_lanes() == [0, 1]
    assert kernel.next_run(1, 10) == (1, 2, 0)


def test_attempts_stop_counting_at_their_limit() -> None:
    kernel = DeliveryState(OffsetSet(), 0, 0)
    batch = batch_of((1, 0, 0))
    kernel.published(batch, 0, 0)
    kernel.restore(batch, 0, 1, 0xFFFF, State.READY, 0)
    kernel.deliver(batch, 0, 1, 1, 0, 0)
    entry = kernel.look(0)
    assert entry is not None
    assert entry[1] == 0xFFFF


# --- any history ---


GRAIN_MS = 100
"""Deliveries so close together count as one."""


@dataclass
class Plain:
    size: int
    lane: int
    due: int
    state: State = State.READY
    attempts: int = 0
    holder: int = 0
    deadline: int = 0
    since: int = -1
    """When it was handed out."""


class Pair:
    """A kernel and a dictionary, changed together."""

    def __init__(self) -> None:
        self.kernel = DeliveryState(OffsetSet(), 0, 0)
        self.cells: dict[int, Plain] = {}
        self.batches: list[RecordBatch] = []
        self.lanes: bytes | None = None
        self.now_ms = 1000

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def publish(self, rows: list[tuple[int, int, int]], gap: int) -> None:
        rows = [(size, priority, due and self.now_ms + due) for size, priority, due in rows]
        base = self.end + gap
        batch = batch_of(*rows, base_offset=base)
        self.kernel.published(batch, base, self.now_ms, self.lanes)
        self.kernel.settled.add(self.end, base) if gap else None
        self.batches.append(batch)
        for offset, (size, priority, due) in enumerate(rows, base):
            lane = self.lanes[priority] if self.lanes is not None else 0
            delayed = due > self.now_ms
            state = State.DELAYED if delayed else State.READY
            self.cells[offset] = Plain(size, lane, due, state, deadline=due if delayed else 0)

    def runs(self, start: int, stop: int) -> list[tuple[RecordBatch, int, int]]:
        found = [(each, each.find(start), each.find(stop)) for each in self.batches]
        return [(each, first, last) for each, first, last in found if first < last]

    def deliver(self, lane: int, limit: int, consumer: int, deadline: int, *, keep: bool) -> None:
        run = self.kernel.next_run(lane, limit)
        ready = sorted(
            at for at, cell in self.cells.items() if cell.state is State.READY and cell.lane == lane
        )
        assert (run is None) == (not ready)
        if run is None:
            return
        start, stop, attempts = run
        assert list(range(start, stop)) == ready[: stop - start]
        assert stop - start <= limit
        assert {self.cells[at].attempts for at in range(start, stop)} == {attempts}
        for batch, first, last in self.runs(start, stop):
            if keep:
                size = self.kernel.deliver(batch, first, last, consumer, deadline, self.now_ms)
            else:
                size = self.kernel.consume(batch, first, last)
            offsets = [batch.offset_at(index) for index in range(first, last)]
            assert size == sum(self.cells[at].size for at in offsets)
        for at in range(start, stop):
            cell = self.cells[at]
            cell.state, cell.attempts = State.IN_FLIGHT, attempts + 1
            cell.holder, cell.deadline, cell.since = consumer, deadline, self.now_ms
        if not keep:
            self.settle(range(start, stop))

    def settle(self, offsets: range | list[int]) -> None:
        for at in offsets:
            del self.cells[at]
            self.kernel.settled.add(at, at + 1)

    def apply(self, event: Event, start: int, width: int, consumer: int, until: int) -> None:
        if event is Event.DELIVER:
            return
        deadline = self.now_ms if event in (Event.DUE, Event.RETRY_DUE) else FOREVER
        hit = [
            at
            for at, cell in sorted(self.cells.items())
            if start <= at < start + width
            and self.has_entry(at)
            and consumer in (0, cell.holder)
            and cell.deadline <= deadline
            and event in TRANSITIONS[cell.state]
        ]
        ranges, count, size = self.kernel.apply(
            event, start, start + width, consumer, until, deadline
        )
        assert [at for low, high in ranges for at in range(low, high)] == hit
        assert (count, size) == (len(hit), sum(self.cells[at].size for at in hit))
        self.follow(event, hit, until)

    def follow(self, event: Event, hit: list[int], until: int) -> None:
        for at in hit:
            cell = self.cells[at]
            cell.state, cell.deadline = TRANSITIONS[cell.state][event], until
            if cell.state is not State.IN_FLIGHT:
                cell.holder = 0
        self.settle([at for at in hit if self.cells[at].state in TERMINAL])

    def has_entry(self, offset: int) -> bool:
        return self.kernel.look(offset) is not None

    def take_out(self, event: Event, start: int, width: int) -> None:
        for batch, first, last in self.runs(start, start + width):
            offsets = [batch.offset_at(index) for index in range(first, last)]
            hit = [
                at
                for at in offsets
                if at in self.cells and event in TRANSITIONS[self.cells[at].state]
            ]
            ranges, count, _ = self.kernel.take_out(event, batch, first, last)
            assert [at for low, high in ranges for at in range(low, high)] == hit
            assert count == len(hit)
            self.settle(hit)

    def drop_fresh(self) -> None:
        fresh = [
            at
            for at, cell in sorted(self.cells.items())
            if cell.state is State.READY and not self.has_entry(at)
        ]
        ranges, count, size = self.kernel.take_out_all_fresh()
        assert [at for low, high in ranges for at in range(low, high)] == fresh
        assert (count, size) == (len(fresh), sum(self.cells[at].size for at in fresh))
        self.settle(fresh)

    def change_lanes(self, lanes: bytes | None) -> None:
        self.lanes = lanes
        self.kernel.recount()
        self.rebuild()
        for batch in self.batches:
            for record in batch.records():
                if record.offset in self.cells:
                    lane = lanes[record.priority] if lanes is not None else 0
                    self.cells[record.offset].lane = lane

    def rebuild(self) -> None:
        for batch in self.batches:
            self.kernel.rebuild(batch, 0, batch.count, self.now_ms, self.lanes)
        self.kernel.rebuild_done()

    def restart(self) -> None:
        """What recovery does: notes and the cursor are kept, and the log is read again."""
        notes, cursor, settled = self.kernel.notes(), self.kernel.cursor, self.kernel.settled
        # Passed with time, as ``advance`` does before anything else.
        self.kernel = DeliveryState(settled, max(cursor, settled.floor), self.end)
        for start, stop, attempts, was, deadline in notes:
            state = State.WAITING if was == State.WAITING else State.READY
            for batch, first, last in self.runs(start, stop):
                self.kernel.restore(batch, first, last, attempts, state, deadline, self.lanes)
        for batch in self.batches:
            self.kernel.rebuild(batch, 0, batch.count, self.now_ms, self.lanes)
        for start, stop in settled.ranges_above_floor():
            self.kernel.settle_early(start, stop)
        self.kernel.rebuild_done()
        for cell in self.cells.values():
            if cell.state is State.IN_FLIGHT:
                cell.state, cell.holder = State.READY, 0
            if cell.state is State.DELAYED and cell.due <= self.now_ms:
                cell.state = State.READY
            if cell.state is not State.WAITING:
                cell.deadline = cell.due if cell.state is State.DELAYED else cell.deadline

    def materialise(self, start: int, width: int) -> None:
        """As key-ordered delivery does: from the cursor on, without leaving any out."""
        stop = min(self.kernel.cursor + width, self.end)
        for batch, first, last in self.runs(self.kernel.cursor, stop):
            if batch.offset_at(first) <= self.kernel.cursor:
                self.kernel.materialise(batch, first, last)

    def check(self) -> None:
        kernel, cells = self.kernel, self.cells
        for state, name in (
            (State.READY, "ready"),
            (State.IN_FLIGHT, "in_flight"),
            (State.WAITING, "waiting"),
            (State.DELAYED, "delayed"),
        ):
            mine = [cell for cell in cells.values() if cell.state is state]
            assert getattr(kernel, name) == len(mine)
            if hasattr(kernel, f"{name}_bytes"):
                assert getattr(kernel, f"{name}_bytes") == sum(cell.size for cell in mine)
        assert kernel.depth == len(cells)
        assert kernel.depth_bytes == sum(cell.size for cell in cells.values())
        assert kernel.fresh == sum(not self.has_entry(at) for at in cells)
        ready = {cell.lane for cell in cells.values() if cell.state is State.READY}
        assert kernel.ready_lanes() == sorted(ready)
        for lane in ready:
            mine = [c for c in cells.values() if c.state is State.READY and c.lane == lane]
            assert kernel.lane_ready(lane) == len(mine)
        self.check_cells()

    def check_cells(self) -> None:
        kernel, cells = self.kernel, self.cells
        for at in range(self.end):
            cell, entry = cells.get(at), kernel.look(at)
            assert kernel.is_ready(at) == (cell is not None and cell.state is State.READY)
            if entry is not None:
                assert cell is not None
                assert entry[:3] == (cell.state, cell.attempts, cell.holder)
        waits = [at for at, cell in cells.items() if cell.state is State.WAITING]
        for at in (0, self.end // 2, self.end):
            assert kernel.waits_below(at) == any(each < at for each in waits)
        held = {at: cell for at, cell in sorted(cells.items()) if cell.state is State.IN_FLIGHT}
        oldest = min((cell.since for cell in held.values()), default=-1)
        assert oldest - GRAIN_MS < kernel.in_flight_since_ms <= oldest
        for consumer in (1, 2):
            mine = [at for at, cell in held.items() if cell.holder == consumer]
            ranges = kernel.held_by(consumer)
            assert [at for low, high in ranges for at in range(low, high)] == mine
            runs = kernel.attempt_runs(0, FOREVER, consumer)
            assert [(at, n) for low, high, n in runs for at in range(low, high)] == [
                (at, held[at].attempts) for at in mine
            ]
        overdue = kernel.overdue_runs(0, FOREVER, self.now_ms)
        assert [(at, who) for low, high, who in overdue for at in range(low, high)] == [
            (at, cell.holder) for at, cell in held.items() if 0 < cell.deadline <= self.now_ms
        ]
        noted = [(at, n, was) for low, high, n, was, _ in kernel.notes() for at in range(low, high)]
        assert noted == [
            (at, cell.attempts, cell.state) for at, cell in sorted(cells.items()) if cell.attempts
        ]


rows = st.tuples(st.integers(0, 9), st.integers(0, 5), st.sampled_from([0, 0, 0, 50]))
offsets = st.integers(0, 300)
widths = st.sampled_from([1, 2, 10, 100, 400])
times = st.sampled_from([0, 1020, 1100, 1500])
consumers = st.sampled_from([0, 1, 2])
lots = st.integers(1, 150).map(lambda count: [(1, 0, 0)] * count)
uneven = st.integers(1, 150).map(lambda count: [(at % 7, 0, 0) for at in range(count)])
step = st.one_of(
    st.tuples(st.just("publish"), st.one_of(st.lists(rows, min_size=1, max_size=8), lots, uneven)),
    st.tuples(st.just("lose"), st.lists(rows, min_size=1, max_size=3)),
    st.tuples(
        st.just("deliver"),
        st.integers(0, 3),
        st.sampled_from([1, 3, 50, 200]),
        st.sampled_from([1, 2]),
        times,
        st.sampled_from([True, True, True, False]),
    ),
    st.tuples(st.just("apply"), st.sampled_from(list(Event)), offsets, widths, consumers, times),
    st.tuples(st.just("ack"), offsets, widths, consumers),
    st.tuples(st.just("take"), st.sampled_from([Event.EXPIRE, Event.DROP]), offsets, widths),
    st.tuples(st.just("drop fresh")),
    st.tuples(st.just("lanes"), st.sampled_from([None, LANES])),
    st.tuples(st.just("materialise"), offsets, widths),
    st.tuples(st.just("restart")),
    st.tuples(st.just("time"), st.sampled_from([10, 60, 500])),
)


def perform(pair: Pair, name: str, rest: tuple) -> None:
    match name:
        case "publish":
            pair.publish(rest[0], 0)
        case "lose":
            pair.publish(rest[0], 3)
        case "deliver":
            pair.deliver(*rest[:4], keep=rest[4])
        case "apply":
            pair.apply(*rest)
        case "ack":
            pair.apply(Event.ACK, *rest, 0)
        case "take":
            pair.take_out(*rest)
        case "drop fresh":
            pair.drop_fresh()
        case "lanes":
            pair.change_lanes(rest[0])
        case "materialise":
            pair.materialise(*rest)
        case "restart":
            pair.restart()
        case "time":
            pair.now_ms += rest[0]
            pair.apply(Event.DUE, 0, pair.end, 0, 0)


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.lists(step, max_size=40))
def test_the_kernel_is_a_dictionary_of_cells(history: list[tuple]) -> None:
    pair = Pair()
    for name, *rest in history:
        perform(pair, name, tuple(rest))
        pair.check()


def test_memory_of_what_is_settled_is_given_back() -> None:
    """A directory that only ever grew would make every look at it longer."""
    kernel = DeliveryState(OffsetSet(), 0, 0)
    window, at = 1000, 0
    for start in range(0, 200_000, window):
        batch = batch_of(*[(1, 0, 0)] * window, base_offset=start)
        kernel.published(batch, start, 0)
        kernel.deliver(batch, 0, window, 1, 0, 0)
        if start:
            kernel.apply(Event.ACK, at, start, 1)
            kernel.settled.add(at, start)
            at = start
    assert kernel.held_by(1) == [(at, at + window)]
    assert kernel.directory_size < 100
