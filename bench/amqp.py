"""BraidMQ beside RabbitMQ: ``python -m bench.amqp``.

Both run on this machine at once, on ports and data of their own; only one is under load at a time,
in turns. What each promises differs and stands beside each figure: see ``PROMISES``.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.beside import Results, Rivalry, install, rate, stop_session
from bench.harness import Bar, Benchmark, Context, Measure, at_least, at_most, main
from braidmq.client.address import parse_address
from braidmq.loadgen.amqp import run
from braidmq.loadgen.amqp_client import Client
from braidmq.loadgen.amqp_workloads import WORKLOADS
from braidmq.loadgen.result import Result
from braidmq.model.errors import BraidError
from braidmq.testing.live import free_ports, live_node

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S_MAX = 60.0

PROMISES = {
    "persistent": "a confirm here: fdatasync of the message; there: synced in larger, rarer groups,"
    " or acknowledged by its consumer first",
    "transient": "neither promises anything after a crash",
}


# --- the brokers ---


@contextmanager
def rabbitmq(root: Path) -> Iterator[str]:
    """A node of its own: name, ports, cookie, data, and a port mapper that ends with it."""
    install(RABBITMQ, "rabbitmq-server")
    port, distribution, mapper = free_ports(3)
    (root / "home").mkdir(parents=True)
    (root / "plugins").write_text("[].\n")
    settings = {
        "HOME": root / "home",
        "ERL_EPMD_PORT": mapper,
        "RABBITMQ_NODENAME": "braidbench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_MNESIA_BASE": root / "mnesia",
        "RABBITMQ_LOG_BASE": root / "log",
        "RABBITMQ_CONFIG_FILE": root / "none",
        "RABBITMQ_ENABLED_PLUGINS_FILE": root / "plugins",
        "RABBITMQ_PID_FILE": root / "pid",
    }
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    log = (root / "output").open("wb")
    process = subprocess.Popen(
        [str(RABBITMQ)], env=environment, stdout=log, stderr=log, start_new_session=True
    )
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    try:
        _wait_until_up(url, process)
        yield url
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


@contextmanager
def braidmq(root: Path) -> Iterator[str]:
    with live_node(root, mqtt_port=0, ws_port=0, http_port=0) as node:
        yield f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
        node.stop()
    shutil.rmtree(root, ignore_errors=True)


def one_run(workload: str, url: str, seconds: float) -> Result:
    return run(WORKLOADS[workload], url, seconds)


RIVALRY = Rivalry({"BraidMQ": braidmq, "RabbitMQ": rabbitmq}, one_run)


# --- figures ---


def latencies(workload: str, found: Results, bar: Bar | None = None) -> Iterator[Measure]:
    confirms = bool(WORKLOADS[workload].window)
    note = PROMISES["persistent"]
    yield from RIVALRY.latencies(workload, found, bar, confirms=confirms, note=note)


def throughput(
    workload: str, context: Context, *, bar: Bar | None = None, cpu_bar: Bar | None = None
) -> Iterator[Measure]:
    found = RIVALRY.alternated(workload, context)
    promise = PROMISES["persistent" if WORKLOADS[workload].persistent else "transient"]
    yield from RIVALRY.throughput(workload, found, promise, bar, cpu_bar)
    yield from latencies(workload, found)


def paced(workload: str, context: Context, *, bar: Bar | None = None) -> Iterator[Measure]:
    found = RIVALRY.alternated(workload, context)
    yield from latencies(workload, found, bar)
    yield RIVALRY.processor_time(workload, found)


def rss_mib(result: Result) -> float:
    assert result.broker_rss_bytes, "the broker is on this machine"
    return result.broker_rss_bytes / 2**20


def backlog(context: Context) -> Iterator[Measure]:
    found = RIVALRY.alternated("backlog", context, fresh=True)
    note, more, compared = PROMISES["persistent"], at_least(1), RIVALRY.compared
    yield compared("backlog publish", "msg/s", found, lambda each: each.publish_rate, more, note)
    yield compared("backlog drain", "msg/s", found, rate, more)
    yield compared(
        "backlog memory, 1 M queued",
        "MiB",
        found,
        rss_mib,
        at_most(1),
    )


BENCHMARKS: dict[str, Benchmark] = {
    "A": partial(throughput, "A", bar=at_least(20), cpu_bar=at_most(1 / 20)),
    "B": partial(throughput, "B", bar=at_least(25)),
    "E": partial(throughput, "E", bar=at_least(12)),
    "C": partial(paced, "C", bar=at_most(1)),
    "D1": partial(paced, "D1"),
    "D2": partial(paced, "D2", bar=at_most(1)),
    "D3": partial(throughput, "D3", bar=at_least(3)),
    "topic": partial(throughput, "topic", bar=at_least(15)),
    "topic-1": partial(throughput, "topic-1"),
    "backlog": backlog,
}


if __name__ == "__main__":
    main("amqp", BENCHMARKS)
