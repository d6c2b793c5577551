"""Toy sources on Spark's Python API: what the API itself can do, with nothing behind it.

``toy`` hands over one Arrow batch that was made before, again and again; ``braid_tuples`` reads a
topic as our source does and gives it to Spark row by row, as simple sources do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from braidmq.pipeline.columns import Rows
from braidmq.pipeline.source import MESSAGES, BatchReader, BraidDataSource
from braidmq.record.batch import RecordBatch
from braidmq.record.columns import decode_columns
from braidmq.storage.reader import EARLIEST, LATEST, ROWS_MAX

VALUE_BYTES = 200
BATCH_ROWS = ROWS_MAX


def prebuilt(rows: int, columns: Sequence[str]) -> pa.RecordBatch:
    batch = RecordBatch()
    batch.extend_values([b"x" * VALUE_BYTES] * rows, 1_700_000_000_000)
    data = RecordBatch.scan(batch, base_offset=0).stamped()[0]
    _, count, decoded = decode_columns(data, EARLIEST, LATEST, EARLIEST, LATEST, rows)
    return Rows("toy", 0).batch(count, decoded).select(list(columns))


def give(rows: int, columns: Sequence[str] = MESSAGES.names) -> Iterator[pa.RecordBatch]:
    batch = prebuilt(min(rows, BATCH_ROWS), columns)
    while rows > 0:
        yield batch if rows >= batch.num_rows else batch.slice(0, rows)
        rows -= batch.num_rows


class ToyReader(DataSourceReader):
    def __init__(self, rows: int, splits: int, columns: Sequence[str]) -> None:
        self._rows, self._splits, self._columns = rows, splits, columns

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._splits) for _ in range(self._splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return give(partition.value, self._columns)


class ToyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, splits: int, per_trigger: int) -> None:
        self._rows, self._splits, self._per_trigger = rows, splits, per_trigger

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._per_trigger) if self._per_trigger else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        return {"at": min(self._rows, start["at"] + rows)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows = end["at"] - start["at"]
        splits = min(self._splits, rows)
        return [InputPartition(rows // splits) for _ in range(splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return give(partition.value)


class Toy(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._rows, self._splits = int(options["rows"]), int(options["splits"])
        self._per_trigger = int(options.get("pertrigger", "0"))
        named = options.get("columns", "")
        self._columns = tuple(named.split(",")) if named else tuple(MESSAGES.names)

    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> StructType:
        return StructType([MESSAGES[each] for each in self._columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        return ToyReader(self._rows, self._splits, self._columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ToyStream(self._rows, self._splits, self._per_trigger)


class TupleReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        names = MESSAGES.fieldNames()
        for batch in super().read(partition):
            for row in batch.to_pylist():
                yield tuple(row[name] for name in names)


class BraidTuples(BraidDataSource):
    @classmethod
    def name(cls) -> str:
        return "braid_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(self._options)
