"""The beginning of every connection over TLS: when there is time for it, and what ends it.

A handshake is a millisecond of computing that any stranger can ask for, so those who are connected
come first: in each turn of the loop handshakes get a slice of it, in the order in which they came.
None may take long, and of a crowd that never goes on the first ones go. A gateway hears of a
connection when its handshake is done.
"""

import asyncio
import logging
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from braidmq.logs import FewLines
from braidmq.net.lingering import Lingering
from braidmq.net.tcp import TcpLink
from braidmq.net.tls import NotTls, PeerLeft, TlsLink
from braidmq.net.tls_contexts import TlsContext, user_of
from braidmq.net.transport import Receiver

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.002
"""What handshakes may take of a turn of the loop; one is worked on in any case."""

HANDSHAKES_MAX: Final = 1024
"""Under way at once. With one more the first of them goes: it has had longest."""

ALERT: Final = b"\x15\x03\x01\x00\x02\x02\x46"
"""What a peer that speaks TLS to a plain port understands: a fatal alert, protocol_version."""

TLS_HANDSHAKE: Final = 0x16

WORDS: Final = {
    "UNSUPPORTED_PROTOCOL": "the client only knows versions of TLS that are too old",
    "VERSION_TOO_LOW": "the client only knows versions of TLS that are too old",
    "NO_SHARED_CIPHER": "the client knows none of the ciphers that are allowed here",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and this listener"
    " requires one",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not know the authority that signed the node's"
    " certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the node's certificate expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not take the node's certificate, perhaps"
    " because it has another host name",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not take the node's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client only knows versions of TLS that are too old",
    "WRONG_VERSION_NUMBER": "what the client sent is no record of TLS",
    "HTTP_REQUEST": "the client speaks plain HTTP",
}

failures = FewLines(logger, "more connections failed at TLS")
strays = FewLines(logger, "more clients spoke TLS to plain ports")


class HandshakeCounts:
    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """By listener."""


class TlsPort:
    """A listener of TLS: its new connections."""

    def __init__(self, handshakes: "Handshakes", name: str, context: TlsContext) -> None:
        self.name = name
        self.current = context
        """What those get that come now."""
        self._handshakes = handshakes

    def begin(self, link: TlsLink, connect: Callable[[TlsLink], Receiver]) -> None:
        """``connect`` is called once the handshake is done."""
        self._handshakes.begin(link, self, connect)


