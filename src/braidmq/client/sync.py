"""The client for programs without an event loop: the same names, run by a loop in a thread.

Nothing is written twice: each call hands its work to the loop and waits for it. What is called once
a message (``put``, ``ack``) does not wait: it is handed over together with what else there is.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from braidmq.client.awaitables import DONE
from braidmq.client.broker import (
    Arguments,
    Broker,
    DestinationKind,
    Queue,
    answer_call,
    answer_failed_call,
)
from braidmq.client.calls import CALL_S
from braidmq.client.confirm import Confirm
from braidmq.client.consumer import Consumer, consuming_of
from braidmq.client.consuming import ChannelAnswers, ConsumerOptions
from braidmq.client.errors import Closed
from braidmq.client.message import Batch, Failed, Message, Source
from braidmq.client.metadata import Metadata
from braidmq.client.producer import Producer
from braidmq.client.producer import publishing_of as of_producer
from braidmq.client.publishing import ProducerOptions, Value
from braidmq.client.reader import StoredMessage
from braidmq.client.sync_admin import SyncAdmin
from braidmq.client.threads import LoopThread
from braidmq.client.transaction import Transaction, TransactionOptions, publishing_of


class _ThreadAnswers:
    """Takes answers from the program's thread to the loop's."""

    __slots__ = ("_answers", "_thread", "topic")

    def __init__(self, thread: LoopThread, answers: ChannelAnswers) -> None:
        self.topic = answers.topic
        self._answers = answers
        self._thread = thread

    def finish(self, first: int, last: int, failure: Failed | None) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.finish, first, last, failure))
        return DONE

    def ack(self, first: int, last: int) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.ack, first, last))
        return DONE

    def nack(self, first: int, last: int, delay_ms: int | None, error: str) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.nack, first, last, delay_ms, error))
        return DONE

    def reject(self, first: int, last: int, error: str) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.reject, first, last, error))
        return DONE

    def extend(self, first: int, last: int, visibility_ms: int) -> Awaitable[None]:
        self._thread.hand_over(partial(self._answers.extend, first, last, visibility_ms))
        return DONE

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        """Called by transactions, in the loop's thread."""
        return self._answers.take(first, last)


