"""Clients from the npm registry, installed once for all tests of this folder."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _is_installed(name: str, version: str) -> bool:
    found = HERE / "node_modules" / name / "package.json"
    return found.exists() and json.loads(found.read_text())["version"] == version


@pytest.fixture(scope="session")
def node_packages() -> Path:
    """``node_modules``, filled by npm when a pinned version is not there yet."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are needed")
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    with (HERE / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other files may be at it
        if not all(_is_installed(*each) for each in wanted.items()):
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=100)
            if done.returncode:
                pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return HERE / "node_modules"
