"""Deliveries of a channel that wait for an answer: delivery tags ↔ runs of messages.

Tags rise without gaps and a run's offsets do too, so a run is three numbers however many messages
it has.
"""

from bisect import bisect_right
from collections.abc import Iterator

from braidmq.engine.topics import Consumer, PartitionView


class UnackedRun:
    """Not a tuple: mypyc makes the fields of a class fast, and there are some for every answer."""

    __slots__ = ("at_ms", "consumer", "first_tag", "last_tag", "start", "view")

    def __init__(
        self,
        first_tag: int,
        last_tag: int,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        at_ms: int = 0,
    ) -> None:
        self.first_tag = first_tag
        self.last_tag = last_tag
        self.consumer = consumer
        self.view = view
        self.start = start
        """Offset of the first message."""
        self.at_ms = at_ms
        """When it was delivered."""

    def part(self, first_tag: int, last_tag: int) -> "UnackedRun":
        start = self.start + first_tag - self.first_tag
        return UnackedRun(first_tag, last_tag, self.consumer, self.view, start, self.at_ms)

    @property
    def stop(self) -> int:
        return self.start + self.last_tag - self.first_tag + 1


class Unacked:
    def __init__(self) -> None:
        self._runs: list[UnackedRun] = []

    def __len__(self) -> int:
        return sum(run.last_tag - run.first_tag + 1 for run in self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[UnackedRun]:
        return iter(self._runs)

    @property
    def oldest_ms(self) -> int | None:
        """When the delivery that waits longest was made."""
        return self._runs[0].at_ms if self._runs else None

    def add(self, run: UnackedRun) -> None:
        self._runs.append(run)

    def put_back(self, runs: list[UnackedRun]) -> None:
        """Answers that were taken back: their tags wait again."""
        self._runs = sorted([*self._runs, *runs], key=lambda run: run.first_tag)

    def take_all(self) -> list[UnackedRun]:
        runs, self._runs = self._runs, []
        return runs

    def take_through(self, tag: int) -> list[UnackedRun] | None:
        """All up to and including ``tag``; None when ``tag`` itself is not waiting."""
        at = self._find(tag)
        if at is None:
            return None
        run = self._runs[at]
        if tag == run.last_tag:
            taken, self._runs = self._runs[: at + 1], self._runs[at + 1 :]
            return taken
        taken = [*self._runs[:at], run.part(run.first_tag, tag)]
        self._runs[: at + 1] = [run.part(tag + 1, run.last_tag)]
        return taken

    def are_together(self, tag: int, later: int) -> bool:
        """Whether ``later`` is behind ``tag`` and all between wait; a quick look, that may miss."""
        if not self._runs:
            return False
        run = self._runs[0]
        return run.first_tag <= tag < later <= run.last_tag

    def take(self, first: int, last: int) -> tuple[list[UnackedRun], int | None]:
        """Those from ``first`` to ``last``; the lowest tag that is not waiting ends it."""
        taken: list[UnackedRun] = []
        while first <= last:
            at = self._find(first)
            if at is None:
                return taken, first
            run = self._runs[at]
            until = min(last, run.last_tag)
            taken.append(run.part(first, until))
            rest = []
            if run.first_tag < first:
                rest.append(run.part(run.first_tag, first - 1))
            if until < run.last_tag:
                rest.append(run.part(until + 1, run.last_tag))
            self._runs[at : at + 1] = rest
            first = until + 1
        return taken, None

    def take_within(self, first: int, last: int) -> list[UnackedRun]:
        """Those between that are waiting, whichever they are."""
        taken: list[UnackedRun] = []
        for run in list(self._runs):
            low, high = max(first, run.first_tag), min(last, run.last_tag)
            if low <= high:
                taken += self.take(low, high)[0]
        return taken

    def renew(self, first: int, last: int, now_ms: int) -> list[UnackedRun]:
        """The same, and they go on waiting, as if they were delivered now."""
        found: list[UnackedRun] = []
        for run in self._runs:
            low, high = max(first, run.first_tag), min(last, run.last_tag)
            if low <= high:
                run.at_ms = now_ms
                found.append(run.part(low, high))
        return found

    def take_offsets(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int
    ) -> list[UnackedRun]:
        """Deliveries to a consumer of what stands at some offsets."""
        taken: list[UnackedRun] = []
        for run in list(self._runs):
            low, high = max(start, run.start), min(stop, run.stop)
            if run.consumer is consumer and run.view is view and low < high:
                first = run.first_tag + low - run.start
                taken += self.take(first, first + high - low - 1)[0]
        return taken

    def _find(self, tag: int) -> int | None:
        if self._runs and self._runs[0].first_tag <= tag <= self._runs[0].last_tag:
            return 0  # most are answered in the order they came
        at = bisect_right(self._runs, tag, key=lambda run: run.first_tag) - 1
        if at < 0 or self._runs[at].last_tag < tag:
            return None
        return at
