"""The connection that a broker object has, restored when it is lost, and what is attached to it.

Producers and consumers have a channel each, of the same number on every connection. When one is
lost, first comes what the program declared and what went with the connection; then they are
attached to the next: producers send again what is unconfirmed, consumers begin anew.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from braidmq.client.address import Address
from braidmq.client.connection import Channel, ChannelOwner, Connection
from braidmq.client.errors import Closed, ConnectFailed, ConnectionLost, Suspected
from braidmq.client.tokens import TokenSource
from braidmq.client.topology import Topology
from braidmq.model.errors import BraidError
from braidmq.wire.amqp.methods import Method

BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 5.0
"""A node that restarts is back within seconds; one that is away for long is asked no more often."""


class Attachment(Protocol):
    """What has a channel on each of the connections, one after the other."""

    number: int
    """Of its channel; 0 before it is attached."""
    topic: str
    """What it consumes from; none for who publishes."""

    @property
    def owner(self) -> ChannelOwner:
        """Who is told what comes on the channel."""

    @property
    def over(self) -> bool: ...

    async def attached(self, channel: Channel) -> None: ...

    def detached(self) -> None:
        """The channel is gone, and there may be another one."""

    def fail(self, error: BraidError) -> None:
        """There will be no channel any more."""

    async def close(self) -> None: ...


class Link:
    def __init__(
        self,
        address: Address,
        *,
        reconnect: bool,
        heartbeat_s: int,
        connect_timeout_s: float,
        name: str,
        token: TokenSource | None = None,
    ) -> None:
        self.topology = Topology()
        self._address = address
        self._reconnect = reconnect
        self._heartbeat_s = heartbeat_s
        self._connect_timeout_s = connect_timeout_s
        self._name = name
        self._token = token
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._alone = asyncio.Lock()
        """Held by a request that may be what the broker closed the connection over."""
        self._attachments: dict[int, Attachment] = {}
        self._numbers: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: BraidError | None = Closed("the broker object is not open")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Raises ConnectFailed, NotAuthenticated or AccessRefused."""
        self._loop = asyncio.get_running_loop()
        connection = await self._open()
        self._over = None
        self._connection = connection
        self._connected.set()
        self._start(self._supervise(connection))

    async def close(self) -> None:
        if self._connection is None or isinstance(self._over, Closed):
            return
        for attachment in list(self._attachments.values()):
            await attachment.close()
        self._give_up(Closed("the broker object was closed"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Closed("the broker object is not open")
        return self._loop

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set() and self._over is None

    def require_open(self) -> None:
        """Raises what it ended with, or that it was not opened yet."""
        if self._over is not None:
            raise self._over

    def forget_unused(self, queue: str) -> None:
        """A consumer ended: an auto-delete queue that has no other of ours is gone."""
        others = (each.topic == queue for each in self._attachments.values())
        if self.topology.is_auto_delete(queue) and not any(others):
            self.topology.forget_queue(queue)

    # --- requests ---

    async def declare(self, method: Method) -> Method:
        """Ask for something that is to be there on the next connection too."""
        answer = await self.request(method)
        self.topology.declared(method)
        return answer

    async def request(self, method: Method) -> Method:
        """Ask on a channel of its own; again on the next connection if this one is lost, as asking
        twice is as good as once. Raises what the broker refuses it with."""
        suspected = False
        while True:
            try:
                async with self._turn(suspected), self.short_channel(ChannelOwner()) as channel:
                    return await channel.ask(method)
            except ConnectionLost as lost:
                self.require_open()
                suspected = isinstance(lost, Suspected)

    @asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        """Requests are made together, but for those that must be told from others."""
        async with self._alone:
            if alone:
                yield
                return
        yield

    @asynccontextmanager
    async def short_channel(self, owner: ChannelOwner) -> AsyncIterator[Channel]:
        """A channel for a few calls."""
        number = self._take_number()
        try:
            channel = await (await self._ready()).open_channel(number, owner)
            yield channel
        except BaseException:
            self._start(self._release(number))
            raise
        await self._release(number)

    async def _release(self, number: int) -> None:
        """Close the channel of a number, if it is open: only then may another one have it."""
        connection = self._connection
        try:
            if connection is not None and connection.error is None:
                await connection.close_channel(number)
        except BraidError:
            pass  # then it is gone too
        finally:
            self._numbers.discard(number)

    # --- channels ---

    async def attach(self, attachment: Attachment) -> None:
        """Give a producer or consumer its channel, and another whenever the connection is lost."""
        self.require_open()
        attachment.number = self._take_number()
        suspected = False
        while True:
            try:
                async with self._turn(suspected):
                    connection = await self._ready()
                    await self._attach(connection, attachment)
                break
            except ConnectionLost as lost:
                attachment.detached()
                self.require_open()
                suspected = isinstance(lost, Suspected)
            except BaseException:
                self._start(self._release(attachment.number))
                attachment.number = 0
                raise
        self._attachments[attachment.number] = attachment

    async def _attach(self, connection: Connection, attachment: Attachment) -> None:
        channel = await connection.open_channel(attachment.number, attachment.owner)
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
        await self._release(attachment.number)

    def _take_number(self) -> int:
        number = next(n for n in range(1, 1 << 16) if n not in self._numbers)
        self._numbers.add(number)
        return number

    # --- the connection ---

    async def _ready(self) -> Connection:
        """The connection, once there is one."""
        while True:
            self.require_open()
            connection = self._connection
            if connection is not None and connection.error is None:
                return connection
            await self._connected.wait()
            await asyncio.sleep(0)

    async def _open(self) -> Connection:
        return await Connection.open(
            self._address,
            heartbeat_s=self._heartbeat_s,
            timeout_s=self._connect_timeout_s,
            name=self._name,
            token=self._token,
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
        """Try until it works, with all that was declared; a refused login will not get better by
        trying."""
        wait_s = BACK_OFF_S_MIN
        while True:
            try:
                return await self._open_again()
            except (ConnectFailed, ConnectionLost):
                # Not all clients of a node that restarts should come at once.
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, BACK_OFF_S_MAX)

    async def _open_again(self) -> Connection:
        connection = await self._open()
        try:
            await self.topology.restore(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

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
