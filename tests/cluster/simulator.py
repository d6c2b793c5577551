"""Replicas in a world that goes wrong, from a seed: the same seed is the same history.

python tests/cluster/simulator.py 17                      the history of seed 17
python tests/cluster/simulator.py 17 --mutant NAME        with one rule broken
python tests/cluster/simulator.py 1 --seeds 2000 --jobs 2 that many, from seed 1
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster_checker import Checker, Stuck
from simulated_disk import SimulatedDisk
from simulated_etcd import SimulatedEtcd
from simulated_faults import Faults, Profile
from simulated_network import Link, SimulatedNetwork

from braidmq.cluster import effects as fx
from braidmq.cluster.core import Replica
from braidmq.cluster.messages import Group
from braidmq.cluster.settings import ReplicaSettings
from braidmq.cluster.shard import DirectoryId, Incarnation, ShardState, Term, Wish
from braidmq.cluster.states import Role
from braidmq.model.ids import Lsn

TICK_MS = 100
PUBLISH_MS = 25
HEALED_MS = 20_000  # by then everything has to be well again
LOOK_MS = 250
ENTRY_BYTES = 1_000
COPY_MS = (20, 400)
SHOWN_WITH_ERRORS = 40

SETTINGS = ReplicaSettings(
    heartbeat_ms=200,
    silence_ms=400,
    lag_ms=400,
    cas_timeout_ms=500,
    hello_retry_ms=200,
    quiet_ms=400,
    transfer_bytes_max=20 * ENTRY_BYTES,
    transfer_retry_ms=1_000,
    lease_ttl_ms=800,
    rejoin_ms=500,
    rejoin_ms_max=2_000,
    ship_entries=50,
    unacked_entries=200,
)
"""Faster than a node's, so that more happens in a second."""


