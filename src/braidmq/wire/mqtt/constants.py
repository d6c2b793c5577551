"""Numbers of MQTT 3.1, 3.1.1 and 5.0, with the specification's names."""

from enum import IntEnum
from typing import Final

REMAINING_LENGTH_MAX: Final = 268_435_455  # four bytes of seven bits (2.1.4)
VARIABLE_INTEGER_BYTES_MAX: Final = 4
STRING_BYTES_MAX: Final = 65_535  # its length is two bytes (1.5.4)
PACKET_ID_MAX: Final = 65_535
QOS_MAX: Final = 2


class Version(IntEnum):
    """The protocol level in CONNECT. Packets of 3.1 and 3.1.1 are the same, but for what 3.1 says
    nothing of: flags that must be as they are, whether a session is present."""

    V3_1 = 3
    V3_1_1 = 4
    V5 = 5


PROTOCOL_NAMES: Final = {Version.V3_1: "MQIsdp", Version.V3_1_1: "MQTT", Version.V5: "MQTT"}
BRIDGE: Final = 0x80
"""Beside the level, not in version 5: the client is a bridge, as Mosquitto's say of themselves. It
gets nothing back that it published, and retained messages as such."""


class Kind(IntEnum):
    """The high half of a packet's first byte. 0 is forbidden."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


FLAGS: Final[dict[Kind, int]] = dict.fromkeys(set(Kind) - {Kind.PUBLISH}, 0) | {
    Kind.PUBREL: 2,
    Kind.SUBSCRIBE: 2,
    Kind.UNSUBSCRIBE: 2,
}
"""The low half of the first byte, where it is fixed (2.1.3)."""


class Reason(IntEnum):
    """Reason codes of version 5 (2.4). From 0x80 on they are errors."""

    SUCCESS = 0x00  # also: normal disconnection, granted QoS 0
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_TAKEN: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})

REASONS: Final[dict[Kind, frozenset[int]]] = {
    Kind.CONNACK: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97})
    | {0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    Kind.PUBACK: _TAKEN,
    Kind.PUBREC: _TAKEN,
    Kind.PUBREL: _RELEASED,
    Kind.PUBCOMP: _RELEASED,
    Kind.SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    Kind.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    Kind.DISCONNECT: frozenset({0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C})
    | frozenset({*range(0x8D, 0x91), *range(0x93, 0xA3)}),
    Kind.AUTH: frozenset({0x00, 0x18, 0x19}),
}
"""The reason codes each packet may carry (2.4, table 2-6)."""

RETURN_CODES: Final[dict[Reason, int]] = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}
"""What CONNACK of 3.1.1 can say; for any other reason it says nothing and closes."""
SUBSCRIBE_FAILED: Final = 0x80
"""What SUBACK of 3.1.1 says of every failure."""
