"""Typed reading: what it decodes is what plain Python decodes, and nothing ever fails a job."""

import base64
import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from braid_topics import Topics
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from braidmq.pipeline.columns import Rows
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import parse_options
from braidmq.pipeline.source import BatchReader
from braidmq.pipeline.typed import TypedRows, register_decoder
from braidmq.record.batch import RecordBatch
from braidmq.record.columns import decode_columns
from braidmq.storage.reader import EARLIEST, LATEST, ROWS_MAX

SCHEMA = spark.StructType(
    [
        spark.StructField("id", spark.LongType()),
        spark.StructField("small", spark.ByteType()),
        spark.StructField("name", spark.StringType()),
        spark.StructField("ok", spark.BooleanType()),
        spark.StructField("score", spark.DoubleType()),
        spark.StructField("tags", spark.ArrayType(spark.StringType())),
        spark.StructField("counts", spark.MapType(spark.StringType(), spark.IntegerType())),
        spark.StructField(
            "inner", spark.StructType([spark.StructField("a b", spark.IntegerType())])
        ),
        spark.StructField("_offset", spark.LongType()),
        spark.StructField("_corrupt", spark.BinaryType()),
    ]
)
OPTIONS = parse_options({"topic": "t", "format": "json"})


def messages(values: list[bytes | None]) -> pa.RecordBatch:
    batch = RecordBatch()
    for value in values:
        batch.append(value)
    data = RecordBatch.scan(batch, base_offset=0).stamped()[0]
    _, count, columns = decode_columns(data, EARLIEST, LATEST, EARLIEST, LATEST, ROWS_MAX)
    return Rows("t", 0).batch(count, columns)


def read(
    values: list[bytes | None], schema: spark.StructType = SCHEMA, options: Any = OPTIONS
) -> list[dict[str, Any]]:
    (found,) = TypedRows(schema, options).read(iter([messages(values)]))
    found.validate(full=True)
    return found.to_pylist()


# --- plain Python, as one would write it ---


class Misfit(Exception):
    pass


def plain(value: Any, kind: spark.DataType) -> Any:
    match kind:
        case _ if value is None:
            return None
        case spark.LongType() | spark.IntegerType() | spark.ByteType():
            bits = {spark.LongType: 63, spark.IntegerType: 31, spark.ByteType: 7}[type(kind)]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is not int or not -(2**bits) <= value < 2**bits:
                raise Misfit
            return value
        case spark.StringType():
            return fitting(value, str)
        case spark.BooleanType():
            return fitting(value, bool)
        case spark.DoubleType():
            if type(value) not in (int, float):
                raise Misfit
            return float(value)
        case spark.ArrayType():
            return [plain(each, kind.elementType) for each in fitting(value, list)]
        case spark.MapType():
            found = fitting(value, dict)
            return [(key, plain(each, kind.valueType)) for key, each in found.items()]
        case spark.StructType():
            found = fitting(value, dict)
            return {each.name: plain(found.get(each.name), each.dataType) for each in kind}
    raise AssertionError(kind)


def fitting(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Misfit
    return value


TYPED = spark.StructType([each for each in SCHEMA if not each.name.startswith("_")])


def expected(offset: int, value: bytes | None) -> dict[str, Any]:
    nothing = dict.fromkeys(TYPED.fieldNames())
    if value is None:
        return {**nothing, "_offset": offset, "_corrupt": None}
    try:
        found = plain(json.loads(value), TYPED)
        if found is None:
            raise Misfit
    except (Misfit, ValueError):
        return {**nothing, "_offset": offset, "_corrupt": value}
    return {**found, "_offset": offset, "_corrupt": None}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-200, 200),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=4),
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
fitting_rows = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-128, 127),
        "name": st.text(max_size=5),
        "ok": st.booleans(),
        "score": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "tags": st.lists(st.none() | st.text(max_size=3), max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3),
        "inner": st.fixed_dictionaries({}, optional={"a b": st.integers(-9, 9), "else": scalars}),
        "unknown": scalars,
    },
)
bent_rows = st.dictionaries(st.sampled_from(TYPED.fieldNames()), anything, max_size=3)
values = st.one_of(
    st.none(),
    fitting_rows.map(lambda row: json.dumps(row).encode()),
    bent_rows.map(lambda row: json.dumps(row).encode()),
    anything.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=8).filter(lambda data: b"N" not in data and b"I" not in data),
)


