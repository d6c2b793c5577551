"""This installation beside another one of BraidMQ: ``OTHER_PYTHON=… python -m bench.revisions``.

``OTHER_PYTHON`` is the other one's Python: that of a virtual environment, or a script that sets
``PYTHONPATH`` and goes on with one. Both nodes are up at once and take turns under load. For "does
it cost anything" questions: the other is the revision before, or this one without the code in
question. ``OTHER_REVISION`` is what it is called in the report.

Paced rows have no bar: latency at a low rate differs where the promise does, and is stated.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from bench import amqp, mqtt
from bench.beside import Rivalry, cpu, rate
from bench.harness import Benchmark, Context, Measure, at_least, main
from braidmq.testing.live import PORT_FLAGS, live_node

NOTHING_MEASURABLE = 0.97
OTHER = os.environ.get("OTHER_REVISION", "the other")


@contextmanager
def node(port: str, url: str, python: str, root: Path) -> Iterator[str]:
    """A node of one installation with one listener; ``url`` has a place for its port."""
    others = {flag: 0 for flag in PORT_FLAGS if flag != port}
    with live_node(root, python, **others) as live:
        yield url.format(live.ports[port])
        live.stop()
    shutil.rmtree(root, ignore_errors=True)


def other(port: str, url: str, root: Path) -> AbstractContextManager[str]:
    return node(port, url, os.environ["OTHER_PYTHON"], root)


AMQP = Rivalry(
    {
        "this": amqp.braidmq,
        OTHER: partial(other, "amqp_port", "amqp://guest:guest@127.0.0.1:{}/"),
    },
    amqp.one_run,
)
MQTT = Rivalry(
    {"this": mqtt.braidmq, OTHER: partial(other, "mqtt_port", "mqtt://127.0.0.1:{}")},
    mqtt.one_run,
)


def throughput(rivalry: Rivalry, workload: str, context: Context) -> Iterator[Measure]:
    found = rivalry.alternated(workload, context)
    bar = at_least(NOTHING_MEASURABLE)
    yield rivalry.compared(f"{workload} deliveries", "msg/s", found, rate, bar)
    yield rivalry.compared(f"{workload} broker processor time", "µs/msg", found, cpu)


def paced(rivalry: Rivalry, workload: str, context: Context) -> Iterator[Measure]:
    found = rivalry.alternated(workload, context)
    confirms = workload != "paced0"
    yield from rivalry.latencies(workload, found, confirms=confirms)
    yield rivalry.processor_time(workload, found)


MQTT_RATES = (
    "qos0", "qos1", "qos1-clean", "qos2", "qos2-clean", "fan-out", "fan-in", "fan-in-20",
)  # fmt: skip

BENCHMARKS: dict[str, Benchmark] = {
    **{name: partial(throughput, AMQP, name) for name in ("A", "D3")},
    **{name: partial(throughput, MQTT, name) for name in MQTT_RATES},
    **{name: partial(paced, MQTT, name) for name in ("paced0", "paced1", "paced1-clean")},
}


if __name__ == "__main__":
    main("revisions", BENCHMARKS)
