"""How a pipeline says how it is."""

from types import SimpleNamespace
from typing import Any

from braidmq.pipeline.reporting import SinkProgress, TaskCounts, sink_progress


def progress(batch: int, done: int, latest: int) -> dict[str, Any]:
    offsets = {"version": 1, "topics": {"orders": {"0": done}}}
    ends = {"version": 1, "topics": {"orders": {"0": latest}}}
    source = {"endOffset": offsets, "latestOffset": ends}
    return {
        "batchId": batch,
        "sources": [source],
        "durationMs": {"triggerExecution": 1500},
    }


def test_a_line_has_all_of_it() -> None:
    found = sink_progress("large", {0: 800_000, 1: 127_500}, progress(1, 100, 340_100))
    assert found.with_tasks((3, 8)).line == (
        "large  batch 1  927,500 rows  85,000/s  lag 340,000  task 3/8  4 s left"
    )
    assert SinkProgress("large", status="waits for the broker").line == (
        "large  0 rows  0/s  lag 0  waits for the broker"
    )


def test_what_remains_is_judged_by_the_rate_or_by_tasks() -> None:
    assert sink_progress("x", {}, progress(0, 0, 10)).remaining_s is None
    assert SinkProgress("x").with_tasks((0, 4), 10.0).remaining_s is None
    assert SinkProgress("x").with_tasks((1, 4), 10.0).remaining_s == 30.0


def test_tasks_of_one_query_are_counted() -> None:
    """Of jobs that run; Spark may have forgotten a stage."""
    stages = {1: SimpleNamespace(numCompletedTasks=2, numTasks=3), 2: None}
    tracker = SimpleNamespace(
        getActiveJobsIds=lambda: [7, 8],
        getJobIdsForGroup=lambda group: [6, 7] if group == "mine" else [],
        getJobInfo=lambda job: SimpleNamespace(stageIds=[1, 2]) if job == 7 else None,
        getStageInfo=stages.get,
    )
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert TaskCounts(spark, "mine").now() == (2, 3)
    assert TaskCounts(spark, "another").now() == (0, 0)
    assert TaskCounts(SimpleNamespace()).now() == (0, 0)
