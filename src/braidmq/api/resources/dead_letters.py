"""Dead letters of a topic: listed, looked at, retried, removed.

They are those in the topic its policy names, ``{topic}.dlq`` unless it says otherwise. Where a
policy sends its dead through an exchange they are ordinary messages of whatever queues that leads
to.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Message, show
from braidmq.api.resources.reading import OFFSET_MAX, Offset
from braidmq.engine.dead_letter_queue import Revived
from braidmq.engine.errors import UnknownTopic
from braidmq.engine.topics import Topic
from braidmq.gateways.translation import death_of, without_deaths
from braidmq.model.errors import NotFound
from braidmq.record.batch import Record
from braidmq.security.rights import configure, read, write

LIST_MAX = 1000
RETRY_MAX = 10_000
"""Each is an entry of the journal, and all of them are one turn of the loop."""


class UnknownLetter(NotFound):
    code = "unknown-dead-letter"


class LettersQuery(InNamespace, frozen=True):
    start: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="The first offset to show")] = 0
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class DeadLetterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was given up. `offset` names it here."""

    offset: int
    reason: Annotated[
        str, Meta(description="Why", examples=["rejected", "max-attempts", "expired"])
    ]
    topic: Annotated[str, Meta(description="Where it died")]
    partition: int | UnsetType = UNSET
    original_offset: int | UnsetType = UNSET
    subscription: str | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    error: Annotated[str, Meta(description="What the last consumer said")] | UnsetType = UNSET
    at_ms: int | UnsetType = UNSET
    message: Message


class Letters(msgspec.Struct, frozen=True):
    topic: Annotated[str, Meta(description="The dead-letter topic; empty if there is none")]
    letters: list[DeadLetterInfo]
    next_offset: Annotated[int, Meta(description="Where to read on")]


class Retried(msgspec.Struct, frozen=True):
    count: int
    more: Annotated[bool, Meta(description="Whether there are some left: call again")]


class Removed(msgspec.Struct, frozen=True):
    count: int


