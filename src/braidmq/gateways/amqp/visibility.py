"""Visibility timeouts of AMQP consumers, by choice.

x-visibility-timeout   milliseconds: a delivery that is not answered in them goes to others, and its
                       tag is unknown from then on
x-visibility-notify    true: the client is told of that with basic.extend and 0, as ours knows it
"""

from braidmq.gateways.amqp.channel import Channel
from braidmq.gateways.amqp.consumers import AmqpConsumer
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.wire.amqp.methods import BasicConsume, BasicExtend

VISIBILITY_MS_MAX = 12 * 3600 * 1000
"""As over HTTP."""

IN_TX = "x-visibility-timeout can't be had on a transactional channel"


def asked(channel: Channel, method: BasicConsume, target: AmqpConsumer) -> int:
    """0 for none: then a delivery is the consumer's until it answers or goes."""
    target.hears_timeouts = method.arguments.get("x-visibility-notify") is True
    given = method.arguments.get("x-visibility-timeout")
    if given is None:
        return 0
    check(given)
    if method.no_ack:
        raise precondition_failed("x-visibility-timeout is for consumers that acknowledge")
    if channel.tx.buffered is not None:
        raise precondition_failed(IN_TX)
    assert isinstance(given, int)
    return given


def extend(channel: Channel, method: BasicExtend) -> None:
    check(method.visibility_ms)
    channel.consumers.extend(method.first_tag, method.last_tag, method.visibility_ms)


def check(given: object) -> None:
    is_whole = isinstance(given, int) and not isinstance(given, bool)
    if not is_whole or not 0 < given <= VISIBILITY_MS_MAX:  # type: ignore[operator]
        raise precondition_failed(
            f"invalid visibility timeout {given!r}: give an integer from 1 to {VISIBILITY_MS_MAX},"
            " in milliseconds"
        )


def require_none(channel: Channel) -> None:
    """Before a channel becomes transactional: answers that wait there could be too late."""
    if any(each.consumer.visibility_ms for each in channel.consumers.by_tag.values()):
        raise precondition_failed(IN_TX)
