"""A connection that is made to wait because it is too fast."""

from typing import TYPE_CHECKING

from braidmq.gateways.amqp.holds import Hold

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

RECEIVE_BYTES = 16 << 10
"""What is read at once of who was too fast: what is read counts, however much it is."""


class Braked:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection

    def stop_reading(self) -> None:
        if self._connection.hold(Hold.TOO_FAST):
            transport = self._connection.transport
            transport.receive_bytes = min(transport.receive_bytes, RECEIVE_BYTES)

    def read_again(self) -> None:
        self._connection.release_hold(Hold.TOO_FAST)

    def stop_giving(self) -> None:
        self._connection.pause_consumers()

    def give_again(self) -> None:
        if not self._connection.is_socket_full:
            self._connection.resume_consumers()
