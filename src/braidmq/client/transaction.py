"""Transactions: publishes and acknowledgements that all count, or none of them.

A transaction is the broker's, by its name. When the connection is lost it goes on with the next
one, unless messages were acknowledged in it: their deliveries ended with the connection.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypedDict, Unpack

from braidmq.client.connection import ChannelOwner
from braidmq.client.errors import (
    AlreadySettled,
    Closed,
    ConnectionLost,
    NotInFlight,
    TransactionAborted,
    TransactionCommitted,
    UnknownTransaction,
)
from braidmq.client.identity import Application, TransactionBranch
from braidmq.client.link import Link
from braidmq.client.message import Batch, Message, Source, take
from braidmq.client.metadata import Metadata
from braidmq.client.publishing import Publishing, Value
from braidmq.model.errors import BraidError
from braidmq.wire.amqp.methods import (
    ConfirmSelect,
    ConfirmSelectOk,
    TxAck,
    TxBegin,
    TxBeginOk,
    TxCommitOk,
    TxEnd,
    TxHeartbeat,
    TxRollbackOk,
)
from braidmq.wire.amqp.tables import Table

HEARTBEAT_S = 3.0
"""A tenth of the time after which a silent owner's transaction is aborted."""


TRANSACTION_RECORDS = 1000
TRANSACTION_BYTES = 1 << 20
IDLE_MAX = 16
"""Transactions at once that find a channel ready."""


class TransactionOptions(TypedDict, total=False):
    branch: str
    """Where this program publishes in it, if several do: the commit may choose among them."""
    join: bool
    """It must be there; else it is begun if it is not."""
    timeout_ms: int
    """How long it may take altogether; 60 s unless said."""
    session_ms: int
    """How long nothing may be heard of it; 30 s unless said."""
    application: Application | None
    """Raises TransactionCommitted when this application has committed that sequence already."""


