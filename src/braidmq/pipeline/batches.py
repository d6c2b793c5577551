"""Batches of a stream, written by functions: several sinks with one read, and Python of users.

A batch that failed half-way is done again, whole. Topics and lakes know the batch by its number and
take it once; other formats and functions may get it twice, with the same number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braidmq.pipeline.definition import BadPipeline, SinkSpec
from braidmq.pipeline.runner import Runner, choose, find_function, with_options
from braidmq.pipeline.sink import QUERY_ID, query_id
from braidmq.pipeline.sink_options import counts_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class BatchWrite:
    """What is done with a batch for one sink."""

    sink: SinkSpec
    format: str
    options: dict[str, Any]
    function: Callable[..., Any] | None

    @property
    def is_counted(self) -> bool:
        """Whether the sink keeps a ledger of batches."""
        return bool(self.sink.lake) or bool(self.sink.topic and counts_batches(self.options))

    def write(self, frame: "DataFrame", batch: int, query: str) -> None:
        chosen = choose(self.sink, frame)
        if self.function is not None:
            self.function(chosen, batch, **self.options)
            return
        options = self.options | (self._counted(batch, query) if self.is_counted else {})
        if self.sink.lake:
            from braidmq.pipeline import lake

            lake.write(chosen, **options)
            return
        writer = with_options(chosen.write.format(self.format), options)
        writer.mode("append").save()

    def _counted(self, batch: int, query: str) -> dict[str, Any]:
        given = {name.lower() for name in self.options}
        found: dict[str, Any] = {"batchId": batch}
        if "applicationid" not in given:
            return {**found, "applicationId": f"spark-{query}/{self.sink.label}"}
        if "applicationinstance" not in given:
            found["applicationInstance"] = query
        return found


@dataclass(frozen=True)
class BatchSinks:
    """For ``foreachBatch``; goes to Spark Connect's server as a pickle."""

    writes: tuple[BatchWrite, ...]
    checkpoint: str
    """Of the query. It has its id: over Spark Connect nothing else tells a batch whose it is."""

    @classmethod
    def of(cls, runner: Runner, sinks: list[SinkSpec], checkpoint: str) -> "BatchSinks":
        return cls(tuple(_write(runner, sink) for sink in sinks), checkpoint)

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        context = getattr(frame.sparkSession, "sparkContext", None)
        query = context.getLocalProperty(QUERY_ID) if context else query_id(self.checkpoint)
        if not query and any(each.is_counted for each in self.writes):
            raise BadPipeline(
                f"over Spark Connect a batch knows its query by {self.checkpoint}/metadata, which"
                " pyarrow can't read",
                remedy="Give a checkpoint that the server of Connect sees as a path; or run it with"
                " --master",
            )
        if len(self.writes) == 1:
            self.writes[0].write(frame, batch, query)
            return
        kept = frame.persist()
        try:
            for each in self.writes:
                each.write(kept, batch, query)
        finally:
            kept.unpersist()


def _write(runner: Runner, sink: SinkSpec) -> BatchWrite:
    if sink.python:
        function = find_function(sink.python, runner.base)
        return BatchWrite(sink, "", dict(sink.options), function)
    return BatchWrite(sink, runner.format(sink), runner.sink_options(sink), None)
