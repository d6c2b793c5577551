"""The queries of a pipeline that runs as a stream.

What was read is acknowledged, for the pipeline's group, when every query that reads it has
committed what it made of it: a message is never taken for done before its effects are safe
(catalogue row T4).

A query that failed begins again from its checkpoint. While the broker is away it waits, however
long that is; what else may pass is tried ``retries`` times in a row, with pauses that grow.
"""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from braidmq.model.errors import BraidError
from braidmq.pipeline.batches import BatchSinks
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.definition import BadPipeline, SinkSpec, SourceSpec
from braidmq.pipeline.errors import (
    AWAY,
    PASSING,
    BrokerUnreachable,
    PipelineFailed,
    class_of,
    said_by,
)
from braidmq.pipeline.reporting import (
    Progress,
    SinkProgress,
    TaskCounts,
    logs_of,
    offsets_of,
    sink_progress,
    total,
)
from braidmq.pipeline.runner import LOOK_EVERY_S, Runner, Watcher, with_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

PAUSE_S, PAUSE_S_MAX = 1.0, 60.0
"""Before a query begins again: twice as long after each failure in a row."""

Offsets = dict[str, dict[str, int]]


@dataclass
class Flow:
    """One query, through all its lives."""

    name: str
    sinks: list[SinkSpec]
    query: Any = None
    rows: dict[int, int] = field(default_factory=dict)
    """Of each batch."""
    counts: bool = False
    """Whether its batches say how many: of a copy Spark knows ranges, and not rows."""
    failures: int = 0
    """In a row: without a batch done in between."""
    failed_at: int = -1
    due_s: float = 0.0
    """When it is to begin again, if it is not running."""
    waits_for_broker: bool = False
    restarts: int = 0

    @property
    def is_over(self) -> bool:
        return self.query is not None and not self.query.isActive


