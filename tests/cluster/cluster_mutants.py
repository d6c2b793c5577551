"""The core with one rule broken: the simulator has to notice each, and so has the test of the rule.

A mutant replaces one small function. It is not there to be subtle: it is what somebody might write
who does not know why the rule is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import simulated_faults

from braidmq.cluster import core, shard
from braidmq.cluster.core import Replica
from braidmq.cluster.facts import Facts
from braidmq.cluster.following import Following
from braidmq.cluster.leading import Leading
from braidmq.cluster.messages import Hello
from braidmq.cluster.peers import Peer
from braidmq.cluster.shard import DirectoryId, Incarnation, ShardState
from braidmq.cluster.states import Role
from braidmq.model.ids import Lsn


@dataclass(frozen=True)
class Mutant:
    rule: int
    where: Any
    name: str
    instead: Any
    along: Mutant | None = None
    """Where two places keep a rule, both have to break it."""

    def apply(self) -> None:
        setattr(self.where, self.name, self.instead)
        if self.along is not None:
            self.along.apply()

    @contextmanager
    def applied(self) -> Iterator[None]:
        undone: list[tuple[Any, str, Any]] = []
        mutant: Mutant | None = self
        while mutant is not None:
            undone.append((mutant.where, mutant.name, vars(mutant.where)[mutant.name]))
            mutant = mutant.along
        self.apply()
        try:
            yield
        finally:
            for where, name, there in undone:
                setattr(where, name, there)


def _decided_at_once(self: Leading) -> set[DirectoryId]:
    state = self._proposals[-1] if self._proposals else self.state
    return set(state.in_sync)


def _without_additions(self: Leading) -> set[DirectoryId]:
    return set(self.state.in_sync)


def _majority(self: Leading) -> Lsn:
    state = self.state
    durable = sorted((self.durable_of(each) for each in state.replicas), reverse=True)
    return durable[len(state.replicas) // 2]


def _registered_only(self: Leading) -> set[DirectoryId]:
    there = self._facts.registrations.keys()
    members = set(self.state.in_sync).union(*(each.in_sync for each in self._proposals))
    return {each for each in members if each in there or each == self._facts.me}


def _believe_a_read(self: Leading) -> None:
    if self._proposals and self._facts.role is Role.LEADING:
        self._proposals.clear()


def _drop_all_lost(
    kept: list[DirectoryId], spare: tuple[DirectoryId, ...], at_least: int
) -> tuple[DirectoryId, ...]:
    return tuple(kept)


def _anyone(self: Replica) -> bool:
    state = self._facts.state
    return state is not None and self._facts.me in state.replicas


def _elected_alone(
    state: ShardState, me: DirectoryId, incarnation: int, term: int, registered: object
) -> ShardState:
    before = shard.elected(state, me, incarnation, term, registered)  # type: ignore[arg-type]
    return shard.replace(before, in_sync=before.replicas)


def _level_with_the_commit(self: Leading, peer: Peer) -> bool:
    return peer.acked >= self._facts.log.committed


def _joins_with_anything(self: Leading, peer: Peer) -> bool:
    return True


def _whatever_we_have(self: Leading, peer: Peer) -> bool:
    return peer.acked >= max(self.begin, self._facts.log.committed)


def _expected_at_once(
    self: Peer, incarnation: Incarnation, sent: Lsn, last: Lsn, now_ms: int
) -> None:
    _open(self, incarnation, sent, sent, now_ms)


_open = Peer.open


def _by_name(name: str, count: int) -> DirectoryId:
    return DirectoryId(f"{name}1")


def _named_by_directory(self: Facts) -> bool:
    return self.state is not None and self.state.leader == self.me


def _cut_to_the_commit(self: Leading, hello: Hello) -> Lsn:
    log = self._facts.log
    return min(log.committed, log.agreement(hello.terms, hello.last))


def _cut_to_the_length(self: Leading, hello: Hello) -> Lsn:
    return min(self._facts.log.last, hello.last)


def _nothing_is_outdated(self: Following, term: int) -> bool:
    return False


def _nothing_is_newer(self: Leading, peer: DirectoryId, term: int) -> bool:
    return False


def _acknowledged_before_the_sync(self: Following) -> Lsn:
    return self._facts.log.last


def _min_only(self: Leading, lsn: Lsn) -> bool:
    return len(self.state.in_sync) >= self.state.min_in_sync


def _whatever_the_minimum(self: Leading, lsn: Lsn) -> bool:
    return lsn >= self.begin


MUTANTS = {
    "confirmed before the smaller set is decided": Mutant(1, Leading, "counted", _decided_at_once),
    "a majority instead of the whole set": Mutant(1, Leading, "committable", _majority),
    "acknowledged before the sync": Mutant(
        1, Following, "acknowledged", _acknowledged_before_the_sync
    ),
    "an unanswered swap is settled by a read": Mutant(2, Leading, "settle", _believe_a_read),
    "the set shrinks below its minimum": Mutant(3, shard, "filled_up", _drop_all_lost),
    "any replica may be elected": Mutant(4, Replica, "is_eligible", _anyone),
    "an election takes all replicas into the set": Mutant(4, core, "elected", _elected_alone),
    "who is being added does not count yet": Mutant(5, Leading, "counted", _without_additions),
    "joins without the entry that began the term": Mutant(
        5,
        Leading,
        "has_enough",
        _level_with_the_commit,
        along=Mutant(5, Peer, "open", _expected_at_once),
    ),
    "joins before it has what is committed": Mutant(5, Leading, "has_enough", _joins_with_anything),
    "lets join before its own disk has the entry that began the term": Mutant(
        5, Leading, "has_enough", _whatever_we_have
    ),
    "members are names": Mutant(6, simulated_faults, "drawn_directory", _by_name),
    "a restarted leader resumes its term": Mutant(7, Facts, "is_named", _named_by_directory),
    "cut to the commit": Mutant(8, Leading, "cut_for", _cut_to_the_commit),
    "cut to the leader's length": Mutant(8, Leading, "cut_for", _cut_to_the_length),
    "terms on links are not looked at": Mutant(
        9,
        Following,
        "is_outdated",
        _nothing_is_outdated,
        along=Mutant(9, Leading, "is_superseded", _nothing_is_newer),
    ),
    "committed without the entry of the term": Mutant(1, Leading, "may_commit", _min_only),
    "confirmed below the minimum": Mutant(1, Leading, "may_commit", _whatever_the_minimum),
    "members without a lease do not count": Mutant(10, Leading, "counted", _registered_only),
}
