"""A RabbitMQ of one's own to compare with: ``python -m bench.rabbitmq COMMAND …``.

It runs the command beside a fresh node and tells it where that is, in ``PEER_RABBITMQ_PORT`` and
``PEER_RABBITMQ_CTL``. The exit code is the command's.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.beside import install, stop_session
from braidmq.client.address import parse_address
from braidmq.loadgen.amqp_client import Client
from braidmq.model.errors import BraidError
from braidmq.testing.live import free_ports

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
RABBITMQ = PROGRAMS / "rabbitmq-server"
NODE_NAME = "braidbench@localhost"
START_S_MAX = 60.0


@dataclass(frozen=True)
class Rabbitmq:
    port: int
    ctl: str
    """A command line that takes the arguments of rabbitmqctl."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"


@contextmanager
def rabbitmq(root: Path) -> Iterator[str]:
    with rabbitmq_node(root) as node:
        yield node.url


@contextmanager
def rabbitmq_node(root: Path, config: str = "") -> Iterator[Rabbitmq]:
    """A node of its own: name, ports, cookie, data, and a port mapper that ends with it."""
    install(RABBITMQ, "rabbitmq-server")
    port, distribution, mapper = free_ports(3)
    (root / "home").mkdir(parents=True)
    (root / "plugins").write_text("[].\n")
    (root / "rabbitmq.conf").write_text(config)
    settings = {
        "HOME": root / "home",
        "ERL_EPMD_PORT": mapper,
        "RABBITMQ_NODENAME": NODE_NAME,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_MNESIA_BASE": root / "mnesia",
        "RABBITMQ_LOG_BASE": root / "log",
        "RABBITMQ_CONFIG_FILE": root / "rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": root / "plugins",
        "RABBITMQ_PID_FILE": root / "pid",
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    ctl = shlex.join(["env", *words, str(PROGRAMS / "rabbitmqctl"), "-n", NODE_NAME])
    node = Rabbitmq(port, ctl)
    log = (root / "output").open("wb")
    process = subprocess.Popen(
        ["env", *words, str(RABBITMQ)], stdout=log, stderr=log, start_new_session=True
    )
    try:
        _wait_until_up(node.url, process)
        yield node
    finally:
        stop_session(process)
        log.close()
        # Daemons of Erlang's outlive the node; this one is ours, by its port.
        subprocess.run(["epmd", "-port", str(mapper), "-kill"], check=False, capture_output=True)


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            Client(parse_address(url)).close()
            return
        except BraidError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main(command: list[str]) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True) as root,
        rabbitmq_node(Path(root)) as node,
    ):
        where = {"PEER_RABBITMQ_PORT": str(node.port), "PEER_RABBITMQ_CTL": node.ctl}
        return subprocess.run(command, env=os.environ | where, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
