"""Other versions of packages than those we develop with, each in a folder of its own that is made
once on a machine."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "braidmq" / "packages"
INSTALL_S_MAX = 300


def installed(*requirements: str) -> Path:
    """A folder for ``PYTHONPATH``."""
    folder = CACHE / f"{sys.version_info.major}.{sys.version_info.minor}-{'-'.join(requirements)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(folder.suffix + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other processes may be at it
        if not folder.exists():
            part = folder.with_suffix(folder.suffix + ".part")
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
            done = subprocess.run(
                [*pip, "--upgrade", "--target", str(part), *requirements],
                capture_output=True,
                text=True,
                timeout=INSTALL_S_MAX,
            )
            if done.returncode:
                pytest.skip(f"pip can't install {' '.join(requirements)}: {done.stderr[-300:]}")
            part.rename(folder)
    return folder
