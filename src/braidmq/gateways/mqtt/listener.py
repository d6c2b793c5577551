"""The MQTT gateway: takes connections from its listeners, keeps them alive, closes them."""

import asyncio

from websockets.typing import Subprotocol

from braidmq.engine.effects import ConsumerCancelled, ConsumerFailed, Effect, Level, PressureChanged
from braidmq.gateways.mqtt.connection import OUTPUT_HIGH_BYTES, RECEIVE_BYTES, MqttConnection
from braidmq.gateways.mqtt.errors import refusal
from braidmq.gateways.mqtt.outbox import Outbox
from braidmq.gateways.mqtt.own_queue import OwnQueue
from braidmq.gateways.mqtt.queues.admin import Admin
from braidmq.gateways.mqtt.queues.consumer import QueueConsumer
from braidmq.gateways.mqtt.queues.registry import Queues
from braidmq.gateways.mqtt.router import MqttRouter
from braidmq.gateways.mqtt.sessions import Sessions
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.sys_topics import SysTopics
from braidmq.net.listeners import TcpListener, WebSocketListener, websocket_over_tls
from braidmq.net.settings import ListenerSpec
from braidmq.net.tls_handshakes import TlsPort
from braidmq.net.transport import Transport
from braidmq.net.websocket import WebSocketOptions
from braidmq.runtime.gateway import Gateway
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.sliced_work import READ_S
from braidmq.runtime.withdrawals import reason_to_end
from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    NamespaceDeleted,
    PermissionChanged,
    TokenRevoked,
    UserDeleted,
)
from braidmq.security.logins import Logins
from braidmq.wire.mqtt.constants import Reason

SUBPROTOCOL = Subprotocol("mqtt")
FRAME_SLACK_BYTES = 16
"""A frame may be larger than the packet in it by so much."""

DRAIN_S = 2.0


class MqttGateway(Gateway[MqttConnection]):
    """One for all listeners: a client may come over TCP today and WebSocket tomorrow."""

    def __init__(
        self, node_loop: NodeLoop, accounts: Accounts, logins: Logins, settings: MqttSettings
    ) -> None:
        super().__init__(node_loop, accounts, logins)
        self.settings = settings
        self.router = MqttRouter(node_loop, accounts, settings)
        self.queues = Queues(node_loop, accounts)
        self.admin = Admin(self)
        self.sessions = Sessions(node_loop, self.router, self.queues, settings)
        self.delayed = self.sessions.delayed
        self.sys_topics = SysTopics(self)
        node_loop.on_pressure(self._on_pressure)
        node_loop.listeners.append(self._on_effect)
        accounts.watch(self._on_change)
        accounts.when_stale(node_loop.turns.changed)
        self.sessions.restore()

    def replace(self, settings: MqttSettings) -> None:
        """For connections and sessions that begin from now on; what is the node's, as retained
        messages and $SYS, for all."""
        self.settings = settings
        self.router.replace(settings)
        self.sessions.replace(settings)

    def listener(self, spec: ListenerSpec, tls: TlsPort | None = None) -> TcpListener:
        poller = self.node_loop.poller
        return TcpListener(spec, poller, self, RECEIVE_BYTES, OUTPUT_HIGH_BYTES, tls)

    def websocket_listener(
        self, spec: ListenerSpec, tls: TlsPort | None = None
    ) -> WebSocketListener | TcpListener:
        def options() -> WebSocketOptions:
            return WebSocketOptions(
                subprotocol=SUBPROTOCOL,
                allowed_origins=self.settings.allowed_origins,
                message_bytes_max=self.settings.packet_bytes_max + FRAME_SLACK_BYTES,
                output_high_bytes=OUTPUT_HIGH_BYTES,
                output_bytes_max=self.settings.output_bytes_max,
                read_s=READ_S,
                work_in_background=self.node_loop.work_in_background,
                unsent=self.node_loop.unsent if tls is None else None,
            )

        if tls is None:
            return WebSocketListener(spec, self, options)
        poller = self.node_loop.poller
        return websocket_over_tls(
            spec, poller, self, options, RECEIVE_BYTES, OUTPUT_HIGH_BYTES, tls
        )

    def connect(self, transport: Transport) -> MqttConnection:
        """A listener has accepted somebody."""
        return MqttConnection(self, transport)

    async def stop(self, deadline_s: float) -> None:
        """Its listeners take nothing new. Tell every client, give them a moment to read it, then
        let go."""
        self.stop_beats()
        for connection in list(self.connections):
            connection.shut_down()
        deadline = self.node_loop.loop.time() + min(deadline_s, DRAIN_S)
        while self.connections and self.node_loop.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        for session in self.sessions:
            session.cancel_timers()

    # --- what metrics read ---

    @property
    def channel_count(self) -> int:
        """Sessions, connected or not."""
        return len(self.sessions)

    @property
    def received_messages(self) -> int:
        return self.router.counters.received

    @property
    def sent_messages(self) -> int:
        return self.router.counters.sent

    @property
    def missed_messages(self) -> int:
        return self.router.counters.dropped

    def admit(self, connection: MqttConnection, namespace: str) -> None:
        """A namespace may limit its connections."""
        self.node_loop.view.state.quotas.require(namespace, "max_connections")
        self.node_loop.admission.enter(connection, namespace)

    def beat(self, now: float) -> None:
        for connection in list(self.connections):
            connection.beat(now)
            connection.check_parked(now)
        self.sys_topics.beat(now)
        self.admin.beat(now)

    def _on_pressure(self, changed: PressureChanged) -> None:
        if changed.level is not Level.BLOCKED:
            for connection in list(self.connections):
                connection.set_unblocked()

    def _on_effect(self, effect: Effect) -> None:
        """Somebody deleted a queue: one of ours, as AMQP can, is made again."""
        if isinstance(effect, ConsumerCancelled):
            owner = effect.consumer.receiver
            if isinstance(owner, Outbox | OwnQueue | QueueConsumer):
                owner.cancelled()
        elif isinstance(effect, ConsumerFailed):
            connection = _connection_of(effect.consumer.receiver)
            if connection is not None:
                connection.fail(refusal(effect.error))

    def _on_change(self, change: AccountChange) -> None:
        """Connections that would not be let in any more must go, and so must subscriptions to what
        may not be read any more, of sessions that are away, too."""
        for connection in list(self.connections):
            why = reason_to_end(change, connection.login, connection.namespace, self.accounts)
            if why and isinstance(change, TokenRevoked):
                self.note_end("revoked")
                connection.shut_down(Reason.NOT_AUTHORIZED, why)
            elif why:
                connection.shut_down(Reason.ADMINISTRATIVE_ACTION, why)
        if isinstance(change, PermissionChanged):
            self.sessions.end_unreadable(change.user, change.namespace)
        elif isinstance(change, UserDeleted):
            self.sessions.forget_user(change.name)
        elif isinstance(change, NamespaceDeleted):
            self.sessions.forget_namespace(change.name)


def _connection_of(owner: object) -> MqttConnection | None:
    if isinstance(owner, Outbox):
        return owner.connection
    return owner.client.connection if isinstance(owner, QueueConsumer) else None
