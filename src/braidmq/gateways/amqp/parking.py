"""What waits of a connection while memory or disk is low: its publishes, and what must not overtake
them. Acknowledgements, and all else that makes room, go ahead."""

from typing import TYPE_CHECKING, Any

from braidmq.gateways.amqp.errors import translate
from braidmq.model.errors import BraidError
from braidmq.runtime.parked import PARKED_S, Parked
from braidmq.wire.amqp.constants import FrameKind, ReplyCode
from braidmq.wire.amqp.errors import AmqpError, ConnectionError_
from braidmq.wire.amqp.scan import EVENT_ACK, EVENT_PUBLISH

if TYPE_CHECKING:
    from braidmq.gateways.amqp.channel import Channel
    from braidmq.gateways.amqp.connection import AmqpConnection

Event = tuple[Any, ...]
Waiting = tuple[Event, "Channel | None", int]
"""An event, its channel, and the generation of routes it was read with."""

CONNECTION_CLOSE = b"\0\x0a\0\x32"
CHANNEL_CLOSE = b"\0\x14\0\x28"
GOING_AHEAD = frozenset(
    {
        b"\0\x14\0\x0a",  # channel.open, if the one before was closed
        b"\0\x14\0\x14",  # channel.flow
        b"\0\x14\0\x29",  # channel.close-ok
        b"\0\x3c\0\x0a",  # basic.qos
        b"\0\x3c\0\x14",  # basic.consume
        b"\0\x3c\0\x1e",  # basic.cancel
        b"\0\x3c\0\x46",  # basic.get
        b"\0\x3c\0\x50",  # basic.ack
        b"\0\x3c\0\x5a",  # basic.reject
        b"\0\x3c\0\x6e",  # basic.recover
        b"\0\x3c\0\x78",  # basic.nack
    }
)
"""Methods that may overtake publishes of their channel: to consume and to answer makes room."""
PUBLISH = b"\0\x3c\0\x28"


class Parking:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection
        self._waiting: Parked[Waiting] = Parked(connection.share)
        self._publishes_only: dict[int, bool] = {}
        """By channel with something that waits."""
        self.since_s = connection.node_loop.loop.time()
        """When the connection was not read any more because too much waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._waiting.is_full

    def add(self, event: Event, number: int) -> None:
        connection = self._connection
        is_publish = event[0] == EVENT_PUBLISH
        size = event[5].memory_bytes if is_publish else len(event[3]) if len(event) == 4 else 0
        only = self._publishes_only.get(number, True)
        self._publishes_only[number] = only and is_publish
        waiting = event, connection.channels.get(number), connection.routes.generation
        self._waiting.add(waiting, size)

    def must_wait(self, event: Event) -> bool:
        """Whether it would overtake what it must not."""
        is_ack = event[0] == EVENT_ACK
        if not is_ack and event[1] != FrameKind.METHOD:
            return False  # a heartbeat, or a piece of a publish: that waits when it is whole
        number = event[1] if is_ack else event[2]
        if number == 0:
            return bool(event[3][:4] == CONNECTION_CLOSE)
        only_publishes = self._publishes_only.get(number)
        if only_publishes is None:
            return False
        channel = self._connection.channels.get(number)
        if not is_ack and event[3][:4] == PUBLISH:
            return False
        if channel is not None and channel.tx.buffered is not None:
            return True  # an acknowledgement belongs to the commit that follows it
        if is_ack or event[3][:4] in GOING_AHEAD:
            return False
        return not (event[3][:4] == CHANNEL_CLOSE and only_publishes)

    def take(self) -> Waiting:
        waiting = self._waiting.take()
        if not self._waiting:
            self._publishes_only.clear()
        return waiting

    def empty(self) -> bool:
        """Let the connection handle what waits, as far as there is room; whether nothing is left.
        Of a connection that ends nothing is."""
        connection = self._connection
        try:
            while len(self) and not connection.is_closing and not connection.node_loop.is_blocked():
                self._handle(*self.take())
        except AmqpError as error:
            connection.close(error.with_traceback(None))
        if connection.is_closing:
            self.clear()
        return not len(self)

    def _handle(self, event: Event, channel: "Channel | None", generation: int) -> None:
        connection = self._connection
        is_publish = event[0] == EVENT_PUBLISH
        if is_publish and (channel is None or channel.is_closed):
            if channel is not None and channel.tx.buffered is None:
                channel.publisher.publish_late(event)
            return
        if is_publish and event[6] is not None and generation != connection.routes.generation:
            assert channel is not None
            try:
                channel.publisher.publish_each(event[2], event[5])
            except BraidError as error:
                connection.answer_error(translate(error), channel.number, event)
            return
        connection.handle(event)

    def overdue(self, now_s: float) -> ConnectionError_ | None:
        """Why the connection has to end, if it could not be heard for too long: others get what it
        has to answer for."""
        connection = self._connection
        if now_s - self.since_s <= PARKED_S or not has_to_answer(connection):
            return None
        return ConnectionError_(
            ReplyCode.RESOURCE_ERROR,
            f"publishers are blocked ({connection.node_loop.view.pressure.reason}),"
            f" {len(self)} publishes wait, and acknowledgements may be behind"
            " them: what is not acknowledged goes to other consumers",
        )

    def clear(self) -> None:
        self._waiting.clear()
        self._publishes_only.clear()


def has_to_answer(connection: "AmqpConnection") -> bool:
    """Whether it has deliveries, or may get some."""
    return any(
        channel.consumers.by_tag or channel.consumers.unacked
        for channel in connection.channels.values()
    )
