"""amqplib on Node: each case of ``amqplib_cases.js`` in a process of its own."""

import re
import subprocess
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode

SCRIPT = Path(__file__).with_name("amqplib_cases.js")
WAIT_S = 30
CASES = re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE)

pytestmark = pytest.mark.usefixtures("node_packages")


cases = pytest.mark.parametrize("case", CASES)


def run(port: int, case: str, name: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    command = ["node", str(SCRIPT), url, case, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr


@cases
def test_amqplib(node: LiveNode, name: str, case: str) -> None:
    run(node.ports["amqp_port"], case, name)


@cases
@pytest.mark.rabbitmq
def test_amqplib_on_rabbitmq(rabbitmq_port: int, name: str, case: str) -> None:
    run(rabbitmq_port, case, name)
