"""Runs a pipeline: views of its sources and steps, and a query for each sink.

What was read is acknowledged, for the pipeline's group, when every sink has committed what it made
of it: a message is never taken for done before its effects are safe (catalogue row T4).
"""

import importlib
import importlib.util
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.model.errors import BraidError, Kind
from braidmq.pipeline import reports
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.definition import BadPipeline, Definition, SinkSpec, SourceSpec, StepSpec
from braidmq.pipeline.encoding import check_columns
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress, SinkProgress, offsets_of, sink_progress, total
from braidmq.pipeline.session import setting_text
from braidmq.pipeline.sink_options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
WHOLE_PARTITION = "1000000g"
"""One task for all that a batch has of a partition, so that its order is kept."""

Watcher = Callable[[Progress], bool]
"""Is told how it goes, and says whether to stop."""

OURS = re.compile(r"^braidmq\.[\w.]+: (.+)$", re.MULTILINE)

Offsets = dict[str, dict[str, int]]


class PipelineFailed(BraidError):
    """Spark gave up; the message is what it said."""

    kind = Kind.REFUSED
    code = "pipeline-failed"


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
        views = self.views()
        if self.definition.streams:
            return Streams(self, views, watch).run()
        return self._run_once(views, watch)

    def check(self) -> None:
        """Have Spark read SQL and columns, and the sinks theirs; nothing is run."""
        views = self.views()
        for sink in self.definition.sinks:
            if sink.topic:
                options = {
                    key: setting_text(each) for key, each in self._sink_options(sink).items()
                }
                try:
                    check_columns(views[sink.source].columns, parse_sink_options(options))
                except BadOption as error:
                    raise BadPipeline(f"sink {sink.label!r}: {error}") from None

    # --- views ---

    def views(self) -> "dict[str, DataFrame]":
        """All of them by name. Building them finds what is wrong with SQL and columns."""
        found: dict[str, DataFrame] = {}
        for source in self.definition.sources:
            found[source.name] = self._source(source)
            found[source.name].createOrReplaceTempView(source.name)
        for step in self.definition.steps:
            found[step.name] = self._step(step, found)
            found[step.name].createOrReplaceTempView(step.name)
        return found

    def _source(self, source: SourceSpec) -> "DataFrame":
        try:
            return self._read(source)
        except Exception as error:
            raise BadPipeline(f"source {source.name!r}: {_said(error)}") from error

    def _read(self, source: SourceSpec) -> "DataFrame":
        if source.lake:
            where = {"path": source.lake, **self._version(source.lake), **source.options}
            return _loaded(self.spark.read.format("braid_lake"), where)
        streams = self.definition.streams and source.is_topic
        reader: Any = self.spark.readStream if streams else self.spark.read
        options: dict[str, Any] = {**self._address(), **_named(source)}
        if streams:
            options["startingOffsets"] = "earliest"
            if source.ordered:
                options["splitBytes"] = WHOLE_PARTITION
        if source.schema:
            reader = reader.schema(source.schema)
        return _loaded(reader.format("braid"), options | source.options)

    def _version(self, lake: str) -> dict[str, Any]:
        """One that is read and overwritten is the same for both: nothing may come in between."""
        if lake not in {each.lake for each in self.definition.sinks if each.mode == "overwrite"}:
            return {}
        if lake not in self._versions:
            from deltalake import DeltaTable

            if not DeltaTable.is_deltatable(lake):
                return {}
            self._versions[lake] = DeltaTable(lake).version()
        return {"version": self._versions[lake]}

    def _address(self) -> dict[str, Any]:
        given = self.broker
        who = {"token": given.token} if given.token else {"user": given.user}
        secret = {} if given.token else {"password": given.password}
        return {"url": given.url, "namespace": given.namespace, **who, **secret}

    def _step(self, step: StepSpec, views: "dict[str, DataFrame]") -> "DataFrame":
        function = None if step.sql else find_function(step.python, self.base)
        try:
            if function is None:
                return self.spark.sql(step.sql)
            made: DataFrame = function(*(views[name] for name in step.inputs), **step.options)
        except Exception as error:
            said = f"{type(error).__name__}: {_said(error)}" if function else _said(error)
            raise BadPipeline(f"step {step.name!r}: {said}") from error
        return made

    # --- once ---

    def _run_once(self, views: "dict[str, DataFrame]", watch: Watcher) -> Progress:
        done: list[SinkProgress] = []
        for sink in self.definition.sinks:
            began = time.monotonic()
            progress = Progress(sinks=(*done, SinkProgress(sink.label, status="writing")))
            rows = self._attended(sink, views[sink.source], partial(watch, progress))
            if rows is None:
                return Progress("stopped", tuple(done))
            took_s = max(time.monotonic() - began, 1e-3)
            done.append(
                SinkProgress(
                    sink.label, 0, rows, rows / took_s, 0, int(took_s * 1000), status="done"
                )
            )
        return Progress("finished", tuple(done))

    def _attended(
        self, sink: SinkSpec, frame: "DataFrame", stop_wanted: Callable[[], bool]
    ) -> int | None:
        """Rows written, looking meanwhile whether to stop; None: it was stopped before its end."""
        attendant = Attendant(self.spark, stop_wanted)
        try:
            with attendant:
                rows = self._write_once(sink, frame)
            return None if attendant.stopping else rows
        except BraidError:
            raise
        except Exception as error:
            if attendant.stopping:
                return None
            raise PipelineFailed(f"sink {sink.label!r}: {_said(error)}") from error

    def _write_once(self, sink: SinkSpec, frame: "DataFrame") -> int:
        if sink.report:
            return reports.write(frame, sink)
        if sink.console:
            rows = frame.collect()
            reports.show(sink.title or sink.label, frame.columns, rows)
            return len(rows)
        return self._save(sink, frame)

    def _save(self, sink: SinkSpec, frame: "DataFrame") -> int:
        from pyspark.sql import Observation

        observation = Observation()
        observed = frame.observe(observation, _count())
        writer = _with(observed.write.format(self._format(sink)), self._sink_options(sink))
        writer.mode(sink.mode).save()
        return int(observation.get["rows"])

    def _format(self, sink: SinkSpec) -> str:
        return {"topic": "braid", "lake": "braid_lake", "console": "console"}[sink.kind]

    def _sink_options(self, sink: SinkSpec) -> dict[str, Any]:
        if sink.topic:
            return {**self._address(), "topic": sink.topic, **sink.options}
        if sink.lake:
            version = self._version(sink.lake) if sink.mode == "overwrite" else {}
            return {"path": sink.lake, **version, **sink.options}
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


