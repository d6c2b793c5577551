"""BraidMQ beside RabbitMQ: ``python -m bench.amqp``.

Both run on this machine at once, on ports and data of their own; only one is under load at a time,
in turns. What each promises differs and stands beside each figure: see ``PROMISES``.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.beside import Results, Rivalry, rate
from bench.harness import Bar, Benchmark, Context, Measure, at_least, at_most, main
from bench.rabbitmq import rabbitmq
from braidmq.loadgen.amqp import run
from braidmq.loadgen.amqp_workloads import WORKLOADS
from braidmq.loadgen.result import Result
from braidmq.testing.live import live_node

PROMISES = {
    "persistent": "a confirm here: fdatasync of the message; there: synced in larger, rarer groups,"
    " or acknowledged by its consumer first",
    "transient": "neither promises anything after a crash",
}


# --- the brokers ---


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
