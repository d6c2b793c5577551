"""Who subscribed to what in one namespace, and who gets a message."""

import random
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from braidmq.engine.routing.filters import FilterIndex
from braidmq.engine.topics import Topic
from braidmq.gateways.mqtt.fast_path import Route
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties, encode_properties
from braidmq.wire.mqtt.text import split_share

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.session import Session
    from braidmq.gateways.mqtt.settings import ShareStrategy
    from braidmq.runtime.turns import Turns
    from braidmq.security.accounts import Accounts

MATCHES_MAX = 65_536
"""Topics with one subscriber that are remembered: those with many count for as many, and clients
choose both how many there are and how long a topic is."""

REMEMBERED_BYTES_MAX = 1024
"""Topics longer than this are not remembered."""


class Subscription:
    """One filter of one session, with its options."""

    __slots__ = (
        "filter",
        "identifier",
        "no_local",
        "number",
        "qos",
        "retain_as_published",
        "retain_handling",
        "session",
    )

    def __init__(
        self,
        session: "Session",
        filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None:
        self.session = session
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifier = identifier
        self.number = 0
        """Of a filter that is not shared, in the index."""


class DeliveryOptions:
    """What the subscriptions of one session that match a topic come to: one copy at the highest
    QoS, with the identifiers of all of them (3.3.4)."""

    __slots__ = ("is_part", "local", "properties", "qos", "retain_as_published")

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self.qos = max(each.qos for each in subscriptions)
        self.retain_as_published = any(each.retain_as_published for each in subscriptions)
        identifiers = tuple(each.identifier for each in subscriptions if each.identifier)
        self.properties = b""
        if identifiers:
            self.properties = encode_properties(
                Properties(subscription_identifiers=identifiers), Kind.PUBLISH
            )
        others = [each for each in subscriptions if not each.no_local]
        self.is_part = False
        """Whether this is what is left for messages that the session published itself."""
        self.local: DeliveryOptions | None = self
        if len(others) < len(subscriptions):
            self.local = DeliveryOptions(others) if others else None
            if self.local is not None:
                self.local.is_part = True


class ShareGroup:
    """Sessions that take turns: each message goes to one of them."""

    __slots__ = ("_turn", "filter", "members", "name", "number", "options")

    def __init__(self, name: str, filter: str) -> None:
        self.name = name
        self.filter = filter
        self.members: dict[Session, Subscription] = {}
        self.options: dict[Session, DeliveryOptions] = {}
        self.number = 0
        self._turn = 0

    def pick(
        self, strategy: "ShareStrategy", barred: "Collection[Session]" = ()
    ) -> "tuple[Session, DeliveryOptions] | None":
        """Who is connected goes first; else it waits with one that will come back."""
        members = [each for each in self.members if each not in barred] if barred else self.members
        able = [each for each in members if each.connection is not None]
        able = able or [each for each in members if each.durable]
        if not able:
            return None
        chosen = STRATEGIES[strategy](able, self._turn)
        self._turn += 1
        return chosen, self.options[chosen]


def _least_in_flight(able: "list[Session]", turn: int) -> "Session":
    fewest = min(each.outbox.in_flight for each in able)
    idle = [each for each in able if each.outbox.in_flight == fewest]
    return idle[turn % len(idle)]


STRATEGIES: "dict[ShareStrategy, Callable[[list[Session], int], Session]]" = {
    "round-robin": lambda able, turn: able[turn % len(able)],
    "sticky": lambda able, _turn: able[0],
    "random": lambda able, _turn: random.choice(able),
    "least-in-flight": _least_in_flight,
}


class Match:
    """Everybody who has a subscription that matches one topic, and the right to read it: a filter
    with wildcards may say more than its owner may see."""

    __slots__ = (
        "_barred",
        "_deliveries",
        "_matching",
        "_readers",
        "_topic",
        "bound",
        "bound_at",
        "groups",
        "route",
        "sessions",
    )

    def __init__(self, topic: bytes, found: "Iterable[Subscription | ShareGroup]") -> None:
        self._topic = topic
        self._readers: dict[Session, bool] = {}
        self._matching: dict[Session, list[Subscription]] = {}
        self._barred: dict[ShareGroup, set[Session]] = {}
        self.groups: list[ShareGroup] = []
        for each in found:
            if isinstance(each, ShareGroup):
                self._add_group(each)
            elif self.may_read(each.session):
                self._matching.setdefault(each.session, []).append(each)
        self.sessions = {session: DeliveryOptions(own) for session, own in self._matching.items()}
        self._deliveries: dict[Session, DeliveryOptions | None] = {}
        self.bound: tuple[Topic, ...] = ()
        """Queues of the topic exchange that get it too, while the router's generation is this."""
        self.bound_at = -1
        self.route: Route | None = None
        """The short way there, once somebody looked for it."""

    @property
    def weight(self) -> int:
        """How much it remembers."""
        return max(len(self.sessions) + sum([len(each) for each in self._barred.values()]), 1)

    def _add_group(self, group: ShareGroup) -> None:
        barred = {each for each in group.members if not self.may_read(each)}
        if len(barred) < len(group.members):
            self.groups.append(group)
            self._barred[group] = barred

    def may_read(self, session: "Session") -> bool:
        """Whether the topic may be read by who owns a session, connected or not."""
        answer = self._readers.get(session)
        if answer is None:
            answer = self._readers[session] = session.grants.may_read(self._topic.decode())
        return answer

    def pick(
        self, group: ShareGroup, strategy: "ShareStrategy"
    ) -> "tuple[Session, DeliveryOptions] | None":
        """Who of a group gets the next message."""
        return group.pick(strategy, self._barred[group])

    def delivery(self, session: "Session") -> DeliveryOptions | None:
        """How a queued message goes out; None when the session has unsubscribed since."""
        if not self.groups:
            return self.sessions.get(session)
        if session not in self._deliveries:
            own = list(self._matching.get(session, ()))
            own += [each.members[session] for each in self.groups if session in each.members]
            self._deliveries[session] = DeliveryOptions(own) if own else None
        return self._deliveries[session]


class SubscriptionIndex:
    """The subscriptions of one namespace."""

    def __init__(self, namespace: str, accounts: "Accounts", turns: "Turns") -> None:
        self.namespace = namespace
        self._turns = turns
        self._accounts = accounts
        self._generation = accounts.generation
        self.count = 0
        self.moves = 0
        """How often ``moved`` was called."""
        self.matches: dict[bytes, Match] = {}
        """What was found last for a topic: emptied when a subscription or a permission changes."""
        self._matches_weight = 0
        self._index = FilterIndex()
        self._found: dict[int, Subscription | ShareGroup] = {}
        self._groups: dict[tuple[str, str], ShareGroup] = {}
        self._next = 1

    def add(self, new: Subscription) -> None:
        shared = split_share(new.filter)
        if shared is None:
            new.number = self._enter(new.filter, new)
        else:
            group = self._groups.get(shared)
            if group is None:
                group = self._groups[shared] = ShareGroup(*shared)
                group.number = self._enter(shared.filter, group)
            group.members[new.session] = new
            group.options[new.session] = DeliveryOptions([new])
        self.count += 1
        self._changed()

    def _enter(self, pattern: str, what: Subscription | ShareGroup) -> int:
        number = self._next
        self._index.subscribe(pattern.encode(), number)
        self._next += 1
        self._found[number] = what
        return number

    def remove(self, old: Subscription) -> None:
        shared = split_share(old.filter)
        if shared is None:
            self._leave(old.number)
        else:
            group = self._groups[shared]
            del group.members[old.session], group.options[old.session]
            if not group.members:
                del self._groups[shared]
                self._leave(group.number)
        self.count -= 1
        self._changed()

    def _changed(self) -> None:
        self.matches.clear()
        self._matches_weight = 0
        self.moved()

    def moved(self) -> None:
        """Somebody gets a message who did not, or no more, or in another way."""
        self.moves += 1
        self._turns.changed()

    def _leave(self, number: int) -> None:
        self._index.forget_subscriber(number)
        del self._found[number]

    def match(self, topic: bytes) -> Match:
        if self._generation != self._accounts.generation:
            self._generation = self._accounts.generation
            self._changed()
        match = self.matches.get(topic)
        if match is None:
            match = Match(topic, [self._found[number] for number in self._index.match(topic)])
            if len(topic) <= REMEMBERED_BYTES_MAX:
                self._remember(topic, match)
        return match

    def _remember(self, topic: bytes, match: Match) -> None:
        if self._matches_weight + match.weight > MATCHES_MAX:
            self.matches.clear()
            self._matches_weight = 0
        self._matches_weight += match.weight
        self.matches[topic] = match
