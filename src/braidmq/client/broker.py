"""A broker as a program sees it: one connection that is restored when it is lost, and what uses it.

Producers and consumers have a channel each, of the same number on every connection. When one is
lost they are attached to the next: producers send again what is unconfirmed, consumers begin anew.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from braidmq.client.address import Address
from braidmq.client.admin import Admin
from braidmq.client.connection import Channel, ChannelOwner, Connection
from braidmq.client.consumer import Consumer, ConsumerOptions
from braidmq.client.errors import Closed, ConnectFailed, ConnectionLost
from braidmq.client.http import HttpClient
from braidmq.client.metadata import Metadata
from braidmq.client.producer import Producer, ProducerOptions, Value
from braidmq.client.reader import StoredMessage, read
from braidmq.client.transaction import Transaction, TransactionOptions
from braidmq.model.errors import BraidError
from braidmq.wire.amqp.methods import QueueDeclare, QueueDeclareOk
from braidmq.wire.amqp.tables import Table

HEARTBEAT_S = 30
"""Half of what our broker offers."""
CONNECT_S_MAX = 10.0
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 5.0
"""A node that restarts is back within seconds; one that is away for long is asked no more often."""

TRANSACTION_RECORDS = 1000
TRANSACTION_BYTES = 1 << 20
IDLE_MAX = 16
"""Transactions at once that find a channel ready."""

Attachment = Producer | Consumer


class Broker:
    """Use ``braidmq.connect()``."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        address: Address,
        *,
        reconnect: bool = True,
        heartbeat_s: int = HEARTBEAT_S,
        connect_timeout_s: float = CONNECT_S_MAX,
        name: str = "",
    ) -> None:
        self.address = address
        self.admin = Admin(HttpClient(address.http_url, address.user, address.password), address)
        self._reconnect = reconnect
        self._heartbeat_s = heartbeat_s
        self._connect_timeout_s = connect_timeout_s
        self._name = name
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._attachments: dict[int, Attachment] = {}
        self._numbers: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: BraidError | None = None
        self._producer: Producer | None = None
        self._idle_producers: list[Producer] = []
        """Channels that transactions were on, for the next ones."""

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
        """Raises ConnectFailed, NotAuthenticated or AccessRefused."""
        self.loop = asyncio.get_running_loop()
        connection = await self._open()
        self._connection = connection
        self._connected.set()
        self._start(self._supervise(connection))

    async def close(self) -> None:
        """Close everything made with it. Producers do not wait for confirms: ``flush`` them."""
        if self._over is not None:
            return
        for attachment in list(self._attachments.values()):
            await attachment.close()
        self._give_up(Closed("the broker object was closed"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
        await self.admin.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._connected.is_set()

    # --- what it is for ---

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """``async with broker.producer() as producer: await producer.send("orders", b"…")``"""
        return Producer(self, **options)

    async def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> None:
        """Publish one message at once, with a producer that all such calls share."""
        if self._producer is None:
            producer = Producer(self, linger_ms=0)
            await self.attach(producer)
            # Another call may have made one meanwhile.
            if self._producer is None:
                self._producer = producer
            else:
                await producer.close()
        await self._producer.send(topic, value, exchange=exchange, **metadata)

    def transaction(self, name: str = "", **options: Unpack[TransactionOptions]) -> Transaction:
        """``async with broker.transaction() as tx: tx.publish(…); tx.ack(message)``

        All of it is committed at the end, or nothing if an exception leaves it. With a name it is
        the same transaction wherever it is begun, and is committed once.
        """
        return Transaction(self, name, **options)

    async def take_transaction_producer(self) -> Producer:
        while self._idle_producers:
            producer = self._idle_producers.pop()
            if not producer.over:
                return producer
        # Nobody waits for less than all of it.
        producer = Producer(self, batch_records=TRANSACTION_RECORDS, batch_bytes=TRANSACTION_BYTES)
        await self.attach(producer)
        return producer

    async def give_transaction_producer(self, producer: Producer) -> None:
        producer.unbind()
        if producer.over or producer.unconfirmed or len(self._idle_producers) >= IDLE_MAX:
            await producer.close()
        else:
            self._idle_producers.append(producer)

    def consume(self, topic: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """``async with broker.consume("orders", group="billing") as consumer: …``"""
        return Consumer(self, topic, **options)

    def read(
        self,
        topic: str,
        *,
        from_offset: int | None = None,
        from_time: datetime | int | None = None,
        partition: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[StoredMessage]:
        """``async for message in broker.read("orders", from_time=yesterday): …``

        Messages the log still has, whoever consumed them; no group notices. All partitions, one
        after the other, or one of them; an offset is one of partition 0 unless another is named. It
        ends where the log ended when it began, unless it is to ``follow``.
        """
        return read(
            self.admin,
            topic,
            from_offset=from_offset,
            from_time=from_time,
            partition=partition,
            follow=follow,
        )

    async def declare_queue(
        self, name: str, *, durable: bool = True, arguments: Table | None = None
    ) -> None:
        """A topic with one partition that keeps messages until they are acknowledged."""
        method = QueueDeclare(name, durable=durable, arguments=arguments or {})
        async with self.short_channel(ChannelOwner()) as channel:
            await channel.call(method, QueueDeclareOk)

    @asynccontextmanager
    async def short_channel(self, owner: ChannelOwner) -> AsyncIterator[Channel]:
        """A channel for a few calls."""
        number = self._take_number()
        try:
            channel = await (await self._ready()).open_channel(number, owner)
            yield channel
            await channel.close()
        finally:
            self._numbers.discard(number)

    # --- channels ---

    async def attach(self, attachment: Attachment) -> None:
        """Give a producer or consumer its channel, and another whenever the connection is lost."""
        attachment.number = self._take_number()
        while True:
            connection = await self._ready()
            try:
                await self._attach(connection, attachment)
                break
            except ConnectionLost:
                attachment.detached()
            except BaseException:
                self._numbers.discard(attachment.number)
                raise
        self._attachments[attachment.number] = attachment

    async def _attach(self, connection: Connection, attachment: Attachment) -> None:
        channel = await connection.open_channel(attachment.number, attachment)
        await attachment.attached(channel)

    def attach_again(self, attachment: Attachment) -> None:
        """The broker closed its channel; the connection lives."""
        self._start(self._attach_or_fail(attachment))

    async def _attach_or_fail(self, attachment: Attachment) -> None:
        connection = self._connection
        if connection is None or connection.error is not None:
            return  # it is attached again with all the others
        try:
            await self._attach(connection, attachment)
        except ConnectionLost:
            attachment.detached()
        except BraidError as error:
            attachment.fail(error)

    async def detach(self, attachment: Attachment) -> None:
        if self._attachments.pop(attachment.number, None) is None:
            return
        connection = self._connection
        try:
            if connection is not None and connection.error is None:
                await connection.close_channel(attachment.number)
        except BraidError:
            pass  # then its channel is gone too
        finally:
            self._numbers.discard(attachment.number)

    def _take_number(self) -> int:
        number = next(n for n in range(1, 1 << 16) if n not in self._numbers)
        self._numbers.add(number)
        return number

    # --- the connection ---

    async def _ready(self) -> Connection:
        """The connection, once there is one."""
        while True:
            if self._over is not None:
                raise self._over
            connection = self._connection
            if connection is not None and connection.error is None:
                return connection
            await self._connected.wait()
            await asyncio.sleep(0)

    async def _open(self) -> Connection:
        return await Connection.open(
            self.address,
            heartbeat_s=self._heartbeat_s,
            timeout_s=self._connect_timeout_s,
            name=self._name,
        )

    async def _supervise(self, connection: Connection) -> None:
        """Restore the connection whenever it is lost."""
        while True:
            error = await asyncio.shield(connection.lost)
            self._connected.clear()
            for attachment in self._attachments.values():
                attachment.detached()
            if not self._reconnect:
                self._give_up(error)
                return
            try:
                connection = await self._restore()
            except BraidError as refused:
                self._give_up(refused)
                return
            self._connection = connection
            self._connected.set()
            for attachment in list(self._attachments.values()):
                if not attachment.over:
                    await self._attach_or_fail(attachment)

    async def _restore(self) -> Connection:
        """Try until it works; a refused login will not get better by trying."""
        wait_s = BACK_OFF_S_MIN
        while True:
            try:
                return await self._open()
            except ConnectFailed:
                # Not all clients of a node that restarts should come at once.
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, BACK_OFF_S_MAX)

    def _give_up(self, error: BraidError) -> None:
        self._over = error
        self._connected.set()  # whoever waits for a connection learns that there will be none
        attachments = list(self._attachments.values())
        self._attachments.clear()
        for attachment in attachments:
            attachment.fail(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
