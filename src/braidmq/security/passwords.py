"""Argon2 hashes of passwords, and a short memory of what was verified.

A hash is slow on purpose. A fleet that reconnects brings the same password thousands of times, so
the outcome is remembered for a short while under a keyed hash of all that it depends on: name,
password and the stored hash itself. A changed password has another stored hash, so what was
remembered of the old one is never found again.
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass

import argon2
from argon2.exceptions import VerifyMismatchError

from braidmq.model.errors import BadRequest

HASH_TIME_COST = 2
HASH_MEMORY_KIB = 19_456
HASH_PARALLELISM = 1
"""OWASP's second choice for Argon2id. Measured at 32 ms on the 2-core machine we build on, and
19 MiB for each login under way: enough to slow down guessing, little enough to let a fleet in."""

HASH_BYTES = 32
SALT_BYTES = 16

PASSWORD_BYTES_MAX = 1024
"""Longer than any password or token; it bounds what a stranger can have us hash."""

REMEMBERED_MS = 60_000
"""How long an outcome holds: long enough for a fleet to reconnect after a restart of the network,
short enough that memory holds few digests of passwords."""

REMEMBERED_MAX = 4096
"""Outcomes of either sort; past it the oldest is forgotten and costs an Argon2 again."""

Password = str | bytes

_hasher = argon2.PasswordHasher(
    time_cost=HASH_TIME_COST,
    memory_cost=HASH_MEMORY_KIB,
    parallelism=HASH_PARALLELISM,
    hash_len=HASH_BYTES,
    salt_len=SALT_BYTES,
)


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A password already hashed: what slow work done elsewhere hands to the accounts."""

    encoded: str


def hash_password(password: Password) -> PasswordHash:
    """Slow, and touches nothing shared: may run in any thread."""
    secret = password_bytes(password)
    if not secret:
        raise BadRequest("a password can't be empty")
    if len(secret) > PASSWORD_BYTES_MAX:
        raise BadRequest(f"a password can't have more than {PASSWORD_BYTES_MAX} bytes")
    return PasswordHash(_hasher.hash(secret))


def verify_password(encoded: str, secret: bytes) -> bool:
    """Slow, and touches nothing shared: may run in any thread."""
    try:
        return _hasher.verify(encoded, secret)
    except VerifyMismatchError:
        return False


def password_bytes(password: Password) -> bytes:
    if isinstance(password, bytes):
        return password
    # A lone surrogate from somebody's JSON is a wrong password, not a crash.
    return password.encode("utf-8", "surrogatepass")


def unmatchable_hash() -> str:
    """A hash no password has. Verifying against it takes as long as against a real one, so the
    time of an answer does not tell which users exist."""
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).rstrip(b"=").decode()
        for size in (SALT_BYTES, HASH_BYTES)
    )
    cost = f"m={HASH_MEMORY_KIB},t={HASH_TIME_COST},p={HASH_PARALLELISM}"
    return f"$argon2id$v=19${cost}${salt}${digest}"


class Verified:
    """Outcomes of recent verifications. Refusals are kept apart from successes, so that a flood of
    guesses can't push out those who are let in."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._until_ms: dict[bool, dict[bytes, int]] = {True: {}, False: {}}

    def digest(self, name: str, secret: bytes, encoded: str) -> bytes:
        parts = (name.encode("utf-8", "surrogatepass"), encoded.encode(), secret)
        state = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            # With its length, so that no two lists of parts look the same.
            state.update(len(part).to_bytes(8, "little") + part)
        return state.digest()

    def outcome(self, digest: bytes, now_ms: int) -> bool | None:
        for outcome, until_ms in self._until_ms.items():
            if until_ms.get(digest, 0) > now_ms:
                return outcome
        return None

    def remember(self, digest: bytes, outcome: bool, now_ms: int) -> None:
        until_ms = self._until_ms[outcome]
        until_ms.pop(digest, None)
        until_ms[digest] = now_ms + REMEMBERED_MS
        # All live equally long, so the first in is the first to go.
        while len(until_ms) > REMEMBERED_MAX or until_ms[next(iter(until_ms))] <= now_ms:
            del until_ms[next(iter(until_ms))]

    def __len__(self) -> int:
        return sum(map(len, self._until_ms.values()))
