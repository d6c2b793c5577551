"""The data source ``braid`` as Spark knows it: what is read how, and by whom.

Spark pickles these objects between its processes, so they hold no sockets: a ``Broker`` is made
where it is used. Everything that matters is in the modules below; here it meets Spark's API.
"""

import logging
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from braidmq.model.errors import Conflict, NotFound
from braidmq.pipeline import kafka, leases, tables
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.columns import MESSAGE, SCHEMA
from braidmq.pipeline.encoding import check_columns
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.filters import Wanted, narrowed
from braidmq.pipeline.leases import StreamLease
from braidmq.pipeline.offsets import (
    Logs,
    Offsets,
    Position,
    ends_of,
    from_json,
    limited,
    not_before,
    partitions_of,
    position_in,
    records_between,
)
from braidmq.pipeline.options import (
    EARLIEST,
    LATEST,
    SourceOptions,
    boolean,
    check_kind,
    parse_options,
)
from braidmq.pipeline.planning import (
    Split,
    check_end,
    check_loss,
    ending,
    find_logs,
    narrow,
    plan,
    recreated,
    starting,
)
from braidmq.pipeline.reading import SplitReader
from braidmq.pipeline.sink import BatchWriter, StreamWriter
from braidmq.pipeline.sink_options import SinkOptions, check_counting, parse_sink_options
from braidmq.pipeline.typed import TypedRows

logger = logging.getLogger(__name__)

ORDER_S_MAX = 2.0
"""How long after its connection, at the most, Spark ends the process that plans a stream."""

MESSAGES: StructType = from_arrow_schema(SCHEMA)
EVERY_COLUMN: StructType = from_arrow_schema(MESSAGE)
KAFKA_MESSAGES: StructType = from_arrow_schema(
    pa.schema(
        [
            pa.field(each, pa.int32()) if each == kafka.TIMESTAMP_TYPE else SCHEMA.field(each)
            for each in (*kafka.COLUMNS, "headers")
        ]
    )
)
TABLES: dict[str, StructType] = {
    name: from_arrow_schema(each) for name, each in tables.SCHEMAS.items()
}