@dataclass(eq=False)
class Node:
    """A machine, its directory, and the process on it, if there is one."""

    world: World
    name: str
    disk: SimulatedDisk
    replica: Replica | None = None
    life: int = 0
    """Goes up when a process begins and when it ends: what was meant for another is dropped."""
    is_on: bool = True
    is_paused: bool = False
    draining: bool = False
    is_quiet: bool = False
    refuses: bool = False
    """Links to it, though it runs."""
    reads_past: bool = False
    clock_ms: int = 0
    """How far its clock is off."""
    links: dict[str, Link] = field(default_factory=dict)
    deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    ask_late_ms: int = 0
    answer_late_ms: int = 0
    watch_late_ms: int = 0
    watched_ms: int = 0
    register_ms: int = 0

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.life)

    def leads(self) -> bool:
        return self.replica is not None and self.replica.role in (Role.LEADING, Role.QUIET)

    def keeps_lease(self) -> bool:
        world = self.world
        return (
            self.replica is not None
            and not self.is_paused
            and self.disk.stalled_until_ms <= world.now_ms
            and not world.is_cut(self.name, "etcd")
            and not world.is_cut("etcd", self.name)
        )

    # The process

    def start(self) -> None:
        if self.replica is not None:
            return
        world = self.world
        self.life = world.next_life()
        self.is_on = True
        self.replica = Replica(
            self.disk.directory, self.incarnation, self.disk.view(), world.settings
        )
        world.note(lambda: f"{self.name} starts on {self.disk.directory}, {self.disk.view()}")
        world.etcd.tell_all(self)
        self.post(world.draw(0, TICK_MS), "tick")

    def stop(self, is_on: bool = True) -> None:
        if self.replica is None:
            return
        world = self.world
        world.note(lambda: f"{self.name} stops{'' if is_on else ', with its machine'}")
        self.is_on = is_on
        world.network.process_ended(self)
        self.replica = None
        self.life = world.next_life()
        self.is_paused = self.draining = self.is_quiet = False
        self.deferred.clear()
        self.disk.lose_unsynced()

    def pause(self) -> None:
        self.world.note(lambda: f"{self.name} is paused")
        self.is_paused = True

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.world.note(lambda: f"{self.name} goes on")
        self.is_paused = False
        deferred, self.deferred = self.deferred, []
        for action, args in deferred:
            action(*args)

    def post(self, delay_ms: int, how: str, *args: Any) -> None:
        self.world.at(delay_ms, self._posted, self.life, how, args)

    def _posted(self, life: int, how: str, args: tuple[Any, ...]) -> None:
        if life == self.life:
            self.run(how, *args)

    def run(self, how: str, *args: Any) -> None:
        """An input of the core, and what comes of it."""
        if self.replica is None:
            return
        if self.is_paused:
            self.deferred.append((self._posted, (self.life, how, args)))
            return
        effects = getattr(self.replica, how)(*args, self.world.now_ms + self.clock_ms)
        if effects:
            self.perform(effects)
        if how == "tick" and self.replica is not None:
            self.post(TICK_MS, "tick")

    def perform(self, effects: list[fx.Effect]) -> None:
        life, world = self.life, self.world
        for effect in effects:
            if world.history is not None:
                world.note(lambda effect=effect: f"{self.name} → {effect}")  # type: ignore[misc]
            PERFORM[type(effect)](self, effect)
            if self.life != life:
                return

    # What its effects do

    def _connect(self, effect: fx.Connect) -> None:
        self.world.network.connect(self, effect.peer, effect.hello)

    def _disconnect(self, effect: fx.Disconnect) -> None:
        self.world.network.disconnect(self, effect.peer)

    def _send(self, effect: fx.Send) -> None:
        self.world.network.send(self, effect.peer, effect.message)

    def _ship(self, effect: fx.Ship) -> None:
        entries = self.disk.entries[effect.first - 1 : effect.last]
        begins = self.disk.begins(effect.first, effect.last)
        group = Group(
            effect.term, effect.first, effect.last, effect.committed, begins, tuple(entries)
        )
        self.world.network.send(self, effect.peer, group)

    def _append(self, effect: fx.Append) -> None:
        entries = effect.group.entries
        assert isinstance(entries, tuple)
        self.disk.entries += entries
        self.sync()
        self.world.turn("append", self)

    def _truncate(self, effect: fx.Truncate) -> None:
        self.world.checker.cuts(self, effect.lsn)
        self.disk.cut(effect.lsn)
        self.post(self._disk_ms(), "on_cut", effect.lsn)
        self.world.turn("truncate", self)

    def _copy_from(self, effect: fx.CopyFrom) -> None:
        """Takes a while in which there is nothing here; ends early when the leader is not there."""
        self.world.checker.copies(self)
        source = self.world.node_of(effect.peer)
        entries = source.disk.entries[: effect.lsn]
        self.disk.clear()
        self.disk.copying = True
        self.world.at(self.world.draw(*COPY_MS), self._copied, self.life, source, entries)
        self.world.turn("copy", self)

    def _copied(self, life: int, source: Node, entries: list[Any]) -> None:
        if life != self.life:
            return
        self.disk.copying = False
        if source.replica is not None and not self.world.is_cut(source.name, self.name):
            self.disk.install(entries)
        self.run("on_copied", self.disk.view())

    def _cas(self, effect: fx.Cas) -> None:
        self.world.turn("cas", self)
        self.world.etcd.ask(self, effect)

    def _revoke(self, effect: fx.Revoke) -> None:
        world = self.world
        if not world.is_cut(self.name, "etcd"):
            world.at(self.ask_late_ms + world.draw(1, 8), world.etcd.revoke, effect.lease)

    def _commit(self, effect: fx.Commit) -> None:
        """Of what it has been told before, the checker knows already."""
        self.world.checker.committed(self, effect.lsn, self.disk.known_committed)
        self.disk.known_committed = max(self.disk.known_committed, effect.lsn)

    def _lead(self, effect: fx.Lead) -> None:
        disk = self.disk
        assert len(disk.entries) == effect.lsn - 1
        disk.entries.append((effect.term, 0))
        self.world.counts["elections"] += 1
        self.world.checker.begins(self, effect.term)
        self.sync()
        self.world.turn("lead", self)

    def _quiet(self, effect: fx.Quiet) -> None:
        self.is_quiet = effect.on
        self.world.turn("quiet" if effect.on else "no longer quiet", self)

    def _deposed(self, effect: fx.Deposed) -> None:
        self.stop()
        self.world.at(self.world.draw(20, 80), self.start)

    def _halt(self, effect: fx.Halt) -> None:
        self.world.checker.halted(self, effect.reason)

    def _transfer_refused(self, effect: fx.TransferRefused) -> None:
        pass

    def _drained(self, effect: fx.Drained) -> None:
        self.world.counts["drained"] += 1
        self.stop()
        self.world.at(self.world.draw(100, 800), self.start)

    # Its disk

    def sync(self) -> None:
        disk = self.disk
        if disk.syncing_to is None and len(disk.entries) > disk.synced:
            disk.syncing_to = len(disk.entries)
            self.world.at(self._disk_ms(), self._synced, disk, disk.uses, disk.syncing_to)

    def _synced(self, disk: SimulatedDisk, use: int, upto: int) -> None:
        if disk is not self.disk or disk.uses != use:
            return
        if disk.stalled_until_ms > self.world.now_ms:
            self.world.at(self._disk_ms(), self._synced, disk, use, upto)
            return
        disk.synced, disk.syncing_to = upto, None
        self._report_durable(use, upto)
        self.sync()

    def _report_durable(self, use: int, upto: int) -> None:
        if self.is_paused:
            self.deferred.append((self._report_durable, (use, upto)))
        elif use == self.disk.uses:
            self.run("on_durable", Lsn(upto))

    def _disk_ms(self) -> int:
        world = self.world
        return max(world.draw(*world.profile.sync_ms), self.disk.stalled_until_ms - world.now_ms)

    def trim(self) -> None:
        """A checkpoint: a snapshot of what is committed, and the journal from there."""
        if self.replica is None or self.replica.role in (Role.CUTTING, Role.COPYING):
            return
        committed = self.replica.log.committed
        if committed + 1 > self.disk.first:
            self.disk.first = committed + 1
            self.disk.snapshot_committed = committed
            self.run("on_trimmed", Lsn(committed + 1))

    def publish(self, count: int, first_number: int) -> None:
        assert self.replica is not None
        first = len(self.disk.entries) + 1
        term = self.replica.log.term
        self.disk.entries += [(term, first_number + each) for each in range(count)]
        self.run("propose", Lsn(first), Lsn(first + count - 1), count * ENTRY_BYTES)
        self.sync()


