"""Sets of offsets against plain Python sets."""

import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles import INT64_MAX, INT64_MIN, encode_offset_set, first_missing, ranges_of, varint

from braidmq.record.offset_set import OffsetBits, OffsetSet, in_all

BLOCK = 4096
SPAN_MAX = 2**24 * BLOCK  # offsets between the lowest and the highest block of one set

edges = st.builds(
    lambda block, near: max(0, block * BLOCK + near), st.integers(0, 4), st.integers(-2, 2)
)
offsets = st.one_of(st.integers(0, 300), edges, st.integers(0, 20_000))
floors = st.one_of(st.integers(0, 5), edges)
far_offsets = st.builds(
    lambda billion, near: billion * 10**9 + near, st.integers(1, 3), st.integers(0, 5000)
)
lengths = st.one_of(
    st.integers(1, 130),
    st.sampled_from([63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]),
)
spans = st.builds(lambda start, length: (start, start + length), offsets, lengths)
far_spans = st.builds(lambda start, length: (start, start + length), far_offsets, lengths)
rarely = st.integers(0, 4).map(lambda n: n == 4)  # for rules after which little is left to see
limits = st.one_of(st.integers(0, 10), st.integers(0, 10_000), st.just(INT64_MAX))


def first_runs(members: set[int], limit: int) -> list[tuple[int, int]]:
    """The lowest ``limit`` members as ranges."""
    return ranges_of(sorted(members)[:limit])


class Bits(RuleBasedStateMachine):
    """What OffsetBits and OffsetSet share. ``bits`` are the members that are kept as bits."""

    subject: OffsetBits
    members: set[int]

    @property
    def bits(self) -> set[int]:
        return self.members

    @rule(span=st.one_of(spans, spans, spans, far_spans))
    def add(self, span):
        self.add_and_compare(span)

    @rule(span=st.one_of(spans, spans, spans, far_spans))
    def discard(self, span):
        self.discard_and_compare(span)

    def add_and_compare(self, span):
        new = set(range(*span)) - self.members
        assert self.subject.add(*span) == len(new)
        self.members |= new

    def discard_and_compare(self, span):
        old = self.members.intersection(range(*span))
        assert self.subject.discard(*span) == len(old)
        self.members -= old

    @rule(at=st.one_of(offsets, far_offsets))
    def ask_about_one(self, at):
        assert (at in self.subject) == (at in self.members)
        assert self.subject.first(at) == min((m for m in self.members if m >= at), default=-1)
        assert self.subject.first_missing(at) == first_missing(self.members, at)

    @rule(at=st.one_of(offsets, far_offsets), limit=limits)
    def run(self, at, limit):
        start = min((m for m in self.bits if m >= at), default=None)
        expected = None
        if start is not None:
            expected = (start, min(first_missing(self.bits, start), start + limit))
        assert self.subject.run(at, limit) == expected

    @rule(span=st.one_of(spans, st.tuples(offsets, far_offsets)))
    def ask_about_many(self, span):
        ordered = sorted(self.members)
        assert self.subject.count(*span) == (
            bisect.bisect_left(ordered, span[1]) - bisect.bisect_left(ordered, span[0])
        )
        within = [m for m in self.bits if span[0] <= m < span[1]]
        assert self.subject.ranges(*span) == ranges_of(within)

    @precondition(lambda self: self.bits)
    @rule(limit=limits)
    def take(self, limit):
        expected = first_runs(self.bits, limit)
        assert self.subject.take(limit) == expected
        for low, high in expected:
            self.members -= set(range(low, high))

    @invariant()
    def same_bits(self):
        assert self.subject.ranges() == ranges_of(self.bits)
        assert self.subject.size == len(self.subject) == len(self.bits)
        assert bool(self.subject) == bool(self.bits)


class BitsMachine(Bits):
    def __init__(self):
        super().__init__()
        self.subject = OffsetBits()
        self.members = set()

    @rule(really=rarely)
    def clear(self, really):
        if really:
            self.subject.clear()
            self.members.clear()


