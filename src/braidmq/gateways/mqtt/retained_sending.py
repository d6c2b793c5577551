"""Retained messages on their way to new subscriptions, a slice at a time.

A filter may match a hundred thousand of them. They are work in slices (``runtime/sliced_work``):
who publishes meanwhile waits for a slice, and not for all of them. Each connection gets no more
than its socket and its session's queue take.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from braidmq.engine.envelope import MQTT
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import FLAG_COPY, envelope_of, render_all
from braidmq.gateways.mqtt.queues.admin import is_admin
from braidmq.gateways.mqtt.session import RetainedWalk
from braidmq.gateways.mqtt.session_records import RetainedPlace
from braidmq.gateways.mqtt.subscription_index import Subscription
from braidmq.model.errors import BraidError
from braidmq.record.batch import Record, RecordBatch
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
    """What one connection is still to get of retained messages. That belongs to its session, and
    is kept with the subscription: who comes back to it gets the rest, after a crash, too."""

    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self._is_under_way = False

    @property
    def _walks(self) -> dict[str, RetainedWalk]:
        return self._connection.session.retained

    def want(self, new: Subscription) -> None:
        """From the beginning, once SUBACK is given. The caller keeps the subscription, and that."""
        connection = self._connection
        self._walks.pop(new.filter, None)
        retained = connection.router.retained
        if not is_admin(new.filter) and retained.may_match(connection.namespace, new.filter):
            self._walks[new.filter] = RetainedWalk(RetainedPlace(), is_held=True)

    def begin(self, pattern: str) -> None:
        if pattern in self._walks:
            self._walks[pattern].is_held = False
            self.go_on()

    def resume(self) -> None:
        for each in self._walks.values():
            each.is_held = False
        self.go_on()

    def go_on(self) -> None:
        """There may be room again."""
        if self._walks and not self._is_under_way and self._is_ready:
            self._is_under_way = True
            self._connection.node_loop.work_in_background(
                self._slices(), "sending retained messages"
            )

    def _slices(self) -> Iterator[None]:
        try:
            while self._is_ready:
                self._slice()
                yield
        except BraidError as error:
            for each in self._walks.values():
                each.walk = None  # they go on from where they are kept to be
            self._connection.fail(translate(error))
        finally:
            self._is_under_way = False

    @property
    def _is_ready(self) -> bool:
        """Whether there is something to send, and room for it."""
        connection = self._connection
        if connection.is_closed or connection.is_full:
            return False
        if all(each.is_held for each in self._walks.values()):
            return False
        return connection.session.outbox.waiting < self._queued_max

    @property
    def _queued_max(self) -> int:
        return min(QUEUED_MAX, self._connection.settings.session_messages_max)

    def _slice(self) -> None:
        connection = self._connection
        room = self._queued_max - connection.session.outbox.waiting
        at_once, queued = RecordBatch(), RecordBatch()
        ends: dict[str, str | None] = {}
        """By filter, the last topic that is in this slice; None: it is the last slice."""
        steps = STEPS
        for pattern, each in list(self._walks.items()):
            if not steps or queued.count >= room:
                break
            if each.is_held:
                continue
            new = connection.session.subscriptions[pattern]
            if each.walk is None:
                each.walk = connection.router.retained.walk(
                    connection.namespace, pattern, each.place.after
                )
            walk = each.walk
            while steps and not walk.is_over and queued.count < room:
                topic = walk.step()
                steps -= 1
                if topic is not None:
                    ends[pattern] = topic
                    self._add(at_once, queued, topic, new)
                    if at_once.size + queued.size > SLICE_BYTES:
                        steps = 0
            if walk.is_over:
                ends[pattern] = None
        self._send(at_once, queued, ends)

    def _add(
        self, at_once: RecordBatch, queued: RecordBatch, topic: str, new: Subscription
    ) -> None:
        connection = self._connection
        if not connection.grants.may_read(topic):
            return
        # MQTT-3.8.3-3 makes no exception of what is retained: a bridge that comes back would have
        # its newer messages replaced by its older ones.
        record = connection.router.retained.get(
            connection.namespace,
            topic,
            connection.node_loop.now_ms(),
            not_of=connection.client_id if new.no_local else None,
        )
        if record is not None:
            flags, _, raw = split_mqtt(record.envelope)
            qos = min(flags & FLAG_QOS, new.qos)
            _add_copy(queued if qos else at_once, topic, record, raw, qos, new.identifier)

    def _send(self, at_once: RecordBatch, queued: RecordBatch, ends: dict[str, str | None]) -> None:
        connection, now_ms = self._connection, self._connection.node_loop.now_ms()
        if queued.count:
            publishing = connection.node_loop.engine().publishing
            topic = connection.session.outbox.topic()
            self._note(ends, connection.session.outbox.next_offset)
            publishing.publish(topic, queued, now_ms=now_ms)
        self._done(ends, is_noted=queued.count > 0)
        if at_once.count:
            limit = connection.packet_bytes_max
            connection.session.meter.gave(at_once.count, at_once.value_bytes)
            connection.rates.gave(at_once.count, at_once.value_bytes)
            connection.send(render_all(at_once, connection.version, True, b"", limit, now_ms))

    def _note(self, ends: dict[str, str | None], offset: int) -> None:
        """A slice is about to enter the queue."""
        for pattern, end in ends.items():
            each = self._walks[pattern]
            each.place = RetainedPlace(each.place.after, end, offset)
        self._keep(ends)

    def _done(self, ends: dict[str, str | None], *, is_noted: bool) -> None:
        """A slice is on its way. Where another follows its note says so, too."""
        for pattern, end in ends.items():
            if end is None:
                del self._walks[pattern]
            else:
                self._walks[pattern].place = RetainedPlace(end)
        self._keep([each for each, end in ends.items() if end is None or not is_noted])

    def _keep(self, filters: Iterable[str]) -> None:
        filters = list(filters)
        if filters:
            connection = self._connection
            connection.sessions.save_subscriptions(connection.session, filters)


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
