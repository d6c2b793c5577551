"""Runs a pipeline: views of its sources and steps, and what is written of them at once.

Streams are in ``streams.py``, and lakes that are read piece by piece in ``chunks.py``.
"""

import importlib
import importlib.util
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from braidmq.model.errors import BraidError
from braidmq.pipeline import reports
from braidmq.pipeline.definition import (
    BadPipeline,
    Definition,
    SinkSpec,
    SourceSpec,
    StepSpec,
    Watermark,
)
from braidmq.pipeline.encoding import check_columns
from braidmq.pipeline.errors import PipelineFailed, said_by
from braidmq.pipeline.options import BrokerOptions, names_a_login
from braidmq.pipeline.reporting import Progress, SinkProgress, TaskCounts
from braidmq.pipeline.session import setting_text
from braidmq.pipeline.sink_options import counts_batches, parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
LOOK_EVERY_S = 0.5
Watcher = Callable[[Progress], bool]
"""Is told how it goes, and says whether to stop."""


@dataclass
class Runner:
    definition: Definition
    spark: "SparkSession"
    broker: BrokerOptions
    base: Path = field(default_factory=Path)
    """Where the file is: Python files of steps are found from here."""
    _versions: dict[str, int] = field(default_factory=dict)

    def run(self, watch: Watcher) -> Progress:
        """Until it is finished, or stopped. Raises PipelineFailed."""
        if self.definition.streams:
            from braidmq.pipeline.streams import Streams

            return Streams(self, watch).run()
        if self.definition.chunked is not None:
            from braidmq.pipeline.chunks import Chunks

            return Chunks(self, watch).run()
        return self._run_once(self.views(), watch)

    def check(self) -> None:
        """Have Spark read SQL and columns, and the sinks theirs; nothing is run."""
        views = self.views()
        for sink in self.definition.sinks:
            frame = self.chosen(sink, views[sink.source])
            options = {key: setting_text(each) for key, each in self.sink_options(sink).items()}
            try:
                if sink.topic:
                    check_columns(frame.columns, parse_sink_options(options))
                elif sink.lake:
                    from braidmq.pipeline import lake

                    lake.check(frame.schema, sink.mode, **options)
            except BraidError as error:
                raise BadPipeline(
                    f"sink {sink.label!r}: {error.args[0]}", remedy=error.remedy
                ) from None

    # --- views ---

    def views(self, chunk: Mapping[str, Any] | None = None) -> "dict[str, DataFrame]":
        """All of them by name. Building them finds what is wrong with SQL and columns.

        ``chunk``: options that make one of what is read in chunks.
        """
        found: dict[str, DataFrame] = {}
        for source in self.definition.sources:
            part = chunk if chunk is not None and source.chunk is not None else {}
            found[source.name] = self._source(source, part)
            found[source.name].createOrReplaceTempView(source.name)
        for step in self.definition.steps:
            found[step.name] = self._step(step, found)
            found[step.name].createOrReplaceTempView(step.name)
        return found

    def _source(self, source: SourceSpec, chunk: Mapping[str, Any]) -> "DataFrame":
        try:
            return _late(self._read(source, chunk), source.watermark)
        except Exception as error:
            raise BadPipeline(f"source {source.name!r}: {said_by(error)}") from error

    def _read(self, source: SourceSpec, chunk: Mapping[str, Any]) -> "DataFrame":
        if source.lake:
            from braidmq.pipeline import lake

            version = self._version(source.lake, source.options)
            every = chunk or {**version, **source.options}
            return lake.read(self.spark, source.lake, **every)
        streams = self.definition.is_stream(source)
        reader: Any = self.spark.readStream if streams else self.spark.read
        if source.schema:
            reader = reader.schema(source.schema)
        if source.format:
            return _loaded(reader.format(source.format), source.options)
        return _loaded(reader.format("braid"), self._of_broker(source))

    def _of_broker(self, source: SourceSpec) -> dict[str, Any]:
        """Options for ``format("braid")``."""
        streams = self.definition.is_stream(source)
        options: dict[str, Any] = {**self._address(source.options), **_named(source)}
        if streams:
            options["startingOffsets"] = "earliest"
        if source.is_topic:
            options |= source.split_options(streams)
        return options | source.options

    def _version(self, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """One that is read and overwritten is the same for both: nothing may come in between."""
        if path not in {each.lake for each in self.definition.sinks if each.mode == "overwrite"}:
            return {}
        if path not in self._versions:
            from braidmq.pipeline import lake

            found = lake.version(path, **options)
            if found is None:
                return {}
            self._versions[path] = found
        return {"version": self._versions[path]}

    def _address(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Of the broker, as far as ``options`` do not say it."""
        given = self.broker
        place = {"url": given.url, "namespace": given.namespace}
        if names_a_login(options):
            return place
        if given.token:
            return {**place, "token": given.token}
        return {**place, "user": given.user, "password": given.password}

    def _step(self, step: StepSpec, views: "dict[str, DataFrame]") -> "DataFrame":
        function = None if step.sql else find_function(step.python, self.base)
        try:
            if function is None:
                return _late(self.spark.sql(step.sql), step.watermark)
            made: DataFrame = function(*(views[name] for name in step.inputs), **step.options)
            return _late(made, step.watermark)
        except Exception as error:
            said = f"{type(error).__name__}: {said_by(error)}" if function else said_by(error)
            raise BadPipeline(f"step {step.name!r}: {said}") from error

    def chosen(self, sink: SinkSpec, frame: "DataFrame") -> "DataFrame":
        """The rows and columns a sink is for."""
        try:
            return choose(sink, frame)
        except Exception as error:
            raise BadPipeline(f"sink {sink.label!r}: {said_by(error)}") from error

    def copied(self, sink: SinkSpec) -> dict[str, Any] | None:
        """What a lake gets as it is, without anything in between, as options of
        ``format("braid")``; None: its rows have to pass Spark."""
        if not sink.lake or sink.where or sink.select:
            return None
        source = next((each for each in self.definition.sources if each.name == sink.source), None)
        if source is None or not source.is_topic or source.watermark is not None:
            return None
        from braidmq.pipeline import lake

        return self._of_broker(source) if lake.sees_files(self.spark, sink.lake) else None

    # --- once ---

    def _run_once(self, views: "dict[str, DataFrame]", watch: Watcher) -> Progress:
        done: list[SinkProgress] = []
        for sink in self.definition.sinks:
            began = time.monotonic()
            tasks = TaskCounts(self.spark)

            def look(
                sink: SinkSpec = sink, began: float = began, tasks: TaskCounts = tasks
            ) -> bool:
                took_s = time.monotonic() - began
                now = SinkProgress(sink.label, status="writing").with_tasks(tasks.now(), took_s)
                return watch(Progress(sinks=(*done, now)))

            frame = self.chosen(sink, views[sink.source])
            rows = self.attended(sink.label, partial(self._write_once, sink, frame), look)
            if rows is None:
                return Progress("stopped", tuple(done))
            took_s = max(time.monotonic() - began, 1e-3)
            done.append(
                SinkProgress(
                    sink.label, 0, rows, rows / took_s, 0, int(took_s * 1000), status="done"
                )
            )
        return Progress("finished", tuple(done))

    def attended(
        self, label: str, work: Callable[[], T], stop_wanted: Callable[[], bool]
    ) -> T | None:
        """What came of it, looking meanwhile whether to stop; None: it was stopped before its
        end."""
        attendant = Attendant(self.spark, stop_wanted)
        try:
            with attendant:
                found = work()
            return None if attendant.stopping else found
        except BraidError:
            raise
        except Exception as error:
            if attendant.stopping:
                return None
            raise PipelineFailed(f"sink {label!r}: {said_by(error)}") from error

    def _write_once(self, sink: SinkSpec, frame: "DataFrame") -> int:
        if sink.report:
            return reports.write(frame, sink)
        if sink.console:
            rows = frame.collect()
            reports.show(sink.title or sink.label, frame.columns, rows)
            return len(rows)
        return self.save(sink, frame)

    def save(self, sink: SinkSpec, frame: "DataFrame", batch: int = 0, counted_by: str = "") -> int:
        """Rows written. ``counted_by``: topics and lakes take each batch of that name once."""
        from pyspark.sql import Observation

        if sink.python:
            find_function(sink.python, self.base)(frame, batch, **sink.options)
            return 0  # what it did with them is its own
        options = self.sink_options(sink)
        if counted_by and (sink.lake or (sink.topic and counts_batches(options))):
            options |= {"applicationId": f"{counted_by}/{sink.label}", "batchId": batch}
        if sink.lake:
            from braidmq.pipeline import lake

            copied = self.copied(sink)
            if copied is not None:
                return lake.copy(self.spark, copied, frame.schema, mode=sink.mode, **options)
            return lake.write(frame, mode=sink.mode, **options)
        observation = Observation()
        observed = frame.observe(observation, _count())
        writer = with_options(observed.write.format(self.format(sink)), options)
        writer.mode(sink.mode).save()
        return int(observation.get["rows"])

    def format(self, sink: SinkSpec) -> str:
        known = {"topic": "braid", "lake": "braid_lake", "console": "console"}
        return sink.format or known[sink.kind]

    def sink_options(self, sink: SinkSpec) -> dict[str, Any]:
        if sink.topic:
            return {**self._address(sink.options), "topic": sink.topic, **sink.options}
        if sink.lake:
            version = self._version(sink.lake, sink.options) if sink.mode == "overwrite" else {}
            return {"path": sink.lake, **version, **sink.options}
        if sink.format:
            return dict(sink.options)
        return {"truncate": False, **sink.options}


class Attendant:
    """Looks, while this thread waits for jobs of Spark, whether they shall stop. It is not the jobs
    that are in another thread: Spark knows its session in this one."""

    def __init__(self, spark: "SparkSession", stop_wanted: Callable[[], bool]) -> None:
        # A session here knows a tag in the thread that set it alone; its context knows it in all.
        context = getattr(spark, "sparkContext", None)
        verbs: tuple[Callable[[str], object], ...] = (
            (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
            if context is not None
            else (spark.addTag, spark.removeTag, spark.interruptTag)
        )
        self._mark, self._unmark, self._cancel = verbs
        self._stop_wanted = stop_wanted
        self._tag = f"braid-{uuid.uuid4().hex}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.stopping = False

    def __enter__(self) -> None:
        self._mark(self._tag)
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is not None:
            self._cancel(self._tag)  # elsewhere, it would go on without us
        self._unmark(self._tag)

    def _run(self) -> None:
        while not self._over.is_set():
            self.stopping = self.stopping or self._stop_wanted()
            if self.stopping:
                # Each time again: one job may end and the next begin in between.
                self._cancel(self._tag)
            self._over.wait(LOOK_EVERY_S)


def find_function(reference: str, base: Path) -> Callable[..., Any]:
    """``module:function``, or ``file.py:function`` from where the pipeline's file is."""
    place, _, name = reference.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, base / place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        found: Callable[..., Any] = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise BadPipeline(f"python {reference!r} can't be found: {error}") from error
    return found


def _named(source: SourceSpec) -> dict[str, str]:
    if source.table:
        return {"table": source.table}
    return {"topic": source.topic} if source.topic else {"topicPattern": source.topic_pattern}


def _loaded(reader: Any, options: Mapping[str, Any]) -> "DataFrame":
    found: DataFrame = with_options(reader, options).load()
    return found


def with_options(part: Any, options: Mapping[str, Any]) -> Any:
    for name, value in options.items():
        part = part.option(name, value)
    return part


def _count() -> Any:
    from pyspark.sql import functions

    return functions.count(functions.lit(1)).alias("rows")


def choose(sink: SinkSpec, frame: "DataFrame") -> "DataFrame":
    kept = frame.where(sink.where) if sink.where else frame
    return kept.selectExpr(*sink.select) if sink.select else kept


def _late(frame: "DataFrame", watermark: Watermark | None) -> "DataFrame":
    if watermark is None:
        return frame
    return frame.withWatermark(watermark.column, watermark.delay)