class SetMachine(Bits):
    """The model holds what is below the floor too: the floor is its first missing offset.

    ``run``, ``ranges``, ``take``, ``len`` and ``bool`` are those of OffsetBits: they see the bits
    above the floor alone.
    """

    @initialize(floor=floors)
    def begin(self, floor):
        self.subject = OffsetSet(floor)
        self.members = set(range(floor))

    @property
    def bits(self):
        floor = first_missing(self.members)
        return {m for m in self.members if m > floor}

    @rule(floor=floors, really=rarely)
    def reset(self, floor, really):
        if really:
            self.subject.reset(floor)
            self.members = set(range(floor))

    @rule(really=rarely)
    def clear_keeps_the_floor(self, really):
        if really:
            self.members -= self.bits
            self.subject.clear()

    @rule(gap=lengths, length=lengths)
    def add_above_the_floor(self, gap, length):
        start = first_missing(self.members) + gap
        self.add_and_compare((start, start + length))

    @rule(depth=lengths, length=lengths)
    def discard_below_the_floor(self, depth, length):
        start = max(first_missing(self.members) - depth, 0)
        self.discard_and_compare((start, start + length))

    @rule()
    def fill_the_gap_at_the_floor(self):
        floor = first_missing(self.members)
        gap_end = min(self.bits, default=floor + 1)
        if gap_end - floor < 50_000:
            assert self.subject.add(floor, gap_end) == gap_end - floor
            self.members |= set(range(floor, gap_end))

    @rule()
    def write_and_read(self):
        written = self.subject.to_bytes()
        assert written == encode_offset_set(first_missing(self.members), ranges_of(self.bits))
        self.subject = OffsetSet.from_bytes(written)
        assert self.subject.to_bytes() == written

    @invariant()
    def floor_is_as_high_as_it_can_be(self):
        assert self.subject.floor == first_missing(self.members)
        assert self.subject.floor not in self.subject
        assert self.subject.ranges_above_floor() == ranges_of(self.bits)


MACHINE_SETTINGS = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestBits = BitsMachine.TestCase
TestBits.settings = MACHINE_SETTINGS
TestSet = SetMachine.TestCase
TestSet.settings = MACHINE_SETTINGS


# --- blocks ---


@pytest.mark.parametrize("offset", [0, 63, 64, 4095, 4096, 4097, 8191, 8192])
def test_one_offset_at_a_block_boundary(offset):
    bits = OffsetBits()
    assert bits.add(offset, offset + 1) == 1
    assert bits.add(offset, offset + 1) == 0
    assert bits.ranges() == [(offset, offset + 1)]
    assert offset in bits
    assert offset + 1 not in bits
    assert (bits.first(), bits.first_missing(offset)) == (offset, offset + 1)
    assert bits.discard(offset, offset + 1) == 1
    assert bits.ranges() == []


def test_full_blocks_by_range_and_one_by_one():
    by_range, one_by_one = OffsetBits(), OffsetBits()
    by_range.add(BLOCK, 3 * BLOCK)
    for offset in range(BLOCK, 3 * BLOCK):
        one_by_one.add(offset, offset + 1)
    for bits in (by_range, one_by_one):
        assert bits.ranges() == [(BLOCK, 3 * BLOCK)]
        assert bits.add(BLOCK + 5, 2 * BLOCK + 5) == 0
        assert bits.count(BLOCK - 1, BLOCK + 1) == 1
        assert bits.discard(2 * BLOCK - 1, 2 * BLOCK + 1) == 2
        assert bits.ranges() == [(BLOCK, 2 * BLOCK - 1), (2 * BLOCK + 1, 3 * BLOCK)]
        assert bits.add(2 * BLOCK - 1, 2 * BLOCK + 1) == 2
        assert bits.first_missing(BLOCK) == 3 * BLOCK
        assert bits.discard(0, 4 * BLOCK) == 2 * BLOCK
        assert not bits


def test_a_whole_block_over_a_partial_one():
    bits = OffsetBits()
    bits.add(10, 20)
    assert bits.add(0, BLOCK) == BLOCK - 10
    bits.discard(100, 200)
    assert bits.discard(0, BLOCK) == BLOCK - 100
    assert bits.discard(0, BLOCK) == 0


