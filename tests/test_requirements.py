"""A node runs with what pyproject.toml says it needs, and no more."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

EXTRAS = ("pyarrow", "pyspark", "pandas", "numpy", "deltalake", "pytest", "hypothesis", "httpx")
TOOLS = ("Cython", "mypyc", "setuptools")
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS + TOOLS}))"


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{BLOCKED}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_node_command_line_and_client_need_no_extra() -> None:
    done = run("import braidmq.server, braidmq.cli.app, braidmq.cli.pipeline\nbraidmq.connect")
    assert done.returncode == 0, done.stderr


def test_reading_segments_in_bulk_says_which_extra_it_needs() -> None:
    done = run("import braidmq.storage.reader")
    assert "ArrowMissing" in done.stderr
    assert "pip install 'braidmq[arrow]'" in done.stderr


def test_pipelines_and_development_include_arrow() -> None:
    extras = PROJECT["optional-dependencies"]
    [arrow] = extras["arrow"]
    assert arrow in extras["spark"]
    assert arrow in extras["dev"]
    assert not [each for each in PROJECT["dependencies"] if re.match("pyarrow", each)]
