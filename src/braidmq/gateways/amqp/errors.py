"""Errors as AMQP answers them: the one place where the engine's errors become AMQP's."""

import struct
from typing import Any

from braidmq.engine.errors import (
    ExclusiveConsumer,
    LimitReached,
    MessageTooLarge,
    PartitionClosed,
    PartitionRequired,
    UnknownPartition,
)
from braidmq.engine.transactions.errors import EVERY as TRANSACTION_ERRORS
from braidmq.model.errors import BraidError, Kind, PartitionQuarantined
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.wire.amqp.constants import FrameKind, ReplyCode
from braidmq.wire.amqp.errors import AmqpError, ChannelError, ConnectionError_
from braidmq.wire.amqp.scan import EVENT_ACK, EVENT_FRAME, EVENT_PUBLISH, describe_octets


def precondition_failed(text: str) -> ChannelError:
    return ChannelError(ReplyCode.PRECONDITION_FAILED, text)


def no_queue(name: str, vhost: str) -> ChannelError:
    return ChannelError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")


def no_exchange(name: str, vhost: str) -> ChannelError:
    return ChannelError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")


def access_refused(text: str) -> ChannelError:
    return ChannelError(ReplyCode.ACCESS_REFUSED, text)


def resource_locked(name: str, vhost: str) -> ChannelError:
    return ChannelError(
        ReplyCode.RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be"
        " originally declared on another connection or the exclusive property value does not match"
        " that of the original declaration.",
    )


_BY_KIND = {
    Kind.NOT_FOUND: ReplyCode.NOT_FOUND,
    Kind.CONFLICT: ReplyCode.PRECONDITION_FAILED,
    Kind.BAD_REQUEST: ReplyCode.PRECONDITION_FAILED,
    Kind.TOO_LARGE: ReplyCode.PRECONDITION_FAILED,
    Kind.REFUSED: ReplyCode.PRECONDITION_FAILED,
    Kind.FORBIDDEN: ReplyCode.ACCESS_REFUSED,
}


WITH_CODE = (
    *TRANSACTION_ERRORS,
    UnknownPartition,
    PartitionClosed,
    PartitionRequired,
    LimitReached,
    RateExceeded,
)
"""Errors whose code a client of ours is told, as the text's beginning."""


def translate(error: BraidError) -> AmqpError:
    if isinstance(error, AmqpError):
        return error
    if isinstance(error, ExclusiveConsumer):
        return access_refused(str(error))
    if isinstance(error, MessageTooLarge):
        return precondition_failed(str(error))
    if isinstance(error, PartitionQuarantined):
        # "The server may require intervention by an operator": of this queue, not of the others.
        return ChannelError(ReplyCode.INTERNAL_ERROR, f"{error.code}: {error.args[0]}")
    code = _BY_KIND.get(error.kind)
    if code is None:
        return ConnectionError_(ReplyCode.INTERNAL_ERROR, str(error))
    if isinstance(error, WITH_CODE):
        # AMQP has four codes for all there is: the text begins with ours, for our client.
        return ChannelError(code, f"{error.code}: {error.args[0]}")
    return ChannelError(code, str(error))


def unknown_frame(kind: int, payload: bytes) -> ConnectionError_:
    text = f"type {kind}, all octets = {describe_octets(payload)}: unknown_frame"
    logged = f"type {kind}, {len(payload)} octets: unknown_frame"
    return ConnectionError_(ReplyCode.FRAME_ERROR, text, logged=logged)


def without_octets(fault: str) -> str:
    """What the scanner finds wrong with a frame, but for what is in the frame."""
    frame, quoted, rest = fault.partition(", all octets = ")
    return f"{frame}: {{{rest.rpartition(': {')[2]}" if quoted else fault


def blamed(event: tuple[Any, ...]) -> tuple[int, int]:
    """Class and method id of what an error answers."""
    if event[0] == EVENT_PUBLISH:
        return 60, 40
    if event[0] == EVENT_ACK:
        return 60, 80
    if event[0] == EVENT_FRAME and event[1] == FrameKind.METHOD and len(event[3]) >= 4:
        return struct.unpack(">HH", event[3][:4])
    if event[0] == EVENT_FRAME and event[1] in (FrameKind.HEADER, FrameKind.BODY):
        return 60, 40
    return 0, 0
