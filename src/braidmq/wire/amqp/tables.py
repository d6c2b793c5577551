"""Field tables and arrays in RabbitMQ's dialect, and the two kinds of string.

    table   size:u32  { key_size:u8 key  type:u8 value }*        size counts what follows it
    array   size:u32  { type:u8 value }*

    t bool      b i8    B u8    s i16   u u16   I i32   i u32   l i64   L i64
    f f32       d f64   D scale:u8 i32          T seconds:u64
    S size:u32 text     x size:u32 bytes        A array         F table         V nothing

The specification gives some letters other meanings ('s' a short string, 'L' unsigned); these are
RabbitMQ's, except that it reads the digits of D unsigned and we, like pika, signed.
Decoders work with offsets into one ``bytes``, so each byte is read
once however deep the nesting.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, TypeAlias

from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.amqp.errors import FrameError, TableError

FieldValue: TypeAlias = (
    "bool | int | float | str | bytes | Decimal | datetime"
    " | list[FieldValue] | dict[str, FieldValue] | None"
)
Table: TypeAlias = dict[str, FieldValue]

TABLE_DEPTH_MAX: Final = 32  # our decoder recurses; real tables are three or four deep (x-death)
TABLE_BYTES_MAX: Final = 1_048_576  # a table lies in one frame: keep frame_max below
TABLE_VALUES_MAX: Final = 16_384  # five bytes of wire can become a dict of 64: bounds the memory

_U32 = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")
_SCALARS: Final = {
    ord(letter): struct.Struct(">" + layout)
    for letter, layout in zip("tbBsuIilLfd", "?bBhHiIqqfd", strict=True)
}
_S, _X, _A, _F, _V, _T, _D = b"SxAFVTD"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX: Final = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())


# --- strings ---


def read_short_string(raw: bytes, position: int) -> tuple[str, int]:
    if position >= len(raw):
        raise FrameError("payload ends inside a short string")
    start = position + 1
    end = start + raw[position]
    if end > len(raw):
        raise FrameError("payload ends inside a short string")
    try:
        return raw[start:end].decode(), end
    except UnicodeDecodeError:
        raise FrameError("malformed UTF-8 in a short string") from None


def read_long_string(raw: bytes, position: int) -> tuple[bytes, int]:
    start = position + 4
    if start > len(raw):
        raise FrameError("payload ends inside a long string")
    end = start + _U32.unpack_from(raw, position)[0]
    if end > len(raw):
        raise FrameError("payload ends inside a long string")
    return raw[start:end], end


def write_short_string(value: str) -> bytes:
    data = value.encode()
    if len(data) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"short string of {len(data)} bytes, at most {SHORT_STRING_BYTES_MAX}")
    return bytes((len(data),)) + data


def write_long_string(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


# --- decoding ---


class _Reader:
    """One table from a peer; counts its values, since a few bytes can make many objects."""

    __slots__ = ("raw", "values_left")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.values_left = TABLE_VALUES_MAX

    def table(self, position: int, end: int, depth: int) -> Table:
        if depth > TABLE_DEPTH_MAX:
            raise TableError(f"field table nested deeper than {TABLE_DEPTH_MAX}")
        table: Table = {}
        while position < end:
            key, position = self._key(position, end)
            value, position = self._value(position, end, depth)
            # RabbitMQ looks keys up from the front of a list, so the first of two equals counts.
            table.setdefault(key, value)
        return table

    def array(self, position: int, end: int, depth: int) -> list[FieldValue]:
        if depth > TABLE_DEPTH_MAX:
            raise TableError(f"field table nested deeper than {TABLE_DEPTH_MAX}")
        array: list[FieldValue] = []
        while position < end:
            value, position = self._value(position, end, depth)
            array.append(value)
        return array

    def _key(self, position: int, end: int) -> tuple[str, int]:
        start = position + 1
        stop = start + self.raw[position]
        if stop > end:
            raise TableError("field table ends inside a key")
        try:
            return self.raw[start:stop].decode(), stop
        except UnicodeDecodeError:
            raise TableError("malformed UTF-8 in a field table key") from None

    def _value(self, position: int, end: int, depth: int) -> tuple[FieldValue, int]:
        if position >= end:
            raise TableError("field table ends before a value")
        self.values_left -= 1
        if self.values_left < 0:
            raise TableError(f"field table of more than {TABLE_VALUES_MAX} values")
        letter = self.raw[position]
        position += 1
        scalar = _SCALARS.get(letter)
        if scalar is not None:
            self._need(position, scalar.size, end)
            return scalar.unpack_from(self.raw, position)[0], position + scalar.size
        if letter == _V:
            return None, position
        if letter == _T:
            self._need(position, 8, end)
            return _timestamp(int.from_bytes(self.raw[position : position + 8])), position + 8
        if letter == _D:
            self._need(position, 5, end)
            scale, digits = _DECIMAL.unpack_from(self.raw, position)
            return Decimal(digits).scaleb(-scale), position + 5
        return self._sized(letter, position, end, depth)

    def _sized(self, letter: int, position: int, end: int, depth: int) -> tuple[FieldValue, int]:
        if letter not in b"SxAF":
            raise TableError(f"unknown field type {bytes((letter,))!r}")
        self._need(position, 4, end)
        size = _U32.unpack_from(self.raw, position)[0]
        position += 4
        self._need(position, size, end)
        stop = position + size
        if letter == _S:
            return _text(self.raw[position:stop]), stop
        if letter == _X:
            return self.raw[position:stop], stop
        if letter == _A:
            return self.array(position, stop, depth + 1), stop
        return self.table(position, stop, depth + 1), stop

    @staticmethod
    def _need(position: int, size: int, end: int) -> None:
        if position + size > end:
            raise TableError("field table ends inside a value")


def _text(data: bytes) -> str | bytes:
    # A long string may hold any bytes; what is not text stays bytes, as in RabbitMQ's clients.
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _timestamp(seconds: int) -> datetime | int:
    # Some clients put milliseconds here. RabbitMQ takes any u64, so a date we cannot hold is no
    # reason to close the connection.
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _SECONDS_MAX else seconds


def read_table(raw: bytes, position: int) -> tuple[Table, int]:
    """The table that starts with its size at ``position``, and where it ends."""
    start = position + 4
    if start > len(raw):
        raise FrameError("payload ends inside a field table")
    size = _U32.unpack_from(raw, position)[0]
    if size > TABLE_BYTES_MAX:
        raise TableError(f"field table of {size} bytes, at most {TABLE_BYTES_MAX}")
    if start + size > len(raw):
        raise FrameError("payload ends inside a field table")
    return _Reader(raw).table(start, start + size, 1), start + size


def decode_table(raw: bytes | memoryview) -> Table:
    """A whole table, with its size in front."""
    data = bytes(raw)
    table, end = read_table(data, 0)
    if end != len(data):
        raise TableError("bytes after the end of a field table")
    return table


# --- encoding: a value that cannot be written is our mistake, hence ValueError and TypeError ---


def encode_table(table: Mapping[str, FieldValue]) -> bytes:
    return _table_bytes(table, 1)


def _table_bytes(table: Mapping[str, FieldValue], depth: int) -> bytes:
    _check_depth(depth)
    body = b"".join(
        [write_short_string(key) + _value_bytes(value, depth) for key, value in table.items()]
    )
    return _U32.pack(len(body)) + body


def _array_bytes(array: list[FieldValue] | tuple[FieldValue, ...], depth: int) -> bytes:
    _check_depth(depth)
    body = b"".join([_value_bytes(value, depth) for value in array])
    return _U32.pack(len(body)) + body


def _check_depth(depth: int) -> None:
    if depth > TABLE_DEPTH_MAX:
        raise ValueError(f"field table nested deeper than {TABLE_DEPTH_MAX}")


def _value_bytes(value: FieldValue, depth: int) -> bytes:
    writer = _WRITERS.get(type(value)) or _writer_for(value)
    return writer(value, depth)


def _writer_for(value: FieldValue) -> "_Writer":
    """For subclasses (an enum is an int or a str) and read-only mappings."""
    for kind, writer in _WRITERS.items():
        if isinstance(value, kind):
            return writer
    if isinstance(value, Mapping):
        return _WRITERS[dict]
    raise TypeError(f"no field type for {type(value).__name__}")


class Long(int):
    """An integer that is written with 64 bits however small it is."""


def _write_long(value: int, _depth: int) -> bytes:
    return struct.pack(">cq", b"l", value)


def _write_int(value: int, _depth: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack(">ci", b"I", value)
    if -(1 << 63) <= value < 1 << 63:
        return struct.pack(">cq", b"l", value)
    raise ValueError(f"{value} does not fit in 64 bits")


def _write_decimal(value: Decimal, _depth: int) -> bytes:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -255 <= exponent <= 9:
        raise ValueError(f"{value} is not a decimal of scale 0 to 255")
    scale = max(0, -exponent)
    digits = int(value.scaleb(scale))
    if not -(1 << 31) <= digits < 1 << 31:
        raise ValueError(f"{value} has more digits than fit in 32 bits")
    return struct.pack(">cBi", b"D", scale, digits)


def _write_datetime(value: datetime, _depth: int) -> bytes:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    seconds = (aware - _EPOCH).days * 86_400 + (aware - _EPOCH).seconds
    if seconds < 0:
        raise ValueError(f"{value} is before 1970")
    return struct.pack(">cQ", b"T", seconds)


_Writer: TypeAlias = Callable[..., bytes]
# bool stands before int, whose subclass it is.
_WRITERS: Final[dict[type, _Writer]] = {
    Long: _write_long,
    bool: lambda value, _depth: b"t\x01" if value else b"t\x00",
    int: _write_int,
    str: lambda value, _depth: b"S" + write_long_string(value.encode()),
    bytes: lambda value, _depth: b"x" + write_long_string(value),
    float: lambda value, _depth: struct.pack(">cd", b"d", value),
    type(None): lambda _value, _depth: b"V",
    dict: lambda value, depth: b"F" + _table_bytes(value, depth + 1),
    list: lambda value, depth: b"A" + _array_bytes(value, depth + 1),
    tuple: lambda value, depth: b"A" + _array_bytes(value, depth + 1),
    datetime: _write_datetime,
    Decimal: _write_decimal,
}
