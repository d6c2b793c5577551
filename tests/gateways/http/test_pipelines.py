"""Pipelines report, are listed, asked to stop, and taken for lost when they are silent."""

from braidmq.gateways.pipelines import KEPT_MS, PIPELINES_MAX, SILENT_MS_MAX, PipelineRun, Pipelines


def said(name: str = "p", run: str = "1", state: str = "running", at_ms: int = 0) -> PipelineRun:
    return PipelineRun("/", name, run, "guest", state, "host", 0, at_ms)


def test_a_wish_to_stop_reaches_the_run_it_was_meant_for() -> None:
    pipelines = Pipelines()
    assert not pipelines.report(said()).stop_requested
    assert pipelines.stop("/", "p", 1).stop_requested
    assert pipelines.report(said(at_ms=2)).stop_requested
    assert not pipelines.report(said(run="2", at_ms=3)).stop_requested


def test_silence_is_loss_unless_it_had_ended() -> None:
    pipelines = Pipelines()
    pipelines.report(said("a"))
    pipelines.report(said("b", state="finished"))
    states = {each.name: each.state for each in pipelines.list("/", SILENT_MS_MAX + 1)}
    assert states == {"a": "lost", "b": "finished"}
    pipelines.report(said("a", at_ms=SILENT_MS_MAX + 2))
    assert pipelines.get("/", "a", SILENT_MS_MAX + 3).state == "running"
    assert [each.name for each in pipelines.list("/", KEPT_MS + 1)] == ["a"]
    assert pipelines.list("other", 0) == []


def test_the_oldest_makes_room() -> None:
    pipelines = Pipelines()
    for number in range(PIPELINES_MAX + 1):
        pipelines.report(said(str(number), at_ms=number))
    names = {each.name for each in pipelines.list(None, PIPELINES_MAX)}
    assert len(names) == PIPELINES_MAX
    assert "0" not in names
