"""Consumer groups: by example, the plans against brute force, and a group full of obedient, slow
and dead members against a model that only listens to its effects."""

from collections import Counter
from dataclasses import dataclass
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.engine import groups
from braidmq.engine.group_plans import (
    PLANNERS,
    Plan,
    Strategy,
    TopicPartition,
    plan_range,
    plan_round_robin,
    plan_sticky,
)
from braidmq.engine.groups import (
    Assigned,
    Effect,
    Group,
    GroupFull,
    MemberExpired,
    MemberRecord,
    Membership,
    Rebalanced,
    Revoked,
    Revoking,
    StaleGeneration,
    UnknownMember,
)
from braidmq.model.errors import BadRequest, Kind

SESSION_MS = 30_000
REBALANCE_MS = 10_000


def parts(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def group_of(partitions: int, strategy: Strategy = Strategy.STICKY) -> Group:
    group = Group("g", strategy, SESSION_MS, REBALANCE_MS)
    assert group.set_partitions("t", partitions, 0) == []
    return group


def joined(group: Group, member_id: str, now_ms: int = 0) -> Membership:
    return group.join(member_id, "client", ["t"], now_ms)[0]


def refused(group: Group, member_id: str, generation: int, partition: int) -> bool:
    try:
        group.fence(member_id, generation, "t", partition)
    except (StaleGeneration, UnknownMember):
        return True
    return False


# --- by example ---


def test_the_first_member_gets_everything_at_once() -> None:
    group = group_of(3)
    membership, effects = group.join(None, "client", ["t"], 0)
    assert membership == Membership("client-1", 1, {"t": (0, 1, 2)}, {}, 3_000)
    assert effects == [Rebalanced(1), Assigned("client-1", parts("t", 0, 1, 2), 1)]
    assert group.next_deadline_ms() == SESSION_MS


def test_only_what_moves_is_revoked_and_given_on_once_let_go() -> None:
    group = group_of(4)
    joined(group, "a")
    membership, effects = group.join("b", "client", ["t"], 5)
    assert membership.assigned == {}
    assert effects == [Rebalanced(2), Revoking("a", parts("t", 2, 3), 5 + REBALANCE_MS)]
    assert group.assignment("a") == {"t": (0, 1)}
    assert group.revoking("a") == {"t": (2, 3)}
    assert not refused(group, "a", 1, 0)
    assert not refused(group, "a", 1, 3)

    membership, effects = group.sync("a", 1, 6, revoked=[("t", 3)])
    assert membership == Membership("a", 2, {"t": (0, 1)}, {"t": (2,)}, 3_000)
    assert effects == [Revoked("a", parts("t", 3)), Assigned("b", parts("t", 3), 2)]
    assert refused(group, "a", 1, 3)
    assert refused(group, "a", 2, 3)

    _, effects = group.heartbeat("a", 2, 7, revoked=[("t", 2), ("t", 3), ("other", 0)])
    assert effects == [Revoked("a", parts("t", 2)), Assigned("b", parts("t", 2), 2)]
    assert group.heartbeat("b", 2, 8)[0].assigned == {"t": (2, 3)}


def test_an_old_owner_that_does_not_let_go_loses_its_partitions_at_the_deadline() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b", now_ms=1)
    assert group.next_deadline_ms() == 1 + REBALANCE_MS
    assert group.expire(REBALANCE_MS) == []
    effects = group.expire(1 + REBALANCE_MS)
    assert effects == [Revoked("a", parts("t", 1)), Assigned("b", parts("t", 1), 2)]
    assert group.member_ids == ("a", "b")
    assert not refused(group, "a", 1, 0)
    assert refused(group, "a", 1, 1)


def test_a_revocation_is_called_off_when_the_new_owner_leaves() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b")
    assert group.leave("b", 2, 1) == [Rebalanced(3), Assigned("a", parts("t", 1), 3)]
    assert group.assignment("a") == {"t": (0, 1)}
    assert not refused(group, "a", 1, 1), "it never lost the partition"


def test_letting_go_of_what_was_meanwhile_planned_for_it_again_starts_it_afresh() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b")
    group.leave("b", 2, 1)
    membership, effects = group.sync("a", 2, 2, revoked=[("t", 1)])
    assert effects == [Revoked("a", parts("t", 1)), Assigned("a", parts("t", 1), 3)]
    assert membership.assigned == {"t": (0, 1)}
    assert refused(group, "a", 2, 1)
    _, effects = group.sync("a", 2, 2, revoked=[("t", 1)])
    assert effects == [], "the same message again means a tenure that is over"
    _, effects = group.sync("a", 3, 2, revoked=[("t", 1)])
    assert effects == [], "nobody asked for it in this generation"


def test_a_member_that_falls_silent_is_replaced() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b")
    group.sync("a", 1, 0, revoked=[("t", 1)])
    group.heartbeat("b", 2, 20_000)
    assert group.expire(SESSION_MS - 1) == []
    effects = group.expire(SESSION_MS)
    assert effects == [
        MemberExpired("a"),
        Revoked("a", parts("t", 0)),
        Rebalanced(3),
        Assigned("b", parts("t", 0), 3),
    ]
    with pytest.raises(UnknownMember) as caught:
        group.heartbeat("a", 2, SESSION_MS)
    assert caught.value.kind is Kind.NOT_FOUND
    with pytest.raises(UnknownMember):
        group.fence("a", 2, "t", 0)


def test_a_heartbeat_must_be_of_the_current_generation() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b")
    for generation in (0, 1, 3):
        with pytest.raises(StaleGeneration) as caught:
            group.heartbeat("a", generation, 1)
        assert caught.value.kind is Kind.CONFLICT
    assert group.next_deadline_ms() == REBALANCE_MS
    assert group.sync("a", 1, 1)[0].generation == 2
    assert group.heartbeat("a", 2, 1)[0].generation == 2


def test_a_new_life_under_the_same_id_fences_the_old_one() -> None:
    group = group_of(2)
    joined(group, "a")
    membership, effects = group.join("a", "client", ["t"], 1)
    both = parts("t", 0, 1)
    assert effects == [Revoked("a", both), Rebalanced(2), Assigned("a", both, 2)]
    assert membership.generation == 2
    assert refused(group, "a", 1, 0)
    with pytest.raises(StaleGeneration):
        group.sync("a", 1, 2)
    with pytest.raises(StaleGeneration):
        group.leave("a", 1, 2)
    assert not refused(group, "a", 2, 0)


def test_joining_anew_with_other_topics() -> None:
    group = group_of(2)
    group.set_partitions("u", 2, 0)
    joined(group, "a")
    membership, _ = group.join("a", "client", ["u"], 1)
    assert membership.assigned == {"u": (0, 1)}
    assert group.owner_of("t", 0) is None


def test_more_partitions_are_shared_out_and_fewer_are_taken_away() -> None:
    group = group_of(2)
    joined(group, "a")
    joined(group, "b")
    group.sync("a", 1, 0, revoked=[("t", 1)])
    assert group.set_partitions("t", 4, 1) == [
        Rebalanced(3),
        Assigned("a", parts("t", 2), 3),
        Assigned("b", parts("t", 3), 3),
    ]
    assert group.set_partitions("t", 4, 1) == []
    assert group.set_partitions("t", 3, 1) == [Revoked("b", parts("t", 3)), Rebalanced(4)]
    effects = group.set_partitions("t", 0, 1)
    assert effects[-1] == Rebalanced(5)
    assert group.assignment("a") == group.assignment("b") == {}


def restarted(group: Group, now_ms: int) -> tuple[Group, list[Effect]]:
    """As its caller keeps it: what it dumps, and the records of members that have any."""
    records = [group.record(each) for each in group.member_ids]
    restored = Group.load(group.dump())
    for record in records:
        if record is not None:
            data = msgspec.msgpack.encode(record)
            restored.restore(msgspec.msgpack.decode(data, type=MemberRecord), now_ms)
    return restored, restored.resume(now_ms)


def test_members_outlive_a_restart_with_what_they_have() -> None:
    group = Group("g", Strategy.RANGE, 10_000, 2_000)
    group.set_partitions("t", 4, 0)
    group.join("a", "client", ["t"], 0)
    group.join(None, "client", ["t"], 1)
    restored, effects = restarted(group, 50_000)
    assert (restored.name, restored.strategy) == ("g", Strategy.RANGE)
    assert (restored.session_timeout_ms, restored.rebalance_timeout_ms) == (10_000, 2_000)
    assert (restored.generation, restored.member_ids) == (2, ("a", "client-2"))
    assert effects == [Assigned("a", parts("t", 0, 1), 2)]
    assert restored.revoking("a") == {"t": (2, 3)}
    assert restored.next_deadline_ms() == 52_000
    assert not refused(restored, "a", 1, 3)
    assert restored.expire(52_000)[0] == Revoked("a", parts("t", 2, 3))
    assert restored.next_deadline_ms() == 60_000


def test_who_does_not_come_back_leaves_nothing_without_an_owner() -> None:
    group = group_of(4)
    group.join("a", "client", ["t"], 0)
    group.join(None, "client", ["t"], 0, attached=True)
    group.quiet(parts("t", 2, 3))
    restored, effects = restarted(group, 1)
    assert effects == [
        Assigned("a", parts("t", 0, 1), 2),
        Rebalanced(3),
        Assigned("a", parts("t", 2, 3), 3),
    ]
    assert restored.member_ids == ("a",)


def test_nothing_in_flight_lets_go_only_of_what_was_asked_for() -> None:
    group = group_of(4)
    joined(group, "a")
    assert group.quiet(parts("t", 0, 1)) == []
    joined(group, "b")
    assert group.quiet(parts("t", 0, 1, 3)) == [
        Revoked("a", parts("t", 3)),
        Assigned("b", parts("t", 3), 2),
    ]
    assert group.revoking("a") == {"t": (2,)}
    assert refused(group, "a", 2, 3)


def test_a_member_with_a_connection_has_no_session_until_that_is_lost() -> None:
    group = group_of(4)
    group.join("a", "client", ["t"], 0, attached=True)
    assert group.next_deadline_ms() is None
    joined(group, "b", now_ms=5)
    assert group.detach("a", 10) == [
        Revoked("a", parts("t", 2, 3)),
        Assigned("b", parts("t", 2, 3), 2),
    ]
    assert group.assignment("a") == {"t": (0, 1)}
    assert group.next_deadline_ms() == 5 + SESSION_MS
    group.join(None, "client", ["t"], 10, attached=True)
    assert "client-3" in group.member_ids
    group.detach("client-3", 10)
    assert group.member_ids == ("a", "b")
    assert group.detach("nobody", 10) == []


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x93\x01\x02\x03"])
def test_bytes_that_are_not_a_group(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a group"):
        Group.load(data)


def test_a_given_id_never_meets_a_chosen_one() -> None:
    group = group_of(1)
    joined(group, "client-2")
    assert group.join(None, "client", ["t"], 0)[0].member_id == "client-3"


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(1)
    with pytest.raises(BadRequest):
        group.join("a", "client", [], 0)
    with pytest.raises(BadRequest):
        group.set_partitions("t", -1, 0)
    with pytest.raises(BadRequest):
        Group("g", Strategy.STICKY, session_timeout_ms=3_000)
    with pytest.raises(UnknownMember):
        group.leave("a", 0, 0)
    monkeypatch.setattr(groups, "MEMBERS_MAX", 1)
    joined(group, "a")
    with pytest.raises(GroupFull):
        joined(group, "b")
    joined(group, "a")


# --- plans ---

member_names = [f"m{i}" for i in range(7)]
topic_names = ["t", "u", "v"]
topic_sets = st.frozensets(st.sampled_from(topic_names), min_size=1)
subscriptions = st.dictionaries(st.sampled_from(member_names), topic_sets)
counts = st.dictionaries(st.sampled_from(topic_names), st.integers(0, 12))
previous_plans = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(topic_names), st.integers(0, 14)),
    st.sampled_from(member_names),
    max_size=30,
)


