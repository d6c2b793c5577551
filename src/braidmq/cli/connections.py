"""``braid connections``: who is connected to a running node."""

from typing import Annotated

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import AnyNode, Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.units import now_ms, span_text, time_text

app = Commands(name="connections", help="Connections of clients to a node.", no_args_is_help=True)

COLUMNS = (
    "id",
    "protocol",
    "user",
    "listener",
    "peer",
    "client",
    "channels",
    "blocked",
    "connected",
)

PAST_COLUMNS = ("id", "protocol", "user", "peer", "client", "ended", "lasted", "reason")


@app.command("list")
def list_connections(
    node: InNamespace,
    out: Out,
) -> None:
    """Show who is connected to a namespace, other than over HTTP.

    Example: braid connections list
    """
    rows = node.api().every("connections")
    if not out.is_data:
        now = now_ms()
        rows = [row | {"connected": span_text(max(0, now - row["connected_ms"]))} for row in rows]
    out.show(rows, COLUMNS, ("listener", "channels", "blocked", "user"))


@app.command()
def history(
    node: InNamespace,
    out: Out,
    limit: Limit = LIMIT,
) -> None:
    """Show connections that are over, the last first, and why they ended.

    Example: braid connections history --limit 20
    """
    rows = node.api().first("connections", "history", limit=limit)
    if not out.is_data:
        rows = [
            row
            | {
                "ended": time_text(row["ended_ms"]),
                "lasted": span_text(max(0, row["ended_ms"] - row["connected_ms"])),
            }
            for row in rows
        ]
    out.show(rows, PAST_COLUMNS, ("peer", "protocol", "user", "lasted", "client"))


@app.command()
def close(
    node: AnyNode,
    out: Out,
    connection: Annotated[
        str,
        typer.Argument(
            help="Its id, as `braid connections list` shows.",
            autocompletion=complete("connections"),
        ),
    ],
    yes: Yes = False,
) -> None:
    """Close a connection; its peer is told who did. Its unsettled messages go to others.

    Example: braid connections close amqp-7 --yes
    """
    api = node.global_api()
    found = seen(api, "connections", connection)
    whose = "" if found is None else f" of user {found['user']!r}"
    confirm(yes, f"Close connection {connection!r}{whose}?")
    api.delete("connections", connection)
    out.done(f"closed connection {connection!r}{whose}", {"closed": connection})
