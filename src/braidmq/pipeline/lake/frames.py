"""Lakes as DataFrames whose rows stay in the JVM, and copies of topics whose rows never get there.

Reading is a plan over the table's list of files for Spark's own Parquet reader. Writing lets Spark,
or for copies our own tasks, write to a directory that no reader of the table looks into; the driver
then moves the files below the table and adds them in one Delta commit. All need a driver that sees
the files: object stores, and sessions of Spark Connect, go through ``format("braid_lake")``.
"""

import posixpath
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from braidmq.pipeline.errors import LakeVacuumed
from braidmq.pipeline.lake import copying, files, rules, source, table
from braidmq.pipeline.lake.options import LakeOptions, check_reading, parse_lake_options
from braidmq.pipeline.lake.syncing import sync_files
from braidmq.pipeline.ranges import ranges
from braidmq.pipeline.sink import QUERY_ID
from braidmq.pipeline.sink_options import check_counting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "braid_lake"
STAGING = "_braid_staging"
"""Below the table: a name with _ is hidden from everything that lists files."""

LEVEL = ("parquet.compression.codec.zstd.level", "1")
"""As pyarrow's own: Spark's is 3, which takes longer than a disk does for what it saves."""

DICTIONARY = "parquet.enable.dictionary"
FOOTERS_AT_ONCE = 8
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
UTC_DATE = f"date_from_unix_date(CAST(floor(unix_seconds({rules.TIMESTAMP}) / 86400) AS INT))"


def read(spark: "SparkSession", path: str, **options: Any) -> "DataFrame":
    """The lake at ``path``, with the options of ``format("braid_lake")``: ``version=3``."""
    from pyspark.sql import functions

    given = _texts({"path": path, **options})
    parsed = parse_lake_options(given)
    check_reading(parsed)
    if not sees_files(spark, parsed.path):
        return spark.read.format(FORMAT).options(**given).load()
    opened = table.open_table(parsed)
    schema, within = table.schema_of(opened), parsed.within
    rules.check_within(schema, within)
    found = table.active_files(opened, within)
    try:
        frame = _planned(spark, parsed, schema, opened.metadata().partition_columns, found)
        if within is None:
            return frame
        column = functions.col(f"`{within.column}`")
        return frame.where((column >= within.start) & (column < within.stop))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise LakeVacuumed(
            f"version {opened.version()} of {path} has files that are gone"
        ) from error


def write(frame: "DataFrame", path: str, mode: str = "append", **options: Any) -> int:
    """Append to the lake at ``path``, or overwrite it, with the options of
    ``format("braid_lake")``. Rows that were added; 0 for a batch that is there already.

    Raises WrongSchema before anything is written.
    """
    given = _texts({"path": path, **options})
    parsed = parse_lake_options(given)
    if not sees_files(frame.sparkSession, parsed.path):
        return _write_through_python(frame, given, mode)
    step = _step(frame.sparkSession, parsed)
    return _write(parsed, frame.schema, step, mode, partial(_by_spark, frame))


def check(schema: StructType, mode: str = "append", **options: Any) -> None:
    """Whether columns of that schema can be written. Raises WrongSchema, LakeUnsupported."""
    source.prepared(parse_lake_options(_texts(options)), schema, mode)


def copy(
    spark: "SparkSession",
    messages: Mapping[str, Any],
    schema: StructType,
    path: str,
    mode: str = "append",
    **options: Any,
) -> int:
    """What ``format("braid")`` reads with the options ``messages``, as ``write`` would write it.
    Only where the driver ``sees_files``."""
    parsed = parse_lake_options(_texts({"path": path, **options}))
    texts = _texts(messages)
    frame = ranges(spark, texts, streams=False)
    stage = partial(copying.staged, frame, copying.Messages.of(texts, schema))
    return _write(parsed, schema, _step(spark, parsed), mode, stage)


def stream(frame: "DataFrame", path: str, **options: Any) -> Any:
    """Each batch of a stream into the lake at ``path``, once however often it is tried.

    Raises WrongSchema before it starts.
    """
    given = _texts({"path": path, **options})
    parsed = parse_lake_options(given)
    if not sees_files(frame.sparkSession, parsed.path):
        check_counting(parsed, streams=True)
        if not parsed.is_local:
            # Spark asks the sink with its first batch, and that may be long in coming.
            source.prepared(parsed, frame.schema, "append")
        return frame.writeStream.format(FORMAT).options(**given)

    def stage(batch: "DataFrame") -> Stage:
        return partial(_by_spark, batch)

    return _streamed(frame, frame.schema, parsed, stage)


