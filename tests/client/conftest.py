"""A live node for the tests of each file, a broker object on it, and names nobody used before."""

import re
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
from talking import url_of

import braidmq
from braidmq.testing.live import LiveNode, live_node

SERIAL = count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """One node for all tests of a file. It must survive them, stop cleanly and never complain."""
    with live_node(tmp_path_factory.mktemp("node")) as node:
        yield node
        assert node.stop() == 0
        assert node.lines[-1] == "stopped"
        assert not node.complaints


@pytest.fixture
async def broker(node: LiveNode) -> AsyncIterator[braidmq.Broker]:
    async with braidmq.connect(url_of(node), http_url=node.http_url) as broker:
        yield broker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{next(SERIAL)}"


@pytest.fixture
async def queue(broker: braidmq.Broker, name: str) -> str:
    await broker.declare_queue(name)
    return name


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"
