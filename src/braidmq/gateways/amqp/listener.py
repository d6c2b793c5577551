"""The AMQP gateway: takes connections from its listeners, keeps their heartbeats, closes them."""

import asyncio
import logging
import socket

from braidmq.engine.effects import Level, PressureChanged
from braidmq.engine.errors import LimitReached
from braidmq.gateways.amqp import upkeep
from braidmq.gateways.amqp.connection import OUTPUT_HIGH_BYTES, AmqpConnection
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.amqp.registry import Registry
from braidmq.gateways.amqp.replies import Replies
from braidmq.gateways.amqp.settings import AmqpSettings, UnconfirmedLimit
from braidmq.net.listeners import TcpListener
from braidmq.net.settings import ListenerSpec
from braidmq.net.tcp import RECEIVE_BYTES_MAX
from braidmq.net.tls_handshakes import TlsPort
from braidmq.net.transport import Transport
from braidmq.runtime.gateway import Gateway
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.withdrawals import reason_to_end
from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    NamespaceDeleted,
    PermissionChanged,
    TokenRevoked,
)
from braidmq.security.logins import Logins
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ConnectionError_

logger = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.01
GOODBYE_S = 2.0
"""How long clients may take to answer connection.close before the socket is taken from them."""

CONSUMERS_EVERY_S = 60.0


class AmqpGateway(Gateway[AmqpConnection]):
    name = "amqp"

    def __init__(
        self,
        node_loop: NodeLoop,
        accounts: Accounts,
        logins: Logins,
        settings: AmqpSettings | None = None,
        unconfirmed: UnconfirmedLimit | None = None,
    ) -> None:
        super().__init__(node_loop, accounts, logins)
        self.settings = settings or AmqpSettings()
        self.unconfirmed = unconfirmed or UnconfirmedLimit()
        self.name = socket.gethostname()
        self.registry = Registry(node_loop)
        self.replies = Replies()
        self._consumers_checked = 0.0
        self._quotas = node_loop.view.state.quotas
        self._quotas.count_by("max_channels", self._channels)
        node_loop.on_pressure(self._on_pressure)
        accounts.watch(self._on_change)

    def replace(self, settings: AmqpSettings, unconfirmed: UnconfirmedLimit) -> None:
        """For connections and channels that begin from now on, which are told of most of it; how
        long consumers may take holds for all."""
        self.settings = settings
        self.unconfirmed = unconfirmed

    def listener(self, spec: ListenerSpec, tls: TlsPort | None = None) -> TcpListener:
        poller = self.node_loop.poller
        return TcpListener(spec, poller, self, RECEIVE_BYTES_MAX, OUTPUT_HIGH_BYTES, tls)

    def connect(self, transport: Transport) -> AmqpConnection:
        """A listener has accepted somebody."""
        return AmqpConnection(self, transport)

    async def stop(self, deadline_s: float) -> None:
        """Its listeners take nothing new. Let consumers answer for what they have; tell every
        client, give it a moment to read that; then let go."""
        loop = self.node_loop.loop
        began = told = loop.time()
        goodbye_s = min(GOODBYE_S, deadline_s / 2)
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            logger.info("draining", extra={"connections": len(self.connections)})
        while self.connections and loop.time() < told + goodbye_s:
            is_late = loop.time() >= began + deadline_s - goodbye_s
            for connection in list(self.connections):
                if connection.is_closing:
                    continue
                if is_late or connection.is_drained:
                    connection.shut_down("the node stops")
                told = loop.time()
            await asyncio.sleep(DRAIN_LOOK_S)
        self.stop_beats()
        for connection in list(self.connections):
            connection.transport.abort()

    @property
    def channel_count(self) -> int:
        return sum(len(each.channels) for each in self.connections)

    def beat(self, now: float) -> None:
        for connection in list(self.connections):
            upkeep.beat(connection, now)
            upkeep.check_parked(connection, now)
        timeout_s = self.settings.consumer_timeout_s
        if timeout_s and now >= self._consumers_checked + min(CONSUMERS_EVERY_S, timeout_s / 2):
            self._consumers_checked = now
            for connection in list(self.connections):
                upkeep.check_consumers(connection, self.node_loop.now_ms())

    def _on_pressure(self, changed: PressureChanged) -> None:
        for connection in list(self.connections):
            if changed.level is Level.BLOCKED:
                connection.set_blocked(changed.reason)
            else:
                connection.set_unblocked()

    def _on_change(self, change: AccountChange) -> None:
        """Connections that would not be let in any more must go, and so must consumers that would
        not."""
        for connection in list(self.connections):
            why = reason_to_end(change, connection.login, connection.vhost, self.accounts)
            if why and isinstance(change, TokenRevoked):
                self.note_end("revoked")
            if why and (connection.opened or not isinstance(change, NamespaceDeleted)):
                connection.shut_down(why)
            elif isinstance(change, PermissionChanged) and connection.opened:
                for channel in list(connection.channels.values()):
                    channel.consumers.end_unreadable()

    def admit(self, connection: AmqpConnection, vhost: str) -> None:
        """A namespace may limit its connections."""
        try:
            self._quotas.require(vhost, "max_connections")
        except LimitReached as error:
            limit = self.accounts.namespace(vhost).max_connections
            text = f"access to vhost '{vhost}' refused: connection limit ({limit}) is reached"
            raise ConnectionError_(ReplyCode.NOT_ALLOWED, f"{text}: {error.args[0]}") from None
        self.node_loop.admission.enter(connection, vhost)

    def require_queue_room(self, vhost: str, kind: str) -> None:
        self._quotas.require(vhost, "max_topics")
        if kind == "stream":
            return
        try:
            self._quotas.require(vhost, "max_queues")
        except LimitReached as error:
            limit = self.accounts.namespace(vhost).max_queues
            text = f"cannot declare queue: queue limit in vhost '{vhost}' ({limit}) is reached"
            raise precondition_failed(f"{text}: {error.args[0]}") from None

    def require_channel_room(self, connection: AmqpConnection) -> None:
        """As RabbitMQ: it is the connection that ends."""
        try:
            self._quotas.require(connection.vhost, "max_channels")
        except LimitReached as error:
            text = f"{error.code}: {error.args[0]}"
            raise ConnectionError_(ReplyCode.NOT_ALLOWED, text) from None

    def _channels(self, vhost: str) -> int:
        return sum(len(each.channels) for each in self.connections if each.vhost == vhost)
