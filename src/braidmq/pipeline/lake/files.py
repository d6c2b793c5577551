"""The Parquet files of a lake: where they are, what is in them, and writing them from Arrow."""

import posixpath
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braidmq.model.limits import MIB
from braidmq.pipeline.lake.options import LakeOptions
from braidmq.pipeline.lake.rules import DATE, TIMESTAMP, dictionaries
from braidmq.pipeline.lake.syncing import sync_files
from braidmq.pipeline.lake.table import DataFile

ROWS_PER_FILE = 5_000_000
"""About a gigabyte of small messages: files that one task reads in seconds."""

GROUP_BYTES = 64 * MIB
"""In Arrow, of all partitions together: as much is held back to make row groups worth reading."""

OPEN_FILES_MAX = 64
"""One for each partition that a task has rows of; each holds buffers of all columns."""

TEXT_MAX = 32
"""Characters of a text that statistics keep, as Delta does."""

CODEC: Final = "zstd"
ESCAPED = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

Partition = tuple[str | None, ...]


def filesystem(options: LakeOptions) -> tuple[fs.FileSystem, str]:
    """Where the table is, and its root there. An object store is reached as its log is: one set of
    options does for both."""
    if options.is_local:
        return fs.LocalFileSystem(), options.path
    return fs.PyFileSystem(DeltaStorageHandler(options.path, options.storage or None)), ""


def opened(options: LakeOptions, path: str) -> Any:
    """A file to read from; in a clone of another table its path is absolute."""
    if options.is_local:
        return fs.LocalFileSystem().open_input_file(absolute(options, path))
    files, root = filesystem(options)
    return files.open_input_file(posixpath.join(root, path))


def absolute(options: LakeOptions, path: str) -> str:
    return posixpath.join(options.path, path.removeprefix("file://"))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Times in UTC whatever the session shows: Delta knows no other."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def remove(options: LakeOptions, written: Iterable[DataFile]) -> None:
    files, root = filesystem(options)
    for each in written:
        with suppress(FileNotFoundError):
            files.delete_file(posixpath.join(root, each.path))


# --- what is in a file ---


def data_file(path: str, size: int, values: Mapping[str, str | None], footer: Any) -> DataFile:
    return DataFile(path, size, footer.num_rows, values, statistics(footer))


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Least, greatest and the number of nulls of each plain column, as far as it is known."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if footer.schema.to_arrow_schema().get_field_index(name) < 0:
            continue  # inside a struct or a list
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
        every = [each.statistics for each in chunks]
        if any(each is None or not each.has_null_count for each in every):
            continue
        nulls = sum(each.null_count for each in every)
        found["nullCount"][name] = nulls
        bounds = [each for each in every if each.num_values]
        if not bounds or not all(each.has_min_max for each in bounds):
            continue
        least, most = min(each.min for each in bounds), max(each.max for each in bounds)
        if _is_comparable(least) and _is_comparable(most):
            found["minValues"][name] = _lower(least)
            found["maxValues"][name] = _upper(most)
    return found


def _is_comparable(value: object) -> bool:
    return isinstance(value, str | int | float | date | datetime) and (
        not isinstance(value, bool) and value == value  # NaN is not
    )


