"""Kinds of exchange: given a message, which of its bindings' destinations get it.

``KINDS`` has those BraidMQ knows. A router takes any such mapping, so ``{**KINDS, "mine": Mine}``
is all a new kind needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import ClassVar

from braidmq.engine.routing.bindings import (
    NO_ARGUMENTS,
    Arguments,
    Binding,
    Destination,
    Frozen,
    frozen,
    topic,
)
from braidmq.engine.routing.errors import InvalidArgument
from braidmq.engine.routing.rendezvous import Rendezvous
from braidmq.engine.routing.topic_trie import TopicTrie
from braidmq.model.ids import PRIVATE_PREFIX

Fields = Callable[[], Mapping[str, object]]
"""Headers or properties, decoded when called."""

PRIVATE = PRIVATE_PREFIX.encode()
NOWHERE: Collection[Destination] = ()


class Message:
    """What an exchange may look at. Headers and properties are decoded at the first look, once."""

    __slots__ = ("_headers", "_properties", "_read_headers", "_read_properties", "key")

    def __init__(
        self, key: bytes, headers: Fields | None = None, properties: Fields | None = None
    ) -> None:
        self.key = key
        self._read_headers = headers
        self._read_properties = properties
        self._headers: Mapping[str, object] | None = None
        self._properties: Mapping[str, object] | None = None

    @property
    def headers(self) -> Mapping[str, object]:
        if self._headers is None:
            self._headers = self._read_headers() if self._read_headers else NO_ARGUMENTS
        return self._headers

    @property
    def properties(self) -> Mapping[str, object]:
        if self._properties is None:
            self._properties = self._read_properties() if self._read_properties else NO_ARGUMENTS
        return self._properties


class Exchange(ABC):
    """The matching half of an exchange. The router adds each binding once and removes it once."""

    by_key_only: bool = True
    """The same key always goes to the same destinations, so the answer may be kept."""

    def __init__(self, arguments: Arguments) -> None:
        """Raises InvalidArgument for arguments that this kind can't work with."""
        return

    def check(self, binding: Binding) -> None:
        """Raises InvalidArgument for a binding that this kind can't work with."""
        return

    @abstractmethod
    def add(self, binding: Binding) -> None: ...

    @abstractmethod
    def remove(self, binding: Binding) -> None: ...

    @abstractmethod
    def match(self, message: Message) -> Collection[Destination]: ...


class Counted:
    """Destinations, each with the number of bindings that lead to it."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[Destination, int] = {}

    def add(self, destination: Destination) -> None:
        self.counts[destination] = self.counts.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        self.counts[destination] -= 1
        if not self.counts[destination]:
            del self.counts[destination]


class Numbered:
    """Destinations as the integers that kernels know them by, for as long as they are used."""

    __slots__ = ("_counted", "_next", "_numbers", "destinations")

    def __init__(self) -> None:
        self.destinations: dict[int, Destination] = {}
        self._numbers: dict[Destination, int] = {}
        self._counted = Counted()
        self._next = 0

    def take(self, destination: Destination) -> int:
        self._counted.add(destination)
        number = self._numbers.get(destination)
        if number is None:
            number = self._next
            self._next += 1
            self._numbers[destination] = number
            self.destinations[number] = destination
        return number

    def release(self, destination: Destination) -> int:
        number = self._numbers[destination]
        self._counted.remove(destination)
        if destination not in self._counted.counts:
            del self._numbers[destination]
            del self.destinations[number]
        return number


class Default(Exchange):
    """Every topic is bound to it by its name. Whether there is such a topic, the engine knows."""

    def add(self, binding: Binding) -> None:
        raise AssertionError("the default exchange has no bindings")

    remove = add

    def match(self, message: Message) -> Collection[Destination]:
        if message.key.startswith(PRIVATE):
            return NOWHERE  # the broker's own: nobody publishes there by name
        try:
            return (topic(message.key.decode()),)
        except UnicodeDecodeError:
            return NOWHERE  # names are text: no topic has this one


class Direct(Exchange):
    """To the bindings with the message's key."""

    def __init__(self, arguments: Arguments) -> None:
        self._by_key: dict[bytes, Counted] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, Counted()).add(binding.destination)

    def remove(self, binding: Binding) -> None:
        bound = self._by_key[binding.key]
        bound.remove(binding.destination)
        if not bound.counts:
            del self._by_key[binding.key]

    def match(self, message: Message) -> Collection[Destination]:
        bound = self._by_key.get(message.key)
        return bound.counts if bound else NOWHERE


