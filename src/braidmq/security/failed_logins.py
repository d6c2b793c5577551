"""Log-ins that were refused: every one is counted, and as many are logged as a person can read."""

import logging
from collections import Counter
from typing import Final

from braidmq.logs import FewLines, testify

NAME_CHARACTERS_MAX: Final = 64
"""A stranger chooses it, and may choose a long one."""

logger = logging.getLogger(__name__)


class FailedLogins:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By protocol, since the node started."""
        self._lines = FewLines(logger, "more logins were refused")

    def note(self, protocol: str, user: str, peer: str, reason: str) -> None:
        """Never with a password: nobody passes one."""
        self.counts[protocol] += 1
        named = user if len(user) <= NAME_CHARACTERS_MAX else user[:NAME_CHARACTERS_MAX] + "…"
        facts: dict[str, object] = {
            "protocol": protocol,
            "user": named,
            "peer": peer,
            "reason": reason,
        }
        self._lines.say("login refused", facts)
        testify("refused", "log in", facts)
