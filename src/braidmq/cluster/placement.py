"""Where replicas and leaders should be: a pure function of the cluster to wishes.

The steward asks for it whenever something has changed, and puts what comes back into etcd; leaders
carry it out. Replicas of a shard are on different machines, and a node holds one replica at most.
Shards are placed round robin over machines, those with the fewest replicas first. Then one thing is
moved at a time: first away from nodes that are gone or are to go, then to even out leaders. What an
operator has wished for by hand is not touched.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NewType

from braidmq.cluster.shard import DirectoryId, ShardState, Wish

Shard = NewType("Shard", int)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node that is known to the cluster, whether it runs or not."""

    directory: DirectoryId
    name: str
    """It outlives its directory: a disk is replaced, and the node has the same name."""
    machine: str
    alive: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True)
class PlacedShard:
    state: ShardState | None
    """None before the first replica has begun it."""
    wish: Wish | None


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[PlacedNode, ...]
    replaced: Mapping[DirectoryId, str]
    """Directories that are gone for good, and whose they were."""
    shards: Mapping[Shard, PlacedShard]
    replication_factor: int = 3
    min_in_sync: int = 2


def wishes(cluster: Cluster) -> dict[Shard, Wish]:
    """What is to be wished for anew; nothing where all is as it should be."""
    return _Placement(cluster).wishes()


class _Placement:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = {each.directory: each for each in cluster.nodes}
        self._shards = dict(sorted(cluster.shards.items()))
        self._used = {
            directory
            for shard in cluster.shards.values()
            for directory in (
                *(shard.state.replicas if shard.state is not None else ()),
                *(shard.wish.replicas if shard.wish is not None else ()),
            )
        }

    def wishes(self) -> dict[Shard, Wish]:
        if any(self._is_moving(each) for each in self._shards.values()):
            return {}
        return self._replacements() or self._placements() or self._better_leader()

    def _is_moving(self, shard: PlacedShard) -> bool:
        """Not yet as wished for, and nothing is in its way."""
        state, wish = shard.state, shard.wish
        if (
            wish is None
            or wish.by_operator
            or any(each not in self._nodes for each in wish.replicas)
        ):
            return False
        if state is None or set(state.replicas) != set(wish.replicas):
            return True
        running = {each for each in wish.replicas if self._nodes[each].alive}
        could_lead = wish.preferred in wish.replicas and self._may_lead(wish.preferred)
        return not running <= set(state.in_sync) or (could_lead and state.leader != wish.preferred)

    # Replicas

    def _replacements(self) -> dict[Shard, Wish]:
        """For the first replica whose directory is gone: its node with a new one, or another."""
        for number, shard in self._shards.items():
            wish = shard.wish
            if wish is None or wish.by_operator:
                continue
            gone = [each for each in wish.replicas if each not in self._nodes]
            if not gone:
                continue
            new = self._successor(gone[0], [each for each in wish.replicas if each != gone[0]])
            if new is not None:
                replicas = tuple(new if each == gone[0] else each for each in wish.replicas)
                preferred = None if wish.preferred == gone[0] else wish.preferred
                return {number: replace(wish, replicas=replicas, preferred=preferred)}
        return {}

    def _successor(self, gone: DirectoryId, kept: Sequence[DirectoryId]) -> DirectoryId | None:
        free = self._free(kept)
        name = self._cluster.replaced.get(gone)
        same = [each.directory for each in free if each.name == name]
        return next(iter([*same, *(each.directory for each in free)]), None)

    def _placements(self) -> dict[Shard, Wish]:
        """For the first shard that nobody has placed, or that has too few."""
        for number, shard in self._shards.items():
            wish = shard.wish
            if wish is not None and wish.by_operator:
                continue
            there = wish.replicas if wish is not None else ()
            if wish is None and shard.state is not None:
                there = shard.state.replicas
            replicas = self._filled_up(there)
            if wish is not None and len(replicas) == len(there):
                continue
            if replicas:
                minimum = min(self._cluster.min_in_sync, len(replicas))
                preferred = wish.preferred if wish is not None else self._leader_of(shard)
                return {number: Wish(replicas, minimum, preferred or replicas[0])}
        return {}

    def _filled_up(self, there: Sequence[DirectoryId]) -> tuple[DirectoryId, ...]:
        replicas = list(there)
        while len(replicas) < self._cluster.replication_factor:
            free = self._free(replicas)
            if not free:
                break
            replicas.append(free[0].directory)
        return tuple(replicas)

    def _leader_of(self, shard: PlacedShard) -> DirectoryId | None:
        return shard.state.leader if shard.state is not None else None

    def _free(self, kept: Sequence[DirectoryId]) -> list[PlacedNode]:
        """Nodes without a replica on machines that have none of this shard, emptiest first."""
        load = Counter(self._nodes[each].machine for each in self._used if each in self._nodes)
        taken = {self._nodes[each].machine for each in kept if each in self._nodes}
        free = [
            each
            for each in self._cluster.nodes
            if each.alive
            and not each.draining
            and each.directory not in self._used
            and each.directory not in kept
            and each.machine not in taken
        ]
        return sorted(free, key=lambda each: (load[each.machine], each.machine, each.name))

    # Leaders

    def _better_leader(self) -> dict[Shard, Wish]:
        """One leader goes to a machine with fewer, so that counts end within 1 of each other where
        replicas allow it. A chain of moves is begun at its far end: each is an improvement."""
        leaders = {number: self._leading_machine(each) for number, each in self._shards.items()}
        counts = Counter(machine for machine in leaders.values() if machine is not None)
        for machine in sorted(counts, key=lambda each: (-counts[each], each)):
            moved = self._last_of_chain(machine, leaders, counts)
            if moved is not None:
                number, target = moved
                wish = self._shards[number].wish
                assert wish is not None
                return {number: replace(wish, preferred=target)}
        return {}

    def _last_of_chain(
        self, start: str, leaders: Mapping[Shard, str | None], counts: Mapping[str, int]
    ) -> tuple[Shard, DirectoryId] | None:
        """From ``start`` from machine to machine by shards that could be led on the next one, to
        one that has two leaders fewer."""
        seen = {start}
        waiting = deque([start])
        while waiting:
            machine = waiting.popleft()
            for number, target in self._moves_from(machine, leaders):
                found = self._nodes[target].machine
                if found in seen:
                    continue
                if counts.get(found, 0) + 2 <= counts[start]:
                    return number, target
                seen.add(found)
                waiting.append(found)
        return None

    def _moves_from(
        self, machine: str, leaders: Mapping[Shard, str | None]
    ) -> list[tuple[Shard, DirectoryId]]:
        return [
            (number, each)
            for number, shard in self._shards.items()
            if leaders[number] == machine
            for each in self._possible_leaders(shard)
        ]

    def _possible_leaders(self, shard: PlacedShard) -> list[DirectoryId]:
        state, wish = shard.state, shard.wish
        if state is None or wish is None or wish.by_operator:
            return []
        return [
            each
            for each in state.in_sync
            if each in wish.replicas and each != state.leader and self._may_lead(each)
        ]

    def _leading_machine(self, shard: PlacedShard) -> str | None:
        leader = self._leader_of(shard)
        found = self._nodes.get(leader) if leader is not None else None
        return found.machine if found is not None else None

    def _may_lead(self, directory: DirectoryId | None) -> bool:
        found = self._nodes.get(directory) if directory is not None else None
        return found is not None and found.alive and not found.draining
