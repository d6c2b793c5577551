"""What clients did and saw, from which the checker judges.

A message is ``strand.publisher.number.filling``: every strand of traffic has publishers, which
number what they send from 0 on. So a history is a few columns of integers, and a body says by
itself whether it came through whole. Times are nanoseconds of the system's monotonic clock, which
clients and lab share.
"""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

FILLING = tuple(b"x" * (size * size // 16 if size % 64 else 4096) for size in range(128))
"""Mostly small, now and then a page: records of one size would meet file boundaries in few ways."""

NOWHERE = -1


class Fate(IntEnum):
    UNKNOWN = 0
    """Sent, and the answer never came: it may be there or not."""
    CONFIRMED = 1
    ABORTED = 2
    """Its transaction was aborted, and that was answered."""


def body_of(strand: str, publisher: int, number: int) -> bytes:
    filling = FILLING[(publisher * 31 + number) % len(FILLING)]
    return b"%s.%d.%d.%s" % (strand.encode(), publisher, number, filling)


def parse_body(strand: str, body: bytes) -> tuple[int, int] | None:
    """Publisher and number, or None for what nobody of this strand can have sent."""
    parts = body.split(b".", 3)
    if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
        return None
    publisher, number = int(parts[1]), int(parts[2])
    return (publisher, number) if body == body_of(strand, publisher, number) else None


@dataclass
class Publisher:
    """What one publisher sent, each column indexed by number."""

    sent_ns: "array[int]" = field(default_factory=lambda: array("q"))
    confirmed_ns: "array[int]" = field(default_factory=lambda: array("q"))
    due_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """Nobody may see it before; 0 for most."""
    unit: "array[int]" = field(default_factory=lambda: array("q"))
    """Those of one unit are visible together or not at all; NOWHERE for those on their own."""
    fate: bytearray = field(default_factory=bytearray)

    def send(self, *, delay_ms: int = 0, unit: int = NOWHERE) -> int:
        """The number of a message that is about to be sent."""
        now = time.monotonic_ns()
        self.sent_ns.append(now)
        self.confirmed_ns.append(0)
        self.due_ns.append(now + delay_ms * 1_000_000 if delay_ms else 0)
        self.unit.append(unit)
        self.fate.append(Fate.UNKNOWN)
        return len(self.fate) - 1

    def confirm(self, number: int) -> None:
        self.fate[number] = Fate.CONFIRMED
        self.confirmed_ns[number] = time.monotonic_ns()

    def abort(self, number: int) -> None:
        self.fate[number] = Fate.ABORTED

    def __len__(self) -> int:
        return len(self.fate)

    @property
    def confirmed(self) -> int:
        return self.fate.count(Fate.CONFIRMED)


class Arrival(NamedTuple):
    publisher: int
    number: int
    at_ns: int
    connection: int
    """Counts up with each connection (or drain, or membership) of the reader."""
    place: int
    """Partition and offset in one number, where the reader knows them; else NOWHERE."""


def place_of(partition: int, offset: int) -> int:
    return partition << 48 | offset


Order = Literal["none", "first", "connection", "place", "priority"]


@dataclass(frozen=True)
class Promise:
    """What a reader of a strand is promised."""

    delivered: bool = True
    """It gets every confirmed message."""
    once: bool = False
    """It gets no message twice."""
    order: Order = "none"
    """``first``: whoever sees messages of a publisher for the first time sees them in order.
    ``connection``: in order within each of the reader's connections, repetitions included.
    ``place``: offsets of a publisher's messages rise with their numbers. ``priority``: within a
    connection publishers, which are priorities here, come highest first, each in order."""
    whole_units: bool = False
    """Of a unit all is there or nothing, decided or not."""


class Settled(NamedTuple):
    """From this time on its acknowledgement is promised to be durable."""

    publisher: int
    number: int
    place: int
    """Where known: a message that its publisher sent again is there twice, each for itself."""
    at_ns: int


@dataclass
class Reader:
    """What one reader, or one group of them, was handed."""

    promise: Promise = field(default_factory=Promise)
    arrivals: "array[int]" = field(default_factory=lambda: array("q"))
    """Row after row, as ``settled``: each is added in one step, because several threads do."""
    settled: "array[int]" = field(default_factory=lambda: array("q"))
    highest: dict[int, int] = field(default_factory=dict)
    """The highest number seen of each publisher."""
    strangers: list[str] = field(default_factory=list)
    """Bodies that nobody of this strand can have sent, the first few."""

    def arrived(
        self,
        strand: str,
        body: bytes,
        connection: int = 0,
        place: int = NOWHERE,
    ) -> tuple[int, int] | None:
        found = parse_body(strand, body)
        if found is None:
            if len(self.strangers) < 10:
                self.strangers.append(repr(body[:80]))
            return None
        self.add(Arrival(*found, time.monotonic_ns(), connection, place))
        if found[1] > self.highest.get(found[0], -1):
            self.highest[found[0]] = found[1]
        return found

    def add(self, arrival: Arrival) -> None:
        self.arrivals.extend(arrival)

    def settle(self, publisher: int, number: int, place: int = NOWHERE) -> None:
        self.settled.extend(Settled(publisher, number, place, time.monotonic_ns()))

    def all_settled(self) -> Iterator[Settled]:
        width = len(Settled._fields)
        return map(Settled, *(self.settled[at::width] for at in range(width)))

    def __iter__(self) -> Iterator[Arrival]:
        width = len(Arrival._fields)
        return map(Arrival, *(self.arrivals[at::width] for at in range(width)))

    def __len__(self) -> int:
        return len(self.arrivals) // len(Arrival._fields)


class LatestRead(NamedTuple):
    """Somebody asked for the one value that counts: a retained message, a compacted key."""

    publisher: int
    number: int
    """NOWHERE: there was none."""
    asked_ns: int
    answered_ns: int


class Placed(NamedTuple):
    """Where an answer said that a run of messages went: the unit's, in any order."""

    unit: int
    place: int
    messages: int


@dataclass
class Strand:
    name: str
    publishers: list[Publisher] = field(default_factory=list)
    readers: dict[str, Reader] = field(default_factory=dict)
    latest: list[LatestRead] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What a client met that no kill explains."""
    other_operations: int = 0
    """Confirmed operations that are no publishes: acknowledgements, commits of offsets, …"""

    def new_publishers(self, count: int) -> list[Publisher]:
        self.publishers += [Publisher() for _ in range(count)]
        return self.publishers[-count:]

    def new_reader(self, name: str, promise: Promise) -> Reader:
        reader = self.readers[name] = Reader(promise)
        return reader

    def backlog(self, reader: Reader) -> int:
        """How far the reader is behind the publishers, about."""
        highest = reader.highest
        return sum(
            len(sender) - highest.get(index, -1) - 1 for index, sender in enumerate(self.publishers)
        )

    def body(self, publisher: int, number: int) -> bytes:
        return body_of(self.name, publisher, number)

    def problem(self, what: str) -> None:
        if len(self.problems) < 100:
            self.problems.append(what)

    @property
    def confirmed(self) -> int:
        return sum(each.confirmed for each in self.publishers) + self.other_operations


class Life(NamedTuple):
    """One life of the node and how it ended."""

    started_ns: int
    ended_ns: int
    fault: str
