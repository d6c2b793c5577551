"""Every figure of docs/PERFORMANCE.md is one of bench/results/."""

import re
from pathlib import Path
from typing import Any

import pytest
from bench import history, report
from bench.harness import record

FIGURE = re.compile(r"\d[\d. ]*(?:[kM] )?(?:ns|µs|ms|MiB|KiB|%|msg/s|rows/s)\b")
BENCHMARKS = sorted(path.stem for path in history.HISTORY.glob("*.json"))


def test_tables_and_plot_are_drawn_from_the_history() -> None:
    text = report.PAGE.read_text()
    again = "run python -m bench.report"
    assert report.page(text) == text, again
    assert report.PLOT.read_text() == report.plot(), again


def test_every_table_is_on_the_page() -> None:
    shown = [found[2] for found in report.MARKED.finditer(report.PAGE.read_text())]
    assert sorted(shown) == sorted(report.TABLES)


def test_text_around_the_tables_has_no_figures() -> None:
    assert not FIGURE.findall(report.MARKED.sub("", report.PAGE.read_text()))


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_entry_says_when_and_of_what_it_is(benchmark: str) -> None:
    for run in history.runs(benchmark):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d UTC)?", run["date"])
        assert run["revision"]
        assert run["machine"]
        for each in run["measures"]:
            entry = history.Entry(run["date"], run["revision"], run["machine"], **each)
            assert entry.ratio is None or entry.against, entry
            assert entry.value is not None or entry.ratio is not None or entry.note, entry
            assert entry.met in (True, False, None)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_files_are_written_as_recording_writes_them(benchmark: str) -> None:
    path = history.HISTORY / f"{benchmark}.json"
    assert path.read_text() == history.as_text(history.runs(benchmark))


def run_of(**changes: Any) -> dict[str, Any]:
    """As the harness reports one."""
    measure = {
        "name": "encode",
        "value": 43.123456,
        "unit": "ns",
        "bar": {"limit": 5.0, "at_most": True},
        "ratio": 3.4,
        "baseline": 12.5,
        "against": "a copy",
        "guide": "100 ns",
        "note": "",
        "met": True,
    }
    machine = {
        "cpu": "CPU",
        "cores": "2",
        "memory": "24 GiB",
        "kernel": "Linux 6",
        "python": "CPython 3.11",
        "file system": "ext4 on /dev/vda",
        "load at start": "0.50",
        "source": "abc1234, sha256 0123",
        "date": "2026-11-18 05:00 UTC",
    }
    report = {"name": "fresh", "quick": False, "machine": machine, "measures": [measure]}
    return {**report, "broken": [], **changes}


def test_a_run_is_appended(tmp_path: Path) -> None:
    assert "recorded in" in record(run_of(), "quiet", tmp_path)
    record(run_of(), "", tmp_path)
    first, second = history.runs("fresh", tmp_path)
    assert first["note"] == "quiet; load 0.50 at the start"
    assert second["note"] == "load 0.50 at the start"
    entry = history.newest("fresh", "encode", folder=tmp_path)
    assert entry.revision == "abc1234, sha256 0123"
    assert (entry.value, entry.ratio, entry.baseline) == (43.12, 3.4, 12.5)
    assert (entry.bar, entry.met) == ("≤ 5", True)


@pytest.mark.parametrize("wrong", [{"quick": True}, {"broken": ["encode"]}])
def test_what_may_not_be_quoted_is_not_recorded(wrong: dict[str, Any], tmp_path: Path) -> None:
    assert record(run_of(**wrong), "", tmp_path).startswith("not recorded")
    assert not list(tmp_path.iterdir())


def test_the_newest_run_that_has_the_figure_is_shown(tmp_path: Path) -> None:
    def run(date: str, ratio: float | None) -> dict[str, Any]:
        measure = {"measure": "x", "value": 1, "unit": "ns", "ratio": ratio}
        judged = measure | {"against": "y", "bar": "≥ 2"}
        return {"date": date, "revision": "r", "machine": "m", "note": "", "measures": [judged]}

    found = [run("2026-11-18 04:00 UTC", 1.0), run("2026-11-17", 3.0), run("2026-11-19", None)]
    (tmp_path / "b.json").write_text(history.as_text(found))
    entry = history.newest("b", "x", folder=tmp_path)
    assert (entry.date, entry.met) == ("2026-11-18 04:00 UTC", False)
    with pytest.raises(LookupError):
        history.newest("b", "x", "z", folder=tmp_path)
