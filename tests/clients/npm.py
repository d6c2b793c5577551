"""Packages from the npm registry, installed beside the ``package.json`` that pins them."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest


def _is_installed(folder: Path, name: str, version: str) -> bool:
    found = folder / "node_modules" / name / "package.json"
    return found.exists() and json.loads(found.read_text())["version"] == version


def installed(folder: Path) -> Path:
    """``node_modules``, filled by npm when a pinned version is not there yet."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are needed")
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    with (folder / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other files may be at it
        if not all(_is_installed(folder, *each) for each in wanted.items()):
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
            if done.returncode:
                pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return folder / "node_modules"
