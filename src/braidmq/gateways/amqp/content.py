"""A message that comes in frame by frame."""

import struct

from braidmq.wire.amqp.constants import ClassId, FrameKind, ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_
from braidmq.wire.amqp.methods import BasicPublish, frame, method_frame
from braidmq.wire.amqp.properties import content_header_payload, split_content_header


class Content:
    __slots__ = ("body", "method", "properties", "size")

    def __init__(self, method: BasicPublish) -> None:
        self.method = method
        self.size = -1
        """Of the body; unknown before the content header."""
        self.properties = b""
        self.body = bytearray()

    def begin(self, payload: bytes, bytes_max: int) -> None:
        """Take the content header. Raises AmqpError."""
        class_id, weight = struct.unpack_from(">HH", payload)
        if class_id != ClassId.BASIC or weight:
            error = self.interrupted()
            if class_id != ClassId.BASIC:
                error.text = f"expected content header for class 60, got one for class {class_id}"
                error.text += " instead"
            raise error
        self.size, self.properties = split_content_header(payload)
        if self.size > bytes_max:
            raise ChannelError(
                ReplyCode.PRECONDITION_FAILED,
                f"message size {self.size} is larger than configured max size {bytes_max}",
            )

    def interrupted(self) -> ConnectionError_:
        """Something else came where the rest of it must."""
        missing = "content body" if self.size >= 0 else "content header for class 60"
        name = missing.removesuffix(" for class 60")
        return ConnectionError_(
            ReplyCode.UNEXPECTED_FRAME,
            f"expected {missing}, got non {name} frame instead",
            class_id=60,
            method_id=40,
        )

    def frames(self, channel: int) -> bytes:
        """All of it, the body in one frame."""
        header = content_header_payload(len(self.body), self.properties)
        body = frame(FrameKind.BODY, channel, bytes(self.body)) if self.body else b""
        return b"".join(
            (method_frame(channel, self.method), frame(FrameKind.HEADER, channel, header), body)
        )