class Streams:
    def __init__(self, runner: Runner, watch: Watcher) -> None:
        self._runner = runner
        self._definition = runner.definition
        self._watch = watch
        self._flows = [Flow(name, sinks) for name, sinks in runner.definition.queries.items()]
        self._acknowledged: Offsets = {}

    def run(self) -> Progress:
        stopped = False
        try:
            for flow in self._flows:
                flow.query = self._start(flow)
            while not all(flow.is_over and flow.query.exception() is None for flow in self._flows):
                for flow in self._flows:
                    self._revive(flow)
                if self._watch(self._look()):
                    stopped = True
                    break
                time.sleep(LOOK_EVERY_S)
        finally:
            for flow in self._flows:
                if flow.query is not None:
                    flow.query.stop()
        return self._look().ended("stopped" if stopped else "finished")

    # --- when it fails ---

    def _revive(self, flow: Flow) -> None:
        """Begin it again if it failed and its time has come. Raises PipelineFailed."""
        if flow.query is not None:
            error = flow.query.exception()
            if error is None:
                return
            last = flow.query.lastProgress
            flow.query = None
            self._failed(flow, error, -1 if last is None else last["batchId"])
        if time.monotonic() < flow.due_s:
            return
        if flow.waits_for_broker and not self._broker_answers():
            flow.due_s = time.monotonic() + PAUSE_S
            return
        flow.waits_for_broker = False
        try:
            flow.query = self._start(flow)
            flow.restarts += 1
        except BadPipeline as error:
            self._failed(flow, error, flow.failed_at)

    def _failed(self, flow: Flow, error: BaseException, batch: int) -> None:
        kind = class_of(error)
        away = kind in AWAY
        if not away:
            flow.failures = flow.failures + 1 if batch == flow.failed_at else 1
            flow.failed_at = batch
        final = bool(kind) and not away and kind not in PASSING
        retries = self._definition.retries
        if final or not retries or flow.failures > retries:
            raise PipelineFailed(f"sink {flow.name!r}: {said_by(error)}") from error
        pause_s = 0.0 if away else min(PAUSE_S * 2 ** (flow.failures - 1), PAUSE_S_MAX)
        flow.due_s = time.monotonic() + pause_s
        flow.waits_for_broker = away
        logger.warning("sink %s failed and begins again: %s", flow.name, said_by(error))

    def _broker_answers(self) -> bool:
        try:
            with Broker(self._runner.broker) as broker:
                broker.ask("GET", ("pipelines",), {}, patient=False)
        except BrokerUnreachable:
            return False
        except BraidError:
            pass  # an answer, too
        return True

    # --- starting ---

    def _start(self, flow: Flow) -> Any:
        """With views of its own: queries that share parts of a plan change it under each other
        while Spark sends it to executors (`Illegal size 5 of collection, expected 6`)."""
        runner = self._runner
        frame = runner.views()[flow.sinks[0].source]
        if not frame.isStreaming:
            raise BadPipeline(
                f"sink {flow.name!r} does not read from a stream: put it in a pipeline of its own"
            )
        try:
            checkpoint = f"{self._definition.checkpoint_dir}/{flow.name}"
            writer = self._writer(flow, frame, checkpoint)
            writer = writer.queryName(f"{self._definition.name}: {flow.name}")
            writer = writer.option("checkpointLocation", checkpoint)
            writer = writer.outputMode(flow.sinks[0].output_mode)
            every = self._definition.interval
            trigger = {"processingTime": every} if every else {"availableNow": True}
            return writer.trigger(**trigger).start()
        except BraidError:
            raise
        except Exception as error:
            raise BadPipeline(f"sink {flow.name!r}: {said_by(error)}") from error

    def _writer(self, flow: Flow, frame: "DataFrame", checkpoint: str) -> Any:
        runner = self._runner
        sink = flow.sinks[0]
        # Spark writes no updates to a data source in Python; a batch of them it does.
        if sink.query or sink.python or (sink.topic and sink.output_mode == "update"):
            return frame.writeStream.foreachBatch(BatchSinks.of(runner, flow.sinks, checkpoint))
        chosen = runner.chosen(sink, frame)
        if sink.lake:
            from braidmq.pipeline import lake

            options, copied = runner.sink_options(sink), runner.copied(sink)
            if copied is None:
                return lake.stream(chosen, **options)
            flow.counts = True
            tell = flow.rows.__setitem__
            return lake.copy_stream(runner.spark, copied, frame.schema, told=tell, **options)
        writer = chosen.writeStream.format(runner.format(sink))
        return with_options(writer, runner.sink_options(sink))

    # --- how it goes ---

    def _look(self) -> Progress:
        progress = tuple(self._look_at(flow) for flow in self._flows)
        self._acknowledge()
        return Progress(sinks=progress, restarts=sum(flow.restarts for flow in self._flows))

    def _look_at(self, flow: Flow) -> SinkProgress:
        if flow.query is None:
            waits = "waits for the broker" if flow.waits_for_broker else "begins again"
            return SinkProgress(flow.name, flow.failed_at, sum(flow.rows.values()), status=waits)
        active, last = flow.query.isActive, flow.query.lastProgress
        if not flow.counts:
            for each in flow.query.recentProgress:
                flow.rows[each["batchId"]] = total(each, "numInputRows")
        found = sink_progress(flow.name, dict(flow.rows), last, "" if active else "done")
        if not active:
            return found
        return found.with_tasks(TaskCounts(self._runner.spark, str(flow.query.runId)).now())

    def _acknowledge(self) -> None:
        """Each of Spark's reports is of a batch that is committed."""
        done: list[Offsets] = []
        logs: dict[str, set[str]] = {}
        for flow in self._flows:
            last = None if flow.query is None else flow.query.lastProgress
            if last is None:
                return
            found: Offsets = {}
            for source in last["sources"]:
                for topic, partitions in offsets_of(source, "endOffset").items():
                    found[topic] = {**found.get(topic, {}), **partitions}
                for topic, log in logs_of(source, "endOffset").items():
                    logs.setdefault(topic, set()).add(log)
            done.append(found)
        # Where one flow has met that a topic was created again, and another has not: later.
        common = {at: each for at, each in least(done).items() if len(logs.get(at, ())) < 2}
        if common == self._acknowledged:
            return
        try:
            self._commit(common, {topic: log for topic, (log, *_) in logs.items()})
        except BraidError:
            return  # it says it again with the next look
        self._acknowledged = common

    def _commit(self, offsets: Offsets, logs: dict[str, str]) -> None:
        with Broker(self._runner.broker) as broker:
            for topic, partitions in offsets.items():
                source = next(
                    (each for each in self._definition.sources if reads(each, topic)), None
                )
                group = (source.group if source is not None else "") or self._definition.name
                path = ("topics", topic, "subscriptions", group)
                broker.send("PUT", *path, body={}, patient=False)
                at = [{"partition": int(part), "offset": at} for part, at in partitions.items()]
                body = {"offsets": at, "log": logs.get(topic, "")}
                broker.send("POST", *path, "commit", body=body, patient=False)


def reads(source: SourceSpec, topic: str) -> bool:
    if source.topic_pattern:
        return re.fullmatch(source.topic_pattern, topic) is not None
    return source.topic == topic


def least(offsets: Iterable[Offsets]) -> Offsets:
    """How far all that read a topic have come in it, in every partition that they all know."""
    found: Offsets = {}
    every = list(offsets)
    for topic in {name for each in every for name in each}:
        readers = [each[topic] for each in every if topic in each]
        found[topic] = {
            number: min(each[number] for each in readers)
            for number in readers[0]
            if all(number in each for each in readers)
        }
    return found
