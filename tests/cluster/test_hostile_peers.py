"""Whatever peers and links do, in whatever order: the core takes it or ends the link, and never
trips over itself. What etcd and the disk say is true here."""

from driven import ABC, A, B, C, D, Driven, follower, group, log_view, serving, shard_state
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.core import LinkEnd
from braidmq.cluster.effects import CopyFrom, Effect, Truncate
from braidmq.cluster.log import TermStart
from braidmq.cluster.messages import Ack, Copy, Group, Hello, Message, Refused, Welcome
from braidmq.cluster.shard import Incarnation, Term
from braidmq.cluster.states import Role
from braidmq.model.ids import Lsn

terms = st.integers(-1, 4).map(Term) | st.just(Term(1 << 63))
lsns = st.integers(-1, 12).map(Lsn) | st.just(Lsn(1 << 63))
begins = st.lists(st.builds(TermStart, terms, lsns), max_size=3).map(tuple)
peers = st.sampled_from([A, B, C, D])
messages = st.one_of(
    st.builds(Hello, peers, st.integers(0, 2).map(Incarnation), terms, lsns, begins),
    st.builds(Welcome, terms, lsns, lsns),
    st.builds(Copy, terms, lsns),
    st.builds(Refused, terms),
    st.builds(Group, terms, lsns, lsns, lsns, begins, st.none()),
    st.builds(Ack, terms, lsns),
)
steps = st.lists(
    st.tuples(peers, messages | st.sampled_from([*LinkEnd, "tick", "durable", "trim"])), max_size=40
)


def perform(driven: Driven, effects: list[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Truncate):
            perform(driven, driven.do("on_cut", effect.lsn))
        elif isinstance(effect, CopyFrom):
            lsn = effect.lsn
            perform(driven, driven.do("on_copied", log_view(lsn, committed=lsn, first=lsn + 1)))


def bothered(driven: Driven, done: list[tuple[str, Message | LinkEnd | str]]) -> None:
    log = driven.replica.log
    for peer, what in done:
        before = driven.replica.log.committed
        if what == "tick":
            driven.pass_ms(300)
        elif what == "durable":
            perform(driven, driven.durable(driven.replica.log.last))
        elif what == "trim" and driven.replica.role is Role.LEADING:
            driven.do("on_trimmed", Lsn(log.committed + 1))
        elif isinstance(what, LinkEnd):
            perform(driven, driven.do("on_link_lost", peer, what))
        elif not isinstance(what, str):
            perform(driven, driven.do("on_message", peer, what))
        log = driven.replica.log
        assert before <= log.committed <= log.last
        assert log.durable <= log.last


@given(steps)
def test_a_leader(done: list[tuple[str, Message | LinkEnd | str]]) -> None:
    a = serving()
    a.publish(2, 6)
    bothered(a, done)
    assert a.replica.log.last == 6


@given(steps)
def test_a_follower(done: list[tuple[str, Message | LinkEnd | str]]) -> None:
    b = follower()
    b.do("on_message", A, group(1, 1, 3, 0, (1, 1)))
    bothered(b, done)


@given(steps, st.sampled_from([ABC, (A, C)]))
def test_who_seeks(
    done: list[tuple[str, Message | LinkEnd | str]], in_sync: tuple[str, ...]
) -> None:
    b = Driven(B, log_view(8, (1, 1), (2, 5), committed=3))
    b.learn(2, shard_state(A, 2, in_sync=in_sync))  # type: ignore[arg-type]
    b.do("tick")
    bothered(b, done)
