"""Links in the simulator: in order, delayed, held back while a direction is cut, closed by both
ends, reset by the kernel of a process that is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from braidmq.cluster.core import LinkEnd
from braidmq.cluster.messages import Hello, Message

if TYPE_CHECKING:
    from simulator import Node, World


@dataclass(eq=False)
class Link:
    """Opened by ``follower``. Each end may be closed while the other does not know it yet."""

    follower: Node
    leader: Node
    closed: set[str] = field(default_factory=set)
    arrives_ms: dict[str, int] = field(default_factory=dict)
    held: dict[str, list[tuple[Callable[..., None], tuple[object, ...]]]] = field(
        default_factory=dict
    )

    def other(self, node: Node) -> Node:
        return self.leader if node is self.follower else self.follower


class SimulatedNetwork:
    def __init__(self, world: World) -> None:
        self._world = world
        self._links: list[Link] = []

    def connect(self, node: Node, peer: str, hello: Hello) -> None:
        self.disconnect(node, peer)
        leader = self._world.node_of(peer)
        link = Link(node, leader)
        node.links[peer] = link
        self._links.append(link)
        self._transmit(link, node, self._arrive_hello, hello)

    def _arrive_hello(self, link: Link, hello: Hello) -> None:
        leader = link.leader
        if leader.replica is None or leader.refuses:
            if leader.is_on:
                self._transmit(link, leader, self._arrive_end, link.follower, LinkEnd.REFUSED)
            return
        self.disconnect(leader, hello.directory)
        leader.links[hello.directory] = link
        leader.run("on_message", hello.directory, hello)

    def send(self, node: Node, peer: str, message: Message) -> None:
        link = node.links.get(peer)
        if link is not None:
            self._transmit(link, node, self._arrive, link.other(node), node, message)

    def _arrive(self, link: Link, receiver: Node, sender: Node, message: Message) -> None:
        peer = next((name for name, each in receiver.links.items() if each is link), None)
        if peer is not None:
            receiver.run("on_message", peer, message)

    def disconnect(self, node: Node, peer: str, end: LinkEnd = LinkEnd.CLOSED) -> None:
        link = node.links.pop(peer, None)
        if link is None:
            return
        link.closed.add(node.name)
        self._transmit(link, node, self._arrive_end, link.other(node), end)

    def process_ended(self, node: Node) -> None:
        """Its kernel resets what it had open, when the machine is on."""
        for peer, link in list(node.links.items()):
            if node.is_on:
                self.disconnect(node, peer, LinkEnd.RESET)
            else:
                link.closed.add(node.name)
        node.links.clear()

    def _arrive_end(self, link: Link, receiver: Node, end: LinkEnd) -> None:
        peer = next((name for name, each in receiver.links.items() if each is link), None)
        if peer is not None:
            del receiver.links[peer]
            link.closed.add(receiver.name)
            receiver.run("on_link_lost", peer, end)

    def _transmit(
        self, link: Link, sender: Node, action: Callable[..., None], *args: object
    ) -> None:
        receiver = link.other(sender)
        if self._world.is_cut(sender.name, receiver.name):
            link.held.setdefault(sender.name, []).append((action, args))
            return
        world = self._world
        at_ms = world.now_ms + world.draw(*world.profile.link_ms)
        at_ms = max(at_ms, link.arrives_ms.get(sender.name, 0))
        link.arrives_ms[sender.name] = at_ms
        world.at(at_ms - world.now_ms, self._deliver, link, receiver, receiver.life, action, args)

    def _deliver(
        self,
        link: Link,
        receiver: Node,
        life: int,
        action: Callable[..., None],
        args: tuple[object, ...],
    ) -> None:
        if receiver.name in link.closed or receiver.life != life:
            return
        if receiver.is_paused:
            receiver.deferred.append((self._deliver, (link, receiver, life, action, args)))
        else:
            action(link, *args)

    def healed(self) -> None:
        """What was held back goes on its way."""
        self._links = [each for each in self._links if len(each.closed) < 2]
        for link in self._links:
            for sender in (link.follower, link.leader):
                if self._world.is_cut(sender.name, link.other(sender).name):
                    continue
                for action, args in link.held.pop(sender.name, ()):
                    self._transmit(link, sender, action, *args)
