"""Tokens to log in with: one for good, or whatever a program's own function gives."""

import asyncio
import base64
import binascii
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A function is called in a thread, unless it is a coroutine function, whenever a new token is
needed: first, with each new connection, and some time before the last one ends."""

MARGIN = 0.1
MARGIN_S_MAX = 60.0
"""A token is renewed when a tenth of its time is left, or a minute."""


class TokenSource:
    """Keeps the last one while it lasts."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._last = ""
        self._renew_s: float | None = None
        """When the last one is to be renewed, by the wall clock; None: nobody knows its end."""
        self._asking = asyncio.Lock()

    @property
    def renews(self) -> bool:
        return not isinstance(self._token, str)

    async def get(self, *, fresh: bool = False) -> str:
        """``fresh``: for a new log-in, which the last one may not do for any more."""
        if isinstance(self._token, str):
            return self._token
        async with self._asking:
            is_over = self._renew_s is not None and time.time() >= self._renew_s
            if not self._last or is_over or (fresh and self._renew_s is None):
                self._last = await self._ask(self._token)
                self._renew_s = renew_s(self._last, time.time())
            return self._last

    def left_s(self) -> float | None:
        """Until it is time for a new one."""
        return None if self._renew_s is None else max(self._renew_s - time.time(), 0.0)

    @staticmethod
    async def _ask(token: Callable[[], Any]) -> str:
        found = token() if inspect.iscoroutinefunction(token) else await asyncio.to_thread(token)
        return str(await found) if inspect.isawaitable(found) else str(found)


def renew_s(token: str, now_s: float) -> float | None:
    """When a token should be renewed, from what it says itself; None for one that says nothing.
    It is not verified: that is the broker's."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        said = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        ends = msgspec.json.decode(said, type=dict[str, Any]).get("exp")
    except (ValueError, binascii.Error, RecursionError):
        return None
    if not isinstance(ends, int | float):
        return None
    return float(ends) - min((ends - now_s) * MARGIN, MARGIN_S_MAX)
