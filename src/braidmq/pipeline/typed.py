"""Typed reading: values decoded into the columns of a schema.

A decoder is made for a schema and turns a value into a tuple of Python values, or raises
ValueError; Arrow makes columns of them. ``register_decoder`` adds formats, so a schema registry can
come later. A row that does not decode never fails a job: it is told by the column ``_corrupt``, or
goes to a dead-letter topic.

Columns whose names begin with ``_`` are the message's own: ``_key``, ``_offset``, ``_timestamp``…
"""

import base64
import datetime
import decimal
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from braidmq.pipeline.broker import Broker
from braidmq.pipeline.columns import MESSAGE
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import SourceOptions

CORRUPT = "_corrupt"
OWN = {f"_{field.name}": field.name for field in MESSAGE}

BURIED = ("key", "value", "headers", "topic", "partition", "offset")
"""What of a message that did not decode its dead letter has."""

Decode = Callable[[bytes], Sequence[Any]]
"""Values in the order of the schema's fields; raises ValueError for what does not fit it."""

DecoderFactory = Callable[[spark.StructType, SourceOptions], Decode]

_factories: dict[str, DecoderFactory] = {}


def register_decoder(name: str, factory: DecoderFactory) -> None:
    """``option("format", name)`` reads with what ``factory`` makes for the schema."""
    _factories[name] = factory


# --- JSON ---

_RANGES: dict[type[spark.DataType], int] = {
    spark.ByteType: 1 << 7,
    spark.ShortType: 1 << 15,
    spark.IntegerType: 1 << 31,
    spark.LongType: 1 << 63,
}
_PLAIN: dict[type[spark.DataType], Any] = {
    spark.StringType: str,
    spark.BinaryType: bytes,
    spark.BooleanType: bool,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.TimestampType: datetime.datetime,
    spark.TimestampNTZType: datetime.datetime,
    spark.DateType: datetime.date,
    spark.DecimalType: decimal.Decimal,
}


def json_decoder(schema: spark.StructType, options: SourceOptions) -> Decode:
    """Strict: a number in quotes is no number. What the schema does not name is ignored, what is
    missing is null."""
    kind, plain = _struct_type(schema)
    decode = msgspec.json.Decoder(kind).decode

    def read(value: bytes) -> Sequence[Any]:
        try:
            return plain(decode(value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None

    return read


register_decoder("json", json_decoder)

Plain = Callable[[Any], Any]
"""From what msgspec decodes to what Arrow takes."""


def _struct_type(schema: spark.StructType) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    fields: list[Any] = []
    plains: list[Plain | None] = []
    rename = {}
    for at, field in enumerate(schema.fields):
        kind, plain = _type_of(field.dataType)
        name = f"f{at}"
        rename[name] = field.name
        fields.append((name, kind | None, None) if field.nullable else (name, kind))
        plains.append(plain)
    struct = msgspec.defstruct("Row", fields, rename=rename, kw_only=True)
    names = tuple(rename)

    def values(row: Any) -> tuple[Any, ...]:
        found = (getattr(row, name) for name in names)
        return tuple(
            value if plain is None or value is None else plain(value)
            for value, plain in zip(found, plains, strict=True)
        )

    return struct, values


def _type_of(kind: spark.DataType) -> tuple[Any, Plain | None]:
    """The type to decode, and what else has to be done."""
    if (limit := _RANGES.get(type(kind))) is not None:
        return Annotated[int, Meta(ge=-limit, le=limit - 1)], None
    if isinstance(kind, spark.TimestampType):
        return datetime.datetime, _in_utc
    if isinstance(kind, spark.TimestampNTZType):
        return Annotated[datetime.datetime, Meta(tz=False)], None
    if isinstance(kind, spark.DecimalType):
        return decimal.Decimal, lambda value: _fitting(value, kind)
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)], None
    if isinstance(kind, spark.ArrayType):
        inner, plain = _type_of(kind.elementType)
        return list[inner | None], None if plain is None else _for_each(plain)  # type: ignore[valid-type]
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        inner, plain = _type_of(kind.valueType)
        return dict[str, inner | None], _pairs(plain)  # type: ignore[valid-type]
    if isinstance(kind, spark.StructType):
        struct, values = _struct_type(kind)
        names = kind.fieldNames()
        return struct, lambda row: dict(zip(names, values(row), strict=True))
    raise BadOption(f"JSON can't be read as {kind.simpleString()}")


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)


def _fitting(value: decimal.Decimal, kind: spark.DecimalType) -> decimal.Decimal:
    """With just as many digits as the type has; raises ValueError for one that needs more."""
    exact = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    try:
        return value.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=exact)
    except decimal.DecimalException:
        raise ValueError(f"{value} is not a {kind.simpleString()}") from None


def _for_each(plain: Plain) -> Plain:
    return lambda values: [None if each is None else plain(each) for each in values]


def _pairs(plain: Plain | None) -> Plain:
    if plain is None:
        return lambda found: list(found.items())
    return lambda found: [
        (key, None if value is None else plain(value)) for key, value in found.items()
    ]


