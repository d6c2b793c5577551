"""Who sends a request: HTTP Basic, or a token for machines."""

import base64
import binascii

from starlette.requests import HTTPConnection

from braidmq.gateways.http.problems import NotAdministrator
from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused, NotAuthenticated, NotFound
from braidmq.security.accounts import GUEST, Accounts, is_loopback
from braidmq.security.logins import Logins
from braidmq.security.permissions import Grants
from braidmq.security.records import ADMINISTRATOR, User
from braidmq.security.tokens import Tokens


class Access:
    def __init__(self, accounts: Accounts, logins: Logins, tokens: Tokens, clock: Clock) -> None:
        self.accounts = accounts
        self._logins = logins
        self._tokens = tokens
        self._clock = clock

    async def authenticate(self, request: HTTPConnection) -> User:
        """Raises NotAuthenticated or AccessRefused."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if self.accounts.dev and scheme.lower() != "basic":
            return User(GUEST, frozenset({ADMINISTRATOR}))
        loopback = request.client is not None and is_loopback(request.client.host)
        if scheme.lower() == "bearer":
            return self._tokens.authenticate(secret.strip(), self._clock.wall_ms(), loopback)
        name, password = basic_credentials(scheme, secret)
        return await self._logins.authenticate(name, password, self._clock.now_ms(), loopback)

    def require_administrator(self, user: User) -> None:
        if not user.is_administrator:
            raise NotAdministrator(f"user {user.name!r} is not an administrator")

    def enter(self, user: User, namespace: str) -> Grants:
        """What a user may do in a namespace. Raises NotFound or AccessRefused."""
        if not self.accounts.can_enter(user.name, namespace):
            if not self.accounts.has_namespace(namespace):
                raise NotFound(f"there is no namespace {namespace!r}")
            raise AccessRefused(f"user {user.name!r} has no permission on namespace {namespace!r}")
        return self.accounts.grants(user.name, namespace)


def basic_credentials(scheme: str, secret: str) -> tuple[str, bytes]:
    """User name and password out of an Authorization header. RFC 7617, 2."""
    if scheme.lower() != "basic":
        raise NotAuthenticated("HTTP Basic credentials or a token are needed here")
    try:
        name, colon, password = base64.b64decode(secret.strip(), validate=True).partition(b":")
        if colon:
            return name.decode(), password
    except (binascii.Error, ValueError):
        pass
    raise NotAuthenticated("the Authorization header can't be read")
