"""Work whose length a client chooses: a slice in each turn, so that others are served between.

Such work is an iterator that does a little before each of its steps and keeps everything true
between two of them. Who asked for it is answered when it has come to its end, or has raised.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

logger = logging.getLogger(__name__)

SLICE_S = 0.005
"""Of each turn, for all such work together: what others wait for it at most, but for one step."""

READ_S = 0.002
"""What was read of one connection is worked on for so long at once: the rest is such work, too.
Whoever sends no more than that is never put off."""

Steps = Iterator[object]
Done = Callable[[Exception | None], None]


class SlicedWork:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Steps, Done]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, steps: Steps, done: Done) -> None:
        self._waiting.append((steps, done))

    def run(self) -> None:
        """One slice. Whoever is not done with it waits behind the others."""
        until = monotonic() + SLICE_S
        while self._waiting:
            steps, done = self._waiting.popleft()
            try:
                is_done = _run_until(steps, until)
            except Exception as error:
                done(error)  # who asked for it answers with that
                continue
            if is_done:
                done(None)
            else:
                self._waiting.append((steps, done))
                return


def _run_until(steps: Steps, until: float) -> bool:
    """Whether it came to its end."""
    return all(monotonic() < until for _ in steps)
