"""What the other broker answered, as recorded."""

import json
from pathlib import Path
from typing import Any

Observation = Any  # plain data: what JSON can hold


def plain(seen: Observation) -> Observation:
    """As it would be read from a record."""
    return json.loads(json.dumps(seen))


def read(path: Path) -> dict[str, Observation]:
    recorded: dict[str, Observation] = json.loads(path.read_text())
    return recorded


def write(path: Path, observations: dict[str, Observation]) -> None:
    """An event a line: short enough to keep, long enough to review."""
    scenarios = (
        f"{json.dumps(name)}: {_lines(observations[name], 1)}" for name in sorted(observations)
    )
    path.write_text("{\n" + ",\n".join(scenarios) + "\n}\n")


def _lines(value: Observation, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    if len(flat) + depth <= 98 or not (nested or isinstance(value, dict)):
        return flat
    pad = " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_lines(item, depth + 1)}" for name, item in value.items()]
        if "m" in value:  # an event: a line each
            return flat
        return "{\n" + ",\n".join(pad + item for item in items) + "\n" + pad[1:] + "}"
    items = [_lines(item, depth + 1) for item in value]
    return "[\n" + ",\n".join(pad + item for item in items) + "\n" + pad[1:] + "]"
