"""What can go wrong for a client, each with a type of its own."""

from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    Kind,
    NotAuthenticated,
    NotFound,
    SetupError,
    StorageError,
)
from braidmq.wire.amqp.constants import ReplyCode


class ClientError(BraidError):
    """Root of what the client itself raises."""

    kind = Kind.REFUSED
    code = "client-error"


class ConnectFailed(SetupError):
    """Nobody answered, or not as a broker does."""

    code = "connect-failed"
    remedy = "Start a node with `braid serve`, or correct the address"


class ConnectionLost(ClientError):
    """The connection ended and is not, or not any more, being restored."""

    code = "connection-lost"


class Closed(ClientError):
    """It was closed by this program."""

    code = "closed"
    remedy = "Use it inside its `with`"


class Suspected(ConnectionLost):
    """The broker closed the connection over this request or another one that was under way."""


class ChannelClosed(ClientError):
    """The broker refused a request on a channel and closed it."""

    code = "channel-closed"


class PublishError(ClientError):
    """One message was not taken."""

    code = "publish-error"


class Unroutable(PublishError):
    """Nobody gets what is published there."""

    kind = Kind.NOT_FOUND
    code = "unroutable"
    remedy = "Create the topic, or bind a queue to the exchange, before publishing to it"


class Nacked(PublishError):
    """The broker refused the message: its topic is full, or storage failed."""

    code = "nacked"
    remedy = "Consume from the topic or raise its limit, then publish again"


class PublishRefused(PublishError):
    """The broker closed the channel over a publish, this one or one before it: there is no such
    exchange, the user may not write to it, or the message is too large."""

    code = "publish-refused"
    remedy = "Correct what the broker complains about, then publish again"


class Blocked(PublishError):
    """The broker is low on memory or disk and asked its publishers to wait."""

    code = "blocked"
    remedy = "Wait until it has room, or make the producer with blocked='wait'"


class WindowFull(PublishError):
    """Too much is unconfirmed, and ``put`` was not awaited."""

    code = "window-full"
    remedy = "Await put(), or flush() now and then"


class PublishFailed(PublishError):
    """Some of many messages were not taken; ``failures`` says which and why."""

    code = "publish-failed"

    def __init__(self, failures: "list[Failure]") -> None:
        first = failures[0]
        super().__init__(f"{len(failures)} messages were not published; the first: {first.error}")
        self.failures = failures


class Failure:
    """A message that was not taken, as it was given, and why.

    ```python
    except braidmq.PublishFailed as failed:
        for failure in failed.failures:
            print(failure.routing_key, failure.value, failure.error)
    ```
    """

    __slots__ = ("error", "exchange", "routing_key", "value")

    def __init__(self, exchange: str, routing_key: str, value: bytes, error: PublishError) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.value = value
        self.error = error

    def __repr__(self) -> str:
        return f"Failure({self.routing_key!r}, {len(self.value)} bytes, {self.error.code})"


class AlreadySettled(ClientError):
    """The message was answered before."""

    code = "already-settled"
    remedy = "Acknowledge or reject each message once"


class DeliveryTimedOut(ClientError):
    """The consumer's visibility timeout was over before the message was answered."""

    code = "delivery-timed-out"
    remedy = "It is delivered again: ask for a longer visibility_ms, or extend() it in time"


class ConsumerCancelled(ClientError):
    """The broker ended the consumer: its topic is gone."""

    code = "consumer-cancelled"


class CallTimedOut(ClientError):
    """Nobody answered a call in time. It may have been carried out, or may yet be."""

    code = "call-timed-out"
    remedy = "See that somebody serves the queue, or give a longer timeout_s"


class CallFailed(ClientError):
    """Who served a call answered with an error; the text is theirs."""

    code = "call-failed"


class Unsupported(ClientError):
    """The broker at the other end is not BraidMQ, or an older one."""

    code = "unsupported"


# --- numbered producers and transactions: the codes are the broker's ---


class TransactionError(ClientError):
    """A producer's or a transaction's request was refused."""

    code = "transaction-error"


class UnknownProducer(TransactionError):
    """The broker has forgotten this producer, or never knew it."""

    code = "unknown-producer"


class ProducerFenced(TransactionError):
    """Somebody else has opened this producer since: stop."""

    code = "producer-fenced"


class OutOfOrderSequence(TransactionError):
    """Messages before this one are missing: it is not written."""

    code = "out-of-order-sequence"


class UnknownTransaction(TransactionError):
    """There is none of that name, or it ended long ago."""

    code = "unknown-transaction"


class TransactionCommitted(TransactionError):
    """It is over, and all it did is visible."""

    code = "transaction-committed"


class TransactionAborted(TransactionError):
    """It is over, and nothing it did is visible."""

    code = "transaction-aborted"
    remedy = "Repeat its work in a new transaction"


class TransactionCommitting(TransactionError):
    """What it staged is on its way into its topics."""

    code = "transaction-committing"
    remedy = "Ask again in a moment"


class NotYourTransaction(TransactionError):
    """It is another user's."""

    code = "not-your-transaction"


class UnknownBranch(TransactionError):
    """The transaction has no such branch."""

    code = "unknown-branch"


class TooManyBranches(TransactionError):
    """A transaction has no room for another branch."""

    code = "too-many-branches"


class StaleApplication(TransactionError):
    """A newer run of the application is there: stop."""

    code = "stale-application"


class OtherInstance(StaleApplication):
    """Another run of the application counts in this epoch."""

    code = "other-instance"


class NotInFlight(TransactionError):
    """A message to be acknowledged in a transaction is not with its consumer any more."""

    code = "not-in-flight"


class UnknownPartition(NotFound):
    """The topic has no partition of that number."""

    code = "unknown-partition"
    remedy = "Name a partition that the topic has, or none"


class HttpError(ClientError):
    """The HTTP API answered with something that has no type of its own."""

    code = "http-error"


_BY_CODE: dict[str, type[BraidError]] = {
    UnknownPartition.code: UnknownPartition,
    **{each.code: each for each in TransactionError.__subclasses__()},
}

_BY_REPLY: dict[int, type[BraidError]] = {
    ReplyCode.NO_ROUTE: Unroutable,
    ReplyCode.ACCESS_REFUSED: AccessRefused,
    ReplyCode.NOT_FOUND: NotFound,
    ReplyCode.RESOURCE_LOCKED: Conflict,
    ReplyCode.PRECONDITION_FAILED: Conflict,
    ReplyCode.FRAME_ERROR: BadRequest,
    ReplyCode.SYNTAX_ERROR: BadRequest,
    ReplyCode.COMMAND_INVALID: BadRequest,
    ReplyCode.NOT_ALLOWED: AccessRefused,
    ReplyCode.NOT_IMPLEMENTED: Unsupported,
}

_BY_STATUS: dict[int, type[BraidError]] = {
    400: BadRequest,
    401: NotAuthenticated,
    403: AccessRefused,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    413: BadRequest,
    422: BadRequest,
    503: StorageError,
}


def from_reply(code: int, text: str) -> BraidError:
    """channel.close or connection.close as an error. Our broker begins the text with a code of its
    own where AMQP's says too little: ``PRECONDITION_FAILED - producer-fenced: …``."""
    ours, _, said = text.partition(" - ")[2].partition(": ")
    if ours in _BY_CODE:
        return _BY_CODE[ours](said)
    return _BY_REPLY.get(code, ChannelClosed)(text)


def from_status(status: int, text: str, code: str = "") -> BraidError:
    """An HTTP status as an error, or the code of its problem document."""
    return _BY_CODE.get(code, _BY_STATUS.get(status, HttpError))(text)
