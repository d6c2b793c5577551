"""What a query reads, and not its rows: one row of Spark for each split, for functions that read it
where they need it. Messages then never pass the JVM.

Offsets, limits, leases and checkpoints are those of ``format("braid")``: a query can go on in the
checkpoint of the other.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from braidmq.pipeline.planning import Split
from braidmq.pipeline.source import BatchReader, BraidDataSource, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLITS = pa.schema([pa.field("split", pa.binary())])


class _Splits:
    """Of a reader: hands its splits on, unread."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark asks for one partition without a value where there are none."""
        if partition.value is not None:
            yield pa.record_batch([[pickle.dumps(partition.value)]], schema=SPLITS)


class BatchRanges(_Splits, BatchReader):
    pass


class StreamRanges(_Splits, StreamReader):
    pass


class RangesDataSource(BraidDataSource):
    """Not for users: it means something to ``splits_of`` alone."""

    @classmethod
    def name(cls) -> str:
        return "braid_ranges"

    def schema(self) -> StructType:
        found: StructType = from_arrow_schema(SPLITS)
        return found

    def reader(self, schema: StructType) -> BatchRanges:
        return BatchRanges(self.options_of(streams=False))

    def streamReader(self, schema: StructType) -> StreamRanges:  # noqa: N802
        return StreamRanges(self.options_of(streams=True))


def ranges(spark: "SparkSession", options: Mapping[str, Any], *, streams: bool) -> "DataFrame":
    """Of what ``format("braid")`` would read with these options."""
    spark.dataSource.register(RangesDataSource)
    reader: Any = spark.readStream if streams else spark.read
    found: DataFrame = reader.format(RangesDataSource.name()).options(**options).load()
    return found


def splits_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Split]:
    for batch in batches:
        for each in batch.column("split"):
            yield pickle.loads(each.as_py())
