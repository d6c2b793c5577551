"""Giving back what channels had: at once, but for so many consumers that others would wait."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from braidmq.gateways.amqp.output import ClosedChannels
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.methods import ChannelCloseOk

if TYPE_CHECKING:
    from braidmq.gateways.amqp.channel import Channel
    from braidmq.runtime.node_loop import NodeLoop

CONSUMERS_AT_ONCE = 1000
"""More than these are given back in slices."""


def end_channels(
    node_loop: "NodeLoop",
    channels: "list[Channel]",
    *,
    left: bool = False,
    then: Callable[[], None] | None = None,
) -> None:
    """Nobody waits for it: the connection is over, or the channel closed because of an error."""
    node_loop.flush_batch()  # what they published comes before their end
    is_long = sum([len(channel.consumers.by_tag) for channel in channels]) > CONSUMERS_AT_ONCE
    steps = _all(node_loop, [channel.ending(left=left) for channel in channels], then)
    if is_long:
        node_loop.work_in_background(steps, "giving back what a connection had")
    else:
        _exhaust(steps)


def _all(
    node_loop: "NodeLoop", endings: list[Steps], then: Callable[[], None] | None
) -> Iterator[object]:
    for each in endings:
        yield from node_loop.letting_go(each)
    if then is not None:
        node_loop.let_go(then)


def close_channel(channel: "Channel", closed: ClosedChannels) -> Steps | None:
    """The client closes it, and is answered when all is given back. What is left of that if it has
    to be done in slices: what comes behind it has to wait."""
    channel.node_loop.flush_batch()  # what it published comes before its end
    is_long = len(channel.consumers.by_tag) > CONSUMERS_AT_ONCE
    ending = channel.node_loop.letting_go(channel.ending(left=True))
    if is_long and channel.connection.input.is_handling:
        return _closing(channel, ending, closed)
    _exhaust(ending)
    _answer(channel, closed)
    return None


def _closing(channel: "Channel", ending: Steps, closed: ClosedChannels) -> Iterator[None]:
    try:
        for _ in ending:
            yield
    except GeneratorExit:
        # The connection is over: nobody waits for the rest.
        channel.node_loop.work_in_background(ending, "giving back what a channel had")
        raise
    _answer(channel, closed)


def _answer(channel: "Channel", closed: ClosedChannels) -> None:
    channel.output.reply(ChannelCloseOk())
    closed.part(channel.number, channel.output)


def _exhaust(steps: Steps) -> None:
    for _ in steps:
        pass
