"""Messages as a consumer gets them: places in the bytes of their run, decoded when asked."""

from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from braidmq.client.metadata import KEY
from braidmq.wire.amqp.client import Delivery, DeliveryRun, deliveries
from braidmq.wire.amqp.properties import Properties, decode_properties
from braidmq.wire.amqp.tables import FieldValue

if TYPE_CHECKING:
    from braidmq.client.connection import Channel

DELIVERY_COUNT = "x-delivery-count"


class Source(Protocol):
    """A consumer's channel to who answers for its messages in a transaction."""

    @property
    def channel(self) -> "Channel | None":
        """None when it is gone, and what it had is delivered again."""

    def let_go(self, first: int, last: int) -> None:
        """The broker knows that these are the transaction's, or were."""

    def give_back(self, first: int, last: int) -> None:
        """They are not the transaction's: those that the broker has as unanswered come again."""


class Answers(Protocol):
    """Where messages are answered: ranges of delivery tags of one channel."""

    topic: str

    def ack(self, first: int, last: int) -> Awaitable[None]: ...

    def nack(self, first: int, last: int, delay_ms: int | None) -> Awaitable[None]: ...

    def reject(self, first: int, last: int) -> Awaitable[None]: ...

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        """Have a transaction answer for them: on what, and which were not answered before."""


class Message(Delivery):
    """``value`` is its bytes. Everything else is decoded when it is first asked for.

    ``ack()`` says that it is done with. Answers go out at the end of this turn of the loop:
    awaiting them is allowed, not needed. A second answer raises AlreadySettled; one for a delivery
    whose connection is gone does nothing, as the broker delivers the message again.
    """

    __slots__ = ("_properties",)

    def __repr__(self) -> str:
        return f"<Message {self.topic!r} {len(self.value)} bytes, tag {self.delivery_tag}>"

    # --- answers ---

    def nack(self, *, delay_ms: int | None = None) -> Awaitable[None]:
        """It failed: deliver it again, as the topic's retry policy says or after ``delay_ms``."""
        tag = self.delivery_tag
        answers: Answers = self.ledger
        return answers.nack(tag, tag, delay_ms)

    def reject(self) -> Awaitable[None]:
        """It will never succeed: to the dead letters at once."""
        tag = self.delivery_tag
        answers: Answers = self.ledger
        return answers.reject(tag, tag)

    def take_for_transaction(self) -> tuple[Source, list[tuple[int, int]]]:
        tag = self.delivery_tag
        answers: Answers = self.ledger
        return answers.take(tag, tag)

    # --- what it says ---

    @property
    def topic(self) -> str:
        """The topic it was consumed from."""
        answers: Answers = self.ledger
        return answers.topic

    @property
    def properties(self) -> Properties:
        try:
            return self._properties
        except AttributeError:
            self._properties: Properties = decode_properties(self.run.properties(self.index))
            return self._properties

    @property
    def headers(self) -> dict[str, FieldValue]:
        return self.properties.headers or {}

    @property
    def key(self) -> bytes | None:
        key = self.headers.get(KEY)
        return key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else None

    @property
    def exchange(self) -> str:
        return self.run.route(self.index)[0].decode()

    @property
    def routing_key(self) -> str:
        return self.run.route(self.index)[1].decode()

    @property
    def content_type(self) -> str | None:
        return self.properties.content_type

    @property
    def content_encoding(self) -> str | None:
        return self.properties.content_encoding

    @property
    def correlation_id(self) -> str | None:
        return self.properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self.properties.reply_to

    @property
    def message_id(self) -> str | None:
        return self.properties.message_id

    @property
    def priority(self) -> int | None:
        return self.properties.priority

    @property
    def ttl_ms(self) -> int | None:
        text = self.properties.expiration
        return int(text) if text is not None and text.isdecimal() else None

    @property
    def timestamp(self) -> datetime | None:
        """When it was made, if its publisher said; None too for what is no date."""
        seconds = self.properties.timestamp
        try:
            return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def delivery_count(self) -> int:
        """Deliveries of it, this one included, as far as the broker says."""
        count = self.headers.get(DELIVERY_COUNT)
        if isinstance(count, int):
            return count + 1
        return 2 if self.redelivered else 1


class Batch:
    """Messages that arrived together, and are answered together."""

    __slots__ = ("_answers", "_run")

    def __init__(self, run: DeliveryRun, answers: Answers) -> None:
        self._run = run
        self._answers = answers

    def __len__(self) -> int:
        return self._run.count

    def __iter__(self) -> Iterator[Message]:
        return iter(deliveries(self._run, Message, self._answers))

    @property
    def values(self) -> list[bytes]:
        """The value of each, in one step."""
        return self._run.values()

    def ack(self) -> Awaitable[None]:
        """All that were not answered one by one."""
        return self._answers.ack(self._run.first_tag, self._run.last_tag)

    def nack(self, *, delay_ms: int | None = None) -> Awaitable[None]:
        return self._answers.nack(self._run.first_tag, self._run.last_tag, delay_ms)

    def reject(self) -> Awaitable[None]:
        return self._answers.reject(self._run.first_tag, self._run.last_tag)

    def take_for_transaction(self) -> tuple[Source, list[tuple[int, int]]]:
        return self._answers.take(self._run.first_tag, self._run.last_tag)
