"""Tokens for machines: a random secret that stands for a user until it expires or is revoked.

    braid_<id>_<secret>

A token is shown once, when it is made. What is kept is a hash of its secret: 256 random bits need
no slow hash, and every request can afford this one. It is the password of its user in every
protocol, and Bearer in HTTP.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from braidmq.model.errors import BadRequest, Conflict, NotFound, StorageFailed
from braidmq.model.ids import Lsn
from braidmq.security.accounts import AccountChange, Accounts, TokenRevoked, UserDeleted
from braidmq.security.records import TokenUser
from braidmq.security.refusals import TokenRefused
from braidmq.security.scopes import granted, require_scopes
from braidmq.storage.store import Store

TOKENS: Final = "tokens"
"""Catalogue table: token id → TokenRecord."""

PREFIX = "braid"
ID_BYTES = 8
SECRET_BYTES = 32

TOKENS_OF_A_USER_MAX = 1000
"""One for each of its machines, and then some; it only bounds the catalogue."""

NAME_CHARACTERS_MAX = 255
DESCRIPTION_CHARACTERS_MAX = 1024

USED_KEPT_MS = 600_000
"""How much older than it was the last use of a token may seem after a restart: each use is noted in
memory, and so often on disk."""

TOKEN = re.compile(rf"{PREFIX}_[0-9a-f]{{{2 * ID_BYTES}}}_[0-9a-f]{{{2 * SECRET_BYTES}}}")


class TokenRecord(msgspec.Struct, frozen=True):
    user: str
    digest: bytes
    created_ms: int
    expires_ms: int | None = None
    description: str = ""
    name: str = ""
    scopes: list[str] | None = None
    """None: it may do what its user may."""
    last_used_ms: int | None = None


class Token(msgspec.Struct, frozen=True):
    """A token without its secret. ``scopes``: what its user may, and these allow; null: whatever
    its user may."""

    id: str
    user: str
    name: str
    scopes: list[str] | None
    created_ms: int
    expires_ms: int | None
    last_used_ms: int | None
    description: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TokenRecord).decode


class Tokens:
    def __init__(self, store: Store, accounts: Accounts) -> None:
        self._store = store
        self._accounts = accounts
        self._used: dict[str, int] = {}
        """When each was used last, since the node started."""
        self._records = {key: _decode(value) for key, value in store.catalogue.items(TOKENS)}
        # A crash may have come between a user's end and that of its tokens: another user of that
        # name must not find them.
        self._forget([each.id for each in self.tokens() if not accounts.has_user(each.user)])
        accounts.watch(self._on_change)

    def issue(
        self,
        user: str,
        now_ms: int,
        expires_ms: int | None = None,
        description: str = "",
        *,
        name: str = "",
        scopes: Sequence[str] | None = None,
    ) -> tuple[Token, str, Lsn]:
        """A new token of a user, with the text that is its secret."""
        self._accounts.user(user)
        if expires_ms is not None and expires_ms <= now_ms:
            raise BadRequest("a token can't expire before it is made")
        if scopes is not None:
            require_scopes(list(scopes))
        self._require_name(user, name)
        if len(description) > DESCRIPTION_CHARACTERS_MAX:
            raise BadRequest(
                f"a description can have at most {DESCRIPTION_CHARACTERS_MAX} characters"
            )
        if sum(each.user == user for each in self._records.values()) >= TOKENS_OF_A_USER_MAX:
            raise BadRequest(
                f"user {user!r} has {TOKENS_OF_A_USER_MAX} tokens", remedy="Revoke some first"
            )
        token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(SECRET_BYTES)
        kept = None if scopes is None else list(scopes)
        record = TokenRecord(user, _digest(secret), now_ms, expires_ms, description, name, kept)
        lsn = self._keep(token_id, record)
        return self._token(token_id, record), f"{PREFIX}_{token_id}_{secret}", lsn

    def _require_name(self, user: str, name: str) -> None:
        if len(name) > NAME_CHARACTERS_MAX:
            raise BadRequest(f"a token's name can have at most {NAME_CHARACTERS_MAX} characters")
        if name and any((each.user, each.name) == (user, name) for each in self._records.values()):
            raise Conflict(
                f"user {user!r} has a token named {name!r} already",
                remedy="Revoke that one first, or choose another name",
            )

    def _keep(self, token_id: str, record: TokenRecord) -> Lsn:
        lsn = self._store.change([(TOKENS, token_id, _encode(record))])
        self._records[token_id] = record
        return lsn

    def authenticate(self, text: str, now_ms: int, loopback: bool) -> TokenUser:
        """Whose token this is. Raises as ``Accounts.finish`` does."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        record = self._records.get(token_id)
        known = record is not None and hmac.compare_digest(_digest(secret), record.digest)
        if not known or prefix != PREFIX or record is None:
            raise TokenRefused("unknown", "the token is unknown, or was revoked")
        if record.expires_ms is not None and record.expires_ms <= now_ms:
            raise TokenRefused("expired", "the token has expired", remedy="Issue a new one")
        return self._accounts.by_token(
            record.user,
            loopback,
            scopes=None if record.scopes is None else granted(record.scopes),
            expires_ms=record.expires_ms,
            token_id=token_id,
        )

    def used(self, token_id: str, now_ms: int) -> None:
        """Somebody has logged in with it."""
        self._used[token_id] = now_ms
        record = self._records[token_id]
        if now_ms - (record.last_used_ms or 0) >= USED_KEPT_MS:
            # What can't be written now is told by the node in other places.
            with suppress(StorageFailed):
                self._keep(token_id, msgspec.structs.replace(record, last_used_ms=now_ms))

    def is_known(self, token_id: str) -> bool:
        return token_id in self._records

    def token(self, token_id: str) -> Token:
        record = self._records.get(token_id)
        if record is None:
            raise NotFound(f"there is no token {token_id!r}")
        return self._token(token_id, record)

    def tokens(self, user: str | None = None) -> list[Token]:
        every = (
            self._token(token_id, record) for token_id, record in sorted(self._records.items())
        )
        return [each for each in every if user in (None, each.user)]

    def revoke(self, token_id: str) -> Lsn:
        self.token(token_id)
        lsn = self._store.change([(TOKENS, token_id, None)])
        del self._records[token_id]
        self._used.pop(token_id, None)
        self._accounts.tell(TokenRevoked(token_id))
        return lsn

    def _on_change(self, change: AccountChange) -> None:
        if isinstance(change, UserDeleted):
            self._forget([each.id for each in self.tokens(change.name)])

    def _forget(self, gone: list[str]) -> None:
        if gone:
            self._store.change([(TOKENS, each, None) for each in gone])
        for each in gone:
            del self._records[each]
            self._used.pop(each, None)

    def _token(self, token_id: str, record: TokenRecord) -> Token:
        return Token(
            token_id,
            record.user,
            record.name,
            record.scopes,
            record.created_ms,
            record.expires_ms,
            self._used.get(token_id, record.last_used_ms),
            record.description,
        )


def looks_like_token(text: str) -> bool:
    return TOKEN.fullmatch(text) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
