"""Judges a history by what is promised, knowing nothing of how the broker keeps it."""

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from braidmq.testing.crash.history import (
    NOWHERE,
    Arrival,
    Fate,
    LatestRead,
    Life,
    Publisher,
    Reader,
    Settled,
    Strand,
)

EARLY_NS_MAX = 3_000_000
"""The broker counts in whole milliseconds, and a restart rounds two clocks once more."""

Kind = Literal[
    "lost",
    "twice",
    "settled-again",
    "order",
    "early",
    "invented",
    "stale",
    "aborted-visible",
    "half",
    "misplaced",
    "blocked",
    "problem",
]


class Finding(NamedTuple):
    strand: str
    kind: Kind
    text: str


class _Judge:
    def __init__(self, strand: Strand, lives: Sequence[Life]) -> None:
        self.strand = strand
        self._starts = [life.started_ns for life in lives]
        self._lives = lives

    def life(self, at_ns: int) -> str:
        if not at_ns:
            return "never"
        index = bisect.bisect_right(self._starts, at_ns) - 1
        if index < 0:
            return f"at {at_ns}"
        return f"in life {index} ({self._lives[index].fault})"

    def finding(self, kind: Kind, text: str) -> Finding:
        return Finding(self.strand.name, kind, text)

    def message(self, publisher: int, number: int) -> str:
        sender = self.strand.publishers[publisher]
        said = f"message {publisher}.{number}, sent {self.life(sender.sent_ns[number])}"
        if sender.confirmed_ns[number]:
            said += f", confirmed {self.life(sender.confirmed_ns[number])}"
        return said


def check(strand: Strand, lives: Sequence[Life] = ()) -> list[Finding]:
    judge = _Judge(strand, lives)
    found = [judge.finding("problem", text) for text in strand.problems]
    for name, reader in strand.readers.items():
        for rule in _RULES:
            found += rule(judge, name, reader)
    found += _stale(judge)
    found += _misplaced(judge)
    return found


# --- rules for one reader ---


