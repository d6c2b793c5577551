"""Who sends a request: HTTP Basic, or a token for machines."""

import base64
import binascii
from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import HTTPConnection

from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused, NotAuthenticated, NotFound
from braidmq.security.accounts import GUEST, Accounts, is_loopback
from braidmq.security.logins import Logins
from braidmq.security.permissions import Grants
from braidmq.security.records import ADMINISTRATOR, User
from braidmq.security.tokens import Tokens

PROTOCOL = "http"
NOBODY = User("")


class Caller(NamedTuple):
    """Who sent a request."""

    user: User
    is_current: Callable[[], bool]
    """Whether the password or token it came with still lets it in: asked by what takes long."""


class Access:
    def __init__(self, accounts: Accounts, logins: Logins, tokens: Tokens, clock: Clock) -> None:
        self.accounts = accounts
        self._logins = logins
        self._tokens = tokens
        self._clock = clock

    def nobody(self) -> Caller:
        return Caller(NOBODY, lambda: True)

    def is_local(self, request: HTTPConnection) -> bool:
        return request.client is not None and is_loopback(request.client.host)

    async def authenticate(self, request: HTTPConnection) -> Caller:
        """Raises NotAuthenticated or AccessRefused."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if self.accounts.dev and scheme.lower() != "basic":
            return Caller(User(GUEST, frozenset({ADMINISTRATOR})), lambda: True)
        name = ""
        try:
            if scheme.lower() == "bearer":
                return self._by_token(secret.strip(), self.is_local(request))
            name, password = basic_credentials(scheme, secret)
            return await self._by_password(name, password, self.is_local(request))
        except AccessRefused as error:
            # A browser asks without credentials first: that is no attempt to log in.
            if scheme:
                peer = "?" if request.client is None else request.client.host
                self.accounts.failed_logins.note(PROTOCOL, name, peer, str(error))
            raise

    def _by_token(self, text: str, loopback: bool) -> Caller:
        user = self._tokens.authenticate(text, self._clock.wall_ms(), loopback)

        def is_current() -> bool:
            return self._tokens.is_valid(text, self._clock.wall_ms())

        return Caller(user, is_current)

    async def _by_password(self, name: str, password: bytes, loopback: bool) -> Caller:
        user = await self._logins.authenticate(name, password, self._clock.now_ms(), loopback)
        stamp = self.accounts.login_stamp(name)
        return Caller(user, lambda: self.accounts.login_stamp(name) == stamp)

    def enter(self, user: User, namespace: str) -> Grants:
        """What a user may do in a namespace. Raises NotFound or AccessRefused."""
        if not self.accounts.can_enter(user.name, namespace):
            # Only to administrators: to others it would tell which namespaces there are.
            if user.is_administrator and not self.accounts.has_namespace(namespace):
                raise NotFound(f"there is no namespace {namespace!r}")
            raise AccessRefused(f"user {user.name!r} has no permission on namespace {namespace!r}")
        return self.accounts.grants(user.name, namespace)


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
