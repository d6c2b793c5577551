"""Records as the rows of a DataFrame: buffers of the kernels become Arrow columns.

``SCHEMA`` is as Spark would write it, down to the names inside: it takes batches only if their
schema is the very same.
"""

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from braidmq.storage.reader import COLUMNS
from braidmq.wire.header_columns import header_columns

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

PROTOCOLS = ("native", "amqp", "mqtt")
PLACES = {field.name: at for at, field in enumerate(COLUMNS)}

_translated: dict[tuple[int, bool, bytes], bytes] = {}
"""Envelopes of other protocols as headers: most messages of a topic have one of a few."""


class Rows:
    """Makes rows of one partition's records."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def batch(self, rows: int, columns: "tuple[Column, ...]") -> pa.RecordBatch:
        """``columns`` as ``decode_columns`` gives them."""
        headers, trace, routing_key, attempts = self._from_envelopes(rows, columns)
        delivery = pa.StructArray.from_arrays(
            [
                self._protocols(rows, columns),
                routing_key,
                _kernel_array(rows, columns, "flags"),
                _kernel_array(rows, columns, "expires_at"),
                _kernel_array(rows, columns, "due_at"),
                attempts,
            ],
            fields=list(DELIVERY),
        )
        return pa.RecordBatch.from_arrays(
            [
                _kernel_array(rows, columns, "key"),
                _kernel_array(rows, columns, "value"),
                headers,
                _texts(self._topic, rows),
                _numbers(self._partition, rows),
                _kernel_array(rows, columns, "offset"),
                _kernel_array(rows, columns, "timestamp"),
                _kernel_array(rows, columns, "priority"),
                delivery,
                trace,
            ],
            schema=SCHEMA,
        )

    def _protocols(self, rows: int, columns: "tuple[Column, ...]") -> pa.Array:
        formats = columns[PLACES["envelope_format"]][1]
        assert formats is not None
        if formats.count(formats[:1]) == rows:
            return _texts(_protocol(formats[0]), rows)
        return pa.array([_protocol(each) for each in formats], pa.string())

    def _from_envelopes(self, rows: int, columns: "tuple[Column, ...]") -> tuple[pa.Array, ...]:
        """Headers, trace context, routing key and attempts."""
        _, ends, envelopes = columns[PLACES["envelope"]]
        if not envelopes:
            return tuple(
                _nulls(kind, rows) for kind in (HEADERS, pa.string(), pa.string(), pa.int32())
            )
        formats = columns[PLACES["envelope_format"]][1]
        key_valid = columns[PLACES["key"]][0]
        assert ends is not None
        assert formats is not None
        assert key_valid is not None
        pairs, lists, names, values, trace, routing, attempts = header_columns(
            memoryview(ends).cast("i"), envelopes, formats, key_valid, _translated
        )
        entries = pa.StructArray.from_arrays(
            [_array(pa.string(), pairs, names), _array(pa.binary(), pairs, values)],
            fields=list(HEADER),
        )
        return (
            pa.Array.from_buffers(HEADERS, rows, _buffers(lists), children=[entries]),
            _array(pa.string(), rows, trace),
            _array(pa.string(), rows, routing),
            _array(pa.int32(), rows, attempts),
        )


def _protocol(number: int) -> str:
    return PROTOCOLS[number] if number < len(PROTOCOLS) else str(number)


def _buffers(column: "Column") -> list[pa.Buffer | None]:
    return [None if each is None else pa.py_buffer(each) for each in column]


def _array(kind: pa.DataType, rows: int, column: "Column") -> pa.Array:
    return pa.Array.from_buffers(kind, rows, _buffers(column))


def _kernel_array(rows: int, columns: "tuple[Column, ...]", name: str) -> pa.Array:
    at = PLACES[name]
    return _array(COLUMNS[at].type, rows, columns[at])


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
