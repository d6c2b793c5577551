"""How the engine is put together: its parts in order, each whole once it is made."""

import ast
from pathlib import Path

from engine_worlds import World

from braidmq.engine.state import TimerKind

ENGINE = Path(__file__).parents[2] / "src/braidmq/engine/engine.py"


def test_no_part_gets_what_it_needs_later() -> None:
    (made,) = (
        node
        for node in ast.walk(ast.parse(ENGINE.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    stored = [
        ast.unparse(node)
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    assert "self.publishing" in stored
    assert not [each for each in stored if each.count(".") > 1]


def test_every_kind_of_timer_has_an_owner() -> None:
    beside_the_engine = {TimerKind.LOGIN, TimerKind.WAIT}
    assert World().engine.timers._handlers.keys() == set(TimerKind) - beside_the_engine