def _invented(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    for text in reader.strangers:
        yield judge.finding("invented", f"{name} got {text}, which nobody sent")
    publishers = judge.strand.publishers
    for each in reader:
        if not _was_sent(publishers, each):
            what = f"{each.publisher}.{each.number}"
            yield judge.finding("invented", f"{name} got {what}, which nobody had sent by then")


def _was_sent(publishers: Sequence[Publisher], arrival: Arrival) -> bool:
    if not arrival.publisher < len(publishers):
        return False
    sender = publishers[arrival.publisher]
    return arrival.number < len(sender) and sender.sent_ns[arrival.number] <= arrival.at_ns


def _known(judge: _Judge, reader: Reader) -> Iterator[Arrival]:
    publishers = judge.strand.publishers
    return (each for each in reader if _was_sent(publishers, each))


def _lost(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    if not reader.promise.delivered:
        return
    seen = {(each.publisher, each.number) for each in reader}
    for index, sender in enumerate(judge.strand.publishers):
        for number, fate in enumerate(sender.fate):
            if fate == Fate.CONFIRMED and (index, number) not in seen:
                yield judge.finding("lost", f"{name} never got {judge.message(index, number)}")


def _twice(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    if not reader.promise.once:
        return
    first: dict[tuple[int, int], Arrival] = {}
    for each in _known(judge, reader):
        before = first.setdefault((each.publisher, each.number), each)
        if before is not each:
            what = judge.message(each.publisher, each.number)
            when = f"{judge.life(before.at_ns)} and {judge.life(each.at_ns)}"
            where = f" (places {before.place:x} and {each.place:x})" if each.place >= 0 else ""
            yield judge.finding("twice", f"{name} got {what}, {when}{where}")


def _settled_again(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    settled = {_copy(each): each.at_ns for each in reader.all_settled()}
    if not settled:
        return
    for each in _known(judge, reader):
        at_ns = settled.get(_copy(each))
        if at_ns is not None and each.at_ns > at_ns:
            what = judge.message(each.publisher, each.number)
            when = f"{judge.life(each.at_ns)}, settled for good {judge.life(at_ns)}"
            yield judge.finding("settled-again", f"{name} got {what}, again {when}")


def _copy(of: Arrival | Settled) -> tuple[int, int, int]:
    return of.publisher, of.number, of.place


def _early(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    for each in _known(judge, reader):
        due_ns = judge.strand.publishers[each.publisher].due_ns[each.number]
        if each.at_ns < due_ns - EARLY_NS_MAX:
            what = judge.message(each.publisher, each.number)
            early_ms = (due_ns - each.at_ns) // 1_000_000
            yield judge.finding("early", f"{name} got {what}, {early_ms} ms before it was due")


def _aborted(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    for each in _known(judge, reader):
        if judge.strand.publishers[each.publisher].fate[each.number] == Fate.ABORTED:
            what = judge.message(each.publisher, each.number)
            yield judge.finding("aborted-visible", f"{name} got {what}, which was aborted")


def _half(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    if not reader.promise.whole_units:
        return
    seen = {(each.publisher, each.number) for each in reader}
    units: defaultdict[int, list[bool]] = defaultdict(list)
    for index, sender in enumerate(judge.strand.publishers):
        for number, unit in enumerate(sender.unit):
            if unit != NOWHERE and sender.fate[number] == Fate.UNKNOWN:
                units[unit].append((index, number) in seen)
    for unit, visible in units.items():
        if any(visible) and not all(visible):
            share = f"{sum(visible)} of {len(visible)}"
            yield judge.finding("half", f"{name} got {share} messages of the undecided unit {unit}")


def _order(judge: _Judge, name: str, reader: Reader) -> Iterator[Finding]:
    rule = _ORDERS[reader.promise.order]
    for later, earlier in rule(_known(judge, reader)):
        what = judge.message(later.publisher, later.number)
        before = f"{earlier.publisher}.{earlier.number}"
        when = judge.life(later.at_ns)
        yield judge.finding("order", f"{name} got {what}, after {before}, {when}")


_Pairs = Iterator[tuple[Arrival, Arrival]]


def _no_order(_arrivals: Iterator[Arrival]) -> _Pairs:
    return iter(())


def _first_order(arrivals: Iterator[Arrival]) -> _Pairs:
    highest: dict[int, Arrival] = {}
    seen: set[tuple[int, int]] = set()
    for each in arrivals:
        if (each.publisher, each.number) in seen:
            continue
        seen.add((each.publisher, each.number))
        before = highest.get(each.publisher)
        if before is not None and each.number < before.number:
            yield each, before
        else:
            highest[each.publisher] = each


def _connection_order(arrivals: Iterator[Arrival]) -> _Pairs:
    last: dict[tuple[int, int], Arrival] = {}
    for each in arrivals:
        before = last.get((each.connection, each.publisher))
        if before is not None and each.number <= before.number:
            yield each, before
        last[each.connection, each.publisher] = each


def _place_order(arrivals: Iterator[Arrival]) -> _Pairs:
    return _first_order(iter(sorted(arrivals, key=lambda each: each.place)))


def _priority_order(arrivals: Iterator[Arrival]) -> _Pairs:
    last: dict[int, Arrival] = {}
    for each in arrivals:
        before = last.get(each.connection)
        if before is not None and (-each.publisher, each.number) <= (
            -before.publisher,
            before.number,
        ):
            yield each, before
        last[each.connection] = each


_ORDERS: dict[str, Callable[[Iterator[Arrival]], _Pairs]] = {
    "none": _no_order,
    "first": _first_order,
    "connection": _connection_order,
    "place": _place_order,
    "priority": _priority_order,
}

_RULES = (_invented, _lost, _twice, _settled_again, _early, _aborted, _half, _order)


# --- rules for the whole strand ---


def _stale(judge: _Judge) -> Iterator[Finding]:
    for read in judge.strand.latest:
        sender = judge.strand.publishers[read.publisher]
        least = _last_confirmed(sender, read.asked_ns)
        most = bisect.bisect_right(sender.sent_ns, read.answered_ns) - 1
        if not least <= read.number <= most:
            yield judge.finding("stale", _stale_text(judge, read, least, most))


def _last_confirmed(sender: Publisher, at_ns: int) -> int:
    """The highest number confirmed by then; NOWHERE for none."""
    for number in range(bisect.bisect_right(sender.sent_ns, at_ns) - 1, -1, -1):
        if sender.fate[number] == Fate.CONFIRMED and sender.confirmed_ns[number] <= at_ns:
            return number
    return NOWHERE


def _stale_text(judge: _Judge, read: LatestRead, least: int, most: int) -> str:
    value = "nothing" if read.number == NOWHERE else f"number {read.number}"
    return (
        f"key {read.publisher} had {value} {judge.life(read.asked_ns)}; "
        f"it was confirmed up to {least} and sent up to {most}"
    )


def _misplaced(judge: _Judge) -> Iterator[Finding]:
    """Where an answer said that messages are, they must be."""
    if not judge.strand.placed:
        return
    unit_at: dict[int, int] = {}
    for reader in judge.strand.readers.values():
        for each in _known(judge, reader):
            if each.place != NOWHERE:
                sender = judge.strand.publishers[each.publisher]
                unit_at[each.place] = sender.unit[each.number]
    for unit, place, count in judge.strand.placed:
        wrong = [at for at in range(place, place + count) if unit_at.get(at) != unit]
        if wrong:
            text = (
                f"{len(wrong)} messages of unit {unit} are not where the answer said ({wrong[0]:x})"
            )
            yield judge.finding("misplaced", text)
