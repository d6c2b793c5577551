"""amqp091-go, as Debian packages it: each case of ``amqp091_cases.go`` in a process of its own."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode

SOURCE = Path(__file__).with_name("amqp091_cases.go")
PACKAGES = Path("/usr/share/gocode")
LIBRARY = PACKAGES / "src/github.com/rabbitmq/amqp091-go"
BUILD_S, WAIT_S = 120, 30
CASES = re.findall(r'^\t"(\w+)": ', SOURCE.read_text(), re.MULTILINE)

cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("go") or not LIBRARY.exists():
        pytest.skip(
            "go and amqp091-go are needed: "
            "apt-get install golang-go golang-github-rabbitmq-amqp091-go-dev"
        )
    folder = tmp_path_factory.mktemp("go")
    settings = {"GO111MODULE": "off", "GOPATH": str(PACKAGES), "GOCACHE": str(folder / "cache")}
    subprocess.run(
        ["go", "build", "-o", str(folder / "cases"), str(SOURCE)],
        env=os.environ | settings,
        check=True,
        timeout=BUILD_S,
    )
    return folder / "cases"


def run(program: Path, port: int, case: str, name: str) -> None:
    command = [str(program), f"amqp://guest:guest@127.0.0.1:{port}/", case, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr


@cases
def test_amqp091(node: LiveNode, program: Path, name: str, case: str) -> None:
    run(program, node.ports["amqp_port"], case, name)


@cases
@pytest.mark.rabbitmq
def test_amqp091_on_rabbitmq(rabbitmq_port: int, program: Path, name: str, case: str) -> None:
    run(program, rabbitmq_port, case, name)
