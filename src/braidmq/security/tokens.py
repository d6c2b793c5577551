"""Tokens for machines: a random secret that stands for a user until it expires or is revoked.

    braid_<id>_<secret>

A token is shown once, when it is made. What is kept is a hash of its secret: 256 random bits need
no slow hash, and every request can afford this one.
"""

import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from braidmq.model.errors import AccessRefused, BadRequest, NotAuthenticated, NotFound
from braidmq.model.ids import Lsn
from braidmq.security.accounts import AccountChange, Accounts, TokenRevoked, UserDeleted
from braidmq.security.records import User
from braidmq.storage.store import Store

TOKENS: Final = "tokens"
"""Catalogue table: token id → TokenRecord."""

PREFIX = "braid"
ID_BYTES = 8
SECRET_BYTES = 32

TOKENS_OF_A_USER_MAX = 1000
"""One for each of its machines, and then some; it only bounds the catalogue."""

DESCRIPTION_CHARACTERS_MAX = 1024


class TokenRecord(msgspec.Struct, frozen=True):
    user: str
    digest: bytes
    created_ms: int
    expires_ms: int | None = None
    description: str = ""


class Token(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    user: str
    created_ms: int
    expires_ms: int | None
    description: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TokenRecord).decode


class Tokens:
    def __init__(self, store: Store, accounts: Accounts) -> None:
        self._store = store
        self._accounts = accounts
        self._records = {key: _decode(value) for key, value in store.catalogue.items(TOKENS)}
        # A crash may have come between a user's end and that of its tokens: another user of that
        # name must not find them.
        self._forget([each.id for each in self.tokens() if not accounts.has_user(each.user)])
        accounts.watch(self._on_change)

    def issue(
        self, user: str, now_ms: int, expires_ms: int | None = None, description: str = ""
    ) -> tuple[Token, str, Lsn]:
        """A new token of a user, with the text that is its secret."""
        self._accounts.user(user)
        if expires_ms is not None and expires_ms <= now_ms:
            raise BadRequest("a token can't expire before it is made")
        if len(description) > DESCRIPTION_CHARACTERS_MAX:
            raise BadRequest(
                f"a description can have at most {DESCRIPTION_CHARACTERS_MAX} characters"
            )
        if sum(each.user == user for each in self._records.values()) >= TOKENS_OF_A_USER_MAX:
            raise BadRequest(
                f"user {user!r} has {TOKENS_OF_A_USER_MAX} tokens", remedy="Revoke some first"
            )
        token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(SECRET_BYTES)
        record = TokenRecord(user, _digest(secret), now_ms, expires_ms, description)
        lsn = self._store.change([(TOKENS, token_id, _encode(record))])
        self._records[token_id] = record
        return _token(token_id, record), f"{PREFIX}_{token_id}_{secret}", lsn

    def authenticate(self, text: str, now_ms: int, loopback: bool) -> User:
        """Whose token this is. Raises as ``Accounts.finish`` does."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        record = self._records.get(token_id)
        known = record is not None and hmac.compare_digest(_digest(secret), record.digest)
        if not known or prefix != PREFIX or record is None:
            raise NotAuthenticated("the token is unknown, or was revoked")
        if record.expires_ms is not None and record.expires_ms <= now_ms:
            raise NotAuthenticated("the token has expired", remedy="Issue a new one")
        if record.user in self._accounts.loopback_only and not loopback:
            raise AccessRefused(f"user {record.user!r} may log in from the node's own machine only")
        return self._accounts.user(record.user)

    def is_valid(self, text: str, now_ms: int) -> bool:
        """Whether a token that let somebody in still would."""
        record = self._records.get(text.split("_")[1])
        return record is not None and not (
            record.expires_ms is not None and record.expires_ms <= now_ms
        )

    def token(self, token_id: str) -> Token:
        record = self._records.get(token_id)
        if record is None:
            raise NotFound(f"there is no token {token_id!r}")
        return _token(token_id, record)

    def tokens(self, user: str | None = None) -> list[Token]:
        every = (_token(token_id, record) for token_id, record in sorted(self._records.items()))
        return [each for each in every if user in (None, each.user)]

    def revoke(self, token_id: str) -> Lsn:
        self.token(token_id)
        lsn = self._store.change([(TOKENS, token_id, None)])
        del self._records[token_id]
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


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token(token_id: str, record: TokenRecord) -> Token:
    return Token(token_id, record.user, record.created_ms, record.expires_ms, record.description)
