"""What a client subscribes to and receives: SUBSCRIBE, retained messages, the answers of QoS 2."""

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from braidmq.engine.errors import LimitReached
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.publisher import is_reserved
from braidmq.gateways.mqtt.queues.admin import is_admin
from braidmq.gateways.mqtt.queues.names import is_queue_filter
from braidmq.gateways.mqtt.queues.record import QueueRecord
from braidmq.gateways.mqtt.retained_sending import RetainedSending
from braidmq.gateways.mqtt.subscription_index import Subscription
from braidmq.model.errors import BraidError
from braidmq.model.ids import Lsn
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.mqtt.constants import Kind, Reason
from braidmq.wire.mqtt.errors import MqttError, ProtocolError
from braidmq.wire.mqtt.packets import (
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.render import id_runs, render_acks
from braidmq.wire.mqtt.text import split_share

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

ALWAYS, ONLY_IF_NEW = 0, 1
"""Retain handling: when retained messages are sent (3.8.3.1)."""
ERROR = 0x80
SYS = "$SYS"
ADMIN = "$admin"


FILTERS_AT_ONCE = 32
"""Of one packet. More are subscribed to in slices."""

T = TypeVar("T")


def _parts(all_of_them: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    for at in range(0, len(all_of_them), FILTERS_AT_ONCE):
        yield all_of_them[at : at + FILTERS_AT_ONCE]


class Subscriber:
    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self._retained = RetainedSending(connection)

    # --- subscriptions ---

    def subscribe(self, packet: Subscribe) -> None:
        self._do(self._subscribing(packet), len(packet.requests))

    def unsubscribe(self, packet: Unsubscribe) -> None:
        self._do(self._unsubscribing(packet), len(packet.filters))

    def _do(self, steps: Steps, filters: int) -> None:
        """A client decides how many filters are in one packet."""
        if filters > FILTERS_AT_ONCE:
            self._connection.input.do(steps)
        else:
            for _ in steps:
                pass

    def _subscribing(self, packet: Subscribe) -> Iterator[None]:
        connection = self._connection
        identifiers = packet.properties.subscription_identifiers
        wanted: list[Subscription] = []
        queues: list[QueueRecord] = []
        texts: list[str] = []
        reasons: list[int] = []
        known = 0
        lsn: Lsn | None = None
        for requests in _parts(packet.requests):
            reasons += [
                self._too_fast(texts)
                or self._subscribe_to_queue(request, packet.properties, queues, texts)
                if is_queue_filter(request.filter)
                else self._too_fast(texts)
                or self._subscribe_one(request, identifiers[0] if identifiers else 0, wanted)
                for request in requests
            ]
            for each in wanted[known:]:
                self._retained.want(each)
            known = len(wanted)
            changed = [each.filter for each in requests]
            lsn = connection.sessions.save_subscriptions(connection.session, changed) or lsn
            yield

        def answered() -> None:
            if len(wanted) > FILTERS_AT_ONCE:
                connection.node_loop.work_in_background(
                    self._sending_retained(wanted), "looking for retained messages"
                )
            else:
                for each in wanted:
                    self._send_retained(each)
            if queues:
                connection.queue_client().attach_all(queues)

        if queues:
            connection.sessions.save(connection.session)
            # A queue or group that was made for it is there for good, too.
            lsn = connection.node_loop.pending_lsn()
        answer = SubAck(packet.packet_id, tuple(reasons))
        connection.answers.reply(connection.encoded(answer, "; ".join(texts)), lsn, answered)

    def _too_fast(self, texts: list[str]) -> int:
        """Why one more subscription is refused; 0 if it is not."""
        try:
            self._connection.rates.subscribe()
        except RateExceeded as error:
            texts.append(str(error))
            return Reason.QUOTA_EXCEEDED
        return 0

    def _subscribe_to_queue(
        self, request: Request, given: Properties, wanted: list[QueueRecord], texts: list[str]
    ) -> int:
        connection = self._connection
        client, quotas = connection.queue_client(), connection.node_loop.view.state.quotas
        try:
            if request.filter not in connection.session.queues:
                # Those of this packet are consumers once it is answered.
                quotas.require(connection.namespace, "max_consumers", len(wanted) + 1)
            wanted.append(client.subscribe(request, split_share(request.filter), given))
        except (MqttError, LimitReached) as error:
            texts.append(str(error))
            return translate(error).reason
        return wanted[-1].qos

    def _subscribe_one(self, request: Request, identifier: int, wanted: list[Subscription]) -> int:
        """The reason code of one filter; ``wanted`` gets those that retained messages are for."""
        connection = self._connection
        session, limits = connection.session, connection.settings
        shared = split_share(request.filter)
        pattern = request.filter if shared is None else shared.filter
        if is_reserved(pattern) and pattern.partition("/")[0] not in (SYS, ADMIN):
            return Reason.TOPIC_FILTER_INVALID
        if pattern.count("/") >= limits.topic_levels_max:
            return Reason.TOPIC_FILTER_INVALID
        if not connection.grants.may_read(pattern):
            return Reason.NOT_AUTHORIZED
        is_new = request.filter not in session.subscriptions
        if is_new and len(session.subscriptions) >= limits.subscriptions_max:
            return Reason.QUOTA_EXCEEDED
        new = Subscription(
            session,
            request.filter,
            min(request.qos, limits.maximum_qos),
            request.no_local or (connection.is_bridge and shared is None),
            request.retain_as_published or connection.is_bridge,
            request.retain_handling,
            identifier,
        )
        try:
            connection.sessions.subscribe(session, new)
        except BraidError as error:
            return translate(error).reason
        handling = request.retain_handling
        if shared is None and (handling == ALWAYS or (handling == ONLY_IF_NEW and is_new)):
            wanted.append(new)
        return new.qos

    def _unsubscribing(self, packet: Unsubscribe) -> Iterator[None]:
        connection = self._connection
        session = connection.session
        reasons: list[int] = []
        lsn: Lsn | None = None
        for filters in _parts(packet.filters):
            reasons += [
                Reason.SUCCESS
                if connection.sessions.unsubscribe(session, each)
                or (each in session.queues and connection.queue_client().unsubscribe(each))
                else Reason.NO_SUBSCRIPTION_EXISTED
                for each in filters
            ]
            lsn = connection.sessions.save_subscriptions(session, filters) or lsn
            yield
        if any(is_queue_filter(each) for each in packet.filters):
            lsn = connection.sessions.save(session) or lsn
        answer = UnsubAck(packet.packet_id, tuple(reasons))
        connection.answers.reply(connection.encoded(answer), lsn)

    # --- retained messages ---

    def catch_up(self) -> None:
        """The socket, or the session's queue, has room again."""
        self._retained.go_on()

    def resume(self) -> None:
        """The client is back: what its last connection has not sent is this one's to send."""
        self._retained.resume()

    def _sending_retained(self, wanted: list[Subscription]) -> Iterator[None]:
        for each in wanted:
            if self._connection.is_closed:
                return
            self._send_retained(each)
            yield

    def _send_retained(self, new: Subscription) -> None:
        connection = self._connection
        is_there = connection.session.subscriptions.get(new.filter) is new
        # Else it was unsubscribed, or subscribed anew, while it went to disk.
        if is_there and is_admin(new.filter):
            connection.gateway.admin.send_to(connection, new)
        elif is_there and new.filter.partition("/")[0] == SYS:
            connection.gateway.sys_topics.send_to(connection, new)
        self._retained.begin(new.filter)

    # --- answers ---

    def acknowledged(self, packet_ids: "array[int]") -> None:
        """PUBACK. A message of QoS 2 waits for PUBREC, whatever else comes (MQTT-4.3.3-3)."""
        outbox = self._connection.session.outbox
        packet_ids = self._connection.settle_express(packet_ids)
        if outbox.unreceived or outbox.released:
            for run in id_runs(packet_ids):
                if outbox.unreceived.overlaps(*run) or outbox.released.overlaps(*run):
                    raise ProtocolError("PUBACK for a message of QoS 2")
        outbox.acknowledge(packet_ids)
        self.catch_up()

    def received(self, packet_ids: "array[int]", reasons: bytes | None) -> None:
        """PUBREC. That it came is on disk before PUBREL is sent: after a crash the message must
        not be sent again to a client that has let go of its packet id."""
        connection = self._connection
        outbox = connection.session.outbox
        known, unknown, refused = packet_ids, array("H"), array("H")
        runs = id_runs(packet_ids)
        if reasons is not None or not all(outbox.unreceived.covers(*run) for run in runs):
            known, unknown, refused = self._sorted_out(packet_ids, reasons)
            runs = id_runs(known)
        if refused:
            outbox.acknowledge(connection.settle_express(refused))
            for first, stop in id_runs(refused):
                outbox.unreceived.discard(first, stop)
        for first, stop in runs:
            outbox.confirm(first, stop)
        lsn: Lsn | None = None
        if known or refused:
            lsn = connection.sessions.save_ids(connection.session)
        if unknown:
            connection.answers.reply(self._released(packet_ids, refused, unknown), lsn)
        elif known:
            connection.answers.reply(render_acks(Kind.PUBREL, known, connection.version), lsn)

    def _released(
        self, packet_ids: "array[int]", refused: "array[int]", unknown: "array[int]"
    ) -> bytes:
        """PUBREL one by one, in the order of PUBREC (MQTT-4.6.0-4)."""
        version, gone, strange = self._connection.version, set(refused), set(unknown)
        parts = []
        for number in packet_ids:
            if number not in gone:
                found = number not in strange
                reason = Reason.SUCCESS if found else Reason.PACKET_IDENTIFIER_NOT_FOUND
                parts.append(render_acks(Kind.PUBREL, array("H", [number]), version, reason))
        return b"".join(parts)

    def _sorted_out(
        self, packet_ids: "array[int]", reasons: bytes | None
    ) -> "tuple[array[int], array[int], array[int]]":
        """Ids that are known, unknown, and refused by the client."""
        outbox = self._connection.session.outbox
        known, unknown, refused = array("H"), array("H"), array("H")
        for index, number in enumerate(packet_ids):
            if reasons is not None and reasons[index] >= ERROR:
                refused.append(number)
            elif number in outbox.released or number in outbox.unreceived:
                known.append(number)
            elif outbox.is_in_flight(number) or self._connection.is_expressed(number):
                raise ProtocolError("PUBREC for a message of QoS 1")
            else:
                unknown.append(number)
        return known, unknown, refused

    def completed(self, packet_ids: "array[int]") -> None:
        """PUBCOMP. First the message, then its id: the journal keeps that order."""
        connection = self._connection
        outbox = connection.session.outbox
        runs = id_runs(packet_ids)
        if not all(outbox.released.covers(*run) for run in runs):
            if any(outbox.unreceived.overlaps(*run) for run in runs):
                raise ProtocolError("PUBCOMP before PUBREC")
            packet_ids = array("H", [each for each in packet_ids if each in outbox.released])
            if not packet_ids:
                return
        outbox.complete(packet_ids)
        self.catch_up()
        connection.sessions.save_ids(connection.session)
