"""A live node for the tests of each file, commands for it, and names nobody used before."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from commands import Cli

from braidmq.testing.live import LiveNode, live_node

SERIAL = count(1)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def node(data_dir: Path) -> Iterator[LiveNode]:
    """One node for all tests of a file. It must survive them, stop cleanly and never complain."""
    with live_node(data_dir, ws_port=0) as node:
        yield node
        assert node.stop() == 0
        assert node.lines[-1] == "stopped"
        assert not node.complaints


@pytest.fixture
def cli(node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(node, monkeypatch)


@pytest.fixture
def topic(cli: Cli) -> str:
    name = f"topic-{next(SERIAL)}"
    cli.ok("topics", "create", name, "--partitions", "1")
    return name
