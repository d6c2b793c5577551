"""Retained messages on their way to new subscriptions, a slice at a time.

A filter may match a hundred thousand of them. They are work in slices, as ``gateways/slicing`` does
it: who publishes meanwhile waits for a slice, and not for all of them. Each connection gets no more
than its socket and its session's queue take.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from braidmq.engine.envelope import MQTT
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import FLAG_COPY, envelope_of, render_all
from braidmq.gateways.mqtt.topic_tree import Walk
from braidmq.gateways.mqtt.tree import Subscription
from braidmq.model.errors import BraidError
from braidmq.storage.record import Record, RecordBatch
from braidmq.wire.envelopes import split_mqtt
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import decode_properties
from braidmq.wire.mqtt.publish import FLAG_QOS, FLAG_RETAIN

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

STEPS = 128
"""Levels of the tree of topics that one slice looks at: about half a millisecond."""
SLICE_BYTES = 128 * 1024
"""A slice ends when its messages have this much."""
QUEUED_MAX = 1024
"""Messages in a session's queue above which retained ones wait."""


class RetainedSending:
    """What one connection is still to get of retained messages. That belongs to its session: who
    comes back to it gets the rest."""

    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self._is_under_way = False

    @property
    def _walks(self) -> dict[str, tuple[Subscription, Walk]]:
        return self._connection.session.retained_walks

    def begin(self, new: Subscription) -> None:
        connection = self._connection
        walk = connection.hub.retained.walk(connection.namespace, new.filter)
        if walk is not None:
            self._walks.pop(new.filter, None)
            self._walks[new.filter] = (new, walk)
            self.go_on()

    def go_on(self) -> None:
        """There may be room again."""
        if self._walks and not self._is_under_way and self._is_ready:
            self._is_under_way = True
            self._connection.broker.work_unawaited(self._slices(), "sending retained messages")

    def _slices(self) -> Iterator[None]:
        try:
            while self._is_ready:
                self._slice()
                yield
        except BraidError as error:
            self._walks.clear()
            self._connection.fail(translate(error))
        finally:
            self._is_under_way = False

    @property
    def _is_ready(self) -> bool:
        """Whether there is something to send, and room for it."""
        connection = self._connection
        if not self._walks or connection.is_closed or connection.is_full:
            return False
        return connection.session.outbox.waiting < self._queued_max

    @property
    def _queued_max(self) -> int:
        return min(QUEUED_MAX, self._connection.settings.session_messages_max)

    def _slice(self) -> None:
        connection = self._connection
        room = self._queued_max - connection.session.outbox.waiting
        at_once, queued = RecordBatch(), RecordBatch()
        steps = STEPS
        while self._walks and steps and queued.count < room:
            new, walk = next(iter(self._walks.values()))
            if connection.session.subscriptions.get(new.filter) is not new:
                del self._walks[new.filter]  # unsubscribed, or subscribed anew
                continue
            while steps and not walk.is_over and queued.count < room:
                topic = walk.step()
                steps -= 1
                if topic is not None:
                    self._add(at_once, queued, topic, new)
                    if at_once.size + queued.size > SLICE_BYTES:
                        steps = 0
            if walk.is_over:
                del self._walks[new.filter]
        self._send(at_once, queued)

    def _add(
        self, at_once: RecordBatch, queued: RecordBatch, topic: str, new: Subscription
    ) -> None:
        connection = self._connection
        if not connection.grants.may_read(topic):
            return
        record = connection.hub.retained.get(
            connection.namespace, topic, connection.broker.now_ms()
        )
        if record is not None:
            flags, _, raw = split_mqtt(record.envelope)
            qos = min(flags & FLAG_QOS, new.qos)
            _add_copy(queued if qos else at_once, topic, record, raw, qos, new.identifier)

    def _send(self, at_once: RecordBatch, queued: RecordBatch) -> None:
        connection, now_ms = self._connection, self._connection.broker.now_ms()
        if at_once.count:
            limit = connection.packet_bytes_max
            connection.send(render_all(at_once, connection.version, True, b"", limit, now_ms))
        if queued.count:
            connection.broker.settle()
            topic = connection.session.outbox.topic()
            connection.broker.engine.publish(topic, queued, now_ms=now_ms)
            connection.broker.touch()


def _add_copy(
    batch: RecordBatch, topic: str, record: Record, raw: bytes, qos: int, identifier: int
) -> None:
    """A retained message as it goes to one new subscription."""
    properties = decode_properties(raw, Kind.PUBLISH)
    if identifier:
        properties = msgspec.structs.replace(properties, subscription_identifiers=(identifier,))
    batch.append(
        record.value,
        envelope=envelope_of(topic.encode(), qos | FLAG_RETAIN | FLAG_COPY, properties),
        envelope_format=MQTT,
        timestamp_ms=record.timestamp_ms,
        expires_at_ms=record.expires_at_ms,
    )
