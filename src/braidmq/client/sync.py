"""The client for programs without an event loop: the same names, run by a loop in a thread.

Nothing is written twice: each call hands its work to the loop and waits for it. What is called once
a message (``put``, ``ack``) does not wait: it is handed over together with what else there is.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from braidmq.client.admin import Admin
from braidmq.client.awaitables import DONE
from braidmq.client.broker import Broker
from braidmq.client.consumer import ChannelAnswers, Consumer, ConsumerOptions
from braidmq.client.errors import Closed
from braidmq.client.message import Batch, Message, Source
from braidmq.client.metadata import Metadata
from braidmq.client.producer import Producer, ProducerOptions, Value
from braidmq.client.reader import StoredMessage
from braidmq.client.transaction import Transaction, TransactionOptions
from braidmq.wire.amqp.tables import Table

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="braidmq", daemon=True)
        self._handed_over: deque[Callable[[], object]] = deque()
        self._taking = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there and wait here. An interrupt here cancels it there."""
        if not self._thread.is_alive():
            work.close()
            raise Closed("the connection was closed")
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def hand_over(self, work: Callable[[], object]) -> None:
        """Run it there soon, in the order it came; nobody waits."""
        if not self._thread.is_alive():
            raise Closed("the connection was closed")
        self._handed_over.append(work)
        if not self._taking:
            self._taking = True
            self.loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        # First the flag: what is appended from here on is seen below, or schedules another.
        self._taking = False
        while self._handed_over:
            try:
                self._handed_over.popleft()()
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": "braidmq: a call without a waiter failed", "exception": error}
                )

    @property
    def handed_over(self) -> int:
        """What the loop has not taken yet."""
        return len(self._handed_over)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class _ThreadAnswers:
    """Takes answers from the program's thread to the loop's."""

    __slots__ = ("_answers", "_thread", "topic")

    def __init__(self, thread: LoopThread, answers: ChannelAnswers) -> None:
        self.topic = answers.topic
        self._answers = answers
        self._thread = thread

    def ack(self, first: int, last: int) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.ack, first, last))
        return DONE

    def nack(self, first: int, last: int, delay_ms: int | None) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.nack, first, last, delay_ms))
        return DONE

    def reject(self, first: int, last: int) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.reject, first, last))
        return DONE

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        """Called by transactions, in the loop's thread."""
        return self._answers.take(first, last)


class SyncProducer:
    """As ``Producer``. ``put`` blocks while too much is unconfirmed."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    def __enter__(self) -> Self:
        self._thread.wait_for(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.wait_for(self._producer.__aexit__(kind, error, trace))

    @property
    def unconfirmed(self) -> int:
        return self._producer.unconfirmed

    def send(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        self._thread.wait_for(self._producer.send(topic, value, exchange=exchange, **metadata))

    def put(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        self._thread.hand_over(
            partial(self._producer.put_or_note, topic, value, exchange, metadata)
        )
        if not self._producer.has_room_for(self._thread.handed_over):
            self._thread.wait_for(self._producer.wait_for_room())

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        work = self._producer.send_many(topic, values, exchange=exchange, **metadata)
        self._thread.wait_for(work)

    def put_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        work = self._producer.put_many(topic, values, exchange=exchange, **metadata)
        self._thread.wait_for(work)

    def flush(self) -> None:
        self._thread.wait_for(self._producer.flush())

    def close(self) -> None:
        self._thread.wait_for(self._producer.close())


class SyncTransaction:
    """As ``Transaction``. ``publish`` blocks while too much is under way."""

    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread = thread
        self._transaction = transaction
        self._producer: SyncProducer

    @property
    def name(self) -> str:
        return self._transaction.name

    def __enter__(self) -> Self:
        self._thread.wait_for(self._transaction.__aenter__())
        self._producer = SyncProducer(self._thread, self._transaction.producer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.wait_for(self._transaction.__aexit__(kind, error, trace))

    def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        self._producer.put(topic, value, exchange=exchange, **metadata)

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        self._producer.put_many(topic, values, exchange=exchange, **metadata)

    def ack(self, message: Message | Batch) -> None:
        self._thread.wait_for(self._ack(message))

    async def _ack(self, message: Message | Batch) -> None:
        self._transaction.ack(message)

    def commit(self, *, branches: Sequence[str] | None = None) -> None:
        self._thread.wait_for(self._transaction.commit(branches=branches))

    def abort(self) -> None:
        self._thread.wait_for(self._transaction.abort())

    def leave(self) -> None:
        self._thread.wait_for(self._transaction.leave())


class SyncConsumer:
    """As ``Consumer``: ``for message in consumer``, or ``for batch in consumer.batches()``."""

    def __init__(self, thread: LoopThread, consumer: Consumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._messages: deque[Message] = deque()

    def __enter__(self) -> Self:
        self._thread.wait_for(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.get()
        assert message is not None
        return message

    def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when there is none within ``timeout_s``."""
        if not self._messages:
            batch = self._thread.wait_for(self._consumer.next_batch(timeout_s))
            if batch is None:
                return None
            self._messages.extend(batch)
        return self._messages.popleft()

    def batches(self) -> Iterator[Batch]:
        while (batch := self._thread.wait_for(self._consumer.next_batch(None))) is not None:
            yield batch

    def close(self) -> None:
        self._thread.wait_for(self._consumer.close())


