"""Pipelines that run somewhere and say how they are: the node keeps what they said last.

How a run began and ended, and the wish that it stop, are in the catalogue and survive a restart of
the node. Figures in between are in memory alone: who runs says them again every few seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from braidmq.model.errors import NotFound
from braidmq.storage.catalogue import Change
from braidmq.storage.store import Store

PIPELINES: Final = "pipelines"
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
    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[tuple[str, str], PipelineRun] = {}
        for _, value in store.catalogue.items(PIPELINES):
            run = msgspec.msgpack.decode(value, type=PipelineRun)
            self._runs[run.namespace, run.name] = run

    def report(self, said: PipelineRun) -> PipelineRun:
        """Keep it; the answer says whether somebody wants it to stop."""
        key = (said.namespace, said.name)
        before = self._runs.get(key)
        if before is not None and before.run == said.run:
            run = replace(said, stop_requested=before.stop_requested)
            changed = before.state != run.state
        else:
            run = replace(said, stop_requested=False)
            changed = True
        self._runs[key] = run
        if before is None:
            self._make_room(said.seen_ms)
        if changed:
            self._store.change([_change(run)])
        return run

    def owner_of(self, namespace: str, name: str) -> str | None:
        """Whose it is; None for what is not there."""
        found = self._runs.get((namespace, name))
        return None if found is None else found.user

    def stop(self, namespace: str, name: str, now_ms: int) -> PipelineRun:
        found = self.get(namespace, name, now_ms)
        run = replace(self._runs[namespace, name], stop_requested=True)
        self._runs[namespace, name] = run
        self._store.change([_change(run)])
        return replace(found, stop_requested=True)

    def forget(self, namespace: str, name: str) -> None:
        if (namespace, name) not in self._runs:
            raise UnknownPipeline(f"no pipeline {name!r} has reported")
        self._drop([(namespace, name)])

    def get(self, namespace: str, name: str, now_ms: int) -> PipelineRun:
        found = self._runs.get((namespace, name))
        if found is None or _is_old(found, now_ms):
            raise UnknownPipeline(f"no pipeline {name!r} has reported")
        return _seen(found, now_ms)

    def list(self, namespace: str | None, now_ms: int) -> "list[PipelineRun]":
        return [
            _seen(each, now_ms)
            for each in self._runs.values()
            if namespace in (None, each.namespace) and not _is_old(each, now_ms)
        ]

    def _make_room(self, now_ms: int) -> None:
        """When a new one comes: the old are dropped, and the oldest if there are too many."""
        old = [key for key, each in self._runs.items() if _is_old(each, now_ms)]
        if not old and len(self._runs) > PIPELINES_MAX:
            old = [min(self._runs, key=lambda key: self._runs[key].seen_ms)]
        if old:
            self._drop(old)

    def _drop(self, keys: Sequence[tuple[str, str]]) -> None:
        self._store.change([(PIPELINES, _key(*key), None) for key in keys])
        for key in keys:
            del self._runs[key]


def _key(namespace: str, name: str) -> str:
    return f"{namespace}\0{name}"


def _change(run: PipelineRun) -> Change:
    return PIPELINES, _key(run.namespace, run.name), msgspec.msgpack.encode(run)


def _is_old(run: PipelineRun, now_ms: int) -> bool:
    return now_ms - run.seen_ms > KEPT_MS


def _seen(run: PipelineRun, now_ms: int) -> PipelineRun:
    if run.state == RUNNING and now_ms - run.seen_ms > SILENT_MS_MAX:
        return replace(run, state=LOST)
    return run
