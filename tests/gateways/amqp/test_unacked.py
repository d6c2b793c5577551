"""Unanswered deliveries against a dict from tag to message."""

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braidmq.engine.engine import Engine
from braidmq.engine.topics import Consumer, Credit, PartitionView
from braidmq.gateways.amqp.unacked import Unacked, UnackedRun
from braidmq.storage.disk import MemoryDisk


def consumers_and_views() -> tuple[list[Consumer], list[PartitionView]]:
    engine = Engine.open(MemoryDisk(), 0)
    topic = engine.topics.create("/", "q", {"partitions": 2}, now_ms=0)
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=0)
    consumers = [
        engine.consumers.attach(subscription, now_ms=0, credits=[Credit()]) for _ in range(3)
    ]
    return consumers, subscription.views


CONSUMERS, VIEWS = consumers_and_views()


class Message(NamedTuple):
    consumer: Consumer
    view: PartitionView
    offset: int


def flat(runs: list[UnackedRun]) -> dict[int, Message]:
    """Tag to message, and the order of the tags with it."""
    found: dict[int, Message] = {}
    for run in runs:
        assert run.first_tag <= run.last_tag
        assert run.stop - run.start == run.last_tag - run.first_tag + 1
        for i, tag in enumerate(range(run.first_tag, run.last_tag + 1)):
            assert tag not in found
            found[tag] = Message(run.consumer, run.view, run.start + i)
    assert list(found) == sorted(found)
    return found


class UnackedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.unacked = Unacked()
        self.model: dict[int, Message] = {}
        self.next_tag = 1
        self.taken: list[list[UnackedRun]] = []

    @rule(
        consumer=st.sampled_from(CONSUMERS),
        view=st.sampled_from(VIEWS),
        start=st.integers(0, 1000),
        count=st.integers(1, 7),
        skipped=st.sampled_from([0, 0, 1, 3]),
    )
    def add(
        self, consumer: Consumer, view: PartitionView, start: int, count: int, skipped: int
    ) -> None:
        first = self.next_tag + skipped  # tags that went to consumers without acknowledgement
        self.next_tag = first + count
        self.unacked.add(UnackedRun(first, first + count - 1, consumer, view, start))
        for i in range(count):
            self.model[first + i] = Message(consumer, view, start + i)

    @rule(tag=st.integers(0, 60), later=st.integers(0, 60))
    def look(self, tag: int, later: int) -> None:
        """Answers for all up to each of two tags are one for all up to the later."""
        if self.unacked.are_together(tag, later):
            assert tag < later
            assert self.model.keys() >= set(range(tag, later + 1))

    @rule(first=st.integers(0, 60), count=st.integers(1, 12))
    def take(self, first: int, count: int) -> None:
        last = first + count - 1
        expected: dict[int, Message] = {}
        missing = None
        for tag in range(first, last + 1):
            if tag not in self.model:
                missing = tag
                break
            expected[tag] = self.model.pop(tag)
        runs, found_missing = self.unacked.take(first, last)
        assert flat(runs) == expected
        assert found_missing == missing
        self.taken.append(runs)

    @rule(tag=st.integers(0, 60))
    def take_through(self, tag: int) -> None:
        runs = self.unacked.take_through(tag)
        if tag not in self.model:
            assert runs is None
            return
        expected = {each: self.model.pop(each) for each in sorted(self.model) if each <= tag}
        assert runs is not None
        assert flat(runs) == expected
        self.taken.append(runs)

    @rule()
    def take_all(self) -> None:
        runs = self.unacked.take_all()
        assert flat(runs) == self.model
        self.model = {}
        self.taken.append(runs)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        runs = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.unacked.put_back(runs)
        self.model |= flat(runs)

    @invariant()
    def agrees(self) -> None:
        assert flat(list(self.unacked)) == self.model
        assert len(self.unacked) == len(self.model)
        assert bool(self.unacked) == bool(self.model)


UnackedMachine.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=30)
TestUnacked = UnackedMachine.TestCase


@pytest.fixture
def unacked() -> Unacked:
    found = Unacked()
    found.add(UnackedRun(1, 10, CONSUMERS[0], VIEWS[0], 100))
    found.add(UnackedRun(11, 20, CONSUMERS[1], VIEWS[1], 0))
    return found


def spans(runs: list[UnackedRun]) -> list[tuple[int, int, int, int]]:
    return [(run.first_tag, run.last_tag, run.start, run.stop) for run in runs]


def test_one_from_the_middle(unacked):
    assert spans(unacked.take(5, 5)[0]) == [(5, 5, 104, 105)]
    assert spans(list(unacked)) == [(1, 4, 100, 104), (6, 10, 105, 110), (11, 20, 0, 10)]


def test_parts_remember_when_they_were_delivered():
    unacked = Unacked()
    assert unacked.oldest_ms is None
    unacked.add(UnackedRun(1, 3, CONSUMERS[0], VIEWS[0], 0, 70))
    unacked.add(UnackedRun(4, 6, CONSUMERS[0], VIEWS[0], 3, 80))
    runs, _ = unacked.take(2, 2)
    assert [run.at_ms for run in (*runs, *unacked)] == [70, 70, 70, 80]
    assert unacked.oldest_ms == 70
    unacked.take_through(3)
    assert unacked.oldest_ms == 80


def test_a_range_over_two_runs(unacked):
    runs, missing = unacked.take(9, 12)
    assert spans(runs) == [(9, 10, 108, 110), (11, 12, 0, 2)]
    assert missing is None


def test_a_tag_that_is_not_waiting_ends_a_range(unacked):
    unacked.take(5, 5)
    runs, missing = unacked.take(4, 6)
    assert spans(runs) == [(4, 4, 103, 104)]
    assert missing == 5
    assert len(unacked) == 18


@pytest.mark.parametrize("tag", [0, 21, (1 << 64) - 1])
def test_unknown_tags(unacked, tag):
    assert unacked.take(tag, tag) == ([], tag)
    assert unacked.take_through(tag) is None
    assert len(unacked) == 20


def test_through_a_tag_that_was_answered_takes_nothing(unacked):
    unacked.take(5, 5)
    assert unacked.take_through(5) is None
    assert len(unacked) == 19


def test_a_later_answer_includes_those_of_its_run() -> None:
    found = Unacked()
    found.add(UnackedRun(1, 10, CONSUMERS[0], VIEWS[0], 100))
    assert found.are_together(3, 10)
    assert not found.are_together(3, 3)
    assert not found.are_together(3, 11)
