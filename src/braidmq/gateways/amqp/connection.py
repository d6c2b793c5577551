"""One AMQP connection: bytes in and out, heartbeats, channels."""

import logging
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from braidmq.engine.effects import Level
from braidmq.gateways.amqp.braked import Braked
from braidmq.gateways.amqp.channel import Channel
from braidmq.gateways.amqp.commands import Commands
from braidmq.gateways.amqp.consumers import AmqpConsumer
from braidmq.gateways.amqp.content import Content
from braidmq.gateways.amqp.errors import (
    blamed,
    translate,
    unknown_frame,
    without_octets,
)
from braidmq.gateways.amqp.handshake import (
    HANDSHAKE_FRAME_BYTES_MAX,
    STRANGER_BYTES,
    Handshake,
    HandshakeBroken,
    client_name,
    is_capable,
)
from braidmq.gateways.amqp.holds import UNREAD, Hold
from braidmq.gateways.amqp.input_events import FrameEvents
from braidmq.gateways.amqp.output import ClosedChannels
from braidmq.gateways.amqp.parking import Parking, has_to_answer
from braidmq.gateways.amqp.permission_checks import PermissionChecks
from braidmq.gateways.amqp.publisher import Publisher
from braidmq.gateways.amqp.releasing import close_channel, end_channels
from braidmq.gateways.amqp.routes import Routes
from braidmq.gateways.amqp.session import AmqpSession
from braidmq.gateways.amqp.trace import Trace
from braidmq.logs import about
from braidmq.model.errors import BraidError
from braidmq.model.limits import KIB
from braidmq.net.tcp import RECEIVE_BYTES_MAX
from braidmq.net.transport import Transport
from braidmq.record.copies import single
from braidmq.runtime.connection_rates import ConnectionRates
from braidmq.runtime.parked import PARKED_RECEIVE_BYTES
from braidmq.runtime.sessions import PEER_GONE
from braidmq.runtime.sliced_work import READ_S
from braidmq.security.records import NOBODY, scopes_of
from braidmq.wire.amqp.constants import FrameKind, ReplyCode
from braidmq.wire.amqp.errors import AmqpError, ChannelError, ConnectionError_, FrameError
from braidmq.wire.amqp.methods import (
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionUnblocked,
    Method,
    decode,
    method_frame,
)
from braidmq.wire.amqp.scan import (
    EVENT_ACK,
    EVENT_ERROR,
    EVENT_FRAME,
    EVENT_PUBLISH,
    FLAG_HEADERS,
    describe_octets,
    scan,
)

if TYPE_CHECKING:
    from braidmq.gateways.amqp.listener import AmqpGateway

logger = logging.getLogger(__name__)

OUTPUT_HIGH_BYTES = 1 << 20
"""A consumer whose socket has this much unsent gets nothing more until it reads."""

OPEN_OK = method_frame(0, ConnectionOpenOk())
CLOSE_OK_FRAME = method_frame(0, ConnectionCloseOk())

CLIENT_LEFT = "the client closed it"

CLOSE, CLOSE_OK = b"\0\x0a\0\x32", b"\0\x0a\0\x33"
"""How methods of the connection begin that count after the end."""

RECEIVE_BYTES_MIN = 64 * KIB
"""What is read at once of who sends small frames: thousands of them take long to tell apart."""

LARGE_BYTES = 1 << 20
LARGE_RECEIVE_BYTES = 256 * KIB
"""What is read at once of a connection that sends a message above the other."""

SLOW_S = 0.02
"""How long a publisher waits after each piece it sent while memory or disk is getting low."""


