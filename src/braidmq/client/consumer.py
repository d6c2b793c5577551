"""Consuming: runs of messages as they arrive, handed out one by one or as batches."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypedDict

from braidmq.client.awaitables import DONE, TURN
from braidmq.client.connection import Channel, ChannelOwner
from braidmq.client.errors import AlreadySettled, Closed, ConsumerCancelled, Unsupported
from braidmq.client.message import Answers, Batch, Message, Source
from braidmq.model.errors import BraidError
from braidmq.wire.amqp.client import DeliveryRun, Ledger
from braidmq.wire.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    BasicRetry,
    TxReturn,
)
from braidmq.wire.amqp.tables import FieldValue, Long, Table

if TYPE_CHECKING:
    from braidmq.client.broker import Broker

PREFETCH = 1000
TURN_MESSAGES = 256
"""Messages handed out before others have their turn, and the broker our acknowledgements."""

Start = Literal["earliest", "latest"] | int | datetime
"""Where a new group begins: an end, an offset, or a time."""

GroupMode = Literal["shared", "key-ordered", "single-active", "exclusive"]


class ConsumerOptions(TypedDict, total=False):
    group: str | None
    """Share every message of the topic with the group's other consumers; without one, those of a
    queue with the queue's other consumers."""
    prefetch: int
    """Messages that may be unanswered."""
    auto_ack: bool
    """Answer for messages as they are handed out."""
    start: Start
    """Where the group begins, if it is new."""
    mode: GroupMode
    """Who gets which message, if the group is new."""
    priority: int
    """Among consumers with room the highest is served."""
    exclusive: bool
    """Be the only consumer, or fail."""


class ChannelAnswers:
    """Answers of one channel's messages; acknowledgements leave once a turn of the loop."""

    def __init__(self, channel: Channel, topic: str) -> None:
        self.topic = topic
        self.ledger = Ledger(channel.number)
        self._channel: Channel | None = channel
        self._loop = channel.connection.loop
        self._due = False

    def ack(self, first: int, last: int) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        if not self.ledger.ack(first, last):
            raise AlreadySettled(_which(first, last))
        if not self._due:
            self._due = True
            self._loop.call_soon(self.flush)
        return DONE

    def nack(self, first: int, last: int, delay_ms: int | None) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        if not self._channel.connection.can_retry:
            return self._requeue(self._channel, first, last, delay_ms)
        ranges = self.ledger.settle(first, last)
        if not ranges:
            raise AlreadySettled(_which(first, last))
        for start, stop in ranges:
            self._channel.send(BasicRetry(start, stop, delay_ms is not None, delay_ms or 0))
        return DONE

    def _requeue(
        self, channel: Channel, first: int, last: int, delay_ms: int | None
    ) -> Awaitable[None]:
        """What a broker that is not ours can do."""
        if delay_ms is not None:
            raise Unsupported("this broker can't redeliver a message after a delay")
        frames = self.ledger.refuse(first, last, requeue=True)
        if not frames:
            raise AlreadySettled(_which(first, last))
        channel.write(frames)
        return DONE

    def reject(self, first: int, last: int) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        frames = self.ledger.refuse(first, last, requeue=False)
        if not frames:
            raise AlreadySettled(_which(first, last))
        self._channel.write(frames)
        return DONE

    @property
    def channel(self) -> Channel | None:
        return self._channel

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        if self._channel is None:
            return self, [(first, last)]
        return self, self.ledger.hold(first, last)

    def let_go(self, first: int, last: int) -> None:
        self.ledger.let_go(first, last)

    def give_back(self, first: int, last: int) -> None:
        if self._channel is not None:
            self._channel.send(TxReturn(first, last))
        self.ledger.let_go(first, last)

    def flush(self) -> None:
        self._due = False
        frames = self.ledger.take()
        if frames and self._channel is not None:
            self._channel.write(frames)

    def end(self) -> None:
        """The channel is gone: the broker delivers again what it has no answer for."""
        self._channel = None


def _which(first: int, last: int) -> str:
    if first == last:
        return f"delivery {first} was answered before"
    return f"deliveries {first} to {last} were all answered before"


