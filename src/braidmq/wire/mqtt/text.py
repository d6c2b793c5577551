"""Strings, binary data and integers of variable length; topic names and filters.

string   length:u16  UTF-8, no U+0000, no surrogates (1.5.4)
binary   length:u16  bytes
variable integer      seven bits a byte, lowest first, high bit: another follows (1.5.5)

$share/{group}/{filter}   a shared subscription (4.8.2)
"""

import struct
from typing import Final, NamedTuple

from braidmq.model.filters import misplaced_wildcard
from braidmq.wire.mqtt.constants import (
    REMAINING_LENGTH_MAX,
    STRING_BYTES_MAX,
    VARIABLE_INTEGER_BYTES_MAX,
)
from braidmq.wire.mqtt.errors import MalformedPacket, ProtocolError

SHARE_PREFIX: Final = "$share/"

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


class Reader:
    """A packet's body, read from the front. Whatever is not there is the peer's mistake."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self._data = data
        self._end = len(data) if end is None else end
        self.at = at

    @property
    def left(self) -> int:
        return self._end - self.at

    def take(self, count: int) -> bytes:
        start = self.at
        if count > self._end - start:
            raise MalformedPacket("the packet ends inside a field")
        self.at = start + count
        return self._data[start : self.at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def part(self, count: int) -> "Reader":
        """The next ``count`` bytes by themselves."""
        start = self.at
        self.take(count)
        return Reader(self._data, start, self.at)

    def byte(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError:
            raise MalformedPacket("a string is not well-formed UTF-8") from None
        if "\0" in text:
            raise MalformedPacket("a string contains U+0000")
        return text

    def variable(self) -> int:
        value = 0
        for index in range(VARIABLE_INTEGER_BYTES_MAX):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if index and not byte:
                    # MQTT-1.5.5-1
                    raise MalformedPacket("a variable integer is not in its shortest form")
                return value
        raise MalformedPacket("a variable integer of more than four bytes")

    def finish(self) -> None:
        if self.left:
            raise MalformedPacket(f"{self.left} bytes too many at the end of the packet")


# --- writing ---


def write_binary(value: bytes) -> bytes:
    if len(value) > STRING_BYTES_MAX:
        raise ValueError(f"{len(value)} bytes, at most {STRING_BYTES_MAX} fit")
    return _U16.pack(len(value)) + value


def write_string(value: str) -> bytes:
    return write_binary(value.encode())


def write_variable(value: int) -> bytes:
    if not 0 <= value <= REMAINING_LENGTH_MAX:
        raise ValueError(f"{value} does not fit in a variable integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- topics ---


class Shared(NamedTuple):
    group: str
    filter: str


def check_topic(topic: str) -> None:
    """A name to publish to: at least one character, no wildcards (4.7)."""
    if not topic:
        raise ProtocolError("the topic name is empty")
    if "+" in topic or "#" in topic:
        raise ProtocolError(f"wildcards in the topic name {topic!r}")


def check_filter(pattern: str) -> None:
    """Wildcards are whole levels, and '#' is the last of them (4.7.1)."""
    if not pattern:
        raise ProtocolError("a topic filter is empty")
    problem = misplaced_wildcard(pattern)
    if problem is not None:
        raise MalformedPacket(problem)


def split_share(pattern: str) -> Shared | None:
    """Group and filter of a shared subscription; None for any other filter."""
    if not pattern.startswith(SHARE_PREFIX):
        return None
    group, slash, inner = pattern.removeprefix(SHARE_PREFIX).partition("/")
    # MQTT-4.8.2-1 and -2
    if not group or not slash or not inner or "+" in group or "#" in group:
        raise ProtocolError(f"{pattern!r} is not $share/group/filter")
    return Shared(group, inner)


def check_subscription(pattern: str) -> Shared | None:
    """Refuse what can't be subscribed to; tells whether it is shared."""
    shared = split_share(pattern)
    check_filter(pattern if shared is None else shared.filter)
    return shared
