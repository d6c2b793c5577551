"""One subscription of a connected client to a durable queue: a consumer of the engine.

A delivery is answered for in one of two ways. With ``explicit`` answers the client publishes to
``$queue/{name}/$ack`` and the like, by message id, and PUBACK says only that the packet came. Else
PUBACK or PUBCOMP is the answer, and at QoS 0 sending it is.
"""

from typing import TYPE_CHECKING

import msgspec

from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, Delivery, PartitionView, Subscription
from braidmq.gateways.mqtt.fast_path import STOP_ID
from braidmq.gateways.mqtt.queues.record import QueueRecord
from braidmq.gateways.translation import queue_properties
from braidmq.record.batch import Record
from braidmq.runtime.sessions import ClientInfo, client_of
from braidmq.wire.mqtt.packets import Publish, encode
from braidmq.wire.mqtt.properties import NO_PROPERTIES

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.queues.client import QueueClient

FIRST_ID = STOP_ID
"""Packet ids of queues; the short way and the outbox of the session have those below."""
LAST_ID = 0xFFFF


class Sent:
    """A message at the client."""

    __slots__ = ("answered", "consumer", "offset", "older", "packet_id", "view")

    def __init__(
        self, consumer: "QueueConsumer", view: PartitionView, offset: int, packet_id: int
    ) -> None:
        self.consumer = consumer
        self.view = view
        self.offset = offset
        self.packet_id = packet_id
        """0 once the client has confirmed the packet, and at QoS 0."""
        self.answered = False
        self.older: Sent | None = None
        """Another message at the client with the same id: publishers may say it twice."""

    @property
    def is_in_flight(self) -> bool:
        found = self.view.state.look(self.offset)
        holder = self.consumer.consumer.id
        return found is not None and (found[0], found[2]) == (State.IN_FLIGHT, holder)


class QueueConsumer:
    def __init__(
        self,
        client: "QueueClient",
        record: QueueRecord,
        subscription: Subscription,
        credits: list[Credit],
    ) -> None:
        self.client = client
        self.record = record
        self.open: dict[str, Sent] = {}
        """By message id: what waits for an explicit answer."""
        self._node_loop = client.node_loop
        self._limit = credits[-1].limit
        self._is_detached = False
        self.consumer: Consumer = self._node_loop.engine().consumers.attach(
            subscription,
            now_ms=self._node_loop.now_ms(),
            credits=credits,
            auto_ack=not record.explicit and not record.qos,
            receiver=self,
        )

    @property
    def is_idle(self) -> bool:
        return self._is_detached or not self.consumer.in_flight

    def retire(self) -> None:
        """It gets no more, and may still answer for what it has."""
        consumers, now_ms = self._node_loop.engine().consumers, self._node_loop.now_ms()
        consumers.detach(self.consumer, now_ms=now_ms, requeue=False)

    def detach(self) -> None:
        """What it has not answered for goes back to the group."""
        if self._is_detached:
            return
        if not self.consumer.subscription.topic.deleted:
            self._node_loop.engine().consumers.detach(
                self.consumer, now_ms=self._node_loop.now_ms()
            )
        self._is_detached = True
        self.open.clear()
        del self.consumer  # which knows us: both would be there until garbage is collected

    def cancelled(self) -> None:
        """The queue or the group was deleted."""
        self.client.cancelled(self)

    def client_info(self) -> ClientInfo:
        return client_of(self.client.connection, self.record.filter)

    # --- delivering ---

    def deliver(self, delivery: Delivery) -> None:
        if self.client.is_closed:
            return
        if len(self.open) > 2 * self._limit:
            self._forget_lost()
        for index in range(delivery.first_index, delivery.stop_index):
            self._deliver_one(delivery, delivery.batch.record(index))

    def _deliver_one(self, delivery: Delivery, record: Record) -> None:
        connection, wanted = self.client.connection, self.record
        sent = Sent(self, delivery.view, record.offset, 0)
        if wanted.qos:
            sent.packet_id = self.client.take_id(sent)
        message_id, properties = "", NO_PROPERTIES
        if connection.speaks_v5:
            message_id, properties = queue_properties(
                record,
                wanted.group,
                delivery.view.partition.number,
                delivery.attempts,
                self._node_loop.now_ms(),
            )
            if wanted.identifier:
                properties = msgspec.structs.replace(
                    properties, subscription_identifiers=(wanted.identifier,)
                )
        packet = Publish(
            wanted.topic,
            record.value or b"",
            wanted.qos,
            # A redelivery has a new packet id; still, 3.1.1 has no other word for it.
            dup=delivery.attempts > 1 and wanted.qos > 0,
            packet_id=sent.packet_id,
            properties=properties,
        )
        data = encode(packet, connection.version)
        if len(data) > connection.packet_bytes_max:
            self._refuse(sent, f"{len(data)} bytes, the client takes {connection.packet_bytes_max}")
            return
        if wanted.explicit:
            self._open(message_id, sent)
        connection.router.counters.sent += 1
        connection.session.meter.gave(1, len(record.value or b""))
        connection.rates.gave(1, len(record.value or b""))
        connection.send(data)

    def _refuse(self, sent: Sent, why: str) -> None:
        self.client.forget_id(sent)
        if not self.consumer.auto_ack:
            self._node_loop.engine().settling.reject(
                self.consumer,
                sent.view,
                sent.offset,
                sent.offset + 1,
                now_ms=self._node_loop.now_ms(),
                error=why,
            )

    def _open(self, message_id: str, sent: Sent) -> None:
        older = self.open.get(message_id)
        if older is not None and (older.view, older.offset) == (sent.view, sent.offset):
            older = older.older  # it is the same, delivered again
        sent.older = older
        self.open[message_id] = sent

    def take(self, message_id: str) -> Sent:
        """The newest of that id; the next answer is for the one before."""
        sent = self.open.pop(message_id)
        if sent.older is not None:
            self.open[message_id] = sent.older
        return sent

    def _forget_lost(self) -> None:
        """Messages that timed out and were not answered for since."""
        for message_id in [each for each, sent in self.open.items() if not sent.is_in_flight]:
            self.take(message_id)

    # --- answers ---

    def answer(
        self, sent: Sent, verb: str, *, error: str = "", delay_ms: int | None = None
    ) -> bool:
        """False when the delivery is over: it timed out, or was answered for."""
        if self._is_detached:
            return False
        settling, now_ms = self._node_loop.engine().settling, self._node_loop.now_ms()
        where = (self.consumer, sent.view, sent.offset, sent.offset + 1)
        if self.consumer.subscription.topic.deleted:
            return False
        if verb == "$nack":
            count = settling.nack(*where, now_ms=now_ms, error=error, delay_ms=delay_ms)
        elif verb == "$reject":
            count = settling.reject(*where, now_ms=now_ms, error=error)
        else:
            count = settling.ack(*where)
        return bool(count)
