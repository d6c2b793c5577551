"""The AMQP listener: accepts connections, keeps their heartbeats, closes them in the end."""

import asyncio
import socket

from braidmq.engine.effects import Level, PressureChanged
from braidmq.gateways.amqp.confirms import UnconfirmedLimit
from braidmq.gateways.amqp.connection import AmqpConnection
from braidmq.gateways.amqp.registry import Registry
from braidmq.gateways.amqp.replies import Replies
from braidmq.gateways.broker import Broker
from braidmq.model.limits import RECORD_BYTES_MAX
from braidmq.security.accounts import Accounts, NamespaceDeleted, UserDeleted
from braidmq.security.logins import Logins
from braidmq.security.records import User
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_

BEAT_S = 1.0
DRAIN_S = 2.0
CONSUMERS_EVERY_S = 60.0


class AmqpGateway:
    name = "amqp"

    def __init__(
        self,
        broker: Broker,
        accounts: Accounts,
        logins: Logins,
        unconfirmed: UnconfirmedLimit | None = None,
    ) -> None:
        self.broker = broker
        self.accounts = accounts
        self.unconfirmed = unconfirmed or UnconfirmedLimit()
        self.logins = GatewayLogins(broker, logins)
        self.name = socket.gethostname()
        self.registry = Registry(broker)
        self.replies = Replies()
        self.connections: set[AmqpConnection] = set()
        self.message_bytes_max = RECORD_BYTES_MAX // 4
        self._server: asyncio.Server | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._consumers_checked = 0.0
        broker.on_pressure(self._on_pressure)
        accounts.watch(self._on_deleted)

    async def start(self, sock: socket.socket) -> None:
        loop = self.broker.loop
        self._server = await loop.create_server(lambda: AmqpConnection(self), sock=sock)
        self._beat = loop.call_later(BEAT_S, self._beats)

    async def stop(self) -> None:
        """Tell every client, give them a moment to read it, then let go."""
        if self._server is not None:
            self._server.close()
        if self._beat is not None:
            self._beat.cancel()
        for connection in list(self.connections):
            connection.shut_down()
        deadline = self.broker.loop.time() + DRAIN_S
        while self.connections and self.broker.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()

    def _beats(self) -> None:
        now = self.broker.loop.time()
        for connection in list(self.connections):
            connection.beat(now)
        if now >= self._consumers_checked + CONSUMERS_EVERY_S:
            self._consumers_checked = now
            for connection in list(self.connections):
                connection.check_consumers(self.broker.now_ms())
        self._beat = self.broker.loop.call_later(BEAT_S, self._beats)

    def _on_pressure(self, changed: PressureChanged) -> None:
        for connection in list(self.connections):
            if changed.level is Level.BLOCKED:
                connection.set_blocked(changed.reason)
            else:
                connection.set_unblocked()

    def _on_deleted(self, deleted: UserDeleted | NamespaceDeleted) -> None:
        """Connections of a user or namespace that is gone must go, and so must its topics."""
        for connection in list(self.connections):
            named = connection.user if isinstance(deleted, UserDeleted) else connection.vhost
            if named == deleted.name:
                connection.shut_down()
        if isinstance(deleted, NamespaceDeleted):
            self.broker.engine.delete_namespace(deleted.name, now_ms=self.broker.now_ms())

    def require_room(self, vhost: str) -> None:
        """A namespace may limit its connections."""
        limit = self.accounts.namespace(vhost).max_connections
        if limit is None:
            return
        used = sum(connection.vhost == vhost for connection in self.connections)
        if used > limit:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"access to vhost '{vhost}' refused: connection limit ({limit}) is reached",
            )

    def require_queue_room(self, vhost: str) -> None:
        limit = self.accounts.namespace(vhost).max_queues
        if limit is not None and len(self.broker.engine.topics(vhost)) >= limit:
            raise ChannelError(
                ReplyCode.PRECONDITION_FAILED,
                f"cannot declare queue: queue limit in vhost '{vhost}' ({limit}) is reached",
            )


class GatewayLogins:
    """Logins with the broker's clock."""

    def __init__(self, broker: Broker, logins: Logins) -> None:
        self._broker = broker
        self._logins = logins

    async def authenticate(self, user: str, password: str, loopback: bool) -> User:
        return await self._logins.authenticate(user, password, self._broker.now_ms(), loopback)
