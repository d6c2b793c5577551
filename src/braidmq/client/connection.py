"""One AMQP connection, the client's side: bytes in and out, the handshake, heartbeats, channels.

It is not restored: when it is lost, ``lost`` says why, and ``broker.py`` opens another.
"""

import asyncio
import logging
from collections import deque
from typing import TypeVar, cast

from braidmq.client.address import Address
from braidmq.client.errors import Closed, ConnectFailed, ConnectionLost, Suspected, from_reply
from braidmq.client.tokens import TokenSource
from braidmq.model.errors import AccessRefused, BadRequest, BraidError, NotAuthenticated
from braidmq.wire.amqp.client import EVENT_CONFIRM, EVENT_DELIVERIES, DeliveryRun, scan
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind, ReplyCode
from braidmq.wire.amqp.errors import AmqpError, UnexpectedFrame
from braidmq.wire.amqp.handshake import CHANNEL_MAX, FRAME_BYTES_MAX, start_ok, tune_ok
from braidmq.wire.amqp.methods import (
    HEARTBEAT_FRAME,
    BasicCancel,
    BasicDeliver,
    BasicExtend,
    BasicPlaced,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    decode,
    method_frame,
)
from braidmq.wire.amqp.properties import split_content_header

RECEIVE_BYTES = 512 * 1024
"""More than three frames, so that a message in three of them is always whole at some time."""

FLUSH_BYTES = 64 * 1024

CLOSE_S_MAX = 5.0
"""How long a broker may take to answer connection.close: a clean end is worth no more."""

HEARTBEATS_MISSED_MAX = 2

RENEW_S_MIN = 1.0
"""So long at least is between two questions for a token, whatever it says of its end."""

logger = logging.getLogger(__name__)

_MethodT = TypeVar("_MethodT", bound=Method)


class ChannelOwner:
    """Who is told what the broker sends on a channel."""

    def on_deliveries(self, run: DeliveryRun) -> None: ...

    def on_confirm(self, first: int, last: int, positive: bool) -> None:
        """Tags ``first`` to ``last``; a first of 0 is the oldest that is unconfirmed."""

    def on_placed(self, run: BasicPlaced) -> None:
        """Where published messages are; their confirm comes behind it."""

    def on_return(self, method: BasicReturn, properties: bytes, body: bytes) -> None: ...

    def on_cancel(self) -> None:
        """The broker ended the channel's consumer."""

    def on_timeout(self, first: int, last: int) -> None:
        """The visibility timeout of these deliveries is over."""

    def on_closed(self, error: BraidError) -> None:
        """The broker closed the channel; the connection lives."""


