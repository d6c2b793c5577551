"""Who a client is, at CONNECT and, where a token says so, again: version 5's AUTH renews it.

The method ``token`` has a token as authentication data, ours or a JWT; it is the same as one for a
password, and can be renewed while the connection goes on.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING

from braidmq.gateways.mqtt.errors import translate
from braidmq.logs import log_login
from braidmq.model.errors import AccessRefused, BraidError
from braidmq.security.accounts import GUEST, is_loopback
from braidmq.security.records import TokenUser, User, scopes_of
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError, ProtocolError
from braidmq.wire.mqtt.packets import Auth, Connect, encode
from braidmq.wire.mqtt.properties import Properties

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

METHOD = "token"


def check_method(packet: Connect) -> None:
    """Raises MqttError."""
    method = packet.properties.authentication_method
    if method is None:
        return
    if method != METHOD:
        raise MqttError(
            Reason.BAD_AUTHENTICATION_METHOD, f"the only authentication method is {METHOD!r}"
        )
    if not packet.properties.authentication_data or packet.password is not None:
        raise MqttError(
            Reason.BAD_USER_NAME_OR_PASSWORD,
            f"with the method {METHOD!r} CONNECT has a token as authentication data, and no"
            " password",
        )


async def recognise(connection: "MqttConnection", packet: Connect, user: str) -> User:
    """The user name may begin with a namespace and a colon. Without a password it is the
    client's certificate that counts, if it showed one, and names the same user. Who gives no
    name, or an empty one without a password, is ``guest``, with the password that guest has on
    a new node: from this machine, and while that holds. A token is a password."""
    logins = connection.gateway.logins
    certified = connection.transport.certified_user
    loopback = is_loopback(connection.transport.host)
    now_ms = connection.node_loop.now_ms()
    token = packet.properties.authentication_data
    if token is not None:
        return await _by_token(connection, user, token)
    if certified is not None and packet.password is None and user in ("", certified):
        return logins.certified(certified, loopback)
    password = packet.password or b""
    is_token = logins.tokens is not None and logins.tokens.is_token(password)
    is_nobody = packet.user_name is None or not (packet.user_name or password)
    if is_nobody and not is_token:
        user, password = GUEST, GUEST.encode()
    try:
        return await logins.authenticate(user, password, now_ms, connection.transport.host)
    except AccessRefused:
        if not is_nobody or is_token:
            raise
        raise AccessRefused("user name and password are missing") from None


async def _by_token(connection: "MqttConnection", user: str, token: bytes) -> User:
    logins, host = connection.gateway.logins, connection.transport.host
    now_ms = connection.node_loop.now_ms()
    if logins.tokens is None or connection.gateway.accounts.dev:
        return await logins.authenticate(user, token, now_ms, host)
    return await logins.by_token(user, token, now_ms, host)


def shown_by(connection: "MqttConnection", packet: Connect, user: User) -> str:
    """What somebody who was let in showed."""
    if isinstance(user, TokenUser):
        return "token"
    if packet.password:
        return "password"
    return "certificate" if connection.transport.certified_user == user.name else "nothing"


def logged_in(connection: "MqttConnection", user: User) -> None:
    """For the first time, or anew."""
    connection.login, connection.user = user, user.name
    ends = connection.node_loop.login_ends
    ends.cancel(connection.login_end)
    expires_ms = user.expires_ms if isinstance(user, TokenUser) else None
    connection.login_end = ends.add(expires_ms, partial(_expired, connection))


def _expired(connection: "MqttConnection") -> None:
    if not connection.is_closed:
        connection.gateway.note_end("expired")
        connection.shut_down(Reason.NOT_AUTHORIZED, "the token has expired")


# --- version 5: again ---


def reauthenticate(connection: "MqttConnection", packet: Auth) -> None:
    """Raises MqttError. What it may do stays as it is until the answer (4.12.1)."""
    method, token = packet.properties.authentication_method, packet.properties.authentication_data
    if not connection.has_method:
        raise ProtocolError("AUTH, and no authentication method was agreed on")
    if packet.reason != Reason.REAUTHENTICATE or method != METHOD:
        # MQTT-4.12.1-1
        raise ProtocolError("AUTH after CONNACK has to ask for the same method again")
    if connection.is_renewing:
        raise ProtocolError("AUTH before the answer to the last one")
    connection.is_renewing = True
    connection.node_loop.loop.create_task(_renew(connection, token or b""))


async def _renew(connection: "MqttConnection", token: bytes) -> None:
    try:
        user = await _by_token(connection, connection.user, token)
        connection.gateway.accounts.require_entry(user, connection.namespace)
    except BraidError as error:
        if not connection.is_closed:
            connection.gateway.accounts.failed_logins.note(
                "mqtt", connection.user, connection.transport.peer, str(error)
            )
            found = translate(error)
            connection.fail(MqttError(Reason.NOT_AUTHORIZED, str(found)))
        return
    finally:
        connection.is_renewing = False
    if connection.is_closed:
        return
    logged_in(connection, user)
    log_login("mqtt", user.name, connection.transport.peer, "AUTH")
    connection.log(logging.INFO, "token renewed")
    accounts = connection.gateway.accounts
    grants = accounts.grants(user.name, connection.namespace, scopes_of(user), connection.client_id)
    if grants is not connection.grants:
        connection.grants = grants
        connection.sessions.regrant(connection.session, grants)
    if not connection.is_closed:
        answer = Auth(Reason.SUCCESS, Properties(authentication_method=METHOD))
        connection.send(encode(answer, connection.version))
