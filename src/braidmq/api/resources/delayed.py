"""Messages that wait for their time, and what became of them: listed, counted, cancelled."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace, MillisecondsSinceEpoch, PagedQuery
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Message, Partition, show
from braidmq.api.paging import (
    BEGINNING,
    LIST_MAX,
    OffsetPlace,
    Page,
    cursor_of,
    first_of,
    place_in,
)
from braidmq.api.resources.reading import Offset
from braidmq.engine.delay_ends import KEPT_MAX, DelayEnd
from braidmq.engine.errors import NotDelayed, UnknownPartition, UnknownTopic
from braidmq.engine.topics import Topic
from braidmq.model.errors import BadRequest
from braidmq.security.rights import read, write

DelayState = Literal["pending", "delivered", "cancelled", "expired"]


class DelayedQuery(PagedQuery, frozen=True):
    state: Annotated[
        DelayState,
        Meta(
            description="Those that wait, or whose time came, that were cancelled, or that expired"
            " before their time: since the node started"
        ),
    ] = "pending"
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class EndedDelay(msgspec.Struct, frozen=True):
    """A message that was published for later and waits no more."""

    partition: int
    offset: int
    state: DelayState
    deliver_at_ms: MillisecondsSinceEpoch
    ended_ms: MillisecondsSinceEpoch


class DelayedMessages(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(description="All in that state, listed or not")]
    messages: Annotated[list[Message], Meta(description="Those that are pending")]
    ended: Annotated[
        list[EndedDelay],
        Meta(description=f"In another state the last of a topic, at most {KEPT_MAX}; latest first"),
    ] = msgspec.field(default_factory=list)


class DelayedResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics/{topic}/delayed",
        right=read("topic"),
        tag="delayed",
        errors=(UnknownTopic, BadRequest),
    )
    async def list_delayed(
        self, call: Call, topic: str, query: DelayedQuery
    ) -> DelayedMessages | Page:
        """List messages that wait for their time, by partition and offset; or what became of them.

        What was delivered, cancelled or expired is counted since the node started, and the last of
        it kept in memory: a topic that was quiet while a thousand others were not is only counted.
        """
        found = self._context.topic(call, topic)
        if query.state != "pending":
            return self._ended(found, DelayEnd(query.state), query)
        engine = self._context.engine()
        after = place_in(query.cursor, OffsetPlace, BEGINNING)
        now_ms = self._context.now_ms
        later = engine.delayed.find(found, now_ms=now_ms, limit=query.limit + 1, after=after)
        waiting, more = first_of(list(later), query.limit)
        return Page(
            DelayedMessages(
                engine.delayed.count(found),
                [show(topic, each.partition, each.record) for each in waiting],
            ),
            cursor_of([waiting[-1].partition, waiting[-1].record.offset]) if more else "",
        )

    def _ended(self, topic: Topic, state: DelayEnd, query: DelayedQuery) -> DelayedMessages:
        if query.cursor:
            raise BadRequest("only pending messages come in pages", remedy="Leave out the cursor")
        ends = self._context.engine().delay_ends
        latest = [
            EndedDelay(each.partition, each.offset, state.value, each.due_ms, each.ended_ms)
            for each in ends.latest(topic, state, query.limit)
        ]
        return DelayedMessages(ends.counts(topic)[state], [], latest)

    @operation(
        "DELETE",
        "/v1/topics/{topic}/delayed/{partition}/{offset}",
        right=write("topic"),
        tag="delayed",
        statuses=(204,),
        errors=(UnknownTopic, UnknownPartition, NotDelayed),
    )
    async def cancel_delayed(
        self, call: Call, topic: str, partition: Partition, offset: Offset, query: InNamespace
    ) -> None:
        """Cancel a message before its time: it is delivered to nobody."""
        found = self._context.engine().state.topic(query.namespace, topic)
        self._context.engine().delayed.cancel(found, partition, offset, self._context.now_ms)
        await self._context.done()
