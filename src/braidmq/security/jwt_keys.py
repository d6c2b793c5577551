"""An identity provider's public keys: read from a JWKS (RFC 7517), and when to fetch them anew.

Nothing here opens a file or a connection, and the time is an argument: ``jwks.py`` does the
fetching.
"""

import warnings
from typing import Any, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from braidmq.model.errors import BadSetting
from braidmq.model.limits import KIB

JWKS_BYTES_MAX = 256 * KIB
"""A provider has a few keys of a kilobyte or two."""

KEYS_MAX = 100

RSA_BITS_MIN = 2048

REFETCH_MS = 10_000
"""A token may name a key that nobody has: so often, at most, the provider is asked for it."""

FAMILIES = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}
"""By the kind of key, what algorithms with it begin with. Shared secrets are none of them."""

CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}


class BadJwks(BadSetting):
    code = "bad-jwks"


class Key(NamedTuple):
    kid: str
    algorithms: frozenset[str]
    """What it may be used with."""
    public: jwt.PyJWK


class _Jwk(msgspec.Struct):
    kty: str
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    crv: str = ""
    key_ops: tuple[str, ...] = ("verify",)


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


def keys_from(data: bytes, allowed: tuple[str, ...]) -> tuple[Key, ...]:
    """Those that tokens can be verified with; others are for others. Raises BadJwks."""
    if len(data) > JWKS_BYTES_MAX:
        raise BadJwks(f"a JWKS can't have more than {JWKS_BYTES_MAX // KIB} KiB")
    try:
        found = msgspec.json.decode(data, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadJwks(f"this is no JWKS: {error}") from None
    if len(found) > KEYS_MAX:
        raise BadJwks(f"a JWKS can't have more than {KEYS_MAX} keys, and this has {len(found)}")
    keys = tuple(key for each in found if (key := _key(each, allowed)) is not None)
    if not keys:
        raise BadJwks(f"none of the {len(found)} keys can be used with {', '.join(allowed)}")
    return keys


def _key(given: dict[str, Any], allowed: tuple[str, ...]) -> Key | None:
    try:
        said = msgspec.convert(given, _Jwk)
    except msgspec.ValidationError:
        return None
    usable = frozenset(
        each
        for each in allowed
        if each.startswith(FAMILIES.get(said.kty, ("-",)))
        and said.alg in ("", each)
        and CURVES.get(each, said.crv) == said.crv
    )
    if not usable or said.use != "sig" or "verify" not in said.key_ops:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short keys: they are refused below
            public = jwt.PyJWK(given, algorithm=min(usable))
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(public.key, RSAPublicKey) and public.key.key_size < RSA_BITS_MIN:
        return None
    return Key(said.kid, usable, public)


class KeyRing:
    """The keys as they were fetched last, and when that is due again."""

    def __init__(self) -> None:
        self.keys: tuple[Key, ...] | None = None
        """None until they were fetched once; an unreachable provider changes nothing."""
        self._tried_ms: int | None = None

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Without a name there must be no choice."""
        fitting = [
            each
            for each in self.keys or ()
            if algorithm in each.algorithms and kid in (None, each.kid)
        ]
        return fitting[0] if len(fitting) == 1 else None

    def may_fetch(self, now_ms: int) -> bool:
        """Whether a token with an unknown key is a reason to ask for keys."""
        return self._tried_ms is None or now_ms - self._tried_ms >= REFETCH_MS

    def trying(self, now_ms: int) -> None:
        self._tried_ms = now_ms

    def took(self, keys: tuple[Key, ...]) -> bool:
        """Whether they are others than before."""
        is_new = self._said(keys) != self._said(self.keys or ())
        self.keys = keys
        return is_new

    @staticmethod
    def _said(keys: tuple[Key, ...]) -> list[Any]:
        return [(each.kid, each.algorithms, each.public._jwk_data) for each in keys]
