"""Log-ins that were refused: every one is counted, and as many are logged as a person can read.

Who guesses waits longer and longer: after some failures of a user from an address the next log-in
of that user from there is refused unseen for a second, then for two, four, … So is any log-in from
an address with ten times as many. Never a user as a whole: a stranger could lock it out.
"""

import logging
from collections import Counter, OrderedDict
from typing import Final

from braidmq.logs import FewLines, testify
from braidmq.model.errors import BraidError, Kind

NAME_CHARACTERS_MAX: Final = 64
"""A stranger chooses it, and may choose a long one."""

KNOWN_MAX: Final = 16_384
"""Pairs of user and address, and addresses, that are remembered; the oldest go first."""

FORGOTTEN_MS: Final = 3_600_000
"""Failures count for so long after the last of them."""

ADDRESS_FACTOR: Final = 10
"""An address may have users behind it who have nothing to do with each other."""

logger = logging.getLogger(__name__)


class TooManyFailures(BraidError):
    kind = Kind.REFUSED
    code = "too-many-failed-logins"
    remedy = "Wait, and look at the user name and the password"

    def __init__(self, text: str, wait_ms: int) -> None:
        super().__init__(text)
        self.wait_ms = wait_ms


class Failures:
    __slots__ = ("count", "last_ms", "until_ms")

    def __init__(self) -> None:
        self.count = self.last_ms = self.until_ms = 0


class FailedLogins:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By protocol, since the node started."""
        self.held_back = 0
        """Log-ins that were refused unseen, since the node started."""
        self.free = 0
        """Failures before somebody has to wait; 0: nobody ever does."""
        self.wait_max_s = 300
        self.limit_loopback = False
        self._lines = FewLines(logger, "more logins were refused")
        self._known: OrderedDict[tuple[str, str], Failures] = OrderedDict()
        """By address and user; the user is empty for all of an address."""

    def replace(self, free: int, wait_max_s: int, limit_loopback: bool) -> None:
        """For log-ins from now on."""
        self.free, self.wait_max_s, self.limit_loopback = free, wait_max_s, limit_loopback

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

    # --- who has to wait ---

    def require_calm(self, user: str, host: str, now_ms: int, *, loopback: bool) -> None:
        """Before a password is looked at. Raises TooManyFailures."""
        if not self._known or not self._counts(loopback):
            return
        for key in ((host, ""), (host, user)):
            found = self._known.get(key)
            if found is not None and now_ms < found.until_ms:
                self.held_back += 1
                wait_ms = found.until_ms - now_ms
                raise TooManyFailures(
                    f"{found.count} log-ins failed: the next may come in {wait_ms} ms", wait_ms
                )

    def failed(self, user: str, host: str, now_ms: int, *, loopback: bool) -> None:
        """A password, token or certificate was wrong."""
        if not self._counts(loopback):
            return
        if user:
            self._failed((host, user), self.free, now_ms)
        self._failed((host, ""), self.free * ADDRESS_FACTOR, now_ms)

    def succeeded(self, user: str, host: str) -> None:
        """What that user's failures there were is forgotten; what the address had is not."""
        if self._known and user:
            self._known.pop((host, user), None)

    def _counts(self, loopback: bool) -> bool:
        return self.free > 0 and (self.limit_loopback or not loopback)

    def _failed(self, key: tuple[str, str], free: int, now_ms: int) -> None:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Failures()
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        elif now_ms - found.last_ms > FORGOTTEN_MS:
            found.count = 0
        self._known.move_to_end(key)
        found.count += 1
        found.last_ms = now_ms
        if found.count >= free:
            wait_s = 1 << min(found.count - free, 20)
            found.until_ms = now_ms + 1000 * min(wait_s, self.wait_max_s)
