"""Logins for an event loop: Argon2 runs in threads, and equal logins under way share one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from braidmq.model.errors import BraidError, Kind, NotAuthenticated
from braidmq.security.accounts import Accounts, Attempt, is_loopback
from braidmq.security.passwords import Password, PasswordHash, hash_password
from braidmq.security.records import User
from braidmq.security.token_logins import TokenLogins

THREADS = 2
"""A stranger's guesses keep this many cores busy at most, and 19 MiB of memory for each."""

WAITING_MAX = 256
"""About four seconds of work: whoever would wait longer is told to come back."""


class TooManyLogins(BraidError):
    kind = Kind.REFUSED
    code = "too-many-logins"
    remedy = "Try again in a few seconds"


class Logins:
    """``tokens``: those that are taken for passwords; without it none are."""

    def __init__(self, accounts: Accounts, tokens: TokenLogins | None = None) -> None:
        self._accounts = accounts
        self.tokens = tokens
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="braid-login")
        self._running: dict[bytes, asyncio.Future[bool]] = {}

    async def authenticate(self, name: str, password: Password, now_ms: int, host: str) -> User:
        """Raises as ``Accounts.finish`` does, TooManyLogins and TooManyFailures."""
        if self.tokens is not None and self.tokens.is_token(password):
            return await self.by_token(name, password, now_ms, host)
        attempt = self._begin(name, password, now_ms, host)
        if attempt.outcome is None:
            attempt.outcome = await self._verify(attempt)
        return self._finish(attempt, now_ms, host)

    def recognise(self, name: str, password: Password, now_ms: int, host: str) -> User | None:
        """Who was verified a short while ago, without a thread; None says that ``authenticate``
        has to find out. Raises as that does."""
        if self.tokens is not None and self.tokens.is_token(password):
            return self._recognise_token(self.tokens, name, password, now_ms, host)
        attempt = self._begin(name, password, now_ms, host)
        return None if attempt.outcome is None else self._finish(attempt, now_ms, host)

    async def by_token(self, name: str, token: Password, now_ms: int, host: str) -> User:
        """``token`` is one, or nobody's. Raises as ``authenticate`` does."""
        tokens = self.tokens
        if tokens is None:
            raise NotAuthenticated("no tokens are taken here")
        found = self._recognise_token(tokens, name, token, now_ms, host)
        if found is not None:
            return found
        try:
            return await tokens.authenticate(name, token, is_loopback(host))
        except NotAuthenticated:
            self._failed(name, now_ms, host)
            raise

    def _recognise_token(
        self, tokens: TokenLogins, name: str, token: Password, now_ms: int, host: str
    ) -> User | None:
        loopback = is_loopback(host)
        self._accounts.failed_logins.require_calm(name, host, now_ms, loopback=loopback)
        try:
            found = tokens.recognise(name, token, loopback)
        except NotAuthenticated:
            self._failed(name, now_ms, host)
            raise
        if found is not None:
            self._accounts.failed_logins.succeeded(name, host)
        return found

    def _failed(self, name: str, now_ms: int, host: str) -> None:
        self._accounts.failed_logins.failed(name, host, now_ms, loopback=is_loopback(host))

    def _begin(self, name: str, password: Password, now_ms: int, host: str) -> Attempt:
        loopback = is_loopback(host)
        self._accounts.failed_logins.require_calm(name, host, now_ms, loopback=loopback)
        return self._accounts.begin(name, password, now_ms, loopback)

    def _finish(self, attempt: Attempt, now_ms: int, host: str) -> User:
        try:
            found = self._accounts.finish(attempt, now_ms)
        except NotAuthenticated:
            self._failed(attempt.name, now_ms, host)
            raise
        self._accounts.failed_logins.succeeded(attempt.name, host)
        return found

    def has_ended(self, user: User) -> str:
        """Why who logged in with a token would not be let in any more; empty if it would."""
        return "" if self.tokens is None else self.tokens.has_ended(user)

    def certified(self, name: str, loopback: bool) -> User:
        """Who showed a certificate that stands for ``name``. Raises as ``authenticate`` does."""
        return self._accounts.certified(name, loopback)

    async def hash(self, password: Password) -> PasswordHash:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, hash_password, password)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _verify(self, attempt: Attempt) -> bool:
        running = self._running.get(attempt.digest)
        if running is None:
            if len(self._running) >= WAITING_MAX:
                raise TooManyLogins(f"{WAITING_MAX} logins are being checked already")
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, attempt.verify)
            self._running[attempt.digest] = running
            running.add_done_callback(partial(self._ended, attempt.digest))
        # Shielded: others may wait for it too, and one of them may give up.
        return await asyncio.shield(running)

    def _ended(self, digest: bytes, _: asyncio.Future[bool]) -> None:
        del self._running[digest]
