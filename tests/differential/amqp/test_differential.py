"""What a client sees on BraidMQ is what it sees on RabbitMQ.

RabbitMQ's side is in ``expected.json``; ``known_differences.py`` says where we differ and why.
"""

import os
from collections.abc import Iterator

import pytest
from tests.differential import expectations
from tests.differential.amqp.client import Observation
from tests.differential.amqp.known_differences import KNOWN_DIFFERENCES
from tests.differential.amqp.operators import BraidHttp, Operator, RabbitmqCtl
from tests.differential.amqp.registry import EXPECTED, load, observer
from tests.differential.running import observe_all, wanted

from braidmq.testing.live import live_node

NAMES = sorted(load())
RABBITMQ_PORT = os.environ.get("PEER_RABBITMQ_PORT")

RABBITMQ_CTL = os.environ.get("PEER_RABBITMQ_CTL")
WITH_OPERATOR = ("permissions.", "policies.")
"""Areas in which an administrator acts meanwhile: rabbitmqctl starts an Erlang for each step."""

needs_rabbitmq = pytest.mark.skipif(
    RABBITMQ_PORT is None, reason="PEER_RABBITMQ_PORT names no RabbitMQ to compare with"
)
needs_operator = pytest.mark.skipif(
    RABBITMQ_PORT is not None and RABBITMQ_CTL is None,
    reason="PEER_RABBITMQ_CTL names no rabbitmqctl: make compare",
)
ON_RABBITMQ = [
    pytest.param(name, marks=needs_operator) if name.startswith(WITH_OPERATOR) else name
    for name in NAMES
]

# The first test runs the scenarios of all; a broker that answers nothing takes 6 s for each step.
pytestmark = pytest.mark.timeout(900)


def observed(names: list[str], port: int, operator: Operator) -> dict[str, Observation]:
    return observe_all(names, observer("127.0.0.1", port, operator))[0]


def without_ours(observation: Observation) -> Observation:
    """Dead letters say more here than RabbitMQ says of them, in headers of our own."""
    if isinstance(observation, dict):
        return {
            name: without_ours(value)
            for name, value in observation.items()
            if not name.startswith("x-death-")
        }
    if isinstance(observation, list):
        return [without_ours(each) for each in observation]
    return observation


@pytest.fixture(scope="module")
def on_braidmq(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Observation]]:
    with live_node(tmp_path_factory.mktemp("differential")) as node:
        names = wanted(request.session, test_braidmq_answers_as_rabbitmq.__name__)
        yield without_ours(observed(names, node.ports["amqp_port"], BraidHttp(node.http_url)))


@pytest.fixture(scope="module")
def on_rabbitmq(request: pytest.FixtureRequest) -> dict[str, Observation]:
    assert RABBITMQ_PORT is not None
    names = wanted(request.session, test_rabbitmq_answers_as_recorded.__name__)
    if RABBITMQ_CTL is None:
        names = [name for name in names if not name.startswith(WITH_OPERATOR)]
    return observed(names, int(RABBITMQ_PORT), RabbitmqCtl(RABBITMQ_CTL or "false"))


@pytest.fixture(scope="module")
def expected() -> dict[str, Observation]:
    return expectations.read(EXPECTED)


def test_every_scenario_is_recorded(expected: dict[str, Observation]) -> None:
    assert sorted(expected) == NAMES


def test_known_differences_name_scenarios_and_reasons() -> None:
    assert set(KNOWN_DIFFERENCES) <= set(NAMES)
    assert all(reason.strip() for reason in KNOWN_DIFFERENCES.values())


@pytest.mark.parametrize("name", NAMES)
def test_braidmq_answers_as_rabbitmq(
    name: str, on_braidmq: dict[str, Observation], expected: dict[str, Observation]
) -> None:
    if name in KNOWN_DIFFERENCES:
        assert "failed" not in on_braidmq[name], "a known difference is no crash of the scenario"
        assert on_braidmq[name] != expected[name], "no difference any more: take it off the list"
    else:
        assert on_braidmq[name] == expected[name]


@needs_rabbitmq
@pytest.mark.rabbitmq
@pytest.mark.parametrize("name", ON_RABBITMQ)
def test_rabbitmq_answers_as_recorded(
    name: str, on_rabbitmq: dict[str, Observation], expected: dict[str, Observation]
) -> None:
    assert on_rabbitmq[name] == expected[name]
