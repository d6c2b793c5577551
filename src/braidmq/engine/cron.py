"""Cron expressions: five fields, and when they come next in a time zone.

minute hour day-of-month month day-of-week: numbers, ``*``, lists, ranges, steps, and the English
names of months and days. Where both days are restricted one of them is enough, as in every cron.

When clocks go forward, a time that does not exist comes as much later as they jump. When they go
back, a time that comes twice counts once, unless the hour is ``*``: then real time counts.
"""

from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DAYS_AHEAD_MAX = 366 * 9
"""February 29 comes again within so many days, even around a year such as 2100."""
MONTH = timedelta(days=31)
SHIFT = timedelta(hours=3)
"""More than clocks are ever moved at once."""


class BadCron(ValueError):
    pass


class Cron(NamedTuple):
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    every_hour: bool

    def after(self, time_ms: int, zone: ZoneInfo) -> int | None:
        """The first time after one, in milliseconds since the epoch; None: never."""
        local = datetime.fromtimestamp(time_ms / 1000, zone).replace(tzinfo=None)
        found = self._next(local)
        if found is None:
            return None
        if _is_steady(local, zone) and _is_steady(found, zone):
            return _ms(found, zone, 0)
        return self._near_a_shift(local, time_ms, zone)

    def _next(self, local: datetime) -> datetime | None:
        """The next time on a clock that nobody moves."""
        day, hour, minute = local.date(), local.hour, local.minute + 1
        last = day + timedelta(days=DAYS_AHEAD_MAX)
        while day < last:
            if day.month not in self.months:
                day, hour = (day.replace(day=1) + MONTH).replace(day=1), -1
                continue
            if self._has(day):
                if hour in self.hours and minute <= self.minutes[-1]:
                    return _at(day, hour, self.minutes[bisect_left(self.minutes, minute)])
                later = bisect_right(self.hours, hour)
                if later < len(self.hours):
                    return _at(day, self.hours[later], self.minutes[0])
            day, hour = day + timedelta(days=1), -1
        return None

    def _near_a_shift(self, local: datetime, time_ms: int, zone: ZoneInfo) -> int | None:
        """Every minute that may come next is looked at: hundreds of times slower, and needed for
        hours a year."""
        day = (local - SHIFT).date()
        for _ in range(DAYS_AHEAD_MAX):
            if self._has(day):
                found = self._first_on(day, local, time_ms, zone)
                if found is not None:
                    return found
            day += timedelta(days=1)
        return None

    def _has(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week

    def _first_on(self, day: date, local: datetime, time_ms: int, zone: ZoneInfo) -> int | None:
        found: list[int] = []
        last: datetime | None = None
        for hour in self.hours:
            for minute in self.minutes:
                at = _at(day, hour, minute)
                if at < local - SHIFT or (last is not None and at > last + SHIFT):
                    continue
                times = [_ms(at, zone, fold) for fold in range(1 + self.every_hour)]
                later = [each for each in times if each > time_ms]
                found += later
                if later and last is None:
                    last = at
        return min(found, default=None)


def _at(day: date, hour: int, minute: int) -> datetime:
    return datetime(day.year, day.month, day.day, hour, minute)


def _is_steady(at: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks are not moved about then."""
    before, after = (each.replace(tzinfo=zone).utcoffset() for each in (at - SHIFT, at + SHIFT))
    return before == after


def _ms(at: datetime, zone: ZoneInfo, fold: int) -> int:
    return int(at.replace(tzinfo=zone, fold=fold).astimezone(UTC).timestamp() * 1000)


def parse(text: str) -> Cron:
    """Raises BadCron."""
    fields = text.lower().split()
    if len(fields) != 5:
        raise BadCron(f"{text!r} has {len(fields)} fields: minute hour day month weekday")
    minutes, hours, days, months, weekdays = (
        _field(fields[0], 0, 59),
        _field(fields[1], 0, 23),
        _field(fields[2], 1, 31),
        _field(fields[3], 1, 12, MONTHS),
        _field(fields[4], 0, 7, DAYS),
    )
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(each % 7 for each in weekdays),
        not fields[2].startswith("*") and not fields[4].startswith("*"),
        len(hours) == 24,
    )


def _field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        step = _number(step_text, 1, high, ()) if "/" in part else 1
        if span == "*":
            first, last = low, high
        else:
            first_text, dash, last_text = span.partition("-")
            first = _number(first_text, low, high, names)
            last = _number(last_text, low, high, names) if dash else first
            if "/" in part and not dash:
                last = high
        if last < first:
            raise BadCron(f"{part!r} ends before it begins")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + low
    if text.isascii() and text.isdecimal() and len(text) < 4 and low <= int(text) <= high:
        return int(text)
    raise BadCron(f"{text[:20]!r} is not a number from {low} to {high}")