@settings(max_examples=200)
@given(st.lists(values, min_size=1, max_size=6))
def test_json_agrees_with_plain_python(given_values):
    found = read(given_values)
    wanted = [expected(offset, value) for offset, value in enumerate(given_values)]
    assert [normal(row) for row in found] == [normal(row) for row in wanted]


def normal(row: dict[str, Any]) -> dict[str, Any]:
    """Duplicate keys of a map may stand in any order; a float is what it prints as."""
    return {name: str(value) if isinstance(value, float) else value for name, value in row.items()}


# --- other types ---


def typed(kind: spark.DataType, *texts: str) -> list[tuple[Any, bool]]:
    """The values, and whether each did not decode."""
    schema = spark.StructType(
        [spark.StructField("x", kind), spark.StructField("_corrupt", spark.StringType())]
    )
    found = read([b'{"x": %s}' % text.encode() for text in texts], schema)
    return [(row["x"], row["_corrupt"] is not None) for row in found]


def test_times_dates_decimals_and_bytes():
    utc = datetime.UTC
    assert typed(
        spark.TimestampType(), '"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05"', '"x"'
    ) == [
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=utc), False),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=utc), False),
        (None, True),
    ]
    assert typed(spark.DateType(), '"2026-01-02"', '"2026-13-02"') == [
        (datetime.date(2026, 1, 2), False),
        (None, True),
    ]
    assert typed(spark.DecimalType(5, 2), '"123.45"', "1.5", '"1234.56"', '"1.234"') == [
        (decimal.Decimal("123.45"), False),
        (decimal.Decimal("1.50"), False),
        (None, True),
        (None, True),
    ]
    coded = base64.b64encode(b"\0\xff").decode()
    assert typed(spark.BinaryType(), f'"{coded}"', '"*"') == [(b"\0\xff", False), (None, True)]
    ((small, bad),) = typed(spark.FloatType(), "0.1")
    assert math.isclose(small, 0.1, rel_tol=1e-6)
    assert not bad


def test_a_field_that_must_be_there():
    schema = spark.StructType(
        [
            spark.StructField("x", spark.LongType(), nullable=False),
            spark.StructField("_corrupt", spark.StringType()),
        ]
    )
    with pytest.raises(BadOption, match="'x' must be nullable"):
        TypedRows(schema, OPTIONS)


def test_schemas_and_formats_that_cannot_be():
    def schema(name: str, kind: spark.DataType) -> spark.StructType:
        return spark.StructType([spark.StructField(name, kind)])

    with pytest.raises(BadOption, match="a column '_weather'"):
        TypedRows(schema("_weather", spark.StringType()), OPTIONS)
    with pytest.raises(BadOption, match="a column '_offset'"):
        TypedRows(schema("_offset", spark.StringType()), OPTIONS)
    with pytest.raises(BadOption, match="JSON can't be read as map<int,string>"):
        TypedRows(schema("x", spark.MapType(spark.IntegerType(), spark.StringType())), OPTIONS)
    with pytest.raises(BadOption, match="no format 'morse'"):
        TypedRows(schema("x", spark.StringType()), parse_options({"topic": "t", "format": "morse"}))


def test_a_decoder_of_ones_own():
    def length(schema: spark.StructType, options: object) -> Any:
        return lambda value: (len(value),)

    register_decoder("length", length)
    schema = spark.StructType([spark.StructField("bytes", spark.IntegerType())])
    options = parse_options({"topic": "t", "format": "length"})
    assert read([b"abc", None], schema, options) == [{"bytes": 3}, {"bytes": None}]


# --- from a broker ---


def test_what_does_not_decode_goes_to_its_topic(topics: Topics):
    topic, dead = topics.create(partitions=1), topics.create(partitions=1)
    topics.publish(
        topic,
        [
            {"value": '{"id": 1}'},
            {"value": '{"id": "one"}', "key": "k", "headers": {"a": "b"}},
            {"value": '{"id": 3}'},
        ],
    )
    source = topics.source(topic=topic, format="json", deadLetterTopic=dead)
    schema = spark.StructType([spark.StructField("id", spark.LongType())])
    reader = source.reader(schema)
    assert isinstance(reader, BatchReader)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == [1, 3]
    (buried,) = topics.read(topic=dead)
    assert (buried["key"], buried["value"]) == (b"k", b'{"id": "one"}')
    said = {each["key"]: each["value"] for each in buried["headers"]}
    assert said["a"] == b"b"
    assert (said["x-corrupt-topic"], said["x-corrupt-offset"]) == (topic.encode(), b"1")
    assert b"id" in said["x-corrupt-error"]