class Fanout(Exchange):
    """To all bindings."""

    def __init__(self, arguments: Arguments) -> None:
        self._bound = Counted()

    def add(self, binding: Binding) -> None:
        self._bound.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._bound.remove(binding.destination)

    def match(self, message: Message) -> Collection[Destination]:
        return self._bound.counts


class Topic(Exchange):
    """To the bindings whose key, a pattern of words, matches the message's key."""

    def __init__(self, arguments: Arguments) -> None:
        self._trie = TopicTrie(b".", b"*", b"#")
        self._numbered = Numbered()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.key, self._numbered.take(binding.destination))

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.key, self._numbered.release(binding.destination))

    def match(self, message: Message) -> Collection[Destination]:
        destinations = self._numbered.destinations
        return [destinations[number] for number in self._trie.match(message.key)]


def comparable(value: object) -> Frozen:
    """A header's value as headers exchanges compare it: 1 and 1.0 are the same number."""
    if isinstance(value, float) and value.is_integer():
        return frozen(int(value))
    return frozen(value)


def wire_name(value: object) -> str:
    """What AMQP calls the type of a value, as RabbitMQ's texts name it."""
    names = {
        bool: "bool",
        int: "signedint",
        float: "double",
        str: "longstr",
        bytes: "binary",
        list: "array",
        dict: "table",
        type(None): "void",
    }
    return names.get(type(value), "longstr")


class HeadersRule:
    """One binding of a headers exchange.

    A value of None asks only for presence. Names that begin with ``x-`` are compared only by the
    ``-with-x`` forms, and ``x-match`` itself never is. With nothing to compare, all matches and any
    does not.
    """

    __slots__ = ("_all", "_present", "_values", "destination")

    FORMS: ClassVar = ("all", "any", "all-with-x", "any-with-x")

    def __init__(self, binding: Binding) -> None:
        form = self.form_of(binding)
        compared = {
            name: value
            for name, value in binding.arguments.items()
            if name != "x-match" and (form.endswith("-with-x") or not name.startswith("x-"))
        }
        self.destination = binding.destination
        self._all = form.startswith("all")
        self._present = {name for name, value in compared.items() if value is None}
        self._values = {
            name: comparable(value) for name, value in compared.items() if value is not None
        }

    @classmethod
    def form_of(cls, binding: Binding) -> str:
        form = binding.arguments.get("x-match", "all")
        if not isinstance(form, str):
            raise InvalidArgument(
                f"Invalid x-match field type {wire_name(form)} (value {form}); expected longstr"
            )
        if form not in cls.FORMS:
            raise InvalidArgument(
                f'Invalid x-match field value <<"{form}">>; '
                f"expected all, any, all-with-x, or any-with-x"
            )
        return form

    def matches(self, headers: dict[str, Frozen]) -> bool:
        names, items = headers.keys(), headers.items()
        if self._all:
            return self._present <= names and self._values.items() <= items
        return not (self._present.isdisjoint(names) and self._values.items().isdisjoint(items))


class Headers(Exchange):
    """To the bindings whose arguments match the message's headers; the key does not count."""

    by_key_only = False

    def __init__(self, arguments: Arguments) -> None:
        self._rules: dict[Binding, HeadersRule] = {}

    def check(self, binding: Binding) -> None:
        HeadersRule.form_of(binding)

    def add(self, binding: Binding) -> None:
        self._rules[binding] = HeadersRule(binding)

    def remove(self, binding: Binding) -> None:
        del self._rules[binding]

    def match(self, message: Message) -> Collection[Destination]:
        if not self._rules:
            return ()
        headers = {name: comparable(value) for name, value in message.headers.items()}
        return {rule.destination for rule in self._rules.values() if rule.matches(headers)}


