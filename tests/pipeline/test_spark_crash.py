"""The crash script, short: executors, driver and broker in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "spark_crash.py"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


def test_every_message_comes_through_once() -> None:
    """To a topic and to a lake, by way of executors of their own; each kind of process is killed
    once, at a commit mostly."""
    command = [sys.executable, str(SCRIPT), "--messages", "4000", "--kills", "1", "--pause", "0.5"]
    command += ["--per-batch", "500", "--master", "local-cluster[2,1,1024]", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("once")
