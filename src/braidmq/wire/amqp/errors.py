"""Errors that end a channel or a connection, with what its close method must say.

``code`` is our stable name for logs and metrics, as everywhere; ``reply_code`` is AMQP's number.
"""

from typing import ClassVar

from braidmq.model.errors import BraidError, Kind
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX, ReplyCode


class AmqpError(BraidError):
    """The peer broke a rule. ``class_id`` and ``method_id`` are 0 when no method was to blame."""

    kind = Kind.BAD_REQUEST
    code = "amqp-error"

    def __init__(
        self,
        reply_code: ReplyCode,
        text: str,
        *,
        class_id: int = 0,
        method_id: int = 0,
        logged: str = "",
    ) -> None:
        super().__init__(text)
        self.reply_code = reply_code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id
        self.logged = logged
        """For the log, where the text has what the peer sent in it: that may be a message, or a
        password."""

    @property
    def logged_text(self) -> str:
        return f"{self.reply_code.name} - {self.logged}" if self.logged else self.reply_text

    @property
    def reply_text(self) -> str:
        """``NOT_FOUND - no queue 'q'``, cut to what a short string can carry."""
        whole = f"{self.reply_code.name} - {self.text}".encode(errors="replace")
        if len(whole) > SHORT_STRING_BYTES_MAX:
            whole = whole[: SHORT_STRING_BYTES_MAX - 3] + b"..."
        return whole.decode(errors="ignore")


class ChannelError(AmqpError):
    """Answered with channel.close; the connection lives on."""

    code = "amqp-channel-error"


class ConnectionError_(AmqpError):  # noqa: N801  (the builtin has the plain name)
    """Answered with connection.close."""

    code = "amqp-connection-error"


class _FixedCode(ConnectionError_):
    fixed_reply_code: ClassVar[ReplyCode]

    def __init__(self, text: str, *, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(self.fixed_reply_code, text, class_id=class_id, method_id=method_id)


class FrameError(_FixedCode):
    """Bytes that are no frame, or a payload that does not match its layout."""

    code = "amqp-frame-error"
    fixed_reply_code = ReplyCode.FRAME_ERROR


class SyntaxError_(_FixedCode):  # noqa: N801  (the builtin has the plain name)
    """The layout is right, a value in it is not."""

    code = "amqp-syntax-error"
    fixed_reply_code = ReplyCode.SYNTAX_ERROR


class TableError(SyntaxError_):
    """A field table that is malformed, or larger or deeper than we accept."""

    code = "amqp-table-error"


class UnexpectedFrame(_FixedCode):
    """A frame of another kind, or a header of another class, than must come next."""

    code = "amqp-unexpected-frame"
    fixed_reply_code = ReplyCode.UNEXPECTED_FRAME


class UnknownMethod(_FixedCode):
    code = "amqp-unknown-method"
    fixed_reply_code = ReplyCode.NOT_IMPLEMENTED
