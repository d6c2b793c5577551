"""HTTP batch publishing beside AMQP's workload A, on one node, in turns."""

import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx

from bench.harness import Benchmark, Context, Measure, at_least, main, paired_ratio, percentile
from braidmq.loadgen.amqp import run
from braidmq.loadgen.amqp_workloads import WORKLOADS
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.testing.live import LiveNode, live_node

BATCH = 1000
BODY_BYTES = 128
CONNECTIONS = 4
"""As many requests under way: one is decoded while others wait for the disk."""

GUEST = ("guest", "guest")
END = b'"refused":[]}'


def request() -> bytes:
    body = json.dumps({"messages": [{"value": "x" * BODY_BYTES}] * BATCH}).encode()
    token = base64.b64encode(":".join(GUEST).encode()).decode()
    head = (
        "POST /v1/topics/bench/messages/batch HTTP/1.1\r\nHost: node\r\n"
        f"Authorization: Basic {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def publish_batches(node: LiveNode, seconds: float) -> tuple[float, float, list[float]]:
    """Messages a second, the node's CPU µs for each, and how long requests took, in ms."""
    sent, took = request(), list[float]()
    process = BrokerProcess(node.process.pid)
    with ExitStack() as stack:
        port = node.ports["http_port"]
        sockets = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            for _ in range(CONNECTIONS)
        ]
        cpu_s, began = process.cpu_s(), time.perf_counter()
        while time.perf_counter() - began < seconds:
            started = time.perf_counter()
            for each in sockets:
                each.sendall(sent)
            for each in sockets:
                _await_end(each)
                took.append((time.perf_counter() - started) * 1000)
        elapsed = time.perf_counter() - began
        messages = len(took) * BATCH
        return messages / elapsed, (process.cpu_s() - cpu_s) / messages * 1e6, took


def _await_end(connection: socket.socket) -> None:
    """What comes last says that none was refused; anything else is no answer we want."""
    data = b""
    while not data.endswith(END):
        chunk = connection.recv(65_536)
        assert chunk, f"the node hung up: {data!r}"
        data += chunk
        assert data.startswith(b"HTTP/1.1 201"), data


def batches(context: Context) -> Iterator[Measure]:
    seconds = 1.0 if context.quick else 5.0
    http, amqp, cpu, took = list[float](), list[float](), list[float](), list[float]()
    with live_node(context.directory(), mqtt_port=0, ws_port=0) as node:
        topic = {"settings": {"partitions": 1, "retention": {"bytes": 256 << 20}}}
        httpx.put(f"{node.http_url}/v1/topics/bench", json=topic, auth=GUEST).raise_for_status()
        for _ in range(context.rounds(5, 2)):
            url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
            amqp.append(run(WORKLOADS["A"], url, seconds).rate)
            rate, cpu_us, times = publish_batches(node, seconds)
            http.append(rate)
            cpu.append(cpu_us)
            took += times
    yield Measure(
        f"JSON batches of {BATCH} × {BODY_BYTES} B, confirmed",
        percentile(http, 50),
        "msg/s",
        at_least(0.2),
        paired_ratio(http, amqp),
        percentile(amqp, 50),
        "AMQP workload A",
        note="A also delivers and acknowledges; here nobody consumes",
    )
    yield Measure("the node's CPU for one message", percentile(cpu, 50), "µs")
    for percent in (50, 99):
        yield Measure(
            f"a request, p{percent}, {CONNECTIONS} at once", percentile(took, percent), "ms"
        )


BENCHMARKS: dict[str, Benchmark] = {"batches": batches}

if __name__ == "__main__":
    main("http", BENCHMARKS)
