"""The content header: body size and the properties of a message.

    payload   class_id:u16 = 60  weight:u16 = 0  body_size:u64  properties
    properties   flags:u16+  values of the properties whose flag is set, in order

The highest bit of the flags stands for the first property. Bit 0 says that another word of flags
follows; class basic needs one word, so a later one may only be empty.
"""

import struct
from typing import Any, Final

import msgspec

from braidmq.wire.amqp.constants import ClassId
from braidmq.wire.amqp.errors import FrameError, UnexpectedFrame
from braidmq.wire.amqp.tables import (
    Table,
    encode_table,
    read_short_string,
    read_table,
    write_short_string,
)


class Properties(msgspec.Struct, frozen=True):
    """None means absent, which is not the same as empty."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None  # seconds, as the publisher wrote it
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_U16 = struct.Struct(">H")
_CONTENT_HEADER = struct.Struct(">HHQ")
_INTEGER_BYTES: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_FLAGS: Final = {name: 0x8000 >> i for i, name in enumerate(Properties.__struct_fields__)}
_KNOWN_FLAGS: Final = sum(_FLAGS.values())
_CONTINUED: Final = 0x0001

EMPTY_PROPERTIES: Final = b"\x00\x00"


def decode_properties(raw: bytes | memoryview) -> Properties:
    """What follows the body size in a content header. Raises only ``ConnectionError_``s."""
    data = bytes(raw)
    flags, position = _read_flags(data)
    values: dict[str, Any] = {}
    for name, flag in _FLAGS.items():
        if flags & flag:
            values[name], position = _read_property(name, data, position)
    if position != len(data):
        raise FrameError(f"{len(data) - position} bytes after the last property")
    return Properties(**values)


def _read_flags(data: bytes) -> tuple[int, int]:
    first = word = _flag_word(data, 0)
    position = 2
    while word & _CONTINUED:
        word = _flag_word(data, position)
        position += 2
        if word & ~_CONTINUED:
            raise FrameError("flags of properties that class basic does not have")
    if first & ~_KNOWN_FLAGS & ~_CONTINUED:
        raise FrameError("flags of properties that class basic does not have")
    return first, position


def _flag_word(data: bytes, position: int) -> int:
    if position + 2 > len(data):
        raise FrameError("content header ends inside the property flags")
    return int.from_bytes(data[position : position + 2])


def _read_property(name: str, data: bytes, position: int) -> tuple[Any, int]:
    if name == "headers":
        return read_table(data, position)
    size = _INTEGER_BYTES.get(name)
    if size is None:
        return read_short_string(data, position)
    end = position + size
    if end > len(data):
        raise FrameError("content header ends inside a property")
    return int.from_bytes(data[position:end]), end


def encode_properties(properties: Properties) -> bytes:
    """Raises ValueError for a value that its property cannot hold."""
    flags = 0
    parts = [EMPTY_PROPERTIES]
    for name, flag in _FLAGS.items():
        value = getattr(properties, name)
        if value is not None:
            flags |= flag
            parts.append(_write_property(name, value))
    parts[0] = _U16.pack(flags)
    return b"".join(parts)


def _write_property(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    size = _INTEGER_BYTES.get(name)
    if size is None:
        return write_short_string(value)
    try:
        return int(value).to_bytes(size)
    except OverflowError:
        raise ValueError(f"{name} {value} does not fit in {size} bytes") from None


def content_header_payload(body_size: int, raw_properties: bytes | memoryview) -> bytes:
    return b"".join((_CONTENT_HEADER.pack(ClassId.BASIC, 0, body_size), raw_properties))


def split_content_header(payload: bytes | memoryview) -> tuple[int, bytes]:
    """Body size and raw properties, which stay undecoded until somebody asks for them."""
    if len(payload) < _CONTENT_HEADER.size + 2:
        raise FrameError("content header too short")
    class_id, weight, body_size = _CONTENT_HEADER.unpack_from(payload)
    if class_id != ClassId.BASIC or weight != 0:
        raise UnexpectedFrame(
            f"expected a content header of class {ClassId.BASIC.value} and weight 0, "
            f"got class {class_id} and weight {weight}"
        )
    return body_size, bytes(payload[_CONTENT_HEADER.size :])
