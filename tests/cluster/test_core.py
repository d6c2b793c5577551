"""What a replica does beside keeping the rules: transfers, drains, wishes, back-offs, bad peers."""

import pytest
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
    Append,
    Cas,
    Commit,
    Connect,
    CopyFrom,
    Deposed,
    Disconnect,
    Drained,
    Halt,
    Lead,
    Quiet,
    Revoke,
    Send,
    Ship,
    TransferRefused,
    Truncate,
)
from braidmq.cluster.messages import Ack, Copy, Group, Hello, Refused, Welcome
from braidmq.cluster.settings import DEFAULTS
from braidmq.cluster.shard import (
    DirectoryId,
    Incarnation,
    Registration,
    Revision,
    ShardState,
    Term,
    Wish,
)
from braidmq.cluster.states import Role
from braidmq.model.ids import Lsn

MIB = 1 << 20


def acks(lsn: int, *peers: DirectoryId) -> list[tuple[DirectoryId, Ack]]:
    return [(each, Ack(Term(1), Lsn(lsn))) for each in peers or (B, C)]


# Transfers


def test_a_transfer_waits_for_the_target_and_names_it() -> None:
    a = serving()
    a.publish(2, 3, MIB)
    a.durable(3)
    assert a.do("transfer", B) == [Quiet(True)]
    assert a.ack(B, 2) == []
    *_, cas = a.ack(B, 3)
    assert isinstance(cas, Cas)
    assert cas.state == shard_state(B, 2)
    assert a.answer(cas, 3) == [Deposed(Term(2))]
    assert a.replica.role is Role.DEPOSED
    assert a.do("tick") == a.ack(C, 3) == a.do("transfer", C) == []


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (A, "it leads already"),
        (B, "it has too much to get"),
        (C, "it is not connected"),
        (D, "it is not in the in-sync set"),
    ],
)
def test_a_transfer_is_refused(target: DirectoryId, reason: str) -> None:
    a = serving()
    a.publish(2, 3, MIB + 1)
    a.do("on_link_lost", C, LinkEnd.CLOSED)
    assert a.do("transfer", target) == [TransferRefused(target, reason)]
    assert a.replica.role is Role.LEADING


def test_who_is_to_stop_is_not_handed_anything() -> None:
    a = serving()
    there = registered(*ABC) | {B: Registration(Incarnation(1), 7, draining=True)}
    a.do("on_registrations", there)
    assert a.do("transfer", B) == [TransferRefused(B, "it is to stop")]


def test_only_a_leader_hands_over() -> None:
    b = follower()
    assert b.do("transfer", C) == [TransferRefused(C, "this replica does not lead")]


def test_publishers_wait_for_a_second_at_most() -> None:
    a = serving()
    a.publish(2, 2)
    a.do("transfer", B)
    a.pass_ms(900, saying=acks(1))
    assert a.of(Quiet) == [Quiet(True)]
    a.pass_ms(100, saying=acks(1))
    assert a.of(Quiet) == [Quiet(True), Quiet(False)]
    assert a.replica.role is Role.LEADING
    assert a.of(Cas) == []  # nothing was asked for yet


def test_a_transfer_without_an_answer_is_taken_back_by_another_swap() -> None:
    a = serving()
    (_, first) = a.do("transfer", B)
    a.pass_ms(1_000, saying=acks(1))
    assert isinstance(first, Cas)
    second = a.of(Cas)[-1]
    assert (second.revision, second.state) == (first.revision, shard_state())
    a.durable(1)
    a.answer(second, 3)
    a.pass_ms(3_000, saying=acks(1))
    assert a.of(Cas) == [first, second]
    assert a.replica.role is Role.LEADING


def test_the_target_leads_when_etcd_says_so() -> None:
    b = follower()
    b.do("on_message", A, group(1, 1, 3, 0, (1, 1)))
    done = b.do("on_state", Revision(3), shard_state(B, 2))
    assert done == [Disconnect(A, "another term has begun"), Lead(Term(2), Lsn(4))]
    assert b.replica.role is Role.LEADING


def test_a_drained_leader_hands_over_to_who_is_preferred() -> None:
    a = serving()
    a.do("on_wish", Wish(ABC, 2, preferred=C))
    a.do("drain")
    assert [each.state.leader for each in a.of(Cas)] == [C]


