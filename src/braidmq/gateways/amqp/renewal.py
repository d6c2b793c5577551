"""How long a log-in lasts: until its token ends, or is renewed with connection.update-secret."""

import logging
from functools import partial
from typing import TYPE_CHECKING

from braidmq.logs import log_login
from braidmq.model.errors import BraidError
from braidmq.security.records import TokenUser, User, scopes_of
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ConnectionError_
from braidmq.wire.amqp.methods import ConnectionUpdateSecret, ConnectionUpdateSecretOk

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)


def logged_in(connection: "AmqpConnection", user: User) -> None:
    """For the first time, or anew."""
    connection.login, connection.user = user, user.name
    ends = connection.node_loop.login_ends
    ends.cancel(connection.login_end)
    expires_ms = user.expires_ms if isinstance(user, TokenUser) else None
    connection.login_end = ends.add(expires_ms, partial(_expired, connection))


def _expired(connection: "AmqpConnection") -> None:
    if connection.is_lost or connection.is_closing:
        return
    why = "the token has expired"
    connection.gateway.note_end("expired")
    if connection.opened:
        text = f"{why}: log in with a new one, or renew it in time with connection.update-secret"
        connection.close(ConnectionError_(ReplyCode.CONNECTION_FORCED, text), why)
    else:
        connection.drop(why)


def update_secret(connection: "AmqpConnection", method: ConnectionUpdateSecret) -> None:
    """A new token, or the password again, of the same user. Raises ConnectionError_."""
    if connection.is_renewing:
        raise ConnectionError_(
            ReplyCode.CHANNEL_ERROR, "connection.update-secret before the answer to the last one"
        )
    try:
        secret = method.new_secret.decode()
    except UnicodeDecodeError:
        secret = ""  # as no password is
    now_ms, host = connection.node_loop.now_ms(), connection.transport.host
    logins = connection.gateway.logins
    try:
        found = logins.recognise(connection.user, secret, now_ms, host)
        if found is not None:
            _renew(connection, found, method.reason)
            return
    except BraidError as error:
        raise _refusal(connection, error) from None
    connection.is_renewing = True
    connection.node_loop.loop.create_task(_find_out(connection, secret, method.reason))


async def _find_out(connection: "AmqpConnection", secret: str, reason: str) -> None:
    now_ms, host = connection.node_loop.now_ms(), connection.transport.host
    try:
        found = await connection.gateway.logins.authenticate(connection.user, secret, now_ms, host)
        if not connection.is_lost and not connection.is_closing:
            _renew(connection, found, reason)
    except BraidError as error:
        connection.close(_refusal(connection, error))
    finally:
        connection.is_renewing = False


def _refusal(connection: "AmqpConnection", error: BraidError) -> ConnectionError_:
    """In RabbitMQ's words."""
    connection.accounts.failed_logins.note("amqp", connection.user, connection.peer, str(error))
    return ConnectionError_(ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends")


def _renew(connection: "AmqpConnection", user: User, reason: str) -> None:
    """What it may not do any more ends at once. Raises AccessRefused."""
    accounts, vhost, scopes = connection.accounts, connection.vhost, scopes_of(user)
    accounts.require_entry(user, vhost)
    before = connection.grants
    logged_in(connection, user)
    connection.grants = accounts.grants(user.name, vhost, scopes)
    facts: dict[str, object] = {"reason": reason[:256]} if reason else {}
    if isinstance(user, TokenUser) and user.expires_ms is not None:
        facts["expires_ms"] = user.expires_ms
    log_login("amqp", user.name, connection.peer, "update-secret")
    logger.info("secret updated", extra={**connection.log_fields(), **facts})
    if connection.grants is not before:
        accounts.refresh()
        for channel in list(connection.channels.values()):
            channel.consumers.end_unreadable()
    connection.send_method(0, ConnectionUpdateSecretOk())
