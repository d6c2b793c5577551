"""How a token is refused: with a reason that metrics have, too."""

from typing import Literal

from braidmq.model.errors import NotAuthenticated

Reason = Literal[
    "off",
    "malformed",
    "too-large",
    "algorithm",
    "unknown-key",
    "signature",
    "claims",
    "issuer",
    "audience",
    "expired",
    "not-yet",
    "unknown",
    "user",
]
"""Why tokens are refused, as metrics have it."""


class TokenRefused(NotAuthenticated):
    def __init__(self, reason: Reason, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class UnknownKey(TokenRefused):
    """Fetching the keys may help."""

    def __init__(self, message: str) -> None:
        super().__init__("unknown-key", message)
