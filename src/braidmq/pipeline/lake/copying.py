"""Messages into a lake as they are. Spark's JVM has a row for each range of offsets and one for
each file: a task reads its range and writes the Parquet itself, in compiled code from segment to
file.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from braidmq.pipeline.lake.files import Files
from braidmq.pipeline.lake.options import LakeOptions
from braidmq.pipeline.lake.table import DataFile
from braidmq.pipeline.options import SourceOptions, parse_options
from braidmq.pipeline.ranges import splits_of
from braidmq.pipeline.source import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = pa.schema([pa.field("file", pa.binary())])
FILES_SQL = "file BINARY"


@dataclass(frozen=True)
class Messages:
    """What a query reads."""

    options: SourceOptions
    schema: StructType

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> "Messages":
        return cls(parse_options(options), schema)

    @property
    def typed(self) -> StructType | None:
        return self.schema if self.options.format else None


@dataclass(frozen=True)
class CopyTask:
    """What Spark has its workers do: splits in, files out."""

    messages: Messages
    options: LakeOptions
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in splits_of(batches):
            rows = rows_of(split, self.messages.options, self.messages.typed)
            written = Files(self.options, self.schema).write(rows)
            yield pa.record_batch([[pickle.dumps(each) for each in written]], schema=FILES)


def staged(
    ranges: "DataFrame", messages: Messages, options: LakeOptions, schema: StructType, staging: Path
) -> list[DataFile]:
    """Files below ``staging``, of those attempts at tasks that count."""
    task = CopyTask(messages, replace(options, path=str(staging)), schema)
    return [pickle.loads(row.file) for row in ranges.mapInArrow(task, FILES_SQL).collect()]