def test_a_drained_follower_stops_when_enough_others_are_in_sync() -> None:
    b = Driven(B)
    b.learn(2, shard_state(A, in_sync=(A, B)))
    assert b.do("drain") == []
    b.do("on_state", Revision(3), shard_state(A))
    b.pass_ms(300)
    assert b.of(Drained) == [Drained()]


# Replicas


def wished(replicas: tuple[DirectoryId, ...], minimum: int = 2) -> Driven:
    a = serving()
    a.do("on_registrations", registered(*ABC, D))
    a.do("on_wish", Wish(replicas, minimum))
    return a


def decided(driven: Driven, revision: int, said: int = 1) -> ShardState:
    """Time goes by until the leader asks for another state, and gets it."""
    before = len(driven.of(Cas))
    for _ in range(100):
        driven.pass_ms(100, saying=acks(said))
        if len(driven.of(Cas)) > before:
            break
    cas = driven.of(Cas)[-1]
    driven.answer(cas, revision)
    return cas.state


def test_a_replica_is_replaced_in_steps() -> None:
    a = wished((A, B, D))
    assert decided(a, 3) == shard_state(replicas=(*ABC, D))
    a.hello(D)
    a.ack(D, 0)
    a.ack(D, 1)
    assert decided(a, 4) == shard_state(replicas=(*ABC, D), in_sync=(*ABC, D))
    a.ack(D, 1)
    assert decided(a, 5) == shard_state(replicas=(A, B, D), in_sync=(A, B, D))
    assert Disconnect(C, "it is not a replica of this shard any more") in a.effects
    assert a.hello(C) == [Send(C, Refused(Term(1)))]


def test_wishing_back_undoes_it() -> None:
    a = wished((A, B, D))
    decided(a, 3)
    a.do("on_wish", Wish(ABC, 2))
    assert decided(a, 4) == shard_state()


def test_nobody_leaves_before_who_comes_is_in_sync() -> None:
    a = wished((A, B, D))
    decided(a, 3)
    a.pass_ms(10_000, saying=acks(1))
    assert len(a.of(Cas)) == 1


def test_a_leader_that_is_not_wished_for_hands_over() -> None:
    a = serving()
    a.do("on_wish", Wish((B, C), 2))
    a.pass_ms(200, saying=acks(1))
    assert [each.state.leader for each in a.of(Cas)] == [B]


def test_the_preferred_replica_gets_the_leadership() -> None:
    a = serving()
    a.do("on_wish", Wish(ABC, 2, preferred=C))
    a.pass_ms(200, saying=acks(1))
    assert [each.state.leader for each in a.of(Cas)] == [C]


def test_a_transfer_that_failed_is_not_tried_again_at_once() -> None:
    a = serving()
    a.do("on_wish", Wish(ABC, 2, preferred=C))
    a.pass_ms(1_200, saying=acks(1))
    assert a.of(Quiet) == [Quiet(True), Quiet(False)]
    a.answer(a.of(Cas)[-1], 3)
    a.pass_ms(DEFAULTS.transfer_retry_ms - 1_200, saying=acks(1))
    assert len(a.of(Quiet)) == 2
    a.pass_ms(200, saying=acks(1))
    assert a.of(Quiet)[2:] == [Quiet(True)]


def test_the_minimum_is_raised_when_there_are_enough() -> None:
    a = serving(shard_state(in_sync=(A, B)), followers=(B,))
    a.do("on_wish", Wish(ABC, 3))
    a.pass_ms(3_000, saying=acks(1, B))
    assert a.of(Cas) == []
    a.hello(C)
    a.ack(C, 0)
    assert decided(a, 3) == shard_state()
    assert decided(a, 4) == shard_state(minimum=3)


def test_a_wish_that_could_confirm_nothing_is_left_alone() -> None:
    a = serving()
    a.do("on_wish", Wish((A,), 2))
    a.pass_ms(3_000, saying=acks(1))
    assert a.of(Cas) == []


# Who is in sync


def test_who_is_reset_is_dropped_at_once() -> None:
    a = serving()
    (cas,) = a.do("on_link_lost", C, LinkEnd.RESET)
    assert isinstance(cas, Cas)
    assert cas.state.in_sync == (A, B)


