"""Publishing: one message, a batch, or bytes as they are. 2xx means that they are on disk."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import (
    Level,
    NewMessage,
    NewMessages,
    Partition,
    by_partition,
    encode,
)
from braidmq.api.problems import DiskLow, MemoryLow
from braidmq.api.transaction_headers import ORIGIN_ERRORS, PublishHeaders, origin_of
from braidmq.engine.appending import Published
from braidmq.engine.errors import (
    LimitReached,
    MessageTooLarge,
    TopicFull,
    UnknownPartition,
    UnknownTopic,
)
from braidmq.engine.policy import Milliseconds
from braidmq.engine.topics import Topic
from braidmq.model.errors import BadRequest, BraidError, RecordTooLarge
from braidmq.model.limits import MIB
from braidmq.record.batch import RecordBatch
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.rights import write

BATCH_BYTES_MAX = 16 * MIB
"""Sixteen messages of the largest size a topic takes by default, or ten thousand of 1.6 KiB."""

RAW_BYTES_MAX = 128 * MIB
"""What an AMQP queue takes."""

USER_HEADER = "braid-header-"

ERRORS: tuple[type[BraidError], ...] = (
    UnknownTopic,
    UnknownPartition,
    MessageTooLarge,
    RecordTooLarge,
    TopicFull,
    LimitReached,
    RateExceeded,
    MemoryLow,
    DiskLow,
    *ORIGIN_ERRORS,
)


Duplicate = (
    Annotated[bool, Meta(description="True where all was there already; left out otherwise")]
    | UnsetType
)


class Placed(msgspec.Struct, frozen=True):
    """Where a message went; null where that of a duplicate is not known any more."""

    topic: str
    partition: int | None
    offset: int | None
    duplicate: Duplicate = UNSET


class PlacedRun(msgspec.Struct, frozen=True):
    partition: int
    first_offset: int
    count: int


class PublishedBatch(msgspec.Struct, frozen=True):
    """What became of a batch. Within a partition the order is that of the request."""

    topic: str
    count: Annotated[int, Meta(description="Messages taken")]
    partitions: list[PlacedRun]
    refused: Annotated[
        list[int],
        Meta(description="Places in the request of those not taken: the topic became full"),
    ]
    duplicate: Duplicate = UNSET


class RawHeaders(PublishHeaders, frozen=True, kw_only=True):
    """Metadata of a raw message; values are percent-encoded where they are not plain ASCII."""

    content_type: Annotated[str, Meta(description="Kept with the message")] | UnsetType = (
        msgspec.field(default=UNSET, name="Content-Type")
    )
    key: str | UnsetType = msgspec.field(default=UNSET, name="Braid-Key")
    partition: Partition | UnsetType = msgspec.field(default=UNSET, name="Braid-Partition")
    priority: Level | UnsetType = msgspec.field(default=UNSET, name="Braid-Priority")
    delay_ms: Milliseconds | UnsetType = msgspec.field(default=UNSET, name="Braid-Delay-Ms")
    deliver_at_ms: Milliseconds | UnsetType = msgspec.field(
        default=UNSET, name="Braid-Deliver-At-Ms"
    )
    ttl_ms: Milliseconds | UnsetType = msgspec.field(default=UNSET, name="Braid-Ttl-Ms")
    correlation_id: str | UnsetType = msgspec.field(default=UNSET, name="Braid-Correlation-Id")
    reply_to: str | UnsetType = msgspec.field(default=UNSET, name="Braid-Reply-To")
    message_id: str | UnsetType = msgspec.field(default=UNSET, name="Braid-Message-Id")
    type: str | UnsetType = msgspec.field(default=UNSET, name="Braid-Type")
    app_id: str | UnsetType = msgspec.field(default=UNSET, name="Braid-App-Id")


class Publishing:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "POST",
        "/v1/topics/{topic}/messages",
        right=write("topic"),
        tag="publishing",
        statuses=(201,),
        errors=ERRORS,
        body_bytes_max=2 * MIB,
        examples=(
            {"value": "hello"},
            {"json": {"order": 17}, "key": "customer-5", "headers": {"source": "shop"}},
            {"value_base64": "AAEC", "delay_ms": 60_000, "priority": "high"},
        ),
        traffic=True,
    )
    async def publish(
        self, call: Call, topic: str, query: InNamespace, headers: PublishHeaders, body: NewMessage
    ) -> Placed:
        """Publish one message.

        With a producer and a sequence it is written once, however often it is sent. In a
        transaction it is visible when that commits.
        """
        return await self._publish_one(call, query.namespace, topic, headers, body)

    @operation(
        "POST",
        "/v1/topics/{topic}/messages/batch",
        right=write("topic"),
        tag="publishing",
        statuses=(201,),
        errors=ERRORS,
        body_bytes_max=BATCH_BYTES_MAX,
        examples=({"messages": [{"value": "one", "key": "a"}, {"value": "two", "key": "b"}]},),
        traffic=True,
    )
    async def publish_batch(
        self, call: Call, topic: str, query: InNamespace, headers: PublishHeaders, body: NewMessages
    ) -> PublishedBatch:
        """Publish many messages.

        They are taken in order. A topic that becomes full on the way takes those that fit, and
        `refused` names the others; one that is full already answers 429. With a sequence, which is
        the first message's, or in a transaction, all are taken or none.
        """
        await self._context.let_in(call, query.namespace, len(body.messages))
        target = self._target(call, query.namespace, topic)
        done = self._append(call, target, body.messages, headers)
        await self._context.done()
        count = len(body.messages) - len(done.refused)
        runs = [PlacedRun(*run) for run in done.placed]
        return PublishedBatch(topic, count, runs, done.refused, done.duplicate or UNSET)

    @operation(
        "POST",
        "/v1/topics/{topic}/raw",
        right=write("topic"),
        tag="publishing",
        statuses=(201,),
        errors=ERRORS,
        body_bytes_max=RAW_BYTES_MAX,
        traffic=True,
    )
    async def publish_raw(
        self, call: Call, topic: str, query: InNamespace, headers: RawHeaders, body: bytes
    ) -> Placed:
        """Publish the body as it is.

        Metadata comes in headers; `Braid-Header-Name: value` gives the message a header `name`.
        """
        return await self._publish_one(
            call, query.namespace, topic, headers, raw_message(call, headers, body)
        )

    async def _publish_one(
        self, call: Call, namespace: str, name: str, headers: PublishHeaders, message: NewMessage
    ) -> Placed:
        await self._context.let_in(call, namespace)
        target = self._target(call, namespace, name)
        done = self._append(call, target, [message], headers)
        await self._context.done()
        partition, offset = done.placed[0][:2] if done.placed else (None, None)
        return Placed(name, partition, offset, done.duplicate or UNSET)

    def _target(self, call: Call, namespace: str, name: str) -> Topic:
        target = self._context.engine().state.topic(namespace, name)
        self._context.require_room()
        return target

    def _append(
        self, call: Call, topic: Topic, messages: Sequence[NewMessage], headers: PublishHeaders
    ) -> "Appended":
        now_ms, user = self._context.now_ms, call.user.name
        engine = self._context.engine()
        origin = origin_of(self._context, call, topic.namespace, headers)
        # All are encoded before any is published: a bad one must not leave half a batch behind.
        batches = [
            (number, places, encode(grouped, now_ms, user))
            for number, (places, grouped) in by_partition(messages).items()
        ]
        for number, _, batch in batches:
            if number is not None:
                topic.partition(number)
            require_fits(topic, batch)
        if len(batches) > 1 and origin is not None and origin.sequence >= 0:
            raise BadRequest("messages with a sequence must all name the same partition, or none")
        before = sum(each.log.next_offset for each in topic.partitions)
        placed: list[tuple[int, int, int]] = []
        refused: list[int] = []
        full: TopicFull | None = None
        for number, places, batch in batches:
            try:
                done = engine.publishing.publish(
                    topic, batch, now_ms=now_ms, partition=number, origin=origin
                )
            except TopicFull as error:
                full, done = error, Published(None, 0)
            self._context.published(topic.namespace, batch, done.accepted)
            placed += done.placed
            refused += places[done.accepted :]
        if full is not None and not placed:
            raise full
        written = sum(each.log.next_offset for each in topic.partitions) > before
        return Appended(placed, sorted(refused), not written and not refused)


class Appended(NamedTuple):
    placed: list[tuple[int, int, int]]
    refused: list[int]
    """Places of those that did not fit."""
    duplicate: bool


def require_fits(topic: Topic, batch: RecordBatch) -> None:
    """Asked before anything is published: afterwards half of it would be."""
    if batch.value_bytes_max > topic.policy.message_bytes_max:
        raise MessageTooLarge(
            f"a message of {batch.value_bytes_max} bytes is too large: topic {topic.name!r} takes"
            f" at most {topic.policy.message_bytes_max}"
        )


def raw_message(call: Call, headers: RawHeaders, body: bytes) -> NewMessage:
    given: dict[str, Any] = {}
    for field in set(headers.__struct_fields__) - set(PublishHeaders.__struct_fields__):
        value = getattr(headers, field)
        if value is not UNSET:
            given[field] = _unquoted(value) if isinstance(value, str) else value
    own = {
        name.removeprefix(USER_HEADER): _unquoted(value)
        for name, value in call.request.headers.items()
        if name.startswith(USER_HEADER)
    }
    if own:
        given["headers"] = own
    if "deliver_at_ms" in given:
        given["deliver_at"] = given.pop("deliver_at_ms")
    return NewMessage(value_base64=body, **given)


def _unquoted(value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest(f"the header value {value!r} is not percent-encoded UTF-8") from None
