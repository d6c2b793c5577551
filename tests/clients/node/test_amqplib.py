"""amqplib on Node: each case of ``amqplib_cases.js`` in a process of its own."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode

HERE = Path(__file__).parent
SCRIPT = HERE / "amqplib_cases.js"
WAIT_S = 30
CASES = re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def amqplib() -> None:
    """Installed by npm into ``node_modules`` when the pinned version is not there yet."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are needed")
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["amqplib"]
    installed = HERE / "node_modules" / "amqplib" / "package.json"
    if installed.exists() and json.loads(installed.read_text())["version"] == wanted:
        return
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")


@pytest.mark.parametrize("case", CASES)
def test_amqplib(node: LiveNode, name: str, case: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}"
    done = subprocess.run(
        ["node", str(SCRIPT), url, case, name], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
