"""What every command prints: where it works, is misused, finds nothing, may not, and no node is.

Each has a file under ``golden/``, at 80 and at 140 columns. After a change that is meant:
``BRAIDMQ_GOLDEN=write pytest tests/cli/test_cli_golden.py``, and read the difference.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commands import Cli, Outcome
from golden_table import ELSEWHERE, ROWS, Row
from scene import NOW_MS, OUTSIDER, SHOP, UP_MS, YARD, build, steady_reply, steady_text
from scene_steps import SCENES, device, guest_of_the_mill
from test_cli_surface import EVERY, options

import braidmq
from braidmq.cli import api as cli_api
from braidmq.testing.live import LiveNode

GOLDEN = Path(__file__).parent / "golden"
WRITES = os.environ.get("BRAIDMQ_GOLDEN") == "write"
SERIAL = count(1)
NOWHERE = ("--url", "http://127.0.0.1:1")
NO_AMQP = ("--amqp-port", "1")
SPEAK_AMQP = {" ".join(path) for path, each in EVERY if NO_AMQP[0] in options(each)}
OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"
LISTS = [
    re.compile(re.sub(r"{\w+}", "[^/]+", path))
    for path, methods in json.loads(OPENAPI.read_text())["paths"].items()
    if "cursor" in {each["name"] for each in methods.get("get", {}).get("parameters", ())}
]


@pytest.fixture(scope="module")
def scene(node: LiveNode) -> Iterator[LiveNode]:
    build(node.http_url)
    address = f"amqp://127.0.0.1:{node.ports['amqp_port']}/{SHOP}"
    connection = braidmq.connect_sync(address, http_url=node.http_url, name="worker")
    guest_of_the_mill(node)
    with (
        connection as broker,
        broker.consume("payments", group="ledger", prefetch=10),
        device(node),
    ):
        yield node


@pytest.fixture
def golden(scene: LiveNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Golden":
    monkeypatch.chdir(tmp_path)
    return Golden(scene, monkeypatch, tmp_path)


class Golden:
    def __init__(self, node: LiveNode, patch: pytest.MonkeyPatch, home: Path) -> None:
        self._cli = Cli(node, patch)
        self._node = node
        self._patch = patch
        patch.setenv("XDG_CONFIG_HOME", str(home))
        self._said: list[str] = []

    def all_of(self, name: str, row: Row) -> str:
        self._patch.setenv("BRAID_NAMESPACE", SHOP if row.only_looks else YARD)
        if row.works is not None:
            self._at_widths("works", name, row, row.works)
            if row.also is not None:
                self._at_widths("works too", name, row, row.also)
            if row.json:
                self._at_widths("JSON", name, row, f"{row.works} --json")
        self._once("wrong", name, row, row.wrong)
        if row.unknown is not None:
            self._once("unknown", name, row, row.unknown)
        if not row.local:
            asked = row.works if row.works is not None else row.unknown or ""
            if not row.anyone:
                self._once("no permission", name, row, asked, OUTSIDER, prepare=False)
            nowhere = (*NOWHERE, *NO_AMQP) if name in SPEAK_AMQP else NOWHERE
            self._once("no node", name, row, asked, nowhere, prepare=False)
        return "\n".join(self._said)

    def data_of(self, name: str, row: Row, limit: int | None) -> str:
        """As JSON, with answers of the node that have so much of a list at most."""
        self._patch.setenv("BRAID_NAMESPACE", SHOP)
        real, asked = cli_api._exchange, []

        def limited(node: str, method: str, target: str, *more: Any) -> cli_api.Reply:
            if any(each.fullmatch(urlsplit(target).path) for each in LISTS):
                asked.append(target)
                target = re.sub(r"(?<=[?&])limit=\d+(&|$)", "", target).rstrip("?&")
                target += f"{'&' if '?' in target else '?'}limit={limit}"
            return real(node, method, target, *more)

        with self._patch.context() as patch:
            if limit is not None:
                patch.setattr(cli_api, "_exchange", limited)
            found = self._run(name, row, f"{row.works} --json", ())
        assert limit is None or asked
        return found

    def _at_widths(self, title: str, name: str, row: Row, rest: str) -> None:
        narrow = self._run(name, row, rest, (), columns=80)
        wide = self._run(name, row, rest, (), columns=140)
        if narrow == wide:
            self._say(f"{title}, 80 and 140 columns", name, rest, narrow)
            return
        self._say(f"{title}, 80 columns", name, rest, narrow)
        self._say(f"{title}, 140 columns", name, rest, wide)

    def _once(
        self,
        title: str,
        name: str,
        row: Row,
        rest: str,
        more: tuple[str, ...] = (),
        *,
        prepare: bool = True,
    ) -> None:
        found = self._run(name, row, rest, more, prepare=prepare)
        self._say(title, name, " ".join([rest, *more]), found)

    def _run(
        self,
        name: str,
        row: Row,
        rest: str,
        more: tuple[str, ...],
        *,
        columns: int = 80,
        prepare: bool = True,
    ) -> str:
        serial = str(next(SERIAL))
        for line in row.before if prepare else ():
            made = self._prepare(line.replace("{n}", serial))
            rest = rest.replace("{made}", made or "")
        rest = rest.replace("{n}", serial).replace("{made}", "nobody-1")
        line = [*name.split(), *shlex.split(rest), *more]
        with self._patch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            real = cli_api._exchange
            if not row.raw:
                patch.setattr(cli_api, "_exchange", lambda *given: steady_reply(real(*given)))
            patch.setattr(time, "time", lambda: (NOW_MS + UP_MS) / 1000)
            outcome = self._cli.run(*line)
        for line_after in row.after if prepare else ():
            self._prepare(line_after)
        return _shown(outcome)

    def _prepare(self, line: str) -> str | None:
        """What it made, where that has a name of its own."""
        what, *rest = shlex.split(line)
        if what.startswith("@"):
            return SCENES[what[1:]](self._node, *rest)
        outcome = self._cli.run(what, *rest)
        assert outcome.code in (0, 5, 6), (line, outcome.errors)
        return None

    def _say(self, title: str, name: str, rest: str, found: str) -> None:
        line = " ".join(["$ braid", *name.split(), *rest.split(" ")]).replace("  ", " ").rstrip()
        self._said.append(f"--- {title}\n{line}\n{found}")


def _shown(outcome: Outcome) -> str:
    text = steady_text(outcome.raw.decode() + outcome.errors)
    lines = [line.rstrip() for line in text.splitlines()]
    if outcome.code:
        lines.append(f"exit {outcome.code}")
    return "\n".join(lines) + "\n"


def test_every_command_is_tried() -> None:
    assert set(ROWS) == {" ".join(path) for path, _ in EVERY}
    assert {f"{name.replace(' ', '-')}.txt" for name in ROWS} == {
        each.name for each in GOLDEN.iterdir()
    }


def test_every_situation_is_tried() -> None:
    assert {name for name, row in ROWS.items() if row.works is None} == set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        words = re.sub("[^a-z-]+", " ", (GOLDEN.parents[2] / file).read_text())
        assert name in words, f"{file} does not try {name}"
    for path, command in EVERY:
        row = ROWS[" ".join(path)]
        named = [each for each in command.params if each.param_type_name == "argument"]
        makes = path[-1] in ("create", "add", "set", "new")
        # What it needs by name may not be there.
        if any(each.required for each in named) and not makes:
            assert row.unknown is not None, path
        if not row.local and "--json" in options(command) and row.works is not None:
            assert row.json, path


@pytest.mark.parametrize("name", ROWS)
def test_a_command_prints_what_it_did(name: str, golden: Golden) -> None:
    file = GOLDEN / f"{name.replace(' ', '-')}.txt"
    found = golden.all_of(name, ROWS[name])
    if WRITES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if name.endswith(" list") and not row.local]
)
def test_a_command_lists_all_however_many_the_node_answers_with(name: str, golden: Golden) -> None:
    assert golden.data_of(name, ROWS[name], 1) == golden.data_of(name, ROWS[name], None)