def test_a_set_of_full_blocks_does_not_share_its_changes():
    one, other = OffsetBits(), OffsetBits()
    one.add(0, BLOCK)
    other.add(0, BLOCK)
    one.discard(7, 8)
    assert 7 in other
    assert other.count(0, BLOCK) == BLOCK


def test_a_moving_window():
    bits = OffsetBits()
    for start in range(0, 100 * BLOCK, 1000):
        bits.add(start, start + 1000)
        bits.discard(start - 3000, start - 2000)
    assert len(bits) == 3000
    assert bits.ranges() == [(bits.first(), bits.first() + 3000)]


def test_downwards():
    bits = OffsetBits()
    for start in range(20 * BLOCK, -1, -BLOCK // 2):
        assert bits.add(start, start + 1) == 1
    assert [low for low, _ in bits.ranges()] == list(range(0, 20 * BLOCK + 1, BLOCK // 2))


def test_far_apart_up_to_the_limit():
    bits = OffsetBits()
    bits.add(5, 6)
    assert bits.add(SPAN_MAX - 1, SPAN_MAX) == 1
    with pytest.raises(OverflowError):
        bits.add(SPAN_MAX, SPAN_MAX + 1)
    with pytest.raises(OverflowError):
        bits.add(6, INT64_MAX)
    assert bits.ranges() == [(5, 6), (SPAN_MAX - 1, SPAN_MAX)]
    assert len(bits) == 2
    assert bits.discard(5, 6) == 1
    assert bits.first() == SPAN_MAX - 1


def test_too_far_below_the_lowest():
    bits = OffsetBits()
    bits.add(SPAN_MAX, SPAN_MAX + 1)
    with pytest.raises(OverflowError):
        bits.add(0, 1)
    assert bits.add(BLOCK, BLOCK + 1) == 1
    assert bits.ranges() == [(BLOCK, BLOCK + 1), (SPAN_MAX, SPAN_MAX + 1)]


def test_the_highest_offsets_are_kept_or_refused():
    """The end of the last block is beyond 63 bits; nothing may be lost there in silence."""
    bits = OffsetBits()
    top = INT64_MAX - BLOCK
    try:
        assert bits.add(INT64_MAX - 3, INT64_MAX) == 3
    except OverflowError:
        assert bits.add(top - 3, top) == 3
    else:
        top = INT64_MAX
    assert bits.ranges() == [(top - 3, top)]
    assert bits.count(0, INT64_MAX) == 3
    assert bits.take(2) == [(top - 3, top - 1)]
    assert bits.discard(0, INT64_MAX) == 1


@pytest.mark.parametrize("make", [OffsetBits, OffsetSet])
def test_an_empty_set(make):
    empty = make()
    assert (len(empty), bool(empty), empty.ranges(), empty.take(5)) == (0, False, [], [])
    assert (empty.first(), empty.first(10**9), empty.run(0, 5)) == (-1, -1, None)
    assert (empty.first_missing(), empty.first_missing(77)) == (0, 77)
    assert empty.count(0, INT64_MAX) == 0
    assert empty.discard(0, INT64_MAX) == 0


@pytest.mark.parametrize("make", [OffsetBits, OffsetSet])
def test_backward_and_empty_ranges_do_nothing(make):
    subject = make()
    subject.add(10, 20)
    assert subject.add(15, 15) == subject.add(30, 25) == 0
    assert subject.discard(15, 15) == subject.discard(18, 12) == 0
    assert subject.count(18, 12) == 0
    assert subject.ranges(18, 12) == []
    assert subject.ranges() == [(10, 20)]


@pytest.mark.parametrize("make", [OffsetBits, OffsetSet])
def test_negative_offsets_are_refused(make):
    subject = make()
    with pytest.raises(ValueError, match="negative"):
        subject.add(-1, 5)
    assert subject.ranges() == []
    with pytest.raises(ValueError, match="negative"):
        OffsetSet(-1)
    with pytest.raises(ValueError, match="negative"):
        OffsetSet().reset(-1)


@pytest.mark.parametrize("limit", [5, 6, INT64_MAX - 5, INT64_MAX - 4, INT64_MAX])
def test_no_limit_is_too_high_for_run_and_take(limit):
    bits = OffsetBits()
    bits.add(5, 10)
    assert bits.run(0, limit) == (5, 10)
    assert bits.take(limit) == [(5, 10)]
    assert not bits


# --- the floor ---


def test_the_floor_rises_over_what_was_added_out_of_order():
    acknowledged = OffsetSet(10)
    assert acknowledged.add(12, 20) == 8
    assert acknowledged.floor == 10
    assert acknowledged.add(10, 12) == 2
    assert (acknowledged.floor, acknowledged.ranges_above_floor()) == (20, [])


def test_the_floor_rises_over_full_blocks():
    acknowledged = OffsetSet()
    acknowledged.add(1, 3 * BLOCK)
    acknowledged.add(3 * BLOCK + 1, 3 * BLOCK + 2)
    assert acknowledged.add(0, 1) == 1
    assert acknowledged.floor == 3 * BLOCK
    assert acknowledged.add(3 * BLOCK, 3 * BLOCK + 1) == 1
    assert (acknowledged.floor, len(acknowledged)) == (3 * BLOCK + 2, 0)


def test_discarding_below_the_floor_lowers_it():
    acknowledged = OffsetSet(10_000)
    assert acknowledged.discard(4095, 4097) == 2
    assert acknowledged.floor == 4095
    assert acknowledged.ranges_above_floor() == [(4097, 10_000)]
    assert acknowledged.add(4095, 4097) == 2
    assert acknowledged.floor == 10_000


def test_discarding_across_the_floor():
    acknowledged = OffsetSet(100)
    acknowledged.add(150, 300)
    assert acknowledged.discard(50, 200) == 50 + 50
    assert (acknowledged.floor, acknowledged.ranges_above_floor()) == (50, [(200, 300)])


@pytest.mark.parametrize("stop", [-5, -2, 0, 3, 10, 12])
def test_discarding_from_below_zero_counts_from_zero(stop):
    acknowledged = OffsetSet(10)
    assert acknowledged.discard(-5, stop) == min(max(stop, 0), 10)
    members = set(range(max(stop, 0), 10))
    assert acknowledged.floor == first_missing(members)
    assert acknowledged.floor not in acknowledged
    assert [m for m in range(12) if m in acknowledged] == sorted(members)


def test_a_refused_discard_changes_nothing():
    """Everything between the new floor and the old would have to become bits."""
    acknowledged = OffsetSet(2 * SPAN_MAX)
    with pytest.raises(OverflowError):
        acknowledged.discard(0, 1)
    assert acknowledged.floor == 2 * SPAN_MAX
    assert 5 in acknowledged


def test_a_floor_far_up_costs_nothing():
    acknowledged = OffsetSet()
    assert acknowledged.add(0, INT64_MAX) == INT64_MAX
    assert acknowledged.floor == INT64_MAX
    assert len(acknowledged) == 0


# --- bytes ---


@given(st.integers(0, INT64_MAX - 10**6), st.lists(st.tuples(*[st.integers(1, 9000)] * 2)))
def test_bytes_of_any_floor(floor, pairs):
    acknowledged = OffsetSet(floor)
    expected, position = [], floor
    for gap, length in pairs[:20]:
        position += gap
        acknowledged.add(position, position + length)
        expected.append((position, position + length))
        position += length
    written = acknowledged.to_bytes()
    assert written == encode_offset_set(floor, expected)
    read = OffsetSet.from_bytes(memoryview(bytearray(written)))
    assert (read.floor, read.ranges_above_floor()) == (floor, expected)
    assert read.size == acknowledged.size


varints = st.one_of(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 2**64)).map(varint)
garbage = st.one_of(st.binary(max_size=30), st.lists(varints, max_size=7).map(b"".join))


@settings(max_examples=300, deadline=None)
@given(garbage)
def test_garbage_raises_or_round_trips(data):
    try:
        read = OffsetSet.from_bytes(data)
    except ValueError:
        return
    assert read.to_bytes() == data
    assert read.floor not in read


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 10**4))
def test_cut_bytes(floor, gap, length):
    written = encode_offset_set(floor, [(floor + gap, floor + gap + length)])
    whole = (len(varint(floor)), len(written))
    for cut in range(len(written) + 1):
        if cut in whole:
            assert OffsetSet.from_bytes(written[:cut]).to_bytes() == written[:cut]
        else:
            with pytest.raises(ValueError, match="number"):
                OffsetSet.from_bytes(written[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        varint(5) + varint(0) + varint(1),  # would touch the floor
        varint(5) + varint(1) + varint(0),
        varint(5) + varint(1),
        varint(2**63),
        varint(1) + varint(1) + varint(INT64_MAX),
        varint(0) + varint(INT64_MAX) + varint(INT64_MAX),
    ],
)
def test_refused_bytes(data):
    with pytest.raises(ValueError, match="offset set"):
        OffsetSet.from_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        varint(0) + varint(1) + varint(SPAN_MAX),
        varint(0) + varint(1) + varint(1) + varint(SPAN_MAX) + varint(1),
    ],
    ids=["one range too long", "two ranges too far apart"],
)
def test_bytes_of_a_set_too_wide_are_refused_as_bytes(data):
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is the point: OverflowError is no ValueError
        OffsetSet.from_bytes(data)