class Consumer(ChannelOwner):
    """Use ``broker.consume()``. Iterate over it, or over ``batches()``."""

    number = 0
    """Of its channel, given by the broker object; 0 before that."""

    def __init__(
        self,
        broker: "Broker",
        topic: str,
        *,
        group: str | None = None,
        prefetch: int = PREFETCH,
        auto_ack: bool = False,
        start: Start = "earliest",
        mode: GroupMode = "shared",
        priority: int = 0,
        exclusive: bool = False,
    ) -> None:
        self._broker = broker
        self.topic = topic
        self._prefetch = prefetch
        self._auto_ack = auto_ack
        self._exclusive = exclusive
        self._arguments = _arguments(group, start, mode, priority)
        self._answers: ChannelAnswers | None = None
        self._channel: Channel | None = None
        self._runs: deque[Batch] = deque()
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._over: BraidError | None = None
        self.wrap: Callable[[ChannelAnswers], Answers] = lambda answers: answers
        """What messages answer to: the synchronous twin puts its own in between."""

    async def __aenter__(self) -> Self:
        await self._broker.attach(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop. Messages without an answer go back to the topic."""
        channel = self._channel
        try:
            if channel is not None and channel.open and self._answers is not None:
                await channel.call(BasicCancel(_TAG), BasicCancelOk)
                self._answers.flush()
        except BraidError:
            pass  # the channel is gone: so is the consumer
        finally:
            self.fail(Closed("the consumer was closed"))
            await self._broker.detach(self)

    # --- taking ---

    async def __aiter__(self) -> AsyncIterator[Message]:
        messages = self._messages
        while True:
            for _ in range(min(len(messages), TURN_MESSAGES)):
                if not messages:
                    break  # the connection was lost meanwhile
                message = messages.popleft()
                if self._auto_ack:
                    message.ack()
                yield message
            if messages:
                await TURN
            else:
                messages.extend(await self._next_run())

    async def __anext__(self) -> Message:
        messages = self._messages
        while not messages:
            messages.extend(await self._next_run())
        message = messages.popleft()
        if self._auto_ack:
            message.ack()
        return message

    async def batches(self) -> AsyncIterator[Batch]:
        """Messages as they arrive, many at a time."""
        while (batch := await self.next_batch()) is not None:
            yield batch
            await TURN

    async def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when there is none within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except TimeoutError:
            return None

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What arrived next; None when nothing does within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                batch = await self._next_run()
        except TimeoutError:
            return None
        if self._auto_ack:
            batch.ack()
        return batch

    async def _next_run(self) -> Batch:
        while not self._runs:
            if self._over is not None:
                raise self._over
            self._arrived.clear()
            await self._arrived.wait()
        return self._runs.popleft()

    # --- from the broker ---

    async def attached(self, channel: Channel) -> None:
        self._channel = channel
        self._answers = ChannelAnswers(channel, self.topic)
        await channel.call(BasicQos(0, self._prefetch, False), BasicQosOk)
        method = BasicConsume(
            self.topic, _TAG, exclusive=self._exclusive, arguments=self._arguments
        )
        await channel.call(method, BasicConsumeOk)

    @property
    def over(self) -> bool:
        return self._over is not None

    def detached(self) -> None:
        """Nothing of the lost connection can be answered: the broker delivers it again."""
        self._channel = None
        if self._answers is not None:
            self._answers.end()
        self._runs.clear()
        self._messages.clear()

    def fail(self, error: BraidError) -> None:
        if self._over is None:
            self.detached()
            self._over = error
            self._arrived.set()

    def on_deliveries(self, run: DeliveryRun) -> None:
        if self._answers is not None:
            self._answers.ledger.deliver(run.first_tag, run.last_tag)
            self._runs.append(Batch(run, self.wrap(self._answers)))
            self._arrived.set()

    def on_cancel(self) -> None:
        self.fail(ConsumerCancelled(f"the broker ended the consumer: {self.topic!r} is gone"))

    def on_closed(self, error: BraidError) -> None:
        self.fail(error)


_TAG = "c"
"""Tags are a channel's own, and a consumer has one to itself."""


def _arguments(group: str | None, start: Start, mode: GroupMode, priority: int) -> Table:
    arguments: Table = {}
    if priority:
        arguments["x-priority"] = priority
    if group is not None:
        arguments["x-group"] = group
        arguments["x-group-offset"] = _position(start)
        arguments["x-group-mode"] = mode
    return arguments


def _position(start: Start) -> FieldValue:
    if isinstance(start, datetime):
        aware = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
        return f"@{int(aware.timestamp() * 1000)}"
    return Long(start) if isinstance(start, int) else start
