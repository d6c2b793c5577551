"""A broker as a program sees it."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, NamedTuple, Self, Unpack

from braidmq.client.address import Address
from braidmq.client.admin import Admin
from braidmq.client.calls import CALL_S, Calls, reply_metadata
from braidmq.client.confirm import Confirm
from braidmq.client.consumer import Consumer
from braidmq.client.consuming import ConsumerOptions
from braidmq.client.errors import PublishError
from braidmq.client.http import HttpClient
from braidmq.client.link import Link
from braidmq.client.message import Message
from braidmq.client.metadata import Metadata
from braidmq.client.options import one_of
from braidmq.client.producer import Producer
from braidmq.client.publishing import ProducerOptions, Publishing, Value
from braidmq.client.reader import StoredMessage, read
from braidmq.client.tokens import TokenSource
from braidmq.client.transaction import PublishingPool, Transaction, TransactionOptions
from braidmq.wire.amqp.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
)
from braidmq.wire.amqp.tables import FieldValue

logger = logging.getLogger(__name__)

HEARTBEAT_S = 30
"""Half of what our broker offers."""
CONNECT_S_MAX = 10.0
SERVED_AT_ONCE = 10

Arguments = Mapping[str, FieldValue]
DestinationKind = Literal["queue", "exchange"]
Handler = Callable[[Message], Awaitable[Value | None]]


class Queue(NamedTuple):
    """What the broker says of a queue that was declared.

    ```python
    name, message_count, consumer_count = await broker.declare_queue("orders")
    ```
    """

    name: str
    message_count: int
    """Messages that wait in it."""
    consumer_count: int


class Broker:
    """A connection to a broker, restored when it is lost: made with ``braidmq.connect()``.

    ```python
    async with braidmq.connect("amqp://127.0.0.1") as broker:
        await broker.publish("orders", b"…")
    ```

    What exclusive and auto-delete queues, transient exchanges, and bindings of these it declared is
    declared again with a new connection. Outside its ``with`` everything raises Closed.
    """

    def __init__(
        self,
        address: Address,
        *,
        reconnect: bool = True,
        heartbeat_s: int = HEARTBEAT_S,
        connect_timeout_s: float = CONNECT_S_MAX,
        name: str = "",
    ) -> None:
        token = None if address.token is None else TokenSource(address.token)
        self._http = HttpClient(
            address.http_url, address.user, address.password, address.tls, token
        )
        self.admin = Admin(self._http, address)
        """The HTTP API: topics, groups, dead letters and all else there is to administer."""
        self._link = Link(
            address,
            reconnect=reconnect,
            heartbeat_s=heartbeat_s,
            connect_timeout_s=connect_timeout_s,
            name=name,
            token=token,
        )
        self._pool = PublishingPool(self._link)
        self._sharing = asyncio.Lock()
        self._publishing: Publishing | None = None
        self._answers: Publishing | None = None
        """For answers alone: an address that the broker refuses must not harm anything else."""
        self._calls: Calls | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """As ``async with`` does. Raises ConnectFailed, NotAuthenticated or AccessRefused."""
        await self._link.open()

    async def close(self) -> None:
        """Close everything made with it. Producers do not wait for confirms: ``flush`` them."""
        await self._link.close()
        await self._http.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._link.is_connected

    # --- publishing ---

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """For many messages.

        ```python
        async with broker.producer() as producer:
            await producer.put("orders", b"…")
        ```
        """
        return Producer(self._link, **options)

    async def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Confirm:
        """Publish one message at once; the broker has it on disk when this returns.

        ```python
        confirm = await broker.publish("orders", b"…", key="customer-7")
        print(confirm.place)
        ```

        Raises Unroutable, Nacked or another PublishError.
        """
        publishing = self._publishing
        if publishing is None or publishing.over:
            async with self._sharing:
                publishing = await self._shared(self._publishing)
                self._publishing = publishing
        return await publishing.send(topic, value, exchange=exchange, **metadata)

    async def _shared(self, shared: Publishing | None) -> Publishing:
        """What callers share, or a new one in its place."""
        if shared is None or shared.over:
            shared = Publishing(self._link, linger_ms=0)
            await self._link.attach(shared)
        return shared

    def transaction(self, name: str = "", **options: Unpack[TransactionOptions]) -> Transaction:
        """What is published and acknowledged in it counts together, or not at all.

        ```python
        async with broker.transaction() as tx:
            await tx.publish("invoices", b"…")
            tx.ack(message)
        ```

        It is committed at the end, or aborted if an exception leaves it. With a name it is the same
        transaction wherever it is begun, and is committed once.
        """
        return Transaction(self._link, self._pool, name, **options)

    # --- consuming ---

    def consume(self, topic: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Take messages of a queue, or of a topic as one of a group.

        ```python
        async with broker.consume("orders", group="billing") as consumer:
            async for message in consumer:
                await message.ack()
        ```

        Raises BadRequest for options that are none; inside the ``with``, NotFound, AccessRefused
        or Conflict.
        """
        return Consumer(self._link, topic, **options)

    def read(
        self,
        topic: str,
        *,
        from_offset: int | None = None,
        from_time: datetime | int | None = None,
        partition: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[StoredMessage]:
        """Messages the log still has, whoever consumed them; no group notices.

        ```python
        async for message in broker.read("orders", from_time=yesterday):
            print(message.offset, message.value)
        ```

        All partitions, one after the other, or one of them; an offset is one of partition 0 unless
        another is named. It ends where the log ended when it began, unless it is to ``follow``.
        """
        return read(
            self.admin,
            topic,
            from_offset=from_offset,
            from_time=from_time,
            partition=partition,
            follow=follow,
        )

    # --- queues, exchanges, bindings ---

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> Queue:
        """A topic with one partition that keeps messages until they are acknowledged.

        ```python
        queue = await broker.declare_queue(exclusive=True)
        print(queue.name, queue.message_count)
        ```

        Without a name it gets one. An ``exclusive`` queue is this connection's, and goes with it;
        an ``auto_delete`` one goes with its last consumer. Raises Conflict if there is one of that
        name with other settings, or somebody else's.
        """
        # The name is ours, so that it is the same after the connection was lost.
        method = QueueDeclare(
            name or f"gen-{secrets.token_urlsafe(16)}",
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        answer = await self._link.declare(method)
        assert isinstance(answer, QueueDeclareOk)
        return Queue(answer.queue, answer.message_count, answer.consumer_count)

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and what is in it; gives how many messages that were.

        Raises Conflict if it is in use or not empty, and that was a condition.
        """
        answer = await self._link.declare(QueueDelete(name, if_unused, if_empty))
        assert isinstance(answer, QueueDeleteOk)
        return answer.message_count

    async def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """Make an exchange: ``"direct"``, ``"fanout"``, ``"topic"``, ``"headers"``, or of another
        kind that the broker has.

        ```python
        await broker.declare_exchange("events", "topic")
        ```

        Raises Conflict if there is one of that name with other settings, BadRequest for an unknown
        kind.
        """
        await self._link.declare(
            ExchangeDeclare(
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=dict(arguments or {}),
            )
        )

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Raises Conflict if it has some and must not."""
        await self._link.declare(ExchangeDelete(name, if_unused))

    async def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: DestinationKind = "queue",
        arguments: Arguments | None = None,
    ) -> None:
        """Have a queue, or with ``kind="exchange"`` an exchange, get what is published to another.

        ```python
        await broker.bind("events", "mail", "order.*")
        ```

        Raises NotFound if one of them is not there.
        """
        one_of("kind", kind, DestinationKind)
        make = QueueBind if kind == "queue" else ExchangeBind
        await self._link.declare(
            make(destination, source, routing_key, arguments=dict(arguments or {}))
        )

    async def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: DestinationKind = "queue",
        arguments: Arguments | None = None,
    ) -> None:
        """Undo a ``bind`` of the same arguments."""
        one_of("kind", kind, DestinationKind)
        said = dict(arguments or {})
        method: Method = (
            QueueUnbind(destination, source, routing_key, said)
            if kind == "queue"
            else ExchangeUnbind(destination, source, routing_key, arguments=said)
        )
        await self._link.declare(method)

    # --- calls ---

    async def call(
        self,
        topic: str,
        value: Value,
        *,
        timeout_s: float = CALL_S,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> Message:
        """Ask who serves a queue, and wait for the answer.

        ```python
        answer = await broker.call("prices", b"apples", timeout_s=5)
        print(answer.value)
        ```

        Raises CallTimedOut, CallFailed with what who serves says went wrong, ConnectionLost if the
        answer may have been lost, or why the request was not taken: Unroutable, or another
        PublishError. A request that was not begun by then expires (``ttl_ms``).
        """
        async with self._sharing:
            calls = self._calls
            if calls is None or calls.over:
                calls = Calls(self._link)
                await self._link.attach(calls)
                self._calls = calls
        return await calls.call(topic, value, timeout_s, exchange, metadata)

    async def reply(
        self,
        message: Message,
        value: Value = b"",
        *,
        error: object = None,
        **metadata: Unpack[Metadata],
    ) -> None:
        """Answer a call; with an ``error``, a text or an exception, the call raises CallFailed.

        ```python
        await broker.reply(message, b"3.20", content_type="text/plain")
        ```

        Raises BadRequest if the message asks for no answer. Who called may be gone: that raises
        Unroutable where answers are sent to queues, and nothing with direct ones.
        """
        address, said = reply_metadata(message, error, metadata)
        async with self._sharing:
            answers = self._answers = await self._shared(self._answers)
        await answers.send(address, value, **said)

    async def serve(self, queue: str, handler: Handler, *, at_once: int = SERVED_AT_ONCE) -> None:
        """Answer the calls of a queue with what ``handler`` gives for each, until it is cancelled.

        ```python
        async def price(message):
            return b"3.20"


        await broker.serve("prices", price)
        ```

        So many calls are worked on ``at_once``. A handler that raises has its caller get CallFailed
        and the request go to the dead letters, with the error. It gives None to answer nothing.
        """
        async with (
            self.consume(queue, prefetch=at_once) as consumer,
            asyncio.TaskGroup() as working,
        ):
            async for message in consumer:
                working.create_task(_serve(self, message, handler))


async def _serve(broker: Broker, message: Message, handler: Handler) -> None:
    try:
        async with message.process(reject=Exception):
            answer = await handler(message)
            if answer is not None:
                await answer_call(broker, message, answer)
    except Exception as error:
        await answer_failed_call(broker, message, error)


async def answer_call(
    broker: Broker, message: Message, answer: Value, error: object = None
) -> None:
    """What is wrong with the address is the caller's business; who serves goes on."""
    if not message.reply_to:
        return
    try:
        await broker.reply(message, answer, error=error)
    except PublishError as wrong:
        logger.info("an answer to a call of %s was not taken: %s", message.topic, wrong)


async def answer_failed_call(broker: Broker, message: Message, error: Exception) -> None:
    logger.info("a call of %s failed", message.topic, exc_info=error)  # its caller is told
    await answer_call(broker, message, b"", error)