@pytest.mark.parametrize("data", [b"\x80\x00", b"\x85\x00", b"\x05\x81\x00\x01"])
def test_numbers_longer_than_they_need_be_are_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011
        OffsetSet.from_bytes(data)


def test_asking_below_zero():
    bits = OffsetBits()
    bits.add(0, 3)
    assert bits.first(-10) == 0
    assert bits.run(-10, 2) == (0, 2)
    assert bits.count(-10, 2) == 2
    assert bits.ranges(-10, 2) == [(0, 2)]
    assert bits.discard(INT64_MIN, 1) == 1
    assert -1 not in bits


# --- several sets at once ---

filled = st.tuples(floors, st.lists(spans, max_size=8), st.lists(spans, max_size=3))


def set_of(floor, added, removed):
    made, members = OffsetSet(floor), set(range(floor))
    for span in added:
        made.add(*span)
        members |= set(range(*span))
    for span in removed:
        made.discard(*span)
        members -= set(range(*span))
    return made, members


@given(st.lists(filled, max_size=3), st.none() | filled, spans)
def test_what_is_in_all_sets_and_not_in_another(sets, without, span):
    made = [set_of(*each) for each in sets]
    left_out, missing = set_of(*without) if without is not None else (None, set())
    expected = set(range(*span)).difference(missing)
    for _, members in made:
        expected &= members
    found = in_all([each for each, _ in made], *span, left_out)
    assert found.ranges() == ranges_of(sorted(expected))
    assert len(found) == len(expected)


