"""Plain-Python twins of the routing kernels and of the router.

Slow and obvious on purpose: nothing is kept between two questions, and nothing is shared with the
code under test but the names of things.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def words_of(text: bytes, separator: bytes) -> list[bytes]:
    return text.split(separator) if text else []


def matches(
    pattern: Sequence[bytes],
    words: Sequence[bytes],
    single: bytes,
    multi: bytes,
    *,
    multi_matches_parent: bool = True,
) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == multi:
        least = 0 if multi_matches_parent else 1
        return any(
            matches(rest, words[n:], single, multi, multi_matches_parent=multi_matches_parent)
            for n in range(least, len(words) + 1)
        )
    if not words or first not in (single, words[0]):
        return False
    return matches(rest, words[1:], single, multi, multi_matches_parent=multi_matches_parent)


def amqp_matches(pattern: bytes, key: bytes) -> bool:
    return matches(words_of(pattern, b"."), words_of(key, b"."), b"*", b"#")


def mqtt_matches(pattern: bytes, topic: bytes) -> bool:
    if topic.startswith(b"$") and pattern[:1] in (b"+", b"#"):
        return False
    return matches(pattern.split(b"/"), topic.split(b"/"), b"+", b"#")


# --- rendezvous ---

MASK = 2**64 - 1


def mixed(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def hash_of(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & MASK
    return mixed(value)


def choose(owners: Mapping[int, tuple[bytes, int]], key: bytes) -> int:
    """``owners`` are ids with name and weight."""

    def cost(owner: int) -> tuple[float, int]:
        name, weight = owners[owner]
        draw = mixed(hash_of(key) ^ hash_of(name))
        return -math.log(((draw >> 11) + 0.5) / 2**53) / weight, hash_of(name)

    return min(owners, key=cost, default=-1)


# --- the router ---


@dataclass
class ModelExchange:
    kind: str
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None
    hash_header: str | None = None


@dataclass
class ModelRouter:
    """Exchanges by name, bindings as a list of (source, kind, destination, key, arguments)."""

    exchanges: dict[str, ModelExchange] = field(default_factory=dict)
    bindings: list[tuple[str, str, str, bytes, dict[str, object]]] = field(default_factory=list)

    def reap(self, losers: set[str]) -> set[str]:
        """Delete auto-delete exchanges among ``losers`` of a binding that have none left."""
        died = set()
        while losers:
            name = losers.pop()
            here = self.exchanges.get(name)
            if here and here.auto_delete and not any(b[0] == name for b in self.bindings):
                died.add(name)
                losers |= self.remove_exchange(name)
        return died

    def remove_exchange(self, name: str) -> set[str]:
        """Returns the sources that lost a binding by it."""
        del self.exchanges[name]
        into = [b for b in self.bindings if b[1:3] == ("exchange", name)]
        self.bindings = [b for b in self.bindings if b not in into and b[0] != name]
        return {b[0] for b in into} - {name}

    def remove_bindings(self, removed: list[tuple[str, str, str, bytes, dict[str, object]]]):
        self.bindings = [b for b in self.bindings if b not in removed]
        return self.reap({b[0] for b in removed})

    def destinations(
        self, name: str, key: bytes, headers: Mapping[str, object]
    ) -> set[tuple[str, str]]:
        if name == "":
            return {("topic", key.decode())}
        here = self.exchanges[name]
        bound = [b for b in self.bindings if b[0] == name]
        if here.kind == "consistent-hash":
            return self.hashed(here, bound, key, headers)
        return {
            (kind, to)
            for _, kind, to, pattern, arguments in bound
            if here.kind == "fanout"
            or (here.kind == "direct" and pattern == key)
            or (here.kind == "topic" and amqp_matches(pattern, key))
            or (here.kind == "headers" and headers_match(arguments, headers))
        }

    def hashed(self, here, bound, key, headers) -> set[tuple[str, str]]:
        weights: dict[tuple[str, str], int] = {}
        for _, kind, to, weight, _ in bound:
            weights[kind, to] = weights.get((kind, to), 0) + int(weight)
        ends = list(weights)
        owners = {n: (f"{end[0]}:{end[1]}".encode(), weights[end]) for n, end in enumerate(ends)}
        value = key
        if here.hash_header is not None:
            value = str(headers.get(here.hash_header, "")).encode()
        chosen = choose(owners, value)
        return {ends[chosen]} if chosen >= 0 else set()

    def resolve(
        self, name: str, key: bytes, headers: Mapping[str, object]
    ) -> tuple[tuple[str, ...], bool]:
        """Grow the set of reached exchanges until nothing is new."""
        reached, topics, via_alternate = {name}, set(), False
        while True:
            before = len(reached)
            for each in list(reached):
                found = self.destinations(each, key, headers)
                topics |= {to for kind, to in found if kind == "topic"}
                reached |= {to for kind, to in found if kind == "exchange"}
                alternate = self.exchanges[each].alternate if each else None
                if not found and (alternate in self.exchanges or alternate == ""):
                    reached.add(alternate)
                    via_alternate = True
            if len(reached) == before:
                return tuple(sorted(topics)), via_alternate


def _kind(value: object) -> object:
    """Integers and floats are one kind, truth values are not numbers."""
    return "number" if type(value) in (int, float) else type(value)


def headers_match(arguments: Mapping[str, object], headers: Mapping[str, object]) -> bool:
    form = arguments.get("x-match", "all")
    verdicts = []
    for name, value in arguments.items():
        if name == "x-match" or (name.startswith("x-") and "-with-x" not in str(form)):
            continue
        there = name in headers
        same = there and _kind(headers[name]) == _kind(value) and headers[name] == value
        verdicts.append(there if value is None else same)
    return all(verdicts) if str(form).startswith("all") else any(verdicts)
