"""Fetching an identity provider's keys, beside the event loop: from a URL or a file.

One fetch at a time, for all who wait for it. What it finds goes to a ``KeyRing``; what goes wrong
is logged, and the keys there are stay.
"""

import asyncio
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from braidmq.model.clock import Clock
from braidmq.security.jwt_keys import JWKS_BYTES_MAX, BadJwks, Key, KeyRing, keys_from
from braidmq.security.jwt_settings import JwtSettings

logger = logging.getLogger(__name__)

FETCH_S_MAX = 10.0
"""All of it, however slowly a provider answers."""

READ_BYTES = 16 * 1024

Found = tuple[Key, ...] | BadJwks


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Keys come from where the operator said."""


class Jwks:
    """``changed`` is called when the keys are others than before."""

    def __init__(self, settings: JwtSettings, clock: Clock, changed: Callable[[], None]) -> None:
        self.ring = KeyRing()
        self.fetches = self.failures = 0
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetching: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._refresh()

    def replace(self, settings: JwtSettings) -> None:
        """Keys of another place, or for other algorithms, are others."""
        before, self._settings = self._settings, settings
        if (before.jwks, before.allowed) != (settings.jwks, settings.allowed):
            self.ring = KeyRing()
            self._fetching = None  # what is under way is of the former place
        self._refresh()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def may_learn(self) -> bool:
        """Whether to wait for ``learn`` may help with a key that is not known."""
        is_on = self._loop is not None and bool(self._settings.jwks)
        return is_on and (self._fetching is not None or self.ring.may_fetch(self._clock.now_ms()))

    async def learn(self) -> None:
        """Fetch the keys, or wait for who does."""
        if self._fetching is None:
            self._fetch()
        assert self._fetching is not None
        await asyncio.shield(self._fetching)

    def _refresh(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None or not self._settings.jwks:
            return
        self._timer = self._loop.call_later(self._settings.refresh_s, self._refresh)
        if self._fetching is None:
            self._fetch()

    def _fetch(self) -> None:
        loop, settings = self._loop, self._settings
        assert loop is not None
        self.ring.trying(self._clock.now_ms())
        self.fetches += 1
        future: asyncio.Future[None] = loop.create_future()
        self._fetching = future

        def work() -> None:
            found = fetch(settings)
            with suppress(RuntimeError):  # the node may be down meanwhile
                loop.call_soon_threadsafe(self._fetched, future, found)

        # No pool: a node that stops does not wait for a provider.
        threading.Thread(target=work, name="braid-jwks", daemon=True).start()

    def _fetched(self, future: "asyncio.Future[None]", found: Found) -> None:
        if not future.done():
            future.set_result(None)
        if self._fetching is not future:
            return
        self._fetching = None
        if isinstance(found, BadJwks):
            self.failures += 1
            known = len(self.ring.keys or ())
            facts = {"jwks": self._settings.jwks, "reason": str(found), "known": known}
            logger.warning("keys of tokens were not fetched: the known ones stay", extra=facts)
        elif self.ring.took(found):
            named = ", ".join(each.kid or "(no name)" for each in found)
            logger.info("keys of tokens", extra={"jwks": self._settings.jwks, "keys": named[:1000]})
            self._changed()


def fetch(settings: JwtSettings) -> Found:
    """Slow, and touches nothing shared: for a thread."""
    try:
        data = _from_url(settings) if settings.is_url else _from_file(Path(settings.jwks))
        return keys_from(data, settings.allowed)
    except BadJwks as error:
        return error
    except Exception as error:  # of sockets, TLS, HTTP: whatever it is, there are no keys
        return BadJwks(f"{type(error).__name__}: {error}"[:500])


def _from_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(JWKS_BYTES_MAX + 1)


def _from_url(settings: JwtSettings) -> bytes:
    context = ssl.create_default_context(cafile=settings.ca or None)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects)
    until_s = time.monotonic() + FETCH_S_MAX
    data = bytearray()
    request = urllib.request.Request(settings.jwks, headers={"accept": "application/json"})
    with opener.open(request, timeout=FETCH_S_MAX / 2) as response:
        while len(data) <= JWKS_BYTES_MAX and (part := response.read1(READ_BYTES)):
            data += part
            if time.monotonic() > until_s:
                raise BadJwks(f"the answer took longer than {FETCH_S_MAX:.0f} s")
    return bytes(data)
