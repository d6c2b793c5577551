"""The ten rules of ``braidmq.cluster.core``, each as a function that asserts it.

``test_rules.py`` runs them, and again with each mutant of the rule, which they have to notice.
"""

import simulated_faults
from driven import (
    ABC,
    A,
    B,
    C,
    D,
    Driven,
    follower,
    group,
    leader,
    log_view,
    registered,
    serving,
    shard_state,
)

from braidmq.cluster.core import LinkEnd
from braidmq.cluster.effects import (
    Cas,
    Commit,
    Connect,
    Deposed,
    Guard,
    Halt,
    Lead,
    Send,
    Truncate,
)
from braidmq.cluster.messages import Ack, Hello, Refused, Welcome
from braidmq.cluster.shard import Incarnation, Revision, Term
from braidmq.cluster.states import Role
from braidmq.model.ids import Lsn


def committed_is_what_the_whole_set_has() -> None:
    a = serving()
    a.publish(2, 4)
    a.durable(4)
    assert a.ack(B, 4) == []
    assert a.ack(C, 3) == [Commit(Lsn(3))]
    assert a.ack(C, 4) == [Commit(Lsn(4))]


def who_is_being_dropped_counts_until_that_is_decided() -> None:
    a = serving()
    a.publish(2, 2)
    a.durable(2)
    a.pass_ms(1_000, saying=[(B, Ack(Term(1), Lsn(2)))])
    (cas,) = a.of(Cas)
    assert cas.state == shard_state(in_sync=(A, B))
    assert a.ack(B, 2) == []
    assert Commit(Lsn(2)) in a.answer(cas, 3)


def nothing_is_committed_before_the_entry_that_begins_the_term() -> None:
    a = leader(shard_state(term=3), log_view(5, (1, 1), (2, 4)))
    a.durable(5)
    assert a.of(Lead) == [Lead(Term(3), Lsn(6))]
    assert a.of(Commit) == []
    a.durable(6)
    a.ack(B, 6, term=3)
    assert a.of(Commit) == []
    assert a.ack(C, 6, term=3) == [Commit(Lsn(6))]


def nothing_is_committed_below_the_minimum() -> None:
    a = leader(shard_state(in_sync=(A,)), followers=())
    a.durable(1)
    assert a.of(Commit) == []


def only_what_is_on_disk_is_acknowledged() -> None:
    b = follower()
    b.do("on_message", A, group(1, 1, 3, 0, (1, 1)))
    b.pass_ms(500, saying=[(A, group(1, 4, 3))])
    assert {each.durable for each in b.sent(Ack)} == {0}
    assert b.durable(3) == [Send(A, Ack(Term(1), Lsn(3)))]


def an_unanswered_swap_is_settled_by_another_from_the_same_revision() -> None:
    a = joining()
    a.do("on_link_lost", C, LinkEnd.CLOSED)
    a.publish(2, 2)
    a.durable(2)
    a.pass_ms(1_100, saying=[(B, Ack(Term(1), Lsn(2)))])
    first, second = a.of(Cas)
    assert (first.revision, first.state) == (second.revision, second.state)
    a.do("on_state", first.revision, shard_state(in_sync=(A, B)))  # a read, from before
    assert a.ack(B, 2) == []
    a.do("on_cas", Revision(3), first.state)  # the first had been made
    assert a.ack(B, 2) == []
    assert a.replica.log.committed == 1


def the_set_never_falls_below_its_minimum() -> None:
    a = serving()
    a.publish(2, 2)
    a.durable(2)
    a.ack(B, 2)
    a.pass_ms(1_000)
    (cas,) = a.of(Cas)
    assert cas.state.in_sync == (A, B)  # both are silent; B has more
    a.answer(cas, 3)
    a.pass_ms(2_000)
    assert a.of(Cas) == [cas]
    b = Driven(B)
    b.learn(2, shard_state(A, in_sync=(A, B)), B)
    b.do("tick")
    (cas,) = b.of(Cas)
    assert cas.state == shard_state(B, 2, in_sync=(B, A))


def only_a_member_of_the_set_is_elected() -> None:
    for me, stands in ((B, True), (C, False)):
        driven = Driven(me)
        driven.learn(7, shard_state(A, in_sync=(A, B)), B, C)
        driven.do("tick")
        assert bool(driven.of(Cas)) is stands
    b = Driven(B)
    b.learn(7, shard_state(A, in_sync=ABC, replicas=(*ABC, D)), B, C, D)
    b.do("tick")
    (cas,) = b.of(Cas)
    one = Incarnation(1)
    assert cas.revision == 7
    assert cas.state == shard_state(B, 2, in_sync=(B, C), replicas=(*ABC, D))
    assert cas.guards == (Guard(B, one, True), Guard(A, one, False))
    assert b.replica.role is Role.SEEKING
    assert Lead(Term(2), Lsn(1)) in b.answer(cas, 8)


def who_joins_counts_from_the_moment_of_asking() -> None:
    a = joining()
    (cas,) = a.of(Cas)
    assert cas.state.in_sync == (A, B, C)
    a.publish(2, 2)
    a.durable(2)
    assert a.ack(B, 2) == []
    a.answer(cas, 3)
    assert a.replica.log.committed == 1
    assert a.ack(C, 2) == [Commit(Lsn(2))]


def joining() -> Driven:
    """C has all there is, and etcd was asked to add it."""
    a = leader(shard_state(in_sync=(A, B)))
    a.durable(1)
    a.ack(B, 1)
    a.pass_ms(200, saying=[(B, Ack(Term(1), Lsn(1))), (C, Ack(Term(1), Lsn(1)))])
    return a


