"""What a connection sent, as frames. Who does not read its answers waits as well: nothing more is
done that would have to be answered."""

from typing import TYPE_CHECKING

from braidmq.gateways.amqp.errors import translate
from braidmq.gateways.amqp.handshake import HandshakeBroken
from braidmq.gateways.amqp.holds import Hold
from braidmq.model.errors import BraidError, StorageError
from braidmq.runtime.input_events import Event, InputEvents
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.errors import AmqpError
from braidmq.wire.amqp.scan import EVENT_ACK, EVENT_FRAME

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

OUTPUT_FULL_BYTES = 4 << 20
"""With this much unsent, which is answers then, a connection is not read from. Deliveries stop well
before: who consumes with one hand and answers with the other is heard."""


class FrameEvents(InputEvents):
    def __init__(self, connection: "AmqpConnection") -> None:
        super().__init__(connection.node_loop, connection.peer)
        self._connection = connection
        self._steps_of: Event = ()
        self._is_readable = True
        self.is_handling = False
        """Whether a method may be done in steps."""

    def handle_read(self, events: list[Event], until: float) -> bool:
        """False if the connection is over and what follows can't be read."""
        self._is_readable = True
        self.handle(events, until)
        return self._is_readable

    def _handle_one(self, event: Event) -> None:
        self.is_handling = True
        try:
            self._connection.handle(event)
        except AmqpError as error:
            # Frames of a traceback may know the error, which would be garbage to be collected.
            self._connection.close(error.with_traceback(None))
        finally:
            self.is_handling = False

    def _is_overtaken(self, event: Event, following: Event) -> bool:
        if event[0] != EVENT_ACK or following[0] != EVENT_ACK or not (event[4] and following[4]):
            return False
        channel = self._connection.channels.get(event[1])
        return (
            channel is not None
            and event[1] == following[1]
            and channel.consumers.unacked.are_together(event[3], following[3])
        )

    def _is_over(self) -> bool:
        return self._connection.is_unheard

    def _ended(self, events: list[Event], first: int) -> None:
        connection = self._connection
        self._is_readable = not connection.is_closing or connection.hear_end(events, first)

    def do(self, steps: Steps) -> None:
        super().do(steps)
        self._steps_of = self._events[self._at - 1]

    def _must_wait(self) -> bool:
        connection = self._connection
        if connection.output_bytes <= OUTPUT_FULL_BYTES:
            return False
        connection.flush()
        if connection.is_socket_full and connection.transport.unsent_bytes > OUTPUT_FULL_BYTES:
            connection.hold(Hold.UNSENT)
            return True
        return connection.held_bytes > OUTPUT_FULL_BYTES

    def _is_held(self) -> bool:
        connection = self._connection
        return bool(connection.holds & Hold.UNSENT) or connection.held_bytes > OUTPUT_FULL_BYTES

    def put_off(self) -> None:
        """Go on with it a slice at a time, and read no more until it is done."""
        connection = self._connection
        if not connection.hold(Hold.BUSY) or self.is_late or connection.holds & Hold.UNSENT:
            return
        node_loop = connection.node_loop
        lsn = node_loop.pending_lsn() if connection.held_bytes > OUTPUT_FULL_BYTES else None
        if lsn is None:
            super().put_off()
        else:
            # What it is to be told first waits for the disk.
            self.is_late = True
            node_loop.when_durable(lsn, self._put_off_again)

    def _put_off_again(self, _failure: StorageError | None = None) -> None:
        self.is_late = False
        if self.is_behind:
            self.put_off()

    def _catch_up_some(self) -> None:
        try:
            super()._catch_up_some()
        except HandshakeBroken:
            self._connection.drop("the peer does not follow the handshake")
        except AmqpError as error:
            self._connection.close(error.with_traceback(None))

    def _step_failed(self, error: BraidError) -> None:
        event = self._steps_of
        number = event[2] if event[0] == EVENT_FRAME else event[1]
        self._connection.answer_error(translate(error), number, event)

    def _abort(self) -> None:
        self._connection.abort("what it sent could not be handled")

    def _caught_up(self) -> None:
        self._connection.release_hold(Hold.BUSY)
