"""A connection as whoever lists or closes connections knows it."""

from typing import TYPE_CHECKING

from braidmq.gateways.amqp.handshake import client_name
from braidmq.runtime.sessions import ChannelInfo, SessionInfo
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection


class AmqpSession:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection

    def describe(self) -> SessionInfo:
        connection = self._connection
        return SessionInfo(
            id=connection.session_id,
            protocol="amqp",
            user=connection.user,
            namespace=connection.vhost,
            peer=connection.peer,
            connected_ms=connection.connected_ms,
            client=client_name(connection.client_properties),
            channels=len(connection.channels),
            blocked=bool(connection.holds),
            listener=connection.transport.listener,
        )

    def describe_channels(self) -> list[ChannelInfo]:
        return [
            ChannelInfo(
                number=channel.number,
                consumers=len(channel.consumers.by_tag),
                unacked=len(channel.consumers.unacked),
                prefetch=channel.consumers.prefetch,
                confirms=channel.publisher.confirms is not None,
            )
            for channel in self._connection.channels.values()
        ]

    def end(self, reason: str) -> None:
        self._connection.close(ConnectionError_(ReplyCode.CONNECTION_FORCED, reason))

    def end_channel(self, number: int, reason: str) -> bool:
        error = ChannelError(ReplyCode.CONNECTION_FORCED, reason)
        return self._connection.close_channel(number, error)

    @property
    def is_traced(self) -> bool:
        return self._connection.is_traced

    def trace(self, wanted: bool) -> None:
        self._connection.trace(wanted)
