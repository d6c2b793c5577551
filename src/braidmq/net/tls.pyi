import ssl
from collections.abc import Callable
from typing import Any, Protocol

from braidmq.net.tcp import TcpLink
from braidmq.net.transport import Receiver

class NotTls(Exception):
    """What came is no record of TLS; the argument is how it begins."""

class PeerLeft(Exception):
    """In the middle of the handshake."""

class Shaking(Receiver, Protocol):
    """Who is told of the handshake."""

    def ready(self) -> None:
        """There is something to ``step`` on."""

class TlsLink(TcpLink):
    """As ``TcpLink``, once its handshake is done."""

    on_broken: Callable[[TlsLink, ssl.SSLError], None] | None
    """Told what ended it, if that was no goodbye."""

    def shake(self, receiver: Shaking) -> None: ...
    def step(self, context: ssl.SSLContext) -> bool:
        """Go on with the handshake, as far as what came allows: whether it is done. Raises
        SSLError, NotTls and PeerLeft; then nothing more can be done than to abort."""

    @property
    def is_established(self) -> bool: ...
    @property
    def handshake_bytes(self) -> int:
        """What came for the handshake."""

    @property
    def version(self) -> str | None: ...
    @property
    def cipher(self) -> str | None: ...
    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's, verified, as ``ssl`` describes it; None if it sent none."""