@given(filled, st.lists(spans, max_size=8))
def test_a_set_takes_in_another(first, added):
    subject, members = set_of(*first)
    other = OffsetBits()
    for low, high in added:
        if high > subject.floor:
            other.add(max(low, subject.floor), high)
            members |= set(range(max(low, subject.floor), high))
    before = other.ranges()
    subject.update(other)
    assert other.ranges() == before
    assert subject.floor == first_missing(members, 0)
    assert subject.ranges_above_floor() == ranges_of(
        sorted(each for each in members if each >= subject.floor)
    )
    assert subject.size == sum(each >= subject.floor for each in members)


def test_a_set_does_not_take_in_what_is_below_its_floor():
    other = OffsetBits()
    other.add(3, 9)
    with pytest.raises(ValueError, match="below the floor"):
        OffsetSet(5).update(other)


@given(filled, st.lists(spans, max_size=3))
def test_a_copy_is_a_set_of_its_own(first, added):
    subject, members = set_of(*first)
    copied = subject.copy()
    for span in added:
        subject.add(*span)
    expected = ranges_of(sorted(each for each in members if each >= copied.floor))
    assert copied.ranges_above_floor() == expected
    assert copied.to_bytes() == set_of(*first)[0].to_bytes()


@given(st.lists(spans, max_size=8), st.integers(0, 20_000), st.integers(1, 9000))
def test_the_offset_after_so_many_members(added, start, count):
    subject, members = OffsetBits(), set()
    for span in added:
        subject.add(*span)
        members |= set(range(*span))
    at = subject.after(start, count)
    later = sorted(each for each in members if each >= start)
    assert subject.count(start, at) == min(count, len(later))
    if len(later) >= count:
        assert at == later[count - 1] + 1