class SyncProducer:
    """As ``Producer``. ``put`` blocks while too much is unconfirmed.

    ```python
    with broker.producer() as producer:
        producer.put("orders", b"…")
    ```
    """

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._publishing = of_producer(producer)

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
        """As ``Producer.unconfirmed``."""
        return self._producer.unconfirmed

    def send(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Confirm:
        """As ``Producer.send``."""
        return self._thread.wait_for(
            self._producer.send(topic, value, exchange=exchange, **metadata)
        )

    def put(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        """As ``Producer.put``."""
        publishing = self._publishing
        self._thread.hand_over(partial(publishing.put_or_note, topic, value, exchange, metadata))
        if not publishing.has_room_for(self._thread.handed_over):
            self._thread.wait_for(publishing.wait_for_room())

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        """As ``Producer.send_many``."""
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
        """As ``Producer.put_many``."""
        work = self._producer.put_many(topic, values, exchange=exchange, **metadata)
        self._thread.wait_for(work)

    def flush(self) -> None:
        """As ``Producer.flush``."""
        self._thread.wait_for(self._producer.flush())

    def confirms(self) -> Iterator[Confirm]:
        """As ``Producer.confirms``: read it in a thread of its own.

        ```python
        for confirm in producer.confirms():
            print(confirm.routing_key, confirm.error or confirm.place)
        ```
        """
        self._thread.wait_for(self._begin_stream())
        return self._stream()

    async def _begin_stream(self) -> None:
        self._publishing.begin_stream()

    def _stream(self) -> Iterator[Confirm]:
        while confirms := self._thread.wait_for(self._publishing.next_confirms()):
            yield from confirms

    def close(self) -> None:
        """As ``Producer.close``."""
        self._thread.wait_for(self._producer.close())


class SyncTransaction:
    """As ``Transaction``. ``publish`` blocks while too much is under way.

    ```python
    with broker.transaction() as tx:
        tx.publish("invoices", b"…")
        tx.ack(message)
    ```
    """

    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def name(self) -> str:
        """As ``Transaction.name``."""
        return self._transaction.name

    def __enter__(self) -> Self:
        self._thread.wait_for(self._transaction.__aenter__())
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
        """As ``Transaction.publish``."""
        publishing = publishing_of(self._transaction)
        self._thread.hand_over(partial(publishing.put_or_note, topic, value, exchange, metadata))
        if not publishing.has_room_for(self._thread.handed_over):
            self._thread.wait_for(publishing.wait_for_room())

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        """As ``Transaction.publish_many``."""
        work = self._transaction.publish_many(topic, values, exchange=exchange, **metadata)
        self._thread.wait_for(work)

    def ack(self, message: Message | Batch) -> None:
        """As ``Transaction.ack``."""
        self._thread.wait_for(self._ack(message))

    async def _ack(self, message: Message | Batch) -> None:
        self._transaction.ack(message)

    def commit(self, *, branches: Sequence[str] | None = None) -> None:
        """As ``Transaction.commit``."""
        self._thread.wait_for(self._transaction.commit(branches=branches))

    def abort(self) -> None:
        """As ``Transaction.abort``."""
        self._thread.wait_for(self._transaction.abort())

    def leave(self) -> None:
        """As ``Transaction.leave``."""
        self._thread.wait_for(self._transaction.leave())


class SyncConsumer:
    """As ``Consumer``.

    ```python
    with broker.consume("orders", group="billing") as consumer:
        for message in consumer:
            message.ack()
    ```
    """

    def __init__(self, thread: LoopThread, consumer: Consumer) -> None:
        self._thread = thread
        self._consumer = consumer
        consuming_of(consumer).wrap = partial(_ThreadAnswers, thread)
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
        """As ``Consumer.get``."""
        if not self._messages:
            batch = self._thread.wait_for(self._consumer.next_batch(timeout_s))
            if batch is None:
                return None
            self._messages.extend(batch)
        return self._messages.popleft()

    def batches(self) -> Iterator[Batch]:
        """As ``Consumer.batches``."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """As ``Consumer.next_batch``."""
        return self._thread.wait_for(self._consumer.next_batch(timeout_s))

    @property
    def topic(self) -> str:
        """As ``Consumer.topic``."""
        return self._consumer.topic

    @property
    def partitions(self) -> frozenset[int]:
        """As ``Consumer.partitions``."""
        return self._consumer.partitions

    def close(self) -> None:
        """As ``Consumer.close``."""
        self._messages.clear()
        self._thread.wait_for(self._consumer.close())


class SyncBroker:
    """As ``Broker``, for programs without an event loop: made with ``braidmq.connect_sync()``.

    ```python
    with braidmq.connect_sync("amqp://127.0.0.1") as broker:
        broker.publish("orders", b"…")
    ```
    """

    def __init__(self, make: Callable[[], Broker]) -> None:
        self._make = make
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """As ``with`` does. Raises ConnectFailed, NotAuthenticated or AccessRefused."""
        self._thread = LoopThread()
        try:
            self._broker = self._thread.wait_for(self._open())
        except BaseException:
            self._thread.stop()
            raise

    async def _open(self) -> Broker:
        broker = self._make()
        await broker.open()
        return broker

    def close(self) -> None:
        """As ``Broker.close``."""
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
        """As ``Broker.admin``."""
        thread, broker = self._running
        return SyncAdmin(thread, broker.admin)

    @property
    def connected(self) -> bool:
        """As ``Broker.connected``."""
        return self._broker is not None and self._broker.connected

    # --- publishing ---

    def producer(self, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """As ``Broker.producer``."""
        thread, broker = self._running
        return SyncProducer(thread, broker.producer(**options))

    def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Confirm:
        """As ``Broker.publish``."""
        thread, broker = self._running
        return thread.wait_for(broker.publish(topic, value, exchange=exchange, **metadata))

    def transaction(self, name: str = "", **options: Unpack[TransactionOptions]) -> SyncTransaction:
        """As ``Broker.transaction``."""
        thread, broker = self._running
        return SyncTransaction(thread, broker.transaction(name, **options))

    # --- consuming ---

    def consume(self, topic: str, **options: Unpack[ConsumerOptions]) -> SyncConsumer:
        """As ``Broker.consume``."""
        thread, broker = self._running
        return SyncConsumer(thread, broker.consume(topic, **options))

    def read(
        self,
        topic: str,
        *,
        from_offset: int | None = None,
        from_time: datetime | int | None = None,
        partition: int | None = None,
        follow: bool = False,
    ) -> Iterator[StoredMessage]:
        """As ``Broker.read``."""
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

    # --- queues, exchanges, bindings ---

    def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> Queue:
        """As ``Broker.declare_queue``."""
        thread, broker = self._running
        return thread.wait_for(
            broker.declare_queue(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        )

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """As ``Broker.delete_queue``."""
        thread, broker = self._running
        return thread.wait_for(broker.delete_queue(name, if_unused=if_unused, if_empty=if_empty))

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """As ``Broker.declare_exchange``."""
        thread, broker = self._running
        thread.wait_for(
            broker.declare_exchange(
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            )
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """As ``Broker.delete_exchange``."""
        thread, broker = self._running
        thread.wait_for(broker.delete_exchange(name, if_unused=if_unused))

    def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: DestinationKind = "queue",
        arguments: Arguments | None = None,
    ) -> None:
        """As ``Broker.bind``."""
        thread, broker = self._running
        thread.wait_for(
            broker.bind(source, destination, routing_key, kind=kind, arguments=arguments)
        )

    def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: DestinationKind = "queue",
        arguments: Arguments | None = None,
    ) -> None:
        """As ``Broker.unbind``."""
        thread, broker = self._running
        thread.wait_for(
            broker.unbind(source, destination, routing_key, kind=kind, arguments=arguments)
        )

    # --- calls ---

    def call(
        self,
        topic: str,
        value: Value,
        *,
        timeout_s: float = CALL_S,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> Message:
        """As ``Broker.call``."""
        thread, broker = self._running
        return thread.wait_for(
            broker.call(topic, value, timeout_s=timeout_s, exchange=exchange, **metadata)
        )

    def reply(
        self,
        message: Message,
        value: Value = b"",
        *,
        error: object = None,
        **metadata: Unpack[Metadata],
    ) -> None:
        """As ``Broker.reply``."""
        thread, broker = self._running
        thread.wait_for(broker.reply(message, value, error=error, **metadata))

    def serve(self, queue: str, handler: Callable[[Message], Value | None]) -> None:
        """As ``Broker.serve``, one call after the other, in the thread that calls it.

        ```python
        broker.serve("prices", lambda message: b"3.20")
        ```
        """
        thread, broker = self._running
        with self.consume(queue, prefetch=SERVED_AHEAD) as consumer:
            for message in consumer:
                try:
                    with message.process(reject=Exception):
                        answer = handler(message)
                        if answer is not None:
                            thread.wait_for(answer_call(broker, message, answer))
                except Exception as error:
                    thread.wait_for(answer_failed_call(broker, message, error))


PAGE = 1000
SERVED_AHEAD = 10


async def _some(messages: AsyncIterator[StoredMessage], most: int) -> list[StoredMessage]:
    """The next ones, at most so many; none at the end."""
    found: list[StoredMessage] = []
    async for message in messages:
        found.append(message)
        if len(found) == most:
            break
    return found
