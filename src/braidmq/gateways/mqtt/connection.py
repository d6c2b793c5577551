"""One MQTT connection, whatever carries its bytes: packets in and out, its end."""

import logging
from array import array
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from braidmq.engine.effects import Level
from braidmq.engine.topics import Credit
from braidmq.gateways.mqtt.aliases import Aliases
from braidmq.gateways.mqtt.authentication import reauthenticate
from braidmq.gateways.mqtt.braked import Braked, session_info
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.fast_path import MqttFastPath
from braidmq.gateways.mqtt.handshake import Handshake
from braidmq.gateways.mqtt.input_events import PacketEvents
from braidmq.gateways.mqtt.message import PACKET_BYTES_ANY, Arrival
from braidmq.gateways.mqtt.outbox import IN_FLIGHT_MAX
from braidmq.gateways.mqtt.pending_acks import PendingAcks, PublishAnswer
from braidmq.gateways.mqtt.publisher import Publisher
from braidmq.gateways.mqtt.queues.client import QueueClient
from braidmq.gateways.mqtt.router import Routed
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.mqtt.subscriber import Subscriber
from braidmq.gateways.mqtt.trace import Trace
from braidmq.logs import about
from braidmq.model.errors import BraidError
from braidmq.model.ids import Lsn
from braidmq.model.limits import KIB
from braidmq.net.transport import Transport
from braidmq.record.buffer import Buffer
from braidmq.runtime.connection_rates import ConnectionRates
from braidmq.runtime.parked import PARKED_RECEIVE_BYTES, PARKED_S, Parked
from braidmq.runtime.sessions import PEER_GONE, ChannelInfo, SessionInfo
from braidmq.runtime.sliced_work import READ_S
from braidmq.security.permissions import Grants
from braidmq.security.records import NOBODY, ROOT_NAMESPACE
from braidmq.wire.mqtt.constants import Kind, Reason, Version
from braidmq.wire.mqtt.errors import (
    ClientIdInvalid,
    MqttError,
    ProtocolError,
    UnsupportedVersion,
    UseAnotherServer,
    scan_error,
)
from braidmq.wire.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.render import render_acks
from braidmq.wire.mqtt.scan import EVENT_ACKS, EVENT_ERROR, EVENT_PUBLISH, SERVER, Scanner

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.listener import MqttGateway

logger = logging.getLogger(__name__)

STRANGER_BYTES = 4 * KIB
"""What is read at once of who has not logged in."""
RECEIVE_BYTES = 256 * KIB
LARGE_BYTES = 64 * KIB
"""A publish above this is refused, if it has to be, before all of it is there."""
UNLIMITED = 0x7FFFFFFF
CLIENT_LEFT = "the client closed it"
FLUSH_BYTES = 1 << 19
"""Output above this does not wait for the end of the turn: only what the socket does not take
counts as unsent."""

OUTPUT_HIGH_BYTES = 1 << 20
"""A session whose socket has this much unsent gets nothing more from its queue until it reads."""

RUN_AT_ONCE = 64
"""Messages of a run that are taken one by one, before others have their turn."""

LONG_READ_S = 0.01
"""A read that took longer is followed by smaller ones."""

RECEIVE_BYTES_MIN = 4 * KIB
"""What is read at once of who sends small packets: thousands of them take long to tell apart."""

Telling = ConnAck | Disconnect | SubAck | UnsubAck
"""Packets that may have a reason string."""


