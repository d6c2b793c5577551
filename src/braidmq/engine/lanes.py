"""Which lane is served next: weighted lanes and strict levels are one mechanism.

Weighted lanes share by deficit round robin: each round gives a lane as many messages as its weight,
and a lane that is empty forfeits the rest of its turn. A lane with something ready that was not
served for the starvation limit goes first, whatever its weight. Strict levels are the same with the
lowest lane number always first.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.policy import LANE_WEIGHTS, LANES, TopicPolicy

RATE_MS: Final = 10_000
"""Rates are those of about this long."""


class LaneScheduler:
    __slots__ = (
        "_deficits",
        "_lane",
        "_rates",
        "_ready_before",
        "_starvation_ms",
        "_strict",
        "_waiting_since_ms",
        "_weights",
        "last_served_ms",
        "served",
    )

    def __init__(self, policy: TopicPolicy, now_ms: int) -> None:
        self._strict = policy.priority == "strict"
        self._weights = [1] * policy.priority_levels if self._strict else list(LANE_WEIGHTS)
        self._starvation_ms = policy.starvation_ms
        self._deficits = self._weights[:]
        self._lane = 0
        self._ready_before: set[int] = set()
        self._waiting_since_ms = [now_ms] * len(self._weights)
        self._rates = [LaneRate() for _ in self._weights]
        self.last_served_ms: list[int | None] = [None] * len(self._weights)
        """Since the node started, or the topic's lanes changed; None: not once."""
        self.served = [0] * len(self._weights)

    @property
    def weights(self) -> list[int] | None:
        """None where the lowest lane always goes first."""
        return None if self._strict else self._weights

    def pick(
        self, state: DeliveryState, limit: int, now_ms: int, exhausted: Collection[int] = ()
    ) -> tuple[int, int] | None:
        """The lane to serve and how many messages of it at most; None when nothing is ready.
        ``exhausted`` ones have nothing that can go now, and are waiting all the same."""
        ready = state.ready_lanes()
        for lane in ready:
            if lane not in self._ready_before:
                # An empty lane was not starving: its wait begins when it has something.
                self._waiting_since_ms[lane] = max(self._waiting_since_ms[lane], now_ms)
        self._ready_before = set(ready)
        if exhausted:
            ready = [lane for lane in ready if lane not in exhausted]
        if not ready:
            return None
        if self._strict:
            return ready[0], limit
        starved = self._starved(ready, now_ms)
        if starved is not None:
            return starved, 1
        return self._weighted(ready, limit)

    def _starved(self, ready: list[int], now_ms: int) -> int | None:
        if not self._starvation_ms:
            return None
        since = self._waiting_since_ms
        waiting = [lane for lane in ready if now_ms - since[lane] >= self._starvation_ms]
        return min(waiting, key=lambda lane: since[lane], default=None)

    def _weighted(self, ready: list[int], limit: int) -> tuple[int, int]:
        while True:
            if self._lane in ready and self._deficits[self._lane] > 0:
                return self._lane, min(limit, self._deficits[self._lane])
            self._lane += 1
            if self._lane == len(self._weights):
                self._lane = 0
                self._deficits = self._weights[:]

    def served_from(self, lane: int, count: int, now_ms: int) -> None:
        self._deficits[lane] -= count
        self._waiting_since_ms[lane] = now_ms
        self.last_served_ms[lane] = now_ms
        self.served[lane] += count
        self._rates[lane].add(count, now_ms)

    def rate(self, lane: int, now_ms: int) -> float:
        """Messages of a lane that were handed out in a second, of late."""
        return self._rates[lane].per_second(now_ms)


class Lane(NamedTuple):
    """How a lane of a partition is doing, for one subscription."""

    name: str
    weight: int | None
    ready: int
    in_flight: int
    served: int
    per_second: float
    last_served_ms: int | None


def lanes_of(state: DeliveryState, scheduler: LaneScheduler, now_ms: int) -> Iterator[Lane]:
    """Of levels, of which there may be 256, only those that are or were in use."""
    weights, levels = scheduler.weights, len(scheduler.served)
    for lane, served in enumerate(scheduler.served):
        ready, in_flight = state.lane_ready(lane), state.lane_in_flight(lane)
        if weights is not None or ready or in_flight or served:
            yield Lane(
                LANES[lane] if weights is not None else str(levels - 1 - lane),
                None if weights is None else weights[lane],
                ready,
                in_flight,
                served,
                scheduler.rate(lane, now_ms),
                scheduler.last_served_ms[lane],
            )


class LaneRate:
    """Counts of this period and of the one before, which fades as this one goes on."""

    __slots__ = ("_before", "_count", "_period")

    def __init__(self) -> None:
        self._period = self._count = self._before = 0

    def add(self, count: int, now_ms: int) -> None:
        self._turn_to(now_ms)
        self._count += count

    def per_second(self, now_ms: int) -> float:
        self._turn_to(now_ms)
        gone = now_ms % RATE_MS / RATE_MS
        return (self._count + self._before * (1 - gone)) * 1000 / RATE_MS

    def _turn_to(self, now_ms: int) -> None:
        period = now_ms // RATE_MS
        if period != self._period:
            self._before = self._count if period == self._period + 1 else 0
            self._count = 0
            self._period = period
