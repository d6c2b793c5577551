"""Messages published for later.

Version 5 says when in user properties, ``delay-ms`` or ``deliver-at``; any version in the topic, as
EMQX has it: ``$delayed/{seconds}/{topic}``; a number above 4294967 is seconds since the epoch.
Those to a durable queue wait in it. All others wait in one queue of their namespace and are
published when their time has come, to whoever subscribes then.
"""

import logging
from collections.abc import Callable
from typing import Any

from braidmq.engine.policy import QUEUE_SETTINGS
from braidmq.engine.topics import Delivery
from braidmq.gateways.mqtt.errors import refusal
from braidmq.gateways.mqtt.message import Arrival, batch_of
from braidmq.gateways.mqtt.own_queue import OwnQueue
from braidmq.gateways.mqtt.queues.admin import ADMIN_BYTES
from braidmq.gateways.mqtt.queues.names import QUEUE_BYTES
from braidmq.gateways.mqtt.router import BeforeAppend, MqttRouter, Routed, anchor_in
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.translation import (
    DELAY_MS,
    DELIVER_AT,
    Due,
    due_in,
    due_record,
    mqtt_envelope,
)
from braidmq.model.errors import BadRequest, BraidError, StorageFailed
from braidmq.record.batch import DATED_EXPIRY, Record
from braidmq.runtime.node_loop import NodeLoop
from braidmq.wire.envelopes import split_mqtt
from braidmq.wire.mqtt.constants import Kind, Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.properties import decode_properties
from braidmq.wire.mqtt.publish import FLAG_QOS, FLAG_RETAIN, FLAG_USER_PROPERTIES

logger = logging.getLogger(__name__)

NAME = "$mqtt/delayed"
SUBSCRIPTION = "publisher"
PREFIX = b"$delayed/"
WORDS = (DELAY_MS.encode(), DELIVER_AT.encode())
SECONDS_MAX = 4_294_967
"""EMQX's longest delay; a larger number is a time."""
SECONDS_DIGITS_MAX = 12

FindSession = Callable[[str, str], Session | None]


def may_be_delayed(arrival: Arrival) -> bool:
    """Whether its messages have to be looked at, one by one."""
    topic = arrival.topic
    if topic.startswith(PREFIX):
        return True
    if not arrival.flags & FLAG_USER_PROPERTIES or topic.startswith((QUEUE_BYTES, ADMIN_BYTES)):
        return False  # queues read these words themselves, and have others of their own
    return arrival.mentions(*WORDS)


def timed(arrival: Arrival) -> Arrival:
    """One message as it is published when its time has come: its ``due`` says when. Raises
    MqttError for times that are none."""
    if not may_be_delayed(arrival):
        return arrival
    record = arrival.batch.record(0)
    try:
        topic, due = _asked(arrival, record)
    except BadRequest as error:
        raise refusal(error) from None
    record = due_record(
        record._replace(
            envelope=mqtt_envelope(record.envelope, topic, without=(DELAY_MS, DELIVER_AT))
        ),
        due,
    )
    found = Arrival.of_batch(topic, arrival.flags, batch_of(record), arrival.now_ms)
    found.due = due
    return found


def real_topic(topic: str) -> str:
    """What a message to it is published to. Raises MqttError."""
    return _split(topic.encode())[0].decode() if topic.startswith("$delayed/") else topic


def _asked(arrival: Arrival, record: Record) -> tuple[bytes, Due]:
    properties = decode_properties(split_mqtt(record.envelope)[2], Kind.PUBLISH)
    by_property = due_in(properties.user_properties, arrival.now_ms)
    if not arrival.topic.startswith(PREFIX):
        return arrival.topic, by_property
    if any(name in (DELAY_MS, DELIVER_AT) for name, _ in properties.user_properties):
        raise BadRequest("give the time in the topic or in a user property, not in both")
    topic, seconds = _split(arrival.topic)
    if seconds > SECONDS_MAX:
        at_ms = seconds * 1000
        return topic, Due(at_ms, True) if at_ms > arrival.now_ms else Due()
    return topic, Due(arrival.now_ms + seconds * 1000) if seconds else Due()


