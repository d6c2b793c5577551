"""How a connection begins: what it says of this server, who the peer is, what they agree on."""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from braidmq import __version__
from braidmq.gateways.amqp.renewal import logged_in
from braidmq.gateways.amqp.settings import Product
from braidmq.logs import log_login, testify
from braidmq.model.errors import AccessRefused, BraidError
from braidmq.model.limits import KIB
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.accounts import is_loopback
from braidmq.security.records import User, scopes_of
from braidmq.wire.amqp.constants import FRAME_BYTES_MIN, PROTOCOL_HEADER, ReplyCode
from braidmq.wire.amqp.errors import ConnectionError_
from braidmq.wire.amqp.methods import (
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    method_frame,
)
from braidmq.wire.amqp.tables import Table, decode_table

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

EXTERNAL = "EXTERNAL"
"""The mechanism of who is known by its certificate; offered to who showed one."""

HANDSHAKE_FRAME_BYTES_MAX = 12 * KIB
"""Before anything is agreed on: clause 4.2.3 says 4096, and a token may have 8 KiB itself."""

STRANGER_BYTES = 2 * HANDSHAKE_FRAME_BYTES_MAX
"""What is read at once of who has not logged in."""

CAPABILITIES: Table = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "braid.retry": True,
    "braid.visibility": True,
    "braid.errors": True,
    "braid.transactions": True,
    "braid.places": True,
}


class HandshakeBroken(Exception):
    """The peer does not follow the handshake."""


class Handshake:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection
        self.is_begun = False
        """The protocol header is there."""
        self._state: Callable[[Method], None] | None = self._await_start_ok
        self._mechanism = "PLAIN"
        self._deadline = connection.node_loop.loop.call_later(
            connection.settings.handshake_timeout_s, connection.abort, "the handshake took too long"
        )

    def end(self) -> None:
        """It is done, or the connection is over."""
        self._deadline.cancel()
        # What knows itself is freed only when garbage is collected, which is rarely.
        self._state = None

    def begin(self, data: memoryview, size: int) -> int:
        """Take the protocol header from the front; returns how many bytes are done with."""
        connection = self._connection
        if size < 8 and PROTOCOL_HEADER.startswith(bytes(data[:size])):
            return 0
        if bytes(data[:8]) != PROTOCOL_HEADER:
            # Clause 4.2.2: answer with what we do speak, and hang up.
            connection.transport.write(PROTOCOL_HEADER)
            connection.drop("the peer does not speak AMQP 0-9-1")
            return size
        self.is_begun = True
        product = connection.settings.product
        with_external = connection.transport.certified_user is not None
        connection.send(greeting_frame(connection.gateway.name, product, with_external))
        return 8

    def handle(self, number: int, method: Method) -> None:
        """Raises HandshakeBroken, if it is not the one that is due."""
        if number or self._state is None:
            raise HandshakeBroken
        self._state(method)

    def _await_start_ok(self, method: Method) -> None:
        if not isinstance(method, ConnectionStartOk):
            raise HandshakeBroken
        self._connection.client_properties = dict(method.client_properties)
        self._mechanism = method.mechanism
        if self._connection.rates.late_ms:
            self._state = None
            self._connection.node_loop.loop.create_task(self._log_in_late(method))
        else:
            self._log_in_with(method)

    async def _log_in_late(self, method: ConnectionStartOk) -> None:
        """There are many connections from this address: its log-in waits, or is refused."""
        connection = self._connection
        try:
            await connection.rates.let_in()
            if not connection.is_lost:
                self._log_in_with(method)
        except RateExceeded as error:
            self._end_login(ReplyCode.NOT_ALLOWED, str(error), "too many connections")
        except HandshakeBroken:
            connection.drop("the peer does not follow the handshake")

    def _log_in_with(self, method: ConnectionStartOk) -> None:
        if method.mechanism == EXTERNAL:
            self._log_in_by_certificate(method)
            return
        user, password = credentials(method)
        self._state = None  # nothing is due until the user is known
        connection = self._connection
        logins, host = connection.gateway.logins, connection.transport.host
        try:
            found = logins.recognise(user, password, connection.node_loop.now_ms(), host)
        except BraidError as error:
            self._refuse_login(user, error)
            return
        if found is None:
            connection.node_loop.loop.create_task(self._log_in(user, password))
        else:
            self._welcome(found)

    def _log_in_by_certificate(self, method: ConnectionStartOk) -> None:
        connection = self._connection
        user = connection.transport.certified_user
        # RFC 4422, A: the answer is empty, or says as whom the client wants to act.
        wanted = method.response.decode("utf-8", "replace")
        if user is None:
            raise HandshakeBroken
        try:
            if wanted not in ("", user):
                raise AccessRefused(f"the certificate stands for {user!r}, not for {wanted!r}")
            found = connection.gateway.logins.certified(
                user, is_loopback(connection.transport.host)
            )
        except BraidError as error:
            self._refuse_login(user, error)
        else:
            self._welcome(found)

    async def _log_in(self, user: str, password: str) -> None:
        connection = self._connection
        try:
            found = await connection.gateway.logins.authenticate(
                user, password, connection.node_loop.now_ms(), connection.transport.host
            )
        except BraidError as error:
            self._refuse_login(user, error)
            return
        if not connection.is_lost:
            self._welcome(found)

    def _welcome(self, user: User) -> None:
        connection = self._connection
        logged_in(connection, user)
        log_login("amqp", user.name, connection.peer, self._mechanism)
        self._state = self._await_tune_ok
        offer = connection.settings
        connection.send(tune_frame(offer.channel_max, offer.frame_bytes_max, offer.heartbeat_s))

    def _refuse_login(self, user: str, error: BraidError) -> None:
        connection = self._connection
        connection.accounts.failed_logins.note("amqp", user, connection.peer, str(error))
        text = (
            f"Login was refused using authentication mechanism {self._mechanism}. For details"
            " see the broker logfile."
        )
        self._end_login(ReplyCode.ACCESS_REFUSED, text, "login refused")

    def _end_login(self, code: ReplyCode, text: str, why: str) -> None:
        connection = self._connection
        if connection.is_lost:
            return
        if is_capable(connection.client_properties, "authentication_failure_close"):
            connection.close(ConnectionError_(code, text), why)
        else:
            connection.drop(why)

    def _await_tune_ok(self, method: Method) -> None:
        connection = self._connection
        offer = connection.settings
        # As RabbitMQ, which offers limits and so takes no "unlimited" for an answer.
        if (
            not isinstance(method, ConnectionTuneOk)
            or not FRAME_BYTES_MIN <= method.frame_max <= offer.frame_bytes_max
            or not 1 <= method.channel_max <= offer.channel_max
        ):
            raise HandshakeBroken
        connection.frame_max = method.frame_max
        connection.channel_max = method.channel_max
        connection.heartbeat_s = method.heartbeat
        self._state = self._await_open

    def _await_open(self, method: Method) -> None:
        if not isinstance(method, ConnectionOpen):
            raise HandshakeBroken
        connection = self._connection
        vhost = method.virtual_host
        if not connection.accounts.has_namespace(vhost):
            raise ConnectionError_(ReplyCode.NOT_ALLOWED, f"vhost {vhost} not found")
        if not connection.accounts.can_enter(connection.user, vhost, scopes_of(connection.login)):
            facts = {"protocol": "amqp", "namespace": vhost}
            testify("refused", "enter namespace", connection.log_fields() | facts)
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"access to vhost '{vhost}' refused for user '{connection.user}'",
            )
        connection.gateway.admit(connection, vhost)
        self.end()
        connection.open(vhost)


