"""Connections that are over, and whose peers have a moment to read what they were told last.

A socket that is closed with input unread is reset, and then the peer may never see the last words.
So whoever was told something is read on, unheard, until it closes. That is a courtesy: it does not
last, and a crowd of such peers does not keep the files of those who want to connect.
"""

import asyncio
from contextvars import Context
from typing import Protocol

LINGER_S = 3.0
LINGERING_MAX = 256
"""With one more the first of them goes."""


class Closable(Protocol):
    def abort(self) -> None: ...


class Lingering:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_s: float = LINGER_S,
        lingering_max: int = LINGERING_MAX,
    ) -> None:
        self._loop = loop
        self._linger_s = linger_s
        self._lingering_max = lingering_max
        self._until_s: dict[Closable, float] = {}
        """In the order of their ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._context = Context()  # that of whoever came first would be kept until then

    def __len__(self) -> int:
        return len(self._until_s)

    def replace(self, linger_s: float) -> None:
        """So long for whoever comes from now on, and no longer than that for who is here."""
        self._linger_s = linger_s
        over_s = self._loop.time() + linger_s
        for link, until_s in self._until_s.items():
            self._until_s[link] = min(until_s, over_s)
        if self._timer is not None:
            self._timer.cancel()
            self._due()

    def add(self, link: Closable) -> None:
        self._until_s[link] = self._loop.time() + self._linger_s
        if len(self._until_s) > self._lingering_max:
            self._cut(next(iter(self._until_s)))
        if self._timer is None:
            self._arm(self._linger_s)

    def discard(self, link: Closable) -> None:
        """It is closed."""
        self._until_s.pop(link, None)

    def _cut(self, link: Closable) -> None:
        del self._until_s[link]
        link.abort()

    def _due(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for link, until_s in list(self._until_s.items()):
            if until_s > now_s:
                self._arm(until_s - now_s)
                return
            self._cut(link)

    def _arm(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._due, context=self._context)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