def copy_stream(
    spark: "SparkSession",
    messages: Mapping[str, Any],
    schema: StructType,
    path: str,
    told: Callable[[int, int], object],
    **options: Any,
) -> Any:
    """As ``stream`` would write what ``format("braid")`` reads with the options ``messages``. Only
    where the driver ``sees_files``. ``told`` each batch and its rows: Spark counts ranges."""
    parsed = parse_lake_options(_texts({"path": path, **options}))
    texts = _texts(messages)
    read = copying.Messages.of(texts, schema)

    def stage(batch: "DataFrame") -> Stage:
        return partial(copying.staged, batch, read)

    return _streamed(ranges(spark, texts, streams=True), schema, parsed, stage, told)


def version(path: str, **options: Any) -> int | None:
    """The lake's latest; None: there is none."""
    found = table.find_table(parse_lake_options(_texts({"path": path, **options})))
    return None if found is None else int(found.version())


def pinned(path: str, **options: Any) -> int:
    """The version that these options read now. Raises NotFound."""
    opened = table.open_table(parse_lake_options(_texts({"path": path, **options})))
    return int(opened.version())


def identity(path: str, **options: Any) -> str:
    """The table's, which one that is created anew has not; empty: there is none."""
    found = table.find_table(parse_lake_options(_texts({"path": path, **options})))
    return "" if found is None else str(found.metadata().id)


def sees_files(spark: "SparkSession", path: str) -> bool:
    """Whether this process is the driver and sees the files: then no row need pass through both
    the JVM and Python."""
    return hasattr(spark, "sparkContext") and parse_lake_options({"path": path}).is_local


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


# --- reading ---


def _planned(
    spark: "SparkSession",
    options: LakeOptions,
    schema: StructType,
    partition_by: Sequence[str],
    found: Sequence[table.ActiveFile],
) -> "DataFrame":
    if not found:
        return spark.createDataFrame([], schema)

    def parquet(some: Sequence[table.ActiveFile], inside: StructType, **more: str) -> "DataFrame":
        reader = spark.read.schema(inside).options(**{"__globPaths__": "false"}, **more)
        return reader.parquet(*(files.absolute(options, each.path) for each in some))

    if not partition_by:
        return parquet(found, schema)
    if all(_says_its_values(each, partition_by) for each in found):
        # Spark knows partitions by their directories, and leaves out those that a filter does.
        return parquet(found, schema, basePath=options.path).select(*schema.names)
    return _united(schema, partition_by, found, parquet)


def _says_its_values(file: table.ActiveFile, partition_by: Sequence[str]) -> bool:
    """Whether its directories are named as Hive has it, with the values that the log has, for
    Spark: to it %C3%BC is two letters."""
    found = [part.partition("=") for part in file.path.split("/")[:-1]]
    named = [(_by_spark_read(name), text) for name, _, text in found]
    return [name for name, _ in named] == list(partition_by) and all(
        (None if text == files.NO_VALUE else _by_spark_read(text)) == _written(file.values[name])
        for name, text in named
    )


def _by_spark_read(text: str) -> str:
    return unquote(text, encoding="latin-1")


