from collections.abc import Iterator
from pathlib import Path

import pytest
from tls_node import TlsNode, tls_node


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    """A node with TLS, for all tests of a file."""
    directory: Path = tmp_path_factory.mktemp("tls")
    with tls_node(directory) as node:
        yield node
        assert node.live.complaints == []
