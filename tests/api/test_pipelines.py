"""Pipelines report, are listed, asked to stop, and taken for lost when they are silent."""

import msgspec
import pytest

from braidmq.runtime import pipeline_runs as module
from braidmq.runtime.pipeline_runs import (
    KEPT_MS,
    PIPELINES,
    SILENT_MS_MAX,
    PipelineRun,
    Pipelines,
    UnknownPipeline,
)
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store


@pytest.fixture
def store() -> Store:
    return Store.open(MemoryDisk(), StorageSettings())


def said(
    name: str = "p",
    run: str = "1",
    state: str = "running",
    at_ms: int = 0,
    started_ms: int = 0,
    **parameters: str,
) -> PipelineRun:
    return PipelineRun(
        "/", name, run, "guest", state, "host", started_ms, at_ms, parameters=parameters
    )


def test_a_wish_to_stop_reaches_the_run_it_was_meant_for(store: Store) -> None:
    pipelines = Pipelines(store)
    assert not pipelines.report(said()).stop_requested
    (asked,) = pipelines.stop("/", "p", "", 1)
    assert asked.stop_requested
    assert pipelines.report(said(at_ms=2)).stop_requested
    assert not pipelines.report(said(run="2", at_ms=3)).stop_requested


def test_two_runs_of_one_name_both_hear_that_they_shall_stop(store: Store) -> None:
    pipelines = Pipelines(store)
    for run in ("1", "2"):
        pipelines.report(said(run=run))
    assert {each.run for each in pipelines.stop("/", "p", "", 1)} == {"1", "2"}
    for at_ms, run in enumerate(("1", "2", "1", "2"), 2):
        assert pipelines.report(said(run=run, at_ms=at_ms)).stop_requested


def test_one_run_of_two_is_stopped(store: Store) -> None:
    pipelines = Pipelines(store)
    for run in ("1", "2"):
        pipelines.report(said(run=run, topic=f"t{run}"))
    assert [each.run for each in pipelines.stop("/", "p", "2", 1)] == ["2"]
    assert not pipelines.report(said(run="1", at_ms=2)).stop_requested
    assert pipelines.report(said(run="2", at_ms=2)).stop_requested
    with pytest.raises(UnknownPipeline, match="no run '3'"):
        pipelines.stop("/", "p", "3", 3)


def test_runs_are_known_by_their_parameters(store: Store) -> None:
    """Of each the latest is listed, and whatever runs."""
    pipelines = Pipelines(store)
    pipelines.report(said(run="1", state="finished", started_ms=1, topic="a"))
    pipelines.report(said(run="2", state="failed", started_ms=2, topic="a"))
    pipelines.report(said(run="3", state="finished", started_ms=1, topic="b"))
    pipelines.report(said(run="4", started_ms=1, topic="c"))
    pipelines.report(said(run="5", started_ms=2, topic="c"))
    shown = [(each.identity, each.run) for each in pipelines.list("/", 1)]
    assert shown == [("topic=a", "2"), ("topic=b", "3"), ("topic=c", "5"), ("topic=c", "4")]
    assert pipelines.get("/", "p", 1).run == "5"


def test_the_last_that_ended_are_kept(store: Store) -> None:
    pipelines = Pipelines(store)
    pipelines.report(said(run="runs"))
    for number in range(30):
        pipelines.report(said(run=str(number), state="finished", started_ms=number))
    kept = [each.run for each in pipelines.runs("/", "p", 1)]
    assert kept == ["runs", *(str(29 - number) for number in range(module.ENDED_MAX))]
    assert [each.run for each in Pipelines(store).runs("/", "p", 1)] == kept


def test_one_that_began_before_all_others_is_dropped_by_the_next(store: Store) -> None:
    """It is heard of late: it is kept as the newest report, and is not left over on the disk."""
    pipelines = Pipelines(store)
    for number in range(1, module.ENDED_MAX + 1):
        pipelines.report(said(run=str(number), state="finished", started_ms=number))
    for number in range(3):
        pipelines.report(said(run=f"late {number}", state="finished", started_ms=0))
    assert len(list(store.catalogue.items(PIPELINES))) <= module.ENDED_MAX + 1
    assert len(pipelines.runs("/", "p", 1)) <= module.ENDED_MAX + 1


def test_what_was_kept_under_a_name_alone_is_dropped_with_it(store: Store) -> None:
    """As an earlier version wrote it."""
    old = said(state="finished")
    store.change([(PIPELINES, "/\0p", msgspec.msgpack.encode(old))])
    pipelines = Pipelines(store)
    assert pipelines.get("/", "p", 1).state == "finished"
    pipelines.forget("/", "p")
    assert list(store.catalogue.items(PIPELINES)) == []


def test_silence_is_loss_unless_it_had_ended(store: Store) -> None:
    pipelines = Pipelines(store)
    pipelines.report(said("a"))
    pipelines.report(said("b", state="finished"))
    states = {each.name: each.state for each in pipelines.list("/", SILENT_MS_MAX + 1)}
    assert states == {"a": "lost", "b": "finished"}
    pipelines.report(said("a", at_ms=SILENT_MS_MAX + 2))
    assert pipelines.get("/", "a", SILENT_MS_MAX + 3).state == "running"
    assert [each.name for each in pipelines.list("/", KEPT_MS + 1)] == ["a"]
    assert pipelines.list("other", 0) == []


def test_the_oldest_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_MAX", 10)
    pipelines = Pipelines(store)
    for number in range(11):
        pipelines.report(said(str(number), at_ms=number))
    names = {each.name for each in pipelines.list(None, 11)}
    assert names == {str(number) for number in range(1, 11)}
    assert {each.name for each in Pipelines(store).list(None, 11)} == names


def test_how_runs_began_and_ended_outlives_the_node(store: Store) -> None:
    pipelines = Pipelines(store)
    pipelines.report(said("old"))
    for number in range(3):
        pipelines.report(said("runs", at_ms=KEPT_MS + number))
    before = store.journal.last_lsn
    pipelines.report(said("runs", at_ms=KEPT_MS + 10))
    assert store.journal.last_lsn == before, "a sign of life costs the disk nothing"
    pipelines.stop("/", "runs", "", KEPT_MS + 11)
    pipelines.report(said("broke", state="failed", at_ms=KEPT_MS + 12))
    pipelines.report(said("gone", at_ms=KEPT_MS + 12))
    pipelines.forget("/", "gone")

    again = Pipelines(store)
    found = {each.name: each for each in again.list("/", KEPT_MS + 13)}
    assert set(found) == {"runs", "broke"}
    assert found["runs"].stop_requested
    assert found["broke"].state == "failed"
    assert again.report(said("runs", at_ms=KEPT_MS + 14)).stop_requested
