"""BraidMQ: a message broker in which many protocols are strands of one durable log.

The client's names are here too, and loaded when first asked for: ``braid --version`` needs no event
loop.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

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
"""Those of ``braidmq.client``; ``__init__.pyi`` has them for type checkers."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'braidmq' has no attribute {name!r}")
    return getattr(import_module("braidmq.client"), name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
