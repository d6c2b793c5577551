"""The Python client: ``import braidmq``."""

from braidmq.client.address import parse_address
from braidmq.client.broker import CONNECT_S_MAX, HEARTBEAT_S, Broker


def connect(
    url: str = "amqp://guest:guest@127.0.0.1:5672/",
    *,
    http_url: str | None = None,
    reconnect: bool = True,
    heartbeat_s: int = HEARTBEAT_S,
    connect_timeout_s: float = CONNECT_S_MAX,
    name: str = "",
) -> Broker:
    """``async with braidmq.connect("amqp://user:password@host:5672/vhost") as broker: …``

    HTTP, for ``broker.admin`` and ``broker.read``, is at port 8080 of the same host unless
    ``http_url`` says otherwise. With ``reconnect`` a lost connection is restored, however long it
    takes: what is unconfirmed is sent again, and consumers begin anew.
    """
    return Broker(
        parse_address(url, http_url),
        reconnect=reconnect,
        heartbeat_s=heartbeat_s,
        connect_timeout_s=connect_timeout_s,
        name=name,
    )
