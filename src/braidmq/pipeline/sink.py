"""Writing to the broker: what ``df.write.format("braid")`` does, on executors and the driver.

Exactly once: all tasks of a batch publish in one transaction, which is named after the batch, so
that whoever does the batch again meets it there. Each attempt at a task has a branch of its own,
and the driver's commit names those that count. The broker keeps the last batch an application has
committed, and answers a repetition with that.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
import pyarrow as pa
import pyarrow.fs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from braidmq.pipeline.broker import Broker
from braidmq.pipeline.encoding import encode
from braidmq.pipeline.errors import BatchGivenUp
from braidmq.pipeline.sink_options import AT_LEAST_ONCE, SinkOptions
from braidmq.pipeline.transactions import Heartbeat, Stage, Step, Transactions, send_records

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
"""Local properties of a task. Spark has them for itself: tests/pipeline pins them."""


INSTANCE_CHARACTERS_MAX = 255
"""What the broker takes."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task has done."""

    rows: int
    transaction: str = ""
    number: int = 0
    branch: str = ""
    """Empty: it had nothing to write, or the batch is committed already."""
    step: Step | None = None


class Sink:
    """What both kinds of writing share; ``options`` and the transaction are all they need."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def publish(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """At least once: a task that is tried again writes again."""
        rows = 0
        with Broker(self.options) as broker:
            for chunk in encode(batches, self.options):
                send_records(broker, chunk, {})
                rows += chunk.rows
        return Staged(rows)

    def stage(
        self, batches: Iterator[pa.RecordBatch], transaction: str, step: Step | None
    ) -> Staged:
        rows = number = 0
        branch = _branch()
        with Broker(self.options) as broker, Heartbeat(self.options, transaction):
            stage: Stage | None = None
            for chunk in encode(batches, self.options):
                if stage is None:
                    # Not before there is something: most tasks of a small batch have nothing.
                    number = Transactions(broker, self.options).begin(transaction, step)
                    if not number:
                        _drain(batches)
                        return Staged(0, transaction, step=step)
                    stage = Stage(broker, transaction, number, branch)
                stage.publish(chunk)
                rows += chunk.rows
        return Staged(rows, transaction, number, branch if rows else "", step)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [each for each in messages if isinstance(each, Staged) and each.branch]
        if not staged:
            return
        one = staged[0]
        if any(each.number != one.number for each in staged):
            raise BatchGivenUp(
                f"nothing was heard of transaction {one.transaction!r} for longer than"
                f" {self.options.session_s} s between two tasks, and what was staged is gone"
            )
        with Broker(self.options) as broker:
            transactions = Transactions(broker, self.options)
            branches = [each.branch for each in staged]
            transactions.commit(one.transaction, one.number, branches, one.step)

    def abort(self, messages: Sequence[WriterCommitMessage | None], name: str) -> None:
        """``name``: what the driver knows it by; tasks that failed have told it nothing."""
        if self.options.delivery == AT_LEAST_ONCE:
            return
        told = {each.transaction for each in messages if isinstance(each, Staged)}
        with Broker(self.options) as broker:
            for each in (told | {name}) - {""}:
                Transactions(broker, self.options).abort(each)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self._step = (
            Step(options.application, options.epoch, options.batch)
            if options.batch is not None
            else None
        )
        self._transaction = _name(self._step) if self._step else f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        sink = Sink(self.options)
        if self.options.delivery == AT_LEAST_ONCE:
            return sink.publish(iterator)
        step = replace(self._step, instance=self._instance()) if self._step else None
        return sink.stage(iterator, self._transaction, step)

    def _instance(self) -> str:
        """Who counts. The topic is part of it: a number that is used up there says nothing of what
        is written to another."""
        who = f"{self.options.instance or query_of_task()}>{self.options.topic}"
        return who if len(who) <= INSTANCE_CHARACTERS_MAX else sha256(who.encode()).hexdigest()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        Sink(self.options).commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        Sink(self.options).abort(messages, self._transaction)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        sink = Sink(self.options)
        if self.options.delivery == AT_LEAST_ONCE:
            return sink.publish(iterator)
        context = TaskContext.get()
        assert context is not None
        batch, query = context.getLocalProperty(BATCH_ID), query_of_task()
        assert batch is not None
        assert query, "every query would count as one"
        step = self._step(query, int(batch))
        return sink.stage(iterator, _name(step), step)

    def _step(self, query: str, batch: int) -> Step:
        application = self.options.application or f"spark-{query}"
        return Step(application, self.options.epoch, batch, self.options.instance or query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        Sink(self.options).commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query = query_id(self.options.checkpoint)
        known = bool(query or self.options.application)
        Sink(self.options).abort(messages, _name(self._step(query, batchId)) if known else "")


def query_of_task() -> str:
    """Which query this task writes a batch of, foreachBatch included; empty: it is a plain job."""
    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(QUERY_ID) or ""


def query_id(checkpoint: str) -> str:
    """The query's, as Spark keeps it in its checkpoint: who aborts a batch on the driver is told
    only the number of that. Empty: not to be found there."""
    if not checkpoint:
        return ""
    try:
        if "://" in checkpoint:
            files, path = pa.fs.FileSystem.from_uri(checkpoint)
        else:
            files, path = pa.fs.LocalFileSystem(), checkpoint.removeprefix("file:")
        with files.open_input_stream(f"{path}/metadata") as file:
            return msgspec.json.decode(file.read(), type=_QueryMetadata).id
    except (OSError, pa.ArrowInvalid, msgspec.DecodeError):
        return ""  # what tasks that succeeded say is left, and the broker's patience


class _QueryMetadata(msgspec.Struct):
    id: str


def _name(step: Step) -> str:
    return f"{step.application}/{step.epoch}/{step.sequence}"


def _branch() -> str:
    """Of one attempt at one task: numbers of Spark begin again when its driver does."""
    context = TaskContext.get()
    part = "local" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"
    return f"{part}-{uuid.uuid4().hex[:12]}"


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    """Spark wants its rows taken, wanted or not."""
    for _ in batches:
        pass
