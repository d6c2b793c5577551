"""What a client sees on BraidMQ is what it sees on Mosquitto.

Mosquitto's side is in ``expected.json``, and is compared live where it is installed;
``known_differences.py`` says where we differ and which clause supports us.
"""

import re
from collections.abc import Iterator

import pytest
from tests.differential import expectations
from tests.differential.expectations import Observation
from tests.differential.mqtt.brokers import VERSION, braidmq, mosquitto, mosquitto_version
from tests.differential.mqtt.known_differences import KNOWN_DIFFERENCES
from tests.differential.mqtt.registry import EXPECTED, OURS, load, observer
from tests.differential.running import observe_all, wanted

NAMES = sorted(load())
CLAUSE = re.compile(r"\bMQTT-\d\.\d+\.\d+-\d+\b|\b\d\.\d+(\.\d+)*\b")

needs_mosquitto = pytest.mark.skipif(
    mosquitto_version() != VERSION,
    reason=f"Mosquitto {VERSION} is not installed: apt-get install mosquitto",
)

# The first test runs the scenarios of all; a broker that answers nothing takes 10 s for each step.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def on_braidmq(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Observation]]:
    names = wanted(request.session, test_braidmq_answers_as_mosquitto.__name__)
    with braidmq(tmp_path_factory.mktemp("braidmq")) as port:
        yield observe_all(names, observer("127.0.0.1", port))[0]


@pytest.fixture(scope="module")
def on_mosquitto(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Observation]]:
    names = wanted(request.session, test_mosquitto_answers_as_recorded.__name__)
    with mosquitto(tmp_path_factory.mktemp("mosquitto")) as port:
        yield observe_all(names, observer("127.0.0.1", port))[0]


@pytest.fixture(scope="module")
def expected() -> dict[str, Observation]:
    return expectations.read(EXPECTED)


@pytest.fixture(scope="module")
def ours() -> dict[str, Observation]:
    return expectations.read(OURS)


def test_every_scenario_is_recorded(expected: dict[str, Observation]) -> None:
    assert sorted(expected) == NAMES


def test_known_differences_are_recorded_and_name_clauses(
    expected: dict[str, Observation], ours: dict[str, Observation]
) -> None:
    assert set(KNOWN_DIFFERENCES) == set(ours)
    assert not [name for name in ours if ours[name] == expected[name]]
    assert all(CLAUSE.search(reason) for reason in KNOWN_DIFFERENCES.values())


@pytest.mark.parametrize("name", NAMES)
def test_braidmq_answers_as_mosquitto(
    name: str,
    on_braidmq: dict[str, Observation],
    expected: dict[str, Observation],
    ours: dict[str, Observation],
) -> None:
    assert on_braidmq[name] == (ours if name in KNOWN_DIFFERENCES else expected)[name]


@needs_mosquitto
@pytest.mark.parametrize("name", NAMES)
def test_mosquitto_answers_as_recorded(
    name: str, on_mosquitto: dict[str, Observation], expected: dict[str, Observation]
) -> None:
    assert on_mosquitto[name] == expected[name]
