"""A running node as publishing and consuming commands see it: the Python client, over AMQP."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from braidmq.cli.api import DEFAULT_URL, NodeUnreachable, password_of

if TYPE_CHECKING:
    from braidmq.client import SyncBroker

AMQP_PORT = 5672

AmqpPort = Annotated[
    int,
    typer.Option(
        "--amqp-port", envvar="BRAID_AMQP_PORT", help="AMQP port of the node, at the host of --url."
    ),
]


def open_broker(
    url: str, amqp_port: int, user: str, password: str | None, namespace: str
) -> "SyncBroker":
    """Use it with ``with``. A lost connection is an error: a person is watching."""
    # Here and not above: `braid --version` should not wait for an event loop.
    from braidmq.client import connect_sync

    host = urlsplit(url).hostname
    if host is None:
        raise NodeUnreachable(
            f"{url} is not the URL of a node", remedy=f"Give one such as {DEFAULT_URL}"
        )
    secret = password_of(user) if password is None else password
    login = f"{quote(user, safe='')}:{quote(secret, safe='')}"
    at = f"[{host}]" if ":" in host else host
    return connect_sync(
        f"amqp://{login}@{at}:{amqp_port}/{quote(namespace, safe='')}",
        http_url=url,
        reconnect=False,
        name="braid",
    )