BROKER = f"BraidMQ {__version__}"

RABBITMQ_VERSION = "3.13.7"
"""Whose ways with ``basic.qos`` are ours: from 4.0 on a channel's limit is gone there."""


# Every client is told the same.
@lru_cache(maxsize=8)
def greeting_frame(node: str, product: Product, with_external: bool) -> bytes:
    start = ConnectionStart(
        server_properties={
            "capabilities": CAPABILITIES,
            "cluster_name": f"braid@{node}",
            "copyright": "The BraidMQ authors",
            "information": f"{BROKER}. Licensed under the Apache License 2.0",
            # Whatever it calls itself, by this a client knows who it is.
            "platform": BROKER,
            "product": product,
            "version": RABBITMQ_VERSION if product == "RabbitMQ" else __version__,
        },
        mechanisms=b"EXTERNAL PLAIN AMQPLAIN" if with_external else b"PLAIN AMQPLAIN",
    )
    return method_frame(0, start)


@lru_cache(maxsize=8)
def tune_frame(channel_max: int, frame_bytes_max: int, heartbeat_s: int) -> bytes:
    return method_frame(0, ConnectionTune(channel_max, frame_bytes_max, heartbeat_s))


def client_name(properties: dict[str, Any]) -> str:
    """Of the program, or what it is made with."""
    name = properties.get("connection_name") or properties.get("product")
    return name if isinstance(name, str) else ""


def is_capable(properties: dict[str, Any], of: str) -> bool:
    """Whether a client said so of itself."""
    capabilities = properties.get("capabilities") or {}
    return bool(capabilities.get(of))


def credentials(method: ConnectionStartOk) -> tuple[str, str]:
    """User and password. Raises HandshakeBroken."""
    try:
        if method.mechanism == "PLAIN":
            identity, user, password = method.response.split(b"\0")
            if identity:
                raise HandshakeBroken
            return user.decode(), password.decode()
        if method.mechanism == "AMQPLAIN":
            table = decode_table(struct.pack(">I", len(method.response)) + method.response)
            return _text(table["LOGIN"]), _text(table["PASSWORD"])
    except (ValueError, KeyError, AttributeError):
        raise HandshakeBroken from None
    raise HandshakeBroken


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
