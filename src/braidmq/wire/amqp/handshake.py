"""What a client says while it logs in."""

from typing import Final

from braidmq import __version__
from braidmq.wire.amqp.methods import ConnectionStartOk, ConnectionTune, ConnectionTuneOk
from braidmq.wire.amqp.tables import Table

FRAME_BYTES_MAX: Final = 131_072
"""RabbitMQ's default, and our broker's."""

CHANNEL_MAX: Final = 2047

CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}


def start_ok(product: str, user: str, password: str, name: str = "") -> ConnectionStartOk:
    about: Table = {
        "product": product,
        "version": __version__,
        "platform": "Python",
        "capabilities": CAPABILITIES,
    }
    if name:
        about["connection_name"] = name
    if not user and not password:
        return ConnectionStartOk(about, "EXTERNAL", b"", "en_US")  # its certificate says who it is
    return ConnectionStartOk(about, "PLAIN", f"\0{user}\0{password}".encode(), "en_US")


def tune_ok(offered: ConnectionTune, heartbeat_s: int) -> ConnectionTuneOk:
    """The lower of both limits; 0 is none, on either side."""
    return ConnectionTuneOk(
        min(offered.channel_max or CHANNEL_MAX, CHANNEL_MAX),
        min(offered.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX),
        min(offered.heartbeat or heartbeat_s, heartbeat_s),
    )
