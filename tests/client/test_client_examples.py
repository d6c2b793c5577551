"""The programs of examples/ that stand on the client: short, strictly typed, and they do what they
say."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
LINES_MAX = 39
PRINTED = {
    "worker": [
        "letter failed: the printer is not ready yet",
        "broken failed: this can never work",
        "letter failed: the printer is not ready yet",
        "printed letter at try 3",
        "given up: broken ValueError: this can never work",
    ],
    "fan_out": [
        *(f"{sale} went to 3 queues" for sale in ("tea", "coffee", "cake")),
        *(
            f"{name} saw {sale}"
            for name in ("stock", "screen 1", "screen 2")
            for sale in ("tea", "coffee", "cake")
        ),
    ],
    "exactly_once": [f"{euros}.00 €" for euros in range(1, 11)],
}


def test_they_are_all_there_and_the_pages_link_them():
    assert {each.stem for each in PROGRAMS} == set(PRINTED)
    page = (ROOT / "docs" / "client.md").read_text()
    for each in PROGRAMS:
        assert f"](../examples/{each.name})" in page
        assert f"`{each.name}`" in (ROOT / "examples" / "README.md").read_text()
        assert len(each.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_what_it_is_for(node: LiveNode, program: Path):
    address = f"amqp://127.0.0.1:{node.ports['amqp_port']}/?http={node.ports['http_port']}"
    ran = subprocess.run(
        [sys.executable, "-W", "error", program, address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.splitlines(), ran.stderr) == (PRINTED[program.stem], "")


def test_strict_types():
    """All in one run, which looks at the client as a user's mypy does."""
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *PROGRAMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