def test_who_answers_but_does_not_write_is_dropped() -> None:
    a = serving()
    a.publish(2, 2)
    a.durable(2)
    a.ack(B, 2)
    a.pass_ms(2_000, saying=[(B, Ack(Term(1), Lsn(2))), (C, Ack(Term(1), Lsn(1)))])
    assert [each.state.in_sync for each in a.of(Cas)][:1] == [(A, B)]


def test_a_leader_that_was_paused_does_not_blame_the_others() -> None:
    a = serving()
    a.pass_ms(100, saying=acks(1))
    a.now_ms += 60_000
    a.do("tick")
    assert a.of(Cas) == []
    a.pass_ms(1_100)
    assert len(a.of(Cas)) == 1


def test_who_falls_out_again_and_again_stays_out_longer() -> None:
    a = serving()
    waits = []
    revision = 2
    for _ in range(6):
        (cas,) = a.do("on_link_lost", C, LinkEnd.RESET)
        assert isinstance(cas, Cas)
        revision += 1
        a.answer(cas, revision)
        a.hello(C, 1, (1, 1))
        began_ms = a.now_ms
        while a.of(Cas)[-1] is cas:
            a.pass_ms(100, saying=acks(1))
        waits.append(round((a.now_ms - began_ms) / 1_000))
        revision += 1
        a.answer(a.of(Cas)[-1], revision)
    assert waits == [5, 10, 20, 40, 60, 60]
    a.pass_ms(DEFAULTS.rejoin_ms_max, saying=acks(1))
    (cas,) = a.do("on_link_lost", C, LinkEnd.RESET)
    a.answer(cas, revision + 1)  # type: ignore[arg-type]
    a.hello(C, 1, (1, 1))
    a.pass_ms(5_200, saying=acks(1))
    assert a.of(Cas)[-1].state.in_sync == (A, B, C)


def test_nobody_stays_out_while_publishers_wait_for_one_that_is_gone() -> None:
    a = serving()
    (cas,) = a.do("on_link_lost", C, LinkEnd.RESET)
    a.answer(cas, 3)  # type: ignore[arg-type]
    assert a.do("on_link_lost", B, LinkEnd.RESET) == []  # it is the last that can't be spared
    a.hello(C, 1, (1, 1))
    a.pass_ms(300, saying=acks(1, C))
    assert a.of(Cas)[-1].state.in_sync == (A, B, C)


def test_the_commit_waits_a_moment_for_who_keeps_up_and_is_always_just_behind() -> None:
    a = serving(shard_state(in_sync=(A, B)), followers=(B, C))
    at = 1
    while not a.of(Cas) and at < 200:
        at += 1
        a.publish(at, at)
        a.durable(at)
        a.ack(B, at)
        a.pass_ms(100, saying=[(C, Ack(Term(1), Lsn(at - 1)))])
        assert at - a.replica.log.committed <= 10
    assert a.of(Cas)[-1].state.in_sync == ABC


def test_who_does_not_get_there_is_not_waited_for_longer() -> None:
    a = serving(shard_state(in_sync=(A, B)), followers=(B, C))
    for at in range(2, 4):
        a.publish(at, at)
        a.durable(at)
        a.ack(B, at)
        a.pass_ms(100, saying=acks(1, C))
    assert a.replica.log.committed == 2
    a.pass_ms(1_100, saying=[*acks(3, B), *acks(1, C)])
    assert a.replica.log.committed == 3
    assert a.of(Cas) == []


# Elections


def test_it_stands_when_the_leaders_lease_has_ended_and_only_once_a_second() -> None:
    b = follower()
    b.pass_ms(300, saying=[(A, group(1, 1, 0))])
    assert b.of(Cas) == []
    b.do("on_registrations", registered(B, C))
    b.pass_ms(900, saying=[(A, group(1, 1, 0))])
    assert len(b.of(Cas)) == 1
    b.pass_ms(100, saying=[(A, group(1, 1, 0))])
    assert len(b.of(Cas)) == 2
    assert b.replica.role is Role.FOLLOWING  # and goes on following until it is named


