"""Who a peer says it is, while it logs in."""

import struct

from braidmq.wire.amqp.methods import ConnectionStartOk
from braidmq.wire.amqp.tables import decode_table


class HandshakeBroken(Exception):
    """The peer does not follow the handshake."""


def credentials(method: ConnectionStartOk) -> tuple[str, str]:
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
