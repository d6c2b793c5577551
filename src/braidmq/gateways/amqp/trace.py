"""Everything one connection says and hears, decoded, in the log: for whoever looks for a mistake.

It reads the bytes for itself, beside the fast path and not in it. Bodies are only counted, and what
a login is made of is left out.
"""

import struct
from typing import Any

import msgspec

from braidmq.logs import TRACE, Subject
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.errors import AmqpError
from braidmq.wire.amqp.methods import decode
from braidmq.wire.amqp.properties import decode_properties, split_content_header

FRAME_HEAD = struct.Struct(">BHI")
SECRETS = frozenset({"response", "challenge", "new_secret"})


class Trace:
    def __init__(self, connection: Subject, unread: bytes) -> None:
        """``unread``: the start of a frame whose rest is still to come."""
        self._connection = connection
        self._received = bytearray(unread)

    def received(self, data: bytes | memoryview) -> None:
        self._received += data
        self._split("received", self._received)

    def sent(self, data: bytes) -> None:
        """Whole frames only: nothing else is ever written."""
        self._split("sent", bytearray(data))

    def _split(self, direction: str, data: bytearray) -> None:
        at = len(PROTOCOL_HEADER) if data.startswith(b"AMQP") else 0
        while len(data) - at >= FRAME_HEAD.size:
            kind, channel, size = FRAME_HEAD.unpack_from(data, at)
            end = at + FRAME_HEAD.size + size + 1
            if len(data) < end:
                break
            payload = bytes(data[at + FRAME_HEAD.size : end - 1])
            what, facts = _decoded(kind, payload)
            facts = {**self._connection.log_fields(), "channel": channel, **facts}
            TRACE.info(f"{direction} {what}", extra=facts)
            at = end
        del data[:at]


def _decoded(kind: int, payload: bytes) -> tuple[str, dict[str, Any]]:
    try:
        if kind == FrameKind.METHOD:
            method = decode(payload)
            return method.NAME, {"arguments": _without_secrets(msgspec.structs.asdict(method))}
        if kind == FrameKind.HEADER:
            size, raw = split_content_header(payload)
            given = msgspec.structs.asdict(decode_properties(raw))
            properties = {name: value for name, value in given.items() if value is not None}
            return "content header", {"body_bytes": size, "properties": properties}
        if kind == FrameKind.BODY:
            return "content body", {"bytes": len(payload)}
        if kind == FrameKind.HEARTBEAT:
            return "heartbeat", {}
    except AmqpError as error:
        return "a frame that can't be read", {"kind": kind, "reason": str(error)}
    return "a frame of unknown kind", {"kind": kind, "bytes": len(payload)}


def _without_secrets(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: "(secret)" if name in SECRETS else _text(value) for name, value in arguments.items()
    }


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
