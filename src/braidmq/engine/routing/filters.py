"""Filters over topic names, such as ``sport/+/score`` and ``sport/#``, and who subscribed to them.

Filters without wildcards are in a dict by name; the trie has only the others, so its size does not
grow with the clients that each have a topic of their own.
"""

from braidmq.engine.routing.cache import CACHE_BYTES_MAX, BoundedCache
from braidmq.engine.routing.errors import InvalidFilter
from braidmq.engine.routing.topic_trie import TopicTrie
from braidmq.model.filters import misplaced_wildcard

SEPARATOR, SINGLE, MULTI = b"/", b"+", b"#"

FILTER_LEVELS_MAX = 1024
"""A level is a node in memory, and 64 KiB of separators would be 65 536 of them. Gateways may allow
fewer."""


def check_filter(pattern: bytes) -> None:
    """Raises InvalidFilter unless the wildcards are where MQTT has them (MQTT 4.7.1)."""
    if not pattern:
        raise InvalidFilter("a filter must have at least one character")
    levels = pattern.count(SEPARATOR) + 1
    if levels > FILTER_LEVELS_MAX:
        raise InvalidFilter(f"{levels} levels in a filter; at most {FILTER_LEVELS_MAX}")
    problem = misplaced_wildcard(pattern.decode("utf-8", "replace"))
    if problem is not None:
        raise InvalidFilter(problem)


def has_wildcard(pattern: bytes) -> bool:
    return SINGLE in pattern or MULTI in pattern


class FilterIndex:
    """Which subscribers want a topic. A subscriber has a filter or has it not; twice is once."""

    def __init__(self, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        # MQTT-4.7.2-1: a wildcard at the first level does not match names that begin with $.
        self._wild = TopicTrie(SEPARATOR, SINGLE, MULTI, hidden=b"$")
        self._exact: dict[bytes, set[int]] = {}
        self._filters: dict[int, set[bytes]] = {}
        self._cache: BoundedCache[bytes, tuple[int, ...]] = BoundedCache(cache_bytes_max)
        self._cached = self._cache.get

    def __len__(self) -> int:
        return len(self._wild) + sum(map(len, self._exact.values()))

    def subscribe(self, pattern: bytes, subscriber: int) -> bool:
        """False if the subscriber has this filter already."""
        check_filter(pattern)
        own = self._filters.setdefault(subscriber, set())
        if pattern in own:
            return False
        own.add(pattern)
        if has_wildcard(pattern):
            self._wild.add(pattern, subscriber)
        else:
            self._exact.setdefault(pattern, set()).add(subscriber)
        self._invalidate(pattern)
        return True

    def forget_subscriber(self, subscriber: int) -> list[bytes]:
        """Remove all its filters; returns them."""
        own = sorted(self._filters.pop(subscriber, ()))
        for pattern in own:
            self._remove(pattern, subscriber)
        return own

    def _remove(self, pattern: bytes, subscriber: int) -> None:
        if has_wildcard(pattern):
            self._wild.remove(pattern, subscriber)
        else:
            named = self._exact[pattern]
            named.remove(subscriber)
            if not named:
                del self._exact[pattern]
        self._invalidate(pattern)

    def _invalidate(self, pattern: bytes) -> None:
        """A filter without wildcards concerns one topic, and others any number of them."""
        if has_wildcard(pattern):
            self._cache.clear()
        else:
            self._cache.discard(pattern)

    def match(self, topic: bytes) -> tuple[int, ...]:
        """Subscribers with a filter that matches, distinct and ascending."""
        found = self._cached(topic)
        if found is None:
            found = self._find(topic)
            self._cache.put(topic, found, key_bytes=len(topic), targets=len(found))
        return found

    def _find(self, topic: bytes) -> tuple[int, ...]:
        named = self._exact.get(topic)
        wild = self._wild.match(topic)
        return tuple(sorted(named.union(wild))) if named else wild