def loads(plan: Plan, members: list[str]) -> list[int]:
    counted = Counter(plan.values())
    return [counted[member] for member in members]


def spread(plan: Plan, members: list[str]) -> int:
    each = loads(plan, members)
    return max(each) - min(each)


def all_partitions(count: dict[str, int], topics: frozenset[str]) -> set[TopicPartition]:
    return {TopicPartition(t, p) for t in topics for p in range(count.get(t, 0))}


@given(st.sampled_from(Strategy), subscriptions, counts, previous_plans)
def test_every_plan_covers_what_is_wanted_and_nothing_else(
    strategy: Strategy, wants: dict[str, frozenset[str]], count: dict[str, int], previous: Plan
) -> None:
    plan = PLANNERS[strategy](wants, count, previous)
    assert plan.keys() == all_partitions(count, frozenset().union(*wants.values()))
    assert all(each.topic in wants[member] for each, member in plan.items())


alike = st.tuples(st.integers(1, 7), topic_sets)


@given(alike, counts, previous_plans)
def test_plans_are_even_within_one_where_all_want_the_same(
    shape: tuple[int, frozenset[str]], count: dict[str, int], previous: Plan
) -> None:
    members = member_names[: shape[0]]
    wants = dict.fromkeys(members, shape[1])
    assert spread(plan_sticky(wants, count, previous), members) <= 1
    assert spread(plan_round_robin(wants, count, previous), members) <= 1
    ranges = plan_range(wants, count, previous)
    for topic in shape[1]:
        own = {each: member for each, member in ranges.items() if each.topic == topic}
        assert spread(own, members) <= 1
        assert list(own.values()) == sorted(own.values())


