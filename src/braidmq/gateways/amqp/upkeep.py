"""What is looked at on every connection about once a second."""

from braidmq.gateways.amqp.connection import AmqpConnection
from braidmq.gateways.amqp.holds import UNREAD, Hold
from braidmq.wire.amqp.methods import HEARTBEAT_FRAME


def check_consumers(connection: AmqpConnection, now_ms: int) -> None:
    """Close channels that hold a delivery unanswered for too long: a stuck consumer would keep
    its messages for ever."""
    timeout_ms = int(connection.gateway.settings.consumer_timeout_s * 1000)
    for channel in list(connection.channels.values()) if timeout_ms else ():
        overdue = channel.consumers.overdue(now_ms, timeout_ms)
        if overdue is not None:
            connection.close_channel(channel.number, overdue)


def beat(connection: AmqpConnection, now: float) -> None:
    """Send a heartbeat when due, hang up on a silent peer."""
    if not connection.heartbeat_s or not connection.opened:
        return
    if now - connection.last_sent >= connection.heartbeat_s / 2:
        connection.send(HEARTBEAT_FRAME)
    # Two missed ones, and the time until anybody looks: RabbitMQ gives as much.
    if (
        now - connection.last_received > 3 * connection.heartbeat_s
        and not connection.holds & UNREAD
    ):
        connection.abort("heartbeats were missed")


def check_parked(connection: AmqpConnection, now: float) -> None:
    """Somebody else gets what it has, if it could not be heard for too long because
    too many of its publishes wait."""
    if connection.parking is not None and connection.holds & Hold.PARKED:
        overdue = connection.parking.overdue(now)
        if overdue is not None:
            connection.close(overdue)
