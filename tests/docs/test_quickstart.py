"""docs/quickstart.md works as it stands there, from a fresh node on."""

import re
from itertools import pairwise
from pathlib import Path

from pages import Block, blocks, on, run_bash, run_python, same_json

from braidmq.testing.live import LiveNode, live_node

WORDS_MAX = 250
"""A minute of reading."""

RUN = {"python": run_python, "bash": run_bash}


def test_the_quickstart_works(tmp_path: Path) -> None:
    start, said, *steps = blocks("quickstart.md")
    assert (start, said.language) == (Block("sh", "make serve\n"), "text")
    with live_node(tmp_path / "data", mqtt_port=0, ws_port=0) as node:
        shown = on(node, said.code).splitlines()
        assert [stable(line) for line in node.lines] == [stable(line) for line in shown]
        results = [check(node, block, after) for block, after in pairwise([*steps, Block("", "")])]
        assert node.complaints == []
    assert results.count("python") == 2
    assert results.count("bash") == 3


def check(node: LiveNode, block: Block, after: Block) -> str:
    """Run a block; the one after it shows what it prints, or else it prints nothing."""
    if block.language not in RUN:
        return "shown"
    printed = RUN[block.language](node, block.code)
    if after.language == "json":
        assert same_json(printed, after.code), printed
    else:
        assert printed == (after.code if after.language == "text" else "")
    return block.language


def stable(line: str) -> str:
    """Where the data is, and how long it took to read, is each node's own."""
    return re.sub(r"in \S+ \(\d+ ms\)", "in DATA", line)


def test_it_is_read_in_a_minute() -> None:
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= WORDS_MAX


def test_make_serve_is_braid_serve() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "\nserve: $(INSTALLED)\n\t@$(BIN)/braid serve\n" in makefile