class MqttConnection:
    __deletable__ = ("_publisher", "_subscriber", "answers", "input")

    def __init__(self, gateway: "MqttGateway", transport: Transport) -> None:
        self.gateway = gateway
        self.node_loop = gateway.node_loop
        self.router = gateway.router
        self.sessions = gateway.sessions
        self.settings = gateway.settings
        self.transport = transport
        self.version = self.keep_alive_s = 0
        self.speaks_v5 = self.is_bridge = False
        self.packet_bytes_max = PACKET_BYTES_ANY
        self.aliases: Aliases | None = None
        """Of topics, for a client that takes any."""
        self.wants_facts = False
        """Whether what waited for it says how often it was sent, where it was and since when."""
        self.namespace = ROOT_NAMESPACE
        self.login, self.login_end, self.has_method, self.is_renewing = NOBODY, 0, False, False
        """Who that is, its token's end, whether it has an authentication method, and that works."""
        self.user = self.client_id = ""
        self.session: Session
        self.credit = Credit(IN_FLIGHT_MAX)
        """What it may have unanswered, of its session and of queues."""
        self.grants: Grants
        self.answers = PendingAcks(self)
        self.with_reasons = True
        """Whether it wants reason strings."""
        self._resumed_s = 0.0
        """When it could be heard again after it could not be."""
        self.share = self.node_loop.input_budget.share(self)
        transport.share = self.share
        transport.receive_bytes = STRANGER_BYTES
        self._scanner = Scanner(SERVER, 0, gateway.settings.connect_bytes_max)
        self._alias_bytes = 0
        self._skipped_bytes = 0
        """What is still to come of a packet that was refused."""
        self._parked: Parked[tuple[Arrival, array[int] | None]] | None = None
        """Publishes that wait for room, while there are any."""
        self._deaf_since_s = 0.0
        """When too many of them waited for more to be read."""
        self.input = PacketEvents(self)
        self._publisher = Publisher(self)
        self._subscriber = Subscriber(self)
        self._queues: QueueClient | None = None
        self._fast_path: MqttFastPath | None = None
        self._noted = array("H")
        """What it has acknowledged, for the next turn."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._output_bytes_max = gateway.settings.output_bytes_max
        self.session_id = self.node_loop.sessions.new_id("mqtt")
        self.connected_ms = self.node_loop.now_ms()
        self._established = self._closed = False
        self._held = False
        """CONNACK waits for the disk, and all that follows it."""
        self._read_paused = False
        """As many publishes wait as may."""
        self._write_paused = False
        """The transport has more unsent than it likes."""
        self._is_heard = True
        """False: so much is unsent that nothing is read that would have to be answered, too."""
        self._trace: Trace | None = None
        self._end = ""
        """Why it is over, once that is known."""
        self.rates = ConnectionRates(self.node_loop.rates, transport.host)
        gateway.connections.add(self)
        self._handshake: Handshake | None = Handshake(self)
        """Until CONNACK is on its way."""

    @property
    def is_established(self) -> bool:
        return self._established

    @property
    def input_bytes_max(self) -> int:
        """What a transport with buffers of its own may keep: a frame of its own, and a packet."""
        if not self._established:
            return self._scanner.packet_bytes_max + 1 * KIB
        return 2 * self._scanner.packet_bytes_max + RECEIVE_BYTES

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def received_bytes(self) -> int:
        return self.transport.received_bytes

    @property
    def sent_bytes(self) -> int:
        return self.transport.sent_bytes

    def queue_client(self) -> QueueClient:
        """Most connections have nothing to do with durable queues, and have none."""
        if self._queues is None:
            self._queues = QueueClient(self)
        return self._queues

    # --- as those see it who list and close connections ---

    def describe(self) -> SessionInfo:
        return session_info(self, blocked=self._parked is not None or self.rates.is_unread)

    def describe_channels(self) -> list[ChannelInfo]:
        return []

    def end(self, reason: str) -> None:
        self._say_goodbye(Reason.ADMINISTRATIVE_ACTION, reason)

    def end_channel(self, number: int, reason: str) -> bool:
        return False

    @property
    def is_traced(self) -> bool:
        return self._trace is not None

    def trace(self, wanted: bool) -> None:
        """Begin or stop to log everything that is said."""
        if wanted != self.is_traced:
            self._trace = Trace(self, self.version) if wanted else None
            self._set_shortcut()
            if self._established:
                self.session.index.moved()

    def log_fields(self) -> dict[str, Any]:
        named = {"connection": self.session_id, "peer": self.transport.peer}
        if self.client_id:
            named["client"] = self.client_id
        if self.user:
            named |= {"user": self.user, "namespace": self.namespace}
        return named

    def log(self, level: int, what: str, **facts: object) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, what, extra={**self.log_fields(), **facts})

    # --- in ---

    def receive(self, data: Buffer, size: int) -> int:
        """Take whole packets from the front; returns how many bytes they had."""
        if self._closed:
            return size
        if not self._established and self._handshake is not None and self._handshake.is_known:
            return 0
        if self.input.is_late:
            return 0
        if self._skipped_bytes:
            skipped = min(self._skipped_bytes, size)
            self._skipped_bytes -= skipped
            if skipped == size:
                return size
            return skipped + self.receive(memoryview(data)[skipped:size], size - skipped)
        node_loop = self.node_loop
        is_first = node_loop.begin()
        node_loop.turns.read()
        try:
            return self._receive(data, size)
        except BraidError as error:
            # Frames of a traceback may know the error, which would be garbage to be collected.
            self.fail(translate(error.with_traceback(None)))
            return size
        finally:
            if is_first:
                node_loop.hurry()

    def _receive(self, data: Buffer, size: int) -> int:
        view = memoryview(data)
        events, used = self._scanner.scan(view, size, self.quota())
        if self._trace is not None:
            self._trace.received(bytes(view[:used]))
        began = monotonic()
        self.input.handle_read(events, view, began + READ_S)
        if self._closed:
            return size
        self._set_receive_bytes(size, monotonic() - began)
        self._note_aliases()
        is_large = self._scanner.wanted_bytes > LARGE_BYTES and self._established
        if is_large and self._publisher.is_refused(view[used:size]):
            self._skipped_bytes = self._scanner.wanted_bytes - (size - used)
            return size
        return used

    def refuse_output(self, text: str) -> None:
        """It does not read, and others need the room."""
        self.log(logging.WARNING, "connection cut off", reason=text)
        self._end = text

    def refuse_input(self, text: str) -> None:
        """It holds too much that is not complete."""
        self.log(logging.WARNING, "input refused", reason=text)
        self.fail(MqttError(Reason.QUOTA_EXCEEDED, text))

    @property
    def wanted_bytes(self) -> int:
        """The size of the packet that is not complete, 0 if that is not known."""
        return self._scanner.wanted_bytes

    def quota(self) -> int:
        """Publishes above QoS 0 that the peer may send now; 3.1.1 knows no such limit."""
        if not self.speaks_v5:
            return UNLIMITED
        used = self.answers.open_acks + len(self._publisher.open_ids)
        return self.settings.receive_maximum - used

    def handle(self, event: tuple[Any, ...], view: memoryview) -> None:
        kind = event[0]
        if kind != EVENT_PUBLISH:
            # What it published before has its answer before this one's, even if this is the end.
            self.node_loop.flush_batch()
        if kind == EVENT_PUBLISH:
            run = event[1]
            arrival = Arrival.of_run(run, view, self.version, self.node_loop.now_ms())
            self.take(arrival, run.packet_ids)
        elif kind == EVENT_ACKS:
            self._handle_acks(*event[1:])
        elif kind == EVENT_ERROR:
            raise scan_error(event[1], event[2])
        else:
            # Not above: what comes in thousands makes nobody below log who it was.
            about.set(self)
            try:
                self._handle_packet(decode(self.version, *event[1:]))
            finally:
                about.set(None)

    def take(self, arrival: Arrival, packet_ids: "array[int] | None") -> None:
        """As much as the client may send."""
        throttle = None if self.rates.client is None else self.rates.client.throttle
        if throttle is None or self._publisher.is_let_in(throttle, arrival, packet_ids):
            self.take_all(arrival, packet_ids)

    def take_all(self, arrival: Arrival, packet_ids: "array[int] | None") -> None:
        is_long = arrival.count > RUN_AT_ONCE
        if is_long and not self._publisher.takes_runs(arrival):
            self.input.do(self._taking(arrival.kept(), packet_ids))
        elif self.must_wait() and not self._publisher.is_answered_now(arrival):
            self._park(arrival, packet_ids)
        else:
            self._publisher.publish(arrival, packet_ids, as_run=is_long)

    def _taking(self, arrival: Arrival, packet_ids: "array[int] | None") -> Iterator[None]:
        """A run that has to be taken one by one."""
        for index in range(arrival.count):
            ids = None if packet_ids is None else packet_ids[index : index + 1]
            self.take_all(arrival.part(index), ids)
            yield

    def _note_aliases(self) -> None:
        """Topics that the client has given numbers to are kept as long as it likes."""
        alias_bytes = self._scanner.alias_bytes
        if alias_bytes != self._alias_bytes:
            self.share.hold(alias_bytes - self._alias_bytes)
            self._alias_bytes = alias_bytes

    def _set_receive_bytes(self, size: int, took_s: float) -> None:
        """Who has sent as much as was read may send more at once, if that did not take long."""
        receive_bytes = self.transport.receive_bytes
        if self.input.is_late or took_s > LONG_READ_S:
            self.transport.receive_bytes = min(max(size // 2, RECEIVE_BYTES_MIN), receive_bytes)
        elif self.rates.is_unread:
            self.transport.receive_bytes = RECEIVE_BYTES_MIN  # what is read counts, however much
        elif size >= receive_bytes and took_s < READ_S and self._established and not self._parked:
            self.transport.receive_bytes = min(2 * receive_bytes, RECEIVE_BYTES)

    def caught_up(self) -> None:
        """It is heard again: everything it sent is done, or it was too fast and has waited."""
        self._resumed_s = self.node_loop.loop.time()
        self.read_on()

    def read_on(self) -> None:
        """Unless there is a reason not to."""
        if self._closed or not self._is_heard:
            return
        if not (self._read_paused or self.input.is_late or self.rates.is_unread):
            self.transport.resume()

    def _handle_acks(self, kind: int, packet_ids: "array[int]", reasons: bytes | None) -> None:
        if self._queues is not None and kind != Kind.PUBREL:
            packet_ids, reasons = self._queues.take_acks(kind, packet_ids, reasons)
            if not packet_ids:
                return
        if kind == Kind.PUBREL:
            self._publisher.released(packet_ids)
        elif kind == Kind.PUBREC:
            self._subscriber.received(packet_ids, reasons)
        elif kind == Kind.PUBCOMP:
            self._subscriber.completed(packet_ids)
        else:
            self._subscriber.acknowledged(packet_ids)

    def _handle_packet(self, packet: Packet) -> None:
        match packet:
            case Connect():
                assert self._handshake is not None  # a second CONNECT is no event but an error
                self._handshake.connect(packet)
            case Subscribe():
                self._subscriber.subscribe(packet)
            case Unsubscribe():
                self._subscriber.unsubscribe(packet)
            case PingReq():
                self.send(encode(PingResp(), self.version))
            case Disconnect():
                self._disconnect(packet)
            case Auth():
                reauthenticate(self, packet)
            case _:
                raise ProtocolError("a packet that only servers send")

    # --- the handshake, as it goes ---

    def establish(self, session: Session, connack: ConnAck) -> None:
        """The session is its own. What it is told from now on waits until that is on disk."""
        self.session = session
        session.connection = self
        session.index.moved()
        self._established = self._held = True
        self.node_loop.sessions.add(self.session_id, self)
        self.rates.begin(self.namespace, self.user, Braked(self))
        self._scanner.version = self.version
        self._scanner.packet_bytes_max = self.settings.packet_bytes_max
        self._scanner.topic_alias_max = self.settings.topic_alias_maximum
        self.send_packet(connack)
        self._release(session.outbox.take_gone(again=True))
        session.outbox.attach(self, self.credit)
        if session.queues:
            self.queue_client().attach_all(session.queues.values())

    def begin(self) -> None:
        """It is on disk: the client is told, and read from."""
        self._handshake = None
        self._held = False
        self.transport.receive_bytes = 4 * RECEIVE_BYTES_MIN
        self.session.index.moved()
        self.node_loop.flush_later(self)
        self._subscriber.resume()
        self.read_on()

    # --- the end ---

    def _disconnect(self, packet: Disconnect) -> None:
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not self.session.expiry_s:
                # 3.14.2.2.2
                raise ProtocolError("a session that was to end with its connection can't be kept")
            self.session.expiry_s = min(expiry_s, self.settings.session_expiry_s_max)
        self._end = CLIENT_LEFT
        # MQTT-3.14.4-3: only a normal end discards the will.
        self._leave(with_will=packet.reason != Reason.SUCCESS)
        self.flush()
        # It was told nothing that it has to read, and sends no more (MQTT-3.14.4-2).
        self._hang_up(at_once=True)

    def fail(self, error: MqttError) -> None:
        """The peer broke a rule: it is told, as far as its version can, and only it has to go."""
        if self._closed:
            return
        if not self._established or self._held:
            self._refuse(error)
            return
        self._say_goodbye(error.reason, str(error))

    def _take_back_connack(self) -> None:
        """What it says is not on disk, and the connection is over before it is."""
        if self._held:
            self._held = False
            self._out.clear()
            self._out_bytes = 0

    def _refuse(self, error: MqttError) -> None:
        self._end = str(error)
        self._take_back_connack()
        if self.speaks_v5:
            reference = error.server if isinstance(error, UseAnotherServer) else None
            properties = Properties(server_reference=reference)
            self.send_packet(ConnAck(False, error.reason, properties), str(error))
        elif isinstance(error, UnsupportedVersion | ClientIdInvalid):
            # Its version is unknown, and so is the answer it understands: most know 3.1.1's, and
            # only a client of 3.1.1 can lack a client id.
            self.send(encode(ConnAck(False, error.reason), Version.V3_1_1))
        elif self.version and error.return_code is not None:
            self.send(encode(ConnAck(False, error.reason), self.version))
        self.flush()
        if self._established:
            self._leave(with_will=False)
        self._hang_up()

    def taken_over(self) -> None:
        self._say_goodbye(Reason.SESSION_TAKEN_OVER, "another client has the same client id")

    def shut_down(self, reason: Reason = Reason.SERVER_SHUTTING_DOWN, text: str = "") -> None:
        if self._established:
            self._say_goodbye(reason, text)
        else:
            self.transport.abort()

    def _say_goodbye(self, reason: Reason, text: str) -> None:
        if self._closed:
            return
        if self.speaks_v5 and not self._held:
            self.send_packet(Disconnect(reason), text)
        self._end = text or reason.name.lower().replace("_", " ")
        self._take_back_connack()
        self.flush()
        self._leave(with_will=True)
        self._hang_up()

    def _hang_up(self, *, at_once: bool = False) -> None:
        self._closed = True
        self._drop_input()
        self._set_shortcut()
        if self._handshake is not None:
            self._handshake.end()
        self.node_loop.lingering.add(self.transport)
        if at_once:
            self.transport.close()
        else:
            self.transport.finish()

    def _drop_input(self) -> None:
        """What it has not completed never will be."""
        self._skipped_bytes = 0
        self.input.forget()
        if self._parked is not None:
            self.log(logging.WARNING, "publishes dropped", waiting=len(self._parked))
            self._parked.clear()
            self._parked = None
        self.transport.drop_input()

    def _leave(self, *, with_will: bool) -> None:
        """Let the session go, once."""
        self._closed = True
        self.answers.end()
        self.node_loop.sessions.remove(self.session_id, self._end, self.node_loop.now_ms())
        if self._established and self.session.connection is self:
            self.node_loop.let_go(partial(self._leave_session, with_will))
        if self._fast_path is not None:
            self._fast_path.let_go()
            self._fast_path = None
        self._set_shortcut()

    def _leave_session(self, with_will: bool) -> None:
        self.run_deferred()
        if self._queues is not None:
            self._queues.detach_all()
        self.sessions.disconnected(self.session, with_will=with_will)

    def lost(self) -> None:
        """The transport is gone."""
        if self._handshake is not None:
            self._handshake.end()
        self.node_loop.lingering.discard(self.transport)
        self.gateway.forget(self)
        self._drop_input()
        self.share.release()
        self._out.clear()
        self._leave(with_will=True)
        self.rates.end()
        # Clients come and go in thousands, and load balancers knock: no news to most.
        is_news = self._established and self._end not in ("", CLIENT_LEFT)
        level = logging.INFO if is_news else logging.DEBUG
        self.log(level, "connection closed", reason=self._end or PEER_GONE)
        # What knows itself is freed only when garbage is collected, which is rarely.
        self._queues = self._trace = self._handshake = None
        self._noted = array("H")
        del self._publisher, self._subscriber, self.answers, self.input

    # --- out ---

    @property
    def unsent_bytes(self) -> int:
        return self._out_bytes + self.transport.unsent_bytes

    @property
    def is_full(self) -> bool:
        """Whether its socket has more unsent than it likes; ``pause_output`` says when no more."""
        return self._write_paused

    def is_behind(self) -> bool:
        """Whether it has more to read than it may: QoS 0 goes to others."""
        limit = self._output_bytes_max
        if self.rates.is_ungiven:
            return True
        if not self._write_paused and self._out_bytes + OUTPUT_HIGH_BYTES <= limit:
            return False  # it would have said so if it had more than that mark
        return self.unsent_bytes > limit

    def takes_as_is(self, version: int) -> bool:
        """Whether packets of that version need no change for it."""
        if self.aliases is not None or self.packet_bytes_max != PACKET_BYTES_ANY:
            return False
        if self.wants_facts:
            return False
        return self.version == version and self._trace is None and not self._held

    def send_at_once(self, data: bytes) -> None:
        """Behind what waits to be written, and not later than that."""
        if not self._closed:
            self._out.append(data)
            self._out_bytes += len(data)
            self.flush()

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > FLUSH_BYTES:
            self.flush()
        else:
            self.node_loop.flush_later(self)

    def send_packet(self, packet: Telling, text: str = "") -> None:
        data = self.encoded(packet, text)
        if data:
            self.send(data)

    def encoded(self, packet: Telling, text: str = "") -> bytes:
        """With a reason string, if it is wanted and there is room for it. Nothing goes out that is
        larger than the client takes (MQTT-3.1.2-24): then it is empty."""
        if text and self.speaks_v5 and self.with_reasons:
            properties = replace(packet.properties, reason_string=text)
            data = encode(replace(packet, properties=properties), self.version)
            if len(data) <= self.packet_bytes_max:
                return data
        data = encode(packet, self.version)
        return data if len(data) <= self.packet_bytes_max else b""

    def flush(self) -> None:
        if not self._out or self._held:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if self._trace is not None:
            self._trace.sent(data)
        self.transport.write(data)
        self.limit_output()

    def limit_output(self) -> None:
        """Who reads nothing can't ask for more answers."""
        if self._write_paused and self.transport.unsent_bytes > self._output_bytes_max:
            self._is_heard = False
            self.transport.pause()

    def release(self, packet_id: int) -> None:
        """PUBREL for a message of a queue."""
        self.answers.reply(render_acks(Kind.PUBREL, array("H", [packet_id]), self.version), None)

    def release_gone(self) -> None:
        """PUBREL for messages of the session that are not there any more."""
        self._release(self.session.outbox.take_gone())

    def _release(self, packet_ids: "array[int]") -> None:
        if packet_ids:
            lsn = self.sessions.save_ids(self.session)
            self.answers.reply(render_acks(Kind.PUBREL, packet_ids, self.version), lsn)

    def check_publish(self, topic: str) -> None:
        """Raises MqttError or AccessRefused unless the client may publish there."""
        self._publisher.check_topic(topic)

    def publish(self, arrival: Arrival) -> Routed:
        """On behalf of the client, with its rights checked."""
        return self._publisher.route(arrival)

    def when_stored(self, lsn: Lsn | None, answer: PublishAnswer) -> None:
        self.node_loop.when_durable(lsn, partial(self.answers.settle, answer))

    def pause_output(self, paused: bool) -> None:
        """The socket is full, or has room again."""
        self._write_paused = paused
        if self._established and not self._closed:
            self.pause_deliveries(paused or self.rates.is_ungiven)
        if not paused and not self._is_heard:
            self._is_heard = True
            self._resumed_s = self.node_loop.loop.time()
            self.read_on()
        if not paused and not self._closed:
            self._subscriber.catch_up()

    def pause_deliveries(self, paused: bool) -> None:
        self.session.outbox.pause(paused)
        if self._queues is not None:
            self._queues.pause(paused)

    # --- the short way ---

    def fast_path(self) -> MqttFastPath:
        """Its part in it: made when it is first asked for."""
        if self._fast_path is None:
            self._fast_path = MqttFastPath(self, self.transport.link, self._publisher)
            self._fast_path.limit(self.rates.client)
            self._set_shortcut()
        return self._fast_path

    def _set_shortcut(self) -> None:
        link = self.transport.link
        if link is not None:
            is_usual = self._trace is None and not self._closed
            link.fast_path = self._fast_path if is_usual else None

    def open_route(self, topic: bytes) -> None:
        """What it publishes there may go the short way, if there is one."""
        if self.transport.link is not None and not self._closed:
            self.fast_path()
            self.router.open_route(self.namespace, topic)

    def note_acks(self, packet_ids: "array[int]") -> bool:
        """PUBACK of messages from the queue: when nobody waits for it, the next turn will do."""
        if not self.session.outbox.is_easy:
            return False
        if not self._noted:
            self.node_loop.defer(self)
        self._noted.extend(packet_ids)
        return True

    def run_deferred(self) -> None:
        """A turn has begun, or the connection ends."""
        packet_ids, self._noted = self._noted, array("H")
        if packet_ids:
            try:
                self._subscriber.acknowledged(packet_ids)
            except BraidError as error:
                self.fail(translate(error))

    def is_expressed(self, packet_id: int) -> bool:
        return self._fast_path is not None and self._fast_path.holds(packet_id)

    def settle_express(self, packet_ids: "array[int]") -> "array[int]":
        """PUBACK: those that were not for messages that came the short way."""
        if self._fast_path is None:
            return packet_ids
        others, count = self._fast_path.settle(packet_ids)
        if count:
            self.node_loop.engine().consumers.release(self.credit, count)
        return others

    # --- pressure and keep alive ---

    def must_wait(self) -> bool:
        """Whether what is published now can't be taken now."""
        return self._parked is not None or self.node_loop.view.pressure.level is Level.BLOCKED

    def _park(self, arrival: Arrival, packet_ids: "array[int] | None") -> None:
        """Keep it until there is room, and read on: an acknowledgement that makes room may be right
        behind it."""
        if self._parked is None:
            self._parked = Parked(self.share)
            self.gateway.publishers_slowed += 1
            self.transport.receive_bytes = PARKED_RECEIVE_BYTES
        kept = arrival.kept()
        self._parked.add((kept, packet_ids), kept.batch.memory_bytes)
        if self._parked.is_full and not self._read_paused:
            self._read_paused = True
            self._deaf_since_s = self.node_loop.loop.time()
            self.transport.pause()

    def set_unblocked(self) -> None:
        """There is room: for what waited, and if all of it is taken, for more."""
        parked, self._parked = self._parked, None
        if parked is None:
            return
        try:
            while len(parked) and not self._closed and not self.node_loop.is_blocked():
                self._publisher.publish(*parked.take())
        except BraidError as error:
            self.fail(translate(error))
        if self._closed:
            parked.clear()
        elif len(parked):
            self._parked = parked
            if parked.is_full:
                return
        if self._parked is None:
            self.transport.receive_bytes = RECEIVE_BYTES
        if self._read_paused:
            self._read_paused = False
            self._resumed_s = self.node_loop.loop.time()
            self.read_on()

    def check_parked(self, now: float) -> None:
        """Called about once a second: others get what it has not answered for, if it could not be
        heard for too long because too many of its publishes wait."""
        if self._read_paused and self.credit.used and now - self._deaf_since_s > PARKED_S:
            self._say_goodbye(
                Reason.QUOTA_EXCEEDED,
                "publishers are blocked, and acknowledgements may be behind what it published",
            )

    def beat(self, now: float) -> None:
        """Called about once a second: hang up on a silent peer (MQTT-3.1.2-22)."""
        if not self.keep_alive_s or self._closed or self._read_paused or not self._is_heard:
            return
        if self.input.is_late or self.rates.is_unread:
            return
        if now - max(self.transport.heard_s, self._resumed_s) > 1.5 * self.keep_alive_s:
            self._say_goodbye(Reason.KEEP_ALIVE_TIMEOUT, "nothing was heard for too long")
