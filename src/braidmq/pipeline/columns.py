"""Records as the rows of a DataFrame: buffers of the kernels become Arrow columns.

``SCHEMA`` is as Spark would write it, down to the names inside: it takes batches only if their
schema is the very same.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from braidmq.record.batch import FLAG_KEYED
from braidmq.storage.reader import COLUMNS
from braidmq.wire.header_columns import (
    WANT_ATTEMPTS,
    WANT_HEADERS,
    WANT_ROUTING,
    WANT_TRACE,
    header_columns,
    tagged_envelopes,
)

if TYPE_CHECKING:
    from braidmq.record.columns import Column  # a name for types alone: the kernel has none

TIME = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
DELIVERY = pa.struct(
    [
        pa.field("protocol", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("flags", pa.int32()),
        pa.field("expires_at", TIME),
        pa.field("deliver_at", TIME),
        pa.field("attempts", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIME),
        pa.field("priority", pa.int32()),
        pa.field("delivery", DELIVERY),
        pa.field("trace_context", pa.string()),
    ]
)

MESSAGE = SCHEMA.append(pa.field("envelope", pa.binary()))
"""All there are. The last is for those who ask for it: properties as they came on the wire, their
format in front (0 native headers, 1 AMQP, 2 MQTT), null where there are none. What is written with
it is byte for byte what was read."""

PROTOCOLS = ("native", "amqp", "mqtt")
PLACES = {field.name: at for at, field in enumerate(COLUMNS)}

_ENVELOPES = ("envelope", "envelope_format", "flags")
_FROM = {
    "key": ("key",),
    "value": ("value",),
    "headers": _ENVELOPES,
    "topic": (),
    "partition": (),
    "offset": ("offset",),
    "timestamp": ("timestamp",),
    "priority": ("priority",),
    "delivery": (*_ENVELOPES, "expires_at", "due_at"),
    "trace_context": _ENVELOPES,
    "envelope": ("envelope", "envelope_format"),
}
"""What the kernel must decode for each column."""

_FROM_ENVELOPES = {
    "headers": WANT_HEADERS,
    "trace_context": WANT_TRACE,
    "delivery": WANT_ROUTING | WANT_ATTEMPTS,
}


class Rows:
    """Makes rows of one partition's records, with these columns in this order and no others."""

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str] = tuple(SCHEMA.names)
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = pa.schema([MESSAGE.field(name) for name in columns])
        self._headers_wanted = sum(_FROM_ENVELOPES.get(name, 0) for name in columns)
        # Whoever reads has to know how far it is.
        needed = {"offset", *(each for name in columns for each in _FROM[name])}
        self.wanted = sum(1 << PLACES[each] for each in needed)
        """For ``decode_columns``."""

    def batch(self, rows: int, columns: "tuple[Column | None, ...]") -> pa.RecordBatch:
        """``columns`` as ``decode_columns`` gives them for ``wanted``."""
        found = self._from_envelopes(rows, columns)
        return pa.RecordBatch.from_arrays(
            [self._column(name, rows, columns, found) for name in self._schema.names],
            schema=self._schema,
        )

    def _column(
        self, name: str, rows: int, columns: "tuple[Column | None, ...]", found: dict[str, pa.Array]
    ) -> pa.Array:
        if name == "topic":
            return _texts(self._topic, rows)
        if name == "partition":
            return _numbers(self._partition, rows)
        if name == "delivery":
            return self._delivery(rows, columns, found)
        if name == "envelope":
            return self._envelopes(rows, columns)
        return found[name] if name in _FROM_ENVELOPES else _kernel_array(rows, columns, name)

    def _delivery(
        self, rows: int, columns: "tuple[Column | None, ...]", found: dict[str, pa.Array]
    ) -> pa.StructArray:
        return pa.StructArray.from_arrays(
            [
                self._protocols(rows, columns),
                found["routing_key"],
                _kernel_array(rows, columns, "flags"),
                _kernel_array(rows, columns, "expires_at"),
                _kernel_array(rows, columns, "due_at"),
                found["attempts"],
            ],
            fields=list(DELIVERY),
        )

    def _protocols(self, rows: int, columns: "tuple[Column | None, ...]") -> pa.Array:
        formats = _buffer(columns, "envelope_format", 1)
        if formats.count(formats[:1]) == rows:
            return _texts(_protocol(formats[0]), rows)
        return pa.array([_protocol(each) for each in formats], pa.string())

    def _envelopes(self, rows: int, columns: "tuple[Column | None, ...]") -> pa.Array:
        ends = memoryview(_buffer(columns, "envelope", 1)).cast("i")
        formats = _buffer(columns, "envelope_format", 1)
        return _array(
            pa.binary(), rows, tagged_envelopes(ends, _buffer(columns, "envelope", 2), formats)
        )

    def _from_envelopes(
        self, rows: int, columns: "tuple[Column | None, ...]"
    ) -> dict[str, pa.Array]:
        """Headers, trace context, routing key and attempts, as far as they are wanted."""
        if not self._headers_wanted:
            return {}
        envelopes = _buffer(columns, "envelope", 2)
        if not envelopes:
            return {
                "headers": _nulls(HEADERS, rows),
                "trace_context": _nulls(pa.string(), rows),
                "routing_key": _nulls(pa.string(), rows),
                "attempts": _nulls(pa.int32(), rows),
            }
        pairs, lists, names, values, trace, routing, attempts = header_columns(
            memoryview(_buffer(columns, "envelope", 1)).cast("i"),
            envelopes,
            _buffer(columns, "envelope_format", 1),
            memoryview(_buffer(columns, "flags", 1)).cast("i"),
            self._headers_wanted,
        )
        found = {}
        if lists is not None and names is not None and values is not None:
            found["headers"] = _header_lists(rows, pairs, lists, names, values)
        if trace is not None:
            found["trace_context"] = _array(pa.string(), rows, trace)
        if routing is not None and attempts is not None:
            found["routing_key"] = _array(pa.string(), rows, routing)
            found["attempts"] = _array(pa.int32(), rows, attempts)
        return found


