"""Steady rates: ``make steady``, ``python -m bench.steady [--messages N] [--rate N …] [--only …]``.

Every case publishes its messages one by one at the rate, reconnects everybody in the middle, and
must get all of them, in order: QoS 1 and 2, kept and clean sessions, both versions, one to one and
four to four; AMQP and ``$queue``. It is no benchmark: latency is printed, and not judged.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import httpx

from braidmq.loadgen.steady import Steady, SteadyAmqp, SteadyMqtt, is_right
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version

VERSIONS = (Version.V3_1_1, Version.V5)
CASES = (
    *(
        Steady("mqtt", qos, version, kept, pairs)
        for qos in (1, 2)
        for kept in (True, False)
        for version in VERSIONS
        for pairs in (1, 4)
    ),
    *(Steady("queue", 1, version) for version in VERSIONS),
    *(Steady("amqp", pairs=pairs) for pairs in (1, 4)),
)


def run_case(node: LiveNode, case: Steady, messages: int, rate: float) -> bool:
    host = "127.0.0.1"
    began = time.perf_counter()
    if case.protocol == "amqp":
        url = f"amqp://guest:guest@{host}:{node.ports['amqp_port']}/"
        result = SteadyAmqp(case, url, messages, rate).go(0)
    else:
        run = SteadyMqtt(case, f"mqtt://{host}:{node.ports['mqtt_port']}", messages, rate)
        if run.queue:
            make_queue(node, run.queue)
        result = run.go(0)
    good = is_right(case, result)
    latency = result.end_to_end_ms
    took_s = time.perf_counter() - began
    print(
        f"{'ok  ' if good else 'BAD '} {rate:6.0f}/s  {case!s:28} {took_s:6.1f} s"
        f"  published {result.published} confirmed {result.confirmed} received {result.received}"
        f" lost {result.lost} twice {result.duplicated} reordered {result.reordered}"
        f"  p50 {latency.p50 if latency else 0:.2f} ms p99 {latency.p99 if latency else 0:.1f} ms",
        flush=True,
    )
    return good


def make_queue(node: LiveNode, name: str) -> None:
    """With one partition: only there is an order."""
    with httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=20) as client:
        client.put(f"/v1/topics/{name}", json={"settings": {"partitions": 1}}).raise_for_status()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rate", type=float, nargs="+", default=[5_000, 20_000])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--python", default=sys.executable, help="of the installation to test")
    given = parser.parse_args()
    bad = 0
    for rate in given.rate:
        for case in CASES:
            if given.only in str(case):
                with (
                    tempfile.TemporaryDirectory(dir=".") as data,
                    live_node(Path(data), given.python) as node,
                ):
                    bad += not run_case(node, case, given.messages, rate)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
