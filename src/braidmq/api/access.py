"""Who sends a request: HTTP Basic, a token (ours or a JWT), or the certificate of its client."""

import base64
import binascii
from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import HTTPConnection

from braidmq.logs import log_login
from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused, NotAuthenticated, NotFound
from braidmq.security.accounts import GUEST, Accounts, is_loopback
from braidmq.security.logins import Logins
from braidmq.security.permissions import Grants
from braidmq.security.records import ADMINISTRATOR, NOBODY, TokenUser, User, scopes_of
from braidmq.security.token_logins import TokenLogins

PROTOCOL = "http"
CERTIFIED_USER = "certified_user"
"""In the state of a connection: whom the certificate stands for that its client showed."""


class Caller(NamedTuple):
    """Who sent a request."""

    user: User
    is_current: Callable[[], bool]
    """Whether the password or token it came with still lets it in: asked by what takes long."""


class Access:
    def __init__(
        self, accounts: Accounts, logins: Logins, tokens: TokenLogins, clock: Clock
    ) -> None:
        self.accounts = accounts
        self._logins = logins
        self._tokens = tokens
        self._clock = clock

    def nobody(self) -> Caller:
        return Caller(NOBODY, lambda: True)

    def is_local(self, request: HTTPConnection) -> bool:
        return is_loopback(host_of(request))

    async def authenticate(self, request: HTTPConnection) -> Caller:
        """Raises NotAuthenticated or AccessRefused."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        certified = getattr(request.state, CERTIFIED_USER, None)
        if certified is not None and not scheme:
            return self._by_certificate(certified, request)
        if self.accounts.dev and scheme.lower() != "basic":
            return Caller(User(GUEST, frozenset({ADMINISTRATOR})), lambda: True)
        name = ""
        try:
            if scheme.lower() == "bearer":
                user = await self._by_token(secret.strip(), host_of(request))
                return _noted(user, request, "token")
            name, password = basic_credentials(scheme, secret)
            found = await self._by_password(name, password, host_of(request))
            return _noted(found, request, "password")
        except AccessRefused as error:
            # A browser asks without credentials first: that is no attempt to log in.
            if scheme:
                self._note_failure(name, request, error)
            raise

    def _note_failure(self, name: str, request: HTTPConnection, error: AccessRefused) -> None:
        peer = host_of(request) or "?"
        self.accounts.failed_logins.note(PROTOCOL, name, peer, str(error))

    def _by_certificate(self, name: str, request: HTTPConnection) -> Caller:
        try:
            user = self._logins.certified(name, self.is_local(request))
        except AccessRefused as error:
            self._note_failure(name, request, error)
            raise
        return _noted(self._current(user), request, "certificate")

    async def _by_token(self, text: str, host: str) -> Caller:
        now_ms = self._clock.now_ms()
        return self._current(await self._logins.by_token("", text, now_ms, host))

    async def _by_password(self, name: str, password: bytes, host: str) -> Caller:
        now_ms = self._clock.now_ms()
        return self._current(await self._logins.authenticate(name, password, now_ms, host))

    def _current(self, user: User) -> Caller:
        if isinstance(user, TokenUser):
            # A token may be a password, too: then it is still the token that counts.
            return Caller(user, lambda: not self._tokens.has_ended(user))
        stamp = self.accounts.login_stamp(user.name)
        return Caller(user, lambda: self.accounts.login_stamp(user.name) == stamp)

    def can_enter(self, user: User, namespace: str) -> bool:
        return self.accounts.can_enter(user.name, namespace, scopes_of(user))

    def enter(self, user: User, namespace: str) -> Grants:
        """What a user may do in a namespace. Raises NotFound or AccessRefused."""
        if not self.can_enter(user, namespace):
            # Only to administrators: to others it would tell which namespaces there are.
            if user.is_administrator and not self.accounts.has_namespace(namespace):
                raise NotFound(f"there is no namespace {namespace!r}")
            raise AccessRefused(f"user {user.name!r} has no permission on namespace {namespace!r}")
        return self.accounts.grants(user.name, namespace, scopes_of(user))

    def left_s(self, caller: Caller) -> float | None:
        """Until the caller's token ends; None: it does not by itself."""
        user = caller.user
        if not isinstance(user, TokenUser) or user.expires_ms is None:
            return None
        return max(user.expires_ms - self._clock.wall_ms(), 0) / 1000


def _noted(caller: Caller, request: HTTPConnection, by: str) -> Caller:
    log_login(PROTOCOL, caller.user.name, host_of(request) or "?", by)
    return caller


def host_of(request: HTTPConnection) -> str:
    return "" if request.client is None else request.client.host


def basic_credentials(scheme: str, secret: str) -> tuple[str, bytes]:
    """User name and password out of an Authorization header. RFC 7617, 2."""
    if scheme.lower() != "basic":
        raise NotAuthenticated("this request needs HTTP Basic credentials or a token")
    try:
        name, colon, password = base64.b64decode(secret.strip(), validate=True).partition(b":")
        if colon:
            return name.decode(), password
    except (binascii.Error, ValueError):
        pass
    raise NotAuthenticated("the Authorization header can't be read")
