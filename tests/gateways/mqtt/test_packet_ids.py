"""Runs of packet ids against a dict of single ones."""

from array import array

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.gateways.mqtt.packet_ids import NO_ANCHOR, Anchor, IdRuns
from braidmq.wire.mqtt.render import id_runs

HIGHEST = 24
firsts = st.integers(1, HIGHEST)
counts = st.integers(1, 8)
anchors = st.one_of(
    st.just(NO_ANCHOR), st.tuples(st.integers(1, 2), st.integers(0, 3).map(lambda n: n * 8))
)


class RunsAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runs = IdRuns()
        self.model: dict[int, Anchor] = {}

    @rule(first=firsts, count=counts, anchor=anchors)
    def put(self, first: int, count: int, anchor: Anchor) -> None:
        self.runs.put(first, first + count, anchor)
        partition, offset = anchor
        for place in range(count):
            self.model[first + place] = (partition, offset + place if partition else 0)

    @rule(first=firsts, count=counts)
    def discard(self, first: int, count: int) -> None:
        self.runs.discard(first, first + count)
        for number in range(first, first + count):
            self.model.pop(number, None)

    @rule()
    def write_down_and_read(self) -> None:
        self.runs = IdRuns(list(self.runs.runs()))

    @rule()
    def clear(self) -> None:
        self.runs.clear()
        self.model.clear()

    @rule(first=firsts, count=counts)
    def ask(self, first: int, count: int) -> None:
        wanted = set(range(first, first + count))
        assert self.runs.overlaps(first, first + count) == (not wanted.isdisjoint(self.model))
        assert self.runs.covers(first, first + count) == (wanted <= self.model.keys())
        assert (first in self.runs) == (first in self.model)

    @invariant()
    def agrees(self) -> None:
        found: dict[int, Anchor] = {}
        for first, stop, partition, offset in self.runs.runs():
            for number in range(first, stop):
                place = offset + number - first if partition else 0
                found[number] = (partition, place)
        assert found == self.model
        assert len(self.runs) == len(self.model)


TestRunsAgainstDict = RunsAgainstDict.TestCase


def test_consecutive_ids_are_one_run_and_the_highest_ends_it() -> None:
    assert id_runs(array("H")) == []
    assert id_runs(array("H", [7])) == [(7, 8)]
    assert id_runs(array("H", [5, 6, 7, 9, 8, 8])) == [(5, 8), (9, 10), (8, 9), (8, 9)]
    assert id_runs(array("H", [65534, 65535, 1, 2])) == [(65534, 65536), (1, 3)]