def _lower(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_MAX]
    return _text(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[:TEXT_MAX] + "\U0010ffff"  # above all that begin so
    return _text(value)


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        zone = "Z" if value.tzinfo else ""
        return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + zone
    return value.isoformat() if isinstance(value, date) else value


def directory(names: Iterable[str], values: Iterable[str | None]) -> str:
    """As Hive has it: ``date=2026-01-31/topic=orders``."""
    parts = zip(names, values, strict=True)
    return "/".join(f"{_escaped(name)}={_segment(value)}" for name, value in parts)


def _segment(value: str | None) -> str:
    # An empty text is null in a path, and Delta says so too.
    return _escaped(value) if value else NO_VALUE


def _escaped(text: str) -> str:
    """As Spark does it, and no letter more: it reads what is escaped byte by byte."""
    return ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


# --- writing them ---


@dataclass
class _Open:
    path: str
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    values: dict[str, str | None]
    rows: int = 0


class Files:
    """The files of one attempt at one task."""

    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self._files, self._root = filesystem(options)
        self._options = options
        self._names = options.partition_by
        self._stored = arrow_schema(schema)
        self._inside = pa.schema([f for f in self._stored if f.name not in self._names])
        inside = StructType([each for each in schema if each.name not in self._names])
        self._repeating = [path for path, is_so in dictionaries(inside).items() if is_so]
        self._open: dict[Partition, _Open] = {}
        self._made: set[str] = set()
        self.written: list[DataFile] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        """All of them; what was begun is removed when it fails."""
        try:
            held: list[pa.RecordBatch] = []
            size = 0
            for batch in batches:
                held.append(fitted(batch, self._stored))
                size += batch.nbytes
                if size >= GROUP_BYTES:
                    self._flush(held)
                    held, size = [], 0
            self._flush(held)
            for each in list(self._open):
                self._close(each)
            # Here and not where it is committed: what a machine wrote, it alone can sync.
            sync_files(self._options, [each.path for each in self.written])
        except BaseException:
            self._discard()
            raise
        return self.written

    def _flush(self, held: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(held, self._stored)
        if not table.num_rows:
            return
        for values, rows in _by_partition(table, self._names):
            file = self._open.get(values) or self._begin(values)
            file.writer.write_table(rows.select(self._inside.names))
            file.rows += rows.num_rows
            if file.rows >= ROWS_PER_FILE:
                self._close(values)

    def _begin(self, values: Partition) -> _Open:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        folder = directory(self._names, values)
        path = posixpath.join(folder, f"part-{uuid.uuid4().hex}.parquet")
        if folder not in self._made and self._options.is_local:
            self._files.create_dir(posixpath.join(self._root, folder), recursive=True)
            self._made.add(folder)
        footers: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            posixpath.join(self._root, path),
            self._inside,
            filesystem=self._files,
            compression=CODEC,
            use_dictionary=self._repeating,
            metadata_collector=footers,
        )
        named = dict(zip(self._names, values, strict=True))
        self._open[values] = _Open(path, writer, footers, named)
        return self._open[values]

    def _close(self, values: Partition) -> None:
        file = self._open.pop(values)
        file.writer.close()
        size = self._files.get_file_info(posixpath.join(self._root, file.path)).size
        self.written.append(data_file(file.path, size, file.values, file.footers[0]))

    def _discard(self) -> None:
        begun = [DataFile(each.path, 0, 0) for each in self._open.values()]
        for file in self._open.values():
            with suppress(Exception):
                file.writer.close()
        with suppress(OSError):
            remove(self._options, [*self.written, *begun])  # else a vacuum does it


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns by name; Spark and Delta differ in how they call the same types."""
    return pa.RecordBatch.from_arrays([column(batch, each) for each in schema], schema=schema)


def column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in batch.schema.names:
        found = batch.column(field.name)
        return found if found.type.equals(field.type) else found.cast(field.type)
    if field.name == DATE and TIMESTAMP in batch.schema.names:
        return batch.column(TIMESTAMP).cast(pa.timestamp("us", "UTC")).cast(pa.date32())
    return pa.nulls(batch.num_rows, field.type)


def _by_partition(table: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[Partition, pa.Table]]:
    """Rows of each partition, in their order."""
    if not names:
        yield (), table
        return
    keys = [table[name].cast(pa.string()) for name in names]
    keys = [pc.if_else(pc.equal(each, ""), pa.scalar(None, pa.string()), each) for each in keys]
    numbered = pa.table([*keys, pa.array(range(table.num_rows), pa.int64())], [*names, ""])
    groups = numbered.group_by(list(names), use_threads=False).aggregate([("", "list")])
    for row in range(groups.num_rows):
        values = tuple(groups[name][row].as_py() for name in names)
        # As a rule all are of one topic and day, and need no copying.
        one = groups.num_rows == 1
        yield values, table if one else table.take(groups["_list"].chunk(0)[row].values)
