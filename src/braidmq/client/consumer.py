"""A consumer as programs see it."""

from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Self, Unpack

from braidmq.client.awaitables import TURN
from braidmq.client.consuming import ConsumerOptions, Consuming
from braidmq.client.link import Link
from braidmq.client.message import Batch, Message


class Consumer:
    """Takes the messages of a topic or queue: made with ``broker.consume()``.

    ```python
    async with broker.consume("orders", group="billing") as consumer:
        async for message in consumer:
            await message.ack()
    ```

    Outside its ``with`` everything raises Closed. When its queue is deleted it raises
    ConsumerCancelled.
    """

    def __init__(self, link: Link, topic: str, **options: Unpack[ConsumerOptions]) -> None:
        self.topic = topic
        """What it consumes from."""
        self._consuming = Consuming(link, topic, **options)

    async def __aenter__(self) -> Self:
        await self._consuming.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._consuming.close()

    async def close(self) -> None:
        """Stop. Messages without an answer go back to the topic."""
        await self._consuming.close()

    @property
    def partitions(self) -> frozenset[int]:
        """Those the consumer has now, with ``mode="assigned"``."""
        return self._consuming.partitions

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._consuming.messages()

    def __anext__(self) -> Awaitable[Message]:
        return self._consuming.next_message()

    async def batches(self) -> AsyncIterator[Batch]:
        """Messages as they arrive, many at a time.

        ```python
        async for batch in consumer.batches():
            await work_on(batch.values)
            await batch.ack()
        ```
        """
        while (batch := await self._consuming.next_batch()) is not None:
            yield batch
            await TURN

    async def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when there is none within ``timeout_s``."""
        return await self._consuming.get(timeout_s)

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What arrived next; None when nothing does within ``timeout_s``."""
        return await self._consuming.next_batch(timeout_s)


def consuming_of(consumer: Consumer) -> Consuming:
    return consumer._consuming