class Channel:
    def __init__(self, connection: "Connection", number: int, owner: ChannelOwner) -> None:
        self.connection = connection
        self.number = number
        self.owner = owner
        self.open = True
        self._calls: deque[tuple[Method, asyncio.Future[Method]]] = deque()
        """What was asked, and who waits for its answer."""

    @property
    def frame_max(self) -> int:
        return self.connection.frame_max

    def write(self, data: bytes) -> None:
        if self.open:
            self.connection.write(data)

    def send(self, method: Method) -> None:
        self.write(self._frame(method))

    def _frame(self, method: Method) -> bytes:
        """Raises BadRequest for what the broker would end the connection over: it would do so again
        on the next one."""
        try:
            frame = method_frame(self.number, method)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRequest(f"{method.NAME} can't be encoded: {error}") from None
        if len(frame) > self.frame_max:
            raise BadRequest(
                f"{method.NAME} would have {len(frame)} bytes,"
                f" and the broker takes {self.frame_max}"
            )
        return frame

    async def call(self, method: Method, reply: type[_MethodT]) -> _MethodT:
        """Raises what the broker closes the channel or the connection with."""
        answer = await self.ask(method)
        if not isinstance(answer, reply):
            raise UnexpectedFrame(f"unexpected reply {answer.NAME} to {method.NAME}")
        return answer

    def ask(self, method: Method) -> "asyncio.Future[Method]":
        """As ``call``, for who need not wait."""
        if not self.open:
            raise self.connection.error or ConnectionLost("the channel is closed")
        frame = self._frame(method)
        waiting: asyncio.Future[Method] = self.connection.loop.create_future()
        # Replies come in order: one nobody waits for any more still takes its place.
        self._calls.append((method, waiting))
        self.write(frame)
        return waiting

    async def close(self) -> None:
        if self.open:
            try:
                await self.call(ChannelClose(200, "done"), ChannelCloseOk)
            finally:
                self.connection.forget(self)
                self.open = False

    # --- from the connection ---

    def on_method(self, method: Method) -> None:
        if isinstance(method, ChannelClose):
            self.send(ChannelCloseOk())
            self.connection.forget(self)
            error = from_reply(method.reply_code, method.reply_text)
            self.fail(error)
            self.owner.on_closed(error)
        elif isinstance(method, BasicCancel):
            self.owner.on_cancel()
        elif isinstance(method, BasicExtend):
            self.owner.on_timeout(method.first_tag, method.last_tag)
        elif isinstance(method, BasicPlaced):
            self.owner.on_placed(method)
        elif self._calls:
            _, waiting = self._calls.popleft()
            if not waiting.done():
                waiting.set_result(method)

    def is_asking(self, class_id: int, method_id: int) -> bool:
        """Whether the broker may be at a method of these ids, or at any if they are 0."""
        if not self._calls:
            return False
        asked, _ = self._calls[0]
        return class_id == 0 or (class_id, method_id) == asked.IDS

    def refuse(self, error: BraidError) -> None:
        """What is being asked is why the connection ends."""
        _, waiting = self._calls.popleft()
        if not waiting.done():
            waiting.set_exception(error)

    def fail(self, error: BraidError) -> None:
        self.open = False
        while self._calls:
            _, waiting = self._calls.popleft()
            if not waiting.done():
                waiting.set_exception(error)


class _Content:
    """A message that comes in frame by frame."""

    __slots__ = ("body", "method", "properties", "size")

    def __init__(self, method: BasicDeliver | BasicReturn) -> None:
        self.method = method
        self.size = -1
        self.properties = b""
        self.body = bytearray()