PERFORM: dict[type, Callable[[Node, Any], None]] = {
    fx.Connect: Node._connect,
    fx.Disconnect: Node._disconnect,
    fx.Send: Node._send,
    fx.Ship: Node._ship,
    fx.Append: Node._append,
    fx.Truncate: Node._truncate,
    fx.CopyFrom: Node._copy_from,
    fx.Cas: Node._cas,
    fx.Revoke: Node._revoke,
    fx.Commit: Node._commit,
    fx.Lead: Node._lead,
    fx.Quiet: Node._quiet,
    fx.Deposed: Node._deposed,
    fx.Halt: Node._halt,
    fx.TransferRefused: Node._transfer_refused,
    fx.Drained: Node._drained,
}


class World:
    def __init__(
        self, seed: int, record: bool = False, settings: ReplicaSettings = SETTINGS
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.random = random.Random(seed)
        self.profile = Profile.drawn(self.random)
        self.now_ms = 0
        self.history: list[str] | None = [] if record else None
        self.counts = dict.fromkeys(("elections", "faults", "drained", "wiped", "events"), 0)
        self.cuts: set[tuple[str, str]] = set()
        self.lease_extra_ms: dict[str, int] = {}
        self.is_healed = False
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._lives = 0
        self._numbers = 0
        self._confirmed_before = 0
        self.network = SimulatedNetwork(self)
        self.nodes = [
            Node(self, name, SimulatedDisk(DirectoryId(f"{name}1")))
            for name in "ABCD"[: 4 if self.profile.spare else 3]
        ]
        self.etcd = SimulatedEtcd(self, *self._first_state())
        self.checker = Checker(self)
        self.faults = Faults(self)

    def _first_state(self) -> tuple[ShardState, Wish]:
        """Three that begin together, or one that had a journal before, and two to join it."""
        names = tuple(each.disk.directory for each in self.nodes[:3])
        begins = names if not self.profile.adopted else names[:1]
        minimum = min(2, len(begins))
        if self.profile.adopted:
            count = self.random.randint(1, 40)
            self.nodes[0].disk.entries += [(0, -1 - each) for each in range(count)]
            self.nodes[0].disk.synced = count
        state = ShardState(Term(0), None, Incarnation(0), begins, begins, minimum)
        return state, Wish(names, 2)

    def draw(self, low: int, high: int) -> int:
        return low + int(self.random.random() * (high - low + 1))

    def at(self, delay_ms: int, action: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._order, action, args))

    def note(self, what: Callable[[], str]) -> None:
        if self.history is not None:
            self.history.append(f"{self.now_ms / 1000:8.3f}  {what()}")

    def turn(self, what: str, node: Node, about: object = None) -> None:
        """A turn of the protocol, which faults are aimed at."""
        self.faults.turn(what, node, about)

    def next_life(self) -> int:
        self._lives += 1
        return self._lives

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self.cuts

    def node_of(self, directory: str) -> Node:
        """Where it is, or was before its disk was replaced."""
        return next(each for each in self.nodes if each.name == directory[0])

    def run(self) -> None:
        for node in self.nodes:
            node.start()
        self.etcd.keep_leases()
        self.at(PUBLISH_MS, self._publish)
        self.faults.begin()
        while self._step():
            pass

    def _step(self) -> bool:
        self.now_ms, _, action, args = heapq.heappop(self._events)
        self.counts["events"] += 1
        action(*args)
        return bool(self._events)

    def _publish(self) -> None:
        """To whoever takes itself for the leader, also when it is not any more."""
        for node in self.nodes:
            if node.leads() and not node.is_quiet and not node.is_paused:
                count = self.draw(1, 3)
                node.publish(count, self._numbers + 1)
                self._numbers += count
        self.at(self.draw(PUBLISH_MS // 2, 2 * PUBLISH_MS), self._publish)

    def heal(self) -> None:
        """Everything that can be mended is; then all has to be well within some time."""
        self.note(lambda: "all is healed")
        self.is_healed = True
        self.cuts.clear()
        self.lease_extra_ms.clear()
        for node in self.nodes:
            node.ask_late_ms = node.answer_late_ms = node.watch_late_ms = node.register_ms = 0
            node.disk.stalled_until_ms = 0
            node.refuses = False
            node.resume()
            node.start()
            node.run("on_etcd", True)
            self.etcd.tell_all(node)
        self.network.healed()
        self._confirmed_before = self.checker.confirmed
        self.at(LOOK_MS, self._look, self.now_ms + HEALED_MS)

    def _look(self, until_ms: int) -> None:
        missing = self._what_is_missing()
        if missing is None:
            self.checker.at_the_end()
            self.note(lambda: f"all is well: {self.checker.confirmed} confirmed")
            self._events.clear()
        elif self.now_ms >= until_ms:
            raise Stuck(missing)
        else:
            self.at(LOOK_MS, self._look, until_ms)

    def _what_is_missing(self) -> str | None:
        state, wish = self.etcd.state, self.etcd.wish
        if set(state.replicas) != set(wish.replicas):
            return f"the replicas are {state.replicas}, and {wish.replicas} are wished for"
        if set(state.in_sync) != set(wish.replicas):
            return f"in sync are only {state.in_sync}"
        if state.min_in_sync != wish.min_in_sync:
            return f"the minimum is {state.min_in_sync}"
        if self.checker.confirmed <= self._confirmed_before:
            return "nothing that is new is confirmed"
        leaders = [each for each in self.nodes if each.leads()]
        if [each.disk.directory for each in leaders] != [state.leader]:
            return f"{[each.name for each in leaders]} lead"
        return None


def replay(seed: int) -> tuple[World, Exception | None]:
    """The history of a seed, and what went wrong in it."""
    world = World(seed, record=True)
    try:
        world.run()
    except Exception as error:
        return world, error
    return world, None


def run_seed(seed: int) -> World:
    """Or the error, with what led to it."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        told = replay(seed)[0].history or []
        error.add_note("\n".join(told[-SHOWN_WITH_ERRORS:]))
        error.add_note(f"seed {seed}, all of it: python tests/cluster/simulator.py {seed} --all")
        raise
    return world


if __name__ == "__main__":
    from simulator_runs import main

    main()
