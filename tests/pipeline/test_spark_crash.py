"""The crash script, short, and a cluster of separate executors: in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "spark_crash.py"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("master", "kills"), [("local[2]", 1), ("local-cluster[2,1,1024]", 0)])
def test_every_message_comes_through_once(master: str, kills: int) -> None:
    """With kills of driver, executors and broker; and without, on executors of their own."""
    command = [sys.executable, str(SCRIPT), "--messages", "6000", "--kills", str(kills)]
    command += ["--per-batch", "1000", "--pause", "1", "--master", master, "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("once")
