"""The MQTT gateway: accepts connections over TCP and WebSocket, keeps them alive, closes them."""

import asyncio
import socket

from braidmq.engine.effects import ConsumerCancelled, ConsumerFailed, Effect, Level, PressureChanged
from braidmq.gateways.mqtt.bridge import Bridge
from braidmq.gateways.mqtt.connection import OUTPUT_HIGH_BYTES, RECEIVE_BYTES, MqttConnection
from braidmq.gateways.mqtt.errors import refusal
from braidmq.gateways.mqtt.outbox import Outbox
from braidmq.gateways.mqtt.queues.admin import Admin
from braidmq.gateways.mqtt.queues.consumer import QueueConsumer
from braidmq.gateways.mqtt.queues.registry import Queues
from braidmq.gateways.mqtt.router import MqttRouter
from braidmq.gateways.mqtt.sessions import Sessions
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.sys_topics import SysTopics
from braidmq.gateways.mqtt.websocket import WebSocketTransport
from braidmq.net.admission import Listening, listen
from braidmq.net.tcp import TcpLink
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.withdrawals import reason_to_end
from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    NamespaceDeleted,
    PermissionChanged,
    UserDeleted,
)
from braidmq.security.logins import Logins
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError

BEAT_S = 1.0
DRAIN_S = 2.0


class MqttGateway:
    """One for both listeners: a client may come over TCP today and WebSocket tomorrow."""

    def __init__(
        self, node_loop: NodeLoop, accounts: Accounts, logins: Logins, settings: MqttSettings
    ) -> None:
        self.node_loop = node_loop
        self.accounts = accounts
        self.logins = logins
        self.settings = settings
        self.connections: set[MqttConnection] = set()
        self.connections_opened = self.publishers_slowed = 0
        self._past_received_bytes = self._past_sent_bytes = 0
        self.router = MqttRouter(node_loop, accounts, settings)
        self.queues = Queues(node_loop, accounts)
        self.admin = Admin(self)
        self.sessions = Sessions(node_loop, self.router, self.queues, settings)
        self.sys_topics = SysTopics(self)
        self._servers: list[asyncio.Server | Listening] = []
        self._beat = node_loop.loop.call_later(BEAT_S, self._beats)
        node_loop.on_pressure(self._on_pressure)
        node_loop.listeners.append(self._on_effect)
        accounts.watch(self._on_change)
        self.sessions.restore()

    async def listen(self, sock: socket.socket) -> None:
        self._servers.append(Listening(self.node_loop.loop, sock, self._link))

    def _link(self, fd: int, host: str, port: int) -> None:
        link = TcpLink(self.node_loop.poller, fd, host, port, RECEIVE_BYTES, OUTPUT_HIGH_BYTES)
        link.start(MqttConnection(self, link))

    async def listen_websocket(self, sock: socket.socket) -> None:
        self._servers.append(
            await listen(self.node_loop.loop, sock, lambda: WebSocketTransport(self))
        )

    async def stop(self, deadline_s: float) -> None:
        """Tell every client, give them a moment to read it, then let go. Of several listeners the
        first that stops stops all."""
        for server in self._servers:
            server.close()
        self._beat.cancel()
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

    def forget(self, connection: MqttConnection) -> None:
        """A connection is over; what it carried still counts."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._past_received_bytes += connection.received_bytes
            self._past_sent_bytes += connection.sent_bytes

    @property
    def received_bytes(self) -> int:
        return self._past_received_bytes + sum(each.received_bytes for each in self.connections)

    @property
    def sent_bytes(self) -> int:
        return self._past_sent_bytes + sum(each.sent_bytes for each in self.connections)

    @property
    def connection_count(self) -> int:
        return len(self.connections)

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

    def require_room(self, namespace: str) -> None:
        """A namespace may limit its connections."""
        limit = self.accounts.namespace(namespace).max_connections
        if limit is None:
            return
        used = sum(each.namespace == namespace for each in self.connections if each.is_established)
        if used >= limit:
            raise MqttError(
                Reason.QUOTA_EXCEEDED,
                f"{namespace!r} has {limit} connections, and may not have more",
            )

    def _beats(self) -> None:
        now = self.node_loop.loop.time()
        for connection in list(self.connections):
            connection.beat(now)
            connection.check_parked(now)
        self.sys_topics.beat(now)
        self.admin.beat(now)
        self._beat = self.node_loop.loop.call_later(BEAT_S, self._beats)

    def _on_pressure(self, changed: PressureChanged) -> None:
        if changed.level is not Level.BLOCKED:
            for connection in list(self.connections):
                connection.set_unblocked()

    def _on_effect(self, effect: Effect) -> None:
        """Somebody deleted a queue: one of ours, as AMQP can, is made again."""
        if isinstance(effect, ConsumerCancelled):
            owner = effect.consumer.tag
            if isinstance(owner, Outbox | Bridge | QueueConsumer):
                owner.cancelled()
        elif isinstance(effect, ConsumerFailed):
            connection = _connection_of(effect.consumer.tag)
            if connection is not None:
                connection.fail(refusal(effect.error))

    def _on_change(self, change: AccountChange) -> None:
        """Connections that would not be let in any more must go, and so must subscriptions to what
        may not be read any more, of sessions that are away, too."""
        for connection in list(self.connections):
            why = reason_to_end(change, connection.user, connection.namespace, self.accounts)
            if why:
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
