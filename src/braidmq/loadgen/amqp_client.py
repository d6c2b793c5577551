"""One AMQP connection: calls while it is set up, then bytes."""

import time
from typing import TypeVar

from braidmq.client.address import Address
from braidmq.loadgen.amqp_load import Consumer, Publisher, scan
from braidmq.loadgen.arrivals import Arrivals
from braidmq.loadgen.link import CALL_S_MAX, Link, LoadFailed
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.handshake import start_ok, tune_ok
from braidmq.wire.amqp.methods import (
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    Method,
    decode,
    method_frame,
)
from braidmq.wire.amqp.tables import Table

CHANNEL = 1
"""The one channel of each connection."""

_MethodT = TypeVar("_MethodT", bound=Method)


class Client(Link):
    """``call`` blocks; after ``start`` there are only ``receive`` and ``send``."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.host, address.port, address.tls)
        self.blocked = False
        self.server = ""
        self._log_in(address)

    def _log_in(self, address: Address) -> None:
        self.say(PROTOCOL_HEADER)
        start = self._expect(ConnectionStart)
        self.server = _server_name(start.server_properties)
        answer = start_ok("braid bench", address.user, address.password)
        tune = self._ask(answer, ConnectionTune, channel=0)
        # No heartbeats: a run is shorter than any timeout worth having, and always busy.
        self._write(0, tune_ok(tune, heartbeat_s=0))
        self._ask(ConnectionOpen(address.vhost), ConnectionOpenOk, channel=0)
        self._ask(ChannelOpen(), ChannelOpenOk)

    # --- set-up, blocking ---

    def call(self, method: Method) -> Method:
        return self._ask(method, method.REPLIES[0])

    def _ask(self, method: Method, reply: type[_MethodT], channel: int = CHANNEL) -> _MethodT:
        self._write(channel, method)
        return self._expect(reply)

    def _write(self, channel: int, method: Method) -> None:
        self.say(method_frame(channel, method))

    def _expect(self, wanted: type[_MethodT]) -> _MethodT:
        while True:
            for method in self.receive(None, None, None):
                if isinstance(method, wanted):
                    return method

    def close(self) -> None:
        try:
            self.socket.settimeout(CALL_S_MAX)
            self._ask(ConnectionClose(200, "done"), ConnectionCloseOk, channel=0)
        except (OSError, LoadFailed, ValueError):
            pass  # whatever was to be learnt is known by now
        finally:
            self.socket.close()

    # --- load ---

    def receive(
        self, publisher: Publisher | None, consumer: Consumer | None, arrivals: Arrivals | None
    ) -> list[Method]:
        """Take what is there; gives the methods that are neither confirms nor deliveries."""
        buffer, size = self._fill()
        if not size:
            return []
        took, frames = scan(buffer, size, publisher, consumer, arrivals, time.perf_counter_ns())
        self._keep(took, size)
        return [self._read(payload) for kind, _, payload in frames if kind == FrameKind.METHOD]

    def _read(self, payload: bytes) -> Method:
        method = decode(payload)
        if isinstance(method, ConnectionClose | ChannelClose):
            raise LoadFailed(f"the broker closed: {method.reply_code} {method.reply_text}")
        if isinstance(method, ConnectionBlocked | ConnectionUnblocked):
            self.blocked = isinstance(method, ConnectionBlocked)
        return method

    def send_method(self, method: Method) -> None:
        self.send(method_frame(CHANNEL, method))


def _server_name(properties: Table) -> str:
    """Ours calls itself RabbitMQ; what it is stands beside that."""
    platform = properties.get("platform")
    if isinstance(platform, str) and platform.startswith("BraidMQ "):
        return platform
    named = (properties.get(name) for name in ("product", "version"))
    return " ".join(each for each in named if isinstance(each, str))
