"""Messages that wait for their time: listed, counted, cancelled."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Message, Partition, show
from braidmq.api.resources.reading import OFFSET_MAX, Offset
from braidmq.engine.errors import NotDelayed, UnknownPartition, UnknownTopic
from braidmq.security.rights import read, write

LIST_MAX = 1000


class DelayedQuery(InNamespace, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    partition: Annotated[
        int, Meta(ge=0, le=10_000, description="Begin in this partition: the next page")
    ] = 0
    after: Annotated[
        int, Meta(ge=-1, le=OFFSET_MAX, description="In it, only offsets after this one")
    ] = -1


class DelayedMessages(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(description="All that wait, listed or not")]
    messages: list[Message]


class DelayedResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics/{topic}/delayed",
        right=read("topic"),
        tag="delayed",
        errors=(UnknownTopic,),
    )
    async def list_delayed(self, call: Call, topic: str, query: DelayedQuery) -> DelayedMessages:
        """List messages that wait for their time, by partition and offset."""
        found = self._context.topic(call, topic)
        engine = self._context.engine()
        after = query.partition, query.after
        now_ms = self._context.now_ms
        waiting = engine.delayed.find(found, now_ms=now_ms, limit=query.limit, after=after)
        return DelayedMessages(
            engine.delayed.count(found),
            [show(topic, each.partition, each.record) for each in waiting],
        )

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
        self._context.engine().delayed.cancel(found, partition, offset)
        await self._context.done()