class PublishingPool:
    """Channels that transactions were on, for the next ones."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._idle: list[Publishing] = []

    async def take(self) -> Publishing:
        while self._idle:
            idle = self._idle.pop()
            if not idle.over:
                return idle
        # Nobody waits for less than all of it.
        made = Publishing(
            self._link, batch_records=TRANSACTION_RECORDS, batch_bytes=TRANSACTION_BYTES
        )
        await self._link.attach(made)
        return made

    async def give(self, publishing: Publishing) -> None:
        publishing.unbind()
        if publishing.over or publishing.unconfirmed or len(self._idle) >= IDLE_MAX:
            await publishing.close()
        else:
            self._idle.append(publishing)


class Transaction:
    """Publishes and acknowledgements that all count, or none: made with ``broker.transaction()``.

    ```python
    async with broker.transaction() as tx:
        await tx.publish("invoices", b"…")
        tx.ack(message)
    ```

    Raises TransactionAborted or another TransactionError, at its end or where it is used.
    """

    def __init__(
        self,
        link: Link,
        pool: "PublishingPool",
        name: str = "",
        *,
        branch: str = "",
        join: bool = False,
        timeout_ms: int = 0,
        session_ms: int = 0,
        application: Application | None = None,
    ) -> None:
        self.name = name or uuid.uuid4().hex
        self._may_be_refused = bool(name or application or join)
        self._link = link
        self._pool = pool
        about = application or Application(name="", epoch=0, sequence=0)
        self._begin = TxBegin(
            self.name,
            branch,
            join,
            timeout_ms=timeout_ms,
            session_ms=session_ms,
            application=about["name"],
            application_epoch=about["epoch"],
            application_sequence=about["sequence"],
        )
        self._producer: Publishing | None = None
        self._branch: TransactionBranch
        self._beat: asyncio.TimerHandle | None = None
        self._acks: list[tuple[Source, int, int]] = []
        """Ranges of tags to be sent, and below all there were: an abort gives them back."""
        self._acked: list[tuple[Source, int, int]] = []

    async def __aenter__(self) -> Self:
        """Raises TransactionCommitted, for one of that name that is, and what else is wrong."""
        self._branch = TransactionBranch(self._begin, self._link.loop)
        producer = await self._pool.take()
        try:
            await producer.bind(self._branch, waits=self._may_be_refused)
        except BaseException:
            await self._link.detach(producer)
            raise
        self._producer = producer
        # There is one for each message: without a call in between.
        self.__dict__["publish"] = producer.put
        self._next_beat()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._producer is None:
            return  # it was committed, aborted or left inside
        if kind is None:
            await self.commit()
            return
        # What happened inside is the news; the broker's time-out does the rest.
        with suppress(BraidError):
            await self.abort()

    # --- what happens in it ---

    def publish(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Awaitable[None]:
        """Publish a message. Await it: that waits while too much is under way.

        A topic that is not there, or full, is raised by the commit at the latest.
        """
        return self._open.put(topic, value, exchange=exchange, **metadata)

    async def publish_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        """As ``publish``, for messages with the same metadata."""
        await self._open.put_many(topic, values, exchange=exchange, **metadata)

    def ack(self, message: Message | Batch) -> None:
        """Acknowledge a message, or all of a batch, with the commit. An abort gives it back.

        It must be one of a consumer of the same broker object.
        """
        producer = self._open
        source, ranges = take(message)
        if not ranges:
            raise AlreadySettled("the message was already acknowledged or rejected")
        theirs, mine = source.channel, producer.channel
        if theirs is None or mine is None or theirs.connection is not mine.connection:
            raise NotInFlight("the message's connection is gone: it will be delivered again")
        self._branch.unsure = True
        if not self._acks:
            self._link.loop.call_soon(self._send_acks)
        for first, last in ranges:
            _add(self._acks, source, first, last)

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        for each in acks:
            _add(self._acked, *each)
        mine = self._producer.channel if self._producer is not None else None
        for source, first, last in acks:
            if mine is not None and (theirs := source.channel) is not None:
                mine.send(TxAck(theirs.number, first, last))

    @property
    def _open(self) -> Publishing:
        if self._producer is None:
            raise Closed("the transaction is over")
        return self._producer

    # --- its end ---

    async def commit(self, *, branches: Sequence[str] | None = None) -> None:
        """Make all of it visible, or what some branches published; it is on disk on return."""
        producer, said = self._open, False
        arguments: Table = {"branches": list(branches)} if branches is not None else {}
        end = TxEnd(True, branches is not None, arguments)
        try:
            while True:
                channel = await producer.attached_channel()
                try:
                    self._send_acks()
                    producer.send_waiting()
                    producer.raise_failures()
                    said = True
                    await channel.call(end, TxCommitOk)
                    break
                except ConnectionLost:
                    continue
        except TransactionCommitted:
            await self._drop(producer)
            if not said:
                self._give_back()
                raise  # by somebody else, without what was still on its way
            self._let_go()
            return  # the answer was lost with its connection
        except BaseException:
            await self._drop(producer)
            with suppress(BraidError):
                await self._abort_elsewhere()
            raise
        self._let_go()
        self._stop()
        await self._pool.give(producer)

    async def abort(self) -> None:
        """Nothing of it will be seen; what it acknowledged is delivered again."""
        producer = self._open
        await self._drop(producer)
        await self._abort_elsewhere()

    async def leave(self) -> None:
        """Stop publishing in it, and leave it to somebody else to commit: by its name."""
        producer = self._open
        self._send_acks()
        try:
            await producer.flush()
            if self._acked and (channel := producer.channel) is not None:
                # Any answer will do: it says that the acknowledgements before it were taken.
                await channel.call(ConfirmSelect(), ConfirmSelectOk)
        except BaseException:
            self._give_back()
            raise
        finally:
            await self._drop(producer)
        self._let_go()

    def _let_go(self) -> None:
        """The broker has taken what was acknowledged."""
        acked, self._acked = self._acked, []
        for source, first, last in acked:
            source.let_go(first, last)

    def _give_back(self) -> None:
        """Whatever the broker has not taken of what was acknowledged comes again."""
        acked, self._acked = self._acked, []
        for source, first, last in acked:
            source.give_back(first, last)

    async def _drop(self, producer: Publishing) -> None:
        self._stop()
        producer.fail(Closed("the transaction is over"))
        await self._link.detach(producer)

    def _stop(self) -> None:
        self._producer = None
        self.__dict__.pop("publish", None)
        if self._beat is not None:
            self._beat.cancel()

    async def _abort_elsewhere(self) -> None:
        """On a channel of its own: that of a transaction that failed may be gone."""
        self._send_acks()  # none of them leaves, but they are given back below
        if not self._link.is_connected:
            return  # the broker's time-out does it, and what was delivered comes again
        try:
            async with self._link.short_channel(ChannelOwner()) as channel:
                begin = TxBegin(
                    self.name, self._begin.branch, join=True, number=self._branch.number
                )
                await channel.call(begin, TxBeginOk)
                await channel.call(TxEnd(False), TxRollbackOk)
        except (TransactionAborted, UnknownTransaction):
            pass
        finally:
            self._give_back()

    # --- signs of life ---

    def _next_beat(self) -> None:
        self._beat = self._link.loop.call_later(HEARTBEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        channel = self._producer.channel if self._producer is not None else None
        if channel is not None:
            channel.send(TxHeartbeat())
        self._next_beat()


def publishing_of(transaction: Transaction) -> Publishing:
    """What it publishes with. Raises Closed when it is over."""
    return transaction._open


def _add(ranges: list[tuple[Source, int, int]], source: Source, first: int, last: int) -> None:
    """A range of tags, in one with that before it where it can be."""
    if ranges and ranges[-1][0] is source and ranges[-1][2] == first - 1:
        first = ranges.pop()[1]
    ranges.append((source, first, last))
