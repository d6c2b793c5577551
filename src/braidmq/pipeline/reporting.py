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


@dataclass(frozen=True)
class Progress:
    state: str = "running"
    sinks: tuple[SinkProgress, ...] = ()
    error: str = ""

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
    return SinkProgress(
        name,
        last["batchId"],
        sum(seen.values()),
        total(last, "processedRowsPerSecond"),
        sum(lag_of(source) for source in last["sources"]),
        last.get("batchDuration") or last["durationMs"].get("triggerExecution", 0),
        status,
    )


def total(progress: Any, name: str) -> Any:
    """A number of a batch. Spark Connect has it of each source alone; it may also be no number."""
    given = progress.get(name)
    if given is None:
        return sum(total(source, name) for source in progress.get("sources") or ())
    return given if isinstance(given, int | float) and given >= 0 else 0


def offsets_of(source: Any, which: str) -> dict[str, dict[str, int]]:
    """Offsets of a topic source by topic and partition; none of another kind of source."""
    found = source.get(which)
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found.encode())
        except msgspec.DecodeError:
            return {}
    topics = found.get("topics") if isinstance(found, dict) else None
    return topics if isinstance(topics, dict) else {}


def lag_of(source: Any) -> int:
    ends = offsets_of(source, "latestOffset") or offsets_of(source, "endOffset")
    done = offsets_of(source, "endOffset")
    return sum(
        max(end - done.get(topic, {}).get(number, 0), 0)
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )
