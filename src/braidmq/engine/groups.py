"""Consumer groups: who is a member, and which partitions are whose.

A pure state machine: it is told the time and returns effects. One partition's life:

           assign                another plan                 A acknowledges, or
    free ─────────► owned by A ──────────────► revoking at A ──────────────────────► owned by B
      ▲                │   ▲                      │     │     its deadline passes
      │                │   └─ planned for A again ┘     │
      └────────────────┴── A leaves, expires or joins ──┘
                           anew, or the topic shrinks

A *rebalance* makes a new plan and a new generation. Only partitions whose plan changed are touched:
their old owner is asked to stop (``Revoking``), and only when it has, or its time is up, does the
new one start (``Assigned``). Nothing else pauses (catalogue row C3).

Generations fence zombies. A heartbeat must carry the current one. An acknowledgement or a commit
is held against the generation in which its sender got the partition: a member that kept it across
rebalances goes on undisturbed, one that lost it in between is refused, even if it has it again.

The caller makes ``dump`` durable whenever it sees ``Rebalanced``, before it answers any member: a
generation must never be handed out twice.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, Self

import msgspec

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


class TopicPartition(NamedTuple):
    topic: str
    partition: int


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


# --- plans ---

Plan = dict[TopicPartition, str]
Subscriptions = Mapping[str, frozenset[str]]
"""Member to the topics it wants."""


def _subscribers(subscriptions: Subscriptions) -> dict[str, list[str]]:
    """Topic to the members that want it, in order."""
    found = defaultdict[str, list[str]](list)
    for member_id in sorted(subscriptions):
        for topic in subscriptions[member_id]:
            found[topic].append(member_id)
    return found


def plan_range(subscriptions: Subscriptions, counts: Mapping[str, int], _: Plan) -> Plan:
    """Each topic in consecutive pieces, so that equal partitions of two topics meet."""
    plan: Plan = {}
    for topic, members in _subscribers(subscriptions).items():
        each, left_over = divmod(counts.get(topic, 0), len(members))
        first = 0
        for i, member_id in enumerate(members):
            stop = first + each + (i < left_over)
            plan.update((TopicPartition(topic, p), member_id) for p in range(first, stop))
            first = stop
    return plan


def plan_round_robin(subscriptions: Subscriptions, counts: Mapping[str, int], _: Plan) -> Plan:
    """All partitions of all topics in turn, skipping members that don't want the topic."""
    plan: Plan = {}
    turns = deque(sorted(subscriptions))
    for topic in sorted(_subscribers(subscriptions)):
        for partition in range(counts.get(topic, 0)):
            while topic not in subscriptions[turns[0]]:
                turns.rotate(-1)
            plan[TopicPartition(topic, partition)] = turns[0]
            turns.rotate(-1)
    return plan


def plan_sticky(subscriptions: Subscriptions, counts: Mapping[str, int], previous: Plan) -> Plan:
    """As even as can be, and with the fewest moves from ``previous`` that it takes."""
    return _StickyPlan(subscriptions, counts, previous).made()


class _StickyPlan:
    """Keep, fill, level. With equal subscriptions the moves are the minimum: each move takes from
    the fullest and gives to the emptiest, so it is one that any even plan has to make."""

    def __init__(
        self, subscriptions: Subscriptions, counts: Mapping[str, int], previous: Plan
    ) -> None:
        self._subscribers = _subscribers(subscriptions)
        self._counts = {topic: counts.get(topic, 0) for topic in self._subscribers}
        self._previous = previous
        self._load = dict.fromkeys(sorted(subscriptions), 0)
        # Member to topic to the partitions it has of it.
        self._held = {member_id: defaultdict[str, set[int]](set) for member_id in subscriptions}
        self._keep(subscriptions)

    def made(self) -> Plan:
        self._fill()
        if all(len(members) == len(self._load) for members in self._subscribers.values()):
            self._level_alike()
        else:
            self._level()
        return {
            TopicPartition(topic, partition): member_id
            for member_id, topics in self._held.items()
            for topic, partitions in topics.items()
            for partition in partitions
        }

    def _keep(self, subscriptions: Subscriptions) -> None:
        for (topic, partition), member_id in self._previous.items():
            wanted = topic in subscriptions.get(member_id, ())
            if wanted and partition < self._counts[topic]:
                self._give(member_id, topic, partition)

    def _give(self, member_id: str, topic: str, partition: int) -> None:
        self._held[member_id][topic].add(partition)
        self._load[member_id] += 1

    def _fill(self) -> None:
        """Give what nobody has to the least loaded; topics with little choice come first."""
        choice = {topic: len(members) for topic, members in self._subscribers.items()}
        for topic in sorted(choice, key=lambda topic: (choice[topic], topic)):
            members = self._subscribers[topic]
            taken = set[int]().union(*(self._held[member_id][topic] for member_id in members))
            emptiest = [(self._load[member_id], member_id) for member_id in members]
            heapify(emptiest)
            for partition in range(self._counts[topic]):
                if partition not in taken:
                    load, member_id = emptiest[0]
                    heapreplace(emptiest, (load + 1, member_id))
                    self._give(member_id, topic, partition)

    def _level_alike(self) -> None:
        """From the fullest to the emptiest, where everybody may have everything. Nobody both gives
        and takes, so each heap is right about the members it is asked for."""
        emptiest = [(load, member_id) for member_id, load in self._load.items()]
        fullest = [(-load, member_id) for load, member_id in emptiest]
        heapify(emptiest)
        heapify(fullest)
        while fullest and -fullest[0][0] - emptiest[0][0] >= 2:
            giver, taker = fullest[0][1], emptiest[0][1]
            held = self._held[giver]
            topic = max(held, key=lambda each: (len(held[each]), each))
            self._shift([(giver, topic, taker)])
            heapreplace(fullest, (-self._load[giver], giver))
            heapreplace(emptiest, (self._load[taker], taker))

    def _level(self) -> None:
        """Move along chains from fuller to emptier members until none makes it more even."""
        stuck = set[str]()
        while len(stuck) < len(self._load):
            fullest = max(self._load.keys() - stuck, key=lambda each: (self._load[each], each))
            if self._load[fullest] < min(self._load.values()) + 2:
                return
            if chain := self._chain_from(fullest):
                self._shift(chain)
                stuck.clear()
            else:
                stuck.add(fullest)

    def _chain_from(self, fullest: str) -> list[tuple[str, str, str]]:
        """The shortest way, as (from, topic, to) steps, to a member with two fewer or less."""
        came = dict[str, tuple[str, str]]()
        level = [fullest]
        while level:
            following = list[str]()
            for member_id in level:
                self._look_around(member_id, fullest, came, following)
            emptiest = min(following, key=lambda each: (self._load[each], each), default=fullest)
            if self._load[emptiest] <= self._load[fullest] - 2:
                return self._steps(came, fullest, emptiest)
            level = following
        return []

    def _look_around(
        self, member_id: str, start: str, came: dict[str, tuple[str, str]], following: list[str]
    ) -> None:
        for topic, partitions in sorted(self._held[member_id].items()):
            if not partitions:
                continue
            for other in self._subscribers[topic]:
                if other != start and other not in came:
                    came[other] = (member_id, topic)
                    following.append(other)

    @staticmethod
    def _steps(
        came: dict[str, tuple[str, str]], start: str, end: str
    ) -> list[tuple[str, str, str]]:
        steps = list[tuple[str, str, str]]()
        while end != start:
            member_id, topic = came[end]
            steps.append((member_id, topic, end))
            end = member_id
        return steps

    def _shift(self, chain: list[tuple[str, str, str]]) -> None:
        for giver, topic, taker in chain:
            partition = self._least_missed(giver, topic, taker)
            self._held[giver][topic].remove(partition)
            self._load[giver] -= 1
            self._give(taker, topic, partition)

    def _least_missed(self, giver: str, topic: str, taker: str) -> int:
        """Best one that was the taker's before, then one that wasn't the giver's."""

        def cost(partition: int) -> tuple[int, int]:
            before = self._previous.get(TopicPartition(topic, partition))
            return (0 if before == taker else 2 if before == giver else 1), -partition

        return min(self._held[giver][topic], key=cost)


