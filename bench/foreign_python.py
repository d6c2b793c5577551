"""kombu's, py-amqp's and Celery's own tests with a broker, unpatched from their source packages, on
a node of ours and on RabbitMQ: ``python -m bench.foreign_python``.

Of Celery those that need no Redis: results come back over ``rpc``. What fails on both is the
suite's own business, on this machine; it exits with 1 for what fails on ours alone.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.foreign import BROKERS

CACHE = Path.home() / ".cache" / "braidmq" / "sources"
SUITE_S_MAX = 1800
TEST_S_MAX = 60


@dataclass(frozen=True)
class Suite:
    package: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()


SUITES = (
    Suite("kombu", ("test_py_amqp.py",)),
    Suite("amqp", ("test_rmq.py",), ("-k", "not tls")),
    Suite(
        "celery",
        ("test_tasks.py", "test_inspect.py", "test_loader.py"),
        ("-p", "celery.contrib.pytest"),
    ),
)


def source_of(package: str) -> Path:
    """The source package of the version that is installed here, unpacked once on a machine."""
    python, version = sys.executable, importlib.metadata.version(package)
    folder = CACHE / f"{package}-{version}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as at:
            pip = [python, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
            wanted = ["--no-deps", "--no-binary", ":all:", "-d", at, f"{package}=={version}"]
            subprocess.run([*pip, *wanted], check=True)
            (archive,) = Path(at).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(CACHE, filter="data")
    return folder


def failures(suite: Suite, url: str) -> tuple[set[str], str]:
    """Which tests failed, and what pytest says in the end."""
    port = str(urlsplit(url).port)
    where = {
        "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_5672_TCP": port,
        "TEST_BROKER": f"pyamqp://guest:guest@127.0.0.1:{port}//",
        "TEST_BACKEND": "rpc://",
    }
    tests = [f"t/integration/{name}" for name in suite.tests]
    flags = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *suite.options, *tests],
        cwd=source_of(suite.package),
        env=os.environ | where,
        capture_output=True,
        text=True,
        timeout=SUITE_S_MAX,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return set(failed), done.stdout.strip().splitlines()[-1]


def main() -> int:
    ours: dict[str, set[str]] = {}
    theirs: dict[str, set[str]] = {}
    for product, broker in BROKERS.items():
        with tempfile.TemporaryDirectory() as folder, broker(Path(folder) / "data") as url:
            for suite in SUITES:
                failed, summary = failures(suite, url)
                (ours if product == "BraidMQ" else theirs)[suite.package] = failed
                print(f"{product}: {suite.package}: {summary}", flush=True)
                print("".join(f"    {name}\n" for name in sorted(failed)), end="", flush=True)
    return int(any(failed - theirs.get(name, set()) for name, failed in ours.items()))


if __name__ == "__main__":
    sys.exit(main())
