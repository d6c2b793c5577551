"""What goes wrong in the simulator: at random, and aimed at turns of the protocol, because random
faults alone miss windows of a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from simulated_disk import SimulatedDisk

from braidmq.cluster.shard import DirectoryId, ShardState, Wish

if TYPE_CHECKING:
    from simulator import Node, World

FAULTS_MS = 8_000
OFTEN = {"append": 0.02}  # what happens all the time is aimed at less


@dataclass(frozen=True)
class Profile:
    """How one seed's world is."""

    spare: bool
    adopted: bool
    link_ms: tuple[int, int]
    sync_ms: tuple[int, int]
    gap_ms: tuple[int, int]
    """Between two faults at random."""
    aim: float
    """How often a turn of the protocol is aimed at."""
    stale: float
    """How often a process that starts reads from a member of etcd that is behind."""

    @classmethod
    def drawn(cls, random: Random) -> Profile:
        return cls(
            spare=random.random() < 0.4,
            adopted=random.random() < 0.2,
            link_ms=random.choice([(1, 2), (1, 5), (1, 40)]),
            sync_ms=random.choice([(1, 4), (2, 30)]),
            gap_ms=random.choice([(50, 300), (150, 600), (400, 1500)]),
            aim=random.choice([0.0, 0.2, 0.5]),
            stale=random.choice([0.0, 0.5]),
        )


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._lost: set[DirectoryId] = set()
        self._wipes = 1
        self._any: list[tuple[int, Callable[[Node], None]]] = [
            (4, self._crash),
            (2, self._power_off),
            (3, self._pause),
            (4, self._cut_off),
            (4, self._cut_pair),
            (3, self._cut_from_etcd),
            (3, self._slow_etcd),
            (2, self._end_lease),
            (1, self._keep_lease_for_long),
            (2, self._stall),
            (2, self._replace_disk),
            (3, self._transfer),
            (2, self._drain),
            (2, self._change_replicas),
            (2, self._trim),
            (2, self._refuse_links),
            (2, self._jump_clock),
        ]
        self._weights = [weight for weight, _ in self._any]
        self._aimed: list[Callable[[Node], None]] = [
            self._crash,
            self._power_off,
            self._pause,
            self._cut_off,
            self._cut_from_etcd,
            self._slow_etcd,
            self._end_lease,
            self._stall,
            self._trim,
            self._refuse_links,
        ]

    def begin(self) -> None:
        self._world.at(self._world.draw(100, 900), self._next)
        self._world.at(FAULTS_MS, self._world.heal)

    def _next(self) -> None:
        world = self._world
        if world.is_healed:
            return
        (_, fault), *_ = self._random.choices(self._any, self._weights)
        self._do(fault, self._random.choice(world.nodes))
        world.at(world.draw(*world.profile.gap_ms), self._next)

    def _do(self, fault: Callable[[Node], None], node: Node) -> None:
        if not self._world.is_healed:
            self._world.counts["faults"] += 1
            fault(node)

    def _until_healed(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Healing does it, too."""
        self._world.at(delay_ms, lambda: None if self._world.is_healed else action())

    # Turns of the protocol

    def turn(self, what: str, node: Node, about: object) -> None:
        world = self._world
        often = world.profile.aim * OFTEN.get(what, 1.0)
        if world.is_healed or self._random.random() >= often:
            return
        if what == "decided":
            assert isinstance(about, tuple)
            before, after = about
            if len(after.in_sync) > len(before.in_sync):
                self._elect_who_was_added(node, before, after)
                return
            for dropped in sorted(set(before.in_sync) - set(after.in_sync))[:1]:
                self._do(self._forget_the_commit, world.node_of(dropped))
                return
        if what == "cas" and not node.leads() and self._random.random() < 0.5:
            self._keep_the_old_leader(node)
            return
        aimed_at = node if self._random.random() < 0.7 else self._random.choice(world.nodes)
        fault = self._random.choice(self._aimed)
        world.at(world.draw(0, 12), self._do, fault, aimed_at)

    def _elect_who_was_added(self, leader: Node, before: ShardState, after: ShardState) -> None:
        (added,) = set(after.in_sync) - set(before.in_sync)
        node = self._world.node_of(added)
        for other in self._world.nodes:
            if other not in (leader, node) and self._random.random() < 0.7:
                other.watch_late_ms = self._world.draw(100, 1_000)
                self._until_healed(1_500, lambda each=other: self._answer_soon(each))  # type: ignore[misc]
        if self._random.random() < 0.5:
            self._world.at(self._world.draw(0, 60), self._do, self._crash, leader)
        else:
            self._hide_growth(leader, node)

    def _hide_growth(self, leader: Node, node: Node) -> None:
        """The leader does not learn for a while that somebody was added, who gets nothing more, and
        may be elected: the window is open for as long as etcd's answer takes."""
        world = self._world
        world.note(lambda: f"fault: {leader.name} is not told of {node.name} in the set")
        leader.answer_late_ms = leader.watch_late_ms = world.draw(500, 3_000)
        self._until_healed(world.draw(500, 3_000), lambda: self._answer_soon(leader))
        self._cut({(leader.name, node.name)}, world.draw(300, 2_000))
        if self._random.random() < 0.7:
            leader.register_ms = world.now_ms + world.draw(300, 1_500)
            soon = self._random.choice([(0, 150), (500, 900)])  # before it asks again, or after
            world.at(world.draw(*soon), self._end_lease, leader)

    def _forget_the_commit(self, node: Node) -> None:
        """All others begin again, and know no more what is committed than their snapshots say;
        who fell out of the set before is there, and slow."""
        world = self._world
        then = world.draw(100, 800)
        for other in world.nodes:
            if other is not node:
                world.at(then, other.stop)
                world.at(then + world.draw(10, 150), other.start)

        def there() -> None:
            self._join({pair for pair in world.cuts if node.name in pair})
            node.resume()
            node.start()
            node.disk.stalled_until_ms = world.now_ms + world.draw(300, 900)

        self._until_healed(then + world.draw(0, 600), there)

    def _keep_the_old_leader(self, node: Node) -> None:
        """It does not hear of the new term, and somebody who has it begins again and is told by a
        member of etcd that is behind to follow the old one."""
        world = self._world
        old = [each for each in world.nodes if each.leads() and each is not node]
        others = [each for each in world.nodes if each is not node and each not in old]
        if not old or not others:
            return
        for each in old:
            each.resume()
            world.cuts -= {(a.name, each.name) for a in others} | {
                (each.name, a.name) for a in others
            }
            world.network.healed()
            apart = {(each.name, "etcd"), ("etcd", each.name)}
            apart |= {(each.name, node.name), (node.name, each.name)}
            self._cut(apart, 3_000)
        misled = self._random.choice(others)
        world.at(world.draw(200, 1_200), self._do, self._begin_in_the_past, misled)

    def _begin_in_the_past(self, node: Node) -> None:
        node.stop()
        node.reads_past = True
        node.start()
        node.reads_past = False

    # What may happen to anyone

    def _crash(self, node: Node) -> None:
        node.stop()
        self._world.at(self._short_or_long(), node.start)

    def _power_off(self, node: Node) -> None:
        node.stop(is_on=False)
        self._world.at(self._short_or_long(), node.start)

    def _pause(self, node: Node) -> None:
        if node.replica is not None and not node.is_paused:
            node.pause()
            life = node.life
            self._until_healed(
                self._short_or_long(), lambda: node.resume() if node.life == life else None
            )

    def _cut_off(self, node: Node) -> None:
        """From all others, and sometimes from etcd."""
        others = [each.name for each in self._world.nodes if each is not node]
        if self._random.random() < 0.4:
            others.append("etcd")
        self._cut(self._ways(node.name, others), self._short_or_long())

    def _cut_pair(self, node: Node) -> None:
        other = self._random.choice([each for each in self._world.nodes if each is not node])
        self._cut(self._ways(node.name, [other.name]), self._short_or_long())

    def _cut_from_etcd(self, node: Node) -> None:
        nodes = [node] if self._random.random() < 0.8 else self._world.nodes
        pairs = {pair for each in nodes for pair in self._ways(each.name, ["etcd"])}
        self._cut(pairs, self._short_or_long())

    def _ways(self, name: str, others: list[str]) -> set[tuple[str, str]]:
        way = self._random.choice(["to", "from", "both", "both"])
        there = {(name, other) for other in others} if way != "from" else set()
        back = {(other, name) for other in others} if way != "to" else set()
        return there | back

    def _cut(self, pairs: set[tuple[str, str]], for_ms: int) -> None:
        world = self._world
        world.note(lambda: f"fault: cut {', '.join(f'{a}→{b}' for a, b in sorted(pairs))}")
        world.cuts |= pairs
        for name, other in sorted(pairs):
            if "etcd" in (name, other):
                node = world.node_of(name if other == "etcd" else other)
                self._until_healed(SEEN_MS, lambda node=node: self._see_etcd(node))  # type: ignore[misc]
        self._until_healed(for_ms, lambda: self._join(pairs))

    def _join(self, pairs: set[tuple[str, str]]) -> None:
        world = self._world
        world.note(lambda: f"joined again: {', '.join(f'{a}→{b}' for a, b in sorted(pairs))}")
        world.cuts -= pairs
        for node in world.nodes:
            if ("etcd", node.name) in pairs or (node.name, "etcd") in pairs:
                self._see_etcd(node)
        world.network.healed()

    def _see_etcd(self, node: Node) -> None:
        """A process finds that etcd is away, or that it is back, and reads everything again."""
        world = self._world
        away = world.is_cut("etcd", node.name) or world.is_cut(node.name, "etcd")
        node.run("on_etcd", not away)
        if not away:
            world.etcd.tell_all(node)

    def _slow_etcd(self, node: Node) -> None:
        self._world.note(lambda: f"fault: etcd is slow for {node.name}")
        late = self._short_or_long()
        what = self._random.choice(["ask", "answer", "watch", "all"])
        node.ask_late_ms = late if what in ("ask", "all") else 0
        node.answer_late_ms = late if what in ("answer", "all") else 0
        node.watch_late_ms = late if what in ("answer", "watch", "all") else 0
        self._until_healed(self._short_or_long(), lambda: self._answer_soon(node))

    def _answer_soon(self, node: Node) -> None:
        node.ask_late_ms = node.answer_late_ms = node.watch_late_ms = 0

    def _end_lease(self, node: Node) -> None:
        self._world.etcd.end_lease(node.disk.directory, "ends early")

    def _keep_lease_for_long(self, node: Node) -> None:
        directory = node.disk.directory
        self._world.lease_extra_ms[directory] = self._random.choice([1_500, 60_000])

    def _stall(self, node: Node) -> None:
        self._world.note(lambda: f"fault: {node.name}'s disk stalls")
        node.disk.stalled_until_ms = self._world.now_ms + self._short_or_long()

    def _replace_disk(self, node: Node) -> None:
        """Never more copies than the shard is made to lose: the next when this one is out of the
        set, and not the last one."""
        world = self._world
        in_sync = set(world.etcd.state.in_sync)
        if self._lost & in_sync or len(in_sync - {node.disk.directory}) < 1:
            return
        node.stop(is_on=False)
        old = node.disk.directory
        self._lost.add(old)
        self._wipes += 1
        world.counts["wiped"] += 1
        node.disk = SimulatedDisk(drawn_directory(node.name, self._wipes))
        world.note(lambda: f"fault: {old} is replaced by an empty {node.disk.directory}")
        wish = world.etcd.wish
        if old in wish.replicas:
            replicas = [node.disk.directory if each == old else each for each in wish.replicas]
            preferred = node.disk.directory if wish.preferred == old else wish.preferred
            world.etcd.put_wish(replace(wish, replicas=tuple(replicas), preferred=preferred))
        world.at(self._short_or_long(), node.start)

    def _refuse_links(self, node: Node) -> None:
        """Nobody listens there for a while, though the process is well."""
        node.refuses = True
        self._until_healed(self._short_or_long(), lambda: setattr(node, "refuses", False))

    def _jump_clock(self, node: Node) -> None:
        node.clock_ms += self._world.draw(-2_000, 5_000)

    # What an operator does

    def _transfer(self, node: Node) -> None:
        for leader in self._world.nodes:
            if leader.leads():
                leader.run("transfer", node.disk.directory)

    def _drain(self, node: Node) -> None:
        if node.replica is not None:
            self._world.note(lambda: f"{node.name} is drained")
            node.draining = True
            node.run("drain")
            life = node.life
            self._until_healed(
                self._world.draw(1_000, 3_000),
                lambda: self._crash(node) if node.life == life else None,
            )

    def _change_replicas(self, node: Node) -> None:
        """Another one in the place of one, or somebody else preferred."""
        world = self._world
        wish = world.etcd.wish
        spare = [each.disk.directory for each in world.nodes]
        out = [each for each in spare if each not in wish.replicas]
        if out and self._random.random() < 0.7:
            leaves = self._random.choice(wish.replicas)
            replicas = tuple(out[0] if each == leaves else each for each in wish.replicas)
            world.etcd.put_wish(Wish(replicas, self._random.choice([2, 2, 3])))
        else:
            world.etcd.put_wish(replace(wish, preferred=self._random.choice(wish.replicas)))

    def _trim(self, node: Node) -> None:
        node.trim()

    def _short_or_long(self) -> int:
        return self._world.draw(10, 300 if self._random.random() < 0.5 else 2_500)


SEEN_MS = 300  # until a process has found that etcd does not answer


def drawn_directory(name: str, count: int) -> DirectoryId:
    """A new directory is another one, whoever's machine it is on."""
    return DirectoryId(f"{name}{count}")
