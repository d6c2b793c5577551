"""Numbers of AMQP 0-9-1, with the names RabbitMQ gives them."""

from enum import IntEnum
from typing import Final

# Clause 4.2.2: literal "AMQP", protocol id 0, version 0-9-1.
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

FRAME_END: Final = 0xCE
FRAME_BYTES_MIN: Final = 4096  # clause 4.2.3: both peers must accept frames up to this size
SHORT_STRING_BYTES_MAX: Final = 255  # its length is one octet


class FrameKind(IntEnum):
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8


class ClassId(IntEnum):
    CONNECTION = 10
    CHANNEL = 20
    ACCESS = 30
    EXCHANGE = 40
    QUEUE = 50
    BASIC = 60
    CONFIRM = 85
    TX = 90


class ReplyCode(IntEnum):
    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541
