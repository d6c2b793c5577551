"""Errors that end a connection, with the reason code its DISCONNECT or CONNACK must say.

``code`` is our stable name for logs and metrics, as everywhere; ``reason`` is MQTT 5's number. A
3.1.1 client hears a reason only in CONNACK and only if ``return_code`` has one: else we close.
"""

from typing import ClassVar

from braidmq.model.errors import BraidError
from braidmq.model.errors import Kind as ErrorKind
from braidmq.wire.mqtt.constants import RETURN_CODES, Reason


class MqttError(BraidError):
    """The peer broke a rule, or asked for what it can't have."""

    kind = ErrorKind.BAD_REQUEST
    code = "mqtt-error"

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def return_code(self) -> int | None:
        """What CONNACK of 3.1.1 says; None: nothing, the connection is closed."""
        return RETURN_CODES.get(self.reason)


class _FixedReason(MqttError):
    fixed_reason: ClassVar[Reason]

    def __init__(self, text: str) -> None:
        super().__init__(self.fixed_reason, text)


class MalformedPacket(_FixedReason):
    """Bytes that can't be read as the packet they claim to be."""

    code = "mqtt-malformed-packet"
    fixed_reason = Reason.MALFORMED_PACKET


class ProtocolError(_FixedReason):
    """A packet that can be read and must not be sent, or not now."""

    code = "mqtt-protocol-error"
    fixed_reason = Reason.PROTOCOL_ERROR


class UnsupportedVersion(_FixedReason):
    """Another protocol, or a level of it that we don't speak."""

    code = "mqtt-unsupported-version"
    fixed_reason = Reason.UNSUPPORTED_PROTOCOL_VERSION


class ClientIdInvalid(_FixedReason):
    code = "mqtt-client-id-invalid"
    fixed_reason = Reason.CLIENT_IDENTIFIER_NOT_VALID


class UseAnotherServer(MqttError):
    """What 3.1.1 has no words for, and hears as being unavailable."""

    code = "mqtt-use-another-server"

    def __init__(self, server: str, speaks_v5: bool) -> None:
        reason = Reason.USE_ANOTHER_SERVER if speaks_v5 else Reason.SERVER_UNAVAILABLE
        super().__init__(reason, f"connect to {server}")
        self.server = server


class TopicAliasInvalid(_FixedReason):
    code = "mqtt-topic-alias-invalid"
    fixed_reason = Reason.TOPIC_ALIAS_INVALID


class PacketTooLarge(_FixedReason):
    code = "mqtt-packet-too-large"
    fixed_reason = Reason.PACKET_TOO_LARGE


class ReceiveMaximumExceeded(_FixedReason):
    code = "mqtt-receive-maximum-exceeded"
    fixed_reason = Reason.RECEIVE_MAXIMUM_EXCEEDED


_BY_REASON = {
    each.fixed_reason: each
    for each in (
        MalformedPacket,
        ProtocolError,
        TopicAliasInvalid,
        PacketTooLarge,
        ReceiveMaximumExceeded,
    )
}


def scan_error(reason: int, text: str) -> MqttError:
    """The error that the scanner's EVENT_ERROR stands for."""
    return _BY_REASON[Reason(reason)](text)
