"""A live node for the clients of each file, and names nobody used before."""

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode, live_node

SERIAL = count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """One node for all tests of a file. It must survive them, stop cleanly and never complain."""
    with live_node(tmp_path_factory.mktemp("node")) as node:
        yield node
        stops_cleanly(node)


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[LiveNode]:
    """A node for one test alone, which may kill it or measure it."""
    with live_node(tmp_path) as node:
        yield node


@pytest.fixture(scope="session")
def rabbitmq_port() -> int:
    """Of a RabbitMQ on which the same cases must hold (tests/differential/README.md)."""
    port = os.environ.get("PEER_RABBITMQ_PORT")
    if port is None:
        pytest.skip("PEER_RABBITMQ_PORT names no RabbitMQ to compare with")
    return int(port)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue or exchange name for one test alone."""
    return f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{next(SERIAL)}"


def stops_cleanly(node: LiveNode) -> None:
    assert node.stop() == 0
    assert node.lines[-1] == "stopped"
    assert not node.complaints