WEIGHT_MAX = 1_000_000
"""Far beyond any ratio that can be told from traffic, and small enough that sums stay exact."""


class ConsistentHash(Exchange):
    """To one destination, the same for the same hashed value, in proportion to binding keys.

    Hashed is the routing key, or what the exchange's argument ``hash-header`` or ``hash-property``
    names. Several bindings to one destination add up.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._header = self._name(arguments, "hash-header")
        self._property = self._name(arguments, "hash-property")
        if self._header is not None and self._property is not None:
            raise InvalidArgument("hash-header and hash-property exclude each other")
        self.by_key_only = self._header is None and self._property is None
        self._owners = Rendezvous()
        self._numbered = Numbered()
        self._weights: dict[Destination, int] = {}

    @staticmethod
    def _name(arguments: Arguments, argument: str) -> str | None:
        name = arguments.get(argument)
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidArgument(f"{argument} is {name!r}; expected a name")
        return name

    @staticmethod
    def weight_of(binding: Binding) -> int:
        digits = binding.key
        if len(digits) <= len(str(WEIGHT_MAX)) and digits.isdigit():
            weight = int(digits)
            if 1 <= weight <= WEIGHT_MAX:
                return weight
        raise InvalidArgument(
            f"the binding key is {digits!r}; expected a weight from 1 to {WEIGHT_MAX}"
        )

    def check(self, binding: Binding) -> None:
        self.weight_of(binding)

    def add(self, binding: Binding) -> None:
        destination = binding.destination
        number = self._numbered.take(destination)
        weight = self._weights.get(destination, 0) + self.weight_of(binding)
        self._weights[destination] = weight
        self._owners.put(number, self._owner_name(destination), weight)

    def remove(self, binding: Binding) -> None:
        destination = binding.destination
        number = self._numbered.release(destination)
        weight = self._weights[destination] - self.weight_of(binding)
        if weight:
            self._weights[destination] = weight
            self._owners.put(number, self._owner_name(destination), weight)
        else:
            del self._weights[destination]
            self._owners.remove(number)

    @staticmethod
    def _owner_name(destination: Destination) -> bytes:
        return f"{destination.kind}:{destination.name}".encode("utf-8", "surrogatepass")

    def _hashed(self, message: Message) -> bytes:
        if self._header is not None:
            return as_bytes(message.headers.get(self._header))
        if self._property is not None:
            return as_bytes(message.properties.get(self._property))
        return message.key

    def match(self, message: Message) -> Collection[Destination]:
        number = self._owners.choose(self._hashed(message))
        return (self._numbered.destinations[number],) if number >= 0 else NOWHERE


def as_bytes(value: object) -> bytes:
    """Something to hash for any value a header can have. Messages without one stay together."""
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return str(value).encode("utf-8", "surrogatepass")


class Delayed(Exchange):
    """Routes as the kind that its argument ``x-delayed-type`` names; the delay itself, which a
    message asks for in its ``x-delay`` header, is its publisher's and the log's business."""

    def __init__(self, arguments: Arguments) -> None:
        name = arguments.get("x-delayed-type")
        kind = KINDS.get(name) if isinstance(name, str) else None
        if kind is None or kind is Delayed:
            raise InvalidArgument(f"x-delayed-type is {name!r}; expected a kind of exchange")
        self._inner = kind(arguments)
        self.by_key_only = self._inner.by_key_only

    def check(self, binding: Binding) -> None:
        self._inner.check(binding)

    def add(self, binding: Binding) -> None:
        self._inner.add(binding)

    def remove(self, binding: Binding) -> None:
        self._inner.remove(binding)

    def match(self, message: Message) -> Collection[Destination]:
        return self._inner.match(message)


KINDS: Mapping[str, type[Exchange]] = {
    "direct": Direct,
    "fanout": Fanout,
    "topic": Topic,
    "headers": Headers,
    "consistent-hash": ConsistentHash,
    "x-consistent-hash": ConsistentHash,  # as RabbitMQ's plugin calls it
    "x-delayed-message": Delayed,
}
