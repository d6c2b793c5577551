from collections.abc import Iterator

import httpx
import pytest
from http_api import GUEST, Api

from braidmq.testing.live import LiveNode, live_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), mqtt_port=0, ws_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def api(node: LiveNode) -> Iterator[Api]:
    with httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client:
        yield Api(node, client)
