"""Filters that Spark hands down: what they say of partitions, offsets, times and keys.

They only narrow what is read. Spark applies every one of them again, so a filter that is not
understood here costs time and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from braidmq.storage.reader import Window


@dataclass(frozen=True)
class Wanted:
    window: Window = field(default_factory=Window)
    partitions: frozenset[int] | None = None
    keys: frozenset[bytes] | None = None


def narrowed(filters: Iterable[Filter]) -> Wanted:
    """All filters hold together."""
    wanted = Wanted()
    for each in filters:
        wanted = _narrow(wanted, each)
    return wanted


def _narrow(wanted: Wanted, one: Filter) -> Wanted:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _COLUMNS:
        return wanted
    if isinstance(one, In):
        values: tuple[Any, ...] = tuple(each for each in one.value if each is not None)
    else:
        values = (getattr(one, "value", None),)
    if None in values:
        return wanted
    return _COLUMNS[attribute[0]](wanted, one, values)


def _partition(wanted: Wanted, one: Filter, values: tuple[Any, ...]) -> Wanted:
    if not isinstance(one, EqualTo | EqualNullSafe | In):
        return wanted
    named = frozenset(int(each) for each in values)
    return replace(wanted, partitions=_both(wanted.partitions, named))


def _key(wanted: Wanted, one: Filter, values: tuple[Any, ...]) -> Wanted:
    if not isinstance(one, EqualTo | EqualNullSafe | In):
        return wanted
    named = frozenset(bytes(each) for each in values)
    return replace(wanted, keys=_both(wanted.keys, named))


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _offset(wanted: Wanted, one: Filter, values: tuple[Any, ...]) -> Wanted:
    low, high = _bounds(one, [int(each) for each in values])
    window = wanted.window
    if low is not None:
        window = replace(window, offset_min=max(window.offset_min, low))
    if high is not None:
        window = replace(window, offset_max=min(window.offset_max, high))
    return replace(wanted, window=window)


def _timestamp(wanted: Wanted, one: Filter, values: tuple[Any, ...]) -> Wanted:
    if not all(isinstance(each, datetime) for each in values):
        return wanted
    low, high = _bounds(one, [round(each.timestamp() * 1_000_000) for each in values])
    window = wanted.window
    # Records are stamped in milliseconds.
    if low is not None:
        window = replace(window, time_min_ms=max(window.time_min_ms, -(-low // 1000)))
    if high is not None:
        window = replace(window, time_max_ms=min(window.time_max_ms, -(-high // 1000)))
    return replace(wanted, window=window)


def _bounds(one: Filter, values: list[int]) -> tuple[int | None, int | None]:
    """The lowest that fits, and the first that is too high."""
    if isinstance(one, EqualTo | EqualNullSafe | In):
        return (min(values), max(values) + 1) if values else (None, None)
    if isinstance(one, GreaterThan):
        return values[0] + 1, None
    if isinstance(one, GreaterThanOrEqual):
        return values[0], None
    if isinstance(one, LessThan):
        return None, values[0]
    if isinstance(one, LessThanOrEqual):
        return None, values[0] + 1
    return None, None


_COLUMNS: dict[str, Callable[[Wanted, Filter, tuple[Any, ...]], Wanted]] = {
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "key": _key,
}
