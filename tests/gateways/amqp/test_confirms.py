"""Publisher confirms against a publisher that keeps its books."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braidmq.gateways.amqp.confirms import Confirm, Confirms
from braidmq.gateways.amqp.settings import UnconfirmedLimit
from braidmq.model.errors import StorageFailed
from braidmq.wire.amqp.methods import BasicAck, BasicNack, Method, decode

CHANNEL = 7
FAILED = StorageFailed("the disk is full")


def methods(data: bytes) -> list[Method]:
    found, at = [], 0
    while at < len(data):
        kind, channel = data[at], int.from_bytes(data[at + 1 : at + 3])
        end = at + 7 + int.from_bytes(data[at + 3 : at + 7])
        assert (kind, channel, data[end]) == (1, CHANNEL, 0xCE)
        found.append(decode(data[at + 7 : end]))
        at = end + 1
    return found


class Publisher(RuleBasedStateMachine):
    """Tags count publishes from 1; each is answered once, by itself or as one of many."""

    def __init__(self) -> None:
        super().__init__()
        self.confirms = Confirms(CHANNEL, lambda data: None)
        self.last_tag = 0
        self.open: dict[int, Confirm] = {}
        self.accepted: dict[int, bool] = {}
        self.answers: dict[int, type[Method]] = {}

    @rule(count=st.integers(1, 5), data=st.data())
    def publish(self, count: int, data: st.DataObject) -> None:
        accepted = data.draw(st.sampled_from([count, count, 0]) | st.integers(0, count))
        confirm = self.confirms.expect(count, accepted)
        for i in range(count):
            self.last_tag += 1
            self.open[self.last_tag] = confirm
            self.accepted[self.last_tag] = i < accepted

    @precondition(lambda self: self.last_tag in self.open and not self.open[self.last_tag].done)
    @rule(count=st.integers(1, 5))
    def publish_more(self, count: int) -> None:
        confirm = self.open[self.last_tag]
        if confirm.accepted < confirm.count:
            return  # only what is taken as a whole goes on
        self.confirms.expect_more(confirm, count)
        for _ in range(count):
            self.last_tag += 1
            self.open[self.last_tag] = confirm
            self.accepted[self.last_tag] = True

    @invariant()
    def unanswered_are_counted(self) -> None:
        assert len(self.confirms) == len(self.open)
        limit = UnconfirmedLimit(messages=len(self.open), bytes=0)
        assert not self.confirms.is_behind(limit)
        assert self.confirms.is_behind(UnconfirmedLimit(len(self.open) - 1, 0))
        assert self.confirms.has_caught_up(UnconfirmedLimit(2 * len(self.open), 0))

    @precondition(lambda self: any(not each.done for each in self.open.values()))
    @rule(data=st.data(), failed=st.sampled_from([False, False, True]))
    def finish(self, data: st.DataObject, failed: bool) -> None:
        tags = [tag for tag, confirm in self.open.items() if not confirm.done]
        confirm = self.open[data.draw(st.sampled_from(tags))]
        confirm.done, confirm.failure = True, FAILED if failed else None

    @rule()
    def ready(self) -> None:
        found = methods(self.confirms.ready())
        for method in found:
            self.answer(method)
        tags = [method.delivery_tag for method in found]
        assert tags == sorted(set(tags))
        # Neighbouring acks would have been one.
        kinds = [type(method) for method in found]
        assert (BasicAck, BasicAck) not in list(itertools.pairwise(kinds))
        assert not self.open or not next(iter(self.open.values())).done

    def answer(self, method: Method) -> None:
        assert isinstance(method, BasicAck | BasicNack)
        tag = method.delivery_tag
        assert tag in self.open
        covered = [each for each in self.open if each <= tag] if method.multiple else [tag]
        # RabbitMQ's nacks are always for all up to the tag.
        assert method.multiple == (len(covered) > 1 or isinstance(method, BasicNack))
        assert covered[0] == min(self.open)  # in order
        for each in covered:
            confirm = self.open.pop(each)
            assert confirm.done
            good = self.accepted[each] and confirm.failure is None
            assert isinstance(method, BasicAck if good else BasicNack)
            assert each not in self.answers
            self.answers[each] = type(method)

    @invariant()
    def counts(self) -> None:
        assert len(self.confirms) == len(self.open)
        assert len(self.answers) + len(self.open) == self.last_tag

    def teardown(self) -> None:
        for confirm in self.open.values():
            confirm.done = True
        self.ready()
        assert list(self.answers) == list(range(1, self.last_tag + 1))
        assert self.confirms.ready() == b""


Publisher.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=30)
TestConfirms = Publisher.TestCase


def answered(*publishes: tuple[int, int, bool, bool]) -> list[Method]:
    confirms = Confirms(CHANNEL, lambda data: None)
    for count, accepted, done, failed in publishes:
        confirm = confirms.expect(count, accepted)
        confirm.done, confirm.failure = done, FAILED if failed else None
    return methods(confirms.ready())


@pytest.mark.parametrize(
    ("publishes", "expected"),
    [
        ([], []),
        ([(1, 1, True, False)], [BasicAck(1)]),
        ([(3, 3, True, False)], [BasicAck(3, multiple=True)]),
        ([(1, 1, True, False), (2, 2, True, False)], [BasicAck(3, multiple=True)]),
        ([(1, 1, False, False), (2, 2, True, False)], []),
        ([(1, 1, True, False), (2, 2, False, False)], [BasicAck(1)]),
        ([(1, 0, True, False)], [BasicNack(1, multiple=True)]),
        ([(2, 2, True, True)], [BasicNack(2, multiple=True)]),
        ([(3, 1, True, False)], [BasicAck(1), BasicNack(3, multiple=True)]),
        (
            [(1, 1, True, False), (1, 1, True, True), (1, 1, True, False)],
            [BasicAck(1), BasicNack(2, multiple=True), BasicAck(3)],
        ),
        ([(0, 0, True, False), (1, 1, True, False)], [BasicAck(1)]),
    ],
)
def test_frames(publishes, expected):
    assert answered(*publishes) == expected
