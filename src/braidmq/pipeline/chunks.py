"""A lake, written somewhere in chunks: each is read, written and committed by itself. Neither
Spark's shuffle nor a transaction of the broker ever has more than one, and a run that was stopped
goes on after the last that is done.

The plan is made once, of one version of the lake. It lies in the checkpoint until its last chunk is
done; then the next run makes another. ``chunks.json`` there:

    {"id": "…", "settings": "…", "version": 12, "chunks": [[0, 500000, 1000000], …],
     "done": 3, "targets": {"topic": "1f-19a9…"}}

A chunk is a range of the column and how many rows it has. Sinks count chunks by the plan's id: one
that is written, and not yet said to be done here, is not written again.
"""

import hashlib
import os
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import structs

from braidmq.model.errors import NotFound
from braidmq.pipeline import lake
from braidmq.pipeline.broker import Broker, describe_logs
from braidmq.pipeline.definition import BadPipeline, Definition, SourceSpec, without_secrets
from braidmq.pipeline.errors import PipelineFailed
from braidmq.pipeline.lake.options import Within
from braidmq.pipeline.reporting import Progress, SinkProgress, TaskCounts
from braidmq.pipeline.runner import Runner, Watcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLAN = "chunks.json"
PIECES = 64
"""A chunk is put together of about so many ranges, so that none is much larger than wanted."""


class Part(NamedTuple):
    start: int
    stop: int
    rows: int


