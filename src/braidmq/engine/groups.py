"""Consumer groups: who is a member, and which partitions are whose.

A pure state machine: it is told the time and returns effects. One partition's life:

           assign                another plan                 nothing in flight at A,
    free ─────────► owned by A ──────────────► revoking at A ──────────────────────► owned by B
      ▲                │   ▲                      │     │     A lets go, or too late
      │                │   └─ planned for A again ┘     │
      └────────────────┴── A leaves, expires or joins ──┘
                           anew, or the topic shrinks

A *rebalance* makes a new plan and a new generation. Only partitions whose plan changed are touched:
their old owner is asked to stop (``Revoking``). The new one starts (``Assigned``) when nothing is
in flight at the old one (``quiet``), which may be at once, when that one says that it has let go,
or when its time is up. Nothing else pauses (catalogue row C3).

Generations fence zombies. A heartbeat must carry the current one. An acknowledgement or a commit
is held against the generation in which its sender got the partition: a member that kept it across
rebalances goes on undisturbed, one that lost it in between is refused, even if it has it again.

The caller makes ``dump`` durable whenever it sees ``Rebalanced``, and the ``record`` of each member
in ``take_changed``, before it answers any member: a generation must never be handed out twice, and
members go on after a restart with what they had (``restore``, ``resume``).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from braidmq.engine.group_plans import PLANNERS, Plan, Strategy, TopicPartition
from braidmq.model.errors import AccessRefused, BadRequest, BraidError, Conflict, Kind, NotFound

HEARTBEAT_INTERVAL_MS: Final = 3_000
"""Advertised to members (C1)."""

SESSION_TIMEOUT_MS: Final = 30_000
"""A member not heard of for this long is gone (C1): ten heartbeats."""

REBALANCE_TIMEOUT_MS: Final = 10_000
"""How long an old owner may take to let go: three heartbeats, so that one may get lost."""

MEMBERS_MAX: Final = 4_096
"""A plan for this many over as many partitions takes tens of milliseconds of the engine's loop."""


class UnknownMember(NotFound):
    code = "unknown-member"
    remedy = "Join the group again"


class NotYourMember(AccessRefused):
    code = "not-your-member"
    remedy = "Join under an id of your own, or without one"


class StaleGeneration(Conflict):
    """Sent by, or on behalf of, a member as it was before a rebalance."""

    code = "stale-generation"
    remedy = "Sync to learn the current generation; drop what is no longer assigned"


class GroupFull(BraidError):
    kind = Kind.REFUSED
    code = "group-full"
    remedy = "Let members leave first, or use another group"


# --- effects ---


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """There is a new generation; make it durable."""

    generation: int


@dataclass(frozen=True, slots=True)
class Revoking:
    """Deliver no more of these to ``member`` and ask it to let go; it still may acknowledge."""

    member_id: str
    partitions: tuple[TopicPartition, ...]
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """These are no longer the member's: what it has in flight goes back."""

    member_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Deliver these to ``member``. After ``Revoking`` and without ``Revoked``: it keeps them."""

    member_id: str
    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class MemberExpired:
    member_id: str


Effect = Rebalanced | Revoking | Revoked | Assigned | MemberExpired
Effects = list[Effect]


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member is told: work on ``assigned``, finish and let go of ``revoking``."""

    member_id: str
    generation: int
    assigned: dict[str, tuple[int, ...]]
    revoking: dict[str, tuple[int, ...]]
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS


# --- the group ---


NEVER_MS: Final = 1 << 62
"""A member that is there while its connection is has no session that could be over."""


@dataclass(slots=True)
class _Member:
    client: str
    topics: frozenset[str]
    joined: int
    """The generation its join made: anything older was sent by an earlier life of this id."""
    deadline_ms: int
    kept: bool
    """Whether it comes back after a restart."""
    held: set[TopicPartition] = field(default_factory=set)


