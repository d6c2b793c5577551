"""Pipelines that run somewhere and say how they are: the node keeps what they said last.

In memory alone: who runs says it again every few seconds, so a node that restarts knows soon, and
what nobody says any more is of no use.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from braidmq.model.errors import NotFound

RUNNING: Final = "running"
LOST: Final = "lost"
SILENT_MS_MAX = 30_000
"""After this a run that has not said that it ended is taken for lost: ten reports are missing."""

KEPT_MS = 7 * 24 * 3600 * 1000
PIPELINES_MAX = 10_000


class UnknownPipeline(NotFound):
    code = "unknown-pipeline"


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What the runner of a pipeline said last."""

    namespace: str
    name: str
    run: str
    user: str
    state: str
    host: str
    started_ms: int
    seen_ms: int
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int = 0
    batch: int = -1
    batch_ms: int = 0
    error: str = ""
    stop_requested: bool = field(default=False)


class Pipelines:
    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], PipelineRun] = {}

    def report(self, said: PipelineRun) -> PipelineRun:
        """Keep it; the answer says whether somebody wants it to stop."""
        key = (said.namespace, said.name)
        before = self._runs.get(key)
        wanted = before is not None and before.run == said.run and before.stop_requested
        if before is None and len(self._runs) >= PIPELINES_MAX:
            del self._runs[min(self._runs, key=lambda each: self._runs[each].seen_ms)]
        self._runs[key] = replace(said, stop_requested=wanted)
        return self._runs[key]

    def stop(self, namespace: str, name: str, now_ms: int) -> PipelineRun:
        found = self.get(namespace, name, now_ms)
        self._runs[namespace, name] = replace(self._runs[namespace, name], stop_requested=True)
        return replace(found, stop_requested=True)

    def forget(self, namespace: str, name: str) -> None:
        if self._runs.pop((namespace, name), None) is None:
            raise UnknownPipeline(f"no pipeline {name!r} has reported")

    def get(self, namespace: str, name: str, now_ms: int) -> PipelineRun:
        self._expire(now_ms)
        found = self._runs.get((namespace, name))
        if found is None:
            raise UnknownPipeline(f"no pipeline {name!r} has reported")
        return _seen(found, now_ms)

    def list(self, namespace: str | None, now_ms: int) -> "list[PipelineRun]":
        self._expire(now_ms)
        return [
            _seen(each, now_ms)
            for each in self._runs.values()
            if namespace in (None, each.namespace)
        ]

    def _expire(self, now_ms: int) -> None:
        for key in [key for key, each in self._runs.items() if now_ms - each.seen_ms > KEPT_MS]:
            del self._runs[key]


def _seen(run: PipelineRun, now_ms: int) -> PipelineRun:
    if run.state == RUNNING and now_ms - run.seen_ms > SILENT_MS_MAX:
        return replace(run, state=LOST)
    return run
