"""Pipelines report, are listed, asked to stop, and taken for lost when they are silent."""

import pytest

from braidmq.runtime import pipeline_runs as module
from braidmq.runtime.pipeline_runs import KEPT_MS, SILENT_MS_MAX, PipelineRun, Pipelines
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store


@pytest.fixture
def store() -> Store:
    return Store.open(MemoryDisk(), StorageSettings())


def said(name: str = "p", run: str = "1", state: str = "running", at_ms: int = 0) -> PipelineRun:
    return PipelineRun("/", name, run, "guest", state, "host", 0, at_ms)


def test_a_wish_to_stop_reaches_the_run_it_was_meant_for(store: Store) -> None:
    pipelines = Pipelines(store)
    assert not pipelines.report(said()).stop_requested
    assert pipelines.stop("/", "p", 1).stop_requested
    assert pipelines.report(said(at_ms=2)).stop_requested
    assert not pipelines.report(said(run="2", at_ms=3)).stop_requested


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
    monkeypatch.setattr(module, "PIPELINES_MAX", 10)
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
    pipelines.stop("/", "runs", KEPT_MS + 11)
    pipelines.report(said("broke", state="failed", at_ms=KEPT_MS + 12))
    pipelines.report(said("gone", at_ms=KEPT_MS + 12))
    pipelines.forget("/", "gone")

    again = Pipelines(store)
    found = {each.name: each for each in again.list("/", KEPT_MS + 13)}
    assert set(found) == {"runs", "broke"}
    assert found["runs"].stop_requested
    assert found["broke"].state == "failed"
    assert again.report(said("runs", at_ms=KEPT_MS + 14)).stop_requested
