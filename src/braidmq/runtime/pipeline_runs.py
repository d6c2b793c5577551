"""Pipelines that run somewhere and say how they are: the node keeps what each run said last.

Runs are kept apart by their id: two of one name, with other parameters or by mistake with the same,
are two. How a run began and ended, and the wish that it stop, are in the catalogue and survive a
restart of the node. Figures in between are in memory alone: who runs says them again every few
seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from braidmq.model.errors import NotFound
from braidmq.storage.store import Store

PIPELINES: Final = "pipelines"
RUNNING: Final = "running"
LOST: Final = "lost"
SILENT_MS_MAX = 30_000
"""After this a run that has not said that it ended is taken for lost: ten reports are missing."""

KEPT_MS = 7 * 24 * 3600 * 1000
RUNS_MAX = 10_000
ENDED_MAX = 10
"""Of one name: what ended before is history, and a job of every minute would make much of it."""


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
    parameters: dict[str, str] = field(default_factory=dict)
    """Those that say what it reads and writes: with its name they are what it is known by."""
    tasks_done: int = 0
    tasks: int = 0
    remaining_s: float | None = None
    restarts: int = 0

    @property
    def identity(self) -> str:
        return ",".join(f"{name}={value}" for name, value in sorted(self.parameters.items()))


Key = tuple[str, str, str]
"""Namespace, name, run."""


class Pipelines:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[Key, PipelineRun] = {}
        self._stored: dict[Key, str] = {}
        """Where the catalogue has it: before runs were kept apart, its key had no run."""
        for stored, value in store.catalogue.items(PIPELINES):
            run = msgspec.msgpack.decode(value, type=PipelineRun)
            self._runs[_key(run)] = run
            self._stored[_key(run)] = stored

    def report(self, said: PipelineRun) -> PipelineRun:
        """Keep it; the answer says whether somebody wants it to stop."""
        key = _key(said)
        before = self._runs.get(key)
        wanted = before is not None and before.stop_requested
        run = self._runs[key] = replace(said, stop_requested=wanted)
        if before is None:
            self._make_room(run)
        if before is None or before.state != run.state:
            self._keep([run])
        return run

    def owner_of(self, namespace: str, name: str) -> str | None:
        """Whose it is; None for what is not there."""
        return next((each.user for each in self._named(namespace, name)), None)

    def stop(self, namespace: str, name: str, run: str, now_ms: int) -> Sequence[PipelineRun]:
        """``run``: this one; empty: all that run, or the last if none does."""
        found = self.runs(namespace, name, now_ms)
        wanted: Sequence[PipelineRun]
        if run:
            wanted = [each for each in found if each.run == run]
            if not wanted:
                raise UnknownPipeline(f"no run {run!r} of pipeline {name!r} has reported")
        else:
            wanted = [each for each in found if each.state == RUNNING] or found[:1]
        kept = [replace(self._runs[_key(each)], stop_requested=True) for each in wanted]
        self._runs |= {_key(each): each for each in kept}
        self._keep(kept)
        return [_seen(each, now_ms) for each in kept]

    def forget(self, namespace: str, name: str) -> None:
        found = self._named(namespace, name)
        if not found:
            raise UnknownPipeline(f"no pipeline {name!r} has reported")
        self._drop(found)

    def get(self, namespace: str, name: str, now_ms: int) -> PipelineRun:
        """The run that matters most: one that runs before one that ended, then the latest."""
        return self.runs(namespace, name, now_ms)[0]

    def runs(self, namespace: str, name: str, now_ms: int) -> Sequence[PipelineRun]:
        """Those that run first, of these the latest first."""
        found = [
            _seen(each, now_ms)
            for each in self._named(namespace, name)
            if not _is_old(each, now_ms)
        ]
        if not found:
            raise UnknownPipeline(f"no pipeline {name!r} has reported")
        return sorted(found, key=_by_weight)

    def list(self, namespace: str | None, now_ms: int) -> Sequence[PipelineRun]:
        """Of each pipeline and its parameters the run that matters most, and all that run."""
        shown: set[tuple[str, str, str]] = set()
        found = []
        for each in sorted((_seen(run, now_ms) for run in self._runs.values()), key=_by_weight):
            known = (each.namespace, each.name, each.identity)
            if namespace not in (None, each.namespace) or _is_old(each, now_ms):
                continue
            if each.state == RUNNING or known not in shown:
                found.append(each)
            shown.add(known)
        return sorted(found, key=lambda run: (run.namespace, run.name, run.identity))

    def _named(self, namespace: str, name: str) -> Sequence[PipelineRun]:
        return [
            each for each in self._runs.values() if (each.namespace, each.name) == (namespace, name)
        ]

    def _keep(self, runs: Sequence[PipelineRun]) -> None:
        self._stored |= {
            _key(each): self._stored.get(_key(each), "\0".join(_key(each))) for each in runs
        }
        self._store.change(
            [(PIPELINES, self._stored[_key(each)], msgspec.msgpack.encode(each)) for each in runs]
        )

    def _make_room(self, new: PipelineRun) -> None:
        """When a new one comes: the old are dropped, what ended before, and the oldest of all if
        there are too many."""
        now_ms = new.seen_ms
        gone = [each for each in self._runs.values() if _is_old(each, now_ms)]
        named = [_seen(each, now_ms) for each in self._named(new.namespace, new.name)]
        ended = [each for each in named if each.state != RUNNING and not _is_old(each, now_ms)]
        gone += sorted(ended, key=_by_weight)[ENDED_MAX:]
        # Its report is kept next: without it in memory, nothing would ever drop that.
        gone = [each for each in gone if each is not new]
        if not gone and len(self._runs) > RUNS_MAX:
            gone = [min(self._runs.values(), key=lambda each: each.seen_ms)]
        if gone:
            self._drop(gone)

    def _drop(self, runs: Sequence[PipelineRun]) -> None:
        keys = [_key(each) for each in runs]
        stored = [self._stored.pop(key) for key in keys if key in self._stored]
        if stored:
            self._store.change([(PIPELINES, each, None) for each in stored])
        for key in keys:
            del self._runs[key]


def _key(run: PipelineRun) -> Key:
    return run.namespace, run.name, run.run


def _by_weight(run: PipelineRun) -> tuple[bool, int, int]:
    return run.state != RUNNING, -run.started_ms, -run.seen_ms


def _is_old(run: PipelineRun, now_ms: int) -> bool:
    return now_ms - run.seen_ms > KEPT_MS


def _seen(run: PipelineRun, now_ms: int) -> PipelineRun:
    if run.state == RUNNING and now_ms - run.seen_ms > SILENT_MS_MAX:
        return replace(run, state=LOST)
    return run