@dataclass(slots=True)
class _Tenure:
    owner: str
    since: int
    """The generation in which the owner got the partition."""
    planned: str
    """Whose it is to be; another than the owner while the owner is letting go."""


class _Dump(msgspec.Struct, array_like=True):
    name: str
    strategy: Strategy
    session_timeout_ms: int
    rebalance_timeout_ms: int
    generation: int
    counts: dict[str, int] = {}


class _Holding(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    since: int
    planned: str


class MemberRecord(msgspec.Struct, array_like=True):
    """What is kept of a member."""

    member_id: str
    client: str
    topics: list[str]
    joined: int
    held: list[_Holding]


class Group:
    """One consumer group over the partitions of one or several topics."""

    def __init__(
        self,
        name: str,
        strategy: Strategy = Strategy.STICKY,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
    ) -> None:
        if session_timeout_ms <= HEARTBEAT_INTERVAL_MS or rebalance_timeout_ms < 0:
            raise BadRequest(
                f"A session of {session_timeout_ms} ms and a rebalance of {rebalance_timeout_ms} ms"
                f" leave no time for a heartbeat every {HEARTBEAT_INTERVAL_MS} ms"
            )
        self.name = name
        self.strategy = strategy
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.generation = 0
        self._members: dict[str, _Member] = {}
        self._counts: dict[str, int] = {}
        self._tenures: dict[TopicPartition, _Tenure] = {}
        self._revoke_by_ms: dict[TopicPartition, int] = {}
        self._changed: set[str] = set()

    # --- what outlives a restart ---

    def dump(self) -> bytes:
        """All but the members, who have a record each."""
        return msgspec.msgpack.encode(
            _Dump(
                self.name,
                self.strategy,
                self.session_timeout_ms,
                self.rebalance_timeout_ms,
                self.generation,
                self._counts,
            )
        )

    def take_changed(self) -> list[str]:
        """Members whose record is another, or gone, since this was last asked."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def record(self, member_id: str) -> MemberRecord | None:
        """None for one that is not there, or does not come back after a restart."""
        member = self._members.get(member_id)
        if member is None or not member.kept:
            return None
        tenures = ((each, self._tenures[each]) for each in sorted(member.held))
        held = [_Holding(*each, tenure.since, tenure.planned) for each, tenure in tenures]
        return MemberRecord(member_id, member.client, sorted(member.topics), member.joined, held)

    def restore(self, record: MemberRecord, now_ms: int) -> None:
        """A member of before the restart is there, with a whole session to be heard of again."""
        member = self._members[record.member_id] = _Member(
            record.client,
            frozenset(record.topics),
            record.joined,
            now_ms + self.session_timeout_ms,
            kept=True,
        )
        for each in record.held:
            place = TopicPartition(each.topic, each.partition)
            if each.partition < self._counts.get(each.topic, 0):
                self._tenures[place] = _Tenure(record.member_id, each.since, each.planned)
                member.held.add(place)
                if each.planned != record.member_id:
                    self._revoke_by_ms[place] = now_ms + self.rebalance_timeout_ms

    def resume(self, now_ms: int) -> Effects:
        """All members that come back are there: what they work on, and what the others had."""
        effects: Effects = []
        for member_id in self.member_ids:
            theirs = self._members[member_id].held - self._revoke_by_ms.keys()
            if theirs:
                effects.append(Assigned(member_id, tuple(sorted(theirs)), self.generation))
        wanted = {topic for member in self._members.values() for topic in member.topics}
        count = sum(self._counts.get(topic, 0) for topic in wanted)
        planned = (tenure.planned in self._members for tenure in self._tenures.values())
        if len(self._tenures) == count and all(planned):
            return effects
        return effects + self._rebalance(self._previous(), now_ms)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The inverse of ``dump``; ValueError for anything it did not write."""
        try:
            dumped = msgspec.msgpack.decode(data, type=_Dump)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a group: {error}") from error
        group = cls(
            dumped.name, dumped.strategy, dumped.session_timeout_ms, dumped.rebalance_timeout_ms
        )
        group.generation = dumped.generation
        group._counts = dumped.counts
        return group

    # --- questions ---

    @property
    def member_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))

    @property
    def topics(self) -> list[str]:
        return list(self._counts)

    def all_revoking(self) -> list[TopicPartition]:
        """What is still with an old owner that was asked to stop."""
        return list(self._revoke_by_ms)

    def membership(self, member_id: str) -> Membership:
        return Membership(
            member_id, self.generation, self.assignment(member_id), self.revoking(member_id)
        )

    def assignment(self, member_id: str) -> dict[str, tuple[int, ...]]:
        """The partitions the member works on, without those it is to let go of."""
        return _by_topic(self._member(member_id).held - self._revoke_by_ms.keys())

    def revoking(self, member_id: str) -> dict[str, tuple[int, ...]]:
        return _by_topic(self._member(member_id).held & self._revoke_by_ms.keys())

    def owner_of(self, topic: str, partition: int) -> str | None:
        """Whose partition it is: still the old owner's while that one is letting go."""
        tenure = self._tenures.get(TopicPartition(topic, partition))
        return tenure.owner if tenure else None

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` will next have something to do."""
        sessions = (member.deadline_ms for member in self._members.values())
        due = min((*sessions, *self._revoke_by_ms.values()), default=NEVER_MS)
        return due if due < NEVER_MS else None

    def fence(self, member_id: str, generation: int, topic: str, partition: int) -> None:
        """Raise unless what a member sent in ``generation`` counts for this partition."""
        self._live(member_id, generation)
        tenure = self._tenures.get(TopicPartition(topic, partition))
        if tenure is None or tenure.owner != member_id or generation < tenure.since:
            raise StaleGeneration(
                f"{topic}/{partition} was not member {member_id}'s"
                f" in generation {generation}, or is no longer"
            )

    # --- what members do ---

    def join(
        self,
        member_id: str | None,
        client: str,
        topics: Iterable[str],
        now_ms: int,
        *,
        attached: bool = False,
    ) -> tuple[Membership, Effects]:
        """Become a member. Joining under an id that is a member is that member's new life: what
        its old one held goes back first, and what its old one sends from now on is refused.

        ``attached``: it is there as long as its connection and need not be heard of. Only under an
        id of its own can it come back after a restart.
        """
        wanted = frozenset(topics)
        if not wanted:
            raise BadRequest("a member of a group must name at least one topic")
        kept = member_id is not None or not attached
        if member_id is None:
            member_id = self._new_id(client)
        if member_id not in self._members and len(self._members) >= MEMBERS_MAX:
            raise GroupFull(f"Group {self.name} has {MEMBERS_MAX} members")
        # Before its old life's partitions are freed, so that a sticky plan gives them back to it.
        previous = self._previous()
        effects = self._free(member_id) if member_id in self._members else []
        deadline_ms = NEVER_MS if attached else now_ms + self.session_timeout_ms
        self._members[member_id] = _Member(client, wanted, self.generation + 1, deadline_ms, kept)
        self._changed.add(member_id)
        effects += self._rebalance(previous, now_ms)
        return self.membership(member_id), effects

    def heartbeat(
        self, member_id: str, generation: int, now_ms: int, revoked: Iterable[tuple[str, int]] = ()
    ) -> tuple[Membership, Effects]:
        """Stay a member, and let go of ``revoked``. Only in the current generation."""
        self._live(member_id, generation)
        if generation != self.generation:
            raise StaleGeneration(
                f"Group {self.name} is in generation {self.generation}, not {generation}"
            )
        return self.sync(member_id, generation, now_ms, revoked)

    def sync(
        self, member_id: str, generation: int, now_ms: int, revoked: Iterable[tuple[str, int]] = ()
    ) -> tuple[Membership, Effects]:
        """As a heartbeat, but also from an older generation: how a member catches up."""
        member = self._live(member_id, generation)
        member.deadline_ms = max(member.deadline_ms, now_ms + self.session_timeout_ms)
        asked = {TopicPartition(*each) for each in revoked} & member.held
        let_go = [each for each in asked if self._lets_go(each, generation)]
        effects = self._hand_over(let_go)
        return self.membership(member_id), effects

    def leave(self, member_id: str, generation: int, now_ms: int) -> Effects:
        self._live(member_id, generation)
        effects = self._remove(member_id)
        return effects + self._rebalance(self._previous(), now_ms)

    # --- what happens to them ---

    def detach(self, member_id: str, now_ms: int) -> Effects:
        """Its connection is lost. One that can come back has a session's time for that; what it had
        in flight is nobody's, so that what it was to let go of goes."""
        member = self._members.get(member_id)
        if member is None:
            return []
        if not member.kept:
            return self._remove(member_id) + self._rebalance(self._previous(), now_ms)
        member.deadline_ms = now_ms + self.session_timeout_ms
        return self.quiet(member.held)

    def quiet(self, partitions: Iterable[TopicPartition]) -> Effects:
        """Nothing is in flight in these: those whose owner was asked to stop go on at once."""
        return self._hand_over([each for each in partitions if each in self._revoke_by_ms])

    def expire(self, now_ms: int) -> Effects:
        """End the sessions and the revocations whose time is up."""
        effects: Effects = []
        gone = [each for each in self.member_ids if self._members[each].deadline_ms <= now_ms]
        if gone:
            for member_id in gone:
                effects += [MemberExpired(member_id), *self._remove(member_id)]
            effects += self._rebalance(self._previous(), now_ms)
        overdue = [each for each, by_ms in self._revoke_by_ms.items() if by_ms <= now_ms]
        return effects + self._hand_over(overdue)

    def set_partitions(self, topic: str, count: int, now_ms: int) -> Effects:
        """A topic has ``count`` partitions from now on; 0 when it is gone."""
        if count < 0:
            raise BadRequest(f"A topic can't have {count} partitions")
        if count == self._counts.get(topic, 0):
            return []
        self._counts[topic] = count
        if not any(topic in member.topics for member in self._members.values()):
            return []
        removed = [
            each for each in self._tenures if each.topic == topic and each.partition >= count
        ]
        lost = _grouped((self._tenures[each].owner, each) for each in removed)
        for each in removed:
            self._end_tenure(each)
        effects: Effects = [Revoked(owner, partitions) for owner, partitions in lost]
        return effects + self._rebalance(self._previous(), now_ms)

    # --- inside ---

    def _new_id(self, client: str) -> str:
        # A join makes a generation, and no generation comes twice: not even after a restart.
        number = self.generation + 1
        while f"{client}-{number}" in self._members:
            number += 1
        return f"{client}-{number}"

    def _member(self, member_id: str) -> _Member:
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"Group {self.name} has no member {member_id}")
        return member

    def _live(self, member_id: str, generation: int) -> _Member:
        """The member, if this life of it can have known ``generation``."""
        member = self._member(member_id)
        if not member.joined <= generation <= self.generation:
            raise StaleGeneration(
                f"Member {member_id} joined in generation {member.joined} and the group is in"
                f" {self.generation}; this came from {generation}"
            )
        return member

    def _previous(self) -> Plan:
        """The last plan, or where that fell through the owner: what a sticky plan starts from."""
        return {
            each: tenure.planned if tenure.planned in self._members else tenure.owner
            for each, tenure in self._tenures.items()
        }

    def _begin_tenure(self, each: TopicPartition, owner: str) -> None:
        assert each not in self._tenures
        self._tenures[each] = _Tenure(owner, self.generation, owner)
        self._members[owner].held.add(each)
        self._changed.add(owner)

    def _end_tenure(self, each: TopicPartition) -> _Tenure:
        tenure = self._tenures.pop(each)
        self._members[tenure.owner].held.remove(each)
        self._revoke_by_ms.pop(each, None)
        self._changed.add(tenure.owner)
        return tenure

    def _remove(self, member_id: str) -> Effects:
        effects = self._free(member_id)
        del self._members[member_id]
        self._changed.add(member_id)
        return effects

    def _free(self, member_id: str) -> Effects:
        """Take everything from a member that is gone: there is nobody to wait for."""
        held = tuple(sorted(self._members[member_id].held))
        for each in held:
            self._end_tenure(each)
        return [Revoked(member_id, held)] if held else []

    def _lets_go(self, each: TopicPartition, generation: int) -> bool:
        """Whether a member that says it let go means this tenure, and was asked to.

        It may have been asked in a generation that is over, and the new plan leaves the partition
        with it. It has stopped all the same, so its tenure starts afresh.
        """
        tenure = self._tenures[each]
        asked = each in self._revoke_by_ms or generation < self.generation
        return asked and tenure.since <= generation

    def _hand_over(self, partitions: Iterable[TopicPartition]) -> Effects:
        """End these tenures and begin the planned ones."""
        ended = [(each, self._end_tenure(each)) for each in sorted(partitions)]
        for each, tenure in ended:
            self._begin_tenure(each, tenure.planned)
        lost = _grouped((tenure.owner, each) for each, tenure in ended)
        gained = _grouped((tenure.planned, each) for each, tenure in ended)
        return [
            *(Revoked(owner, theirs) for owner, theirs in lost),
            *(Assigned(owner, theirs, self.generation) for owner, theirs in gained),
        ]

    def _rebalance(self, previous: Plan, now_ms: int) -> Effects:
        self.generation += 1
        subscriptions = {each: member.topics for each, member in self._members.items()}
        plan = PLANNERS[self.strategy](subscriptions, self._counts, previous)
        # A partition with an owner has a subscriber, its owner, so it has a plan.
        assert self._tenures.keys() <= plan.keys()
        by_ms = now_ms + self.rebalance_timeout_ms
        asked = list[tuple[str, TopicPartition]]()
        given = list[tuple[str, TopicPartition]]()
        for each, planned in plan.items():
            tenure = self._tenures.get(each)
            if tenure is None:
                self._begin_tenure(each, planned)
                given.append((planned, each))
            elif tenure.planned != planned:
                self._change_plan(each, tenure, planned, by_ms, asked, given)
        return [
            Rebalanced(self.generation),
            *(Revoking(owner, theirs, by_ms) for owner, theirs in _grouped(asked)),
            *(Assigned(owner, theirs, self.generation) for owner, theirs in _grouped(given)),
        ]

    def _change_plan(
        self,
        each: TopicPartition,
        tenure: _Tenure,
        planned: str,
        by_ms: int,
        asked: list[tuple[str, TopicPartition]],
        given: list[tuple[str, TopicPartition]],
    ) -> None:
        tenure.planned = planned
        self._changed.add(tenure.owner)
        if planned == tenure.owner:
            del self._revoke_by_ms[each]
            given.append((planned, each))
        elif each not in self._revoke_by_ms:
            self._revoke_by_ms[each] = by_ms
            asked.append((tenure.owner, each))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found = defaultdict[str, list[int]](list)
    for topic, partition in sorted(partitions):
        found[topic].append(partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def _grouped(
    pairs: Iterable[tuple[str, TopicPartition]],
) -> list[tuple[str, tuple[TopicPartition, ...]]]:
    """Partitions by member, members in order."""
    found = defaultdict[str, list[TopicPartition]](list)
    for member_id, each in pairs:
        found[member_id].append(each)
    return [(member_id, tuple(sorted(found[member_id]))) for member_id in sorted(found)]
