"""What a connection says of this server, and how a peer says who it is."""

import struct
from typing import Any

from braidmq import __version__
from braidmq.wire.amqp.methods import ConnectionStart, ConnectionStartOk
from braidmq.wire.amqp.tables import Table, decode_table

CAPABILITIES: Table = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "braid.retry": True,
    "braid.transactions": True,
}


class HandshakeBroken(Exception):
    """The peer does not follow the handshake."""


def greeting(node: str) -> ConnectionStart:
    return ConnectionStart(
        server_properties={
            "capabilities": CAPABILITIES,
            "cluster_name": f"braid@{node}",
            "copyright": "The BraidMQ authors",
            "information": "Licensed under the Apache License 2.0",
            "platform": "Python",
            "product": "BraidMQ",
            "version": __version__,
        },
        mechanisms=b"PLAIN AMQPLAIN",
    )


def client_name(properties: dict[str, Any]) -> str:
    """Of the program, or what it is made with."""
    name = properties.get("connection_name") or properties.get("product")
    return name if isinstance(name, str) else ""


def is_capable(properties: dict[str, Any], of: str) -> bool:
    """Whether a client said so of itself."""
    capabilities = properties.get("capabilities") or {}
    return bool(capabilities.get(of))


def credentials(method: ConnectionStartOk) -> tuple[str, str]:
    """User and password. Raises HandshakeBroken."""
    try:
        if method.mechanism == "PLAIN":
            identity, user, password = method.response.split(b"\0")
            if identity:
                raise HandshakeBroken
            return user.decode(), password.decode()
        if method.mechanism == "AMQPLAIN":
            table = decode_table(struct.pack(">I", len(method.response)) + method.response)
            return _text(table["LOGIN"]), _text(table["PASSWORD"])
    except (ValueError, KeyError, AttributeError):
        raise HandshakeBroken from None
    raise HandshakeBroken


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
