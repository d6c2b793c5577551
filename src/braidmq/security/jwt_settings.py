"""What an operator may set about tokens of others: the table ``jwt`` of the configuration."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from braidmq.model.lists import listed

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Those with a public key. What takes a shared secret would let the node make tokens itself, and a
public key be taken for one; ``none`` is no signature."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class JwtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that an identity provider signs (JWT), as log-in in every protocol."""

    jwks: Annotated[
        str,
        Meta(
            description="Where the provider's public keys are: an `https://` URL, or a file. Empty:"
            " no such tokens are taken. `http://` is for this machine only."
        ),
    ] = ""
    ca: Annotated[
        str,
        Meta(description="File with the authority of that URL's certificate; else the system's."),
    ] = ""
    issuer: Annotated[str, Meta(description="What `iss` of a token has to be. Needed.")] = ""
    audience: Annotated[
        str,
        Meta(
            description="What `aud` of a token has to have one of, with commas between them."
            " Needed: a token for another service is none for this one."
        ),
    ] = ""
    algorithms: Annotated[
        str,
        Meta(
            description="How tokens may be signed, with commas between them: "
            f"{', '.join(ALGORITHMS)}."
        ),
    ] = "RS256,ES256"
    leeway_s: Annotated[
        float,
        Meta(ge=0, le=300, description="How far the provider's clock may be off."),
    ] = 10.0
    users: Annotated[
        Literal["token", "account"],
        Meta(
            description="`token`: its scopes are all that its user may, and it may not have the"
            " name of an account here. `account`: its user has an account here, and may do what"
            " both the account and the scopes allow."
        ),
    ] = "token"
    user_claim: Annotated[
        str, Meta(min_length=1, description="Where the user's name is; dots lead into tables.")
    ] = "sub"
    scope_claim: Annotated[
        str,
        Meta(
            description="Where the scopes are, a text with spaces or a list of texts; dots lead"
            ' into tables. Empty, with `users = "account"`: the account alone counts.'
        ),
    ] = "scope"
    scope_prefix: Annotated[
        str,
        Meta(
            description="What our scopes begin with, such as `braidmq.`; others grant nothing here."
        ),
    ] = ""
    refresh_s: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400,
            description="How often the keys are fetched; for a token with a key that is not known"
            " they are at once, but not more often than every 10 s.",
        ),
    ] = 300

    def __post_init__(self) -> None:
        unknown = sorted(set(self.allowed) - set(ALGORITHMS))
        if unknown or not self.allowed:
            raise ValueError(
                f"algorithms: {', '.join(unknown) or 'nothing'} can't be used. Known here:"
                f" {', '.join(ALGORITHMS)}"
            )
        if self.users == "token" and not self.scope_claim:
            raise ValueError("scope_claim is empty, and users is token: nobody would have a right")
        if not self.jwks:
            return
        for name in ("issuer", "audience"):
            if not listed(getattr(self, name)):
                raise ValueError(f"jwks is set, and {name} is not: any token would do")
        url = urlsplit(self.jwks)
        if url.scheme == "http" and url.hostname not in LOCAL_HOSTS:
            raise ValueError("jwks is http:// on another machine: whoever is between would choose")
        if self.is_url and not url.hostname:
            raise ValueError(f"jwks is no URL: {self.jwks!r}")

    @property
    def is_url(self) -> bool:
        return self.jwks.startswith(("https://", "http://"))

    @property
    def allowed(self) -> tuple[str, ...]:
        return listed(self.algorithms)

    @property
    def audiences(self) -> tuple[str, ...]:
        return listed(self.audience)
