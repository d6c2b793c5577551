"""Lakes for tests, written and read without a JVM."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from braidmq.pipeline.lake.source import LakeDataSource, LakeWriter

THEN = datetime(2021, 3, 4, 23, 6, 7, 89_000, tzinfo=UTC)


def write(
    path: Path | str, rows: pa.Table, overwrite: bool = False, options: Mapping[str, str] = {}
) -> LakeWriter:
    """As one task of a job."""
    from pyspark.sql.pandas.types import from_arrow_schema

    source = LakeDataSource({"path": str(path), **options})
    writer = source.writer(from_arrow_schema(rows.schema), overwrite)
    assert isinstance(writer, LakeWriter)
    writer.commit([writer.write(iter(rows.to_batches()))])
    return writer


def batches(path: Path | str, options: Mapping[str, str] = {}) -> Iterator[pa.RecordBatch]:
    source = LakeDataSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    for part in reader.partitions():
        yield from reader.read(part)


def read(path: Path | str, by: str = "n", **options: Any) -> list[dict[str, Any]]:
    given = {name: str(value) for name, value in options.items()}
    rows = [row for batch in batches(path, given) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row[by]) if by else rows


def numbers(first: int, count: int, **more: Any) -> pa.Table:
    """``n``, and columns that are the same in all rows."""
    made = pa.table({"n": pa.array(range(first, first + count), pa.int64())})
    for name, value in more.items():
        made = made.append_column(name, pa.array([value] * count))
    return made