class Plan(msgspec.Struct):
    id: str
    settings: str
    """Of the pipeline, hashed: half a run with other ones is not the same run."""
    version: int
    chunks: list[Part]
    done: int = 0
    targets: dict[str, str] = {}
    """What the sinks write to, by what one that is created anew does not share."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @property
    def rows_left(self) -> int:
        return sum(each.rows for each in self.chunks[self.done :])


class Chunks:
    def __init__(self, runner: Runner, watch: Watcher) -> None:
        self._runner = runner
        self._definition: Definition = runner.definition
        self._watch = watch
        source = self._definition.chunked
        assert source is not None
        self._source: SourceSpec = source
        self._path = Path(self._definition.checkpoint_dir) / PLAN
        self._rows = {each.label: 0 for each in self._definition.sinks}
        self._began = time.monotonic()

    def run(self) -> Progress:
        """Until the last is done, or it is stopped. Raises PipelineFailed."""
        plan = self._begun_before() or self._planned()
        if plan is None:
            return Progress("stopped")
        try:
            while plan.done < len(plan.chunks):
                if not self._write(plan):
                    return Progress("stopped", self._progress(plan, ""))
        except PipelineFailed as error:
            raise PipelineFailed(
                f"chunk {plan.done + 1} of {len(plan.chunks)}: {error.args[0]}",
                remedy="Mend it and run it again: it goes on with that chunk",
            ) from error
        self._path.unlink(missing_ok=True)
        return Progress("finished", self._progress(plan, "done"))

    def _write(self, plan: Plan) -> bool:
        """Whether the next chunk was written, to every sink."""
        part = plan.chunks[plan.done]
        assert self._source.chunk is not None
        within = Within(self._source.chunk.column, part.start, part.stop)
        views = self._runner.views(self._options(plan.version) | {"range": str(within)})
        for sink in self._definition.sinks:
            tasks = TaskCounts(self._runner.spark)

            def look(tasks: TaskCounts = tasks) -> bool:
                found = self._progress(plan, "writing")
                return self._watch(
                    Progress(sinks=tuple(each.with_tasks(tasks.now()) for each in found))
                )

            frame = self._runner.chosen(sink, views[sink.source])
            work = partial(self._runner.save, sink, frame, plan.done, plan.id)
            rows = self._runner.attended(sink.label, work, look)
            if rows is None:
                return False
            self._rows[sink.label] += rows
        plan.done += 1
        plan.targets = self._targets()
        plan.save(self._path)
        return True

    def _progress(self, plan: Plan, status: str) -> tuple[SinkProgress, ...]:
        took_s = max(time.monotonic() - self._began, 1e-3)
        found = []
        for sink in self._definition.sinks:
            rows = self._rows[sink.label]
            left_s = plan.rows_left * took_s / rows if rows else None
            found.append(
                SinkProgress(
                    sink.label,
                    plan.done,
                    rows,
                    rows / took_s,
                    plan.rows_left,
                    status=status,
                    remaining_s=left_s,
                )
            )
        return tuple(found)

    # --- the plan ---

    def _begun_before(self) -> Plan | None:
        """What is left of a run that was stopped."""
        try:
            plan = msgspec.json.decode(self._path.read_bytes(), type=Plan)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise BadPipeline(
                f"{self._path} can't be read: {error}", remedy="Remove it, to begin anew"
            ) from None
        if plan.settings != self._settings:
            raise BadPipeline(
                f"a run with other settings was stopped after {plan.done} of {len(plan.chunks)}"
                " chunks",
                remedy=f"Run it as it was, or remove {self._path} to begin anew",
            )
        now = self._targets()
        # Who deletes what was written by half wants all of it again.
        return (
            plan if all(now[name] == each for name, each in plan.targets.items() if each) else None
        )

    def _planned(self) -> Plan | None:
        """A new one; None: it was stopped meanwhile."""
        version = self._pinned()
        chunks = self._runner.attended(
            self._source.name,
            partial(self._divided, version),
            lambda: self._watch(
                Progress(sinks=(SinkProgress(self._source.name, status="counting"),))
            ),
        )
        if chunks is None:
            return None
        plan = Plan(uuid.uuid4().hex, self._settings, version, chunks, targets=self._targets())
        plan.save(self._path)
        return plan

    def _pinned(self) -> int:
        try:
            return lake.pinned(self._source.lake, **self._source.options)
        except NotFound as error:
            raise BadPipeline(
                f"source {self._source.name!r}: {error.args[0]}",
                remedy="Chunks are planned here: run it where the lake can be seen",
            ) from None

    def _options(self, version: int) -> dict[str, Any]:
        chosen = ("version", "timestamp")
        given = self._source.options.items()
        return {name: each for name, each in given if name.lower() not in chosen} | {
            "version": version
        }

    def _divided(self, version: int) -> list[Part]:
        from pyspark.sql import functions

        assert self._source.chunk is not None
        name, wanted = self._source.chunk.column, self._source.chunk.rows_wanted
        column = functions.col(f"`{name}`")
        frame: DataFrame = lake.read(
            self._runner.spark, self._source.lake, **self._options(version)
        ).select(column)
        count, known, least, most = frame.agg(
            functions.count(functions.lit(1)),
            functions.count(column),
            functions.min(column),
            functions.max(column),
        ).collect()[0]
        if known < count:
            raise PipelineFailed(
                f"{count - known} rows of {self._source.lake} have no {name}",
                remedy="Take another column for the chunks, or take them out",
            )
        if not count:
            return []
        density = max(1.0, count / (most - least + 1))
        width = max(1, int(wanted / PIECES / density))
        piece = functions.floor((column - functions.lit(least)) / functions.lit(width))
        pieces = frame.groupBy(piece.alias("piece")).count().orderBy("piece").collect()
        return _joined([(int(at), int(rows)) for at, rows in pieces], least, width, wanted)

    @property
    def _settings(self) -> str:
        found = self._definition
        sources, sinks = (
            [structs.replace(each, options=without_secrets(each.options)) for each in every]
            for every in (found.sources, found.sinks)
        )
        every = msgspec.json.encode((sources, found.steps, sinks))
        return hashlib.sha256(every).hexdigest()

    def _targets(self) -> dict[str, str]:
        topics = sorted({each.topic for each in self._definition.sinks if each.topic})
        with Broker(self._runner.broker) as broker:
            logs, missing = describe_logs(broker, topics, segments=False) if topics else ({}, [])
        if missing:
            raise NotFound(f"there is no topic {missing[0]!r}")
        found = {f"topic {name}": log.id for name, log in logs.items()}
        for sink in self._definition.sinks:
            if sink.lake:
                found[f"lake {sink.lake}"] = lake.identity(sink.lake, **sink.options)
        return found


def _joined(pieces: list[tuple[int, int]], least: int, width: int, wanted: int) -> list[Part]:
    """Pieces by their number and rows, in order, as chunks."""
    found: list[Part] = []
    rows = 0
    start = pieces[0][0]
    for at, count in pieces:
        if rows and rows + count > wanted:
            found.append(Part(least + start * width, least + at * width, rows))
            start, rows = at, 0
        rows += count
    found.append(Part(least + start * width, least + (pieces[-1][0] + 1) * width, rows))
    return found