class DeadLetters:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics/{topic}/dead-letters",
        right=read("topic"),
        tag="dead letters",
        errors=(UnknownTopic,),
    )
    async def list_dead_letters(self, call: Call, topic: str, query: LettersQuery) -> Letters:
        """List the dead letters of a topic."""
        found = self._context.topic(call, topic)
        dead = self._context.engine().dead_letter_queue.topic_for(found)
        if dead is None:
            return Letters("", [], 0)
        records = list(islice(self._records(found, dead, query.start), query.limit))
        full = len(records) == query.limit
        end = dead.partitions[0].log.next_offset
        return Letters(
            dead.name,
            [described(dead, record) for record in records],
            records[-1].offset + 1 if full else end,
        )

    @operation(
        "GET",
        "/v1/topics/{topic}/dead-letters/{offset}",
        right=read("topic"),
        tag="dead letters",
        errors=(UnknownTopic, UnknownLetter),
    )
    async def describe_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: InNamespace
    ) -> DeadLetterInfo:
        """Look at one dead letter."""
        found = self._context.topic(call, topic)
        return described(*self._one(found, offset))

    @operation(
        "POST",
        "/v1/topics/{topic}/dead-letters/{offset}/retry",
        right=write("topic").and_(read("topic")),
        tag="dead letters",
        statuses=(204,),
        errors=(UnknownTopic, UnknownLetter),
    )
    async def retry_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: InNamespace
    ) -> None:
        """Publish a dead letter again, to the topic it died in.

        It is then a new message there, for all subscriptions, and gone from here.
        """
        found = self._retryable(call, query.namespace, topic)
        dead, record = self._one(found, offset)
        self._retry(found, dead, record)
        await self._context.done()

    @operation(
        "POST",
        "/v1/topics/{topic}/dead-letters/retry",
        right=write("topic").and_(read("topic")),
        tag="dead letters",
        errors=(UnknownTopic,),
    )
    async def retry_dead_letters(self, call: Call, topic: str, query: InNamespace) -> Retried:
        """Publish all dead letters of a topic again, the oldest first.

        At most 10000 a call.
        """
        found = self._retryable(call, query.namespace, topic)
        dead = self._context.engine().dead_letter_queue.topic_for(found)
        if dead is None:
            return Retried(0, False)
        records = self._records(found, dead, 0)
        count = 0

        def retried() -> Iterator[None]:
            nonlocal count
            for record in islice(records, RETRY_MAX):
                if found.deleted or dead.deleted:
                    return
                self._retry(found, dead, record)
                count += 1
                yield

        await self._context.node_loop.work(retried())
        await self._context.done()
        return Retried(count, count == RETRY_MAX and next(records, None) is not None)

    @operation(
        "DELETE",
        "/v1/topics/{topic}/dead-letters/{offset}",
        right=configure("topic"),
        tag="dead letters",
        statuses=(204,),
        errors=(UnknownTopic, UnknownLetter),
    )
    async def delete_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: InNamespace
    ) -> None:
        """Remove a dead letter."""
        found = self._context.topic(call, topic)
        dead, record = self._one(found, offset)
        self._remove(dead, record)
        await self._context.done()

    @operation(
        "DELETE",
        "/v1/topics/{topic}/dead-letters",
        right=configure("topic"),
        tag="dead letters",
        errors=(UnknownTopic,),
    )
    async def purge_dead_letters(self, call: Call, topic: str, query: InNamespace) -> Removed:
        """Remove all dead letters of a topic."""
        found = self._context.topic(call, topic)
        dead = self._context.engine().dead_letter_queue.topic_for(found)
        if dead is None:
            return Removed(0)
        count = 0

        def removed() -> Iterator[None]:
            nonlocal count
            for record in self._records(found, dead, 0):
                if dead.deleted:
                    return
                self._remove(dead, record)
                count += 1
                yield

        await self._context.node_loop.work(removed())
        await self._context.done()
        return Removed(count)

    def _retryable(self, call: Call, namespace: str, topic: str) -> Topic:
        return self._context.topic(call, topic)

    def _records(self, topic: Topic, dead: Topic, start: int) -> Iterator[Record]:
        """Those that died in ``topic``: others may share its dead-letter topic."""
        for record in self._context.engine().dead_letter_queue.letters(dead, start):
            death = death_of(record)
            if death is not None and death.topic == topic.name:
                yield record

    def _one(self, topic: Topic, offset: int) -> tuple[Topic, Record]:
        dead = self._context.engine().dead_letter_queue.topic_for(topic)
        record = next(self._records(topic, dead, offset), None) if dead is not None else None
        if dead is None or record is None or record.offset != offset:
            raise UnknownLetter(f"topic {topic.name!r} has no dead letter {offset}")
        return dead, record

    def _retry(self, topic: Topic, dead: Topic, record: Record) -> None:
        revived = Revived(record, *without_deaths(record))
        engine = self._context.engine()
        engine.dead_letter_queue.bring_back(dead, topic, revived, self._context.now_ms)

    def _remove(self, dead: Topic, record: Record) -> None:
        dead_letter_queue = self._context.engine().dead_letter_queue
        dead_letter_queue.remove(dead, record.offset, record.offset + 1, self._context.now_ms)


def described(dead: Topic, record: Record) -> DeadLetterInfo:
    death = death_of(record)
    assert death is not None, "only records that died are described"
    known = {
        "partition": death.partition,
        "original_offset": death.offset,
        "subscription": death.subscription,
        "attempts": death.attempts,
        "error": death.error or None,
        "at_ms": death.at_ms,
    }
    return DeadLetterInfo(
        offset=record.offset,
        reason=death.reason,
        topic=death.topic,
        message=show(dead.name, 0, record),
        **{name: value for name, value in known.items() if value is not None},  # type: ignore[arg-type]
    )
