"""BraidMQ beside RabbitMQ: ``python -m bench.amqp``.

Both run on this machine at once, on ports and data of their own; only one is under load at a time,
in turns. What each promises differs and stands beside each figure: see ``PROMISES``.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Bar, Benchmark, Context, Measure, at_least, at_most, main, paired_ratio
from braidmq.client.address import parse_address
from braidmq.loadgen.amqp import run
from braidmq.loadgen.amqp_client import Client
from braidmq.loadgen.amqp_workloads import WORKLOADS
from braidmq.loadgen.result import Latency, Result
from braidmq.model.errors import BraidError
from braidmq.testing.live import free_ports, live_node

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S_MAX = 60.0
STOP_S_MAX = 30.0
ROUNDS = 5
OURS, THEIRS = "BraidMQ", "RabbitMQ"

PROMISES = {
    "persistent": "a confirm here: fdatasync of the message; there: synced in larger, rarer groups,"
    " or acknowledged by its consumer first",
    "transient": "neither promises anything after a crash",
}

Results = dict[str, list[Result]]
Reading = Callable[[Result], float]


# --- the brokers ---


def install_rabbitmq() -> None:
    if RABBITMQ.exists():
        return
    print("… installing rabbitmq-server", file=sys.stderr, flush=True)
    # Runlevel 1: the package starts its service otherwise, on the default port.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet, stdout=sys.stderr)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server"],
        check=True,
        env=quiet,
        stdout=sys.stderr,
    )


@contextmanager
def rabbitmq(root: Path) -> Iterator[str]:
    """A node of its own: name, ports, cookie, data, and a port mapper that ends with it."""
    install_rabbitmq()
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
        _stop(process)
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


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole session that was started for it: a shell, and Erlang's machine below."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            process.wait(STOP_S_MAX)
        return


@contextmanager
def braidmq(root: Path) -> Iterator[str]:
    with live_node(root, mqtt_port=0, ws_port=0, http_port=0) as node:
        yield f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
        node.stop()


@contextmanager
def both(root: Path) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {
            OURS: stack.enter_context(braidmq(root / "braidmq")),
            THEIRS: stack.enter_context(rabbitmq(root / "rabbitmq")),
        }
    shutil.rmtree(root, ignore_errors=True)


# --- runs ---


def one_run(workload: str, url: str, seconds: float) -> Result:
    result = run(WORKLOADS[workload], url, seconds)
    assert result.exactly_once, f"{workload} on {result.broker}: {result.as_dict()}"
    print(
        f"    {workload} {result.broker}: {result.rate:,.0f} msg/s,"
        f" {result.cpu_us_per_message or 0:.2f} µs, generator {result.generator_busy:.2f}",
        file=sys.stderr,
        flush=True,
    )
    return result


def alternated(workload: str, context: Context, *, fresh: bool = False) -> Results:
    """One run on each side a round, taking turns at being first."""
    seconds = 1.5 if context.quick else 5.0
    found: Results = {OURS: [], THEIRS: []}
    rounds = context.rounds(ROUNDS, 1 if fresh else 2)
    with ExitStack() as stack:
        urls = {} if fresh else stack.enter_context(both(context.directory()))
        for number in range(rounds):
            with ExitStack() as of_round:
                here = urls or of_round.enter_context(both(context.directory()))
                order = [OURS, THEIRS] if number % 2 else [THEIRS, OURS]
                for name in order:
                    found[name].append(one_run(workload, here[name], seconds))
    return found


# --- figures ---


def compared(
    name: str, unit: str, found: Results, reading: Reading, bar: Bar | None = None, note: str = ""
) -> Measure:
    ours, theirs = ([reading(each) for each in found[side]] for side in (OURS, THEIRS))
    return Measure(
        name,
        statistics.median(ours),
        unit,
        bar,
        ratio=paired_ratio(ours, [max(each, 1e-9) for each in theirs]),
        baseline=statistics.median(theirs),
        against=THEIRS,
        note=note,
    )


def rate(result: Result) -> float:
    return result.rate


def cpu(result: Result) -> float:
    assert result.cpu_us_per_message is not None, "the broker is on this machine"
    return result.cpu_us_per_message


def end_to_end(percentile: str, result: Result) -> float:
    return _at(result.end_to_end_ms, percentile)


def confirm(percentile: str, result: Result) -> float:
    return _at(result.confirm_ms, percentile)


def _at(latency: Latency | None, percentile: str) -> float:
    assert latency is not None, "nothing was measured"
    return float(getattr(latency, percentile))


def latencies(workload: str, found: Results, bar: Bar | None = None) -> Iterator[Measure]:
    for percentile in ("p50", "p99"):
        reading = partial(end_to_end, percentile)
        yield compared(f"{workload} end to end {percentile}", "ms", found, reading, bar)
    if WORKLOADS[workload].window:
        for percentile in ("p50", "p99"):
            reading = partial(confirm, percentile)
            yield compared(
                f"{workload} confirm {percentile}",
                "ms",
                found,
                reading,
                note=PROMISES["persistent"],
            )


def throughput(
    workload: str, context: Context, *, bar: Bar | None = None, cpu_bar: Bar | None = None
) -> Iterator[Measure]:
    found = alternated(workload, context)
    kind = "persistent" if WORKLOADS[workload].persistent else "transient"
    busy = statistics.median(each.generator_busy for each in found[OURS])
    note = f"{PROMISES[kind]}; generator {busy:.2f} of a core"
    yield compared(f"{workload} deliveries", "msg/s", found, rate, bar, note)
    yield compared(f"{workload} broker processor time", "µs/msg", found, cpu, cpu_bar)
    yield from latencies(workload, found)


def paced(workload: str, context: Context, *, bar: Bar | None = None) -> Iterator[Measure]:
    found = alternated(workload, context)
    yield from latencies(workload, found, bar)
    yield compared(f"{workload} broker processor time", "µs/msg", found, cpu)


def backlog(context: Context) -> Iterator[Measure]:
    found = alternated("backlog", context, fresh=True)
    note = PROMISES["persistent"]
    more = at_least(1)
    yield compared("backlog publish", "msg/s", found, lambda each: each.publish_rate, more, note)
    yield compared("backlog drain", "msg/s", found, rate, more)
    yield compared(
        "backlog memory, 1 M queued",
        "MiB",
        found,
        lambda each: (each.broker_rss_bytes or 0) / 2**20,
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
