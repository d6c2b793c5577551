"""What holds for every command of ``braid``: help, options, completion, and a quick start."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup

from braidmq.cli.app import app


def commands(
    group: TyperGroup, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    for name, each in group.commands.items():
        if isinstance(each, TyperGroup):
            yield from commands(each, (*path, name))
        else:
            assert isinstance(each, TyperCommand)
            yield (*path, name), each


EVERY = list(commands(typer.main.get_group(app)))
LOCAL = {("serve",), ("init",), ("context",), ("bench",), ("config",), ("lake",)} | {
    ("pipeline", "new"),
    ("pipeline", "export"),
    ("storage", "skip-entry"),
    ("storage", "rebuild"),
}
REMOTE = [(path, each) for path, each in EVERY if LOCAL.isdisjoint({path, path[:1]})]


def options(command: TyperCommand) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) for path, _ in EVERY])
def test_help_has_an_example_and_explains_each_option(
    path: tuple[str, ...], command: TyperCommand
) -> None:
    if path[0] != "config":
        assert f"braid {' '.join(path)}" in (command.help or "").partition("Example")[2]
        for paragraph in (command.help or "").split("\n\n"):
            # As wide as the terminal, not as the source.
            assert all(each.startswith("Example: ") for each in paragraph.split("\n")[1:])
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


def test_every_command_for_a_node_says_which_and_who() -> None:
    assert len(REMOTE) >= 40
    for path, command in REMOTE:
        assert options(command) >= {"--url", "--user", "--password", "--token", "--context"}, path


def test_every_command_for_a_node_prints_json_too_and_most_by_a_template() -> None:
    for path, command in REMOTE:
        assert options(command) >= {"--json", "--format"}, path


def braid(*arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "braidmq.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return result.stdout


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        count = len(words.split(" ")) - 1
        asked = {"_BRAID_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        return set(braid(**asked).split())

    assert completed("braid to") == {"top", "topics", "tokens"}
    assert completed("braid groups s") == {"show", "seek"}
    assert completed("braid consume --fo") == {"--follow", "--format"}
    assert completed("braid consume --format ") == {"text", "json", "raw"}


def test_completion_can_be_installed(tmp_path: Path) -> None:
    # From a shell, as that is how it finds out which one to install for.
    subprocess.run(
        ["bash", "-c", '"$0" -m braidmq.cli --install-completion; exit $?', sys.executable],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert "_BRAID_COMPLETE" in (tmp_path / ".bash_completions" / "braid.sh").read_text()


def test_the_command_starts_without_what_only_some_commands_need() -> None:
    heavy = ("asyncio", "ssl", "http.client", "rich", "braidmq.client", "braidmq.server")
    program = f"import braidmq.cli.app, sys; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "[]\n"
