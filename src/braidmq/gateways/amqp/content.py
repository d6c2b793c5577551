"""A message that comes in frame by frame."""

import struct

from braidmq.record.open_record import OpenRecord
from braidmq.wire.amqp.constants import ClassId, FrameKind, ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_, FrameError
from braidmq.wire.amqp.methods import BasicPublish, frame, method_frame
from braidmq.wire.amqp.properties import content_header_payload, split_content_header
from braidmq.wire.amqp.scan import EVENT_PUBLISH, scan

Publish = tuple[int, int, int, bytes, bytes, object, object]
"""As the scanner has it."""


class Content:
    __slots__ = ("_event", "_record", "method", "size")

    def __init__(self, method: BasicPublish) -> None:
        self.method = method
        self.size = -1
        """Of the body; unknown before the content header."""
        self._record: OpenRecord | None = None
        self._event: Publish | None = None

    def begin(self, channel: int, payload: bytes, bytes_max: int, now_ms: int) -> None:
        """Take the content header. Raises AmqpError."""
        class_id, weight = struct.unpack_from(">HH", payload)
        if class_id != ClassId.BASIC or weight:
            error = self.interrupted()
            if class_id != ClassId.BASIC:
                error.text = f"expected content header for class 60, got one for class {class_id}"
                error.text += " instead"
            raise error
        self.size, properties = split_content_header(payload)
        if self.size > bytes_max:
            raise ChannelError(
                ReplyCode.PRECONDITION_FAILED,
                f"message size {self.size} is larger than configured max size {bytes_max}",
            )
        self._open(channel, properties, now_ms)

    def _open(self, channel: int, properties: bytes, now_ms: int) -> None:
        """As the scanner would read it with an empty body, so that there is one way in."""
        header = frame(FrameKind.HEADER, channel, content_header_payload(0, properties))
        frames = method_frame(channel, self.method) + header
        events, _ = scan(frames, len(frames), len(frames), now_ms, True)
        if len(events) != 1 or events[0][0] != EVENT_PUBLISH:
            raise FrameError("content can't be read")
        self._event = events[0]
        self._record = OpenRecord(events[0][5], self.size)

    @property
    def is_whole(self) -> bool:
        return self._record is not None and self._record.is_whole

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return 0 if self._record is None else self._record.held_bytes

    def fits(self, payload: bytes) -> bool:
        """Whether the body may have so much more."""
        return self._record is not None and self._record.filled + len(payload) <= self.size

    def fill(self, payload: bytes) -> None:
        assert self._record is not None
        self._record.fill(payload)

    def event(self, now_ms: int) -> Publish:
        """All of it, as the scanner hands out messages that came in one piece."""
        assert self._record is not None
        assert self._event is not None
        self._record.seal(now_ms)
        return self._event

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
