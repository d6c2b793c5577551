"""The load generator on a live node: every QoS, both versions, several of either side."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from braidmq.loadgen.mqtt import run
from braidmq.loadgen.mqtt_workloads import MqttWorkload
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version

SECONDS = 0.2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("node"), amqp_port=0, ws_port=0) as node:
        yield node


def url(node: LiveNode) -> str:
    return f"mqtt://127.0.0.1:{node.ports['mqtt_port']}"


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_arrives_once_at_each_subscriber(
    node: LiveNode, qos: int, version: int
) -> None:
    workload = MqttWorkload(
        "test",
        "",
        producers=2,
        subscribers=3,
        qos=qos,
        window=50 if qos else 0,
        persistent=qos > 0,
        version=version,
    )
    result = run(workload, url(node), SECONDS)
    assert result.exactly_once, result.as_dict()
    assert result.received == 3 * result.published > 0
    assert result.confirmed == (result.published if qos else 0)
    assert result.broker.startswith("BraidMQ")


def test_publishes_are_spread_over_the_second(node: LiveNode) -> None:
    began = time.perf_counter()
    result = run(MqttWorkload("test", "", qos=1, per_second=100), url(node), SECONDS)
    took_s = time.perf_counter() - began
    assert result.exactly_once, result.as_dict()
    assert 0 < result.published <= 1 + 100 * took_s


def test_the_command_prints_what_it_found(node: LiveNode) -> None:
    command = [sys.executable, "-m", "braidmq.cli", "bench", "mqtt", "--url", url(node), "--json"]
    options = ["--qos", "2", "--seconds", str(SECONDS), "--publishers", "2", "--size", "300"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["exactly_once"]
    assert found["received"] == found["published"] > 0
