"""Every example of docs/http-api.md works, in order, on a fresh node, and answers what it shows."""

import json
from pathlib import Path

import httpx
from pages import assert_shown, blocks, on, run_bash, statements

from braidmq.testing.live import live_node


def test_every_example_works(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    setup, *examples = [block.code for block in blocks("http-api.md") if block.language == "sh"]
    commands = [each for code in examples for each in statements(code)]
    assert len(commands) >= 25
    (problem,) = [block for block in blocks("http-api.md") if block.language == "json"]
    token = ""
    first = "orders:0:0:1:1.1." + 24 * "0"
    with live_node(tmp_path / "data", mqtt_port=0, ws_port=0) as node:
        for command, shown in commands:
            printed = run_bash(node, setup + command, tmp_path, TOKEN=token)
            if shown is not None:
                assert_shown(printed, shown)
            if printed.startswith("{"):
                token = json.loads(printed).get("token", token)
        path = on(node, f"/v1/receipts/{first}/ack")
        again = httpx.post(node.http_url + path, auth=("guest", "guest"), timeout=30)
        assert again.json() == json.loads(problem.code)
        assert node.complaints == []
