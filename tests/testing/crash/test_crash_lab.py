"""A few lives of the crash lab; `make crash` has more. The seed repeats it."""

import os
from pathlib import Path

import pytest

from braidmq.testing.crash.lab import Lab
from braidmq.testing.crash.report import lines, summary

SEED = int(os.environ.get("CRASH_SEED", "2026"))
LIVES = int(os.environ.get("CRASH_LIVES", "5"))


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_promise_holds_through_kills_and_power_cuts(tmp_path: Path) -> None:
    episode = Lab(tmp_path / "lab", SEED, LIVES, traffic_s=0.8).run()
    told = summary([episode])
    assert not told["findings"], "\n".join([f"CRASH_SEED={SEED}", *lines(told)])
    # What checked nothing has found nothing.
    assert told["rounds"] == LIVES
    silent = [name for name, row in told["strands"].items() if not row["confirmed"]]
    unread = [name for name, row in told["strands"].items() if not row["arrivals"]]
    assert not silent + unread, "\n".join(lines(told))
