"""What one connection has to do with durable queues: its consumers, and its answers to them."""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from braidmq.engine.envelope import MESSAGE_ID, MQTT
from braidmq.engine.topics import Credit, Subscription
from braidmq.gateways.mqtt.delayed import timed
from braidmq.gateways.mqtt.errors import refusal, translate
from braidmq.gateways.mqtt.message import Arrival, make_arrival
from braidmq.gateways.mqtt.queues.consumer import (
    FIRST_ID,
    LAST_ID,
    QueueConsumer,
    Sent,
)
from braidmq.gateways.mqtt.queues.names import QUEUE, Address, default_group, parse
from braidmq.gateways.mqtt.queues.record import QueueRecord
from braidmq.gateways.mqtt.queues.registry import batch_size
from braidmq.gateways.mqtt.router import Routed
from braidmq.gateways.translation import (
    DELAY_MS,
    MQTT_QOS_OF_OTHERS,
    mqtt_properties,
    native_headers,
    number_in,
)
from braidmq.model.errors import BadRequest, BraidError
from braidmq.model.limits import ERROR_CHARACTERS_MAX
from braidmq.record.batch import Record
from braidmq.runtime.exclusive_queues import require_shared
from braidmq.runtime.node_loop import NodeLoop
from braidmq.wire.envelopes import split_mqtt
from braidmq.wire.mqtt.constants import Kind, Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import Request
from braidmq.wire.mqtt.properties import Properties, decode_properties
from braidmq.wire.mqtt.text import Shared

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

GROUP = "consumer-group"
ACK_MODE = "ack-mode"
ERROR = "reason"
EXPLICIT, BY_PUBACK = "explicit", "puback"
DELAY_MS_MAX = 1 << 53
REFUSED = 0x80
"""PUBACK and PUBREC from here on say that the client could not do it."""
BROKEN = frozenset({Reason.PAYLOAD_FORMAT_INVALID})
"""Refusals that no second try would change."""