class Streams:
    """The queries of a pipeline that runs as a stream."""

    def __init__(self, runner: Runner, views: "dict[str, DataFrame]", watch: Watcher) -> None:
        self._runner = runner
        self._definition = runner.definition
        self._watch = watch
        self._views = views
        self._queries: dict[str, Any] = {}
        self._seen: dict[str, dict[int, int]] = {}
        self._acknowledged: Offsets = {}
        self._tries: dict[str, tuple[int, int]] = {}
        """Failures in a row, and the batch after which they were."""

    def run(self) -> Progress:
        for sink in self._definition.sinks:
            self._queries[sink.label] = self._start(sink)
            self._seen[sink.label] = {}
        stopped = False
        try:
            while self._revive() and any(each.isActive for each in self._queries.values()):
                if self._watch(self._look()):
                    stopped = True
                    break
                time.sleep(LOOK_EVERY_S)
        finally:
            for query in self._queries.values():
                query.stop()
        return self._ended(stopped)

    def _revive(self) -> bool:
        """Begin streams again that failed for no reason of ours: a worker that did not start, say.

        False: one has failed for good.
        """
        for sink in self._definition.sinks:
            query = self._queries[sink.label]
            error = query.exception()
            if error is None:
                continue
            last = query.lastProgress
            batch = -1 if last is None else last["batchId"]
            tries, before = self._tries.get(sink.label, (0, -1))
            tries = tries + 1 if batch == before else 1
            if OURS.search(str(error)) or tries > self._definition.retries:
                return False
            self._tries[sink.label] = (tries, batch)
            logger.warning("sink %s failed and is restarted: %s", sink.label, _said(error))
            self._queries[sink.label] = self._start(sink)
        return True

    def _start(self, sink: SinkSpec) -> Any:
        runner = self._runner
        frame = self._views[sink.source]
        writer = frame.writeStream if frame.isStreaming else None
        if writer is None:
            raise BadPipeline(
                f"sink {sink.label!r} does not read from a topic: put it in a pipeline of its own"
            )
        checkpoint = f"{self._definition.checkpoint_dir}/{sink.label}"
        writer = _with(writer.format(runner._format(sink)), runner._sink_options(sink))
        writer = writer.queryName(f"{self._definition.name}: {sink.label}")
        writer = writer.option("checkpointLocation", checkpoint)
        every = self._definition.interval
        trigger = {"processingTime": every} if every else {"availableNow": True}
        try:
            return writer.trigger(**trigger).start()
        except Exception as error:
            raise BadPipeline(f"sink {sink.label!r}: {_said(error)}") from error

    def _look(self) -> Progress:
        sinks = []
        for name, query in self._queries.items():
            for each in query.recentProgress:
                self._seen[name][each["batchId"]] = total(each, "numInputRows")
            status = "" if query.isActive else "done"
            sinks.append(sink_progress(name, self._seen[name], query.lastProgress, status))
        self._acknowledge()
        return Progress(sinks=tuple(sinks))

    def _acknowledge(self) -> None:
        """What all sinks have done. Each of Spark's reports is of a batch that is committed."""
        done: list[Offsets] = []
        for query in self._queries.values():
            last = query.lastProgress
            if last is None:
                return
            found: Offsets = {}
            for source in last["sources"]:
                for topic, partitions in offsets_of(source, "endOffset").items():
                    found[topic] = {**found.get(topic, {}), **partitions}
            done.append(found)
        common = least(done)
        if common == self._acknowledged:
            return
        try:
            self._commit(common)
        except BraidError:
            return  # it says it again with the next look
        self._acknowledged = common

    def _commit(self, offsets: Offsets) -> None:
        topics = {source.topic: source for source in self._definition.sources}
        with Broker(self._runner.broker) as broker:
            for topic, partitions in offsets.items():
                source = topics.get(topic)
                group = (source.group if source is not None else "") or self._definition.name
                path = ("topics", topic, "subscriptions", group)
                broker.send("PUT", *path, body={}, patient=False)
                at = [{"partition": int(part), "offset": at} for part, at in partitions.items()]
                broker.send("POST", *path, "commit", body={"offsets": at}, patient=False)

    def _failure(self, query: Any) -> str:
        error = query.exception()
        return "" if error is None else _said(error)

    def _ended(self, stopped: bool) -> Progress:
        progress = self._look()
        for name, query in self._queries.items():
            if said := self._failure(query):
                raise PipelineFailed(f"sink {name!r}: {said}")
        return progress.ended("stopped" if stopped else "finished")


def least(offsets: Iterable[Offsets]) -> Offsets:
    """How far all have come, in every partition that all know."""
    every = list(offsets)
    first = every[0] if every else {}
    return {
        topic: {
            number: min(each[topic][number] for each in every)
            for number in partitions
            if all(number in each.get(topic, {}) for each in every)
        }
        for topic, partitions in first.items()
        if all(topic in each for each in every)
    }


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


def _loaded(reader: Any, options: dict[str, Any]) -> "DataFrame":
    found: DataFrame = _with(reader, options).load()
    return found


def _with(part: Any, options: dict[str, Any]) -> Any:
    for name, value in options.items():
        part = part.option(name, value)
    return part


def _count() -> Any:
    from pyspark.sql import functions

    return functions.count(functions.lit(1)).alias("rows")


def _said(error: Exception) -> str:
    """What Spark said, without the stack of its JVM; of an error of ours, its own words."""
    text = str(error)
    if ours := OURS.search(text):
        return ours[1]
    return text.partition("\n\nJVM stacktrace")[0].strip()[:2000]
