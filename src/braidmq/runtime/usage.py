"""Usage: what was published and delivered, by namespace, protocol and hour.

    usage    hour in hexadecimal \\0 namespace \\0 protocol → [published, bytes, delivered, bytes]

Meters count; once a minute, at the end of an hour and when the node stops what they counted is
added to the row of its hour, all rows in one change of the catalogue. A crash takes what was
counted since: a minute at most. Rows stay for as long as they are to be kept, also those of
namespaces that are gone.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from operator import add, sub
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from braidmq.runtime.meter import Meter
from braidmq.storage.catalogue import Change
from braidmq.storage.store import Store

TABLE: Final = "usage"
HOUR_MS: Final = 3_600_000
ROLL_MS: Final = 60_000

DROPPED_MAX: Final = 1000
"""Rows that leave in one go: there is another in a minute."""

NONE: Final = (0, 0, 0, 0)

Counts = tuple[int, int, int, int]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Counts).decode


class UsageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was published and delivered, by namespace, protocol and hour."""

    days: Annotated[
        int, Meta(ge=1, le=3660, description="How long the figures of an hour are kept.")
    ] = 35
    rows_max: Annotated[
        int,
        Meta(
            ge=100,
            description="Rows that are kept at most, one for each hour, namespace and protocol that"
            " was used; then the oldest leave early.",
        ),
    ] = 50_000


class UsageRow(NamedTuple):
    start_ms: int
    """Of the hour, since 1970."""
    namespace: str
    protocol: str
    published: int
    published_bytes: int
    delivered: int
    delivered_bytes: int


class Usage:
    def __init__(self, store: Store, wall_ms: int, settings: UsageSettings | None = None) -> None:
        self._store = store
        self._settings = settings or UsageSettings()
        self._meters: dict[tuple[str, str], Meter] = {}
        self._rolled: dict[tuple[str, str], Counts] = {}
        """What of each meter is in rows."""
        self._since_ms = wall_ms

    def replace(self, settings: UsageSettings) -> None:
        self._settings = settings

    def meter(self, namespace: str, protocol: str) -> Meter:
        """The one that counts for all clients of a protocol in a namespace."""
        found = self._meters.get((namespace, protocol))
        if found is None:
            found = self._meters[namespace, protocol] = Meter()
        return found

    def totals(self) -> dict[tuple[str, str], int]:
        """Messages by namespace, published (``in``) and delivered (``out``), since the start."""
        found: Counter[tuple[str, str]] = Counter()
        for (namespace, _), meter in self._meters.items():
            found[namespace, "in"] += meter.published
            found[namespace, "out"] += meter.delivered
        return found

    def roll(self, wall_ms: int, *, at_once: bool = False) -> bool:
        """Once a minute, put into rows what was counted; whether anything was."""
        is_over = wall_ms // HOUR_MS != self._since_ms // HOUR_MS
        if not (at_once or is_over or abs(wall_ms - self._since_ms) >= ROLL_MS):
            return False
        hour, self._since_ms = self._since_ms // HOUR_MS, wall_ms
        changes: list[Change] = []
        for name, counted in self._counted():
            key = _key(hour, *name)
            known = self._store.catalogue.get(TABLE, key)
            before = NONE if known is None else _decode(known)
            changes.append((TABLE, key, _encode(tuple(map(add, before, counted)))))
            self._rolled[name] = self._meters[name].counts()
        changes += self._outdated(wall_ms)
        if changes:
            self._store.change(changes)
        return bool(changes)

    def _counted(self) -> Iterator[tuple[tuple[str, str], Counts]]:
        for name, meter in self._meters.items():
            counts = meter.counts()
            before = self._rolled.get(name, NONE)
            if counts != before:
                a, b, c, d = map(sub, counts, before)
                yield name, (a, b, c, d)

    def _outdated(self, wall_ms: int) -> Iterator[Change]:
        """Rows were made in the order of their hours: the oldest come first."""
        table = self._store.catalogue.table(TABLE)
        first = _key(max(wall_ms // HOUR_MS - self._settings.days * 24, 0), "", "")
        crowded = len(table) - self._settings.rows_max
        for number, key in enumerate(islice(table, DROPPED_MAX)):
            if key >= first and number >= crowded:
                return
            yield TABLE, key, None

    def rows(self, from_ms: int = 0) -> Iterator[UsageRow]:
        """All there are from an hour on, by hour, namespace and protocol; what no row has yet is
        counted in. May be gone on with later: what has left meanwhile does not come."""
        hour, first = self._since_ms // HOUR_MS, _key(from_ms // HOUR_MS, "", "")
        live = {_key(hour, *name): counted for name, counted in self._counted()}
        table = self._store.catalogue.table(TABLE)
        for key in sorted(each for each in table.keys() | live.keys() if each >= first):
            value = table.get(key)
            if value is None and key not in live:
                continue
            kept = NONE if value is None else _decode(value)
            counts = map(add, kept, live.get(key, NONE))
            text, namespace, protocol = key.split("\0")
            yield UsageRow(int(text, 16) * HOUR_MS, namespace, protocol, *counts)


def _key(hour: int, namespace: str, protocol: str) -> str:
    return f"{hour:08x}\0{namespace}\0{protocol}"
