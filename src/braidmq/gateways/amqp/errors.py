"""Errors as AMQP answers them: the one place where the engine's errors become AMQP's."""

from braidmq.engine.errors import ExclusiveConsumer, MessageTooLarge
from braidmq.model.errors import BraidError, Kind
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import AmqpError, ChannelError, ConnectionError_


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
}


def translate(error: BraidError) -> AmqpError:
    if isinstance(error, AmqpError):
        return error
    if isinstance(error, ExclusiveConsumer):
        return access_refused(str(error))
    if isinstance(error, MessageTooLarge):
        return precondition_failed(str(error))
    code = _BY_KIND.get(error.kind)
    if code is None:
        return ConnectionError_(ReplyCode.INTERNAL_ERROR, str(error))
    return ChannelError(code, str(error))
