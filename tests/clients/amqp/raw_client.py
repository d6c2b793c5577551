"""A blocking AMQP client of a few lines, for what no polite client does: half frames, wrong order,
silence, a socket nobody reads."""

import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.properties import (
    Properties,
    content_header_payload,
    decode_properties,
    encode_properties,
    split_content_header,
)

WAIT_S = 20.0
FRAME_MAX = 131_072
CAPABILITIES = {
    "basic.nack": True,
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
PERSISTENT = encode_properties(Properties(delivery_mode=2))

M = TypeVar("M", bound=m.Method)


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


class Gone(Exception):
    """The broker hung up."""


class Listening(Protocol):
    @property
    def ports(self) -> dict[str, int]: ...


class RawClient:
    login = b"\0guest\0guest"

    def __init__(self, node: Listening, receive_buffer_bytes: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(("127.0.0.1", node.ports["amqp_port"]))
        self._input = bytearray()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # --- out ---

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except ConnectionError as error:
            raise Gone from error

    def method(self, channel: int, *methods: m.Method) -> None:
        self.send(b"".join(m.method_frame(channel, method) for method in methods))

    def publish(self, channel: int, key: str, body: bytes, exchange: str = "") -> None:
        self.send(content_frames(channel, m.BasicPublish(exchange, key), body))

    # --- in ---

    def frame(self) -> Frame:
        """The next frame that is not a heartbeat. Raises Gone at the end."""
        while True:
            found = self._parse()
            if found is None:
                self._receive()
            elif found.kind != FrameKind.HEARTBEAT:
                return found

    def _parse(self) -> Frame | None:
        if len(self._input) < 7:
            return None
        kind, channel, size = struct.unpack_from(">BHI", self._input)
        if len(self._input) < size + 8:
            return None
        assert self._input[size + 7] == 0xCE
        payload = bytes(self._input[7 : size + 7])
        del self._input[: size + 8]
        return Frame(kind, channel, payload)

    def _receive(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionError as error:
            raise Gone from error
        if not data:
            raise Gone
        self._input += data

    def next_method(self) -> tuple[int, m.Method]:
        frame = self.frame()
        assert frame.kind == FrameKind.METHOD, frame
        return frame.channel, m.decode(frame.payload)

    def expect(self, kind: type[M], channel: int | None = None) -> M:
        at, method = self.next_method()
        assert isinstance(method, kind), method
        assert channel is None or at == channel
        return method

    def ask(self, channel: int, method: m.Method, kind: type[M]) -> M:
        self.method(channel, method)
        return self.expect(kind, channel)

    def content(self) -> tuple[Properties, bytes]:
        """What follows a basic.deliver, get-ok or return."""
        header = self.frame()
        assert header.kind == FrameKind.HEADER
        size, raw = split_content_header(header.payload)
        body = bytearray()
        while len(body) < size:
            piece = self.frame()
            assert piece.kind == FrameKind.BODY
            body += piece.payload
        return decode_properties(raw), bytes(body)

    def expect_end(self) -> None:
        """The broker hangs up, whatever it still says before."""
        for _ in self._rest():
            pass

    def _rest(self) -> Iterator[Frame]:
        while True:
            try:
                yield self.frame()
            except Gone:
                return

    # --- the handshake ---

    def start(self, heartbeat_s: int = 0, capabilities: Any = CAPABILITIES) -> None:
        """Up to connection.tune-ok."""
        self.send(PROTOCOL_HEADER)
        self.expect(m.ConnectionStart)
        self.ask(
            0,
            m.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", self.login),
            m.ConnectionTune,
        )
        self.method(0, m.ConnectionTuneOk(2047, FRAME_MAX, heartbeat_s))

    def open(
        self, *channels: int, heartbeat_s: int = 0, capabilities: Any = CAPABILITIES
    ) -> "RawClient":
        self.start(heartbeat_s, capabilities)
        self.ask(0, m.ConnectionOpen("/"), m.ConnectionOpenOk)
        for channel in channels:
            self.ask(channel, m.ChannelOpen(), m.ChannelOpenOk)
        return self

    def declare(self, queue: str, channel: int = 1, **flags: Any) -> m.QueueDeclareOk:
        return self.ask(channel, m.QueueDeclare(queue, **flags), m.QueueDeclareOk)


def content_frames(
    channel: int, publish: m.BasicPublish, body: bytes, properties: bytes = PERSISTENT
) -> bytes:
    """A whole message: the method, the header and as many body frames as it takes."""
    piece = FRAME_MAX - 8
    return b"".join(
        (
            m.method_frame(channel, publish),
            m.frame(FrameKind.HEADER, channel, content_header_payload(len(body), properties)),
            *(
                m.frame(FrameKind.BODY, channel, body[at : at + piece])
                for at in range(0, len(body), piece)
            ),
        )
    )