def headers_of(envelopes: pa.Array, keyed: pa.Array) -> pa.Array:
    """What envelopes, none of them null, say as headers; ``keyed``: of messages that have a key."""
    rows = len(envelopes)
    flags = pc.if_else(keyed, FLAG_KEYED, 0).cast(pa.int32())
    ends, data = envelopes.buffers()[1:]
    first = envelopes.offset
    pairs, lists, names, values, *_ = header_columns(
        memoryview(ends).cast("i")[first : first + rows + 1],
        b"" if data is None else memoryview(data).cast("B"),
        None,
        memoryview(flags.buffers()[1]).cast("i")[flags.offset : flags.offset + rows],
        WANT_HEADERS,
    )
    assert lists is not None
    assert names is not None
    assert values is not None
    return _header_lists(rows, pairs, lists, names, values)


def _header_lists(
    rows: int, pairs: int, lists: "Column", names: "Column", values: "Column"
) -> pa.Array:
    entries = pa.StructArray.from_arrays(
        [_array(pa.string(), pairs, names), _array(pa.binary(), pairs, values)],
        fields=list(HEADER),
    )
    return pa.Array.from_buffers(HEADERS, rows, _buffers(lists), children=[entries])


def last_offset(columns: "tuple[Column | None, ...]") -> int:
    return int.from_bytes(_buffer(columns, "offset", 1)[-8:], "little")


def _buffer(columns: "tuple[Column | None, ...]", name: str, at: int) -> bytes:
    column = columns[PLACES[name]]
    assert column is not None, f"{name} was not decoded"
    buffer = column[at]
    assert buffer is not None
    return buffer


def _protocol(number: int) -> str:
    return PROTOCOLS[number] if number < len(PROTOCOLS) else str(number)


def _buffers(column: "Column") -> list[pa.Buffer | None]:
    return [None if each is None else pa.py_buffer(each) for each in column]


def _array(kind: pa.DataType, rows: int, column: "Column") -> pa.Array:
    return pa.Array.from_buffers(kind, rows, _buffers(column))


def _kernel_array(rows: int, columns: "tuple[Column | None, ...]", name: str) -> pa.Array:
    at = PLACES[name]
    column = columns[at]
    assert column is not None, f"{name} was not decoded"
    return _array(COLUMNS[at].type, rows, column)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    return _long_nulls(kind, _round_up(rows)).slice(0, rows)


def _texts(text: str, rows: int) -> pa.Array:
    return _long_texts(text, _round_up(rows)).slice(0, rows)


def _numbers(number: int, rows: int) -> pa.Array:
    return _long_numbers(number, _round_up(rows)).slice(0, rows)


# One array for all batches, cut to length. Not pa.repeat: the first scalar would import pandas,
# if that is there, which takes a second.


@lru_cache(maxsize=64)
def _long_nulls(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


@lru_cache(maxsize=64)
def _long_texts(text: str, rows: int) -> pa.Array:
    data = text.encode()
    ends = array("i", range(0, (rows + 1) * len(data), len(data)) if data else [0] * (rows + 1))
    return _array(pa.string(), rows, (None, ends.tobytes(), data * rows))


@lru_cache(maxsize=64)
def _long_numbers(number: int, rows: int) -> pa.Array:
    return _array(pa.int32(), rows, (None, (array("i", [number]) * rows).tobytes()))


def _round_up(rows: int) -> int:
    return 1 << max(rows - 1, 1).bit_length()
