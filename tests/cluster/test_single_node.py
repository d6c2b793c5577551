"""Who runs one node pays nothing for clusters."""

from pathlib import Path

import httpx
import pytest

from braidmq.testing.live import live_node


def test_a_single_node_imports_nothing_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # it tells of each import
    with live_node(tmp_path / "data") as node:
        url = f"{node.http_url}/v1/overview"
        assert httpx.get(url, auth=("guest", "guest"), timeout=30).status_code == 200
        imports = [each.split("|")[-1].strip() for each in node.lines if each.count("|") == 2]
    assert "braidmq.storage.store" in imports
    assert [each for each in imports if each.startswith("braidmq.cluster")] == []
