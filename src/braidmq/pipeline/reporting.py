"""What a run of a pipeline tells: to people while it runs, and to its broker.

A broker that is away does not stop a pipeline: reports are lost, and the next one says all.
"""

import socket
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from braidmq.model.errors import BraidError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.options import BrokerOptions

ERROR_CHARACTERS_MAX = 4000


@dataclass(frozen=True)
class SinkProgress:
    """How one sink is."""

    name: str
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int = 0
    batch_ms: int = 0
    status: str = ""
    tasks_done: int = 0
    tasks: int = 0
    """Of the batch it is at; 0: not known."""
    remaining_s: float | None = None
    """Until it has done what is there now; None: not known."""

    def with_tasks(self, counts: tuple[int, int], since_s: float = 0.0) -> "SinkProgress":
        """``since_s``: how long these tasks have run; what remains is judged by them."""
        done, tasks = counts
        left_s = self.remaining_s
        if since_s and done:
            left_s = since_s * (tasks - done) / done
        return replace(self, tasks_done=done, tasks=tasks, remaining_s=left_s)

    @property
    def line(self) -> str:
        """All of it, for people."""
        parts = [self.name]
        if self.batch >= 0:
            parts.append(f"batch {self.batch}")
        parts += [f"{self.rows:,} rows", f"{self.rows_per_s:,.0f}/s", f"lag {self.lag:,}"]
        if self.tasks:
            parts.append(f"task {self.tasks_done}/{self.tasks}")
        if self.remaining_s is not None and self.status != "done":
            parts.append(f"{self.remaining_s:,.0f} s left")
        if self.status:
            parts.append(self.status)
        return "  ".join(parts)


@dataclass(frozen=True)
class Progress:
    state: str = "running"
    sinks: tuple[SinkProgress, ...] = ()
    error: str = ""
    restarts: int = 0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.sinks)

    def ended(self, state: str, error: str = "") -> "Progress":
        return replace(self, state=state, error=error)


class _Answer(msgspec.Struct):
    stop_requested: bool


@dataclass
class Reporter:
    """Tells the broker how a pipeline is."""

    name: str
    options: BrokerOptions
    parameters: dict[str, str] = field(default_factory=dict)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def report(self, progress: Progress) -> bool:
        """Whether somebody wants it to stop."""
        sinks = progress.sinks
        body = {
            "run": self.run,
            "state": progress.state,
            "started_ms": self.started_ms,
            "host": socket.gethostname(),
            "rows": progress.rows,
            "rows_per_s": sum(each.rows_per_s for each in sinks),
            "lag": max((each.lag for each in sinks), default=0),
            "batch": max((each.batch for each in sinks), default=-1),
            "batch_ms": max((each.batch_ms for each in sinks), default=0),
            "error": progress.error[:ERROR_CHARACTERS_MAX],
            "parameters": self.parameters,
            "tasks_done": sum(each.tasks_done for each in sinks),
            "tasks": sum(each.tasks for each in sinks),
            "remaining_s": max(
                (each.remaining_s for each in sinks if each.remaining_s is not None), default=None
            ),
            "restarts": progress.restarts,
        }
        try:
            with Broker(self.options) as broker:
                answer = broker.send("PUT", "pipelines", self.name, body=body, patient=False)
        except BraidError:
            return False
        return msgspec.json.decode(answer, type=_Answer).stop_requested


# --- what Spark says of a query ---


def sink_progress(name: str, seen: dict[int, int], last: Any, status: str = "") -> SinkProgress:
    """``last``: Spark's progress of a query; ``seen``: rows of the batches so far, by number."""
    if last is None:
        return SinkProgress(name, status=status)
    took_ms = last.get("batchDuration") or last["durationMs"].get("triggerExecution", 0)
    rate = 1000 * seen.get(last["batchId"], 0) / max(took_ms, 1)
    lag = sum(lag_of(source) for source in last["sources"])
    return SinkProgress(
        name,
        last["batchId"],
        sum(seen.values()),
        rate,
        lag,
        took_ms,
        status,
        remaining_s=lag / rate if rate else None,
    )


class TaskCounts:
    """Tasks of the jobs that run: those of a query, or of all. Spark Connect does not tell them."""

    def __init__(self, spark: Any, group: str = "") -> None:
        context = getattr(spark, "sparkContext", None)
        self._tracker = None if context is None else context.statusTracker()
        self._group = group

    def now(self) -> tuple[int, int]:
        """Done, and how many there are."""
        if self._tracker is None:
            return 0, 0
        jobs = set(self._tracker.getActiveJobsIds())
        if self._group:
            jobs &= set(self._tracker.getJobIdsForGroup(self._group))
        done = tasks = 0
        for job in jobs:
            found = self._tracker.getJobInfo(job)
            for stage in found.stageIds if found is not None else ():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    done += info.numCompletedTasks
                    tasks += info.numTasks
        return done, tasks


def total(progress: Any, name: str) -> Any:
    """A number of a batch. Spark Connect has it of each source alone; it may also be no number."""
    given = progress.get(name)
    if given is None:
        return sum(total(source, name) for source in progress.get("sources") or ())
    return given if isinstance(given, int | float) and given >= 0 else 0


def offsets_of(source: Any, which: str) -> dict[str, dict[str, int]]:
    """Offsets of a topic source by topic and partition; none of another kind of source."""
    topics = _position(source, which).get("topics")
    return topics if isinstance(topics, dict) else {}


def logs_of(source: Any, which: str) -> dict[str, str]:
    """Which log of each topic those offsets are of; a topic that is created again has another."""
    logs = _position(source, which).get("logs")
    return logs if isinstance(logs, dict) else {}


def _position(source: Any, which: str) -> dict[str, Any]:
    found = source.get(which)
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found.encode())
        except msgspec.DecodeError:
            return {}
    return found if isinstance(found, dict) else {}


def lag_of(source: Any) -> int:
    ends = offsets_of(source, "latestOffset") or offsets_of(source, "endOffset")
    done = offsets_of(source, "endOffset")
    return sum(
        max(end - done.get(topic, {}).get(number, 0), 0)
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )
