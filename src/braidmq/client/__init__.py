"""The Python client. ``import braidmq`` has the names of this module."""

from functools import partial

from braidmq.client.address import BadAddress, parse_address
from braidmq.client.broker import CONNECT_S_MAX, HEARTBEAT_S, Broker
from braidmq.client.consumer import Consumer
from braidmq.client.errors import (
    AlreadySettled,
    Blocked,
    ChannelClosed,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    ConsumerCancelled,
    Failure,
    HttpError,
    Nacked,
    NotInFlight,
    NotYourTransaction,
    OutOfOrderSequence,
    ProducerFenced,
    PublishError,
    PublishFailed,
    PublishRefused,
    StaleApplication,
    TooManyBranches,
    TransactionAborted,
    TransactionCommitted,
    TransactionError,
    UnknownBranch,
    UnknownProducer,
    UnknownTransaction,
    Unroutable,
    Unsupported,
    WindowFull,
)
from braidmq.client.identity import Application
from braidmq.client.message import Batch, Message
from braidmq.client.metadata import BadMetadata
from braidmq.client.producer import Producer
from braidmq.client.reader import StoredMessage
from braidmq.client.sync import SyncBroker, SyncConsumer, SyncProducer, SyncTransaction
from braidmq.client.transaction import Transaction
from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    NotAuthenticated,
    NotFound,
)

DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def connect(
    url: str = DEFAULT_URL,
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
    takes: what is unconfirmed is sent again, and consumers begin anew. ``name`` is what an
    operator sees of the connection.
    """
    return Broker(
        parse_address(url, http_url),
        reconnect=reconnect,
        heartbeat_s=heartbeat_s,
        connect_timeout_s=connect_timeout_s,
        name=name,
    )


def connect_sync(
    url: str = DEFAULT_URL,
    *,
    http_url: str | None = None,
    reconnect: bool = True,
    heartbeat_s: int = HEARTBEAT_S,
    connect_timeout_s: float = CONNECT_S_MAX,
    name: str = "",
) -> SyncBroker:
    """``with braidmq.connect_sync("amqp://…") as broker: …``, the same without ``await``."""
    return SyncBroker(
        partial(
            Broker,
            parse_address(url, http_url),
            reconnect=reconnect,
            heartbeat_s=heartbeat_s,
            connect_timeout_s=connect_timeout_s,
            name=name,
        )
    )


__all__ = [
    "AccessRefused",
    "AlreadySettled",
    "Application",
    "BadAddress",
    "BadMetadata",
    "BadRequest",
    "Batch",
    "Blocked",
    "BraidError",
    "Broker",
    "ChannelClosed",
    "ClientError",
    "Closed",
    "Conflict",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerCancelled",
    "Failure",
    "HttpError",
    "Message",
    "Nacked",
    "NotAuthenticated",
    "NotFound",
    "NotInFlight",
    "NotYourTransaction",
    "OutOfOrderSequence",
    "Producer",
    "ProducerFenced",
    "PublishError",
    "PublishFailed",
    "PublishRefused",
    "StaleApplication",
    "StoredMessage",
    "SyncBroker",
    "SyncConsumer",
    "SyncProducer",
    "SyncTransaction",
    "TooManyBranches",
    "Transaction",
    "TransactionAborted",
    "TransactionCommitted",
    "TransactionError",
    "UnknownBranch",
    "UnknownProducer",
    "UnknownTransaction",
    "Unroutable",
    "Unsupported",
    "WindowFull",
    "connect",
    "connect_sync",
]