def fewest_moves(had: list[int], total: int) -> int:
    """By trying every even share-out: how many partitions must change hands."""
    low, extra = divmod(total, len(had))
    return min(
        sum(max(0, before - low - more) for before, more in zip(had, mores, strict=True))
        for mores in product((0, 1), repeat=len(had))
        if sum(mores) == extra
    )


@given(alike, counts, previous_plans)
def test_sticky_moves_the_fewest(
    shape: tuple[int, frozenset[str]], count: dict[str, int], previous: Plan
) -> None:
    members = member_names[: shape[0]]
    there = all_partitions(count, shape[1])
    kept = {p: m for p, m in previous.items() if p in there and m in members}
    plan = plan_sticky(dict.fromkeys(members, shape[1]), count, previous)
    moved = sum(plan[each] != member for each, member in kept.items())
    assert moved == fewest_moves(loads(kept, members), len(there))


def most_even(wants: dict[str, frozenset[str]], each: list[TopicPartition]) -> list[int]:
    """By trying every plan: the loads, fullest first, that no other plan beats."""
    choices = [[m for m in wants if partition.topic in wants[m]] for partition in each]
    return min(
        sorted(loads(dict(zip(each, chosen, strict=True)), list(wants)), reverse=True)
        for chosen in product(*choices)
    )


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(member_names[:4]), topic_sets, min_size=1),
    st.dictionaries(st.sampled_from(topic_names), st.integers(0, 2)),
    previous_plans,
)
def test_sticky_is_as_even_as_mixed_subscriptions_allow(
    wants: dict[str, frozenset[str]], count: dict[str, int], previous: Plan
) -> None:
    plan = plan_sticky(wants, count, previous)
    found = sorted(loads(plan, list(wants)), reverse=True)
    assert found == most_even(wants, sorted(plan))


