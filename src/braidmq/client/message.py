"""Messages as a consumer gets them: places in the bytes of their run, decoded when asked."""

from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from braidmq.client.metadata import KEY, PARTITION
from braidmq.model.limits import ERROR_CHARACTERS_MAX
from braidmq.wire.amqp.client import Delivery, DeliveryRun, deliveries
from braidmq.wire.amqp.properties import Properties, decode_properties
from braidmq.wire.amqp.tables import FieldValue

if TYPE_CHECKING:
    from braidmq.client.connection import Channel

DELIVERY_COUNT = "x-delivery-count"
FIRST_SEEN_MS = "x-first-seen-ms"
OFFSET = "x-offset"
FACTS = frozenset({DELIVERY_COUNT, FIRST_SEEN_MS, OFFSET, PARTITION})
"""Headers that the broker adds to a delivery."""
DATE_MS_MAX = 1 << 47
"""More than any date that Python can hold is no time."""

T = TypeVar("T", str, int)


class Death(NamedTuple):
    """Why a message is a dead letter. What the broker does not say is None."""

    topic: str
    """Where it died."""
    reason: str
    partition: int | None
    """None, as is the offset, for what a full topic never took."""
    offset: int | None
    attempts: int | None
    subscription: str | None
    error: str | None
    """What the last consumer said."""
    time: datetime | None


class Source(Protocol):
    """A consumer's channel to who answers for its messages in a transaction."""

    @property
    def channel(self) -> "Channel | None":
        """None when it is gone, and what it had is delivered again."""

    def let_go(self, first: int, last: int) -> None:
        """The broker knows that these are the transaction's, or were."""

    def give_back(self, first: int, last: int) -> None:
        """They are not the transaction's: those that the broker has as unanswered come again."""


Failed = tuple[bool, int | None, str]
"""How work on messages failed: for good or to be tried again, after how long, and why."""


class Answers(Protocol):
    """Where messages are answered: ranges of delivery tags of one channel."""

    topic: str

    def ack(self, first: int, last: int) -> Awaitable[None]: ...

    def nack(self, first: int, last: int, delay_ms: int | None, error: str) -> Awaitable[None]: ...

    def reject(self, first: int, last: int, error: str) -> Awaitable[None]: ...

    def extend(self, first: int, last: int, visibility_ms: int) -> Awaitable[None]: ...

    def finish(self, first: int, last: int, failure: Failed | None) -> Awaitable[None]:
        """Answer for those that have no answer yet, if any; the error is kept where the broker can
        keep it."""

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        """Have a transaction answer for them: on what, and which were not answered before."""


Kinds = type[BaseException] | tuple[type[BaseException], ...]


class Processing:
    """A block of work on messages, with ``async with`` or ``with``: see ``Message.process``."""

    __slots__ = ("_answers", "_delay_ms", "_first", "_last", "_reject")

    def __init__(
        self, answers: Answers, first: int, last: int, delay_ms: int | None, reject: Kinds
    ) -> None:
        self._answers = answers
        self._first, self._last = first, last
        self._delay_ms = delay_ms
        self._reject = reject

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure: Failed | None = None
        if error is not None:
            # Who stops the program says nothing about the message.
            said = text_of(error) if isinstance(error, Exception) else ""
            failure = isinstance(error, self._reject), self._delay_ms, said
        self._answers.finish(self._first, self._last, failure)

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


