"""``braid config``: what a node would run with, whether a file is valid, and reading it again."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.commands import AnyNode, Commands, Out

app = Commands(
    name="config",
    help="What a node would run with, whether a file is valid, and reading it again.",
    no_args_is_help=True,
)


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The TOML file to look at.")]) -> None:
    """Check a configuration file: exits 0 if it is valid, 2 if not.

    Every mistake is a line on stderr that begins with the file and the line it stands in. The
    environment is left aside.
    """
    from braidmq.config.loading import BadSettings, load

    try:
        load(file, environment={})
    except BadSettings as error:
        for mistake in error.mistakes:
            sys.stderr.write(f"{mistake}\n")
        raise typer.Exit(2) from None
    print(f"{file} is valid")


@app.command()
def show(
    config: Annotated[
        Path | None,
        typer.Option(envvar="BRAID_CONFIG", help="TOML file to read.", show_default="no file"),
    ] = None,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="The defaults, whatever file and environment say."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON without comments.")] = False,
) -> None:
    """Print the configuration a node would run with here: file, environment, defaults.

    It is TOML with a comment for every key, and can be kept as a file.
    """
    from braidmq.config import Config, load, reference

    effective = Config() if defaults else load(config, files=False)
    if as_json:
        print(json.dumps(reference.as_tree(effective), indent=2))
    else:
        sys.stdout.write(reference.as_toml(effective))


@app.command("reload")
def reload_config(node: AnyNode, out: Out) -> None:
    """Have a running node read its configuration again. For administrators.

    It reads the file and the environment it was started with, and all certificates; connections
    go on. Prints what changed, and what changes only when the node is started again. If
    anything is wrong, nothing changes. As SIGHUP does, which tells it only to the log.

    Example: braid config reload
    """
    found = node.global_api().post("config", "reload")
    lines = [_changed(each) for each in found["changed"]]
    lines += [f"{_changed(each)} (after a restart)" for each in found["restart"]]
    out.done("\n".join(lines) or "nothing changed", found)


def _changed(change: dict[str, str]) -> str:
    return f"{change['key']}: {change['before']} -> {change['after']}"