class QueueClient:
    def __init__(self, connection: "MqttConnection") -> None:
        self.connection = connection
        self.node_loop: NodeLoop = connection.node_loop
        self._queues = connection.gateway.queues
        self._consumers: dict[str, QueueConsumer] = {}
        self._retired: list[QueueConsumer] = []
        """Unsubscribed, with messages that are not answered for."""
        self._sent: dict[int, Sent] = {}
        """By packet id: what the client has not confirmed."""
        self._last_id = LAST_ID

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closed

    # --- subscriptions ---

    def subscribe(self, request: Request, shared: Shared | None, given: Properties) -> QueueRecord:
        """Check a subscription and make queue and group. Raises MqttError with the reason."""
        connection = self.connection
        topic = request.filter if shared is None else shared.filter
        address = parse(topic, Reason.TOPIC_FILTER_INVALID)
        if address.verb:
            raise MqttError(
                Reason.TOPIC_FILTER_INVALID, f"{topic!r}: this topic can only be published to"
            )
        session, limit = connection.session, connection.settings.subscriptions_max
        used = len(session.subscriptions) + len(session.queues)
        if request.filter not in session.queues and used >= limit:
            raise MqttError(
                Reason.QUOTA_EXCEEDED, "the session has reached its limit of subscriptions"
            )
        record = self._record(request, shared, given)
        try:
            self._group(address, record.group)
        except BraidError as error:
            raise translate(error) from None
        session.queues[request.filter] = record
        return record

    def _group(self, address: Address, group: str) -> Subscription:
        namespace, grants = self.connection.namespace, self.connection.grants
        grants.need_read(self._queues.name_of(namespace, address))
        topic = self._queues.open(namespace, address, grants)
        require_shared(topic)
        return self._queues.group(topic, group)

    def _record(self, request: Request, shared: Shared | None, given: Properties) -> QueueRecord:
        connection = self.connection
        said = dict(given.user_properties)
        group = said.get(GROUP)
        # 3.1.1 has no user properties, and so no message ids to answer by.
        mode = said.get(ACK_MODE, EXPLICIT if connection.speaks_v5 else BY_PUBACK)
        if mode not in (EXPLICIT, BY_PUBACK):
            raise MqttError(
                Reason.UNSPECIFIED_ERROR,
                f"ack-mode must be {EXPLICIT} or {BY_PUBACK}, not {mode!r}",
            )
        if shared is not None:
            group = shared.group
        # Of a session that goes on, a packet id of QoS 2 would have to be kept for a message that
        # may be with somebody else by then.
        most = 1 if connection.session.durable else connection.settings.maximum_qos
        return QueueRecord(
            request.filter,
            request.filter if shared is None else shared.filter,
            group or default_group(connection.client_id),
            min(request.qos, most, connection.settings.maximum_qos),
            mode == EXPLICIT,
            given.subscription_identifiers[0] if given.subscription_identifiers else 0,
        )

    def attach(self, record: QueueRecord) -> None:
        """Begin to receive. Raises BraidError when queue or group can't be had any more."""
        old = self._consumers.pop(record.filter, None)
        if old is not None:
            self._retire(old)
        subscription = self._group(parse(record.topic), record.group)
        limit = batch_size(subscription.topic) or self.connection.settings.queue_batch
        credits = [self.connection.credit, Credit(limit)]
        self._consumers[record.filter] = QueueConsumer(self, record, subscription, credits)

    def attach_all(self, records: Iterable[QueueRecord]) -> None:
        """Those of them that still hold; what the client may not have any more it no longer has."""
        session = self.connection.session
        for record in list(records):
            if self.is_closed or session.queues.get(record.filter) is not record:
                continue
            try:
                self.attach(record)
            except BraidError:
                del session.queues[record.filter]

    def unsubscribe(self, pattern: str) -> bool:
        old = self._consumers.pop(pattern, None)
        if old is not None:
            self._retire(old)
        return self.connection.session.queues.pop(pattern, None) is not None

    def _retire(self, consumer: QueueConsumer) -> None:
        self._retired = [each for each in self._retired if not each.is_idle]
        if consumer.is_idle:
            consumer.detach()
        else:
            consumer.retire()
            self._retired.append(consumer)

    def cancelled(self, consumer: QueueConsumer) -> None:
        """MQTT has no other way to say that there is nothing to hear any more."""
        if self._consumers.get(consumer.record.filter) is consumer:
            del self._consumers[consumer.record.filter]
            self.connection.session.queues.pop(consumer.record.filter, None)
            self.connection.sessions.save(self.connection.session)
            text = f"{consumer.record.topic!r} or its group {consumer.record.group!r} was deleted"
            self.connection.end(text)

    def detach_all(self) -> None:
        for consumer in (*self._consumers.values(), *self._retired):
            consumer.detach()
        self._consumers.clear()
        self._retired.clear()
        self._sent.clear()

    def pause(self, paused: bool) -> None:
        """The connection's socket is full, or has room again."""
        for each in self._consumers.values():
            if paused:
                each.consumer.paused = True
            else:
                self.node_loop.engine().consumers.resume(each.consumer)

    # --- packet ids ---

    def take_id(self, sent: Sent) -> int:
        number = self._last_id
        while True:
            number = FIRST_ID if number == LAST_ID else number + 1
            if number not in self._sent:
                break
        self._last_id = number
        self._sent[number] = sent
        return number

    def forget_id(self, sent: Sent) -> None:
        self._sent.pop(sent.packet_id, None)

    def take_acks(
        self, kind: int, packet_ids: "array[int]", reasons: bytes | None
    ) -> "tuple[array[int], bytes | None]":
        """Take those that are about queues out of a run of PUBACK, PUBREC or PUBCOMP."""
        if not self._sent or max(packet_ids) < FIRST_ID:
            return packet_ids, reasons
        others, other_reasons = array("H"), bytearray()
        for index, number in enumerate(packet_ids):
            reason = 0 if reasons is None else reasons[index]
            if number in self._sent:
                self._confirmed(kind, number, reason)
            else:
                others.append(number)
                other_reasons.append(reason)
        return others, None if reasons is None else bytes(other_reasons)

    def _confirmed(self, kind: int, number: int, reason: int) -> None:
        if kind == Kind.PUBREC and reason < REFUSED:
            self.connection.release(number)
            return
        sent = self._sent.pop(number)
        sent.packet_id = 0
        if sent.consumer.record.explicit:
            if sent.answered:
                # Only now: the client may not have more unconfirmed than its receive maximum.
                self.node_loop.engine().consumers.release(self.connection.credit, 1)
        elif reason < REFUSED:
            sent.consumer.answer(sent, "$ack")
        else:
            verb = "$reject" if reason in BROKEN else "$nack"
            sent.consumer.answer(sent, verb, error=f"refused with 0x{reason:02x}")

    # --- explicit answers ---

    def answer(self, address: Address, arrival: Arrival) -> Routed:
        """$ack, $nack, $reject or $reply, for the message ids it names."""
        for record in arrival.batch.records():
            properties = decode_properties(split_mqtt(record.envelope)[2], Kind.PUBLISH)
            given = properties.user_properties
            wanted = [value for name, value in given if name == MESSAGE_ID]
            if not wanted:
                raise MqttError(
                    Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                    f"{address.verb} names no message: give the user property {MESSAGE_ID}",
                )
            self._answer_all(address, wanted, dict(given), properties, record, arrival.qos)
        return Routed(self.node_loop.pending_lsn(), True)

    def _answer_all(
        self,
        address: Address,
        wanted: list[str],
        given: dict[str, str],
        properties: Properties,
        record: Record,
        qos: int,
    ) -> None:
        try:
            delay_ms = number_in(given, DELAY_MS, DELAY_MS_MAX) if DELAY_MS in given else None
        except BadRequest as error:
            raise refusal(error) from None
        why = given.get(ERROR, "")
        if len(why) > ERROR_CHARACTERS_MAX:
            raise MqttError(
                Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                f"a {ERROR} of {len(why)} characters, at most {ERROR_CHARACTERS_MAX} are kept",
            )
        late = []
        for message_id in wanted:
            sent = self._find(address, message_id, given.get(GROUP))
            if sent is None:
                late.append(message_id)
                continue
            if address.verb == "$reply":
                self._reply(sent, record, properties, qos)
            sent.consumer.take(message_id)
            if not self._settle(sent, address.verb, why, delay_ms):
                late.append(message_id)
        if late and qos:
            raise MqttError(
                Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                f"not in flight here, already answered or timed out: {', '.join(late)}",
            )

    def _find(self, address: Address, message_id: str, group: str | None) -> Sent | None:
        for each in (*self._consumers.values(), *self._retired):
            if each.record.topic == address.topic and group in (None, each.record.group):
                sent = each.open.get(message_id)
                if sent is not None:
                    return sent
        return None

    def _settle(self, sent: Sent, verb: str, error: str, delay_ms: int | None) -> bool:
        settled = sent.consumer.answer(sent, verb, error=error, delay_ms=delay_ms)
        if settled and sent.packet_id:
            sent.answered = True
            self.connection.credit.used += 1
        return settled

    # --- request and response ---

    def _reply(self, sent: Sent, answer: Record, said: Properties, qos: int) -> None:
        """Publish the payload to who asked, with the correlation data of the question."""
        found = sent.view.log.read(sent.offset, 1)
        if not found:
            return
        asked = found[0].batch.record(found[0].first)
        question = mqtt_properties(asked)
        target = self._reply_queue(asked) or question.response_topic
        if target is None:
            raise MqttError(
                Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the message has no response topic"
            )
        self.connection.check_publish(target)
        arrival = make_arrival(
            target.encode(),
            answer.value or b"",
            self.node_loop.now_ms(),
            qos=qos or MQTT_QOS_OF_OTHERS,
            properties=Properties(
                correlation_data=question.correlation_data,
                content_type=said.content_type,
                user_properties=tuple(
                    each for each in said.user_properties if each[0] not in (MESSAGE_ID, GROUP)
                ),
            ),
        )
        self.connection.publish(timed(arrival))

    def _reply_queue(self, asked: Record) -> str | None:
        """Who asks over another protocol mostly names a queue."""
        if asked.envelope_format == MQTT:
            return None
        name = dict(native_headers(asked)).get("reply-to", b"").decode("utf-8", "replace")
        known = (self.connection.namespace, name) in self.node_loop.view.state.topics
        return QUEUE + name if known else None
