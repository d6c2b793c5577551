"""How a connection begins: CONNECT, who the client is, the session it gets, and CONNACK."""

import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.gateways.mqtt.aliases import Aliases
from braidmq.gateways.mqtt.authentication import check_method, logged_in, recognise, shown_by
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import PACKET_BYTES_ANY
from braidmq.gateways.mqtt.outbox import IN_FLIGHT_MAX
from braidmq.gateways.mqtt.publisher import state_topic
from braidmq.gateways.mqtt.settings import EXPIRES_NEVER
from braidmq.gateways.translation import due_in
from braidmq.logs import log_login
from braidmq.model.errors import AccessRefused, BraidError, StorageFailed
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.accounts import GUEST
from braidmq.security.records import ROOT_NAMESPACE, scopes_of
from braidmq.wire.mqtt.constants import PACKET_ID_MAX, Reason, Version
from braidmq.wire.mqtt.errors import MqttError, UseAnotherServer
from braidmq.wire.mqtt.packets import ConnAck, Connect
from braidmq.wire.mqtt.properties import Properties

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

HANDSHAKE_S = 10
"""How long a peer may take to log in."""


BRIDGE_IN_FLIGHT_MAX = 20
"""What Mosquitto takes at once unless it is set up otherwise. Its bridges say so in version 5 only;
of more at QoS 2 it loses messages that it has confirmed."""

FACTS = "delivery-facts"


def wants_facts(asked: Sequence[tuple[str, str]]) -> bool:
    """Whether a client asks in CONNECT for what the broker knows of deliveries."""
    wish = dict(asked).get(FACTS, "false")
    if wish not in ("true", "false"):
        raise MqttError(
            Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{FACTS} is {wish!r}, neither true nor false"
        )
    return wish == "true"


