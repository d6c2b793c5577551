"""The examples of docs/mqtt.md work as they stand there, one after the other."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from pages import Block, assert_shown, blocks, run_bash, run_python, statements

from braidmq.testing.live import LiveNode, live_node


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="mosquitto-clients is missing")
def test_the_examples_work(tmp_path: Path) -> None:
    page = blocks("mqtt.md")
    languages = ["conf", "bash", "bash", "python", "text", "bash", "bash"]
    assert [each.language for each in page] == languages
    with live_node(tmp_path / "data") as node:
        for block, after in pairwise([*page, Block("", "")]):
            if block.language == "python":
                assert run_python(node, block.code) == after.code
            elif block.language == "bash":
                run_shown(node, block.code)
        assert node.complaints == []


def run_shown(node: LiveNode, code: str) -> None:
    for command, shown in statements(code):
        printed = run_bash(node, command)
        assert_shown(printed, shown or "")