class Message(Delivery):
    """A message as a consumer gets it.

    ```python
    print(message.value, message.key, message.headers)
    await message.ack()
    ```

    ``value`` is its bytes. Everything else is decoded when it is first asked for.

    ``ack()`` says that it is done with. Answers go out at the end of this turn of the loop:
    awaiting them is allowed, not needed. A second answer raises AlreadySettled; one for a delivery
    whose connection is gone does nothing, as the broker delivers the message again. After the
    visibility timeout, if the consumer has one, it raises DeliveryTimedOut.
    """

    __slots__ = ("_headers", "_properties")

    def __repr__(self) -> str:
        return f"<Message {self.topic!r} {len(self.value)} bytes, tag {self.delivery_tag}>"

    # --- answers ---

    def nack(self, *, delay_ms: int | None = None, error: object = "") -> Awaitable[None]:
        """It failed: deliver it again, as the topic's retry policy says or after ``delay_ms``.

        If that makes it a dead letter, that says why: ``error``, a text or an exception, of which
        the first 4096 characters are kept.
        """
        tag = self.delivery_tag
        answers: Answers = self._ledger
        return answers.nack(tag, tag, delay_ms, text_of(error))

    def reject(self, *, error: object = "") -> Awaitable[None]:
        """It will never succeed: to the dead letters at once, with the ``error``."""
        tag = self.delivery_tag
        answers: Answers = self._ledger
        return answers.reject(tag, tag, text_of(error))

    def process(self, *, delay_ms: int | None = None, reject: Kinds = ()) -> "Processing":
        """Work on it, and answer for it at the end.

        ```python
        async with message.process(delay_ms=1000, reject=ValueError):
            await work_on(message)
        ```

        When the block ends well it is acknowledged. An exception of a kind that ``reject`` names
        sends it to the dead letters; any other has it delivered again, after ``delay_ms`` or as
        the topic's retry policy says. Either way the exception is kept with it as the error, and
        goes on. What was answered inside stays as it was answered. Without ``async`` the same.
        """
        tag = self.delivery_tag
        return Processing(self._ledger, tag, tag, delay_ms, reject)

    def extend(self, visibility_ms: int) -> Awaitable[None]:
        """More time to answer, from now on. For consumers with ``visibility_ms``."""
        tag = self.delivery_tag
        answers: Answers = self._ledger
        return answers.extend(tag, tag, visibility_ms)

    # --- what it says ---

    @property
    def topic(self) -> str:
        """The topic it was consumed from."""
        answers: Answers = self._ledger
        return answers.topic

    @property
    def properties(self) -> Properties:
        """AMQP's properties, as they came."""
        try:
            return self._properties
        except AttributeError:
            self._properties: Properties = decode_properties(self._run.properties(self._index))
            return self._properties

    @property
    def headers(self) -> dict[str, FieldValue]:
        """As its publisher gave them."""
        try:
            return self._headers
        except AttributeError:
            every = self.properties.headers or {}
            self._headers: dict[str, FieldValue] = {
                name: value for name, value in every.items() if name not in FACTS
            }
            return self._headers

    @property
    def key(self) -> bytes | None:
        """What it is grouped and ordered by, if anything."""
        key = self.headers.get(KEY)
        return key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else None

    @property
    def exchange(self) -> str:
        """The exchange it was published to; empty for a topic or queue."""
        return self._run.route(self._index)[0].decode()

    @property
    def routing_key(self) -> str:
        """What it was published with: mostly the name of its topic."""
        return self._run.route(self._index)[1].decode()

    @property
    def content_type(self) -> str | None:
        """What its value is: ``text/plain``."""
        return self.properties.content_type

    @property
    def content_encoding(self) -> str | None:
        """How its value is packed: ``gzip``."""
        return self.properties.content_encoding

    @property
    def correlation_id(self) -> str | None:
        """Which request it answers, or is."""
        return self.properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        """Where its answer goes: ``broker.reply`` sends it there."""
        return self.properties.reply_to

    @property
    def message_id(self) -> str | None:
        """As its publisher named it."""
        return self.properties.message_id

    @property
    def type(self) -> str | None:
        """What kind of message it is, in its publisher's words."""
        return self.properties.type

    @property
    def app_id(self) -> str | None:
        """The program that published it."""
        return self.properties.app_id

    @property
    def user_id(self) -> str | None:
        """Who published it: the broker vouches for it."""
        return self.properties.user_id

    @property
    def priority(self) -> int | None:
        """Of 0 to 255, the highest first where the queue has priorities."""
        return self.properties.priority

    @property
    def ttl_ms(self) -> int | None:
        """How long it was worth delivering, from when it was published."""
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

    # --- what the broker knows of it ---

    def _fact(self, name: str) -> int | None:
        value = (self.properties.headers or {}).get(name)
        return value if isinstance(value, int) else None

    @property
    def death(self) -> Death | None:
        """Why it is a dead letter; None for what is none."""
        return _death_in(self.headers)

    @property
    def delivery_count(self) -> int:
        """Deliveries of it, this one included, as far as the broker says."""
        before = self._fact(DELIVERY_COUNT)
        if before is not None:
            return before + 1
        return 2 if self.redelivered else 1

    @property
    def partition(self) -> int | None:
        """Where it is; None with brokers that do not say, as offset and first_seen_ms are."""
        return self._fact(PARTITION)

    @property
    def offset(self) -> int | None:
        """Its place in its partition."""
        return self._fact(OFFSET)

    @property
    def first_seen_ms(self) -> int | None:
        """When the broker first saw it: milliseconds since the epoch."""
        return self._fact(FIRST_SEEN_MS)


