"""A live node, and names nobody used before."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.testing.live import LiveNode, live_node

CLIENTS = Path(__file__).parents[1] / "clients"
sys.path += [str(CLIENTS / "amqp"), str(CLIENTS / "mqtt")]

from rights_users import SERIAL, Rights  # noqa: E402


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def rights(node: LiveNode) -> Iterator[Rights]:
    with Rights(node) as made:
        yield made
    assert not node.complaints


@pytest.fixture
def name() -> str:
    return f"thing-{next(SERIAL)}"
