"""Plans of consumer groups: which member is to have which partition."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from heapq import heapify, heapreplace
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int


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
