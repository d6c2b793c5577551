"""Bindings, and what makes two of them the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from braidmq.engine.routing.errors import InvalidArgument

Arguments = Mapping[str, object]
Frozen = tuple[object, ...]

NO_ARGUMENTS: Arguments = MappingProxyType({})


def no_arguments() -> Arguments:
    """For dataclasses, which take a mapping as a default only from a function."""
    return NO_ARGUMENTS


class Destination(NamedTuple):
    """Where a binding leads: a topic, or one more exchange."""

    kind: Literal["topic", "exchange"]
    name: str


def topic(name: str) -> Destination:
    return Destination("topic", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


def frozen(value: object) -> Frozen:
    """A value as something hashable that is equal only for the same value of the same type.

    Python finds 1, 1.0 and True equal; as arguments on the wire they are three different things.
    """
    if isinstance(value, str | int | bytes):
        return (type(value).__name__, value)  # nearly all of them: past the slow question below
    if isinstance(value, Mapping):
        return ("table", *((name, frozen(value[name])) for name in sorted(value)))
    if isinstance(value, list | tuple):
        return ("list", *(frozen(item) for item in value))
    if isinstance(value, bytearray | memoryview):
        return ("bytes", bytes(value))
    if isinstance(value, float):
        return ("float", repr(value))  # NaN is not equal to itself, and its text is
    try:
        hash(value)
    except TypeError:
        raise InvalidArgument(f"an argument can't be a {type(value).__name__}") from None
    return (type(value).__name__, value)


@dataclass(frozen=True, slots=True)
class Binding:
    """Made once: the same source, destination, key and arguments are the same binding."""

    source: str
    destination: Destination
    key: bytes
    arguments: Arguments = field(default_factory=no_arguments, compare=False)
    frozen_arguments: Frozen = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False, compare=False)
    """It is looked up in many tables, and an exchange may have very many of them."""

    def __post_init__(self) -> None:
        copied = MappingProxyType(dict(self.arguments)) if self.arguments else NO_ARGUMENTS
        known = frozen(copied)
        object.__setattr__(self, "arguments", copied)
        object.__setattr__(self, "frozen_arguments", known)
        object.__setattr__(self, "_hash", hash((self.source, self.destination, self.key, known)))

    def __hash__(self) -> int:
        return self._hash
