"""Where a message goes: subscribers, session queues, retained messages, the topic exchange."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from braidmq.engine.envelope import headers_of
from braidmq.engine.errors import TopicFull
from braidmq.engine.topics import Topic
from braidmq.gateways.mqtt.counters import Counters
from braidmq.gateways.mqtt.errors import refusal
from braidmq.gateways.mqtt.fast_path import TARGETS_MAX, Route
from braidmq.gateways.mqtt.message import FLAG_OWN, Arrival, marked
from braidmq.gateways.mqtt.packet_ids import NO_ANCHOR, Anchor
from braidmq.gateways.mqtt.retained import Retained
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.subscription_index import DeliveryOptions, Match, SubscriptionIndex
from braidmq.gateways.translation import TOPIC_EXCHANGE
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.ids import Lsn
from braidmq.record.batch import RecordBatch
from braidmq.record.copies import copied
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.publish_batcher import Publisher as Waiting
from braidmq.runtime.publish_batcher import can_batch
from braidmq.security.accounts import Accounts
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.envelopes import key_of_topic
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.publish import FLAG_QOS, FLAG_RETAIN

BRIDGE = "$mqtt/amq.topic"
"""The queue that brings messages of the topic exchange to MQTT subscribers (``bridge.py``)."""


class Routed(NamedTuple):
    lsn: Lsn | None
    """When this is durable the message is; None when it needs no disk."""
    matched: bool
    """Whether anybody gets it."""
    gathered: bool = False
    """It is appended with others at the end of the turn, and who waits for it is told then."""


BeforeAppend = Callable[[Anchor], None]


class MqttRouter:
    def __init__(self, node_loop: NodeLoop, accounts: Accounts, settings: MqttSettings) -> None:
        self.node_loop = node_loop
        self.accounts = accounts
        self.settings = settings
        self.retained = Retained(node_loop.view.store, settings, node_loop.view.state.quotas)
        self.indexes: dict[str, SubscriptionIndex] = {}
        self.counters = Counters()

    def replace(self, settings: MqttSettings) -> None:
        self.settings = settings
        self.retained.replace(settings)

    def index(self, namespace: str) -> SubscriptionIndex:
        index = self.indexes.get(namespace)
        if index is None:
            index = self.indexes[namespace] = SubscriptionIndex(
                namespace, self.accounts, self.node_loop.turns
            )
        return index

    def takes_runs(self, namespace: str, topic: bytes) -> bool:
        """Whether all messages to a topic go the same way."""
        router = self.node_loop.view.router(namespace)
        match = self.index(namespace).match(topic)
        known = match.bound_at == router.generation
        return not match.groups and (known or router.routes_by_key_only(TOPIC_EXCHANGE))

    def pass_on(self, namespace: str, arrival: Arrival, publisher: Session) -> bool:
        """Send QoS 0 that only subscribers get and nobody keeps; False: it takes ``publish``."""
        match = self.index(namespace).match(arrival.topic)
        if arrival.flags & (FLAG_QOS | FLAG_RETAIN) or match.groups or match.bound:
            return False
        if match.bound_at != self.node_loop.view.router(namespace).generation:
            return False
        self.received(namespace, arrival)
        for session, options in match.sessions.items():
            own = options.local if session is publisher else options
            if own is not None:
                self.send(arrival, session, own)
        return True

    def received(self, namespace: str, arrival: Arrival) -> None:
        """Clients published this, wherever it goes."""
        self.counters.received += arrival.count
        meter = self.node_loop.usage.meter(namespace, "mqtt")
        meter.took(arrival.count, arrival.value_bytes)

    def open_route(self, namespace: str, topic: bytes) -> None:
        """Look for the short way to a topic, unless that was done since anything changed."""
        if self.route(namespace, topic) is None:
            index, router = self.index(namespace), self.node_loop.view.router(namespace)
            match = index.match(topic)
            match.route = _route(match, index.moves, router.generation)

    def route(self, namespace: str, topic: bytes) -> Route | None:
        """The short way to a topic, if it was looked for since anything changed."""
        index, router = self.index(namespace), self.node_loop.view.router(namespace)
        known = index.match(topic).route
        if known is None or known.moves != index.moves or known.generation != router.generation:
            return None
        return known

    def publish(
        self,
        namespace: str,
        arrival: Arrival,
        publisher: Session | None = None,
        *,
        waiting: Waiting | None = None,
        before_append: BeforeAppend | None = None,
        from_exchange: bool = False,
    ) -> Routed:
        """Hand messages to everybody they concern. Those of one run must all go the same way.

        With ``waiting`` they may be gathered with others of this turn. ``before_append`` is told
        where the first of them will be. Raises MqttError when it is refused: QUOTA_EXCEEDED.
        """
        if from_exchange:
            self.counters.received += arrival.count  # who published it has been counted
        else:
            self.received(namespace, arrival)
        # First, whatever becomes of the message: the short way goes by the rights this looked at.
        match = self.index(namespace).match(arrival.topic)
        retained_lsn = self._retain(namespace, arrival, publisher) if arrival.retain else None
        queues = [] if from_exchange else self._bound_topics(namespace, arrival, match)
        again: list[tuple[Topic, int]] = []
        found = self._subscribers(match, publisher)
        for session, options in found:
            if not min(arrival.qos, options.qos):
                self.send(arrival, session, options)
                continue
            topic = session.outbox.topic()
            if options.is_part:
                again.append((topic, FLAG_OWN))
            elif topic in queues:
                # A session may match for itself and as its group's choice: those are two copies.
                again.append((topic, 0))
            else:
                queues.append(topic)
        if waiting is not None and len(queues) == 1 and not again and not arrival.retain:
            batch = arrival.batch
            if can_batch(queues[0], batch) and not self.node_loop.view.state.quotas.limits_storage:
                self.node_loop.publish_batched(queues[0], arrival.qos > 0, batch, waiting)
                return Routed(None, True, True)
        if before_append is not None:
            self.node_loop.flush_batch()  # where it will stand is behind that
            before_append(anchor_in(queues or [topic for topic, _ in again]))
        lsn = self._append(queues, arrival, arrival.batch) if queues else None
        for topic, flag in again:
            batch = marked(arrival.batch, flag) if flag else copied(arrival.batch)
            lsn = self._append([topic], arrival, batch) or lsn
        return Routed(later(retained_lsn, lsn), bool(queues or found))

    def _subscribers(
        self, match: Match, publisher: Session | None
    ) -> list[tuple[Session, DeliveryOptions]]:
        found: list[tuple[Session, DeliveryOptions]] = []
        for session, options in match.sessions.items():
            own = options.local if session is publisher else options
            if own is not None:
                found.append((session, own))
        for group in match.groups:
            picked = match.pick(group, self.settings.share_strategy)
            if picked is not None:
                found.append(picked)
        return found

    def send(self, arrival: Arrival, session: Session, options: DeliveryOptions) -> None:
        """QoS 0: to who is connected and keeps up, and to nobody else."""
        connection = session.connection
        if connection is None:
            return
        if connection.is_behind():
            self.counters.dropped += arrival.count
            return
        retain = arrival.retain and options.retain_as_published
        properties = options.properties if connection.speaks_v5 else b""
        limit, aliases = connection.packet_bytes_max, connection.aliases
        if aliases is None:
            data = arrival.rendered(connection.version, retain, properties, limit)
        else:
            alias = aliases.look(arrival.topic)
            data = arrival.rendered(connection.version, retain, properties, limit, *alias)
        if data:
            if aliases is not None:
                aliases.sent(arrival.topic, alias[0])
            self.counters.sent += arrival.count
            session.meter.gave(arrival.count, arrival.value_bytes)
            connection.rates.gave(arrival.count, arrival.value_bytes)
            connection.send(data)

    def _retain(self, namespace: str, arrival: Arrival, publisher: Session | None) -> Lsn | None:
        record = arrival.batch.record(arrival.count - 1)
        topic = arrival.topic.decode()
        if not record.value:
            return self.retained.forget(namespace, topic)
        client_id = "" if publisher is None else publisher.client_id
        return self.retained.keep(namespace, topic, record, client_id)

    def _bound_topics(self, namespace: str, arrival: Arrival, match: Match) -> list[Topic]:
        """Queues that are bound to the topic exchange: it and the MQTT tree are one space."""
        view = self.node_loop.view
        router = view.router(namespace)
        if match.bound_at == router.generation:
            return list(match.bound)
        key = key_of_topic(arrival.topic)
        found: list[Topic] = []
        if arrival.topic[:1] != b"$" and len(key) <= SHORT_STRING_BYTES_MAX:
            route = router.resolve(TOPIC_EXCHANGE, key, lambda: headers_of(arrival.batch.record(0)))
            for name in route.topics:
                topic = view.state.topics.get((namespace, name))
                if topic is not None and name != BRIDGE:
                    found.append(topic)
        if router.routes_by_key_only(TOPIC_EXCHANGE):
            match.bound, match.bound_at = tuple(found), router.generation
        return found

    def _append(self, queues: Sequence[Topic], arrival: Arrival, batch: RecordBatch) -> Lsn | None:
        """At QoS 0 only queues of other protocols get it, and need not keep it on disk."""
        try:
            published = self.node_loop.engine().publishing.fan_out(
                queues, batch, now_ms=arrival.now_ms, durable=arrival.qos > 0
            )
        except TopicFull as error:
            raise MqttError(Reason.QUOTA_EXCEEDED, str(error)) from None
        except PartitionQuarantined as error:
            raise refusal(error) from None
        return published.lsn


def _route(match: Match, moves: int, generation: int) -> Route:
    """The short way is for messages that only subscribers get who take them as they came."""
    closed = Route(moves, generation)
    if match.groups or match.bound or match.bound_at != generation:
        return closed
    if len(match.sessions) > TARGETS_MAX:
        return closed
    version, targets, takes_qos1 = 0, [], True
    for session, options in match.sessions.items():
        if options.properties or options.local is not options:
            return closed
        takes_qos1 = takes_qos1 and not session.durable and options.qos > 0
        connection = session.connection
        if connection is None:
            continue
        version = version or connection.version
        if not connection.takes_as_is(version):
            return closed
        targets.append(connection.fast_path())
    return Route(moves, generation, version, targets, takes_qos1)


def anchor_in(queues: Sequence[Topic]) -> Anchor:
    for topic in queues:
        if topic.journaled and len(topic.partitions) == 1:
            log = topic.partitions[0].log
            return log.id, log.next_offset
    return NO_ANCHOR


def later(first: Lsn | None, second: Lsn | None) -> Lsn | None:
    if first is None or second is None:
        return first if second is None else second
    return max(first, second)