class BraidDataSource(DataSource):
    """``spark.read.format("braid")`` and ``spark.readStream.format("braid")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = dict(options)

    kafka = False
    """Whether rows, and defaults, are as those of Kafka's source."""

    @property
    def _options(self) -> SourceOptions:
        return parse_options(self._given, kafka=self.kafka)

    @classmethod
    def name(cls) -> str:
        return "braid"

    def schema(self) -> StructType | str:
        """Asked for only where the user gave none."""
        if self._options.table:
            return TABLES[self._options.table]
        if self._options.format:
            raise BadOption(
                f"format {self._options.format!r} needs a schema",
                remedy='Give one such as .schema("id BIGINT, name STRING, _offset BIGINT,'
                ' _corrupt BINARY")',
            )
        return chosen(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._options.table:
            return self._table_reader(schema)
        options = self.options_of(streams=False)
        kind = FilteringReader if options.push_filters else BatchReader
        return kind(options, self._typed(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(self.options_of(streams=True), self._typed(schema))

    def options_of(self, *, streams: bool) -> SourceOptions:
        """For one kind of reading messages. Raises BadOption for what is of the other."""
        options = self._options
        if streams and options.table:
            raise BadOption(
                "a table of the broker's state can't be read as a stream", remedy="Use spark.read"
            )
        check_kind(options, streams=streams)
        if streams and options.starting_offsets == "committed":
            raise BadOption(
                "startingOffsets=committed is for what is read at once",
                remedy="A stream goes on from its checkpoint: begin with earliest or latest",
            )
        return options

    def _table_reader(self, schema: StructType) -> DataSourceReader:
        options = self._options
        tables.check(options)
        if schema != TABLES[options.table]:
            raise BadOption(f"table {options.table!r} has a schema of its own", remedy="Give none")
        return TableReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise BadOption("a topic can only be appended to", remedy='Use .mode("append")')
        return BatchWriter(self._counting(schema, streams=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(self._counting(schema, streams=True))

    def _counting(self, schema: StructType, *, streams: bool) -> SinkOptions:
        options = self._sink_options(schema)
        check_counting(options, streams=streams)
        return options

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(self._given)
        check_columns(schema.fieldNames(), options)
        return options

    def _typed(self, schema: StructType) -> StructType | None:
        """The schema to decode values into; None: messages as they are."""
        if self._options.format:
            TypedRows(schema, self._options)  # what is wrong with it is said at once
            return schema
        if schema != chosen(self._options):
            raise BadOption(
                "a schema needs a format to read the values with",
                remedy='Give option("format", "json"), or no schema',
            )
        return None


class BraidKafkaDataSource(BraidDataSource):
    """``format("braid_kafka")``: for jobs that were written for Spark's Kafka source and sink."""

    kafka = True

    @classmethod
    def name(cls) -> str:
        return "braid_kafka"

    def _sink_options(self, schema: StructType) -> SinkOptions:
        """Kafka's sink goes by columns ``partition`` and ``headers`` where they are."""
        names = schema.fieldNames()
        given = {name.lower(): value for name, value in self._given.items()}
        headers = given.pop("includeheaders", "")
        if headers and boolean("includeHeaders", headers) != ("headers" in names):
            raise BadOption("includeHeaders and the column headers contradict each other")
        given.setdefault("keeppartition", "true" if "partition" in names else "false")
        options = parse_sink_options(given)
        check_columns(names, options)
        return options


def chosen(options: SourceOptions) -> StructType:
    """The columns of messages, or those that are wanted: Spark does not leave any out itself."""
    known = KAFKA_MESSAGES if options.kafka_columns else EVERY_COLUMN
    names = wanted_columns(options)
    if strangers := [each for each in names if each not in known.names]:
        raise BadOption(
            f"messages have no column {strangers[0]!r}",
            remedy=f"There are: {', '.join(known.names)}",
        )
    return StructType([known[each] for each in names])


def wanted_columns(options: SourceOptions) -> tuple[str, ...]:
    if options.columns:
        return options.columns
    if options.kafka_columns:
        return (*kafka.COLUMNS, "headers") if options.include_headers else kafka.COLUMNS
    return tuple(
        each for each in MESSAGES.names if each != "headers" or options.include_headers is not False
    )


class SplitPartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)


def read_split(
    partition: InputPartition, options: SourceOptions, typed: StructType | None
) -> Iterator[pa.RecordBatch]:
    """Spark asks for one partition without a value where there are none."""
    return iter(()) if partition.value is None else rows_of(partition.value, options, typed)


def rows_of(
    split: Split, options: SourceOptions, typed: StructType | None
) -> Iterator[pa.RecordBatch]:
    if typed is not None:
        rows = TypedRows(typed, options)
        return rows.read(SplitReader(split, options, rows.columns).read())
    names = wanted_columns(options)
    if kafka.TIMESTAMP_TYPE not in names:
        return SplitReader(split, options, names).read()
    ours = [each for each in names if each != kafka.TIMESTAMP_TYPE] or ["offset"]
    batches = SplitReader(split, options, ours).read()
    return (_with_timestamp_type(each, names) for each in batches)


def _with_timestamp_type(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    kinds = array("i", [kafka.LOG_APPEND_TIME]) * batch.num_rows
    column = pa.Array.from_buffers(pa.int32(), batch.num_rows, [None, pa.py_buffer(kinds)])
    return batch.append_column(kafka.TIMESTAMP_TYPE, column).select(list(names))


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, typed: StructType | None = None) -> None:
        self.options = options
        self.typed = typed

    def partitions(self) -> Sequence[InputPartition]:
        with Broker(self.options) as broker:
            logs = find_logs(broker, self.options, segments=True)
            start = starting(broker, logs, self.options, EARLIEST)
            end = ending(broker, logs, self.options)
            splits = self._plan(broker, logs, start, end)
            splits = self._leased(broker, start, splits)
        return [SplitPartition(each) for each in splits]

    def _plan(self, broker: Broker, logs: Logs, start: Offsets, end: Offsets) -> list[Split]:
        return plan(logs, start, end, self.options)

    def _leased(self, broker: Broker, start: Offsets, splits: list[Split]) -> list[Split]:
        if not splits:
            return []
        name = leases.new_lease_name("batch")
        holder = f"Spark query of {self.options.described}"
        leases.hold(broker, name, start, self.options, holder=holder, parts=len(splits))
        return [replace(each, lease=name, part=part) for part, each in enumerate(splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self.options, self.typed)


class FilteringReader(BatchReader):
    """Takes filters from Spark, which only has them for a reader that says so: with the option
    pushFilters, and Spark's own spark.sql.python.filterPushdown.enabled."""

    wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.wanted = narrowed(filters)
        return filters

    def _plan(self, broker: Broker, logs: Logs, start: Offsets, end: Offsets) -> list[Split]:
        if self.wanted == Wanted():
            return super()._plan(broker, logs, start, end)
        start, end = narrow(broker, start, end, self.wanted.window, self.wanted.partitions)
        return plan(logs, start, end, self.options, self.wanted.window, self.wanted.keys)


class TableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self.options.table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return tables.batches_of(self.options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, typed: StructType | None = None) -> None:
        self.options = options
        self.typed = typed
        self._lease: StreamLease | None = None
        self._logs: Logs = {}
        self._looked_s = 0.0
        self._target: Position | None = None
        """Where the query ends (availableNow); None: never."""
        self._reported: Offsets = {}
        self._triggered_s = 0.0
        """When it last had enough for a batch, or had waited long enough; the first is at once."""

    # --- where it stands ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with Broker(self.options) as broker:
            logs = find_logs(broker, self.options)
            return position_in(logs, starting(broker, logs, self.options, LATEST)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.options.records_per_trigger_max:
            return ReadMaxRows(self.options.records_per_trigger_max)
        if self.options.bytes_per_trigger_max:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = from_json(start)
        with Broker(self.options) as broker:
            end = self._end(broker, position)
            begin = check_loss(position, self._logs, self.options)
            if self._lease is None:
                self._hold(broker, position, begin)
            elif end.log_ids != position.log_ids:
                self._lease.move(broker, begin)
        to = not_before(begin, end.offsets)
        if self._waits(begin, to) and end.log_ids == position.log_ids:
            return start
        return Position(self._limited(begin, to, limit), end.log_ids).to_json()

    def _waits(self, begin: Offsets, end: Offsets) -> bool:
        """Whether there is too little yet to begin a batch with."""
        if self._target is not None or not self.options.records_per_trigger_min:
            return False
        now_s = time.monotonic()
        waiting = records_between(begin, end)
        delayed = (now_s - self._triggered_s) * 1000 < self.options.trigger_delay_max_ms
        if waiting < self.options.records_per_trigger_min and self._triggered_s and delayed:
            return True
        if waiting:
            self._triggered_s = now_s
        return False

    def _end(self, broker: Broker, begin: Position) -> Position:
        if self._target is not None:
            return self._target
        end = self._look(broker)
        if end == begin:
            # Spark asks again at once: others need the processor, and the broker its peace.
            time.sleep(self.options.poll_ms / 1000)
            end = self._look(broker)
        return end

    def _look(self, broker: Broker) -> Position:
        now_s = time.monotonic()
        if not self._looked_s or (now_s - self._looked_s) * 1000 >= self.options.poll_ms:
            self._logs = find_logs(broker, self.options, begun=True)
            self._looked_s = now_s
        return position_in(self._logs, ends_of(self._logs, self.options))

    def _limited(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        records = 0
        if isinstance(limit, ReadMaxRows):
            records = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            records = max(int(limit.max_bytes / self._record_bytes()), 1)
        if self.options.records_per_trigger_max and self.options.bytes_per_trigger_max:
            by_bytes = int(self.options.bytes_per_trigger_max / self._record_bytes())
            records = min(records, max(by_bytes, 1)) if records else 0
        return limited(begin, end, records) if records else end

    def _record_bytes(self) -> float:
        """About what a record takes on disk."""
        logs = [log for _, log in partitions_of(self._logs)]
        records = sum(each.end_offset - each.start_offset for each in logs)
        return max(sum(each.size for each in logs) / max(records, 1), 1.0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with Broker(self.options) as broker:
            self._logs = find_logs(broker, self.options, begun=True)
            self._target = position_in(self._logs, ends_of(self._logs, self.options))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if not self._logs:
            return None
        return position_in(self._logs, ends_of(self._logs, self.options)).to_json()

    # --- reading ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        position = from_json(start)
        segments = self.options.read_mode == "segments"
        with Broker(self.options) as broker:
            logs = find_logs(broker, self.options, segments=segments, begun=True)
            begin = check_loss(position, logs, self.options)
            if self._lease is None:
                # A batch of an earlier run is read again, and nobody has asked for an end yet.
                self._hold(broker, position, begin)
        stop = check_end(begin, from_json(end), logs, self.options)
        return [SplitPartition(each) for each in plan(logs, begin, stop, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self.options, self.typed)

    # --- what the broker is told ---

    def _hold(self, broker: Broker, position: Position, begin: Offsets) -> None:
        if strangers := sorted(set(position.offsets) & set(begin) - set(position.log_ids)):
            logger.warning(
                "the checkpoint is of an earlier version and does not say which log it was reading"
                " of %s: it goes on in the one that is there, and keeps that in mind from now on",
                ", ".join(strangers),
            )
        self._lease = StreamLease(self.options)
        self._lease.move(broker, begin)
        if threading.current_thread() is threading.main_thread():
            # How Spark ends this process when its query is stopped, or done.
            signal.signal(signal.SIGTERM, self._on_terminated)

    def _on_terminated(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # Spark says it twice
        if self._lease is not None:
            self._lease.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def commit(self, end: dict[str, Any]) -> None:
        position = from_json(end)
        done = {
            topic: partitions
            for topic, partitions in position.offsets.items()
            if topic not in self._logs or not recreated(position, self._logs[topic])
        }
        with Broker(self.options) as broker:
            if self._lease is not None:
                self._lease.move(broker, done)
            if self.options.group:
                self._report(broker, replace(position, offsets=done))

    def _report(self, broker: Broker, done: Position) -> None:
        """The group's lag: for people alone, the query's own place is in its checkpoint."""
        for topic, partitions in done.offsets.items():
            if self._reported.get(topic) == partitions:
                continue
            path = ("topics", topic, "subscriptions", self.options.group)
            offsets = [{"partition": number, "offset": at} for number, at in partitions.items()]
            try:
                broker.send("PUT", *path, body={})
                body = {"offsets": offsets, "log": done.log_ids.get(topic, "")}
                broker.send("POST", *path, "commit", body=body)
            except (NotFound, Conflict) as error:
                logger.info("the lag of topic %s is not told: %s", topic, error)
        self._reported = done.offsets

    def stop(self) -> None:
        """Spark calls it on the way out of an error. Then whoever begins the query again shall find
        what it has still to read: the lease ends in its own time."""
        if self._lease is None:
            return
        error = sys.exception()
        if error is None:
            self._lease.end()
            self._lease = None
            return
        self._lease.abandon()
        if isinstance(error, EOFError):
            self._await_order()

    def _await_order(self) -> None:
        """Nobody is there to talk to: the driver is dead, or about to end this process."""
        driver, deadline_s = os.getppid(), time.monotonic() + ORDER_S_MAX
        while os.getppid() == driver and time.monotonic() < deadline_s:
            time.sleep(0.02)