class SyncAdmin:
    """``broker.admin`` with every method waiting for its answer."""

    def __init__(self, thread: LoopThread, admin: Admin) -> None:
        self._thread = thread
        self._admin = admin

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._admin, name)

        @wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            return self._thread.wait_for(method(*args, **named))

        return call


class SyncBroker:
    """Use ``braidmq.connect_sync()``."""

    def __init__(self, make: Callable[[], Broker]) -> None:
        self._make = make
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._broker = self._thread.wait_for(self._open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    async def _open(self) -> Broker:
        broker = self._make()
        await broker.open()
        return broker

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread is not None and self._broker is not None:
            try:
                self._thread.wait_for(self._broker.close())
            finally:
                self._thread.stop()
                self._broker = None

    @property
    def _running(self) -> tuple[LoopThread, Broker]:
        if self._thread is None or self._broker is None:
            raise Closed("the broker object is not open")
        return self._thread, self._broker

    @property
    def admin(self) -> SyncAdmin:
        thread, broker = self._running
        return SyncAdmin(thread, broker.admin)

    def producer(self, **options: Unpack[ProducerOptions]) -> SyncProducer:
        thread, broker = self._running
        return SyncProducer(thread, broker.producer(**options))

    def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        thread, broker = self._running
        thread.wait_for(broker.publish(topic, value, exchange=exchange, **metadata))

    def transaction(self, name: str = "", **options: Unpack[TransactionOptions]) -> SyncTransaction:
        thread, broker = self._running
        return SyncTransaction(thread, broker.transaction(name, **options))

    def consume(self, topic: str, **options: Unpack[ConsumerOptions]) -> SyncConsumer:
        thread, broker = self._running
        consumer = broker.consume(topic, **options)
        consumer.wrap = partial(_ThreadAnswers, thread)
        return SyncConsumer(thread, consumer)

    def read(
        self,
        topic: str,
        *,
        from_offset: int | None = None,
        from_time: datetime | int | None = None,
        partition: int | None = None,
        follow: bool = False,
    ) -> Iterator[StoredMessage]:
        thread, broker = self._running
        messages = broker.read(
            topic,
            from_offset=from_offset,
            from_time=from_time,
            partition=partition,
            follow=follow,
        )
        # Who follows must not wait for a page to be full.
        while page := thread.wait_for(_some(messages, 1 if follow else PAGE)):
            yield from page

    def declare_queue(
        self, name: str, *, durable: bool = True, arguments: Table | None = None
    ) -> None:
        thread, broker = self._running
        thread.wait_for(broker.declare_queue(name, durable=durable, arguments=arguments))


PAGE = 1000


async def _some(messages: AsyncIterator[StoredMessage], most: int) -> list[StoredMessage]:
    """The next ones, at most so many; none at the end."""
    found: list[StoredMessage] = []
    async for message in messages:
        found.append(message)
        if len(found) == most:
            break
    return found
