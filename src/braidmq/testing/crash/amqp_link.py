"""AMQP for many messages with little work: publishes in windows, deliveries as they come."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from braidmq.testing.crash.clients import Gone, Link, NoAnswer
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.handshake import start_ok, tune_ok
from braidmq.wire.amqp.properties import Properties, content_header_payload, encode_properties

_FRAME = struct.Struct(">BHI")
FRAME_END = 0xCE


class Delivered(NamedTuple):
    method: m.Method
    body: bytes


class Refused(Exception):
    """The broker closed the channel or the connection and said why."""


class AmqpLink(Link):
    """One connection with one channel."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.send(PROTOCOL_HEADER)
        self._expect(m.ConnectionStart)
        self._write(0, start_ok("crash lab", "guest", "guest"))
        tune = self._expect(m.ConnectionTune)
        self._write(0, tune_ok(tune, heartbeat_s=0))
        self._write(0, m.ConnectionOpen("/"))
        self._expect(m.ConnectionOpenOk)
        self.call(m.ChannelOpen())

    def _write(self, channel: int, method: m.Method) -> None:
        self.send(m.method_frame(channel, method))

    def call(self, method: m.Method) -> m.Method:
        self._write(1, method)
        answer: m.Method = self._expect(method.REPLIES[0])
        return answer

    def tell(self, method: m.Method) -> None:
        self._write(1, method)

    def _expect(self, kind: Any) -> Any:
        while True:
            for method, _ in self.events():
                if isinstance(method, kind):
                    return method
            if not self.receive():
                raise NoAnswer(f"{kind.__name__} did not come")

    def events(self) -> Iterator[Delivered]:
        """What is there: methods, those with content together with their body."""
        start, data = 0, self.input
        pending: m.Method | None = None
        left, body, taken = 0, b"", 0
        try:
            while len(data) - start >= 7:
                kind, _, size = _FRAME.unpack_from(data, start)
                if len(data) - start < size + 8:
                    break
                payload = bytes(data[start + 7 : start + 7 + size])
                start += size + 8
                if kind == FrameKind.METHOD:
                    method = m.decode(payload)
                    if isinstance(method, (m.ChannelClose, m.ConnectionClose)):
                        raise _closed(method)
                    if isinstance(method, (m.BasicDeliver, m.BasicGetOk, m.BasicReturn)):
                        pending = method
                        continue
                    taken = start
                    yield Delivered(method, b"")
                    continue
                if kind == FrameKind.HEADER:
                    left, body = int.from_bytes(payload[4:12], "big"), b""
                elif kind == FrameKind.BODY:
                    body += payload
                    left -= len(payload)
                if pending is not None and left == 0 and kind != FrameKind.HEARTBEAT:
                    method, pending, taken = pending, None, start
                    yield Delivered(method, body)
        finally:
            del data[:taken]


def _closed(method: m.ChannelClose | m.ConnectionClose) -> Exception:
    if method.reply_code == 320:  # CONNECTION_FORCED: the node stops
        return Gone()
    return Refused(f"{type(method).__name__} {method.reply_code} {method.reply_text}")


def content(
    exchange: str, key: str, body: bytes, headers: Mapping[str, Any] | None = None
) -> bytes:
    """The frames of a persistent message."""
    properties = encode_properties(
        Properties(delivery_mode=2, headers=dict(headers) if headers else None)
    )
    head = content_header_payload(len(body), properties)
    return b"".join(
        (
            m.method_frame(1, m.BasicPublish(exchange, key)),
            _frame(FrameKind.HEADER, head),
            _frame(FrameKind.BODY, body),
        )
    )


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, 1, len(payload)) + payload + bytes((FRAME_END,))