# --- rows ---


class TypedRows:
    """Batches of messages in, batches of typed rows out."""

    def __init__(self, schema: spark.StructType, options: SourceOptions) -> None:
        factory = _factories.get(options.format)
        if factory is None:
            raise BadOption(
                f"there is no format {options.format!r}",
                remedy=f"There are: {', '.join(sorted(_factories))}",
            )
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._own = [field.name for field in schema.fields if field.name.startswith("_")]
        self._refuse_strangers()
        typed = [field for field in schema.fields if not field.name.startswith("_")]
        for field in typed:
            if not field.nullable:
                raise BadOption(
                    f"column {field.name!r} must be nullable: rows that don't decode have none",
                    remedy="Leave out NOT NULL",
                )
        self._typed = [field.name for field in typed]
        self._decode = factory(spark.StructType(typed), options)
        needed = {"value", *(OWN[name] for name in self._own if name != CORRUPT)}
        if options.dead_letter_topic:
            needed |= set(BURIED)
        self.columns = [field.name for field in MESSAGE if field.name in needed]
        """Of messages, that ``read`` takes."""

    def _refuse_strangers(self) -> None:
        for name in self._own:
            kind = self._schema.field(name).type
            fits = (
                kind in (pa.binary(), pa.string())
                if name == CORRUPT
                else name in OWN and kind == MESSAGE.field(OWN[name]).type
            )
            if not fits:
                raise BadOption(
                    f"the schema has a column {name!r} that messages don't have, or have with"
                    " another type",
                    remedy="Of a message's own columns there are"
                    f" {', '.join((*OWN, CORRUPT))}; their types are in docs/spark.md",
                )

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._typed_batch(batch)

    def _typed_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows, bad = self._decoded(batch.column("value").to_pylist())
        columns = self._columns(rows, bad)
        if bad and self._options.dead_letter_topic:
            bury(batch, bad, self._options)
            good = pa.array([at for at in range(len(rows)) if at not in bad], pa.int64())
            columns = {name: column.take(good) for name, column in columns.items()}
            batch, bad = batch.take(good), {}
        return pa.RecordBatch.from_arrays(
            [self._column(field, batch, columns, bad) for field in self._schema],
            schema=self._schema,
        )

    def _decoded(self, values: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        nothing = (None,) * len(self._typed)
        rows: list[Any] = []
        bad: dict[int, str] = {}
        decode = self._decode
        for at, value in enumerate(values):
            try:
                rows.append(nothing if value is None else decode(value))
            except ValueError as error:
                rows.append(nothing)
                bad[at] = str(error)
        return rows, bad

    def _columns(self, rows: list[Any], bad: dict[int, str]) -> dict[str, pa.Array]:
        """Values that Arrow can't hold after all make their rows bad, too."""
        while True:
            before = len(bad)
            found = {}
            for at, name in enumerate(self._typed):
                values = [row[at] for row in rows]
                found[name] = self._array(values, self._schema.field(name).type, bad)
            if len(bad) == before:
                return found
            nothing = (None,) * len(self._typed)
            rows = [nothing if at in bad else row for at, row in enumerate(rows)]

    def _array(self, values: list[Any], kind: pa.DataType, bad: dict[int, str]) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            for at, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    bad[at] = str(error)
                    values[at] = None
            return pa.array(values, kind)

    def _column(
        self,
        field: pa.Field,
        batch: pa.RecordBatch,
        columns: dict[str, pa.Array],
        bad: dict[int, str],
    ) -> pa.Array:
        if field.name == CORRUPT:
            values = batch.column("value")
            raw = [values[at].as_py() if at in bad else None for at in range(batch.num_rows)]
            if field.type == pa.string():
                return pa.array([each and each.decode("utf-8", "replace") for each in raw])
            return pa.array(raw, pa.binary())
        if field.name in OWN:
            return batch.column(OWN[field.name])
        return columns[field.name]


def bury(batch: pa.RecordBatch, bad: dict[int, str], options: SourceOptions) -> None:
    """Publish what did not decode, as it came, to the topic for it. A task that is tried again
    publishes again."""
    messages = []
    for at, error in sorted(bad.items()):
        row = batch.slice(at, 1).to_pylist()[0]
        origin = {name: str(row[name]).encode() for name in ("topic", "partition", "offset")}
        headers = {each["key"]: each["value"] for each in row["headers"] or []}
        headers |= {f"x-corrupt-{name}": value for name, value in origin.items()}
        headers["x-corrupt-error"] = error.encode()
        message = {
            "value_base64": base64.b64encode(row["value"]).decode(),
            "headers_base64": {
                name: base64.b64encode(value).decode() for name, value in headers.items()
            },
        }
        if row["key"] is not None:
            message["key_base64"] = base64.b64encode(row["key"]).decode()
        messages.append(message)
    with Broker(options) as broker:
        path = ("topics", options.dead_letter_topic, "messages", "batch")
        for first in range(0, len(messages), 1000):
            broker.send("POST", *path, body={"messages": messages[first : first + 1000]})
