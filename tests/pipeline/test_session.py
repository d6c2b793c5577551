"""Where what Spark says goes; what it is told by default."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.pipeline.session import LOGS_MAX, errors_to, log_file

SAYS = "import os; os.write(2, b'noise'); os.write(1, b'said')"


def test_what_a_process_that_is_started_meanwhile_says_is_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As long as it lives; what it prints on purpose is shown, and so is what we say."""
    log = tmp_path / "logs" / "spark.log"
    with errors_to(log):
        started = subprocess.Popen([sys.executable, "-c", SAYS])
    sys.stderr.write("ours")
    sys.stderr.flush()
    assert started.wait() == 0
    assert log.read_text() == "noise"
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("said", "ours")


def test_logs_of_the_oldest_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = log_file("orders").parent
    place.mkdir(parents=True)
    for day in range(10, 10 + LOGS_MAX + 5):
        (place / f"orders-202601{day}T000000-1.log").touch()
    (place / "orders-eu-20260101T000000-1.log").touch()
    log_file("orders").touch()
    left = sorted(path.name for path in place.glob("orders-2*.log"))
    assert len(left) == LOGS_MAX
    assert left[0] == "orders-20260116T000000-1.log"
    assert (place / "orders-eu-20260101T000000-1.log").exists()
