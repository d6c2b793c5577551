"""Messages of a topic as its log has them, read over HTTP: nobody misses them."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from braidmq.cli.api import PAGE, Api, NodeUnreachable
from braidmq.cli.away import Away
from braidmq.cli.units import Position

LOOK_S = 0.2
"""How often a reader that follows looks for more."""

Stored = dict[str, Any]


class Reader:
    """Partition by partition up to where each ends now; with ``follow`` over and over."""

    def __init__(self, api: Api, topic: str, *, follow: bool) -> None:
        self._api = api
        self._topic = topic
        self._follow = follow
        self._away = Away()
        self._starts: dict[int, str] = {}
        self._ends: dict[int, int] = {}
        self._latest: list[Stored] = []
        """What ``--last`` found, before anything that is new."""

    def begin(self, at: Position, last: int | None) -> int:
        """Find the place to begin; how many messages there are from there on, at most."""
        partitions = self._describe()
        self._away.back()
        self._ends = {each["partition"]: each["next_offset"] for each in partitions}
        if last is not None:
            self._latest = self._last(partitions, last)
            self._starts = {number: str(end) for number, end in self._ends.items()}
            return len(self._latest)
        total = 0
        for each in partitions:
            first, end = each["start_offset"], each["next_offset"]
            if isinstance(at, datetime):
                self._starts[each["partition"]] = f"@{int(at.timestamp() * 1000)}"
                total += end - first
                continue
            offset = first if at == "earliest" else end
            if isinstance(at, int):
                offset = min(max(at, first), end)
            self._starts[each["partition"]] = str(offset)
            total += end - offset
        return total

    def messages(self) -> Iterator[Stored]:
        yield from self._latest
        while True:
            for number, end in self._ends.items():
                yield from self._partition(number, None if self._follow else end)
            if not self._follow:
                return
            time.sleep(LOOK_S)

    def _partition(self, number: int, end: int | None) -> Iterator[Stored]:
        while True:
            page = self._page(number)
            # Behind an open transaction nothing can be read yet, whatever there is.
            stop = page["end_offset"] if end is None else min(end, page["end_offset"])
            for message in page["messages"]:
                if message["offset"] >= stop:
                    break
                # From behind it on, should the node go away meanwhile.
                self._starts[number] = str(message["offset"] + 1)
                yield _told(message)
            self._starts[number] = str(max(page["next_offset"], _offset(self._starts[number])))
            if page["next_offset"] >= stop:
                return

    def _page(self, number: int) -> dict[str, Any]:
        while True:
            try:
                if self._away.is_away:
                    self._resume()
                return self._ask(number, self._starts[number])
            except NodeUnreachable:
                if not self._follow:
                    raise
                self._away.wait()

    def _resume(self) -> None:
        """A log that is shorter than what was read of it was made anew."""
        for each in self._describe():
            number = each["partition"]
            if _offset(self._starts.get(number, "0")) > each["next_offset"]:
                self._starts[number] = str(each["start_offset"])
        self._away.back()

    def _describe(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get("topics", self._topic)["partitions"]
        return found

    def _ask(self, number: int, start: str, limit: int = PAGE) -> dict[str, Any]:
        path = ("topics", self._topic, "partitions", number, "messages")
        found: dict[str, Any] = self._api.get(*path, start=start, limit=limit)
        return found

    # --- the last of them ---

    def _last(self, partitions: list[dict[str, Any]], count: int) -> list[Stored]:
        found: list[Stored] = []
        for each in partitions:
            found += self._last_of(each, count)
        found.sort(key=lambda message: (message["timestamp_ms"], message["partition"]))
        return found[-count:]

    def _last_of(self, partition: dict[str, Any], count: int) -> list[Stored]:
        """Further back for as long as there are gaps: what was let go of, or aborted."""
        first, end = partition["start_offset"], partition["next_offset"]
        span = count
        while True:
            at = max(end - span, first)
            found = list(self._between(partition["partition"], at, end))
            if len(found) >= count or at == first:
                return found[-count:]
            span *= 4

    def _between(self, number: int, at: int, end: int) -> Iterator[Stored]:
        while at < end:
            page = self._ask(number, str(at))
            yield from (_told(each) for each in page["messages"] if each["offset"] < end)
            if page["next_offset"] <= at or page["next_offset"] >= page["end_offset"]:
                return
            at = page["next_offset"]


def _offset(start: str) -> int:
    return int(start) if start.isdecimal() else 0


def _told(message: Stored) -> Stored:
    return message if "priority" in message else {**message, "priority": 0}
