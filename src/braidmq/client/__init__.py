"""The Python client. ``import braidmq`` has the names of this module."""

from braidmq.client.address import BadAddress
from braidmq.client.address import parse_address as _parse_address
from braidmq.client.broker import CONNECT_S_MAX as _CONNECT_S
from braidmq.client.broker import HEARTBEAT_S as _HEARTBEAT_S
from braidmq.client.broker import Broker, Queue
from braidmq.client.confirm import Confirm, Place
from braidmq.client.consumer import Consumer
from braidmq.client.errors import (
    AlreadySettled,
    Blocked,
    CallFailed,
    CallTimedOut,
    ChannelClosed,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    ConsumerCancelled,
    DeliveryTimedOut,
    Failure,
    HttpError,
    Nacked,
    NotInFlight,
    NotYourTransaction,
    OtherInstance,
    OutOfOrderSequence,
    ProducerFenced,
    PublishError,
    PublishFailed,
    PublishRefused,
    StaleApplication,
    TooManyBranches,
    TransactionAborted,
    TransactionCommitted,
    TransactionCommitting,
    TransactionError,
    UnknownBranch,
    UnknownPartition,
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
from braidmq.client.tokens import Token as _Token
from braidmq.client.transaction import Transaction
from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    NotAuthenticated,
    NotFound,
)

_DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def connect(
    url: str = _DEFAULT_URL,
    *,
    http_url: str | None = None,
    reconnect: bool = True,
    heartbeat_s: int = _HEARTBEAT_S,
    connect_timeout_s: float = _CONNECT_S,
    name: str = "",
    token: _Token | None = None,
) -> Broker:
    """A broker at an address.

    ```python
    async with braidmq.connect("amqp://user:password@host:5672/vhost") as broker:
        await broker.publish("orders", b"…")
    ```

    HTTP, for ``broker.admin`` and ``broker.read``, is at port 8080 of the same host unless
    ``http_url`` says otherwise. With ``reconnect`` a lost connection is restored, however long it
    takes: what is unconfirmed is sent again, and consumers begin anew. ``name`` is what an
    operator sees of the connection. ``token``, or ``?token=`` in the URL, is a token instead of a
    password: a text, or a function that gives one. That is asked again for each connection, and
    before a JWT ends, which then is renewed while everything goes on. Raises BadAddress; the
    ``with`` raises ConnectFailed, NotAuthenticated or AccessRefused.
    """
    return Broker(
        _parse_address(url, http_url, token),
        reconnect=reconnect,
        heartbeat_s=heartbeat_s,
        connect_timeout_s=connect_timeout_s,
        name=name,
    )


def connect_sync(
    url: str = _DEFAULT_URL,
    *,
    http_url: str | None = None,
    reconnect: bool = True,
    heartbeat_s: int = _HEARTBEAT_S,
    connect_timeout_s: float = _CONNECT_S,
    name: str = "",
    token: _Token | None = None,
) -> SyncBroker:
    """As ``connect``, for programs without an event loop.

    ```python
    with braidmq.connect_sync("amqp://127.0.0.1") as broker:
        broker.publish("orders", b"…")
    ```
    """
    address = _parse_address(url, http_url, token)
    return SyncBroker(
        lambda: Broker(
            address,
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
    "CallFailed",
    "CallTimedOut",
    "ChannelClosed",
    "ClientError",
    "Closed",
    "Confirm",
    "Conflict",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerCancelled",
    "DeliveryTimedOut",
    "Failure",
    "HttpError",
    "Message",
    "Nacked",
    "NotAuthenticated",
    "NotFound",
    "NotInFlight",
    "NotYourTransaction",
    "OtherInstance",
    "OutOfOrderSequence",
    "Place",
    "Producer",
    "ProducerFenced",
    "PublishError",
    "PublishFailed",
    "PublishRefused",
    "Queue",
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
    "TransactionCommitting",
    "TransactionError",
    "UnknownBranch",
    "UnknownPartition",
    "UnknownProducer",
    "UnknownTransaction",
    "Unroutable",
    "Unsupported",
    "WindowFull",
    "connect",
    "connect_sync",
]
