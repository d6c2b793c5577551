"""``braid connections``: who is connected to a running node."""

import time
from typing import Annotated

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    ROOT,
    Api,
    Json,
    Namespace,
    Secret,
    Url,
    User,
    show,
)
from braidmq.cli.units import span_text

app = typer.Typer(
    name="connections", help="Connections of clients to a node.", no_args_is_help=True
)

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


@app.command("list")
def list_connections(
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show who is connected to a namespace, other than over HTTP.

    Example: braid connections list
    """
    rows = Api(url, user, password, namespace).get("connections")
    if not as_json:
        now_ms = int(time.time() * 1000)
        rows = [
            row | {"connected": span_text(max(0, now_ms - row["connected_ms"]))} for row in rows
        ]
    show(rows, COLUMNS, as_json)


@app.command()
def close(
    connection: Annotated[str, typer.Argument(help="Its id, as `braid connections list` shows.")],
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Close a connection; its peer is told who did. Its unsettled messages go to others.

    Example: braid connections close amqp-7
    """
    Api(url, user, password).delete("connections", connection)
