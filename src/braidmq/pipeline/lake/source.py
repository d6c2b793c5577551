"""``format("braid_lake")``: the lake as Spark's SQL knows it, without a jar.

Executors write files that the table does not list yet; the driver adds them in one Delta commit,
which also records the application's last batch. A repeated batch finds it there and adds nothing.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from braidmq.pipeline.errors import BadOption, LakeUnreachable, LakeVacuumed
from braidmq.pipeline.lake import files, rules, table
from braidmq.pipeline.lake.options import (
    LakeOptions,
    Within,
    check_reading,
    check_writing,
    parse_lake_options,
)
from braidmq.pipeline.sink import query_of_task
from braidmq.pipeline.sink_options import check_counting

READ_ROWS = 65_536
"""A batch of Arrow on its way to Spark, about 16 MiB of small messages."""


class LakeDataSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = parse_lake_options(options)

    @classmethod
    def name(cls) -> str:
        return "braid_lake"

    def schema(self) -> StructType:
        found = table.schema_of(table.open_table(self._options))
        rules.check_within(found, self._options.within)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        return LakeReader(check_reading(self._options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_counting(self._options, streams=False)
        options, stored = prepared(self._options, schema, "overwrite" if overwrite else "append")
        return LakeWriter(options, stored, "overwrite" if overwrite else "append")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        check_counting(self._options, streams=True)
        return LakeStreamWriter(*prepared(self._options, schema, "append"))


def prepared(options: LakeOptions, given: StructType, mode: str) -> tuple[LakeOptions, StructType]:
    """What is about to be written, checked against what is there before a row is.

    Raises WrongSchema, LakeUnsupported. It is checked again with the commit.
    """
    check_writing(options, mode)
    if options.within is not None:
        raise BadOption(
            "range is for reading", remedy="Choose rows with where() before they are written"
        )
    there = table.find_table(options)
    if there is None:
        return options, rules.stored(given, options.partition_by)
    partitions = tuple(there.metadata().partition_columns)
    stored = rules.stored(given, partitions)
    table.check_fits(there, options, stored)
    if mode == "overwrite" and options.version is None:
        options = replace(options, version=there.version())
    return replace(options, partition_by=partitions), stored


# --- reading ---


class LakeReader(DataSourceReader):
    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        found = table.active_files(table.open_table(self.options), self.options.within)
        return [InputPartition(each) for each in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        file: table.ActiveFile = partition.value
        wanted = files.arrow_schema(self._schema)
        with self._opened(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            columns = [each for each in wanted.names if each in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(READ_ROWS, columns=columns):
                yield _chosen(_completed(batch, wanted, file.values), self.options.within)

    def _opened(self, path: str) -> Any:
        try:
            return files.opened(self.options, path)
        except FileNotFoundError:
            said = "latest" if self.options.version is None else self.options.version
            raise LakeVacuumed(
                f"version {said} of {self.options.path} has files that are gone, such as {path}"
            ) from None


def _completed(
    batch: pa.RecordBatch, wanted: pa.Schema, values: Mapping[str, Any]
) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
        if field.name in values
        else files.column(batch, field)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _chosen(batch: pa.RecordBatch, within: Within | None) -> pa.RecordBatch:
    if within is None:
        return batch
    values = batch[within.column]
    return batch.filter(
        pc.and_(pc.greater_equal(values, within.start), pc.less(values, within.stop))
    )


# --- writing ---


@dataclass
class Written(WriterCommitMessage):
    """Files of one task, not yet in the table."""

    files: list[table.DataFile]
    application: str = ""
    instance: str = ""


class _Writing:
    """What both kinds of writing share."""

    def __init__(self, options: LakeOptions, schema: StructType, mode: str) -> None:
        self.options = options
        self._schema = schema
        self._mode = mode

    def _write(self, batches: Iterator[pa.RecordBatch], application: str) -> Written:
        # A name that nobody chose is one query's, or one job's.
        counts = self.options.instance or query_of_task()
        instance = counts if self.options.application else ""
        written = files.Files(self.options, self._schema).write(batches)
        return Written(written, application, instance)

    def _commit(self, messages: Sequence[Any], step: table.Step) -> None:
        commit(self.options, self._schema, _files(messages), step, self._mode)

    def _abort(self, messages: Sequence[Any], step: table.Step) -> None:
        abort(self.options, _files(messages), step)


def commit(
    options: LakeOptions,
    schema: StructType,
    written: Sequence[table.DataFile],
    step: table.Step,
    mode: str,
) -> None:
    if mode == "append" and not written:
        return
    if not table.Commit(options, schema, written, step, mode).apply():
        files.remove(options, written)


def abort(options: LakeOptions, written: Sequence[table.DataFile], step: table.Step) -> None:
    """Spark also calls this when a commit took effect and its answer was lost: files go only when
    the log says that there was none. What is left over otherwise is for a vacuum."""
    try:
        there = table.find_table(options)
    except (DeltaError, OSError, LakeUnreachable):
        return
    if there is None or not step.may_be_in(there):
        known = {each.path for each in table.active_files(there)} if there is not None else set()
        files.remove(options, [each for each in written if each.path not in known])


def _files(messages: Sequence[Any]) -> list[table.DataFile]:
    return [file for each in messages if isinstance(each, Written) for file in each.files]


def _told(messages: Sequence[Any]) -> Written:
    """What the tasks know and their driver does not."""
    return next((each for each in messages if isinstance(each, Written)), Written([]))


class LakeWriter(_Writing, DataSourceArrowWriter):
    def __init__(self, options: LakeOptions, schema: StructType, mode: str) -> None:
        super().__init__(options, schema, mode)
        self._application = options.owner or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator, self._application)

    def commit(self, messages: Any) -> None:
        self._commit(messages, self._step(messages))

    def abort(self, messages: Any) -> None:
        self._abort(messages, self._step(messages))

    def _step(self, messages: Sequence[Any]) -> table.Step:
        return table.Step(self._application, self.options.batch or 0, _told(messages).instance)


class LakeStreamWriter(_Writing, DataSourceStreamArrowWriter):
    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        super().__init__(options, schema, "append")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query = query_of_task()
        assert query, "every query would count as one"
        return self._write(iterator, self.options.owner or f"spark-{query}")

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._commit(messages, _step(messages, batchId))

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._abort(messages, _step(messages, batchId))


def _step(messages: Sequence[Any], batch: int) -> table.Step:
    told = _told(messages)
    return table.Step(told.application, batch, told.instance)
