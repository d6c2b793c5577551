"""A Delta table: what its log says is there, and commits to it."""

import json
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql.types import StructField, StructType

from braidmq.model.errors import NotFound
from braidmq.pipeline.errors import (
    BadOption,
    LakeChanged,
    LakeUnreachable,
    LakeUnsupported,
    StaleCheckpoint,
    WrongSchema,
)
from braidmq.pipeline.lake.options import LakeOptions, Within
from braidmq.pipeline.lake.rules import added
from braidmq.pipeline.lake.syncing import sync_log

COMMIT_TRIES = 5

READER_FEATURES = {
    "deletionVectors",
    "columnMapping",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Those that change nothing for us, and two that are looked for in the table itself."""

WRITER_FEATURES = READER_FEATURES | {
    "appendOnly",
    "invariants",
    "checkConstraints",
    "generatedColumns",
    "identityColumns",
    "changeDataFeed",
}
"""An append is its own change feed; rules for values are looked for in the table itself."""

IMPATIENT = {
    "max_retries": "2",
    "retry_timeout": "10s",
    "connect_timeout": "5s",
    "timeout": "10s",
}
"""Of an object store that a person waits for."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RULES_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


# --- reading the log ---


@dataclass(frozen=True)
class ActiveFile:
    """One that the table lists at a version."""

    path: str
    """Below the table, or absolute in a clone of another; as the file system has it."""
    values: Mapping[str, Any]
    """Of the partition columns, typed."""
    size: int
    least: Mapping[str, Any] = field(default_factory=dict)
    most: Mapping[str, Any] = field(default_factory=dict)
    """By column, as far as they are known."""

    def may_have(self, within: Within) -> bool:
        least, most = self.least.get(within.column), self.most.get(within.column)
        if least is None or most is None:
            return True
        return bool(most >= within.start and least < within.stop)


def open_table(options: LakeOptions) -> DeltaTable:
    """At the version that is wanted. Raises NotFound, LakeUnsupported."""
    table = find_table(options)
    if table is None:
        raise NotFound(f"there is no lake at {options.path}")
    try:
        if options.version is not None:
            table.load_as_version(options.version)
        elif options.timestamp is not None:
            table.load_as_version(options.timestamp)
    except DeltaError as error:
        wanted = options.version if options.version is not None else options.timestamp
        raise NotFound(f"{options.path} has no version {wanted}: {error}") from None
    check_readable(table)
    return table


def find_table(options: LakeOptions) -> DeltaTable | None:
    """Raises LakeUnreachable for one in an object store."""
    with reaching(options):
        try:
            return DeltaTable(options.path, storage_options=options.storage or None)
        except TableNotFoundError as error:
            if str(error).startswith("Unknown scheme"):
                kind = options.path.partition("://")[0]
                raise BadOption(f"path: there is no object store of the kind {kind}") from None
            return None


@contextmanager
def reaching(options: LakeOptions) -> Iterator[None]:
    """What deltalake does with an object store. Raises LakeUnreachable; whether what was asked for
    has taken effect is not known then."""
    try:
        yield
    except OSError as error:
        if options.is_local:
            raise
        raise LakeUnreachable(f"{options.path} can't be reached: {_plain(error)}") from None


def _plain(error: BaseException) -> str:
    """What deltalake says, on one line and without colours."""
    return " ".join(COLOURS.sub("", str(error)).replace("↳", "").split())[:500]


def look(options: LakeOptions, *, wanted: bool) -> None:
    """Whether an object store answers, and soon. Raises LakeUnreachable; NotFound if the lake is
    ``wanted`` and not there."""
    storage = IMPATIENT | options.storage
    if wanted:
        open_table(replace(options, storage=storage))
    else:
        find_table(replace(options, storage=storage))


def schema_of(table: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def active_files(table: DeltaTable, within: Within | None = None) -> list[ActiveFile]:
    """In the order of their paths, so that every planning is the same; without those that have
    nothing ``within``."""
    actions = pa.table(table.get_add_actions())
    partition = "partition" if "partition" in actions.column_names else "partition_values"
    values = (
        actions[partition].to_pylist()
        if table.metadata().partition_columns
        else [{}] * actions.num_rows
    )
    found = [
        ActiveFile(unquote(path), *each)
        for path, *each in zip(
            actions["path"].to_pylist(),
            values,
            actions["size_bytes"].to_pylist(),
            _bounds(actions, "min", within),
            _bounds(actions, "max", within),
            strict=True,
        )
    ]
    return sorted(
        (each for each in found if within is None or each.may_have(within)),
        key=lambda file: file.path,
    )


def _bounds(actions: pa.Table, name: str, within: Within | None) -> list[dict[str, Any]]:
    """Of each file, of the column that is asked for."""
    column = within.column if within is not None else ""
    kind = actions.schema.field(name).type if name in actions.column_names else None
    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(column) < 0:
        return [{}] * actions.num_rows
    found = pc.struct_field(actions[name], column).to_pylist()
    return [{column: each} for each in found]


def check_readable(table: DeltaTable) -> None:
    """Raises LakeUnsupported for what would be read wrongly."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    if strange := sorted(set(protocol.reader_features or ()) - READER_FEATURES):
        raise LakeUnsupported(f"the table needs {', '.join(strange)} of its readers")
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        raise LakeUnsupported("the table's columns are mapped to other names in its files")
    if "deletionVectors" in (protocol.reader_features or ()) and _has_deletion_vectors(table):
        raise LakeUnsupported(
            "the table has deletion vectors: rows of its files that are deleted",
            remedy="Have its owner run REORG TABLE … APPLY (PURGE), then it can be read",
        )


def _has_deletion_vectors(table: DeltaTable) -> bool:
    found = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    return bool(found.num_rows)


def check_writable(table: DeltaTable) -> None:
    """Raises LakeUnsupported for rules that a writer must keep, and we do not know."""
    check_readable(table)
    strange = set(table.protocol().writer_features or ()) - WRITER_FEATURES
    if strange:
        raise LakeUnsupported(f"the table needs {', '.join(sorted(strange))} of its writers")
    rules = [name for name in table.metadata().configuration if "constraints." in name]
    rules += [
        f"{rule} of column {column.name}"
        for column in schema_of(table)
        for rule in RULES_OF_COLUMNS
        if rule in (column.metadata or {})
    ]
    if rules:
        raise LakeUnsupported(f"the table has rules for its values: {', '.join(rules)}")


# --- committing ---

INSTANCE = "#instance"
"""After an application's name: a second transaction of each commit, whose number says who counts.
Delta keeps a number for a name, and no text."""


class Step(NamedTuple):
    """A number that an application commits once to a table, however often it tries."""

    application: str
    number: int
    instance: str = ""
    """Who counts: a query with a new checkpoint is another. Empty: a user who does it by hand."""

    @property
    def transactions(self) -> list[Transaction]:
        found = [Transaction(self.application, self.number)]
        if self.instance:
            found.append(Transaction(self.application + INSTANCE, _as_number(self.instance)))
        return found

    def may_be_in(self, table: DeltaTable) -> bool:
        """Whether it took effect, as far as the log says."""
        return self.is_of(table) and bool(
            table.transaction_version(self.application) == self.number
        )

    def is_of(self, table: DeltaTable) -> bool:
        """Whether those that the table has of the application are of the same who counts."""
        counts = table.transaction_version(self.application + INSTANCE)
        return not self.instance or counts is None or counts == _as_number(self.instance)


def _as_number(instance: str) -> int:
    return int.from_bytes(sha256(instance.encode()).digest()[:7])


@dataclass(frozen=True)
class DataFile:
    """One that was written, and that no commit names yet."""

    path: str
    """Below the table."""
    size: int
    rows: int
    values: Mapping[str, str | None] = field(default_factory=dict)
    """Of the partition columns, as Delta writes them."""
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """What a batch does to a table."""

    options: LakeOptions
    schema: StructType
    """Of the files and their partitions."""
    files: Sequence[DataFile]
    step: Step
    mode: str = "append"

    def apply(self) -> bool:
        """One Delta commit for all files. False: the application has committed this already.

        An overwriting with a version replaces just that one: what came later must not be lost.
        """
        for _ in range(COMMIT_TRIES):
            table = find_table(self.options)
            if is_there(self.options, table, self.step):
                return False
            before = -1 if table is None else table.version()
            try:
                with reaching(self.options):
                    if table is None:
                        self._create()
                    else:
                        self._add(table)
                sync_log(self.options, before + 1)
                return True
            except CommitFailedError as error:
                failure: Exception = error  # somebody else was first: look again who
            except DeltaError as error:
                if table is not None or find_table(self.options) is None:
                    raise
                failure = error  # somebody else has created it
        raise LakeChanged(f"{self.options.path} is changed by others all the time") from failure

    def _create(self) -> None:
        create_table_with_add_actions(
            self.options.path,
            Schema.from_json(self.schema.json()),
            [action(each) for each in self.files],
            partition_by=list(self.options.partition_by),
            configuration={"delta.checkpointInterval": str(self.options.checkpoint_every)},
            storage_options=self.options.storage or None,
            commit_properties=self._properties(),
        )

    def _add(self, table: DeltaTable) -> None:
        version = self.options.version if self.mode == "overwrite" else None
        if version is not None and table.version() != version:
            raise LakeChanged(
                f"{self.options.path} is at version {table.version()}, and version {version} was"
                " read"
            )
        more = check_fits(table, self.options, self.schema)
        _check_nulls(table, self.files)
        if more:
            # A commit of its own: without the files that follow it adds nothing but empty columns.
            table.alter.add_columns(
                [Field.from_json(StructField(each.name, each.dataType).json()) for each in more]
            )
            table.update_incremental()
        table.create_write_transaction(
            [action(each) for each in self.files],
            self.mode,
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=self._properties(),
        )

    def _properties(self) -> CommitProperties:
        return CommitProperties(app_transactions=self.step.transactions)


def check_fits(table: DeltaTable, options: LakeOptions, given: StructType) -> list[StructField]:
    """Columns to be added first. Raises WrongSchema, LakeUnsupported."""
    check_writable(table)
    wanted, there = list(options.partition_by), table.metadata().partition_columns
    if wanted and wanted != there:
        raise WrongSchema(
            f"the lake is partitioned by {', '.join(there) or 'nothing'}, not {', '.join(wanted)}",
            remedy="Leave partitionBy out, or write to another lake",
        )
    return added(schema_of(table), given, options.merge_schema)


def _check_nulls(table: DeltaTable, files: Sequence[DataFile]) -> None:
    for column in schema_of(table):
        if column.nullable:
            continue
        counts = [each.statistics.get("nullCount", {}).get(column.name) for each in files]
        if column.name not in table.metadata().partition_columns and any(
            count != 0 for count in counts
        ):
            raise WrongSchema(f"column {column.name!r} may not be null, and some rows have none")


def is_there(options: LakeOptions, table: DeltaTable | None, step: Step) -> bool:
    """Whether this batch was committed; then it is on disk when this returns, too: who committed
    it may have ended before it was. Raises StaleCheckpoint."""
    if table is None:
        return False
    last = table.transaction_version(step.application)
    if not step.is_of(table):
        raise StaleCheckpoint(
            f"batches of application {step.application!r} in this lake are counted by another"
            f" query, and not by {step.instance}, which is at batch {step.number}"
        )
    if last is not None and last > step.number:
        raise StaleCheckpoint(
            f"application {step.application!r} has committed batch {last} to this lake already,"
            f" and this query begins again at batch {step.number}"
        )
    if last == step.number:
        sync_log(options)
    return bool(last == step.number)


def action(file: DataFile) -> Any:
    assert not posixpath.isabs(file.path)
    statistics = json.dumps({"numRecords": file.rows, **file.statistics})
    now_ms = time.time_ns() // 1_000_000
    return AddAction(file.path, file.size, dict(file.values), now_ms, True, statistics)
