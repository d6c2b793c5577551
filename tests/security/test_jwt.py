"""JWT, verified with a time that is an argument: what is believed, and every way to be refused."""

import base64
import hashlib
import hmac
import json
import random
import time
from typing import Any

import jwt
import msgspec
import pytest

from braidmq.model.errors import BadSetting
from braidmq.security.jwt_claims import TOKEN_BYTES_MAX, claims_of
from braidmq.security.jwt_keys import KEYS_MAX, REFETCH_MS, BadJwks, KeyRing, keys_from
from braidmq.security.jwt_settings import JwtSettings
from braidmq.security.refusals import TokenRefused
from braidmq.testing.issuer import AUDIENCE, ISSUER, Issuer

SETTINGS = JwtSettings(jwks="keys.json", issuer=ISSUER, audience=AUDIENCE, leeway_s=10)
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def ring(issuer: Issuer) -> KeyRing:
    made = KeyRing()
    made.took(keys_from(issuer.jwks(), SETTINGS.allowed))
    return made


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 60, **more}


def reason(text: str, ring: KeyRing, settings: JwtSettings = SETTINGS, now_ms: int = NOW_MS) -> str:
    with pytest.raises(TokenRefused) as caught:
        claims_of(text, ring, settings, now_ms)
    return caught.value.reason


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_token_is_believed(issuer: Issuer, ring: KeyRing) -> None:
    text = issuer.signed(claims(scope="read:%2F/a openid", aud=["x", AUDIENCE]))
    found = claims_of(text, ring, SETTINGS, NOW_MS)
    assert found.user == "ann"
    assert found.scopes == ("read:%2F/a", "openid")
    assert found.expires_ms == (NOW_S + 60 + 10) * 1000


def test_it_ends_to_the_millisecond(issuer: Issuer, ring: KeyRing) -> None:
    text = issuer.signed(claims())
    claims_of(text, ring, SETTINGS, NOW_MS + 70_000 - 1)
    assert reason(text, ring, now_ms=NOW_MS + 70_000) == "expired"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": [1, {}]}, "audience"),
        ({"exp": None}, "claims"),
        ({"exp": "soon"}, "claims"),
        ({"exp": True}, "claims"),
        ({"exp": 1e300}, "claims"),
        ({"exp": -1}, "claims"),
        ({"exp": NOW_S - 11}, "expired"),
        ({"nbf": NOW_S + 11}, "not-yet"),
        ({"nbf": {}}, "claims"),
        ({"sub": None}, "claims"),
        ({"sub": 7}, "claims"),
        ({"sub": "a:b"}, "claims"),
        ({"sub": "line\nbreak"}, "claims"),
        ({"sub": "x" * 300}, "claims"),
    ],
)
def test_what_it_says_is_checked(
    issuer: Issuer, ring: KeyRing, given: dict[str, Any], wanted: str
) -> None:
    assert reason(issuer.signed(claims(**given)), ring) == wanted


def test_claims_inside_of_tables(issuer: Issuer, ring: KeyRing) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, user_claim="who.name", scope_claim="resource_access.braidmq.roles"
    )
    more = {
        "who": {"name": "bob"},
        "resource_access": {"braidmq": {"roles": ["read:%2F/a", 5]}},
    }
    found = claims_of(issuer.signed(claims(**more)), ring, settings, NOW_MS)
    assert (found.user, found.scopes) == ("bob", ("read:%2F/a",))
    assert reason(issuer.signed(claims(who=[])), ring, settings) == "claims"


def test_no_signature_is_none(ring: KeyRing) -> None:
    body = b64(json.dumps(claims()).encode())
    for alg in ("none", "None", "NONE", "nOnE", ""):
        head = b64(json.dumps({"alg": alg, "kid": "one"}).encode())
        for signature in ("", b64(b"x")):
            assert reason(f"{head}.{body}.{signature}", ring) == "algorithm"


def test_a_public_key_is_no_shared_secret(issuer: Issuer, ring: KeyRing) -> None:
    body = b64(json.dumps(claims()).encode())
    secrets = [issuer.public_pem(), issuer.public_pem().strip(), json.dumps(issuer.jwk()).encode()]
    for name, digest in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
        head = b64(json.dumps({"alg": name, "kid": "one"}).encode())
        for secret in secrets:
            signature = hmac.new(secret, f"{head}.{body}".encode(), digest).digest()
            assert reason(f"{head}.{body}.{b64(signature)}", ring) == "algorithm"
    with pytest.raises(ValueError, match="HS256"):
        JwtSettings(algorithms="RS256,HS256")
    shared = {"keys": [{"kty": "oct", "k": b64(b"secret"), "kid": "s", "alg": "HS256"}]}
    with pytest.raises(BadJwks):
        keys_from(json.dumps(shared).encode(), SETTINGS.allowed)


def test_an_algorithm_that_is_not_allowed(issuer: Issuer, ring: KeyRing) -> None:
    settings = msgspec.structs.replace(SETTINGS, algorithms="ES256")
    assert reason(issuer.signed(claims()), ring, settings) == "algorithm"


def test_another_key_under_the_same_name(ring: KeyRing) -> None:
    assert reason(Issuer("one").signed(claims()), ring) == "signature"


def test_a_key_that_is_not_known(issuer: Issuer, ring: KeyRing) -> None:
    assert reason(Issuer("two").signed(claims()), ring) == "unknown-key"
    assert reason(issuer.signed(claims()), KeyRing()) == "unknown-key"