class Handshake:
    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self.is_known = False
        """CONNECT is there: until it is answered nothing more is read."""
        self._deadline = connection.node_loop.loop.call_later(
            HANDSHAKE_S, connection.transport.abort
        )

    def end(self) -> None:
        """It may take no more time: it is done, or the connection is over."""
        self._deadline.cancel()

    def connect(self, packet: Connect) -> None:
        connection = self._connection
        settings = connection.settings
        connection.version = packet.version
        connection.speaks_v5 = packet.version == Version.V5
        given = packet.properties
        check_method(packet)
        connection.has_method = given.authentication_method is not None
        connection.with_reasons = given.request_problem_information != 0
        connection.packet_bytes_max = given.maximum_packet_size or PACKET_BYTES_ANY
        connection.is_bridge = packet.is_bridge or (
            packet.will is not None and packet.will.topic == state_topic(packet.client_id)
        )
        connection.wants_facts = wants_facts(given.user_properties)
        if given.topic_alias_maximum:
            connection.aliases = Aliases(given.topic_alias_maximum)
        if settings.redirect:
            raise UseAnotherServer(settings.redirect, connection.speaks_v5)
        connection.client_id = packet.client_id or f"auto-{secrets.token_hex(8)}"
        too_high = packet.will is not None and packet.will.qos > settings.maximum_qos
        if too_high and connection.speaks_v5:
            raise MqttError(Reason.QOS_NOT_SUPPORTED, "the QoS of the will is not supported")
        connection.transport.pause()
        self.is_known = True
        connection.node_loop.loop.create_task(self._log_in(packet))

    async def _log_in(self, packet: Connect) -> None:
        connection = self._connection
        try:
            await connection.rates.let_in()
            await self._authenticate(packet)
            if not connection.is_closed:
                await self._establish(packet)
        except StorageFailed as error:
            connection.fail(MqttError(Reason.SERVER_UNAVAILABLE, str(error)))
        except RateExceeded as error:
            connection.fail(MqttError(Reason.CONNECTION_RATE_EXCEEDED, str(error)))
        except BraidError as error:
            if not connection.is_established and isinstance(error, AccessRefused):
                connection.gateway.accounts.failed_logins.note(
                    "mqtt", packet.user_name or GUEST, connection.transport.peer, str(error)
                )
            elif not connection.is_established:
                connection.log(logging.INFO, "connection refused", reason=str(error))
            # A traceback keeps this frame, and that keeps the connection.
            connection.fail(translate(error.with_traceback(None)))
        except Exception:
            connection.transport.abort()
            raise

    async def _authenticate(self, packet: Connect) -> None:
        connection = self._connection
        gateway = connection.gateway
        namespace, _, user = (packet.user_name or "").rpartition(":")
        found = await recognise(connection, packet, user)
        if connection.is_closed:
            return
        namespace = namespace or ROOT_NAMESPACE
        connection.namespace = namespace
        logged_in(connection, found)
        gateway.accounts.require_entry(found, namespace)
        gateway.admit(connection, namespace)
        connection.grants = gateway.accounts.grants(
            found.name, namespace, scopes_of(found), connection.client_id
        )
        by = shown_by(connection, packet, found)
        log_login("mqtt", found.name, connection.transport.peer, by)
        if packet.will is not None:
            connection.check_publish(packet.will.topic)
            due_in(packet.will.properties.user_properties, connection.node_loop.now_ms())

    async def _establish(self, packet: Connect) -> None:
        connection = self._connection
        node_loop, sessions = connection.node_loop, connection.sessions
        namespace, client_id, user = connection.namespace, connection.client_id, connection.user
        given = packet.properties
        expiry_s = given.session_expiry_interval or 0
        if not connection.speaks_v5:
            expiry_s = 0 if packet.clean_start else EXPIRES_NEVER
        expiry_s = min(expiry_s, connection.settings.session_expiry_s_max)
        old = sessions.find(namespace, client_id, user)
        if old is not None and old.connection is not None:
            old.connection.taken_over()
        node_loop.flush_batch()
        session, present = sessions.open(
            namespace,
            client_id,
            user,
            clean_start=packet.clean_start,
            expiry_s=expiry_s,
            scopes=scopes_of(connection.login),
        )
        session.will = packet.will
        told = BRIDGE_IN_FLIGHT_MAX if connection.is_bridge else PACKET_ID_MAX
        connection.credit.limit = min(given.receive_maximum or told, IN_FLIGHT_MAX)
        connection.gateway.connections_opened += 1
        version = connection.version
        connection.log(
            logging.DEBUG,
            "connection opened",
            version=version,
            session=present,
            bridge=connection.is_bridge,
        )
        connection.establish(session, self._connack(packet, present, expiry_s))
        lsn = sessions.save(session)
        if old is not None and not present:
            # The session that it does not go on with must not be there after a crash either.
            lsn = node_loop.pending_lsn()
        await node_loop.durable(lsn)
        if not connection.is_closed:
            self.end()
            connection.begin()

    def _connack(self, packet: Connect, present: bool, expiry_s: int) -> ConnAck:
        connection = self._connection
        limits, asked = connection.settings, packet.keep_alive_s
        client_id, keep_alive_s = connection.client_id, asked
        if limits.keep_alive_s_max and not 0 < asked <= limits.keep_alive_s_max:
            keep_alive_s = limits.keep_alive_s_max if connection.speaks_v5 else asked
        connection.keep_alive_s = keep_alive_s
        if not connection.speaks_v5:
            return ConnAck(present)
        wants_information = packet.properties.request_response_information
        return ConnAck(
            present,
            properties=Properties(
                session_expiry_interval=None
                if expiry_s == (packet.properties.session_expiry_interval or 0)
                else expiry_s,
                receive_maximum=limits.receive_maximum,
                maximum_qos=limits.maximum_qos if limits.maximum_qos < 2 else None,
                maximum_packet_size=limits.packet_bytes_max,
                assigned_client_identifier=None if packet.client_id else client_id,
                topic_alias_maximum=limits.topic_alias_maximum,
                server_keep_alive=None if keep_alive_s == asked else keep_alive_s,
                authentication_method=packet.properties.authentication_method,
                response_information=f"response/{client_id}" if wants_information else None,
            ),
        )
