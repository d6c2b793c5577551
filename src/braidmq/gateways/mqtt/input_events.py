"""What a connection sent, handled in its order and within its share of time.

One read may bring thousands of packets, and one packet may take long: a client decides both. So
they are handled for a while (``READ_S``); the rest, and packets that are done in steps, are work in
slices, and the connection is not read from until all of it is done.
"""

from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import Arrival
from braidmq.model.errors import BraidError
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.mqtt.scan import EVENT_PUBLISH

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

Event = tuple[Any, ...]

NOTHING = memoryview(b"")
"""Events that were put off do not refer to what was read."""


class InputEvents:
    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self._late: deque[Event] = deque()
        """What was read last and is not handled yet."""
        self._steps: Steps | None = None
        """The rest of a packet that takes long."""
        self.is_late = False
        """There is some of either, or will be: what comes now comes after it."""

    def handle(self, events: list[Event], view: memoryview, until: float) -> None:
        """Handle events in their order; from then on the rest is done a slice at a time."""
        connection = self._connection
        for event in events:
            if self.is_late:
                self._put_off(event, view)
                continue
            connection.handle(event, view)
            if connection.is_closed:
                return
            self.is_late = self._steps is not None or monotonic() >= until
        self.is_late = bool(self._late) or self._steps is not None
        if self.is_late:
            connection.transport.pause()
            what = f"what {connection.transport.peer} asked for"
            connection.node_loop.work_in_background(self._catch_up(), what)

    def do(self, steps: Steps) -> None:
        """Have the packet that is handled done in steps; what comes after it waits."""
        self._steps = steps

    def _put_off(self, event: Event, view: memoryview) -> None:
        """Keep it, for when those before it are done."""
        if event[0] == EVENT_PUBLISH:
            run, connection = event[1], self._connection
            now_ms = connection.node_loop.now_ms()
            arrival = Arrival.of_run(run, view, connection.version, now_ms)
            event = (EVENT_PUBLISH, arrival.kept(), run.packet_ids)
        self._late.append(event)

    def _catch_up(self) -> Iterator[None]:
        """A slice at a time; nothing more is read until it is done."""
        connection = self._connection
        try:
            while (self._late or self._steps is not None) and not connection.is_closed:
                self._catch_up_some()
                yield
        except Exception:
            connection.transport.abort()
            raise
        self.forget()
        self.is_late = False
        connection.caught_up()

    def _catch_up_some(self) -> None:
        connection = self._connection
        try:
            if self._steps is not None:
                if next(self._steps, self) is self:
                    self._steps = None
                return
            event = self._late.popleft()
            if event[0] == EVENT_PUBLISH:
                connection.take(event[1], event[2])
            else:
                connection.handle(event, NOTHING)
        except BraidError as error:
            connection.fail(translate(error.with_traceback(None)))

    def forget(self) -> None:
        """Nothing of it counts any more."""
        self._late.clear()
        self._steps = None
