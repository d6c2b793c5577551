"""What a connection sent, handled in its order and within its share of time.

One read may bring thousands of commands, and one command may take long: a client decides both. So
events are handled for a while (``READ_S``); the rest, and commands that are done in steps, are
work in slices, and the connection is not read from until all of it is done. The same holds for who
does not read its answers: nothing more is done that would have to be answered.
"""

from collections.abc import Generator, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from braidmq.gateways.amqp.errors import translate
from braidmq.gateways.amqp.handshake import HandshakeBroken
from braidmq.gateways.amqp.holds import Hold
from braidmq.model.errors import BraidError, StorageError
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.errors import AmqpError
from braidmq.wire.amqp.scan import EVENT_ACK, EVENT_FRAME

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

Event = tuple[Any, ...]

OUTPUT_FULL_BYTES = 4 << 20
"""With this much unsent, which is answers then, a connection is not read from. Deliveries stop well
before: who consumes with one hand and answers with the other is heard."""


class InputEvents:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection
        self._events: list[Event] = []
        """What was read last, while some of it is not handled."""
        self._at = 0
        self._steps: Steps | None = None
        """The rest of a method that takes long."""
        self._steps_of: Event = ()
        self._is_put_off = self._is_stepping = False
        self.is_handling = False
        """Whether a method may be done in steps."""

    @property
    def is_behind(self) -> bool:
        """Whether something that was sent is not done."""
        return bool(self._events) or self._steps is not None

    def handle(self, events: list[Event], until: float) -> bool:
        """As ``_handle_some``; what is left is done a slice at a time."""
        self._events, self._at = events, 0
        is_readable = self._handle_some(until)
        if self.is_behind:
            self.put_off()
        return is_readable

    def _handle_some(self, until: float) -> bool:
        """Handle events in their order, until it is time for others or somebody has to wait. False
        if the connection is over and what follows can't be read."""
        connection, events, last = self._connection, self._events, len(self._events) - 1
        is_readable = True
        while self._at <= last:
            at = self._at
            self._at = at + 1
            if at < last and self._is_overtaken(events[at], events[at + 1]):
                continue
            self._handle_one(events[at])
            if connection.is_unheard:
                self._at = last + 1
                is_readable = not connection.is_closing or connection.hear_end(events, at + 1)
            elif self._steps is not None or self._must_be_read() or monotonic() >= until:
                break
        if self._at > last:
            self._events = []
        return is_readable

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
        """Whether the next acknowledgement says all that this one does."""
        if event[0] != EVENT_ACK or following[0] != EVENT_ACK or not (event[4] and following[4]):
            return False
        channel = self._connection.channels.get(event[1])
        return (
            channel is not None
            and event[1] == following[1]
            and channel.consumers.unacked.are_together(event[3], following[3])
        )

    def do(self, steps: Steps) -> None:
        """Have the method that is handled done in steps; what comes after it waits."""
        self._steps = steps
        self._steps_of = self._events[self._at - 1]

    def _must_be_read(self) -> bool:
        """Whether so much is unsent that nothing may be done that would have to be answered."""
        connection = self._connection
        if connection.output_bytes <= OUTPUT_FULL_BYTES:
            return False
        connection.flush()
        if connection.is_socket_full and connection.transport.unsent_bytes > OUTPUT_FULL_BYTES:
            connection.hold(Hold.UNSENT)
            return True
        return connection.held_bytes > OUTPUT_FULL_BYTES

    def put_off(self) -> None:
        """Go on with it a slice at a time, and read no more until it is done."""
        connection = self._connection
        if not connection.hold(Hold.BUSY) or self._is_put_off or connection.holds & Hold.UNSENT:
            return
        node_loop = connection.node_loop
        lsn = node_loop.pending_lsn() if connection.held_bytes > OUTPUT_FULL_BYTES else None
        self._is_put_off = True
        if lsn is None:
            node_loop.work_in_background(self._catch_up(), f"what {connection.peer} asked for")
        else:
            # What it is to be told first waits for the disk.
            node_loop.when_durable(lsn, self._put_off_again)

    def _put_off_again(self, _failure: StorageError | None = None) -> None:
        self._is_put_off = False
        if self.is_behind:
            self.put_off()

    def _catch_up(self) -> Iterator[None]:
        connection = self._connection
        try:
            while self.is_behind and not connection.is_unheard:
                if connection.holds & Hold.UNSENT or connection.held_bytes > OUTPUT_FULL_BYTES:
                    break
                self._catch_up_some()
                yield
        except Exception:
            connection.abort("what it sent could not be handled")
            raise
        finally:
            self._is_put_off = False
        if connection.is_unheard:
            self.forget()
        if self.is_behind:
            self.put_off()
        else:
            connection.release_hold(Hold.BUSY)

    def _catch_up_some(self) -> None:
        connection = self._connection
        try:
            if self._steps is None:
                self._handle_some(0.0)
            else:
                self._step(self._steps)
        except HandshakeBroken:
            connection.drop("the peer does not follow the handshake")
        except AmqpError as error:
            connection.close(error.with_traceback(None))

    def _step(self, steps: Steps) -> None:
        self._is_stepping = True
        try:
            next(steps)
        except StopIteration:
            self._steps = None
        except BraidError as error:
            self._steps = None
            event = self._steps_of
            number = event[2] if event[0] == EVENT_FRAME else event[1]
            self._connection.answer_error(translate(error), number, event)
        finally:
            self._is_stepping = False

    def forget(self) -> None:
        """The connection is over: nothing of it counts any more."""
        self._events = []
        if self._is_stepping:
            return  # a step that ended the connection is left first: ``_catch_up`` comes back here
        steps, self._steps = self._steps, None
        if isinstance(steps, Generator):
            steps.close()
