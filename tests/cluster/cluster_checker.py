"""What must hold in every history of the simulator, whatever went wrong in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_disk import Entry

from braidmq.cluster.shard import ShardState

if TYPE_CHECKING:
    from simulator import Node, World


class Violated(Exception):
    """A promise was broken; the history leads up to it."""


class Stuck(Exception):
    """All is healed, and still nothing is confirmed, or somebody is not in sync."""


class Checker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.decided: dict[int, Entry] = {}
        """What any replica took for committed."""
        self.confirmed = 0
        """Up to where a client was told so."""

    def committed(self, node: Node, lsn: int, was: int) -> None:
        for at in range(was + 1, lsn + 1):
            entry = node.disk.entries[at - 1]
            before = self.decided.setdefault(at, entry)
            if before != entry:
                raise Violated(f"LSN {at} is committed as {before} and, by {node.name}, as {entry}")
        if node.leads():
            self.confirmed = max(self.confirmed, lsn)

    def cuts(self, node: Node, lsn: int) -> None:
        if lsn < node.disk.known_committed:
            raise Violated(
                f"{node.name} cuts at {lsn}, and {node.disk.known_committed} was committed there"
            )

    def halted(self, node: Node, reason: str) -> None:
        raise Violated(f"{node.name} halts: {reason}")

    def copies(self, node: Node) -> None:
        if node.disk.directory in self._world.etcd.state.in_sync:
            raise Violated(f"{node.name} is in the set and gives up what it has for a copy")

    def begins(self, node: Node, term: int) -> None:
        """Who leads the newest term must have what was confirmed."""
        if term == self._world.etcd.state.term:
            self._has_all(node, "leads, but")

    def state_changed(self, before: ShardState, after: ShardState) -> None:
        if after.leader not in before.in_sync or after.leader not in after.in_sync:
            raise Violated(f"{after.leader} leads, and is not in sync")
        if len(after.in_sync) < after.min_in_sync:
            raise Violated(f"the set is {after.in_sync} and its minimum {after.min_in_sync}")
        if len(set(after.in_sync)) < len(after.in_sync):
            raise Violated(f"the set is {after.in_sync}")
        if after.term == before.term and len(set(before.in_sync) ^ set(after.in_sync)) > 2:
            raise Violated(f"the set goes from {before.in_sync} to {after.in_sync} at once")

    def at_the_end(self) -> None:
        world = self._world
        for node in world.nodes:
            if node.disk.directory in world.etcd.state.in_sync:
                self._has_all(node, "is in sync at the end, but")

    def _has_all(self, node: Node, what: str) -> None:
        entries = node.disk.entries
        for lsn in range(1, self.confirmed + 1):
            has = entries[lsn - 1] if lsn <= len(entries) else "nothing"
            if has != self.decided[lsn]:
                raise Violated(
                    f"{node.name} {what} LSN {lsn} was confirmed as {self.decided[lsn]},"
                    f" and it has {has}"
                )
