"""Commits that a group's member leaves to the broker (catalogue row C2).

A member that asks for more has come back for what it was given before: that is done with. It is
committed once an interval, by the group's timer if the member waits that long for its next message.
What it has not come back for is never committed, nor what was delivered anew since.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from braidmq.engine.settling import Settling
from braidmq.engine.topics import Consumer, PartitionView

AUTO_COMMIT_INTERVAL_MS: Final = 5_000


class _Done(NamedTuple):
    consumer: Consumer
    view: PartitionView
    start: int
    stop: int
    attempts: int
    """Which delivery of them the member came back from."""


class AutoCommit:
    """Of one member."""

    __slots__ = ("_done", "_last_ms", "due_ms", "interval_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self.interval_ms = interval_ms
        self.due_ms: int | None = None
        """When there is something to commit."""
        self._last_ms = now_ms
        self._done: list[_Done] = []

    def came_back(self, consumers: Iterable[Consumer], now_ms: int) -> None:
        self._done = [
            _Done(consumer, view, low, high, attempts)
            for consumer in consumers
            if consumer.in_flight
            for view in consumer.subscription.views
            if view.state.in_flight
            for start, stop in view.state.held_by(consumer.id)
            for low, high, attempts in view.state.attempt_runs(start, stop, consumer.id)
        ]
        self.due_ms = max(now_ms, self._last_ms + self.interval_ms) if self._done else None

    def commit(self, settling: Settling, now_ms: int) -> None:
        done, self._done, self.due_ms = self._done, [], None
        if done:
            self._last_ms = now_ms
        for consumer, view, start, stop, attempts in done:
            for low, high, now_at in view.state.attempt_runs(start, stop, consumer.id):
                if now_at == attempts:
                    settling.ack(consumer, view, low, high)
