"""Publishing: messages gather in batches, and each is kept until the broker has confirmed it.

put, send ─► open batch ─► sent batches, oldest first ─► confirmed
             100 records,  kept to be sent again when
             64 KiB, 5 ms  the connection is restored
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from msgspec import structs

from braidmq.client.awaitables import DONE, TURN, Later
from braidmq.client.confirm import Confirm, Place
from braidmq.client.connection import Channel, ChannelOwner
from braidmq.client.errors import (
    Blocked,
    Closed,
    ConnectionLost,
    Failure,
    Nacked,
    PublishError,
    PublishFailed,
    PublishRefused,
    Unroutable,
    WindowFull,
)
from braidmq.client.identity import Identity, NumberedProducer, TransactionBranch
from braidmq.client.link import Link
from braidmq.client.metadata import NO_METADATA, BadMetadata, Metadata, encode_metadata
from braidmq.client.options import one_of
from braidmq.model.errors import BadRequest, BraidError
from braidmq.wire.amqp.client import PublishBatch, publish_head
from braidmq.wire.amqp.handshake import FRAME_BYTES_MAX
from braidmq.wire.amqp.methods import (
    BasicPlaced,
    BasicPublish,
    BasicReturn,
    ConfirmPlaces,
    ConfirmSelect,
    ConfirmSelectOk,
    decode,
)

T = TypeVar("T")

AckMode = Literal["none", "leader", "all"]
"""``none``: written is done. ``leader``: the broker's disk has it. ``all``: the disk of every
replica has it; a single node is all there is, so there it is the same."""

WhenBlocked = Literal["wait", "raise"]

Value = bytes | bytearray | memoryview | str
OnError = Callable[[Failure], None]

BATCH_RECORDS = 100
BATCH_BYTES = 64 * 1024
LINGER_MS = 5.0
WINDOW = 20_000
WINDOW_BYTES = 64 * 1024 * 1024
"""Unconfirmed at most, whatever the window: it is memory."""
MANY = 1000
"""Messages of ``send_many`` that are rendered at once, so that others get their turn."""
REPLY_ADDRESS = "amq.rabbitmq.reply-to."
"""How the address of a caller begins, to which an answer goes without a queue."""
HEADER_BYTES = 8 + 12
"""Of the frame that says what a message is, besides its properties: it is one frame, whatever is in
it, and the broker ends the connection over one that is larger than agreed."""
HEADS_MAX = 4096
"""Topics whose basic.publish is remembered."""


def _as_bytes(value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"a message's value is bytes or str, not {type(value).__name__}: encode it first, for"
        " instance with json.dumps"
    )


class ProducerOptions(TypedDict, total=False):
    ack: AckMode
    batch_records: int
    """A batch is sent when it has so many messages,"""
    batch_bytes: int
    """or so many bytes,"""
    linger_ms: float
    """or its first message is so old; 0: at once, with what else this turn of the loop brings."""
    window: int
    """Messages that may be unconfirmed before publishing waits."""
    blocked: WhenBlocked
    """What to do while the broker takes no publishes."""
    on_error: OnError | None
    """Gets what ``put`` failed with; without it ``flush`` raises it."""
    idempotent: bool
    """What is sent again after the connection was lost is written once."""
    name: str
    """Be idempotent, and the only one of that name: whoever was it before may publish no more."""


class _Batch:
    """Messages that are sent together, and who waits for which of them."""

    __slots__ = (
        "done", "errors", "first_tag", "places", "publishes", "settled", "waiters", "whole",
    )  # fmt: skip

    def __init__(
        self, publishes: PublishBatch, whole: "asyncio.Future[None] | None" = None
    ) -> None:
        self.publishes = publishes
        self.first_tag = 0
        self.settled = 0
        """How many from the first on are settled."""
        self.done: set[int] = set()
        """Others that are settled."""
        self.waiters: dict[int, asyncio.Future[Confirm]] = {}
        self.places: list[BasicPlaced] = []
        """Where messages are, as far as the broker says: the first tag of each run is an index."""
        self.whole = whole
        """Done when all are settled; then ``errors`` are for whoever waits for it."""
        self.errors: dict[int, PublishError] = {}
        """What is known to be wrong with messages, whether they are settled or not."""

    @property
    def count(self) -> int:
        return self.publishes.count

    def places_of(self, index: int) -> tuple[Place, ...]:
        return tuple(
            Place(run.topic, run.partition, run.offset + index - run.first_tag)
            for run in self.places
            if run.first_tag <= index < run.first_tag + run.count
        )

    def settle(self, start: int, stop: int) -> Sequence[int]:
        """Settle a range; gives those of it that were not settled."""
        fresh: Sequence[int] = range(max(start, self.settled), min(stop, self.count))
        if start > self.settled:
            fresh = [index for index in fresh if index not in self.done]
            self.done.update(fresh)
        else:
            if self.done:
                fresh = [index for index in fresh if index not in self.done]
            self.settled = max(self.settled, min(stop, self.count))
            while self.settled in self.done:
                self.settled += 1
        return fresh


class Publishing(ChannelOwner):
    """What a producer, a transaction and calls have in common: a channel that publishes."""

    number = 0
    """Of its channel, given by the link; 0 before that."""
    topic = ""

    def __init__(
        self,
        link: Link,
        *,
        ack: AckMode = "leader",
        batch_records: int = BATCH_RECORDS,
        batch_bytes: int = BATCH_BYTES,
        linger_ms: float = LINGER_MS,
        window: int = WINDOW,
        blocked: WhenBlocked = "wait",
        on_error: OnError | None = None,
        idempotent: bool = False,
        name: str = "",
    ) -> None:
        one_of("ack", ack, AckMode)
        one_of("blocked", blocked, WhenBlocked)
        if ack == "none" and (idempotent or name):
            raise BadRequest("a producer without confirms can't be idempotent")
        self._link = link
        self._identity: Identity | None = NumberedProducer(name) if idempotent or name else None
        self._given = 0
        """Messages sent since it has its identity: their numbers are 0 to this."""
        self._loop = link.loop
        self._confirms = ack != "none"
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._window = window
        self._raises_blocked = blocked == "raise"
        self._slow = self._raises_blocked or not self._confirms
        """Whether each put has to look at more than the window."""
        self._on_error = on_error
        self._channel: Channel | None = None
        self._properties_bytes_max = FRAME_BYTES_MAX - HEADER_BYTES
        self._heads: dict[tuple[str, str], bytes] = {}
        self._topic_heads: dict[str, bytes] = {}
        """Those of the default exchange, where messages mostly go."""
        self._open_batch()
        self._linger: asyncio.Handle | None = None
        self._sent: deque[_Batch] = deque()
        self._next_tag = 1
        self._unconfirmed = 0
        self._unconfirmed_bytes = 0
        self._batches_sent = self._batches_done = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._failures: list[Failure] = []
        self._wants_places = False
        self._stream: deque[Confirm] | None = None
        """Confirms that nobody took yet, once somebody wants them."""
        self._over: BraidError | None = None

    @property
    def owner(self) -> ChannelOwner:
        return self

    async def close(self) -> None:
        """End without waiting for confirms: ``flush`` does that."""
        if self.number and self._over is None:
            self._close_batch()
            await self._link.detach(self)
            self.fail(Closed("the producer was closed"))

    # --- publishing ---

    @property
    def unconfirmed(self) -> int:
        """Messages given to it that the broker has not confirmed yet."""
        return self._unconfirmed

    async def send(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Confirm:
        if not self._has_room:
            await self.wait_for_room()
        if not self._wants_places:
            self._ask_places()
        batch, index = self._add(topic, value, exchange, metadata)
        if not self._confirms:
            return Confirm(exchange, topic, batch.publishes.message(index)[2])
        waiter: asyncio.Future[Confirm] = self._loop.create_future()
        batch.waiters[index] = waiter
        return await waiter

    def put(
        self, topic: str, value: Value, *, exchange: str = "", **metadata: Unpack[Metadata]
    ) -> Awaitable[None]:
        head = self._topic_heads.get(topic)
        if (
            self._unconfirmed >= self._window
            or self._slow
            or head is None
            or metadata
            or exchange
            or type(value) is not bytes
        ):
            return self._put(topic, value, exchange, metadata)
        self._unconfirmed += 1
        if self._publishes.add(head, NO_METADATA, value):
            self._close_batch()
            # A loop of puts that never wait would keep everybody else out.
            return TURN
        if self._linger is None:
            self._start_linger()
        return DONE

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        many = self._many(topic, values, exchange, metadata, waits=True)
        batches = [batch async for batch in many]
        failures: list[Failure] = []
        for batch in batches if self._confirms else ():
            assert batch.whole is not None
            await batch.whole
            failures += [self._failure(batch, i, error) for i, error in batch.errors.items()]
        if failures:
            raise PublishFailed(failures)

    async def put_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        exchange: str = "",
        **metadata: Unpack[Metadata],
    ) -> None:
        async for _ in self._many(topic, values, exchange, metadata, waits=False):
            pass

    async def flush(self) -> None:
        self._close_batch()
        target = self._batches_sent
        while self._batches_done < target and self._over is None:
            await self._progress()
        if not self._confirms and self._channel is not None:
            await self._channel.connection.drain()
        if self._over is not None:
            raise self._over
        self.raise_failures()

    def raise_failures(self) -> None:
        """Raises PublishFailed with what ``put`` failed with since the last time."""
        if self._failures:
            failures, self._failures = self._failures, []
            raise PublishFailed(failures)

    # --- the open batch ---

    def _put(self, topic: str, value: Value, exchange: str, metadata: Metadata) -> Awaitable[None]:
        """A put with something about it; the usual ones are quicker."""
        if self._unconfirmed >= 2 * self._window:
            raise WindowFull(f"{self._unconfirmed} messages are unconfirmed")
        batch, _ = self._add(topic, value, exchange, metadata)
        if not self._has_room:
            return Later(self.wait_for_room)
        return DONE if batch is self._batch else TURN

    def _add(
        self, topic: str, value: Value, exchange: str, metadata: Metadata
    ) -> tuple[_Batch, int]:
        self._check_usable()
        if type(value) is not bytes:
            value = _as_bytes(value)
        head = self._heads.get((exchange, topic)) or self._head(exchange, topic)
        properties = self._properties(metadata) if metadata else NO_METADATA
        batch, index = self._batch, self._publishes.count
        self._unconfirmed += 1
        if self._publishes.add(head, properties, value):
            self._close_batch()
        elif self._linger is None:
            self._start_linger()
        return batch, index

    def _start_linger(self) -> None:
        self._linger = (
            self._loop.call_later(self._linger_s, self._close_batch)
            if self._linger_s
            else self._loop.call_soon(self._close_batch)
        )

    async def _many(
        self,
        topic: str,
        values: Sequence[bytes],
        exchange: str,
        metadata: Metadata,
        *,
        waits: bool,
    ) -> AsyncIterator[_Batch]:
        """Batches of their own, sent as there is room."""
        properties = self._properties(metadata)
        self._close_batch()
        for first in range(0, len(values), MANY):
            if not self._has_room:
                await self.wait_for_room()
            self._check_usable()
            batch = _Batch(PublishBatch(), self._loop.create_future() if waits else None)
            head = self._heads.get((exchange, topic)) or self._head(exchange, topic)
            batch.publishes.extend(head, properties, list(values[first : first + MANY]))
            self._unconfirmed += batch.count
            self._send_batch(batch)
            yield batch
            await TURN

    def _check_usable(self) -> None:
        if self._over is not None:
            raise self._over
        if not self.number:
            raise Closed("the producer is not open")
        channel = self._channel
        if self._raises_blocked and channel is not None and channel.connection.blocked:
            raise Blocked(
                f"the broker accepts no messages at the moment: {channel.connection.blocked}"
            )

    def _head(self, exchange: str, topic: str) -> bytes:
        try:
            # RabbitMQ returns a mandatory answer to a caller, even if the caller gets it.
            mandatory = bool(exchange) or not topic.startswith(REPLY_ADDRESS)
            head = publish_head(self.number, exchange.encode(), topic.encode(), mandatory)
        except ValueError as error:
            raise BadMetadata(str(error)) from None
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
            self._topic_heads.clear()
        self._heads[exchange, topic] = head
        if not exchange:
            self._topic_heads[topic] = head
        return head

    def _properties(self, metadata: Metadata) -> bytes:
        properties = encode_metadata(metadata)
        if len(properties) > self._properties_bytes_max:
            raise BadMetadata(
                f"what is said of the message has {len(properties)} bytes, and the broker takes"
                f" {self._properties_bytes_max}",
                remedy="Say less in its headers: put it into the value",
            )
        return properties

    def _close_batch(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._publishes.count:
            batch = self._batch
            self._open_batch()
            self._send_batch(batch)

    def _open_batch(self) -> None:
        self._publishes = PublishBatch(self._batch_records, self._batch_bytes)
        self._batch = _Batch(self._publishes)

    def _send_batch(self, batch: _Batch) -> None:
        batch.first_tag = self._next_tag
        self._next_tag += batch.count
        self._given += batch.count
        self._unconfirmed_bytes += batch.publishes.size
        if self._unconfirmed_bytes >= WINDOW_BYTES:
            self._slow = True  # puts look at the bytes too, from here on
        self._batches_sent += 1
        self._sent.append(batch)
        if self._channel is not None:
            self._write(self._channel, batch)

    def _write(self, channel: Channel, batch: _Batch) -> None:
        channel.write(batch.publishes.render(batch.settled, channel.frame_max))
        if not self._confirms:
            self._settle(batch, 0, batch.count, None)
            self._drop_settled()

    def put_or_note(self, topic: str, value: Value, exchange: str, metadata: Metadata) -> None:
        """A put whose caller is in another thread: what is wrong with it is raised by ``flush``."""
        try:
            self._add(topic, value, exchange, metadata)
        except BraidError as error:
            wrong = PublishError(str(error))
            wrong.__cause__ = error
            self._put_failed(Failure(exchange, topic, _as_bytes(value), wrong))

    # --- room ---

    def has_room_for(self, more: int) -> bool:
        """Whether it takes so many without waiting. May be asked from another thread."""
        return self._unconfirmed + more < self._window and self._has_room

    @property
    def _has_room(self) -> bool:
        return (
            self._unconfirmed < self._window
            and self._unconfirmed_bytes < WINDOW_BYTES
            and (self._stream is None or len(self._stream) < self._window)
            and (self._confirms or self._channel is None or self._channel.connection.is_writable)
        )

    async def wait_for_room(self) -> None:
        """Wait while too much is unconfirmed. Raises what the producer ended with."""
        while not self._has_room:
            self._check_usable()
            channel = self._channel
            if not self._confirms and channel is not None and not channel.connection.is_writable:
                await channel.connection.drain()
            else:
                self._close_batch()
                await self._progress()

    async def _progress(self) -> None:
        """Wait until something is settled."""
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # --- from the broker ---

    async def attached(self, channel: Channel) -> None:
        """A channel, the first or another one: what is unconfirmed is sent, maybe again."""
        if self._confirms:
            await channel.call(ConfirmSelect(), ConfirmSelectOk)
            if self._wants_places:
                self._say_places(channel)
        if self._identity is not None:
            unsettled = sum(batch.count - batch.settled for batch in self._sent)
            await self._identity.attach(channel, self._given - unsettled)
        self._channel = channel
        self._properties_bytes_max = channel.frame_max - HEADER_BYTES
        self._next_tag = 1
        for batch in list(self._sent):
            batch.first_tag = self._next_tag - batch.settled
            batch.places.clear()
            self._next_tag += batch.count - batch.settled
            self._write(channel, batch)
        self._wake()

    async def bind(self, identity: TransactionBranch, *, waits: bool) -> None:
        """Publish as somebody from here on; nothing may be unconfirmed."""
        assert not self._sent
        self._identity, self._given = identity, 0
        channel = await self.attached_channel()
        if not waits:
            identity.announce(channel)
            return
        try:
            await identity.attach(channel, 0)
        except ConnectionLost:
            await self.attached_channel()

    def unbind(self) -> None:
        self._identity = None

    def send_waiting(self) -> None:
        """Send the open batch now."""
        self._close_batch()

    @property
    def channel(self) -> Channel | None:
        """Its channel, while there is one."""
        channel = self._channel
        return channel if channel is not None and channel.open else None

    async def attached_channel(self) -> Channel:
        """Its channel, once there is one. Raises what the producer ended with."""
        while True:
            if self._over is not None:
                raise self._over
            if (channel := self.channel) is not None:
                return channel
            await self._progress()

    @property
    def over(self) -> bool:
        return self._over is not None

    def detached(self) -> None:
        self._channel = None

    def drop_sent(self) -> None:
        """What is unconfirmed is not sent again, as if it were confirmed."""
        for batch in list(self._sent):
            self._settle(batch, 0, batch.count, None)
        self._drop_settled()

    def fail(self, error: BraidError) -> None:
        """It is over: the producer or its broker was closed, or the connection is given up."""
        if self._over is not None:
            return
        self._over = error
        self._slow = True
        self._channel = None
        if self._identity is not None:
            self._identity.fail(error)
        if self._linger is not None:
            self._linger.cancel()
        for batch in (*self._sent, self._batch):
            waiters: list[asyncio.Future[Any] | None] = [*batch.waiters.values(), batch.whole]
            for waiter in waiters:
                if waiter is not None and not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # whoever waits gets it; if nobody does, that is no news
        self._sent.clear()
        self._wake()

    def on_confirm(self, first: int, last: int, positive: bool) -> None:
        for batch in self._sent:
            start, stop = first - batch.first_tag, last - batch.first_tag + 1
            if stop <= 0:
                break
            if start < batch.count:
                error = None if positive else Nacked("the broker refused a message")
                self._settle(batch, start, stop, error)
        self._drop_settled()

    def on_placed(self, run: BasicPlaced) -> None:
        for batch in self._sent:
            start = run.first_tag - batch.first_tag
            if start + run.count <= 0:
                break
            if start < batch.count:
                batch.places.append(structs.replace(run, first_tag=start))

    def on_return(self, method: BasicReturn, properties: bytes, body: bytes) -> None:
        head = self._head(method.exchange, method.routing_key)
        wanted = (head, properties, body)
        error = unroutable(method)
        for batch in self._sent:
            # Returns come in the order of the publishes: behind the last one of this batch.
            start = max(batch.errors, default=-1) + 1
            for index in range(max(start, batch.settled), batch.count):
                if batch.publishes.message(index) == wanted:
                    batch.errors[index] = error
                    return

    def on_closed(self, error: BraidError) -> None:
        """The broker refused a publish, and ignores all that followed it."""
        self._channel = None
        if self._identity is not None and not self._identity.outlives_channel:
            self.fail(error)
            return
        for batch in list(self._sent):
            refused = PublishRefused(f"the broker closed the channel: {error}")
            refused.__cause__ = error
            self._settle(batch, 0, batch.count, refused)
        self._drop_settled()
        self._link.attach_again(self)

    def _settle(self, batch: _Batch, start: int, stop: int, error: PublishError | None) -> None:
        fresh = batch.settle(start, stop)
        self._unconfirmed -= len(fresh)
        if error is None and not batch.errors and not batch.waiters and self._stream is None:
            return
        for index in fresh:
            wrong = batch.errors.get(index, error)
            waiter = batch.waiters.pop(index, None)
            if waiter is not None:
                _answer(waiter, wrong, self._confirm(batch, index, wrong))
            elif batch.whole is not None:
                if wrong is not None:
                    batch.errors[index] = wrong
            elif self._stream is not None:
                self._stream.append(self._confirm(batch, index, wrong))
            elif wrong is not None:
                self._put_failed(self._failure(batch, index, wrong))

    def _drop_settled(self) -> None:
        while self._sent and self._sent[0].settled == self._sent[0].count:
            batch = self._sent.popleft()
            self._batches_done += 1
            self._unconfirmed_bytes -= batch.publishes.size
            if batch.whole is not None:
                _answer(batch.whole, None, None)
        if self._waiting:
            self._wake()

    def _confirm(self, batch: _Batch, index: int, error: PublishError | None) -> Confirm:
        head, _, value = batch.publishes.message(index)
        return Confirm(*_route_of(head), value, error, batch.places_of(index))

    def _failure(self, batch: _Batch, index: int, error: PublishError) -> Failure:
        head, _, value = batch.publishes.message(index)
        return Failure(*_route_of(head), value, error)

    def _put_failed(self, failure: Failure) -> None:
        if self._on_error is not None:
            self._on_error(failure)
        else:
            self._failures.append(failure)

    # --- confirms, as a stream ---

    def _ask_places(self) -> None:
        """From here on somebody looks at confirms: who only puts does not pay for what they say."""
        self._wants_places = True
        if self._channel is not None:
            self._say_places(self._channel)

    def _say_places(self, channel: Channel) -> None:
        if self._confirms and channel.connection.can_tell_places:
            channel.send(ConfirmPlaces())

    def begin_stream(self) -> None:
        if not self._confirms:
            raise BadRequest('a producer with ack="none" gets no confirms')
        if self._stream is None:
            self._stream = deque()
            self._slow = True  # puts look at what nobody took, too
            if not self._wants_places:
                self._ask_places()

    async def next_confirms(self) -> list[Confirm]:
        """Those there are, at least one; none when the producer was closed."""
        assert self._stream is not None
        while not self._stream:
            if isinstance(self._over, Closed):
                return []
            self._check_usable()
            await self._progress()
        taken = list(self._stream)
        self._stream.clear()
        self._wake()
        return taken


def unroutable(method: BasicReturn) -> Unroutable:
    where = f"exchange {method.exchange!r} with key" if method.exchange else "topic"
    return Unroutable(f"nobody gets what is published to {where} {method.routing_key!r}")


@lru_cache(HEADS_MAX)
def _route_of(head: bytes) -> tuple[str, str]:
    """Exchange and routing key of a basic.publish frame."""
    method = decode(head[7:-1])
    assert isinstance(method, BasicPublish)
    return method.exchange, method.routing_key


def _answer(waiter: "asyncio.Future[T]", error: PublishError | None, answer: T) -> None:
    if waiter.done():
        return  # it was cancelled
    if error is None:
        waiter.set_result(answer)
    else:
        waiter.set_exception(error)
