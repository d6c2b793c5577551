"""Rows of a DataFrame as records, ready to be sent: the sink's half of what ``columns.py`` is for
reading."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from braidmq.pipeline.columns import HEADERS, headers_of
from braidmq.pipeline.errors import BadOption, RowTooLarge
from braidmq.pipeline.sink_options import RECORD_BYTES_MAX, REQUEST_BYTES_MAX, SinkOptions
from braidmq.wire.record_rows import encode_rows

TAKEN = (
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "timestamp",
    "priority",
    "deliver_at",
    "expires_at",
    "envelope",
)
NOT_WRITTEN = ("offset", "delivery", "trace_context")
"""Columns of the source that the broker gives: a DataFrame that was read is written as it is."""

Buffers = tuple[tuple[Any, ...], int]


class Chunk(NamedTuple):
    """What goes in one request."""

    topic: str
    partition: int | None
    rows: int
    data: memoryview


def check_columns(names: Iterable[str], options: SinkOptions) -> None:
    """Raises BadOption for a DataFrame that is no messages."""
    found = list(names)
    if strangers := [name for name in found if name not in (*TAKEN, *NOT_WRITTEN)]:
        raise BadOption(
            f"messages have no column {strangers[0]!r}",
            remedy=f"Columns are {', '.join(TAKEN)}; put the rest into value, with to_json say",
        )
    if "value" not in found:
        raise BadOption("a column value is needed", remedy="Make it with to_json(struct(*))")
    if not options.topic and "topic" not in found:
        raise BadOption("the option topic is needed, or a column topic")
    if options.keep_partition and "partition" not in found:
        raise BadOption("keepPartition needs a column partition")


def encode(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[Chunk]:
    """In order for each topic and partition."""
    for table in _gathered(batches, options.request_bytes):
        for topic, partition, part in _groups(table, options):
            yield from _chunks(topic, partition, part)


def _gathered(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Spark's batches are of some thousand rows, and each request waits for the disk."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= size:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _groups(
    batch: pa.RecordBatch, options: SinkOptions
) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
    for topic, rows in _by(batch, "topic") if not options.topic else [(options.topic, batch)]:
        if topic is None:
            raise BadOption("a row has no topic", remedy="Give the option topic, or filter them")
        for number, part in _by(rows, "partition") if options.keep_partition else [(None, rows)]:
            yield topic, number, part


def _by(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    column = batch.column(name)
    values = pc.unique(column).to_pylist()
    if len(values) == 1:
        yield values[0], batch
        return
    for value in values:
        same = pc.is_null(column) if value is None else pc.equal(column, value)
        yield value, batch.filter(same)


def _chunks(topic: str, partition: int | None, batch: pa.RecordBatch) -> Iterator[Chunk]:
    columns = _columns(batch)
    # Usually one; more where what records add, or few large values, make it too much.
    waiting = [(0, batch.num_rows)]
    while waiting:
        first, stop = waiting.pop()
        try:
            records = encode_rows(first, stop, **columns)
        except OverflowError as error:
            raise BadOption(f"a row can't be a message: {error}") from None
        if records.size > REQUEST_BYTES_MAX and stop - first > 1:
            middle = (first + stop) // 2
            waiting += [(middle, stop), (first, middle)]
            continue
        if records.size > RECORD_BYTES_MAX:
            raise RowTooLarge(
                f"a row for topic {topic!r} is a message of {records.size} bytes, and the broker"
                f" takes at most {RECORD_BYTES_MAX}"
            )
        yield Chunk(topic, partition, stop - first, memoryview(records))


def _columns(batch: pa.RecordBatch) -> dict[str, Buffers]:
    names = batch.schema.names
    now_ms = time.time_ns() // 1_000_000
    found = {"value": _bytes(batch, "value"), "timestamp_ms": _times(batch, "timestamp", now_ms)}
    if "key" in names:
        found["key"] = _bytes(batch, "key")
    if "headers" in names:
        found |= _headers(batch.column("headers"))
    if "envelope" in names:
        found["envelope"] = _bytes(batch, "envelope")
        if "headers" in names:
            _must_agree(batch)
    if "priority" in names:
        found["priority"] = _priorities(batch)
    if "deliver_at" in names:
        due = _milliseconds(batch, "deliver_at")
        found["due_at_ms"] = _buffers(pc.if_else(pc.greater(due, now_ms), due, 0))
    if "expires_at" in names:
        found["expires_at_ms"] = _times(batch, "expires_at", 0)
    return found


def _buffers(array: pa.Array) -> Buffers:
    return tuple(array.buffers()), array.offset


def _bytes(batch: pa.RecordBatch, name: str) -> Buffers:
    column = batch.column(name)
    try:
        return _buffers(column.cast(pa.binary()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadOption(f"{name} is {column.type}, but must be STRING or BINARY") from None


def _milliseconds(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    elif not pa.types.is_null(column.type):
        raise BadOption(f"{name} is {column.type}, but must be TIMESTAMP")
    return pc.fill_null(column.cast(pa.int64()), 0)


def _times(batch: pa.RecordBatch, name: str, otherwise: int) -> Buffers:
    """Milliseconds; those that are missing, or before 1970, are ``otherwise``."""
    if name not in batch.schema.names:
        return _buffers(
            pa.array([otherwise]).take(pa.nulls(batch.num_rows, pa.int32()).fill_null(0))
        )
    found = _milliseconds(batch, name)
    return _buffers(pc.if_else(pc.greater(found, 0), found, otherwise))


def _priorities(batch: pa.RecordBatch) -> Buffers:
    found = pc.fill_null(batch.column("priority").cast(pa.int64()), 0)
    bounds = pc.min_max(found).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= 255:
        raise BadOption("priority must be a number from 0 to 255")
    return _buffers(found)


def _headers(column: pa.Array) -> dict[str, Buffers]:
    """An array of structs with key and value, or a map."""
    if pa.types.is_null(column.type):
        return {}
    names, values = _entries(column)
    lists = column.buffers()
    return {
        "headers": ((lists[0], lists[1]), column.offset),
        "names": _buffers(names.cast(pa.binary())),
        "header_values": _buffers(values.cast(pa.binary())),
    }


def _entries(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Names and values of all headers."""
    if pa.types.is_map(column.type):
        return column.keys, column.items
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
        return column.values.field("key"), column.values.field("value")
    raise BadOption(
        f"headers is {column.type}, but must be a MAP, or an ARRAY of STRUCT<key, value>"
    )


def _must_agree(batch: pa.RecordBatch) -> None:
    """An envelope is written as it is, so headers that were changed beside it would be lost."""
    rows = batch.filter(pc.is_valid(batch.column("envelope")))
    given = rows.column("headers")
    if pa.types.is_null(given.type):
        return
    names, values = _entries(given)
    lists = given.buffers()
    pairs = pa.StructArray.from_arrays(
        [names.cast(pa.string()), values.cast(pa.binary())], fields=list(HEADERS.value_type)
    )
    given = pa.Array.from_buffers(
        HEADERS, rows.num_rows, lists[:2], offset=given.offset, children=[pairs]
    )
    has_key = "key" in rows.schema.names
    keys = rows.column("key") if has_key else pa.nulls(rows.num_rows)
    envelopes = rows.column("envelope").cast(pa.binary())
    if not given.equals(headers_of(envelopes, pc.is_valid(keys))):
        raise BadOption(
            "the headers of a row are not those of its envelope",
            remedy="Leave out envelope to write the headers, or headers to write what was read",
        )
