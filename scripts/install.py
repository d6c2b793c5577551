"""Installs what the package needs into this environment, and says so: ``install.py [EXTRA …]``.

Without an extra that is what it takes to build and run it. pip is heard only when it fails.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]


def requirements(extras: list[str]) -> list[str]:
    declared = tomllib.loads(Path("pyproject.toml").read_text())
    project = declared["project"]
    needed = [*declared["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        needed += project["optional-dependencies"][extra]
    return list(dict.fromkeys(needed))


def is_installed(requirement: str) -> bool:
    """Some version of it; which one is for pip to judge."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    try:
        distribution(name[0])
    except PackageNotFoundError:
        return False
    return True


def main(extras: list[str]) -> int:
    needed = requirements(extras)
    missing = [each for each in needed if not is_installed(each)]
    doing = f"installing {len(missing)}" if missing else f"checking {len(needed)}"
    print(f"{doing} packages and what they need …", flush=True)
    # Python compiles what it imports; most of what is installed it never does.
    return subprocess.run([*PIP, "install", "--no-compile", *needed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
