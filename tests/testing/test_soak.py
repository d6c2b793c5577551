"""The soak's verdict, and a slice of the real thing; `make soak` is longer."""

from pathlib import Path

import pytest

from braidmq.model.limits import MIB
from braidmq.testing.soak import BARS, FULL, LIMIT, OFFLINE, Sample, judge, soak


def samples(**series: list[float]) -> list[Sample]:
    """One a second; what is not given stays as it is."""
    count = len(next(iter(series.values())))
    flat = Sample(0.0, 100 * MIB, 50, 100 * MIB, 10.0)
    return [
        flat._replace(at_s=float(at), **{name: row[at] for name, row in series.items()})
        for at in range(count)
    ]


def grown(told: list[Sample], warm_s: float = 0.0) -> list[str]:
    return [verdict.field for verdict in judge(told, warm_s) if not verdict.is_flat]


def test_what_stays_is_flat() -> None:
    assert grown(samples(p99_ms=[10.0] * 30)) == []


@pytest.mark.parametrize(
    ("field", "growth"),
    [("rss_bytes", MIB), ("open_files", 1), ("disk_bytes", 2 * MIB), ("p99_ms", 3.0)],
)
def test_what_grows_steadily_is_not_flat(field: str, growth: float) -> None:
    start = float(getattr(samples(p99_ms=[10.0])[0], field))
    row = [start + growth * at for at in range(60)]
    assert grown(samples(**{field: row})) == [field]


def test_growth_in_the_first_minute_does_not_count() -> None:
    row = [at * MIB for at in range(60)] + [60 * MIB] * 60
    assert grown(samples(rss_bytes=row), warm_s=60) == []
    assert grown(samples(rss_bytes=row)) == ["rss_bytes"]


def test_one_outlier_is_no_growth() -> None:
    row = [10.0] * 30
    row[-1] = 900.0
    assert grown(samples(p99_ms=row)) == []


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge(samples(p99_ms=[1.0] * 5), warm_s=3)


@pytest.mark.timeout(180)
def test_memory_files_and_disk_are_bounded_at_the_limits(tmp_path: Path) -> None:
    bars = [bar for bar in BARS if bar.field != "p99_ms"]  # a matter of time, and of the machine
    told = soak(tmp_path, 21, warm_s=6, sample_s=0.5, bars=bars)
    assert told.is_fine, [*told.errors, *told.verdicts, told.samples[::6]]
    assert all(told.done.values()), told.done
    # What is to be full is full.
    sessions = [f"$mqtt/session/soak-offline-{number}" for number in range(OFFLINE)]
    assert {told.depths[name] for name in [*sessions, FULL]} == {LIMIT}
