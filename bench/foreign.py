"""amqp091-go's own tests, as Debian packages them, on a node of ours and on RabbitMQ where that is
installed: ``python -m bench.foreign --rounds 3``.

Every test that needs a broker is run, unpatched: also those that are for RabbitMQ alone, by the
name that the broker gives itself.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.rabbitmq import RABBITMQ, rabbitmq
from braidmq.testing.live import live_node

PACKAGES = Path("/usr/share/gocode")
LIBRARY = Path("src/github.com/rabbitmq/amqp091-go")
NEEDED = "golang-go", "golang-github-rabbitmq-amqp091-go-dev"
ROUND_S_MAX = 300


@contextmanager
def braidmq(root: Path) -> Iterator[str]:
    with live_node(root) as node:
        yield f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"


Broker = Callable[[Path], AbstractContextManager[str]]
BROKERS: dict[str, Broker] = {"BraidMQ": braidmq, "RabbitMQ": rabbitmq}


def build(root: Path) -> Path:
    """The library's tests."""
    library = root / LIBRARY
    shutil.copytree(PACKAGES / LIBRARY, library)
    settings = {
        "GO111MODULE": "off",
        "GOPATH": f"{root}:{PACKAGES}",
        "GOCACHE": str(root.parent / "cache"),
    }
    program = root / "tests"
    subprocess.run(
        ["go", "test", "-c", "-tags", "integration", "-o", str(program), "."],
        cwd=library,
        env=os.environ | settings,
        check=True,
    )
    return program


def with_a_broker() -> list[str]:
    """The names of tests that need one: the others have one of their own, and strict clocks."""
    sources = (path.read_text() for path in sorted((PACKAGES / LIBRARY).glob("*_test.go")))
    return [
        name
        for source in sources
        if "build integration" in source or "AMQP_URL" in source
        for name in re.findall(r"^func ((?:Test|Example)\w+)\(", source, re.MULTILINE)
        if name != "TestMain"
    ]


def failures(program: Path, url: str, names: list[str]) -> list[str]:
    """What failed in one round, with what was said of it on standard output."""
    done = subprocess.run(
        [str(program), "-test.v", "-test.run", f"^({'|'.join(names)})$"],
        env=os.environ | {"AMQP_URL": url},
        capture_output=True,
        text=True,
        timeout=ROUND_S_MAX,
    )
    if not done.returncode:
        return []
    print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", flush=True)
    return re.findall(r"^--- FAIL: (\w+)", done.stdout, re.MULTILINE) or ["the run as a whole"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not shutil.which("go") or not (PACKAGES / LIBRARY).exists():
        sys.exit(f"needed: apt-get install {' '.join(NEEDED)}")
    names = with_a_broker()
    failed: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder) / "built")
        for product, broker in BROKERS.items():
            if broker is rabbitmq and not RABBITMQ.exists():
                print("RabbitMQ is not installed: nothing to compare with")
                continue
            failed[product] = Counter()
            with broker(Path(folder) / f"{product}-data") as url:
                for _ in range(rounds):
                    failed[product].update(failures(program, url, names))
            found = ", ".join(f"{name} ({count})" for name, count in failed[product].items())
            print(f"{product}: {len(names)} tests, {rounds} rounds: failed: {found or 'none'}")
    return 1 if failed["BraidMQ"] else 0


if __name__ == "__main__":
    sys.exit(main())
