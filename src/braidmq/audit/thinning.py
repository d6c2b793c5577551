"""Log-ins that come in floods: the first few are kept singly, the rest as a number.

As refused log-ins in the log (``logs.FewLines``), but for each address by itself: who guesses
passwords from one address does not hide who does it from another.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from braidmq.audit.events import AuditEvent, Kind

WINDOW_MS: Final = 10_000
OF_ONE_MAX: Final = 10
"""Of one user or address in one window."""
OF_ALL_MAX: Final = 200
"""Of all together: a day of it is 1.7 million lines, which the files of their kind are bounded
for."""

HTTP_QUIET_MS: Final = 15 * 60_000
"""Each request logs in: that the same user still comes from the same address is no news."""
KNOWN_MAX: Final = 10_000

Key = tuple[Kind, str, str]


class Thinning:
    """Of events of log-ins, whose time is an argument."""

    def __init__(self) -> None:
        self._began_ms = -WINDOW_MS
        self._said: Counter[Key] = Counter()
        self._unsaid: Counter[Key] = Counter()
        self._singly: Counter[Kind] = Counter()
        self._known: dict[tuple[str, str], int] = {}

    def take(self, event: AuditEvent) -> Iterator[AuditEvent]:
        """What is to be written now."""
        yield from self._next_window(event.at_ms)
        host = host_of(event.peer)
        if event.kind == "login" and event.protocol == "http" and self._is_known(event, host):
            return
        key = (event.kind, event.user if event.kind == "login" else "", host)
        if self._said[key] >= OF_ONE_MAX or self._singly[event.kind] >= OF_ALL_MAX:
            # A stranger chooses how many there are: those of whom nothing was said are one.
            self._unsaid[key if self._said[key] else (event.kind, "", "")] += 1
            return
        self._said[key] += 1
        self._singly[event.kind] += 1
        yield event

    def rest(self, at_ms: int) -> Iterator[AuditEvent]:
        """Those that were only counted so far."""
        for (kind, user, host), count in self._unsaid.items():
            yield AuditEvent(
                at_ms=at_ms, kind=kind, operation="more log-ins", user=user, peer=host, count=count
            )
        self._said.clear()
        self._singly.clear()
        self._unsaid.clear()

    def _next_window(self, at_ms: int) -> Iterator[AuditEvent]:
        if not 0 <= at_ms - self._began_ms < WINDOW_MS:
            self._began_ms = at_ms
            yield from self.rest(at_ms)

    def _is_known(self, event: AuditEvent, host: str) -> bool:
        pair = (event.user, host)
        if 0 <= event.at_ms - self._known.get(pair, -HTTP_QUIET_MS) < HTTP_QUIET_MS:
            return True
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known.pop(pair, None)
        self._known[pair] = event.at_ms
        return False


def host_of(peer: str) -> str:
    """Without the port, which is another with each connection."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdigit() and (":" not in host or host[-1] == "]") else peer
