"""Every example of docs/client.md runs, in order, on one node, and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE.read_text())
ADDRESS = '"amqp://127.0.0.1"'

pytestmark = pytest.mark.timeout(60)


def test_there_are_examples():
    assert len(EXAMPLES) >= 7
    assert all(ADDRESS in code and printed for code, printed in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_it_says(node: LiveNode, number):
    code, printed = EXAMPLES[number]
    here = f'"braid://127.0.0.1:{node.ports["amqp_port"]}/?http={node.ports["http_port"]}"'
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(ADDRESS, here)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (ran.stdout, ran.stderr) == (printed, "")
