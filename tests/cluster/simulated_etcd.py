"""etcd in the simulator: one key that decides, registrations with leases, watches; answers that are
lost or late on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.cluster.effects import Cas, Guard
from braidmq.cluster.shard import (
    DirectoryId,
    Registration,
    Revision,
    ShardState,
    Wish,
)

if TYPE_CHECKING:
    from simulator import Node, World

LEASE_MS = 800
KEEPALIVE_MS = 200


class SimulatedEtcd:
    def __init__(self, world: World, state: ShardState, wish: Wish) -> None:
        self._world = world
        self.revision = Revision(1)
        self.state = state
        self.wish = wish
        self.registrations: dict[DirectoryId, Registration] = {}
        self._kept_ms: dict[DirectoryId, int] = {}
        self._leases = 0
        self._past = [(self.revision, state, dict(self.registrations))]

    # What processes ask

    def ask(self, node: Node, cas: Cas) -> None:
        """A request; it or its answer may be late, or never come."""
        if self._world.is_cut(node.name, "etcd"):
            return
        late = node.ask_late_ms
        self._world.at(late + self._world.draw(1, 8), self._decide, node, node.life, cas)

    def _decide(self, node: Node, life: int, cas: Cas) -> None:
        world = self._world
        before = self.state
        won = cas.revision == self.revision and all(map(self._holds, cas.guards))
        if won:
            self._put(cas.state, f"{node.name} made its swap")
            world.checker.state_changed(before, cas.state)
        else:
            world.note(lambda: f"etcd refuses {node.name}'s swap")
        if won:
            world.turn("decided", node, (before, cas.state))
        if world.is_cut("etcd", node.name) or node.life != life:
            return
        late = node.answer_late_ms + world.draw(1, 8)
        node.post(late, "on_cas", self.revision, self.state)

    def _holds(self, guard: Guard) -> bool:
        found = self.registrations.get(guard.directory)
        there = found is not None and found.incarnation == guard.incarnation
        return there is guard.registered

    def _put(self, state: ShardState, why: str) -> None:
        self.revision = Revision(self.revision + 1)
        self.state = state
        self._past = [*self._past[-7:], (self.revision, state, dict(self.registrations))]
        self._world.note(lambda: f"etcd revision {self.revision}, {why}: {told(state)}")
        for node in self._world.nodes:
            self._tell(node, "on_state", self.revision, state)

    # Leases

    def revoke(self, lease: int) -> None:
        for directory, found in list(self.registrations.items()):
            if found.lease == lease:
                self.end_lease(directory, "revoked")

    def end_lease(self, directory: DirectoryId, why: str) -> None:
        if self.registrations.pop(directory, None) is not None:
            self._world.note(lambda: f"etcd: {directory}'s lease {why}")
            self._tell_registrations()

    def keep_leases(self) -> None:
        """Every so often: who can keep its lease does, and who could not for too long loses it."""
        world, now_ms = self._world, self._world.now_ms
        for node in world.nodes:
            directory = node.disk.directory
            if node.keeps_lease():
                self._kept_ms[directory] = now_ms
                found = self.registrations.get(directory)
                if found is None or found.incarnation != node.life:
                    if now_ms >= node.register_ms:
                        self._register(node)
                elif found.draining != node.draining:
                    self._register(node)
        for directory in list(self.registrations):
            silent_ms = now_ms - self._kept_ms.get(directory, 0)
            if silent_ms >= LEASE_MS + world.lease_extra_ms.get(directory, 0):
                self.end_lease(directory, "ends")
        world.at(KEEPALIVE_MS, self.keep_leases)

    def _register(self, node: Node) -> None:
        self._leases += 1
        self.registrations[node.disk.directory] = Registration(
            node.incarnation, self._leases, node.draining
        )
        self._world.note(lambda: f"etcd: {node.disk.directory} is registered, {node.incarnation}")
        self._tell_registrations()

    # Watches

    def put_wish(self, wish: Wish) -> None:
        self.wish = wish
        self._world.note(lambda: f"wish: {wish}")
        for node in self._world.nodes:
            self._tell(node, "on_wish", wish)

    def tell_all(self, node: Node) -> None:
        """What a process reads when it starts, or when etcd is back."""
        behind = node.reads_past or self._world.random.random() < self._world.profile.stale
        if behind and not self._world.is_healed:
            then = self._past[self._world.draw(0, len(self._past) - 1)]
            if node.reads_past:
                then = next(
                    (each for each in self._past[::-1] if each[1].term < self.state.term), then
                )
            self._world.note(lambda: f"etcd tells {node.name} of its revision {then[0]}")
            self._tell(node, "on_state", then[0], then[1])
            self._tell(node, "on_registrations", then[2])
            node.watched_ms += self._world.draw(0, 2_000)
        self._tell(node, "on_state", self.revision, self.state)
        self._tell(node, "on_wish", self.wish)
        self._tell(node, "on_registrations", dict(self.registrations))

    def _tell_registrations(self) -> None:
        for node in self._world.nodes:
            self._tell(node, "on_registrations", dict(self.registrations))

    def _tell(self, node: Node, how: str, *what: object) -> None:
        if node.replica is None or self._world.is_cut("etcd", node.name):
            return
        at_ms = self._world.now_ms + node.watch_late_ms + self._world.draw(1, 5)
        node.watched_ms = max(node.watched_ms, at_ms)  # in order
        node.post(node.watched_ms - self._world.now_ms, how, *what)


def told(state: ShardState) -> str:
    return (
        f"term {state.term}, {state.leader} leads, in sync {' '.join(state.in_sync)},"
        f" replicas {' '.join(state.replicas)}, min {state.min_in_sync}"
    )