def test_after_etcd_was_away_leases_get_time_to_come_back() -> None:
    b = follower()
    b.do("on_etcd", False)
    b.do("on_registrations", registered(B, C))
    b.pass_ms(5_000)
    b.do("on_etcd", True)
    b.pass_ms(DEFAULTS.lease_ttl_ms - 100)
    assert b.of(Cas) == []
    b.pass_ms(100)
    assert len(b.of(Cas)) == 1


def test_a_leader_whose_process_is_gone_loses_its_lease() -> None:
    b = follower()
    (again,) = b.do("on_link_lost", A, LinkEnd.RESET)
    assert isinstance(again, Connect)
    assert b.do("on_link_lost", A, LinkEnd.REFUSED) == [Revoke(registered(A)[A].lease)]


@pytest.mark.parametrize("in_sync", [(A, C), (A, B, C)])
def test_the_lease_of_another_process_is_left_alone(in_sync: tuple[DirectoryId, ...]) -> None:
    b = Driven(B)
    b.learn(2, shard_state(A, in_sync=in_sync))
    if B in in_sync:  # a new process has begun there
        b.do("on_registrations", registered(*ABC, incarnation=2))
    b.do("tick")
    assert b.do("on_link_lost", A, LinkEnd.REFUSED) == []


def test_a_term_is_newer_than_any_that_was_heard_of() -> None:
    b = Driven(B, log_view(9, (7, 1)))
    b.learn(2, shard_state(A, 3), B, C)  # an etcd that was restored
    b.do("tick")
    assert [each.state.term for each in b.of(Cas)] == [8]


# Links


def test_a_follower_is_told_what_to_cut_and_is_sent_the_rest() -> None:
    a = Driven(A, log_view(8, (1, 1), (2, 5)))
    a.learn(2, shard_state(A, 3))
    b = Driven(B, log_view(7, (1, 1)))
    b.learn(2, shard_state(A, 3))
    b.do("tick")
    (connect,) = b.of(Connect)
    (answer,) = a.do("on_message", B, connect.hello)
    assert answer == Send(B, Welcome(Term(3), Lsn(4), Lsn(0)))
    assert b.do("on_message", A, answer.message)[-1] == Truncate(Lsn(4))  # type: ignore[union-attr]
    assert b.durable(7) == []  # a sync from before it was cut says nothing
    (again,) = b.do("on_cut", Lsn(4))
    assert isinstance(again, Connect)
    assert (again.hello.last, again.hello.terms) == (4, ((1, 1),))
    a.do("on_message", B, again.hello)
    assert b.do("on_message", A, Welcome(Term(3), Lsn(4), Lsn(0))) == [
        Send(A, Ack(Term(3), Lsn(4)))
    ]
    assert a.ack(B, 4, term=3) == [Ship(B, Term(3), Lsn(5), Lsn(9), Lsn(0))]


def test_what_is_no_longer_in_the_journal_is_copied() -> None:
    a = serving(shard_state(in_sync=(A, B)))
    a.publish(2, 9)
    a.durable(9)
    a.ack(B, 9)
    a.do("on_trimmed", Lsn(8))
    assert a.hello(C, 3, (1, 1)) == [Send(C, Copy(Term(1), Lsn(7)))]
    c = Driven(C, log_view(3, (1, 1)))
    c.learn(2, shard_state(A, in_sync=(A, B)))
    c.do("tick")
    assert c.do("on_message", A, Copy(Term(1), Lsn(7))) == [CopyFrom(A, Lsn(7))]
    c.do("on_copied", log_view(7, (1, 1), committed=7, first=8))
    c.pass_ms(500)
    assert c.of(Connect)[-1].hello.last == 7


def test_a_member_of_the_set_does_not_copy() -> None:
    b = Driven(B, log_view(3, (1, 1)))
    b.learn(2, shard_state(A))
    b.do("tick")
    (done,) = b.do("on_message", A, Copy(Term(1), Lsn(7)))
    assert isinstance(done, Disconnect)
    a = serving()
    a.publish(2, 9)
    a.durable(9)
    a.ack(B, 9)
    a.ack(C, 9)
    a.do("on_trimmed", Lsn(8))
    (answer,) = a.hello(C, 3, (1, 1))
    assert isinstance(answer, Disconnect)