def _written(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _united(
    schema: StructType,
    partition_by: Sequence[str],
    found: Sequence[table.ActiveFile],
    parquet: Callable[..., "DataFrame"],
) -> "DataFrame":
    """Directories that say nothing: the log's values are put beside the rows of each partition."""
    from pyspark.sql import functions

    inside = StructType([each for each in schema if each.name not in partition_by])

    def values(file: table.ActiveFile) -> list[Any]:
        return [file.values[name] for name in partition_by]

    parts = []
    for _, some in groupby(sorted(found, key=lambda file: repr(values(file))), key=values):
        of_one = list(some)
        added = {
            name: functions.lit(of_one[0].values[name]).cast(schema[name].dataType)
            for name in partition_by
        }
        parts.append(parquet(of_one, inside).withColumns(added).select(*schema.names))
    return reduce(lambda left, right: left.unionByName(right), parts)


# --- writing ---


def _write_through_python(frame: "DataFrame", given: Mapping[str, str], mode: str) -> int:
    from pyspark.sql import Observation, functions

    seen = Observation()
    counted = frame.observe(seen, functions.count(functions.lit(1)).alias("rows"))
    counted.write.format(FORMAT).options(**given).mode(mode).save()
    return int(seen.get["rows"])


Stage = Callable[[LakeOptions, StructType, Path], list[table.DataFile]]
"""Writes files of a schema below a directory; their paths are as they will be below the table."""


def _step(spark: "SparkSession", options: LakeOptions) -> table.Step:
    check_counting(options, streams=False)
    if not options.application:
        return table.Step(f"spark-{uuid.uuid4().hex}", 0)
    return table.Step(options.owner, options.batch or 0, options.instance or _query(spark))


def _query(spark: "SparkSession") -> str:
    """Whose batch this thread writes; empty: no query's."""
    return str(spark.sparkContext.getLocalProperty(QUERY_ID) or "")


def _streamed(
    frame: "DataFrame",
    schema: StructType,
    options: LakeOptions,
    stage: Callable[["DataFrame"], Stage],
    told: Callable[[int, int], object] = lambda batch, rows: None,
) -> Any:
    """``schema``: of what a batch's ``stage`` writes."""
    check_counting(options, streams=True)
    source.prepared(options, schema, "append")

    def add(batch: "DataFrame", number: int) -> None:
        # Named as format("braid_lake") names it, so that a stream can change from one to the other.
        query = _query(batch.sparkSession)
        assert query, "every query would count as one"
        step = (
            table.Step(options.owner, number, options.instance or query)
            if options.application
            else table.Step(f"spark-{query}", number)
        )
        told(number, _write(options, schema, step, "append", stage(batch)))

    return frame.writeStream.foreachBatch(add)


def _write(
    given: LakeOptions, schema: StructType, step: table.Step, mode: str, stage: Stage
) -> int:
    options, stored = source.prepared(given, schema, mode)
    if table.is_there(options, table.find_table(options), step):
        return 0
    staging = Path(options.path) / STAGING / uuid.uuid4().hex
    written: list[table.DataFile] = []
    try:
        written = stage(options, stored, staging)
        for each in written:
            target = Path(options.path) / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            (staging / each.path).rename(target)
        sync_files(options, [each.path for each in written])
        source.commit(options, stored, written, step, mode)
        return sum(each.rows for each in written)
    except BaseException:
        source.abort(options, written, step)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # what is left of it, a vacuum takes


def _by_spark(
    frame: "DataFrame", options: LakeOptions, stored: StructType, staging: Path
) -> list[table.DataFile]:
    if rules.derives_date(frame.schema, options.partition_by):
        frame = frame.selectExpr("*", f"{UTC_DATE} AS {rules.DATE}")
    with _micros(frame.sparkSession):
        writer = frame.write.option("compression", files.CODEC).option(*LEVEL)
        for path, wanted in rules.dictionaries(stored).items():
            writer = writer.option(f"{DICTIONARY}#{path}", wanted)
        writer.partitionBy(*options.partition_by).parquet(str(staging))
    return _found(staging)


@contextmanager
def _micros(spark: "SparkSession") -> Iterator[None]:
    """Times as Delta wants them: Spark's own default is INT96, which has no statistics."""
    before = str(spark.conf.get(TIMESTAMPS))
    spark.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(TIMESTAMPS, before)


def _found(staging: Path) -> list[table.DataFile]:
    """Every file with rows, and what its footer says of them."""

    def described(path: Path) -> table.DataFile:
        relative = path.relative_to(staging).as_posix()
        parts = [part.partition("=") for part in posixpath.dirname(relative).split("/") if part]
        values = {
            unquote(name): None if text == files.NO_VALUE else unquote(text)
            for name, _, text in parts
        }
        return files.data_file(relative, path.stat().st_size, values, pq.read_metadata(path))

    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        found = list(pool.map(described, sorted(staging.rglob("*.parquet"))))
    return [each for each in found if each.rows]
