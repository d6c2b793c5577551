"""Pipelines: what runs, how it is, and the wish that it stop."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from braidmq.api.context import (
    NUMBER_MAX,
    ApiContext,
    GivenTime,
    InNamespace,
    ListInNamespace,
    MillisecondsSinceEpoch,
)
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.paging import Page, page_of
from braidmq.model.errors import NotFound
from braidmq.runtime.pipeline_runs import RUNNING, PipelineRun, UnknownPipeline
from braidmq.security.records import check_name
from braidmq.security.rights import any_right, listing, owner

Count = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
ParameterName = Annotated[str, Meta(max_length=128)]
ParameterValue = Annotated[str, Meta(max_length=1024)]
IDENTITY_PLACE_MAX = 200
"""Characters of parameters that a cursor has; the run's id tells apart what begins the same."""

State = Literal["running", "finished", "stopped", "failed"]


class PipelineReport(Body, frozen=True):
    """How a run of a pipeline is."""

    run: Annotated[str, Meta(max_length=64, description="Each run has its own")]
    state: State
    started_ms: GivenTime
    host: Annotated[str, Meta(max_length=255)] = ""
    rows: Annotated[Count, Meta(description="Rows so far")] = 0
    rows_per_s: Annotated[float, Meta(ge=0)] = 0.0
    lag: Annotated[Count, Meta(description="Messages it has still to read")] = 0
    batch: Annotated[
        int, Meta(ge=-1, le=NUMBER_MAX, description="The last one done; -1: none")
    ] = -1
    batch_ms: Annotated[Count, Meta(description="How long that took")] = 0
    error: Annotated[str, Meta(max_length=4000, description="Why it failed")] = ""
    parameters: Annotated[
        dict[ParameterName, ParameterValue],
        Meta(max_length=50, description="Those that say what it reads and writes"),
    ] = msgspec.field(default_factory=dict)
    tasks_done: Annotated[Count, Meta(description="Tasks of the batch it is at")] = 0
    tasks: Annotated[Count, Meta(description="How many there are; 0: not known")] = 0
    remaining_s: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Until it has read what is there now, by its rate; null: not known"),
    ] = None
    restarts: Annotated[Count, Meta(description="Streams begun again after a failure")] = 0


class PipelineInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    run: str
    user: str
    state: Literal["running", "finished", "stopped", "failed", "lost"]
    host: str
    started_ms: MillisecondsSinceEpoch
    seen_ms: MillisecondsSinceEpoch
    rows: int
    rows_per_s: float
    lag: int
    batch: int
    batch_ms: int
    error: str
    stop_requested: Annotated[bool, Meta(description="Whoever runs it shall stop")]
    parameters: dict[str, str]
    tasks_done: int
    tasks: int
    remaining_s: float | None
    restarts: int


class OfRun(InNamespace, frozen=True):
    run: Annotated[str, Meta(max_length=64, description="Only this run; default: all of them")] = ""


class PipelinesResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/pipelines",
        right=listing("the caller's own; an administrator sees all"),
        tag="pipelines",
        errors=(NotFound,),
    )
    async def list_pipelines(self, call: Call, query: ListInNamespace) -> list[PipelineInfo] | Page:
        """List pipelines that have reported within a week: of each, with its parameters, all runs
        that run, or the last. By name and parameters."""
        found, cursor = await page_of(
            self._context.node_loop.pipelines.list(query.namespace, self._context.now_ms),
            query,
            _place_of,
            tuple[str, str, int, str],
            keep=lambda each: call.user.is_administrator or each.user == call.user.name,
        )
        return Page([_shown(each) for each in found], cursor)

    @operation(
        "GET",
        "/v1/pipelines/{pipeline}",
        right=owner("pipeline"),
        tag="pipelines",
        errors=(UnknownPipeline,),
    )
    async def describe_pipeline(
        self, call: Call, pipeline: str, query: InNamespace
    ) -> PipelineInfo:
        """Tell how a pipeline is: its latest run, of those that run if any does. One that is silent
        for 30 seconds is `lost`."""
        pipelines = self._context.node_loop.pipelines
        return _shown(pipelines.get(query.namespace, pipeline, self._context.now_ms))

    @operation(
        "GET",
        "/v1/pipelines/{pipeline}/runs",
        right=owner("pipeline"),
        tag="pipelines",
        errors=(UnknownPipeline,),
    )
    async def list_pipeline_runs(
        self, call: Call, pipeline: str, query: ListInNamespace
    ) -> list[PipelineInfo] | Page:
        """List the runs of a pipeline: those that run, and the last ten that ended, each the latest
        first."""
        pipelines = self._context.node_loop.pipelines
        found, cursor = await page_of(
            pipelines.runs(query.namespace, pipeline, self._context.now_ms),
            query,
            lambda each: (each.state != RUNNING, -each.started_ms, each.run),
            tuple[bool, int, str],
        )
        return Page([_shown(each) for each in found], cursor)

    @operation(
        "PUT",
        "/v1/pipelines/{pipeline}",
        right=any_right().and_(owner("pipeline")),
        tag="pipelines",
        errors=(NotFound,),
        examples=({"run": "5f2a", "state": "running", "started_ms": 1_790_000_000_000},),
        traffic=True,
    )
    async def report_pipeline(
        self, call: Call, pipeline: str, query: InNamespace, body: PipelineReport
    ) -> PipelineInfo:
        """Say how a run of a pipeline is, every few seconds; the answer may ask it to stop."""
        check_name(pipeline, "pipeline name")
        said = PipelineRun(
            namespace=query.namespace,
            name=pipeline,
            user=self._context.node_loop.pipelines.owner_of(query.namespace, pipeline)
            or call.user.name,
            seen_ms=self._context.now_ms,
            **msgspec.structs.asdict(body),
        )
        kept = self._context.node_loop.pipelines.report(said)
        await self._context.done()
        return _shown(kept)

    @operation(
        "POST",
        "/v1/pipelines/{pipeline}/stop",
        right=owner("pipeline"),
        tag="pipelines",
        statuses=(202,),
        errors=(UnknownPipeline,),
    )
    async def stop_pipeline(self, call: Call, pipeline: str, query: OfRun) -> list[PipelineInfo]:
        """Ask whoever runs a pipeline to stop it, after the batch it is at: all runs, or one."""
        pipelines = self._context.node_loop.pipelines
        stopped = pipelines.stop(query.namespace, pipeline, query.run, self._context.now_ms)
        await self._context.done()
        return [_shown(each) for each in stopped]

    @operation(
        "DELETE",
        "/v1/pipelines/{pipeline}",
        right=owner("pipeline"),
        tag="pipelines",
        statuses=(204,),
        errors=(UnknownPipeline,),
    )
    async def forget_pipeline(self, call: Call, pipeline: str, query: InNamespace) -> None:
        """Forget what a pipeline said. One that runs will say it again."""
        self._context.node_loop.pipelines.forget(query.namespace, pipeline)
        await self._context.done()


def _shown(run: PipelineRun) -> PipelineInfo:
    return PipelineInfo(**{name: getattr(run, name) for name in PipelineInfo.__struct_fields__})


def _place_of(run: PipelineRun) -> tuple[str, str, int, str]:
    return run.name, run.identity[:IDENTITY_PLACE_MAX], -run.started_ms, run.run
