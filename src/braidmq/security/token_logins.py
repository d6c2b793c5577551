"""Log-ins with a token instead of a password, whatever the protocol: ours, and JWT.

A token that was verified is known again until it ends, unless the keys or the settings change
meanwhile. What it lets its holder do is in ``TokenUser``, which goes with the connection.
"""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter

from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused
from braidmq.security.accounts import Accounts
from braidmq.security.jwks import Jwks
from braidmq.security.jwt_claims import Claims, claims_of, looks_like_jwt
from braidmq.security.jwt_settings import JwtSettings
from braidmq.security.records import TokenUser, User
from braidmq.security.refusals import TokenRefused, UnknownKey
from braidmq.security.scopes import Scopes, granted
from braidmq.security.tokens import Tokens, looks_like_token

logger = logging.getLogger(__name__)

REMEMBERED_MAX = 4096
"""Verified tokens; past it the oldest is forgotten, and verified again when it comes."""


class TokenLogins:
    def __init__(
        self,
        accounts: Accounts,
        tokens: Tokens,
        clock: Clock,
        settings: JwtSettings | None = None,
    ) -> None:
        self.tokens = tokens
        self.verified: Counter[str] = Counter()
        """Log-ins, by the kind of token."""
        self.refused: Counter[str] = Counter()
        """By reason."""
        self.ended: Counter[str] = Counter()
        """Log-ins that were over before their connection, by reason."""
        self.settings = settings or JwtSettings()
        self.clock = clock
        self.jwks = Jwks(self.settings, clock, self._forget)
        self._accounts = accounts
        self._claims: dict[bytes, Claims] = {}
        self._key = secrets.token_bytes(32)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.jwks.start(loop)

    def stop(self) -> None:
        self.jwks.stop()

    def replace(self, settings: JwtSettings) -> None:
        """For tokens that come from now on; connections keep what theirs gave them until it ends,
        or is renewed."""
        self.settings = settings
        self._forget()
        self.jwks.replace(settings)

    def is_token(self, secret: str | bytes) -> bool:
        """Whether a password is one. With ``--dev`` nothing is: everybody may do everything."""
        text = _text(secret)
        if self._accounts.dev or text is None:
            return False
        return looks_like_token(text) or (bool(self.settings.jwks) and looks_like_jwt(text))

    def recognise(self, name: str, secret: str | bytes, loopback: bool) -> TokenUser | None:
        """Whose token this is: ``name`` is that user's, or empty. None: ``authenticate`` has to
        find out. Raises NotAuthenticated or AccessRefused."""
        try:
            return self._recognise(name, _text(secret) or "", loopback)
        except UnknownKey as error:
            if self.jwks.may_learn():
                return None
            raise self._counted(error) from None
        except TokenRefused as error:
            raise self._counted(error) from None

    async def authenticate(self, name: str, secret: str | bytes, loopback: bool) -> TokenUser:
        """As ``recognise``; a key that is not known may have to be fetched."""
        found = self.recognise(name, secret, loopback)
        if found is not None:
            return found
        await self.jwks.learn()
        try:
            return self._recognise(name, _text(secret) or "", loopback)
        except TokenRefused as error:
            raise self._counted(error) from None

    def has_ended(self, user: User) -> str:
        """Why a log-in would not be let in any more; empty if it would."""
        if not isinstance(user, TokenUser):
            return ""
        if user.expires_ms is not None and user.expires_ms <= self.clock.wall_ms():
            return "the token has expired"
        if user.token_id and not self.tokens.is_known(user.token_id):
            return "the token was revoked"
        return ""

    def _counted(self, error: TokenRefused) -> TokenRefused:
        self.refused[error.reason] += 1
        return error

    def _recognise(self, name: str, text: str, loopback: bool) -> TokenUser:
        now_ms = self.clock.wall_ms()
        if looks_like_jwt(text):
            kind, user = "jwt", self._jwt_user(self._believed(text, now_ms), loopback)
        else:
            kind, user = "token", self.tokens.authenticate(text, now_ms, loopback)
        if name not in ("", user.name):
            raise TokenRefused("user", f"the token is not one of user {name!r}")
        if kind == "token":
            self.tokens.used(user.token_id, now_ms)
        self.verified[kind] += 1
        return user

    def _believed(self, text: str, now_ms: int) -> Claims:
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key).digest()
        found = self._claims.get(digest)
        if found is not None and found.expires_ms > now_ms:
            return found
        self._claims.pop(digest, None)
        found = claims_of(text, self.jwks.ring, self.settings, now_ms)
        while len(self._claims) >= REMEMBERED_MAX:
            del self._claims[next(iter(self._claims))]
        self._claims[digest] = found
        return found

    def _forget(self) -> None:
        self._claims.clear()

    def _jwt_user(self, claims: Claims, loopback: bool) -> TokenUser:
        settings, name = self.settings, claims.user
        if settings.users == "token":
            if self._accounts.has_user(name):
                raise TokenRefused(
                    "user",
                    f"the token's user {name!r} has the name of an account here",
                    remedy='Delete the account, or set jwt.users = "account"',
                )
            scopes = granted(claims.scopes, prefix=settings.scope_prefix, has_account=False)
            return TokenUser(name, scopes.tags, scopes=scopes, expires_ms=claims.expires_ms)
        if not self._accounts.has_user(name):
            raise TokenRefused("user", f"the token's user {name!r} has no account here")
        narrowing: Scopes | None = None
        if settings.scope_claim:
            narrowing = granted(claims.scopes, prefix=settings.scope_prefix)
        return self._accounts.by_token(
            name, loopback, scopes=narrowing, expires_ms=claims.expires_ms
        )


def _text(secret: str | bytes) -> str | None:
    if isinstance(secret, str):
        return secret
    try:
        return secret.decode("ascii")
    except UnicodeDecodeError:
        return None


def require_account(user: User, what: str) -> None:
    """What acts in its user's name when the token is long over needs an account. Raises
    AccessRefused."""
    if isinstance(user, TokenUser) and not user.has_account:
        raise AccessRefused(
            f"user {user.name!r} has no account here, only a token, so there is nobody {what}",
            remedy='Do it as a user with an account, or set jwt.users = "account"',
        )


def require_own_login(user: User) -> None:
    """Tokens are made and revoked by who logged in as oneself, or by administrators: a token that
    may do little, or ends soon, must not lead to one that may do more. Raises AccessRefused."""
    if not isinstance(user, TokenUser) or user.is_administrator:
        return
    if user.scopes is not None or user.expires_ms is not None:
        raise AccessRefused(
            f"user {user.name!r} logged in with a token that has scopes or an end: it can't make"
            " or revoke tokens",
            remedy="Log in with the password",
        )