def _split(topic: bytes) -> tuple[bytes, int]:
    text, _, rest = topic.removeprefix(PREFIX).partition(b"/")
    if not rest or rest.startswith(PREFIX):
        raise MqttError(
            Reason.TOPIC_NAME_INVALID, "expected $delayed/{seconds}/{topic}, with one time"
        )
    if not text.isdigit() or len(text) > SECONDS_DIGITS_MAX:
        raise MqttError(
            Reason.TOPIC_NAME_INVALID,
            f"{text[:64].decode(errors='replace')!r} in $delayed/{{seconds}}/{{topic}} is no number"
            " of seconds",
        )
    return rest, int(text)


def _settings(messages_max: int) -> dict[str, Any]:
    return QUEUE_SETTINGS | {"max_messages": messages_max, "overflow": "reject"}


class DelayedQueue(OwnQueue):
    """What waits in one namespace."""

    def __init__(
        self,
        node_loop: NodeLoop,
        router: MqttRouter,
        namespace: str,
        find_session: FindSession,
        messages_max: int,
    ) -> None:
        super().__init__(node_loop, namespace, NAME, SUBSCRIPTION, _settings(messages_max))
        self._router = router
        self._find_session = find_session

    def hand_on(self, delivery: Delivery, index: int) -> None:
        record = delivery.batch.record(index)
        flags, topic, raw = split_mqtt(record.envelope)
        publisher = None if record.key is None else record.key.decode()
        session = None if publisher is None else self._find_session(self._namespace, publisher)
        record = record._replace(key=None, due_at_ms=0, dated=record.dated & DATED_EXPIRY)
        flags = flags & (FLAG_QOS | FLAG_RETAIN) | (FLAG_USER_PROPERTIES if raw else 0)
        arrival = Arrival.of_batch(topic, flags, batch_of(record), self._node_loop.now_ms())
        try:
            self._router.publish(self._namespace, arrival, session)
        except MqttError as error:
            # There is nobody left to hear of it, and nobody would be helped by trying it again.
            self._router.counters.dropped += 1
            logger.warning(
                "a delayed message was not published",
                extra={
                    "namespace": self._namespace,
                    "client": publisher,
                    "topic": topic.decode(),
                    "reason": str(error),
                },
            )


class DelayedQueues:
    def __init__(
        self,
        node_loop: NodeLoop,
        router: MqttRouter,
        find_session: FindSession,
        messages_max: int,
    ) -> None:
        self._node_loop = node_loop
        self._router = router
        self._find_session = find_session
        self._messages_max = messages_max
        self._queues: dict[str, DelayedQueue] = {}

    def replace(self, messages_max: int) -> None:
        """Also where some wait: above it one more is refused."""
        self._messages_max = messages_max
        for each in self._queues.values():
            each.replace(_settings(messages_max))

    def publish(
        self,
        namespace: str,
        arrival: Arrival,
        publisher: Session | None,
        *,
        before_append: BeforeAppend | None = None,
    ) -> Routed:
        """Keep one message until it is due; on disk, whatever its QoS. Raises MqttError."""
        self._router.received(namespace, arrival)
        topic = self._queue(namespace).open()
        record = arrival.batch.record(0)
        if publisher is not None:
            record = record._replace(key=publisher.client_id.encode())
        if before_append is not None:
            self._node_loop.flush_batch()  # where it will stand is behind that
            before_append(anchor_in([topic]))
        try:
            publishing = self._node_loop.engine().publishing
            lsn = publishing.publish(topic, batch_of(record), now_ms=arrival.now_ms).lsn
        except StorageFailed:
            raise
        except BraidError as error:
            raise refusal(error) from None
        return Routed(lsn, True)

    def _queue(self, namespace: str) -> DelayedQueue:
        found = self._queues.get(namespace)
        if found is None:
            found = self._queues[namespace] = DelayedQueue(
                self._node_loop, self._router, namespace, self._find_session, self._messages_max
            )
        return found

    def restored(self) -> None:
        """Go on with what waited when the node stopped."""
        for topic in list(self._node_loop.view.state.topics_of()):
            if topic.name == NAME:
                self._queue(topic.namespace).open()
