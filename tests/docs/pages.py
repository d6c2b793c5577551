"""Pages of the documentation as programs: their blocks, run against a node, and what they show."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from braidmq.testing.live import LiveNode

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r'"amqp://127\.0\.0\.1:5672"|\b(?:5672|8080|1883)\b')
RECEIPT = re.compile(r"(\w+:\d+:\d+:\d+:[0-9a-f]+\.[0-9a-f]+)\.[0-9a-f]{24}")
SEALED: dict[int, dict[str, str]] = {}
"""By node: receipts that it gave, by what they name; their seals are new every time."""
PATIENCE_S = 50
ANYTHING = "…"
FAIL_ON_ERRORS = 'curl() { command curl --fail-with-body "$@"; }\n'


class Block(NamedTuple):
    language: str
    code: str


class Statement(NamedTuple):
    """One command of a shell block, and the answer that a comment below it shows."""

    command: str
    shown: str | None


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall((DOCS / page).read_text())]


def on(node: LiveNode, code: str) -> str:
    """The code with this node's ports in place of the usual ones, and its own receipts."""
    amqp, http = node.ports["amqp_port"], node.ports["http_port"]
    ports = {"5672": str(amqp), "8080": str(http), "1883": str(node.ports["mqtt_port"])}
    address = f'"amqp://127.0.0.1:{amqp}/?http={http}"'
    given = SEALED.get(http, {})
    code = RECEIPT.sub(lambda found: given.get(found[1], found[0]), code)
    return ADDRESS.sub(lambda found: ports.get(found[0], address), code)


def run_python(node: LiveNode, code: str) -> str:
    return _run([sys.executable, "-W", "error", "-c", on(node, code)], code)


def run_bash(node: LiveNode, code: str, folder: Path | None = None, **variables: str) -> str:
    """Real curl, which fails here when the node's answer is an error."""
    given = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    script = FAIL_ON_ERRORS + given + on(node, code)
    printed = _run(["bash", "-euo", "pipefail", "-c", script], code, folder)
    receipts = {found[1]: found[0] for found in RECEIPT.finditer(printed)}
    SEALED.setdefault(node.ports["http_port"], {}).update(receipts)
    return printed


def _run(command: list[str], code: str, folder: Path | None = None) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder)
    assert (ran.returncode, ran.stderr) == (0, ""), f"{code}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def statements(code: str) -> Iterator[Statement]:
    """The commands of a shell block one by one, however many lines they have."""
    pending, commands = "", []
    for line in code.splitlines():
        if line.startswith("# ") and not pending:
            commands[-1] = commands[-1]._replace(shown=line[2:])
            continue
        pending += line + "\n"
        if _is_whole(pending):
            commands.append(Statement(pending, None))
            pending = ""
    assert not pending, f"no end: {pending}"
    yield from commands


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # a quote is open
        return False
    return not command.rstrip("\n").endswith("\\")


def assert_shown(printed: str, shown: str) -> None:
    """``printed`` is what the page shows, where "…" stands for anything."""
    shown, printed = without_seals(shown), without_seals(printed)
    pattern = re.escape(shown).replace(re.escape(ANYTHING), ".*")
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"\n{printed}\nis not\n{shown}"


def without_seals(text: str) -> str:
    return RECEIPT.sub(r"\1.seal", text)


def without_times(value: Any) -> Any:
    """JSON with its points in time, which are new every time, taken for granted."""
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {
            name: isinstance(each, int) if name == "timestamp_ms" else without_times(each)
            for name, each in value.items()
        }
    return value


def same_json(printed: str, shown: str) -> bool:
    printed, shown = without_seals(printed), without_seals(shown)
    return bool(without_times(json.loads(printed)) == without_times(json.loads(shown)))
