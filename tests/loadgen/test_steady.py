"""Short slices of ``make steady``: more messages than packet ids, one by one, with a reconnect."""

from collections.abc import Iterator

import httpx
import pytest

from braidmq.loadgen.result import Result
from braidmq.loadgen.steady import Steady, SteadyAmqp, SteadyMqtt, is_right
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version

RATE = 10_000
"""At higher rates messages come together."""
WRAPPED = 90_000
"""The packet ids of a session come round twice, once before the reconnect: it has 32 767."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("node"), ws_port=0) as node:
        yield node


def steady(node: LiveNode, case: Steady, messages: int) -> Result:
    if case.protocol == "amqp":
        url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
        return SteadyAmqp(case, url, messages, RATE).go(0)
    run = SteadyMqtt(case, f"mqtt://127.0.0.1:{node.ports['mqtt_port']}", messages, RATE)
    if run.queue:
        with httpx.Client(base_url=node.http_url, auth=("guest", "guest")) as client:
            one = {"settings": {"partitions": 1}}
            client.put(f"/v1/topics/{run.queue}", json=one).raise_for_status()
    return run.go(0)


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        (Steady("mqtt", 1, Version.V3_1_1), WRAPPED),
        (Steady("mqtt", 2, Version.V5), WRAPPED),
        (Steady("mqtt", 1, Version.V5, kept=False, pairs=4), 10_000),
        (Steady("queue", 1, Version.V5), 10_000),
        (Steady("amqp", pairs=4), 10_000),
    ],
    ids=str,
)
def test_all_arrive_in_order(node: LiveNode, case: Steady, messages: int) -> None:
    result = steady(node, case, messages)
    assert is_right(case, result), result.as_dict()
    assert result.published >= messages
