"""What may be written to a table that is there already, and what its partitions are.

Pure: schemas in, schemas out. Delta writes a schema in the same JSON as Spark, so Spark's types are
the ones that are compared.
"""

from collections.abc import Iterator, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braidmq.pipeline.errors import BadOption, WrongSchema
from braidmq.pipeline.lake.options import Within

DATE, TIMESTAMP = "date", "timestamp"
PARTITION_TYPES = (StringType, DateType, IntegerType, LongType, ShortType, ByteType, BooleanType)
"""Whose text in a path is the same whoever writes it."""


PLAIN_TYPES = (
    *PARTITION_TYPES,
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampType,
    TimestampNTZType,
)


WHOLE_NUMBERS = (LongType, IntegerType, ShortType, ByteType)


def leaves(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """Columns as Parquet has them, by their paths: what is inside of structs, lists and maps."""
    if isinstance(kind, StructType):
        for each in kind:
            yield from leaves(each.dataType, f"{path}.{each.name}" if path else each.name)
    elif isinstance(kind, ArrayType):
        yield from leaves(kind.elementType, f"{path}.list.element")
    elif isinstance(kind, MapType):
        yield from leaves(kind.keyType, f"{path}.key_value.key")
        yield from leaves(kind.valueType, f"{path}.key_value.value")
    else:
        yield path, kind


def dictionaries(schema: StructType) -> dict[str, bool]:
    """Which columns, by their paths, are written with dictionaries: those that are not bytes, which
    are bodies and properties as a rule. No two of these are the same, and to find that out takes a
    sixth of the time of writing them; those that are, zstd finds as well."""
    return {path: not isinstance(kind, BinaryType) for path, kind in leaves(schema)}


def check_within(schema: StructType, within: Within | None) -> None:
    """Raises BadOption."""
    if within is None:
        return
    found = next((each.dataType for each in schema if each.name == within.column), None)
    if not isinstance(found, WHOLE_NUMBERS):
        said = "no column" if found is None else f"{found.simpleString()}, not whole numbers,"
        raise BadOption(f"range: the lake has {said} {within.column!r}")


def stored(given: StructType, partition_by: Sequence[str]) -> StructType:
    """The columns of what is written: those given, and the date of each row if partitions want it.

    All may be null: that no row of this batch has a null says nothing of the next.
    """
    fields = [StructField(each.name, each.dataType) for each in given]
    if derives_date(given, partition_by):
        fields.append(StructField(DATE, DateType()))
    _check_names(fields)
    for field in fields:
        _check_type(field.name, field.dataType)
    found = StructType(fields)
    for name in partition_by:
        if name not in found.names:
            raise WrongSchema(
                f"there is no column {name!r} to partition by",
                remedy=f"Columns are {', '.join(found.names)}; {DATE!r} is made of a column"
                f" {TIMESTAMP!r} where there is one",
            )
        if not isinstance(found[name].dataType, PARTITION_TYPES):
            raise WrongSchema(
                f"column {name!r} is {_sql(found[name].dataType)}: no type to partition by",
                remedy="Use a STRING, DATE, BOOLEAN or whole number",
            )
    if partition_by and len(partition_by) == len(found):
        raise WrongSchema("all columns are in partitionBy: nothing is left for the files")
    return found


def derives_date(given: StructType, partition_by: Sequence[str]) -> bool:
    return (
        DATE in partition_by
        and DATE not in given.names
        and TIMESTAMP in given.names
        and isinstance(given[TIMESTAMP].dataType, TimestampType)
    )


def added(table: StructType, given: StructType, merge: bool) -> list[StructField]:
    """Columns that the table has to get first. Raises WrongSchema when they do not go together."""
    known = {each.name.lower(): each for each in table}
    more = []
    for field in given:
        there = known.get(field.name.lower())
        if there is None:
            more.append(field)
        elif there.name != field.name:
            raise WrongSchema(
                f"the lake has a column {there.name!r}, and {field.name!r} is written",
                remedy="Names that differ in case alone are one to Delta: rename it",
            )
        elif not same(there.dataType, field.dataType):
            raise WrongSchema(
                f"column {field.name!r} is {_sql(there.dataType)} in the lake, and"
                f" {_sql(field.dataType)} is written",
                remedy="Cast it, or write to another lake",
            )
    if more and not merge:
        names = ", ".join(each.name for each in more)
        raise WrongSchema(
            f"the lake has no column {names}",
            remedy="Leave it out, or give mergeSchema=true to add it to the lake",
        )
    written = {each.name for each in given}
    for there in table:
        if not there.nullable and there.name not in written:
            raise WrongSchema(f"column {there.name!r} may not be null, and it is not written")
    return more


def same(left: DataType, right: DataType) -> bool:
    """Whether values of both are stored alike; what may be null is not looked at."""
    if isinstance(left, StructType) and isinstance(right, StructType):
        return left.names == right.names and all(
            same(one.dataType, other.dataType)
            for one, other in zip(left.fields, right.fields, strict=True)
        )
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return same(left.elementType, right.elementType)
    if isinstance(left, MapType) and isinstance(right, MapType):
        return same(left.keyType, right.keyType) and same(left.valueType, right.valueType)
    return left == right


def _check_names(fields: Sequence[StructField]) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise WrongSchema(f"there are two columns {field.name!r}", remedy="Rename one")
        seen.add(field.name.lower())


def _check_type(name: str, given: DataType) -> None:
    """Raises WrongSchema for what Delta has no type for."""
    if isinstance(given, StructType):
        for field in given:
            _check_type(f"{name}.{field.name}", field.dataType)
    elif isinstance(given, ArrayType):
        _check_type(name, given.elementType)
    elif isinstance(given, MapType):
        _check_type(name, given.keyType)
        _check_type(name, given.valueType)
    elif not isinstance(given, PLAIN_TYPES):
        raise WrongSchema(
            f"column {name!r} is {_sql(given)}, and Delta has no type for that",
            remedy="Cast it, or leave it out",
        )


def _sql(given: DataType) -> str:
    return given.simpleString().upper()
