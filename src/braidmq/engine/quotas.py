"""What namespaces may have: topics, connections, storage, …; who asks for more is told which quota.

One namespace's use never counts for another's. What there is of a thing is counted by who has it,
when somebody asks for more of it in a namespace that limits it: nothing is counted for those that
do not. Storage is added up as it is published to, and counted anew when that says it is used up,
and by ``look``.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from braidmq.engine.errors import LimitReached

STORAGE: Final = "max_storage_bytes"

WARN_AT: Final = 0.8
CALM_BELOW: Final = 0.75
"""A warning is not said again until less than this was in use."""

LOOKED_AT_ONCE: Final = 2
"""Namespaces: to count what one has may take a look at all topics of the node."""

Count = Callable[[str], int]
"""How much a namespace has."""

logger = logging.getLogger(__name__)


class QuotaUse(NamedTuple):
    quota: str
    limit: int
    used: int

    @property
    def is_near(self) -> bool:
        return self.used >= WARN_AT * self.limit


class Quotas:
    def __init__(self) -> None:
        self.limits_storage = False
        """Whether any namespace does: else nobody who publishes asks."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """By namespace and quota."""
        self._limits: dict[str, Mapping[str, int]] = {}
        self._counts: dict[str, Count] = {}
        self._stored: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        """In which look the storage of a namespace was counted last."""
        self._looks = 0
        self._next: deque[str] = deque()
        """Namespaces, in the order in which they are looked at."""
        self._warned: set[tuple[str, str]] = set()

    def count_by(self, quota: str, count: Count) -> None:
        """Who has these things says how many."""
        self._counts[quota] = count

    def set(self, namespace: str, limits: Mapping[str, int]) -> None:
        """All that it has from now on: what is there stays, above them, too."""
        if limits:
            self._limits[namespace] = dict(limits)
        else:
            self._limits.pop(namespace, None)
        self._stored.pop(namespace, None)
        self._counted.pop(namespace, None)
        if STORAGE in limits:
            self._count_stored(namespace)
        self._next = deque(self._limits)
        self.limits_storage = bool(self._stored)
        self._warned = {each for each in self._warned if each[0] != namespace}

    def require(self, namespace: str, quota: str, more: int = 1) -> None:
        """Raises LimitReached."""
        limits = self._limits.get(namespace)
        limit = None if limits is None else limits.get(quota)
        if limit is not None and self._counts[quota](namespace) + more > limit:
            raise self._reached(namespace, quota, limit)

    def store(self, namespace: str, size: int) -> None:
        """So many bytes are about to be stored. Raises LimitReached."""
        stored = self._stored.get(namespace)
        if stored is None:
            return
        limit = self._limits[namespace][STORAGE]
        if stored + size > limit and self._counted[namespace] != self._looks:
            stored = self._count_stored(namespace)
        if stored + size > limit:
            raise self._reached(namespace, STORAGE, limit)
        self._stored[namespace] = stored + size

    def _count_stored(self, namespace: str) -> int:
        found = self._stored[namespace] = self._counts[STORAGE](namespace)
        self._counted[namespace] = self._looks
        return found

    def _reached(self, namespace: str, quota: str, limit: int) -> LimitReached:
        self.refused[namespace, quota] += 1
        return LimitReached(f"namespace {namespace!r} has reached its quota {quota} of {limit}")

    # --- what is used ---

    def usage(self, namespace: str) -> list[QuotaUse]:
        """Of each quota that it has."""
        limits = self._limits.get(namespace, {})
        return [
            QuotaUse(quota, limit, self.used(namespace, quota)) for quota, limit in limits.items()
        ]

    def used(self, namespace: str, quota: str) -> int:
        if quota == STORAGE and namespace in self._stored:
            return self._stored[namespace]
        return self._counts[quota](namespace)

    def all_usage(self) -> Iterator[tuple[str, QuotaUse]]:
        for namespace in list(self._limits):
            for use in self.usage(namespace):
                yield namespace, use

    def look(self) -> None:
        """Every now and then, at a few of them: count what is stored anew, and warn of what is
        nearly used up."""
        self._looks += 1
        for _ in range(min(LOOKED_AT_ONCE, len(self._next))):
            namespace = self._next.popleft()
            self._next.append(namespace)
            if namespace in self._stored:
                self._count_stored(namespace)
            self._warn(namespace)

    def _warn(self, namespace: str) -> None:
        for use in self.usage(namespace):
            key = (namespace, use.quota)
            if use.is_near and key not in self._warned:
                self._warned.add(key)
                logger.warning(
                    "a quota is nearly used up",
                    extra={"namespace": namespace, **use._asdict()},
                )
            elif use.used < CALM_BELOW * use.limit:
                self._warned.discard(key)
