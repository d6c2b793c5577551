"""Reading by offset or time: for anybody, as often as wanted, and no subscription notices."""

from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import BINARY, Call, operation
from braidmq.api.messages import Message, Partition, show
from braidmq.api.problems import NO_STORE
from braidmq.api.resources.subscriptions import Isolation, Position, position
from braidmq.engine.errors import BadPosition, UnknownPartition, UnknownTopic
from braidmq.engine.topics import Topic
from braidmq.model.errors import NotFound, OffsetOutOfRange
from braidmq.model.limits import MIB
from braidmq.record.batch import FLAG_CONTROL, Record
from braidmq.security.rights import read

READ_MAX = 1000
READ_BYTES_MAX = 4 * MIB
OFFSET_MAX = (1 << 63) - 1

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Offset of a message")]


class UnknownOffset(NotFound):
    """Not there yet, or not any more."""

    code = "unknown-offset"


class ReadQuery(InNamespace, frozen=True):
    start: Position = "earliest"
    limit: Annotated[int, Meta(ge=1, le=READ_MAX, description="Messages at most")] = 100
    bytes_max: Annotated[
        int, Meta(ge=1, le=READ_BYTES_MAX, description="Stop after about this much")
    ] = MIB
    isolation: Isolation = "read_committed"


class ReadMessages(msgspec.Struct, frozen=True):
    messages: list[Message]
    next_offset: Annotated[int, Meta(description="Where to read on")]
    end_offset: Annotated[
        int,
        Meta(description="Where there is nothing more to read: the end, or an open transaction"),
    ]


class Reading:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/messages",
        right=read("topic"),
        tag="reading",
        errors=(UnknownTopic, UnknownPartition, BadPosition),
    )
    async def read_messages(
        self, call: Call, topic: str, partition: Partition, query: ReadQuery
    ) -> ReadMessages:
        """Read messages of a partition, from an offset or a time on.

        Messages that wait for their time are shown too; what a queue has let go of is skipped.
        """
        found = self._context.topic(call, topic)
        engine = self._context.engine()
        at = engine.reading.find_offset(found, partition, position(query.start))
        uncommitted = query.isolation == "read_uncommitted"
        end = self._end(found, partition, uncommitted)
        records, at = self._records(found, partition, at, query.limit, query.bytes_max, uncommitted)
        return ReadMessages([show(topic, partition, each) for each in records], at, end)

    def _end(self, topic: Topic, partition: int, uncommitted: bool) -> int:
        """Where reading ends for now."""
        found = topic.partitions[partition]
        return found.log.next_offset if uncommitted else found.stable_offset

    def _records(
        self,
        topic: Topic,
        partition: int,
        at: int,
        limit: int,
        bytes_max: int,
        uncommitted: bool = False,
    ) -> tuple[list[Record], int]:
        """Records from ``at`` on, and where to go on."""
        end = self._end(topic, partition, uncommitted)
        records: list[Record] = []
        while at < end and len(records) < limit and bytes_max > 0:
            runs = self._context.engine().reading.read(
                topic, partition, at, bytes_max, uncommitted=uncommitted
            )
            if not runs:
                return records, end  # the rest is gone
            for run in runs:
                stop = min(run.stop, run.first + limit - len(records))
                if stop == run.first:
                    break
                found = [run.batch.record(index) for index in range(run.first, stop)]
                records += [each for each in found if not each.flags & FLAG_CONTROL]
                bytes_max -= sum(len(each.value or b"") + 1 for each in found)
                at = found[-1].offset + 1
        return records, at

    @operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/messages/{offset}",
        right=read("topic"),
        tag="reading",
        errors=(UnknownTopic, UnknownPartition, UnknownOffset),
    )
    async def read_message(
        self, call: Call, topic: str, partition: Partition, offset: Offset, query: InNamespace
    ) -> Message:
        """Read one message."""
        return show(topic, partition, self._one(call, query.namespace, topic, partition, offset))

    @operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/messages/{offset}/raw",
        right=read("topic"),
        tag="reading",
        statuses=(200, 204),
        errors=(UnknownTopic, UnknownPartition, UnknownOffset),
        binary=True,
    )
    async def read_raw(
        self, call: Call, topic: str, partition: Partition, offset: Offset, query: InNamespace
    ) -> Response:
        """Read the value of one message as it is.

        What else there is of it comes in `Braid-…` headers, percent-encoded. A message without a
        value, which marks its key as deleted, is answered with 204.
        """
        record = self._one(call, query.namespace, topic, partition, offset)
        headers = NO_STORE | raw_headers(show(topic, partition, record))
        if record.value is None:
            return Response(status_code=204, headers=headers)
        return Response(record.value, 200, headers=headers, media_type=BINARY)

    def _one(self, call: Call, namespace: str, topic: str, partition: int, offset: int) -> Record:
        found = self._context.topic(call, topic)
        found.partition(partition)
        try:
            records, _ = self._records(found, partition, offset, 1, 1)
        except OffsetOutOfRange:
            records = []
        if not records or records[0].offset != offset:
            raise UnknownOffset(f"topic {topic!r}, partition {partition} has no offset {offset}")
        return records[0]


def raw_headers(message: Message) -> dict[str, str]:
    """Metadata of a message as headers; all but its value."""
    # A browser must not take a message for a page of ours.
    found = {"x-content-type-options": "nosniff"}
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if isinstance(value, str | int) and field != "value":
            found["braid-" + field.replace("_", "-")] = quote(str(value), safe=SAFE)
    if isinstance(message.headers, dict):
        for name, value in message.headers.items():
            found["braid-header-" + quote(name, safe="")] = quote(value, safe=SAFE)
    return found


SAFE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What may stand in a header as it is: all of ASCII but the percent sign and control characters."""
