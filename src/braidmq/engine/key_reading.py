"""Keys and records that key-ordered delivery looks at, about a megabyte in one go.

How many messages wait, of how many keys, and how large they are, clients choose. So a look at them
has an allowance: when it is used up the look ends, others have their turn, and the next look goes
on with what it knows by then. A key once read is known by its offset, or each look at messages that
can't go yet would read them again.
"""

from collections.abc import Iterator
from typing import Final

from braidmq.engine.key_queues import KeyQueues
from braidmq.engine.key_slots import KeySlots
from braidmq.engine.partitioner import NO_SLOT, key_slots
from braidmq.engine.topics import Consumer, PartitionView
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.partition_log import Run

LOOK_BYTES_MAX: Final = 1 << 20
"""What one look reads, about."""

KEY_WINDOW: Final = 1024
"""How far key-ordered delivery looks ahead for free keys; with priorities, in each lane."""

AHEAD_BYTES: Final = 1 << 16
"""What is read around a message whose key is known already: the next ones may go as well."""


class Allowance:
    """What may still be read in one go."""

    __slots__ = ("exceeded", "left")

    def __init__(self) -> None:
        self.left = LOOK_BYTES_MAX
        self.exceeded = False
        """Whether somebody wanted more."""

    def grants(self) -> bool:
        """Whether there is some left; the last that is read may be longer."""
        if self.left > 0:
            return True
        self.exceeded = True
        return False

    def take(self, run: Run) -> None:
        self.left -= run.batch.value_bytes_between(run.first, run.stop) + run.stop - run.first


class KeyReader:
    """Reads one partition for one look."""

    __slots__ = ("_allowance", "_keys", "_run", "_view")

    def __init__(self, view: PartitionView, keys: KeySlots, allowance: Allowance) -> None:
        self._view = view
        self._keys = keys
        self._allowance = allowance
        self._run: Run | None = None

    def slots(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Offsets and the slots of their keys, as far as the allowance goes."""
        known = self._keys.known_in(self._view.partition.number)
        at = start
        while at < stop:
            slot = known.get(at)
            if slot is not None:
                yield at, slot
                at += 1
                continue
            run = self._read(at, stop, self._allowance.left)
            if run is None:
                return
            found = key_slots(run.batch, run.first, run.stop, KeySlots.SLOTS)
            for index, slot in zip(range(run.first, run.stop), found, strict=True):
                known[run.batch.offset_at(index)] = slot
            at = max(at, run.batch.offset_at(run.first))  # no records stand before it

    def record_at(self, offset: int) -> Run | None:
        """One message; None where the allowance is used up, or it is gone."""
        run = self._run
        if run is None or not (
            run.batch.offset_at(run.first) <= offset <= run.batch.offset_at(run.stop - 1)
        ):
            ahead = min(self._allowance.left, AHEAD_BYTES)
            run = self._read(offset, offset + KEY_WINDOW, ahead)
            if run is None:
                return None
        index = run.batch.find(offset)
        if index >= run.stop or run.batch.offset_at(index) != offset:
            return None
        return Run(run.batch, index, index + 1)

    def _read(self, at: int, stop: int, bytes_max: int) -> Run | None:
        if not self._allowance.grants():
            return None
        found = self._view.log.read(at, bytes_max, stop)
        if not found:
            return None
        run = found[0]
        end = min(run.stop, run.batch.find(stop), run.first + KEY_WINDOW)
        if end <= run.first:
            return None
        self._run = Run(run.batch, run.first, end)
        self._allowance.take(self._run)
        return self._run


def note_waiting(view: PartitionView, keys: KeySlots, allowance: Allowance) -> bool:
    """After a restart: what waits for its retry holds back its key as it did before. Returns
    whether all of it is noted."""
    left = keys.unnoted.get(view.partition.number)
    if left is None:
        return True
    reader = KeyReader(view, keys, allowance)
    while left:
        start, stop = left.pop()
        at = start
        for offset, slot in reader.slots(start, stop):
            if slot != NO_SLOT:
                keys.noted(view.partition.number, offset, slot)
            at = offset + 1
        if allowance.exceeded:
            left.append((at, stop))
            return False
    del keys.unnoted[view.partition.number]
    return True


class KeyLook:
    """One look through a partition whose keys are in order: how far it has come."""

    __slots__ = (
        "_queues",
        "allowance",
        "blocked",
        "exhausted",
        "keys",
        "looks",
        "only",
        "places",
        "reader",
        "view",
    )

    def __init__(
        self, view: PartitionView, keys: KeySlots, only: Consumer | None, allowance: Allowance
    ) -> None:
        self.view = view
        self.keys = keys
        self.only = only
        """The consumer that asks, if one does."""
        self.allowance = allowance
        self.reader = KeyReader(view, keys, allowance)
        self._queues: KeyQueues | None = None
        self.blocked: set[int] = set()
        """Slots of keys whose next message can't go now, and so none of them."""
        self.exhausted: set[int] = set()
        """Lanes that have nothing more that can go now."""
        self.places: dict[int, int] = {}
        self.looks: dict[int, int] = {}

    @property
    def queues(self) -> KeyQueues:
        """Only where the partition has priorities: making them takes a walk through what is
        ready."""
        if self._queues is None:
            self._queues = self.view.state.queue_keys()
        return self._queues

    def left_of(self, lane: int) -> int:
        """How many more messages of a lane are looked at in vain."""
        return KEY_WINDOW - self.looks.get(lane, 0)

    def passed(self, lane: int) -> None:
        """A message was looked at in vain."""
        self.looks[lane] = self.looks.get(lane, 0) + 1

    def reached_next(self) -> None:
        """The message behind the last one of its key may go now: maybe in another lane."""
        found = self.queues.take_next()
        if found is not None:
            lane, offset = found
            self.places[lane] = min(self.places.get(lane, 0), offset)
            self.exhausted.discard(lane)


def ready_runs(lanes: list[OffsetBits], ceiling: int) -> Iterator[tuple[int, int]]:
    """What is ready below an offset, in any lane, by offset."""
    at = 0
    while True:
        found = [run for lane in lanes if (run := lane.run(at, KEY_WINDOW)) is not None]
        if not found:
            return
        start, at = min(found)
        if start >= ceiling:
            return
        yield start, min(at, ceiling)
