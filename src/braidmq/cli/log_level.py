"""``braid log-level``: how much a running node logs."""

from typing import Annotated

import typer

from braidmq import logs
from braidmq.cli.commands import AnyNode, Commands, Out

app = Commands(
    name="log-level", help="How much a node logs, changed while it runs.", no_args_is_help=True
)


@app.command()
def show(node: AnyNode, out: Out) -> None:
    """Show the least important lines that the node logs. For administrators.

    Example: braid log-level show
    """
    found = node.global_api().get("log-level")
    out.done(found["level"], found)


@app.command("set")
def set_level(
    node: AnyNode,
    out: Out,
    level: Annotated[logs.Level, typer.Argument(help="The least important lines to log.")],
) -> None:
    """Log more or less, until the node is started again. For administrators.

    Example: braid log-level set debug
    """
    found = node.global_api().put("log-level", body={"level": level})
    out.quiet(found)
