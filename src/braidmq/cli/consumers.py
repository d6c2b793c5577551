"""``braid consumers``: who consumes, from whichever topic."""

from typing import Annotated

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.topics import show_consumers

app = Commands(
    name="consumers", help="Consumers: who consumes, from which topic.", no_args_is_help=True
)


@app.command("list")
def list_consumers(
    node: InNamespace,
    out: Out,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="Only of this topic or queue.",
            show_default="all",
            autocompletion=complete("queues"),
        ),
    ] = None,
    limit: Limit = LIMIT,
) -> None:
    """Show who consumes: their clients, what they have in flight and may still get.

    Example: braid consumers list orders
    """
    api = node.api()
    if topic is not None:
        found = api.first("topics", topic, "consumers", limit=limit)
    else:
        found = api.first("consumers", limit=limit)
    show_consumers(out, found, ("topic",))
