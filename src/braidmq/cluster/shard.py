"""What etcd holds of a shard and of its replicas' processes, and the steps between its states.

    shards/<n>/state        ShardState     the only key that decides; changed by compare-and-swap
    shards/<n>/wish         Wish           what an operator or the steward wants of it
    nodes/<directory id>    Registration   bound to the process's lease

All functions are pure: the state before gives the state after, or None where nothing changes.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NewType

DirectoryId = NewType("DirectoryId", str)
"""A data directory, drawn when it was made. A disk that was wiped is a stranger: a name would let
it vote for what it has lost."""

Incarnation = NewType("Incarnation", int)
"""One process on a directory, drawn when it started."""

Term = NewType("Term", int)
"""One leadership, counted from 1. Entries from before the first are of term 0."""

Revision = NewType("Revision", int)
"""Of a key in etcd: goes up with each change."""


@dataclass(frozen=True, slots=True)
class ShardState:
    term: Term
    leader: DirectoryId | None
    incarnation: Incarnation
    """The leader's process: another one on its directory does not lead."""
    in_sync: tuple[DirectoryId, ...]
    """Who has everything that was ever confirmed."""
    replicas: tuple[DirectoryId, ...]
    """Who follows: the in-sync set, those that fell out of it and those that learn."""
    min_in_sync: int


@dataclass(frozen=True, slots=True)
class Wish:
    replicas: tuple[DirectoryId, ...]
    min_in_sync: int
    preferred: DirectoryId | None = None
    """Who should lead."""
    by_operator: bool = False
    """Set by hand: placement leaves it alone."""


@dataclass(frozen=True, slots=True)
class Registration:
    incarnation: Incarnation
    lease: int
    draining: bool = False
    """It is to stop: it is not handed any shard."""


def elected(
    state: ShardState,
    me: DirectoryId,
    incarnation: Incarnation,
    term: Term,
    registered: Collection[DirectoryId],
) -> ShardState:
    """I lead ``term``, with those of the set that are there, and so many that aren't that it does
    not fall below its minimum."""
    there = [each for each in state.in_sync if each == me or each in registered]
    return replace(
        state,
        term=term,
        leader=me,
        incarnation=incarnation,
        in_sync=filled_up(there, state.in_sync, state.min_in_sync),
    )


def filled_up(
    kept: Iterable[DirectoryId], spare: Iterable[DirectoryId], at_least: int
) -> tuple[DirectoryId, ...]:
    """Below its minimum nothing is confirmed, so whoever stays in the set on paper misses nothing,
    and may be elected when it returns (what KIP-966 keeps a second list for)."""
    members = list(kept)
    for each in spare:
        if len(members) >= at_least:
            break
        if each not in members:
            members.append(each)
    return tuple(members)


def without(
    state: ShardState, lost: Collection[DirectoryId], best_first: Iterable[DirectoryId]
) -> ShardState | None:
    """The set without these, or with the best of them where it would fall below its minimum."""
    kept = [each for each in state.in_sync if each not in lost]
    spare = [each for each in best_first if each in lost and each in state.in_sync]
    members = filled_up(kept, spare, state.min_in_sync)
    return None if set(members) == set(state.in_sync) else replace(state, in_sync=members)


def grown(state: ShardState, member: DirectoryId) -> ShardState:
    return replace(state, in_sync=(*state.in_sync, member))


def transferred(state: ShardState, target: DirectoryId, incarnation: Incarnation) -> ShardState:
    return replace(state, term=Term(state.term + 1), leader=target, incarnation=incarnation)


def step_towards(state: ShardState, wish: Wish) -> ShardState | None:
    """One step of those that need no replica to catch up: learners are let in, the minimum is
    changed, who is not wanted leaves. Wishing back takes every step back."""
    if len(wish.replicas) < max(wish.min_in_sync, 1):
        return None  # it could never confirm anything
    wanted = [each for each in wish.replicas if each not in state.replicas]
    if wanted:
        return replace(state, replicas=(*state.replicas, wanted[0]))
    if wish.min_in_sync != state.min_in_sync and 1 <= wish.min_in_sync <= len(state.in_sync):
        return replace(state, min_in_sync=wish.min_in_sync)
    return next(filter(None, (_left(state, wish, each) for each in state.replicas)), None)


def _left(state: ShardState, wish: Wish, member: DirectoryId) -> ShardState | None:
    if member in wish.replicas or member == state.leader:
        return None
    replicas = tuple(each for each in state.replicas if each != member)
    if member not in state.in_sync:
        return replace(state, replicas=replicas)
    in_sync = tuple(each for each in state.in_sync if each != member)
    if len(in_sync) < state.min_in_sync or not set(wish.replicas) <= set(in_sync):
        return None
    return replace(state, in_sync=in_sync, replicas=replicas)
