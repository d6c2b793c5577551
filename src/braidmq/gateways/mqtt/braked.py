"""A connection as others see it, and how it is made to wait because it is too fast."""

from typing import TYPE_CHECKING

from braidmq.runtime.sessions import SessionInfo

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection


class Braked:
    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection

    def stop_reading(self) -> None:
        self._connection.transport.pause()

    def read_again(self) -> None:
        self._connection.caught_up()

    def stop_giving(self) -> None:
        if not self._connection.is_closed:
            self._connection.pause_deliveries(True)

    def give_again(self) -> None:
        connection = self._connection
        if not connection.is_closed and not connection.is_full:
            connection.pause_deliveries(False)


def session_info(connection: "MqttConnection", *, blocked: bool) -> SessionInfo:
    return SessionInfo(
        id=connection.session_id,
        protocol="mqtt",
        user=connection.user,
        namespace=connection.namespace,
        peer=connection.transport.peer,
        connected_ms=connection.connected_ms,
        client=connection.client_id,
        channels=0,
        blocked=blocked,
        listener=connection.transport.listener,
    )
