"""Replay: messages of a topic by offset or time, without a group, as often as wanted.

Over HTTP, page by page: a read ends, and where it ends is part of each page, while a consumer's
deliveries have no end. JSON is decoded into structs in one step a page.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from braidmq.client.admin import Admin, read_page
from braidmq.client.metadata import milliseconds
from braidmq.model.errors import BadRequest

PAGE_MESSAGES = 1000
FOLLOW_S = 0.2
"""How often a reader that follows looks for more."""


class _Page(msgspec.Struct):
    messages: "list[StoredMessage]"
    next_offset: int
    end_offset: int


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the log has it. ``value`` None marks its key as deleted.

    ```python
    async for message in broker.read("orders", from_offset=0):
        print(message.offset, message.key, message.value)
    ```
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When the broker first saw it."""
    text: str | None = msgspec.field(name="value", default=None)
    data: bytes | None = msgspec.field(name="value_base64", default=None)
    key_text: str | None = msgspec.field(name="key", default=None)
    key_data: bytes | None = msgspec.field(name="key_base64", default=None)
    headers: dict[str, str] = {}
    headers_base64: dict[str, bytes] = {}
    priority: int = 0
    deliver_at_ms: int | None = None
    expires_at_ms: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    type: str | None = None
    app_id: str | None = None
    exchange: str | None = None
    routing_key: str | None = None

    @property
    def value(self) -> bytes | None:
        """Its bytes; None marks its key as deleted."""
        return self.text.encode() if self.text is not None else self.data

    @property
    def key(self) -> bytes | None:
        """What it is grouped and ordered by, if anything."""
        return self.key_text.encode() if self.key_text is not None else self.key_data


_decoder = msgspec.json.Decoder(_Page)


async def read(
    admin: Admin,
    topic: str,
    *,
    from_offset: int | None,
    from_time: datetime | int | None,
    partition: int | None,
    follow: bool,
) -> AsyncIterator[StoredMessage]:
    """Partition by partition up to where it ended when the read began; with ``follow`` on and on,
    the partitions in turn."""
    if from_offset is not None and from_time is not None:
        raise BadRequest(
            "from_offset and from_time can't both be given", remedy="Give only one of them"
        )
    if from_offset is not None and partition is None:
        partition = 0
    start = "earliest" if from_offset is None else str(from_offset)
    if from_time is not None:
        start = f"@{milliseconds(from_time)}"
    described = await admin.describe_topic(topic)
    ends = {each["partition"]: each["next_offset"] for each in described["partitions"]}
    if partition is not None:
        ends = {partition: ends.get(partition, 0)}
    starts = dict.fromkeys(ends, start)
    while True:
        for number, end in ends.items():
            async for message in _partition(admin, topic, number, starts, None if follow else end):
                yield message
        if not follow:
            return
        await asyncio.sleep(FOLLOW_S)


async def _partition(
    admin: Admin, topic: str, partition: int, starts: dict[int, str], end: int | None
) -> AsyncIterator[StoredMessage]:
    """To ``end``, or to where the partition ends now; ``starts`` has where to go on."""
    while True:
        raw = await read_page(admin, topic, partition, starts[partition], PAGE_MESSAGES)
        page = _decoder.decode(raw)
        stop = page.end_offset if end is None else end
        for message in page.messages:
            if message.offset >= stop:
                break
            yield message
        starts[partition] = str(page.next_offset)
        if page.next_offset >= stop:
            return
