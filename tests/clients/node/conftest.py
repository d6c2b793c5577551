"""Clients from the npm registry, installed once for all tests of this folder."""

from pathlib import Path

import pytest
from npm import installed

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_packages() -> Path:
    return installed(HERE)
