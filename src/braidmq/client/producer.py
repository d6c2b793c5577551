"""A producer as programs see it."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import Self, Unpack

from braidmq.client.confirm import Confirm
from braidmq.client.errors import Closed
from braidmq.client.link import Link
from braidmq.client.metadata import Metadata
from braidmq.client.publishing import ProducerOptions, Publishing, Value


class Producer:
    """Publishes many messages: made with ``broker.producer()``.

    ```python
    async with broker.producer(linger_ms=2) as producer:
        await producer.put("orders", b"…")
    ```

    Outside its ``with`` everything raises Closed. At the end of the block all is confirmed, or
    PublishFailed says what is not.
    """

    def __init__(self, link: Link, **options: Unpack[ProducerOptions]) -> None:
        self._link = link
        self._publishing = Publishing(link, **options)
        # There is one for each message: without a call in between.
        self.__dict__["put"] = self._publishing.put

    async def __aenter__(self) -> Self:
        if self._publishing.number:
            raise Closed("a producer can be opened once", remedy="Make another with producer()")
        await self._link.attach(self._publishing)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self._publishing.flush()
        finally:
            await self._publishing.close()

    async def close(self) -> None:
        """End without waiting for confirms: ``flush`` does that."""
        await self._publishing.close()

    @property
    def unconfirmed(self) -> int:
        """Messages given to it that the broker has not confirmed yet."""
        return self._publishing.unconfirmed

    async def send(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Confirm:
        """Publish a message; the broker has it on disk when this returns, with where it is.

        ``topic`` is the routing key where an exchange is named. Raises Unroutable, Nacked or
        another PublishError. If it is cancelled, the message may have been published. A future
        for a confirm is ``asyncio.create_task(producer.send(…))``.
        """
        return await self._publishing.send(topic, value, exchange=exchange, **metadata)

    def put(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Awaitable[None]:
        """Publish a message without waiting for its confirm.

        Await it: that waits while too much is unconfirmed. What fails goes to ``on_error``, or is
        raised by ``flush``; or all confirms go to who reads ``confirms``.
        """
        return self._publishing.put(topic, value, exchange=exchange, **metadata)

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        """Publish messages with the same metadata; the broker has all on disk when this returns.

        Raises PublishFailed, which says which of them it has not.
        """
        await self._publishing.send_many(topic, values, exchange=exchange, **metadata)

    async def put_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        """As ``put``, for messages with the same metadata."""
        await self._publishing.put_many(topic, values, exchange=exchange, **metadata)

    async def flush(self) -> None:
        """Send what waits, and wait until everything so far is settled.

        Raises PublishFailed with what ``put`` failed with since the last flush.
        """
        await self._publishing.flush()

    def confirms(self) -> AsyncIterator[Confirm]:
        """The confirms of what is ``put`` from here on, one for each message, until it is closed.

        ```python
        async for confirm in producer.confirms():
            print(confirm.routing_key, confirm.error or confirm.place)
        ```

        Call it before the first ``put``, and read in a task of its own: while as many as ``window``
        allows are not read, ``put`` waits. Messages that were refused are here too, and neither
        ``flush`` nor ``on_error`` has them then. Raises BadRequest with ``ack="none"``.
        """
        self._publishing.begin_stream()
        return self._stream()

    async def _stream(self) -> AsyncIterator[Confirm]:
        while confirms := await self._publishing.next_confirms():
            for confirm in confirms:
                yield confirm


def publishing_of(producer: Producer) -> Publishing:
    return producer._publishing
