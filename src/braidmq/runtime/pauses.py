"""When the node could not run: stopped by a signal or a debugger, frozen with its container, asleep
with the machine. Peers went on meanwhile, and what they said in time waits in their sockets.

Nobody's silence counts until that is read: keep alives, heartbeats, sessions of group members,
times to answer. ``NodeLoop`` and the gateways ask here before they look at any of them.

After some pauses in a row it counts for a while, come what may. A node that is so slow that it
looks paused all the time, by its load or by what somebody sends it, would otherwise never miss
anybody.
"""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

PAUSE_S = 2.0
"""The loop looks at the time at least twice a second."""

BEAT_S = 1.0
"""How often gateways look at who is silent."""

IN_A_ROW_MAX = 5
IN_A_ROW_S = 10.0
"""So many pauses are believed in with less time than this between them."""

COUNTS_S = 1.5 * BEAT_S
"""After those, for so long, none is. Timers run in the order of their times, so that all have
looked once, however long a round of the loop takes."""

READS = 20
READ_EVERY_S = 0.025
"""How long is read before time counts again. What waits is there already, so it is rounds of the
loop that are needed: to accept, to read, to handle, and more for those who have sent much."""


class Pauses:
    def __init__(self, loop: asyncio.AbstractEventLoop, when_over: Callable[[], None]) -> None:
        self._loop = loop
        self._when_over = when_over
        self._seen_s = loop.time()
        self._reads_left = 0
        self._in_a_row = 0
        self._over_s = self._seen_s
        self._timer: asyncio.TimerHandle | None = None

    def is_catching_up(self, now_s: float) -> bool:
        """Whether what peers said while the node could not run is still being read."""
        gap_s, self._seen_s = now_s - self._seen_s, max(now_s, self._seen_s)
        if gap_s > PAUSE_S and self._timer is None:
            logger.warning(
                "the node could not run; what peers said meanwhile is read before time-outs count",
                extra={"for_s": round(gap_s, 1)},
            )
            is_next = now_s - gap_s - self._over_s <= IN_A_ROW_S
            self._in_a_row = self._in_a_row + 1 if is_next else 1
            self._reads_left = READS
            self._timer = self._loop.call_later(READ_EVERY_S, self._read)
        return self._reads_left > 0

    def _read(self) -> None:
        self._reads_left -= 1
        if self._reads_left:
            self._timer = self._loop.call_later(READ_EVERY_S, self._read)
        else:
            self._over_s = self._seen_s = self._loop.time()
            self._timer = None
            if self._in_a_row == IN_A_ROW_MAX:
                self._timer = self._loop.call_later(COUNTS_S, self._counted)
            self._when_over()

    def _counted(self) -> None:
        self._in_a_row, self._timer = 0, None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