def _death_in(headers: dict[str, FieldValue]) -> Death | None:
    def said(name: str, kind: type[T]) -> T | None:
        value = headers.get(f"x-death-{name}")
        return value if isinstance(value, kind) else None

    topic, reason = said("topic", str), said("reason", str)
    if topic is None or reason is None:
        return None
    partition, offset, at_ms = said("partition", int), said("offset", int), said("time", int)
    if partition is None or partition < 0:
        partition = offset = None
    known = at_ms is not None and 0 <= at_ms < DATE_MS_MAX
    return Death(
        topic,
        reason,
        partition,
        offset,
        said("attempts", int),
        said("subscription", str),
        said("error", str),
        datetime.fromtimestamp(at_ms / 1000, UTC) if known and at_ms is not None else None,
    )


def text_of(error: object) -> str:
    """Exceptions with their kind: many have no text of their own."""
    if isinstance(error, BaseException):
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    else:
        said = str(error)
    return said[:ERROR_CHARACTERS_MAX]


class Batch:
    """Messages that arrived together, and are answered together.

    ```python
    async for batch in consumer.batches():
        for message in batch:
            print(message.key, message.value)
        await batch.ack()
    ```

    ``len(batch)`` is how many. What was answered singly is left out of an answer; when that is all
    of it, AlreadySettled is raised.
    """

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

    def nack(self, *, delay_ms: int | None = None, error: object = "") -> Awaitable[None]:
        """As ``Message.nack``, for all that were not answered one by one."""
        first, last = self._run.first_tag, self._run.last_tag
        return self._answers.nack(first, last, delay_ms, text_of(error))

    def reject(self, *, error: object = "") -> Awaitable[None]:
        """As ``Message.reject``, for all that were not answered one by one."""
        return self._answers.reject(self._run.first_tag, self._run.last_tag, text_of(error))

    def process(self, *, delay_ms: int | None = None, reject: Kinds = ()) -> "Processing":
        """Work on all of them, and answer at the end for those that were not answered singly.

        ```python
        async with batch.process(delay_ms=1000, reject=ValueError):
            await work_on(batch)
        ```

        When the block ends well it is acknowledged. An exception of a kind that ``reject`` names
        sends it to the dead letters; any other has it delivered again, after ``delay_ms`` or as
        the topic's retry policy says. Either way the exception is kept with it as the error, and
        goes on. What was answered inside stays as it was answered. Without ``async`` the same.
        """
        first, last = self._run.first_tag, self._run.last_tag
        return Processing(self._answers, first, last, delay_ms, reject)

    def extend(self, visibility_ms: int) -> Awaitable[None]:
        """More time for all of them that were not answered."""
        return self._answers.extend(self._run.first_tag, self._run.last_tag, visibility_ms)


# --- for those who work with them ---


def last_tag_of(batch: Batch) -> int:
    return batch._run.last_tag


def take(message: Message | Batch) -> tuple[Source, list[tuple[int, int]]]:
    """Have a transaction answer for it: on what, and what of it was not answered before."""
    answers: Answers
    if isinstance(message, Batch):
        answers, first, last = message._answers, message._run.first_tag, message._run.last_tag
    else:
        answers, first, last = message._ledger, message.delivery_tag, message.delivery_tag
    return answers.take(first, last)