class Handshakes:
    """Those of a node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.counts = HandshakeCounts()
        self._loop = loop
        self._underway = Lingering(loop, timeout_s, HANDSHAKES_MAX)
        self.refused = Lingering(loop)
        self._ready: deque[_Handshake] = deque()
        self._spent_s = 0.0
        self._is_due = False

    def __len__(self) -> int:
        return len(self._underway)

    def begin(self, link: TlsLink, port: TlsPort, connect: Callable[[TlsLink], Receiver]) -> None:
        handshake = _Handshake(self, link, port, connect)
        link.on_broken = self._broken
        self._underway.add(handshake)
        link.shake(handshake)

    def ready(self, handshake: "_Handshake") -> None:
        """Its peer sent something."""
        if self._spent_s < SLICE_S and not self._ready:
            self._work_on(handshake)
        else:
            handshake.link.pause()
            self._ready.append(handshake)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next_turn)

    def over(self, handshake: "_Handshake") -> None:
        self._underway.discard(handshake)

    def fail(self, link: TlsLink, listener: str, reason: str) -> None:
        self.counts.failed[listener] += 1
        failures.say(
            "TLS handshake failed",
            {"listener": listener, "peer": link.peer, "reason": reason},
        )

    def replace(self, timeout_s: float) -> None:
        self._underway.replace(timeout_s)

    def close(self) -> None:
        self._underway.stop()
        self.refused.stop()

    def _next_turn(self) -> None:
        self._is_due, self._spent_s = False, 0.0
        while self._ready and self._spent_s < SLICE_S:
            handshake = self._ready.popleft()
            if not handshake.is_over:
                handshake.link.resume()
                self._work_on(handshake)
        if self._ready:
            self._is_due = True
            self._loop.call_soon(self._next_turn)

    def _work_on(self, handshake: "_Handshake") -> None:
        began_s = time.perf_counter()
        handshake.step()
        self._spent_s += time.perf_counter() - began_s

    def _broken(self, link: TlsLink, error: ssl.SSLError) -> None:
        """After the handshake."""
        failures.say(
            "TLS connection broken",
            {"listener": link.listener, "peer": link.peer, "reason": reason_of(error)},
        )


class _Handshake:
    """One of them: the link's receiver until there is another."""

    wanted_bytes = 0

    def __init__(
        self,
        handshakes: Handshakes,
        link: TlsLink,
        port: TlsPort,
        connect: Callable[[TlsLink], Receiver],
    ) -> None:
        self.link = link
        self.is_over = False
        self._handshakes = handshakes
        self._port = port
        self._context = port.current
        self._connect = connect

    def ready(self) -> None:
        self._handshakes.ready(self)

    def step(self) -> None:
        try:
            is_done = self.link.step(self._context.ssl)
        except PeerLeft:
            self._leave()
        except NotTls as error:
            self._end(f"what the client sends is not TLS but {_looks_like(error.args[0])}")
        except ssl.SSLError as error:
            self._end(reason_of(error), is_told=True)
        else:
            if is_done:
                self._done()

    def abort(self) -> None:
        """It took too long, or too many are under way."""
        self._end("it took too long")

    def lost(self) -> None:
        self._handshakes.refused.discard(self.link)
        if not self.is_over:
            self._leave()

    def _leave(self) -> None:
        # Load balancers knock, and say nothing: no news to most.
        self._end("the client left in the middle of it" if self.link.handshake_bytes else "")

    def receive(self, data: memoryview, size: int) -> int:
        raise AssertionError("nothing is offered before the handshake is done")

    def pause_output(self, paused: bool) -> None:
        """What a handshake sends is little."""

    def refuse_output(self, text: str) -> None:
        """As above."""

    def _done(self) -> None:
        self.is_over = True
        self._handshakes.over(self)
        self._handshakes.counts.done[self._port.name] += 1
        link, user_from = self.link, self._context.user_from
        if user_from is not None:
            certificate = link.certificate
            if certificate is not None:
                link.certified_user = user_of(certificate, user_from)
        link.start(self._connect(link))

    def _end(self, reason: str, *, is_told: bool = False) -> None:
        """``is_told``: it was sent an alert, and has a moment to read that."""
        if not self.is_over:
            self.is_over = True
            self._handshakes.over(self)
            if reason:
                self._handshakes.fail(self.link, self._port.name, reason)
            if is_told:
                self._handshakes.refused.add(self.link)
                self.link.finish()
            else:
                self.link.abort()


def reason_of(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return WORDS.get(reason) or reason.lower().replace("_", " ") or str(error)


def _looks_like(beginning: bytes) -> str:
    if beginning.startswith(b"AMQP"):
        return "plain AMQP"
    if beginning[:1] == b"\x10":
        return "plain MQTT"
    if beginning.split(b" ", 1)[0] in (b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS"):
        return "plain HTTP"
    return "something else"


def refuse_tls(link: TcpLink) -> None:
    """Its peer speaks TLS, and the port is plain."""
    note_tls(link.listener, link.peer)
    link.write(ALERT)
    link.finish()


def is_tls(data: bytes) -> bool:
    """Whether a connection to a plain port begins as TLS does."""
    return data[:1] == bytes((TLS_HANDSHAKE,))


def note_tls(listener: str, peer: str) -> None:
    strays.say(
        "connection refused: the client speaks TLS, and this port is plain",
        {"listener": listener, "peer": peer},
    )
