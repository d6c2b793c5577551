"""A lake of Parquet files with a Delta log: ``format("braid_lake")``, without a jar.

Executors write files that the table does not list yet; the driver adds them in one Delta commit,
which also records the application's last batch. A repeated batch finds it there and adds nothing.
"""

import posixpath
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow import fs
from pyspark import TaskContext
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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from braidmq.model.errors import NotFound
from braidmq.pipeline.errors import BadOption, LakeChanged, StaleCheckpoint
from braidmq.pipeline.options import Readers, read_options, text
from braidmq.pipeline.sink import BATCH_ID, QUERY_ID
from braidmq.pipeline.sink_options import number

ROWS_PER_FILE = 5_000_000
"""About a gigabyte of small messages: files that one task reads in seconds."""

COMMIT_TRIES = 5


@dataclass(frozen=True)
class LakeOptions:
    path: str = ""
    application: str = ""
    epoch: int = 0
    batch: int | None = None
    version: int | None = None
    """Of the table: what is read, and what an overwriting replaces."""


_READERS: Readers = {
    "path": ("path", text),
    "applicationId": ("application", text),
    "applicationEpoch": ("epoch", number),
    "batchId": ("batch", number),
    "version": ("version", number),
}


def parse_lake_options(given: Mapping[str, str]) -> LakeOptions:
    options = LakeOptions(**read_options(given, _READERS))
    if not options.path:
        raise BadOption(
            "the option path is needed",
            remedy="Give the place of the lake; it is created if it does not exist",
        )
    if "://" not in options.path and not options.path.startswith("/"):
        raise BadOption(
            f"path: {options.path!r} is relative",
            remedy="Executors work in other directories: begin the path with / or a scheme",
        )
    return options


class LakeDataSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = parse_lake_options(options)

    @classmethod
    def name(cls) -> str:
        return "braid_lake"

    def schema(self) -> StructType:
        return from_arrow_schema(_arrow_schema(open_table(self._options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LakeReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if not overwrite:
            return LakeWriter(self._options, schema, "append")
        options = self._options
        if options.version is None and DeltaTable.is_deltatable(options.path):
            options = replace(options, version=DeltaTable(options.path).version())
        return LakeWriter(options, schema, "overwrite")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return LakeStreamWriter(self._options, schema)


def open_table(options: LakeOptions) -> DeltaTable:
    try:
        return DeltaTable(options.path, version=options.version)
    except TableNotFoundError:
        raise NotFound(f"there is no lake at {options.path}") from None


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema())


# --- reading ---


class LakeReader(DataSourceReader):
    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(uri) for uri in open_table(self.options).file_uris()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        wanted = _stored_schema(self._schema)
        files, path = _filesystem(partition.value)
        with files.open_input_file(path) as file:
            for batch in pq.ParquetFile(file).iter_batches():
                yield _fitted(batch, wanted)


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    if "://" not in path:
        return fs.LocalFileSystem(), path
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
    return found


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns by name; Spark and Delta differ in how they call the same types."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- writing ---


@dataclass
class Written(WriterCommitMessage):
    """Files of one task, not yet in the table."""

    files: list[tuple[str, int, int]]
    """Name, bytes, rows."""
    application: str = ""


class Files:
    """The files of one attempt at one task."""

    def __init__(self, path: str, schema: StructType) -> None:
        self._path = path
        self._schema = _stored_schema(schema)

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        files, base = _filesystem(self._path)
        files.create_dir(base, recursive=True)
        writer: pq.ParquetWriter | None = None
        name, rows = "", 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    name, rows = f"part-{uuid.uuid4().hex}.parquet", 0
                    where = posixpath.join(base, name)
                    writer = pq.ParquetWriter(
                        where, self._schema, filesystem=files, compression="zstd"
                    )
                writer.write_batch(_fitted(batch, self._schema))
                rows += batch.num_rows
                if rows >= ROWS_PER_FILE:
                    writer.close()
                    writer = None
                    found.append((name, files.get_file_info(where).size, rows))
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            found.append((name, files.get_file_info(where).size, rows))
        return found

    def remove(self, written: list[tuple[str, int, int]]) -> None:
        files, base = _filesystem(self._path)
        for name, _, _ in written:
            try:
                files.delete_file(posixpath.join(base, name))
            except FileNotFoundError:
                continue


def _stored_schema(schema: StructType) -> pa.Schema:
    """Times in UTC whatever the session shows: Delta knows no other."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def commit_files(
    path: str,
    schema: pa.Schema,
    written: Sequence[Written],
    step: Transaction,
    mode: str,
    version: int | None = None,
) -> bool:
    """One Delta commit for all files. False: the application has committed this already.

    With a version it replaces just that one: what came later must not be lost with it.
    """
    actions: list[Any] = [_action(*each) for message in written for each in message.files]
    properties = CommitProperties(app_transactions=[step])
    for attempt in range(COMMIT_TRIES):
        try:
            table = DeltaTable(path)
        except TableNotFoundError:
            table = None
        if table is not None and is_committed(table, step):
            return False
        try:
            if table is None:
                create_table_with_add_actions(
                    path, Schema.from_arrow(schema), actions, commit_properties=properties
                )
            elif version is not None and table.version() != version:
                raise LakeChanged(
                    f"{path} is at version {table.version()}, and version {version} was read"
                )
            else:
                table.create_write_transaction(
                    actions, mode, Schema.from_arrow(schema), commit_properties=properties
                )
        except CommitFailedError:
            # Somebody else was first: look again who.
            if attempt + 1 == COMMIT_TRIES:
                raise
            continue
        return True
    raise AssertionError("unreachable")


def is_committed(table: DeltaTable, step: Transaction) -> bool:
    last = table.transaction_version(step.app_id)
    if last is not None and last > step.version:
        raise StaleCheckpoint(
            f"application {step.app_id!r} has committed batch {last} to this lake already, and"
            f" this query begins again at batch {step.version}"
        )
    return last == step.version


def _action(name: str, size: int, rows: int) -> AddAction:
    stats = msgspec.json.encode({"numRecords": rows}).decode()
    return AddAction(name, size, {}, time.time_ns() // 1_000_000, True, stats)


class _Writing:
    """What both kinds of writing share."""

    def __init__(self, options: LakeOptions, schema: StructType, mode: str) -> None:
        self.options = options
        self._schema = schema
        self._mode = mode

    def _write(self, batches: Iterator[pa.RecordBatch], application: str) -> Written:
        return Written(Files(self.options.path, self._schema).write(batches), application)

    def _commit(self, messages: Sequence[Any], application: str, batch: int) -> None:
        written = [each for each in messages if isinstance(each, Written)]
        if self._mode == "append" and not any(each.files for each in written):
            return
        step = Transaction(application, batch)
        stored = _stored_schema(self._schema)
        version = self.options.version if self._mode == "overwrite" else None
        if not commit_files(self.options.path, stored, written, step, self._mode, version):
            self._remove(written)

    def _abort(self, messages: Sequence[Any]) -> None:
        """Spark also calls this when a commit took effect and its answer was lost."""
        written = [each for each in messages if isinstance(each, Written)]
        try:
            table = DeltaTable(self.options.path)
        except TableNotFoundError:
            self._remove(written)
            return
        known = {uri.rpartition("/")[2] for uri in table.file_uris()}
        for each in written:
            each.files = [file for file in each.files if file[0] not in known]
        self._remove(written)

    def _remove(self, written: Sequence[Written]) -> None:
        files = Files(self.options.path, self._schema)
        for each in written:
            files.remove(each.files)


class LakeWriter(_Writing, DataSourceArrowWriter):
    def __init__(self, options: LakeOptions, schema: StructType, mode: str) -> None:
        super().__init__(options, schema, mode)
        self._application = _application(options) or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator, self._application)

    def commit(self, messages: Any) -> None:
        self._commit(messages, self._application, self.options.batch or 0)

    def abort(self, messages: Any) -> None:
        self._abort(messages)


class LakeStreamWriter(_Writing, DataSourceStreamArrowWriter):
    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        super().__init__(options, schema, "append")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        assert context.getLocalProperty(BATCH_ID) is not None
        application = _application(self.options) or f"spark-{context.getLocalProperty(QUERY_ID)}"
        return self._write(iterator, application)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._commit(messages, _application_of(messages), batchId)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def _application(options: LakeOptions) -> str:
    if not options.application:
        return ""
    return f"{options.application}/{options.epoch}" if options.epoch else options.application


def _application_of(messages: Sequence[Any]) -> str:
    found = [each.application for each in messages if isinstance(each, Written)]
    return found[0] if found else ""
