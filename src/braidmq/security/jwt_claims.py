"""Whether a JWT (RFC 7519) is to be believed, and what it says. Pure: the time is an argument.

Before a signature is verified nothing of a token is read but its head, into a fixed form. The
algorithm is one of ours or the token is refused; the key is chosen by it, so that no public key is
ever taken for a shared secret.
"""

from typing import Any

import jwt
import msgspec

from braidmq.model.errors import BadRequest
from braidmq.model.limits import KIB
from braidmq.security.jwt_keys import KeyRing
from braidmq.security.jwt_settings import JwtSettings
from braidmq.security.records import check_user_name
from braidmq.security.refusals import TokenRefused, UnknownKey

TOKEN_BYTES_MAX = 8 * KIB
"""As much as AMQP's log-in may have (``HANDSHAKE_FRAME_BYTES_MAX``), and most web servers take."""

EXPIRES_S_MAX = 1 << 43
"""As milliseconds it still is a number that every format has."""


class Claims(msgspec.Struct, frozen=True):
    """What was believed of a token."""

    user: str
    scopes: tuple[str, ...]
    expires_ms: int
    """By the wall clock, with leeway."""


class _Head(msgspec.Struct):
    alg: str
    kid: str | None = None
    crit: Any = None
    b64: Any = None


_jws = jwt.PyJWS()


def looks_like_jwt(text: str) -> bool:
    """Three parts, of which the first begins as a JSON object does in base64."""
    return text.startswith("eyJ") and text.count(".") == 2


def claims_of(text: str, keys: KeyRing, settings: JwtSettings, now_ms: int) -> Claims:
    """``now_ms`` is by the wall clock. Raises TokenRefused, UnknownKey if it may only be that."""
    if not settings.jwks:
        raise TokenRefused("off", "this node takes no JWT", remedy="See jwt.jwks")
    if len(text) > TOKEN_BYTES_MAX:
        raise TokenRefused("too-large", f"a token can't have more than {TOKEN_BYTES_MAX} bytes")
    head = _head(text)
    if head.alg not in settings.allowed:
        raise TokenRefused("algorithm", f"tokens signed with {head.alg[:20]!r} are not taken")
    key = keys.find(head.kid, head.alg)
    if key is None:
        named = "without the name of one" if head.kid is None else f"named {head.kid[:64]!r}"
        raise UnknownKey(f"there is no key for {head.alg} {named}")
    try:
        payload = _jws.decode(text, key.public.key, algorithms=[head.alg])
    except jwt.InvalidSignatureError:
        raise TokenRefused("signature", "the token's signature is wrong") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _malformed() from None
    return _claims(payload, settings, now_ms)


def _head(text: str) -> _Head:
    try:
        first, _, _ = text.encode("ascii").split(b".")
        head = msgspec.json.decode(jwt.utils.base64url_decode(first), type=_Head)
    except (ValueError, RecursionError):  # msgspec's and Unicode's are ValueErrors
        raise _malformed() from None
    if head.crit is not None or head.b64 is not None:
        # RFC 7515, 4.1.11: what is critical and not understood invalidates it.
        raise TokenRefused("malformed", "the token has extensions that are not understood")
    return head


def _malformed() -> TokenRefused:
    return TokenRefused("malformed", "the token can't be read")


def _claims(payload: bytes, settings: JwtSettings, now_ms: int) -> Claims:
    try:
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise _malformed() from None
    if claims.get("iss") != settings.issuer:
        raise TokenRefused("issuer", "the token is another issuer's")
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if not any(each in settings.audiences for each in audiences if isinstance(each, str)):
        raise TokenRefused("audience", "the token is for another audience")
    leeway_ms = round(settings.leeway_s * 1000)
    expires_ms = _time_ms(claims, "exp", needed=True) + leeway_ms
    if expires_ms <= now_ms:
        raise TokenRefused("expired", "the token has expired", remedy="Get a new one")
    if _time_ms(claims, "nbf") - leeway_ms > now_ms:
        raise TokenRefused("not-yet", "the token is not valid yet")
    user = _at(claims, settings.user_claim)
    if not isinstance(user, str):
        raise TokenRefused("claims", f"the token has no text as {settings.user_claim!r}")
    try:
        check_user_name(user)
    except BadRequest as error:
        raise TokenRefused("claims", str(error)) from None
    return Claims(user, _scopes(claims, settings.scope_claim), expires_ms)


def _time_ms(claims: dict[str, Any], name: str, *, needed: bool = False) -> int:
    value = claims.get(name)
    if value is None and not needed:
        return 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= EXPIRES_S_MAX:  # type: ignore[operator]
        raise TokenRefused("claims", f"the token has no time as {name!r}")
    return int(value * 1000)  # type: ignore[operator]


def _scopes(claims: dict[str, Any], path: str) -> tuple[str, ...]:
    found = _at(claims, path) if path else None
    if isinstance(found, str):
        return tuple(found.split())
    if isinstance(found, list):
        return tuple(each for each in found if isinstance(each, str))
    return ()


def _at(claims: dict[str, Any], path: str) -> Any:
    """A claim may have dots in its name, as URLs of some providers."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found