@given(subscriptions, counts, previous_plans)
def test_sticky_leaves_its_own_plan_alone(
    wants: dict[str, frozenset[str]], count: dict[str, int], previous: Plan
) -> None:
    plan = plan_sticky(wants, count, previous)
    assert plan_sticky(wants, count, plan) == plan


# --- a group in motion ---


@dataclass
class Running:
    """What the effects said about one partition."""

    member_id: str
    life: int
    since: int
    revoking: bool = False


@dataclass(frozen=True)
class Token:
    """What a member could sign an acknowledgement with."""

    member_id: str
    life: int
    generation: int
    partition: TopicPartition


class GroupInMotion(RuleBasedStateMachine):
    strategy = Strategy.STICKY
    group: Group

    @initialize(count=st.integers(0, 8))
    def begin(self, count: int) -> None:
        self.group = Group("g", self.strategy, SESSION_MS, REBALANCE_MS)
        self.now = 0
        self.generation = 0
        self.count = {"t": 0, "u": 0}
        self.wants: dict[str, frozenset[str]] = {}
        self.lives: Counter[str] = Counter()
        self.known: dict[str, int] = {}  # the generation each member was last told
        self.running: dict[TopicPartition, Running] = {}
        self.tokens: set[Token] = set()
        self.rescale("t", count)

    # What the engine would do with the effects. It trusts nothing else.

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Rebalanced(generation):
                    assert generation == self.generation + 1
                    self.generation = generation
                case Revoking(member_id, partitions, deadline_ms):
                    assert deadline_ms == self.now + REBALANCE_MS
                    self.stop(member_id, partitions)
                case Revoked(member_id, partitions):
                    self.end(member_id, partitions)
                case Assigned(member_id, partitions, generation):
                    assert generation == self.generation
                    self.start(member_id, partitions)
                case MemberExpired(member_id):
                    del self.wants[member_id]

    def stop(self, member_id: str, partitions: tuple[TopicPartition, ...]) -> None:
        for each in partitions:
            assert self.running[each].member_id == member_id
            assert not self.running[each].revoking
            self.running[each].revoking = True

    def end(self, member_id: str, partitions: tuple[TopicPartition, ...]) -> None:
        for each in partitions:
            assert self.running.pop(each).member_id == member_id

    def start(self, member_id: str, partitions: tuple[TopicPartition, ...]) -> None:
        for each in partitions:
            at = self.running.get(each)
            if at is None:
                life = self.lives[member_id]
                self.running[each] = Running(member_id, life, self.generation)
            else:
                assert at.member_id == member_id, "never two owners"
                assert at.revoking, "never assigned what it has"
                at.revoking = False

    def undisturbed(self, effects: list[Effect], before: dict[TopicPartition, str]) -> None:
        """Partitions whose owner stays were never paused."""
        touched = {
            each
            for effect in effects
            if isinstance(effect, Revoking | Revoked)
            for each in effect.partitions
        }
        for each, owner in before.items():
            if each not in touched:
                assert self.running[each].member_id == owner

    def owners(self) -> dict[TopicPartition, str]:
        return {each: at.member_id for each, at in self.running.items()}

    # --- members ---

    def told(self, membership: Membership) -> None:
        member_id = membership.member_id
        assert membership.generation == self.generation
        assert membership.assigned == self.group.assignment(member_id)
        self.known[member_id] = membership.generation
        for topics in (membership.assigned, membership.revoking):
            for topic, numbers in topics.items():
                self.tokens.update(self.token(member_id, each) for each in parts(topic, *numbers))

    def token(self, member_id: str, each: TopicPartition) -> Token:
        return Token(member_id, self.lives[member_id], self.known[member_id], each)

    @rule(member_id=st.sampled_from(member_names), topics=st.sampled_from(["t", "t", "tu", "u"]))
    def join(self, member_id: str, topics: str) -> None:
        before = self.owners()
        self.wants[member_id] = frozenset(topics)
        membership, effects = self.group.join(member_id, "client", topics, self.now)
        self.lives[member_id] += 1
        self.perform(effects)
        self.undisturbed(effects, before)
        self.told(membership)

    @precondition(lambda self: self.wants)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.wants)))
        before = self.owners()
        effects = self.group.leave(member_id, self.known[member_id], self.now)
        del self.wants[member_id]
        self.perform(effects)
        self.undisturbed(effects, before)

    @precondition(lambda self: self.wants)
    @rule(data=st.data(), strict=st.booleans())
    def call_in(self, data: st.DataObject, strict: bool) -> None:
        """A member is heard of, and has let go of some, all or none of what it was told to."""
        member_id = data.draw(st.sampled_from(sorted(self.wants)))
        held = sorted(p for p, at in self.running.items() if at.member_id == member_id)
        revoked = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        known = self.known[member_id]
        if strict and known != self.generation:
            with pytest.raises(StaleGeneration):
                self.group.heartbeat(member_id, known, self.now, revoked)
            return
        call = self.group.heartbeat if strict else self.group.sync
        before = self.owners()
        let_go = {each for each in revoked if self.lets_go(each, known)}
        membership, effects = call(member_id, known, self.now, revoked)
        ended = [
            each for effect in effects if isinstance(effect, Revoked) for each in effect.partitions
        ]
        assert set(ended) == let_go
        self.perform(effects)
        self.undisturbed(effects, before)
        self.told(membership)
        assert not [effect for effect in effects if isinstance(effect, Rebalanced)]

    def lets_go(self, each: TopicPartition, known: int) -> bool:
        """It was asked to, in this generation or one before, and knows that it has it."""
        at = self.running[each]
        return at.since <= known and (at.revoking or known < self.generation)

    @precondition(lambda self: self.wants)
    @rule()
    def everybody_calls_in(self) -> None:
        """However it stood, two rounds of obedient members settle it."""
        for _ in range(2):
            for member_id in sorted(self.wants):
                asked = self.group.revoking(member_id)
                revoked = [each for topic, ns in asked.items() for each in parts(topic, *ns)]
                membership, effects = self.group.sync(
                    member_id, self.known[member_id], self.now, revoked
                )
                self.perform(effects)
                self.told(membership)
        assert not any(at.revoking for at in self.running.values())
        if len(set(self.wants.values())) == 1 and self.strategy is not Strategy.RANGE:
            assert spread(self.owners(), list(self.wants)) <= 1

    # --- the world ---

    @rule(topic=st.sampled_from("tu"), count=st.integers(0, 8))
    def rescale(self, topic: str, count: int) -> None:
        before = self.owners()
        effects = self.group.set_partitions(topic, count, self.now)
        wanted = any(topic in topics for topics in self.wants.values())
        assert bool(effects) == (wanted and count != self.count[topic])
        self.count[topic] = count
        self.perform(effects)
        self.undisturbed(effects, before)

    @rule(ms=st.sampled_from([1, 2_999, REBALANCE_MS, SESSION_MS // 2, SESSION_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        due = self.group.next_deadline_ms()
        before = self.owners()
        effects = self.group.expire(self.now)
        assert bool(effects) == (due is not None and due <= self.now)
        self.perform(effects)
        self.undisturbed(effects, before)
        following = self.group.next_deadline_ms()
        assert following is None or following > self.now

    @rule(idle=st.sets(st.tuples(st.sampled_from("tu"), st.integers(0, 8))))
    def some_have_nothing_in_flight(self, idle: set[tuple[str, int]]) -> None:
        """What was to move goes at once, and nothing else."""
        places = {TopicPartition(*each) for each in idle}
        moving = {each for each in places & self.running.keys() if self.running[each].revoking}
        before = self.owners()
        effects = self.group.quiet(places)
        self.perform(effects)
        assert not any(self.running[each].revoking for each in moving)
        assert {each for each, owner in self.owners().items() if before[each] != owner} == moving

    @rule()
    def the_node_restarts(self) -> None:
        """Who was there still is, with what it had, and hears of nothing."""
        before = self.group.member_ids
        moving = {each for each, at in self.running.items() if at.revoking}
        self.group, effects = restarted(self.group, self.now)
        assert self.group.member_ids == before
        assert {each for effect in effects for each in effect.partitions} == (
            self.running.keys() - moving
        )
        for topic, count in self.count.items():
            assert self.group.set_partitions(topic, count, self.now) == []

    # --- what always holds ---

    @invariant()
    def every_wanted_partition_has_one_live_owner(self) -> None:
        if not hasattr(self, "group"):
            return
        wanted = all_partitions(self.count, frozenset().union(*self.wants.values()))
        assert self.running.keys() == wanted
        assert self.group.member_ids == tuple(sorted(self.wants))
        for each, at in self.running.items():
            assert at.member_id in self.wants
            assert self.group.owner_of(*each) == at.member_id
        for member_id in self.wants:
            for topics, revoking in (
                (self.group.assignment(member_id), False),
                (self.group.revoking(member_id), True),
            ):
                found = {each for topic, ns in topics.items() for each in parts(topic, *ns)}
                assert found == {
                    each
                    for each, at in self.running.items()
                    if at.member_id == member_id and at.revoking == revoking
                }

    @invariant()
    def zombies_are_refused_and_nobody_else(self) -> None:
        for token in getattr(self, "tokens", ()):
            at = self.running.get(token.partition)
            good = (
                at is not None
                and (at.member_id, at.life) == (token.member_id, token.life)
                and token.generation >= at.since
            )
            try:
                self.group.fence(token.member_id, token.generation, *token.partition)
            except (StaleGeneration, UnknownMember):
                assert not good
            else:
                assert good


class RangeInMotion(GroupInMotion):
    strategy = Strategy.RANGE


class RoundRobinInMotion(GroupInMotion):
    strategy = Strategy.ROUND_ROBIN


TestSticky = GroupInMotion.TestCase
TestRange = RangeInMotion.TestCase
TestRoundRobin = RoundRobinInMotion.TestCase