class Strategy(Enum):
    RANGE = "range"
    ROUND_ROBIN = "round-robin"
    STICKY = "sticky"


PLANNERS: Final[dict[Strategy, Callable[[Subscriptions, Mapping[str, int], Plan], Plan]]] = {
    Strategy.RANGE: plan_range,
    Strategy.ROUND_ROBIN: plan_round_robin,
    Strategy.STICKY: plan_sticky,
}


# --- the group ---


@dataclass(slots=True)
class _Member:
    client: str
    topics: frozenset[str]
    joined: int
    """The generation its join made: anything older was sent by an earlier life of this id."""
    deadline_ms: int
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

    # --- what outlives a restart ---

    def dump(self) -> bytes:
        """All but the members, who join again, and the partitions, which the topics know."""
        return msgspec.msgpack.encode(
            _Dump(
                self.name,
                self.strategy,
                self.session_timeout_ms,
                self.rebalance_timeout_ms,
                self.generation,
            )
        )

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
        return group

    # --- questions ---

    @property
    def member_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))

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
        return min((*sessions, *self._revoke_by_ms.values()), default=None)

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
        self, member_id: str | None, client: str, topics: Iterable[str], now_ms: int
    ) -> tuple[Membership, Effects]:
        """Become a member. Joining under an id that is a member is that member's new life: what
        its old one held goes back first, and what its old one sends from now on is refused."""
        wanted = frozenset(topics)
        if not wanted:
            raise BadRequest("a member of a group must name at least one topic")
        if member_id is None:
            member_id = self._new_id(client)
        if member_id not in self._members and len(self._members) >= MEMBERS_MAX:
            raise GroupFull(f"Group {self.name} has {MEMBERS_MAX} members")
        # Before its old life's partitions are freed, so that a sticky plan gives them back to it.
        previous = self._previous()
        effects = self._free(member_id) if member_id in self._members else []
        deadline_ms = now_ms + self.session_timeout_ms
        self._members[member_id] = _Member(client, wanted, self.generation + 1, deadline_ms)
        effects += self._rebalance(previous, now_ms)
        return self._membership(member_id), effects

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
        return self._membership(member_id), effects

    def leave(self, member_id: str, generation: int, now_ms: int) -> Effects:
        self._live(member_id, generation)
        effects = self._free(member_id)
        del self._members[member_id]
        return effects + self._rebalance(self._previous(), now_ms)

    # --- what happens to them ---

    def expire(self, now_ms: int) -> Effects:
        """End the sessions and the revocations whose time is up."""
        effects: Effects = []
        gone = [each for each in self.member_ids if self._members[each].deadline_ms <= now_ms]
        if gone:
            for member_id in gone:
                effects += [MemberExpired(member_id), *self._free(member_id)]
                del self._members[member_id]
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

    def _membership(self, member_id: str) -> Membership:
        return Membership(
            member_id, self.generation, self.assignment(member_id), self.revoking(member_id)
        )

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

    def _end_tenure(self, each: TopicPartition) -> _Tenure:
        tenure = self._tenures.pop(each)
        self._members[tenure.owner].held.remove(each)
        self._revoke_by_ms.pop(each, None)
        return tenure

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
