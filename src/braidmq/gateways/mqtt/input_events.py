"""What a connection sent, as packets: those that wait do not refer to what was read."""

from typing import TYPE_CHECKING

from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import Arrival
from braidmq.model.errors import BraidError
from braidmq.runtime.input_events import Event, InputEvents
from braidmq.wire.mqtt.scan import EVENT_PUBLISH

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

NOTHING = memoryview(b"")


class PacketEvents(InputEvents):
    def __init__(self, connection: "MqttConnection") -> None:
        super().__init__(connection.node_loop, connection.transport.peer)
        self._connection = connection
        self._view = NOTHING
        """What was read, while it is handled."""

    def handle_read(self, events: list[Event], view: memoryview, until: float) -> None:
        self._view = view
        self.handle(events, until)
        self._view = NOTHING

    def put_off(self) -> None:
        self._connection.transport.pause()
        self._events = [self._kept(each) for each in self._events[self._at :]]
        self._at = 0
        super().put_off()

    def _kept(self, event: Event) -> Event:
        if event[0] != EVENT_PUBLISH or self._view is NOTHING:
            return event
        run, connection = event[1], self._connection
        now_ms = connection.node_loop.now_ms()
        arrival = Arrival.of_run(run, self._view, connection.version, now_ms)
        return EVENT_PUBLISH, arrival.kept(), run.packet_ids

    def _handle_one(self, event: Event) -> None:
        if self.is_late and event[0] == EVENT_PUBLISH:
            self._connection.take(event[1], event[2])
        else:
            self._connection.handle(event, self._view)

    def _is_over(self) -> bool:
        return self._connection.is_closed

    def _catch_up_some(self) -> None:
        try:
            super()._catch_up_some()
        except BraidError as error:
            self._connection.fail(translate(error.with_traceback(None)))

    def _abort(self) -> None:
        self._connection.transport.abort()

    def _caught_up(self) -> None:
        self._connection.caught_up()

    def forget(self) -> None:
        self._view = NOTHING
        super().forget()
