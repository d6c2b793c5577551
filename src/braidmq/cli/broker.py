"""A running node as publishing and consuming commands see it: the Python client, over AMQP."""

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from braidmq.cli.api import DEFAULT_URL, NodeUnreachable, tls_options
from braidmq.cli.node import AMQP_PORT

if TYPE_CHECKING:
    from braidmq.client import SyncBroker

AMQPS_PORT = 5671


def open_broker(url: str, amqp_port: int, user: str, password: str, namespace: str) -> "SyncBroker":
    """Use it with ``with``. A lost connection is an error: a person is watching."""
    # Here and not above: `braid --version` should not wait for an event loop.
    from braidmq.client import connect_sync

    parts = urlsplit(url)
    host = parts.hostname
    if host is None:
        raise NodeUnreachable(
            f"{url} is not the URL of a node", remedy=f"Give one such as {DEFAULT_URL}"
        )
    # Without a user the password is a token, which says whose it is.
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    token = None if user else password
    at = f"[{host}]" if ":" in host else host
    scheme, query = "amqp", ""
    if parts.scheme == "https":
        # Whoever asks for one of them encrypted wants both.
        scheme = "amqps"
        given = {name: value for name, value in tls_options()._asdict().items() if value}
        query = f"?{urlencode(given)}"
        amqp_port = AMQPS_PORT if amqp_port == AMQP_PORT else amqp_port
    return connect_sync(
        f"{scheme}://{login}{at}:{amqp_port}/{quote(namespace, safe='')}{query}",
        http_url=url,
        reconnect=False,
        name="braid",
        token=token,
    )