class AmqpConnection(PermissionChecks):
    __deletable__ = ("_commands", "input")

    wanted_bytes = 0
    """No frame is so large that it needs a buffer of its own."""

    def __init__(self, gateway: "AmqpGateway", transport: Transport) -> None:
        self.gateway = gateway
        self.node_loop = gateway.node_loop
        self.accounts = gateway.accounts
        self.settings = gateway.settings
        self.session_id = gateway.node_loop.sessions.new_id("amqp")
        self.vhost = "/"
        self.routes = Routes(self.node_loop.view.router(self.vhost))
        self.user = ""
        self.login, self.login_end, self.is_renewing = NOBODY, 0, False
        """Who that is, the timer of its token's end, and whether a new one is looked at."""
        self.channels: dict[int, Channel] = {}
        self.frame_max = min(self.settings.frame_bytes_max, HANDSHAKE_FRAME_BYTES_MAX)
        self.channel_max = self.settings.channel_max
        self.heartbeat_s = 0
        self.client_properties: dict[str, Any] = {}
        self.transport = transport
        self.share = self.node_loop.input_budget.share(self)
        transport.share = self.share
        transport.receive_bytes = STRANGER_BYTES
        self.peer = transport.peer
        self.connected_ms = self.node_loop.wall_ms()
        self._unread_bytes = 0
        """Of a frame that is not complete."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self.held_bytes = 0
        """What channels have to send behind replies that wait for the disk."""
        self.opened = False
        self._closing = self._hung_up = False
        self._contents: dict[int, Content] = {}
        self._closed_channels = ClosedChannels()
        self._commands = Commands(self)
        self.input = FrameEvents(self)
        self._write_paused = self.is_socket_full = False
        self.holds = Hold(0)
        self.parking: Parking | None = None
        """While something waits in it."""
        self._awaiting: set[Publisher] = set()
        self._lost = self._draining = self._deaf = False
        self._end = ""
        """Why it is over, once that is known."""
        self._trace: Trace | None = None
        self.received_bytes = self.sent_bytes = 0
        self.last_received = self.last_sent = self.node_loop.loop.time()
        self._publishes = False
        self.rates = ConnectionRates(self.node_loop.rates, transport.host)
        gateway.connections.add(self)
        self._handshake: Handshake | None = Handshake(self)
        """Until it is open."""

    # --- the transport ---

    def lost(self) -> None:
        self._lost = True
        if self._handshake is not None:
            self._handshake.end()
        self.node_loop.lingering.discard(self.transport)
        self.gateway.forget(self)
        self.node_loop.sessions.remove(self.session_id, self._end, self.node_loop.now_ms())
        self._release()
        self.share.release()
        self.rates.end()
        # Clients come and go in thousands, and load balancers knock: no news to most.
        is_news = self.opened and self._end not in ("", CLIENT_LEFT)
        level = logging.INFO if is_news else logging.DEBUG
        self._log(level, "connection closed", reason=self._end or PEER_GONE)
        # What knows itself is freed only when garbage is collected, which is rarely.
        self._handshake = self._trace = None
        self._awaiting.clear()
        del self._commands, self.input

    def _log(self, level: int, what: str, **facts: object) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, what, extra={**self.log_fields(), **facts})

    def log_fields(self) -> dict[str, Any]:
        named = {"connection": self.session_id, "peer": self.peer}
        if self.user:
            named["user"] = self.user
        return named | {"namespace": self.vhost} if self.opened else named

    def trace(self, wanted: bool) -> None:
        """Begin or stop to log everything that is said."""
        if wanted != self.is_traced:
            self._trace = Trace(self, self.transport.unread) if wanted else None

    @property
    def is_traced(self) -> bool:
        return self._trace is not None

    def _release(self, *, left: bool = False) -> None:
        """Give back everything that is tied to this connection."""
        self.input.forget()
        self._drop_input()
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.output.end()
        self._closed_channels.end()
        forget_queues = partial(self.gateway.registry.forget_connection, self)
        end_channels(self.node_loop, channels, left=left, then=forget_queues)

    def _drop_input(self) -> None:
        """What it has not completed never will be."""
        for number in list(self._contents):
            self._forget_content(number)
        if self.parking is not None:
            self._log(logging.WARNING, "publishes dropped", waiting=len(self.parking))
            self.parking.clear()
            self.parking = None

    def refuse_output(self, text: str) -> None:
        """It does not read, and others need the room."""
        self._log(logging.WARNING, "connection cut off", reason=text)
        self._end = text

    def refuse_input(self, text: str) -> None:
        """It holds too much that is not complete."""
        self.close(ConnectionError_(ReplyCode.RESOURCE_ERROR, text))

    def receive(self, data: memoryview, size: int) -> int:
        """Take whole frames from the front; returns how many bytes they had."""
        node_loop = self.node_loop
        if node_loop.begin():
            node_loop.end()
        self.last_received = node_loop.turn_s
        self.received_bytes += size - self._unread_bytes
        if self._trace is not None:
            self._trace.received(data[self._unread_bytes : size])
        used = size
        try:
            used = self._read(data, size)
        except HandshakeBroken:
            # Before it is open, RabbitMQ hangs up without a word, and clients know that.
            self.drop("the peer does not follow the handshake")
        except AmqpError as error:
            # Frames of a traceback may know the error, which would be garbage to be collected.
            self.close(error.with_traceback(None))
        self._unread_bytes = size - used
        return used

    def _read(self, data: memoryview, size: int) -> int:
        handshake = self._handshake
        if handshake is None or handshake.is_begun:
            return self._read_frames(data, 0, size)
        used = handshake.begin(data, size)
        return self._read_frames(data, used, size) if handshake.is_begun else used

    def _read_frames(self, data: memoryview, start: int, size: int) -> int:
        if self._closing:
            return self._read_while_closing(data, start, size)
        if self._deaf:
            return size
        fast = self.opened and not self._contents
        at = start + self._scan(data, start, size, fast)
        if fast and self._contents and not self.input.is_behind and not self._closing and at < size:
            # What looked like the start of a whole publish may be out of order by now.
            at += self._scan(data, at, size, fast=False)
        return size if self._deaf else at

    def _scan(self, data: memoryview, start: int, size: int, fast: bool) -> int:
        """Handle the frames between; returns how many bytes they took."""
        self.routes.refresh()
        events, used = scan(
            data[start:] if start else data,
            size - start,
            self.frame_max,
            self.node_loop.now_ms(),
            fast,
            self.routes.known,
        )
        is_readable = self.input.handle_read(events, monotonic() + READ_S)
        if self.input.is_behind:
            self.transport.receive_bytes = RECEIVE_BYTES_MIN
        elif size >= self.transport.receive_bytes and self._may_send_more:
            receive_bytes = min(2 * self.transport.receive_bytes, RECEIVE_BYTES_MAX)
            self.transport.receive_bytes = receive_bytes
        if not is_readable:
            return size - start
        return used

    @property
    def _may_send_more(self) -> bool:
        """Whether as much may be read at once as there is, if it is not late with that."""
        is_free = not self.holds & (Hold.BLOCKED | Hold.TOO_FAST)
        return self.opened and not self._contents and is_free

    def _read_while_closing(self, data: memoryview, start: int, size: int) -> int:
        events, used = scan(data[start:], size - start, self.settings.frame_bytes_max, 0, False)
        return start + used if self.hear_end(events, 0) else size

    def hear_end(self, events: list[tuple[Any, ...]], first: int) -> bool:
        """After either side's connection.close only another one counts, and its answer. False if
        what follows can't be read: it must not pile up until we are rid of it."""
        for event in events[first:]:
            if event[0] != EVENT_FRAME or event[1] != FrameKind.METHOD or event[2]:
                continue
            if event[3][:4] == CLOSE_OK:
                self.transport.close()
            elif event[3][:4] == CLOSE:
                self._answer_close()
        return not events or events[-1][0] != EVENT_ERROR

    # --- events ---

    def handle(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind != EVENT_PUBLISH:
            # What it published before has its answer before this one's, even if this is the end.
            self.node_loop.flush_batch()
        if kind == EVENT_ERROR:
            raise ConnectionError_(ReplyCode(event[1]), event[2], logged=without_octets(event[2]))
        channel_number = event[2] if kind == EVENT_FRAME else event[1]
        try:
            if kind != EVENT_FRAME and channel_number in self._contents:
                raise self._not_content(channel_number)
            if kind == EVENT_PUBLISH:
                self._handle_publish(event)
            elif self.parking is not None and self.parking.must_wait(event):
                self._park(event, channel_number)
            elif kind == EVENT_ACK:
                channel = self._channel(channel_number)
                if channel is not None:
                    channel.consumers.ack(event[2], event[3], event[4])
            else:
                # Not above: what comes in thousands makes nobody below log who it was.
                about.set(self)
                self._handle_frame(*event[1:])
        except BraidError as error:
            self.answer_error(translate(error), channel_number, event)
        finally:
            if kind == EVENT_FRAME:
                about.set(None)

    def answer_error(self, error: AmqpError, number: int, event: tuple[Any, ...]) -> None:
        if not error.class_id:
            error.class_id, error.method_id = blamed(event)
        if not isinstance(error, ChannelError) or not self.close_channel(number, error):
            raise error

    def _handle_publish(self, event: tuple[Any, ...]) -> None:
        # Not `*event[1:]`: that would be a call by the interpreter's rules.
        _, number, flags, exchange, key, batch, destination = event
        if self._draining:
            # Nothing that follows may count either: an acknowledgement may stand for this message.
            self._deaf = True
            return
        channel = self._channel(number)
        if channel is None:
            return
        if (
            self.input.is_handling
            and batch.count > 1
            and destination is None
            and flags & FLAG_HEADERS
        ):
            # Each may have to be looked into, and that may take long.
            self.input.do(self._publishing_each(event))
        elif self.parking is None and self.node_loop.view.pressure.level is not Level.BLOCKED:
            channel.publisher.take_run(flags, exchange, key, batch, destination)
        else:
            self._publishes = True
            self.set_blocked(self.node_loop.view.pressure.reason)
            self._park(event, number)

    def _publishing_each(self, event: tuple[Any, ...]) -> Iterator[None]:
        kind, number, flags, exchange, key, batch, destination = event
        for index in range(batch.count):
            if number not in self.channels:
                return
            one = single(batch, index)
            self._handle_publish((kind, number, flags, exchange, key, one, destination))
            yield

    def _channel(self, number: int) -> Channel | None:
        """The open channel, None for one we are closing."""
        channel = self.channels.get(number)
        if channel is None and number not in self._closed_channels:
            raise ConnectionError_(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
        return channel

    def _handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == FrameKind.METHOD and len(payload) >= 4:
            method = self._decode(payload)
            if method is not None:
                self._handle_method(number, method)
        elif kind == FrameKind.HEARTBEAT and not payload:
            if number:
                self._refuse_frame(ReplyCode.UNEXPECTED_FRAME, f"type {kind}, all octets = <<>>")
        elif (kind == FrameKind.HEADER and len(payload) >= 14) or kind == FrameKind.BODY:
            self._handle_content(kind, number, payload)
        else:
            self.close(unknown_frame(kind, payload))

    def _refuse_frame(self, code: ReplyCode, text: str) -> None:
        """A frame that no method is to blame for."""
        self.close(ConnectionError_(code, text))

    def _decode(self, payload: bytes) -> Method | None:
        try:
            return decode(payload)
        except FrameError as error:
            if "UTF-8" in error.text:
                self._refuse_frame(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr")
                return None
            octets = describe_octets(payload[4:])
            error.text = f"cannot decode {octets}"
            error.logged = f"cannot decode {len(payload) - 4} octets"
            raise

    def _not_content(self, number: int) -> ConnectionError_:
        """Something else came where the rest of a message must."""
        error = self._contents[number].interrupted()
        self._forget_content(number)
        return error

    def _forget_content(self, number: int) -> None:
        content = self._contents.pop(number, None)
        if content is not None:
            self.share.hold(-content.held_bytes)

    def _handle_method(self, number: int, method: Method) -> None:
        if number in self._contents and not isinstance(method, ConnectionClose | ConnectionCloseOk):
            raise self._not_content(number)
        if self._handshake is not None:
            self._handshake.handle(number, method)
            return
        if number == 0:
            self._handle_connection_method(method)
            return
        if isinstance(method, ChannelOpen):
            self._open_channel(number)
            return
        if isinstance(method, ChannelCloseOk) and number in self._closed_channels:
            self._closed_channels.heard_close_ok(number)
            return
        channel = self._channel(number)
        if channel is None:
            if isinstance(method, ChannelClose):
                self._closed_channels.heard_close(number)
            return
        if isinstance(method, ChannelClose):
            del self.channels[number]
            steps = close_channel(channel, self._closed_channels)
            if steps is not None:
                self.input.do(steps)
            return
        if isinstance(method, BasicPublish):
            channel.publisher.check_publish(method.exchange)
            self._contents[number] = Content(method)
            return
        self._commands.run(channel, method)

    def _open_channel(self, number: int) -> None:
        if number in self.channels:
            raise ConnectionError_(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
        if len(self.channels) >= self.channel_max:
            error = ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                f"channel_max ({self.channel_max})",
            )
            self.close(error)
            return
        self.gateway.require_channel_room(self)
        channel = Channel(self, number, self._closed_channels.take(number))
        self.channels[number] = channel
        channel.reply(ChannelOpenOk())

    def _handle_content(self, kind: int, number: int, payload: bytes) -> None:
        content = self._contents.get(number)
        if content is None:
            if number not in self._closed_channels:
                self._refuse_frame(
                    ReplyCode.UNEXPECTED_FRAME,
                    "expected method frame, got non method frame instead",
                )
            return
        if (kind == FrameKind.HEADER) != (content.size < 0):
            raise self._not_content(number)
        if kind == FrameKind.HEADER:
            self._begin_content(number, content, payload)
        elif not content.fits(payload):
            raise self._not_content(number)
        else:
            held_bytes = content.held_bytes
            content.fill(payload)
            self.share.hold(content.held_bytes - held_bytes)
        if content.is_whole:
            self._forget_content(number)
            if not self._contents and not self.holds & Hold.BLOCKED:
                self.transport.receive_bytes = RECEIVE_BYTES_MAX
            self._handle_publish(content.event(self.node_loop.now_ms()))

    def _begin_content(self, number: int, content: Content, payload: bytes) -> None:
        bytes_max = min(self.settings.message_bytes_max, self.share.input_budget.share_bytes_max)
        try:
            content.begin(number, payload, bytes_max, self.node_loop.now_ms())
        except AmqpError:
            del self._contents[number]
            raise
        self.share.hold(content.held_bytes)
        if content.size > LARGE_BYTES:
            # Many of them at once are read in small pieces, or others would wait for all of them.
            self.transport.receive_bytes = min(self.transport.receive_bytes, LARGE_RECEIVE_BYTES)

    def _handle_connection_method(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            self._closing = True
            self._end = CLIENT_LEFT
            self.release_hold(self.holds)
            self._release(left=True)
            self._answer_close()
            self.flush()
            self._let_go_later()
        else:
            self._commands.run_connection(method)

    def open(self, vhost: str) -> None:
        """The handshake is done."""
        self.vhost = vhost
        self.routes = Routes(self.node_loop.view.router(vhost))
        self.grants = self.accounts.grants(self.user, vhost, scopes_of(self.login))
        self._handshake = None
        self.opened = True
        self.rates.begin(vhost, self.user, Braked(self))
        self.node_loop.sessions.add(self.session_id, AmqpSession(self))
        self.transport.receive_bytes = RECEIVE_BYTES_MIN
        self.gateway.connections_opened += 1
        self._log(logging.DEBUG, "connection opened", client=client_name(self.client_properties))
        self.send(OPEN_OK)

    # --- asked by channels ---

    @property
    def wants_cancel_notify(self) -> bool:
        return is_capable(self.client_properties, "consumer_cancel_notify")

    def consumer_gone(self, target: AmqpConsumer) -> None:
        self.gateway.registry.consumer_gone(self.vhost, target.queue)

    def published(self) -> None:
        """Publishers are read more slowly, and then not at all, while memory or disk is low."""
        self._publishes = True
        level = self.node_loop.view.pressure.level
        if level is Level.BLOCKED:
            self.set_blocked(self.node_loop.view.pressure.reason)
        elif level is Level.SLOW and not self.holds & Hold.SLOW:
            self.hold(Hold.SLOW)
            self.gateway.publishers_slowed += 1
            self.node_loop.loop.call_later(SLOW_S, self.release_hold, Hold.SLOW)

    def wait_for_confirms(self, publisher: Publisher) -> None:
        """A publisher is too far ahead of its confirms."""
        self._awaiting.add(publisher)
        self.hold(Hold.UNCONFIRMED)

    def has_confirms(self, publisher: Publisher) -> None:
        if self._awaiting:
            self._awaiting.discard(publisher)
            if not self._awaiting:
                self.release_hold(Hold.UNCONFIRMED)

    # --- closing ---

    def abort(self, why: str) -> None:
        """There is nobody to talk to."""
        self._end = why
        self.transport.abort()

    def drop(self, why: str) -> None:
        """Hang up without a word."""
        self._end = why
        self._closing = True
        self.transport.close()

    def close(self, error: AmqpError, why: str = "") -> None:
        """Everything is given back, and the peer is told why. It is a connection error, and logged
        as one, unless another reason is given."""
        if self._closing:
            return
        self._closing = True
        self._end = self._end or why
        if not self._end:
            self._end = f"{error.reply_code} {error.logged_text}"
            self._log(logging.WARNING, "connection error", reason=self._end)
        self.release_hold(self.holds)  # its close-ok has to be heard
        self._release()
        self.send_method(
            0,
            ConnectionClose(error.reply_code, error.reply_text, error.class_id, error.method_id),
        )
        self.flush()
        self._let_go_later()

    def _answer_close(self) -> None:
        """The socket is the peer's to close. It may have more under way, as amqplib's acks, and
        with input unread the socket would be reset and the answer lost; and amqp091-go takes an
        end that comes from us, once it has asked a second time, for a failure."""
        if self._hung_up and self.is_socket_full:
            return  # it asks and asks, and does not read
        self._hung_up = True
        self._out.append(CLOSE_OK_FRAME)
        self.node_loop.flush_later(self)

    def _let_go_later(self) -> None:
        if self._handshake is not None:
            self._handshake.end()
        self.node_loop.lingering.add(self.transport)

    def close_channel(self, number: int, error: AmqpError) -> bool:
        """False when there is no such channel."""
        channel = self.channels.pop(number, None)
        if channel is None:
            return False
        reason = f"{error.reply_code} {error.logged_text}"
        self._log(logging.INFO, "channel error", channel=number, reason=reason)
        self._forget_content(number)
        self._closed_channels.add(number, channel.output)
        end_channels(self.node_loop, [channel])
        channel.output.reply(
            ChannelClose(error.reply_code, error.reply_text, error.class_id, error.method_id)
        )
        return True

    def drain(self) -> None:
        """The node stops: nothing new is handed out or taken in, but answers still count."""
        self._draining = True
        self.pause_consumers()

    @property
    def is_drained(self) -> bool:
        """Whether nothing it asked or published waits for the disk, and nothing it has for an
        answer."""
        channels = self.channels.values()
        if any(channel.publisher.confirms or channel.output.waiting for channel in channels):
            return False
        return self._deaf or not any(channel.consumers.unacked for channel in channels)

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_unheard(self) -> bool:
        """Whether nothing that it sent counts any more."""
        return self._lost or self._closing or self._deaf

    @property
    def is_lost(self) -> bool:
        return self._lost

    def shut_down(self, why: str) -> None:
        """A socket closed with input unread would be reset, and what we said lost: who logged in
        is read on until it answers, or the gateway's patience ends."""
        if self.opened and not self._closing:
            text = "broker forced connection closure with reason 'shutdown'"
            self.close(ConnectionError_(ReplyCode.CONNECTION_FORCED, text), why)
        else:
            self.drop(why)

    # --- output ---

    def send_method(self, channel: int, method: Method) -> None:
        self.send(method_frame(channel, method))

    def send(self, data: bytes) -> None:
        if self._lost or self._hung_up:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        self.node_loop.flush_later(self)
        if self._out_bytes > OUTPUT_HIGH_BYTES:
            # What waits for the end of the turn is memory as well, and the socket may take it.
            self.pause_consumers()
            self.flush()

    def hold_back(self, size: int) -> None:
        """A channel has more to send that waits for the disk."""
        self.held_bytes += size
        if self.held_bytes > OUTPUT_HIGH_BYTES:
            self.pause_consumers()

    @property
    def output_bytes(self) -> int:
        """All that it is still to read."""
        return self._out_bytes + self.held_bytes + self.transport.unsent_bytes

    def flush(self) -> None:
        if not self._out or self._lost:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self.last_sent = self.node_loop.turn_s
        self.sent_bytes += len(data)
        if self._trace is not None:
            self._trace.sent(data)
        self.transport.write(data)
        if not self.is_socket_full and self.held_bytes <= OUTPUT_HIGH_BYTES:
            # What is left unsent is below the mark: the transport will not say that it drained.
            self.resume_consumers()

    def pause_output(self, paused: bool) -> None:
        self.is_socket_full = paused
        if paused:
            self.pause_consumers()
        else:
            self.resume_consumers()
            self.release_hold(Hold.UNSENT)
            if self.input.is_behind:
                self.input.put_off()

    def pause_consumers(self) -> None:
        if not self._write_paused:
            self._write_paused = True
            for channel in self.channels.values():
                channel.consumers.pause(True)

    def resume_consumers(self) -> None:
        if self._write_paused and not self._draining and not self.rates.is_ungiven:
            self._write_paused = False
            for channel in self.channels.values():
                channel.consumers.pause(False)

    @property
    def write_paused(self) -> bool:
        return self._write_paused

    # --- pressure and heartbeats ---

    def set_blocked(self, reason: str) -> None:
        """Take nothing more from a publisher, and tell it so. Who has nothing to answer for is not
        read from either."""
        if self.holds & Hold.BLOCKED or not self.opened or not self._publishes:
            return
        if not self.hold(Hold.BLOCKED):
            return
        self.transport.receive_bytes = PARKED_RECEIVE_BYTES
        if not has_to_answer(self):
            self.hold(Hold.PARKED)
        if self.wants_blocked:
            self.send_method(0, ConnectionBlocked(reason))

    def set_unblocked(self) -> None:
        if not self.holds & Hold.BLOCKED or not self._unpark():
            return
        self.transport.receive_bytes = RECEIVE_BYTES_MAX
        self.release_hold(Hold.BLOCKED | Hold.PARKED)
        if self.wants_blocked:
            self.send_method(0, ConnectionUnblocked())

    def _park(self, event: tuple[Any, ...], number: int) -> None:
        if self.parking is None:
            self.parking = Parking(self)
        self.parking.add(event, number)
        if self.parking.is_full and not self.holds & Hold.PARKED:
            self.parking.since_s = self.node_loop.loop.time()
            self.hold(Hold.PARKED)

    def _unpark(self) -> bool:
        """Take what waited, as far as there is room; whether nothing waits any more."""
        parking, self.parking = self.parking, None
        if parking is None or parking.empty():
            return True
        self.parking = parking
        return False

    def hold(self, reason: "Hold") -> bool:
        """Read nothing more while a reason for that holds. False for a connection that ends
        anyway: what it still says is read."""
        if self._closing or self._lost or self.transport.is_closing:
            return False
        if reason & UNREAD and not self.holds & UNREAD:
            self.transport.pause()
        self.holds |= reason
        return True

    def release_hold(self, reason: "Hold") -> None:
        was_unread = self.holds & UNREAD
        self.holds &= ~reason
        if not was_unread or self.holds & UNREAD:
            return
        if not self._lost and not self.transport.is_closing:
            self.last_received = self.node_loop.loop.time()  # it could not be heard until now
            self.transport.resume()

    @property
    def wants_blocked(self) -> bool:
        return is_capable(self.client_properties, "connection.blocked")
