"""Which lane is served next: weighted lanes and strict levels are one mechanism.

Weighted lanes share by deficit round robin: each round gives a lane as many messages as its weight,
and a lane that is empty forfeits the rest of its turn. A lane with something ready that was not
served for the starvation limit goes first, whatever its weight. Strict levels are the same with the
lowest lane number always first.
"""

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.policy import LANE_WEIGHTS, TopicPolicy


class LaneScheduler:
    __slots__ = (
        "_deficits",
        "_lane",
        "_ready_before",
        "_starvation_ms",
        "_strict",
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
        self.last_served_ms = [now_ms] * len(self._weights)
        self.served = [0] * len(self._weights)

    def pick(self, state: DeliveryState, limit: int, now_ms: int) -> tuple[int, int] | None:
        """The lane to serve and how many messages of it at most; None when nothing is ready."""
        ready = state.ready_lanes()
        for lane in ready:
            if lane not in self._ready_before:
                # An empty lane was not starving: its wait begins when it has something.
                self.last_served_ms[lane] = max(self.last_served_ms[lane], now_ms)
        self._ready_before = set(ready)
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
        waiting = [
            lane for lane in ready if now_ms - self.last_served_ms[lane] >= self._starvation_ms
        ]
        return min(waiting, key=lambda lane: self.last_served_ms[lane], default=None)

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
        self.last_served_ms[lane] = now_ms
        self.served[lane] += count
