"""``braid mqtt``: sessions of MQTT clients, what they subscribed to, and retained messages."""

from typing import Annotated

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.units import span_text, time_text

app = Commands(
    name="mqtt",
    help="MQTT clients: their sessions and filters, and retained messages.",
    no_args_is_help=True,
)

SESSIONS = (
    *("client", "user", "connected", "connection", "expires_after", "filters"),
    *("in_flight", "waiting"),
)
FILTERS = ("filter", "qos", "share", "queue_group", "explicit", "identifier")
NEVER_S = 2**32 - 1
"""What MQTT 5 says for a session that does not expire."""
RETAINED = ("topic", "bytes", "published", "expires")


@app.command()
def sessions(
    node: InNamespace,
    out: Out,
    limit: Limit = LIMIT,
) -> None:
    """Show sessions, connected or not, by client id.

    Example: braid mqtt sessions
    """
    rows = node.api().first("mqtt", "sessions", limit=limit)
    if not out.is_data:
        rows = [row | {"expires_after": _expiry(row["expiry_s"])} for row in rows]
    out.show(rows, SESSIONS, ("connection", "expires_after"))


def _expiry(seconds: int) -> str:
    return "never" if seconds == NEVER_S else span_text(seconds * 1000)


@app.command()
def filters(
    node: InNamespace,
    out: Out,
    client: Annotated[
        str, typer.Argument(help="The client id of a session.", autocompletion=complete("sessions"))
    ],
    limit: Limit = LIMIT,
) -> None:
    """Show what a session subscribed to.

    Example: braid mqtt filters thermometer-7
    """
    api = node.api()
    found = api.first("mqtt", "sessions", client, "filters", limit=limit)
    if not out.is_data:
        unsaid = ("identifier", "share", "queue_group")
        found = [each | {name: each[name] or None for name in unsaid} for each in found]
    out.show(found, FILTERS)


@app.command()
def retained(
    node: InNamespace,
    out: Out,
    pattern: Annotated[str, typer.Argument(metavar="FILTER", help="Which topics.")] = "#",
    limit: Limit = LIMIT,
) -> None:
    """Show retained messages that a filter matches.

    Example: braid mqtt retained 'house/+/temperature'
    """
    api = node.api()
    rows = api.first("mqtt", "retained", filter=pattern, limit=limit)
    if not out.is_data:
        rows = [
            row
            | {
                "published": time_text(row["timestamp_ms"]),
                "expires": time_text(row["expires_at_ms"]) if "expires_at_ms" in row else None,
            }
            for row in rows
        ]
    out.show(rows, RETAINED)