def test_without_a_name_there_must_be_no_choice(issuer: Issuer, ring: KeyRing) -> None:
    other = Issuer("two")
    both = KeyRing()
    both.took(
        keys_from(json.dumps({"keys": [issuer.jwk(), other.jwk()]}).encode(), SETTINGS.allowed)
    )
    text = issuer.signed(claims(), kid=None)
    assert claims_of(text, ring, SETTINGS, NOW_MS).user == "ann"
    assert reason(text, both) == "unknown-key"
    claims_of(issuer.signed(claims()), both, SETTINGS, NOW_MS)


@pytest.mark.parametrize(
    "change",
    [
        {"kty": "oct"},
        {"use": "enc"},
        {"alg": "RS512"},
        {"key_ops": ["sign"]},
        {"n": "AQAB"},
        {"n": 5},
        {"n": None},
        {"kid": 5},
    ],
)
def test_keys_that_are_for_something_else(issuer: Issuer, change: dict[str, Any]) -> None:
    with pytest.raises(BadJwks):
        keys_from(json.dumps({"keys": [issuer.jwk() | change]}).encode(), SETTINGS.allowed)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 5}',
        b'{"keys": [5]}',
        b'{"keys": []}',
        b"\xff",
        b'{"keys":' + b"[" * 100_000,
        b" " * (1 << 19),
        json.dumps({"keys": [{"kty": "RSA"}] * (KEYS_MAX + 1)}).encode(),
    ],
)
def test_what_is_no_jwks(data: bytes) -> None:
    with pytest.raises(BadJwks):
        keys_from(data, SETTINGS.allowed)


def test_hostile_tokens_are_refused_and_nothing_else(issuer: Issuer, ring: KeyRing) -> None:
    good = issuer.signed(claims())
    head, body, signature = good.split(".")
    nested = b64(b'{"alg":"RS256","kid":"one","x":' + b"[" * 3000)
    hostile = [
        "",
        ".",
        "..",
        "...",
        "eyJ..",
        f"{head}.{body}.",
        f"{head}..{signature}",
        f".{body}.{signature}",
        f"{nested}.{body}.{signature}",
        f"{head}.{nested}.{signature}",
        f"{head}.{body}.{signature}\n",
        f"{head}.{body}.{signature}=",
        f"{head}.{body}.☃",
        f"{b64(b'5')}.{body}.{signature}",
        f"{b64(b'{}')}.{body}.{signature}",
        b64(b'{"alg":["RS256"]}') + f".{body}.{signature}",
        b64(b'{"alg":"RS256","crit":["exp"],"kid":"one"}') + f".{body}.{signature}",
        b64(b'{"alg":"RS256","b64":false,"kid":"one"}') + f"..{signature}",
        "eyJ" + "A" * TOKEN_BYTES_MAX + ".A.A",
    ]
    for text in hostile:
        assert reason(text, ring) in ("malformed", "algorithm", "signature", "too-large"), text
    text = _signed_bytes(issuer, b'{"iss":' + b"[" * 3000)
    assert reason(text, ring) == "malformed"
    for payload in (b"", b"5", b"[]", b"null", b"\xff"):
        assert reason(_signed_bytes(issuer, payload), ring) == "malformed"


def _signed_bytes(issuer: Issuer, payload: bytes) -> str:
    return jwt.PyJWS().encode(payload, issuer.private, "RS256", headers={"kid": issuer.kid})


def test_no_changed_token_is_believed(issuer: Issuer, ring: KeyRing) -> None:
    """Bits and bytes of a good one, changed at random."""
    good = issuer.signed(claims(scope="read:%2F/a"))
    rng = random.Random(7)
    alphabet = "ABCabc019-_.= \0"
    for _ in range(500):
        at = rng.randrange(len(good))
        text = good[:at] + rng.choice(alphabet) + good[at + rng.randrange(2) :]
        if text == good:
            continue
        assert reason(text, ring) in (
            *("malformed", "algorithm", "signature", "unknown-key", "too-large"),
        )


def test_elliptic_keys(ring: KeyRing) -> None:
    issuer = Issuer()
    issuer.rotate("ec", "ES256")
    own = KeyRing()
    own.took(keys_from(issuer.jwks(), SETTINGS.allowed))
    assert claims_of(issuer.signed(claims()), own, SETTINGS, NOW_MS).user == "ann"


def test_when_keys_are_asked_for(issuer: Issuer) -> None:
    ring = KeyRing()
    assert ring.may_fetch(0)
    ring.trying(0)
    assert not ring.may_fetch(REFETCH_MS - 1)
    assert ring.may_fetch(REFETCH_MS)
    keys = keys_from(issuer.jwks(), SETTINGS.allowed)
    assert ring.took(keys)
    assert not ring.took(keys_from(issuer.jwks(), SETTINGS.allowed))
    assert ring.took(keys_from(Issuer("two").jwks(), SETTINGS.allowed))


@pytest.mark.parametrize(
    "given",
    [
        {"issuer": ""},
        {"audience": " , "},
        {"algorithms": "none"},
        {"algorithms": ""},
        {"jwks": "http://example.com/keys"},
        {"jwks": "https://"},
        {"scope_claim": ""},
    ],
)
def test_settings_that_would_be_no_protection(given: dict[str, Any]) -> None:
    usual = {"jwks": "https://example.com/keys", "issuer": ISSUER, "audience": AUDIENCE}
    JwtSettings(**usual)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^(issuer|jwks|algorithms|scope_claim)"):
        JwtSettings(**{**usual, **given})  # type: ignore[arg-type]


def test_it_is_off_by_itself(issuer: Issuer) -> None:
    assert reason(issuer.token(), KeyRing(), JwtSettings(), round(time.time() * 1000)) == "off"
    assert issubclass(BadJwks, BadSetting)