class Connection(asyncio.BufferedProtocol):
    """Use ``Connection.open``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lost: asyncio.Future[BraidError] = loop.create_future()
        """Done when the connection is over; its result says why."""
        self.error: BraidError | None = None
        self.frame_max = FRAME_BYTES_MAX
        self.channel_max = CHANNEL_MAX
        self.can_retry = False
        """Whether the broker knows basic.retry."""
        self.can_extend = False
        """Whether it has visibility timeouts, and basic.extend."""
        self.can_tell_errors = False
        """Whether it knows basic.fail: an error that goes with the dead letter."""
        self.can_transact = False
        """Whether it has our transactions and numbered producers."""
        self.can_tell_places = False
        """Whether it says where messages went, to who asks with confirm.places."""
        self.blocked: str | None = None
        """Why the broker takes no publishes just now."""
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._contents: dict[int, _Content] = {}
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_due = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._control: deque[Method] = deque()
        self._control_waiter: asyncio.Future[None] | None = None
        self._heartbeat_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._beat_due = 0.0
        self._received_at = self._sent_at = loop.time()
        self._opened = False
        self._closing = False

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        heartbeat_s: int,
        timeout_s: float,
        name: str = "",
        token: TokenSource | None = None,
    ) -> "Connection":
        """Raises ConnectFailed, NotAuthenticated or AccessRefused."""
        loop = asyncio.get_running_loop()
        connection = cls(loop)
        try:
            async with asyncio.timeout(timeout_s):
                context = None if address.tls is None else address.tls.context()
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=context
                )
                secret = address.password if token is None else await token.get(fresh=True)
                await connection._log_in(address, secret, heartbeat_s, name)
                if token is not None and token.renews:
                    connection._renewing = loop.create_task(connection._renew(token))
        except TimeoutError:
            connection.abort()
            raise ConnectFailed(f"{address} did not answer within {timeout_s:g} seconds") from None
        except (OSError, ConnectionLost, AmqpError) as error:
            connection.abort()
            raise ConnectFailed(f"no broker answers at {address}: {error}") from error
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _log_in(self, address: Address, secret: str, heartbeat_s: int, name: str) -> None:
        self.write(PROTOCOL_HEADER)
        server = (await self._expect(ConnectionStart)).server_properties
        capabilities = server.get("capabilities")
        if isinstance(capabilities, dict):
            self.can_retry = bool(capabilities.get("braid.retry"))
            self.can_extend = bool(capabilities.get("braid.visibility"))
            self.can_tell_errors = bool(capabilities.get("braid.errors"))
            self.can_tell_places = bool(capabilities.get("braid.places"))
            self.can_transact = bool(capabilities.get("braid.transactions"))
        self._say(start_ok("BraidMQ client", address.user, secret, name))
        try:
            offered = await self._expect(ConnectionTune)
        except AccessRefused as error:
            raise NotAuthenticated(
                f"{address} refused the login", remedy="Check user and password"
            ) from error
        tuned = tune_ok(offered, heartbeat_s)
        self._say(tuned)
        self.frame_max, self.channel_max = tuned.frame_max, tuned.channel_max
        self._say(ConnectionOpen(address.vhost))
        await self._expect(ConnectionOpenOk)
        self._opened = True
        self._heartbeat_s = tuned.heartbeat
        if tuned.heartbeat:
            self._next_beat()

    async def _renew(self, token: TokenSource) -> None:
        """Before a token ends the broker is told of another one, and all goes on."""
        while (left_s := token.left_s()) is not None:
            await asyncio.sleep(max(left_s, RENEW_S_MIN))
            try:
                secret = await token.get()
            except Exception as error:  # whatever a program's own function raises
                logger.warning("no new token: the old one is used while it lasts: %s", error)
                continue
            if self.error is not None:
                return
            self._say(ConnectionUpdateSecret(secret.encode(), "the token ends"))
            try:
                await self._expect(ConnectionUpdateSecretOk)
            except BraidError:
                return  # the connection is over, and says why itself

    # --- channels ---

    async def open_channel(self, number: int, owner: ChannelOwner) -> Channel:
        if self.error is not None:
            raise self.error
        channel = self._channels[number] = Channel(self, number, owner)
        await channel.call(ChannelOpen(), ChannelOpenOk)
        return channel

    async def close_channel(self, number: int) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            await channel.close()

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)
        self._contents.pop(channel.number, None)

    # --- out ---

    def write(self, data: bytes) -> None:
        """Written with all else of this turn of the loop, in one piece, unless that is much: the
        broker may as well begin with it."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._out_bytes = 0
        if self._transport is None or not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        if not self._transport.is_closing():
            self._sent_at = self.loop.time()
            self._transport.write(data)

    def _say(self, method: Method) -> None:
        self.write(method_frame(0, method))

    async def drain(self) -> None:
        """Wait until the socket takes more, or the connection is over."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        return self._writable.is_set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- in ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closing:
            self._transport.abort()
        elif self._out:
            self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = self.loop.time()
        size = self._filled + nbytes
        try:
            events, used = scan(self._buffer, size, self.frame_max)
            for event in events:
                if event[0] == EVENT_DELIVERIES:
                    self._owner(event[1]).on_deliveries(event[2])
                elif event[0] == EVENT_CONFIRM:
                    self._owner(event[1]).on_confirm(*event[2:])
                else:
                    self._on_frame(*event[1:])
        except AmqpError as error:
            # Nothing behind it can be understood.
            self._end(ConnectionLost(f"the broker broke the protocol: {error}"))
            return
        self._filled = size - used
        self._view[: self._filled] = bytes(self._view[used:size])

    def _owner(self, number: int) -> ChannelOwner:
        channel = self._channels.get(number)
        return channel.owner if channel is not None else _NOBODY

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == FrameKind.METHOD:
            method = decode(payload)
            if number == 0:
                self._on_control(method)
            elif isinstance(method, BasicDeliver | BasicReturn):
                self._contents[number] = _Content(method)
            elif number in self._channels:
                self._channels[number].on_method(method)
        elif kind != FrameKind.HEARTBEAT:
            self._on_content(kind, number, payload)

    def _on_content(self, kind: int, number: int, payload: bytes) -> None:
        content = self._contents.get(number)
        if content is None:
            if number in self._channels:
                raise UnexpectedFrame("content without a method")
            return  # of a channel that was closed meanwhile
        if kind == FrameKind.HEADER:
            content.size, content.properties = split_content_header(payload)
        else:
            content.body += payload
        if len(content.body) == content.size:
            del self._contents[number]
            self._on_whole(number, content)

    def _on_whole(self, number: int, content: _Content) -> None:
        method, owner = content.method, self._owner(number)
        if isinstance(method, BasicReturn):
            owner.on_return(method, content.properties, bytes(content.body))
            return
        owner.on_deliveries(
            DeliveryRun.single(
                number,
                method.consumer_tag.encode(),
                method.delivery_tag,
                method.redelivered,
                method.exchange.encode(),
                method.routing_key.encode(),
                content.properties,
                bytes(content.body),
            )
        )

    # --- channel 0 ---

    def _on_control(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            self._on_close(method)
        elif isinstance(method, ConnectionBlocked):
            self.blocked = method.reason or "no reason given"
        elif isinstance(method, ConnectionUnblocked):
            self.blocked = None
        else:
            self._control.append(method)
            self._wake()

    def _on_close(self, method: ConnectionClose) -> None:
        self._say(ConnectionCloseOk())
        self._flush()
        code, said = method.reply_code, method.reply_text
        refused = code in (ReplyCode.ACCESS_REFUSED, ReplyCode.NOT_ALLOWED)
        if refused and not self._opened:
            reason = said.partition(" - ")[2] or said
            self._end(AccessRefused(f"the broker closed the connection: {reason}"))
            return
        if code != ReplyCode.CONNECTION_FORCED:
            self._blame(method)
        self._end(ConnectionLost(f"the broker closed the connection: {code} {said}"))

    def _blame(self, said: ConnectionClose) -> None:
        """A request that the broker ends connections over is refused, not asked again. It names the
        method, not the channel: where it may be one of several, each is asked again, alone."""
        ids = said.class_id, said.method_id
        asking = [each for each in self._channels.values() if each.is_asking(*ids)]
        error = from_reply(said.reply_code, said.reply_text)
        for channel in asking:
            channel.refuse(error if len(asking) == 1 else Suspected(str(error)))

    def _wake(self) -> None:
        if self._control_waiter is not None and not self._control_waiter.done():
            self._control_waiter.set_result(None)

    async def _expect(self, wanted: type[_MethodT]) -> _MethodT:
        while not self._control:
            if self.error is not None:
                raise self.error
            self._control_waiter = self.loop.create_future()
            await self._control_waiter
        method = self._control.popleft()
        if not isinstance(method, wanted):
            raise UnexpectedFrame(f"expected {wanted.NAME}, got {method.NAME}")
        return method

    # --- heartbeats ---

    def _on_beat(self) -> None:
        now = self.loop.time()
        # A program that kept the loop busy has not looked either: what came is read first.
        in_time = now - self._beat_due < self._heartbeat_s / 2
        if in_time and now - self._received_at > HEARTBEATS_MISSED_MAX * self._heartbeat_s:
            self._end(ConnectionLost(f"the broker was silent for {self._heartbeat_s * 2:g} s"))
            return
        if now - self._sent_at >= self._heartbeat_s / 2:
            self.write(HEARTBEAT_FRAME)
        self._next_beat()

    def _next_beat(self) -> None:
        self._beat_due = self.loop.time() + self._heartbeat_s / 2
        self._beat = self.loop.call_at(self._beat_due, self._on_beat)

    # --- the end ---

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(f"connection lost: {exc or 'closed by the broker'}"))

    def _end(self, error: BraidError) -> None:
        """The one place where a connection ends; only the first reason counts."""
        if self._beat is not None:
            self._beat.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        self._writable.set()
        if self.error is not None:
            return
        self.error = error
        self._wake()
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel.fail(error)
        if not self.lost.done():
            self.lost.set_result(error)

    def abort(self) -> None:
        self._closing = True
        self._end(Closed("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Tell the broker, and wait for its answer for a while."""
        if self.error is not None or self._transport is None:
            self.abort()
            return
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                self._say(ConnectionClose(200, "done"))
                await self._expect(ConnectionCloseOk)
        except (TimeoutError, BraidError):
            pass  # it is over either way
        finally:
            self.abort()


_NOBODY = ChannelOwner()