def test_who_does_not_answer_is_not_sent_more_than_a_limit() -> None:
    a = serving()
    many = 3 * DEFAULTS.unacked_entries
    a.publish(2, many)
    shipped = [each.last for each in a.of(Ship) if each.peer == B]
    assert shipped[-1] - 1 < DEFAULTS.unacked_entries + DEFAULTS.ship_entries
    a.ack(B, shipped[-1])
    assert [each.last for each in a.of(Ship) if each.peer == B][-1] > shipped[-1]


def test_a_silent_leader_is_asked_again() -> None:
    b = follower()
    b.pass_ms(1_100)
    assert Disconnect(A, "the leader is silent") in b.effects
    assert len(b.of(Connect)) == 2


def test_a_heartbeat_tells_the_commit() -> None:
    b = follower()
    b.do("on_message", A, group(1, 1, 3, 0, (1, 1)))
    b.durable(2)
    assert b.do("on_message", A, group(1, 4, 3, 3)) == [Commit(Lsn(2))]
    assert b.durable(3)[-1] == Commit(Lsn(3))
    a = serving()
    a.pass_ms(300)
    beats = a.sent(Group)
    assert {(each.first, each.last, each.committed) for each in beats} == {(2, 1, 1)}


@pytest.mark.parametrize(
    "bad",
    [
        group(1, 5, 6),  # 4 is missing
        group(1, 3, 6),  # 3 is there
        group(2, 4, 6),  # another term than the link's
        group(1, 4, 2),
        group(1, 4, 6, 0, (2, 5)),  # a term that is not there yet
        group(1, 4, 6, 0, (1, 5)),  # it has begun
        group(1, 4, 4, 0, (1, 9)),
    ],
)
def test_a_group_that_can_not_follow_ends_the_link(bad: Group) -> None:
    b = follower()
    b.do("on_message", A, group(1, 1, 3, 0, (1, 1)))
    (done,) = b.do("on_message", A, bad)
    assert isinstance(done, Disconnect)
    assert b.replica.role is Role.SEEKING
    assert b.replica.log.last == 3


@pytest.mark.parametrize("cut", [-1, 10])
def test_a_welcome_that_can_not_be_ends_the_link(cut: int) -> None:
    b = Driven(B, log_view(9, (1, 1)))
    b.learn(2, shard_state(A))
    b.do("tick")
    (done,) = b.do("on_message", A, Welcome(Term(1), Lsn(cut), Lsn(0)))
    assert isinstance(done, Disconnect)
    assert b.of(Halt) == b.of(Truncate) == []


@pytest.mark.parametrize("durable", [0, 2, 1 << 62])
def test_an_acknowledgement_that_can_not_be_ends_the_link(durable: int) -> None:
    a = serving()
    (done,) = a.ack(B, durable)
    assert isinstance(done, Disconnect)
    a.publish(2, 2)
    a.durable(2)
    assert Commit(Lsn(2)) not in a.ack(C, 2)


@pytest.mark.parametrize("terms", [((2, 1), (1, 3)), ((1, 1), (2, 1)), ((1, 9),), ((0, 1),)])
def test_a_hello_that_contradicts_itself_ends_the_link(terms: tuple[tuple[int, int], ...]) -> None:
    a = leader(followers=())
    assert a.hello(B, 5, *terms) == [Disconnect(B, "its HELLO contradicts itself")]


def test_strangers_end_no_leadership() -> None:
    a = serving()
    huge = Term(1 << 62)
    assert a.do("on_message", D, Hello(D, Incarnation(1), huge, Lsn(0), ())) == [
        Send(D, Refused(Term(1)))
    ]
    assert a.do("on_message", D, Refused(huge)) == []
    assert a.do("on_message", D, Ack(huge, Lsn(1))) == []
    assert a.replica.role is Role.LEADING


def test_what_comes_from_somebody_else_than_the_leader_is_not_taken() -> None:
    b = follower()
    for message in (
        group(1, 1, 3, 0, (1, 1)),
        Welcome(Term(1), Lsn(0), Lsn(0)),
        Copy(Term(9), Lsn(5)),
    ):
        assert b.do("on_message", C, message) == []
    assert b.of(Append) == []
