"""A message that comes in frame by frame."""

from braidmq.wire.amqp.constants import FrameKind
from braidmq.wire.amqp.methods import BasicPublish, frame, method_frame
from braidmq.wire.amqp.properties import content_header_payload


class Content:
    __slots__ = ("body", "method", "properties", "size")

    def __init__(self, method: BasicPublish) -> None:
        self.method = method
        self.size = -1
        """Of the body; unknown before the content header."""
        self.properties = b""
        self.body = bytearray()

    def frames(self, channel: int) -> bytes:
        """All of it, the body in one frame."""
        header = content_header_payload(len(self.body), self.properties)
        body = frame(FrameKind.BODY, channel, bytes(self.body)) if self.body else b""
        return b"".join(
            (method_frame(channel, self.method), frame(FrameKind.HEADER, channel, header), body)
        )
