"""A SUBSCRIBE to very many retained messages, and what others notice of it.

    python -m bench.retained [--messages 100000] [--filters 20 200] [--seconds 10]

One client subscribes with so many filters in one packet, each of which matches all of them, and
reads as fast as it can. Another publishes at QoS 1, one message after the other, and its answers
are timed: the bar is a p99 of 250 ms.
"""

import argparse
import sys
import tempfile
import threading
import time
from itertools import product
from pathlib import Path

from braidmq.loadgen.arrivals import Histogram
from braidmq.loadgen.mqtt_client import MqttClient, parse_mqtt_address
from braidmq.loadgen.mqtt_load import Publisher
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import PingReq, Publish, Request, Subscribe, encode

P99_MS_MAX = 250.0
LEVELS = "abcdefg"


def retain(node: LiveNode, count: int) -> None:
    client = connect(node, "filler")
    for first in range(0, count, 1000):
        packets = [
            Publish(f"{'/'.join(LEVELS)}/{n % 100}/{n}", b"x" * 64, retain=True)
            for n in range(first, min(first + 1000, count))
        ]
        client.socket.sendall(b"".join(encode(each, Version.V3_1_1) for each in packets))
    client.socket.sendall(encode(PingReq(), Version.V3_1_1))
    while not client.receive(None, None):
        pass
    client.close()


def connect(node: LiveNode, name: str) -> MqttClient:
    address = parse_mqtt_address(f"mqtt://127.0.0.1:{node.ports['mqtt_port']}")
    return MqttClient(address, name, Version.V3_1_1)


def attack(node: LiveNode, filters: int, over: threading.Event, received: list[int]) -> None:
    client = connect(node, f"attacker-{filters}")
    # All different: the same filter again would begin again.
    heads = product(*[(level, "+") for level in LEVELS])
    patterns = ["/".join((*head, tail)) for head in heads for tail in ("#", "+/#", "+/+")]
    requests = tuple(Request(each, 0) for each in patterns[:filters])
    client.socket.sendall(encode(Subscribe(1, requests), Version.V3_1_1))
    client.socket.settimeout(1.0)
    while not over.is_set():
        try:
            received[0] += len(client.socket.recv(1 << 20))
        except TimeoutError:
            continue
    client.socket.close()


def probe(node: LiveNode, seconds: float) -> Histogram:
    latency = Histogram()
    client = connect(node, "probe")
    publisher = Publisher(b"$probe/alone", 1, Version.V3_1_1, 64, 1, 0, 1, latency)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        client.socket.sendall(publisher.render(1, time.perf_counter_ns()))
        while publisher.outstanding:
            client.receive(publisher, None)
    client.close()
    return latency


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--filters", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--python", default=sys.executable, help="of the installation to test")
    given = parser.parse_args()
    bad = False
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        live_node(Path(directory), given.python) as node,
    ):
        retain(node, given.messages)
        quiet = probe(node, 2.0)
        print(f"alone: p50 {quiet.percentile(50) / 1e6:.2f} ms, max {quiet.max_ns / 1e6:.1f} ms")
        for filters in given.filters:
            over, received = threading.Event(), [0]
            work = threading.Thread(target=attack, args=(node, filters, over, received))
            work.start()
            latency = probe(node, given.seconds)
            over.set()
            work.join()
            p99_ms = latency.percentile(99) / 1e6
            bad |= p99_ms > P99_MS_MAX
            print(
                f"{filters} filters, {received[0] / 1e6:.0f} MB sent meanwhile: "
                f"{latency.total} publishes, p50 {latency.percentile(50) / 1e6:.2f} ms, "
                f"p99 {p99_ms:.1f} ms, max {latency.max_ns / 1e6:.1f} ms",
                flush=True,
            )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