def who_joins_has_the_entry_that_began_the_term() -> None:
    a = leader(shard_state(in_sync=(A, B), term=2), log_view(5, (1, 1), committed=3))
    a.durable(6)
    a.pass_ms(300, saying=[(C, Ack(Term(2), Lsn(5)))])
    assert a.of(Cas) == []
    a.pass_ms(300, saying=[(C, Ack(Term(2), Lsn(6)))])
    assert [each.state.in_sync for each in a.of(Cas)] == [(A, B, C)]


def nobody_joins_before_the_leader_has_that_entry_itself() -> None:
    a = leader(shard_state(in_sync=(A, B)))
    saying = [(B, Ack(Term(1), Lsn(1))), (C, Ack(Term(1), Lsn(1)))]
    a.pass_ms(300, saying)
    assert a.of(Cas) == []
    a.durable(1)
    a.pass_ms(100, saying)
    assert [each.state.in_sync for each in a.of(Cas)] == [(A, B, C)]


def who_joins_has_what_is_committed() -> None:
    a = leader(shard_state(in_sync=(A, B)))
    a.publish(2, 9)
    a.durable(9)
    a.ack(B, 9)
    a.pass_ms(200, saying=[(B, Ack(Term(1), Lsn(9))), (C, Ack(Term(1), Lsn(8)))])
    assert a.of(Commit)[-1] == Commit(Lsn(9))
    assert a.of(Cas) == []
    a.pass_ms(200, saying=[(B, Ack(Term(1), Lsn(9))), (C, Ack(Term(1), Lsn(9)))])
    assert [each.state.in_sync for each in a.of(Cas)] == [(A, B, C)]


def a_replaced_disk_is_a_stranger() -> None:
    drawn = simulated_faults.drawn_directory
    old, new = drawn("B", 1), drawn("B", 2)
    state = shard_state(A, in_sync=(A, old, C), replicas=(A, old, C))
    b = Driven(new)
    b.learn(7, state, new, C)
    b.pass_ms(2_000)
    assert b.of(Cas) == []
    assert b.of(Connect) == []
    a = leader(state, followers=())
    assert a.hello(new) == [Send(new, Refused(Term(1)))]


def a_restarted_leader_follows() -> None:
    a = Driven(A, log_view(9, (1, 1)), incarnation=2)
    a.do("on_state", Revision(5), shard_state(A, incarnation=1))
    assert a.of(Lead) == []
    a.do("on_registrations", registered(A, incarnation=2))
    (cas,) = a.of(Cas)
    assert (cas.state.term, cas.state.incarnation) == (2, 2)
    assert a.answer(cas, 6) == [Lead(Term(2), Lsn(10))]


def a_follower_is_cut_where_the_terms_part() -> None:
    a = Driven(A, log_view(8, (1, 1), (2, 5), committed=3))
    a.learn(2, shard_state(A, 3))
    a.hello(B, 7, (1, 1))
    a.hello(C, 9, (1, 1), (2, 5))
    assert [each.cut for each in a.sent(Welcome)] == [4, 8]


def below_its_own_commit_a_follower_stops() -> None:
    b = Driven(B, log_view(9, (1, 1), committed=6))
    b.learn(2, shard_state(A, 2))
    b.do("tick")
    b.do("on_message", A, Welcome(Term(2), Lsn(5), Lsn(5)))
    assert b.replica.role is Role.HALTED
    assert len(b.of(Halt)) == 1
    assert b.of(Truncate) == []


def older_terms_are_refused_and_newer_ones_end_a_leadership() -> None:
    b = Driven(B, log_view(9, (1, 1), (2, 5)))
    b.learn(2, shard_state(A, 1))  # of a member of etcd that is behind
    b.do("tick")
    b.do("on_message", A, Welcome(Term(1), Lsn(4), Lsn(4)))
    assert b.sent(Refused) == [Refused(Term(2))]
    assert b.of(Truncate) == []
    for newer in (
        Hello(B, Incarnation(1), Term(2), Lsn(0), ()),
        Ack(Term(2), Lsn(1)),
        Refused(Term(2)),
    ):
        a = serving()
        assert a.do("on_message", B, newer) == [Deposed(Term(2))]


def leases_decide_nothing() -> None:
    a = serving()
    a.do("on_registrations", {})  # all of them ended
    a.publish(2, 2)
    a.durable(2)
    assert a.ack(B, 2) == []
    assert a.ack(C, 2) == [Commit(Lsn(2))]
    assert a.replica.role is Role.LEADING


RULES = {
    1: [
        committed_is_what_the_whole_set_has,
        who_is_being_dropped_counts_until_that_is_decided,
        nothing_is_committed_before_the_entry_that_begins_the_term,
        nothing_is_committed_below_the_minimum,
        only_what_is_on_disk_is_acknowledged,
    ],
    2: [an_unanswered_swap_is_settled_by_another_from_the_same_revision],
    3: [the_set_never_falls_below_its_minimum],
    4: [only_a_member_of_the_set_is_elected],
    5: [
        who_joins_counts_from_the_moment_of_asking,
        who_joins_has_the_entry_that_began_the_term,
        nobody_joins_before_the_leader_has_that_entry_itself,
        who_joins_has_what_is_committed,
    ],
    6: [a_replaced_disk_is_a_stranger],
    7: [a_restarted_leader_follows],
    8: [a_follower_is_cut_where_the_terms_part, below_its_own_commit_a_follower_stops],
    9: [older_terms_are_refused_and_newer_ones_end_a_leadership],
    10: [leases_decide_nothing],
}
