"""Limits: what they cost unused, and what a client that is too fast does to another:
``python -m bench.rates``.

Unused: two nodes of this installation, one whose limits hold for this machine and are far away, one
without any, under load in turns. Flood: one node; a client at a steady rate, alone and beside one
that publishes as fast as the node reads it, in turns.
"""

import shutil
import socket
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench import amqp, mqtt
from bench.beside import Rivalry, cpu, rate
from bench.harness import Benchmark, Context, Measure, at_least, at_most, main, paired_ratio
from braidmq.loadgen.mqtt import run
from braidmq.loadgen.mqtt_workloads import WORKLOADS
from braidmq.testing.live import PORT_FLAGS, live_node

FAR = 1_000_000_000
UNUSED = 0.98
ROUNDS = 7
SECONDS = 5.0

LIMITED = """
[rates]
limit_loopback = true
connections_per_min = 0
subscriptions_per_s = 0
messages_per_s = {rate}
messages_burst = {burst}
bytes_per_s = {size}
bytes_burst = {size}
"""


@contextmanager
def limited(port: str, url: str, root: Path) -> Iterator[str]:
    root.mkdir(parents=True)
    config = root / "braid.toml"
    config.write_text(LIMITED.format(rate=FAR, burst=FAR, size=FAR))
    others = {flag: 0 for flag in PORT_FLAGS if flag != port}
    with live_node(root / "data", config=config, **others) as node:
        yield url.format(node.ports[port])
        node.stop()
    shutil.rmtree(root, ignore_errors=True)


AMQP = Rivalry(
    {
        "limits on": partial(limited, "amqp_port", "amqp://guest:guest@127.0.0.1:{}/"),
        "limits off": amqp.braidmq,
    },
    amqp.one_run,
)
MQTT = Rivalry(
    {
        "limits on": partial(limited, "mqtt_port", "mqtt://127.0.0.1:{}"),
        "limits off": mqtt.braidmq,
    },
    mqtt.one_run,
)


def unused(rivalry: Rivalry, workload: str, context: Context) -> Iterator[Measure]:
    found = rivalry.alternated(workload, context)
    bar = at_least(UNUSED)
    yield rivalry.compared(f"{workload} deliveries, limits unused", "msg/s", found, rate, bar)
    yield rivalry.compared(f"{workload} broker processor time", "µs/msg", found, cpu)


# --- a flood ---


def connected(port: int, name: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(
        b"\x10" + bytes([12 + len(name)]) + b"\0\4MQTT\4\2\0\0\0" + bytes([len(name)]) + name
    )
    assert link.recv(4) == b"\x20\2\0\0"
    return link


def flood(port: int) -> None:
    """As fast as it is read, until it is ended."""
    link = connected(port, b"flood")
    publishes = (b"\x30\x83\1\0\1f" + bytes(128)) * 500
    while True:
        link.sendall(publishes)


def beside_a_flood(context: Context) -> Iterator[Measure]:
    """The steady one sends 2000 messages a second of the 4000 that each may."""
    root = context.root / "flooded"
    root.mkdir(parents=True)
    config = root / "braid.toml"
    config.write_text(LIMITED.format(rate=4000, burst=1000, size=FAR))
    seconds = 1.0 if context.quick else SECONDS
    alone: list[float] = []
    flooded: list[float] = []
    with live_node(root / "data", config=config, amqp_port=0, ws_port=0, http_port=0) as node:
        port = node.ports["mqtt_port"]
        for turn in range(2 if context.quick else ROUNDS):
            for with_flood in (turn % 2 == 0, turn % 2 == 1):
                process = get_context("spawn").Process(target=flood, args=(port,), daemon=True)
                if with_flood:
                    process.start()
                found = run(WORKLOADS["paced1-clean"], f"mqtt://127.0.0.1:{port}", seconds)
                assert found.end_to_end_ms is not None
                (flooded if with_flood else alone).append(found.end_to_end_ms.p99)
                if with_flood:
                    assert process.is_alive(), "the flood was over before its time"
                    process.kill()
                    process.join()
        node.stop()
    yield Measure(
        "p99 of a steady client beside a flood",
        statistics.median(flooded),
        "ms",
        at_most(1.5),
        ratio=paired_ratio(flooded, alone),
        baseline=statistics.median(alone),
        against="alone",
    )


BENCHMARKS: dict[str, Benchmark] = {
    "A": partial(unused, AMQP, "A"),
    "D3": partial(unused, AMQP, "D3"),
    "qos1-clean": partial(unused, MQTT, "qos1-clean"),
    "flood": beside_a_flood,
}

if __name__ == "__main__":
    main("rates", BENCHMARKS)
