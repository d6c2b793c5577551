"""Log-ins that were refused: every one is counted, and as many are logged as a person can read.

A stranger may try thousands of passwords a second; the log must not grow with them. Within each
window the first few are logged one by one, the rest as a number when the window is over.
"""

import logging
from collections import Counter
from time import monotonic
from typing import Final

WINDOW_S: Final = 10.0
LINES_MAX: Final = 10
"""Logged singly in one window; then they are only counted."""

NAME_CHARACTERS_MAX: Final = 64
"""A stranger chooses it, and may choose a long one."""

logger = logging.getLogger(__name__)


class FailedLogins:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By protocol, since the node started."""
        self._window_s = -WINDOW_S
        self._lines = 0
        self._unsaid = 0

    def note(self, protocol: str, user: str, peer: str, reason: str) -> None:
        """Never with a password: nobody passes one."""
        self.counts[protocol] += 1
        now_s = monotonic()
        if now_s >= self._window_s + WINDOW_S:
            self._say_rest()
            self._window_s, self._lines = now_s, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return
        self._lines += 1
        named = user if len(user) <= NAME_CHARACTERS_MAX else user[:NAME_CHARACTERS_MAX] + "…"
        logger.warning(
            "login refused",
            extra={"protocol": protocol, "user": named, "peer": peer, "reason": reason},
        )

    def _say_rest(self) -> None:
        if self._unsaid:
            logger.warning("more logins were refused", extra={"count": self._unsaid})
            self._unsaid = 0
