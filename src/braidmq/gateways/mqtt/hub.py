"""Where a message goes: subscribers, session queues, retained messages, the topic exchange."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from braidmq.engine.envelope import headers_of
from braidmq.engine.errors import TopicFull
from braidmq.engine.routing.router import Router
from braidmq.engine.topics import Topic
from braidmq.gateways.batches import copied
from braidmq.gateways.broker import Broker
from braidmq.gateways.gathering import Publisher as Waiting
from braidmq.gateways.gathering import can_gather
from braidmq.gateways.mqtt.counters import Counters
from braidmq.gateways.mqtt.message import FLAG_OWN, Arrival, marked
from braidmq.gateways.mqtt.packet_ids import NO_ANCHOR, Anchor
from braidmq.gateways.mqtt.retained import Retained
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.tree import Plan, Tree, Wants
from braidmq.gateways.translation import TOPIC_EXCHANGE
from braidmq.model.ids import Lsn
from braidmq.storage.record import RecordBatch
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


class Hub:
    def __init__(self, broker: Broker, settings: MqttSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.retained = Retained(broker.engine.store, settings)
        self.trees: dict[str, Tree] = {}
        self.counters = Counters()

    def tree(self, namespace: str) -> Tree:
        tree = self.trees.get(namespace)
        if tree is None:
            tree = self.trees[namespace] = Tree(namespace)
        return tree

    def takes_runs(self, namespace: str, topic: bytes) -> bool:
        """Whether all messages to a topic go the same way."""
        router = self.broker.engine.exchanges.router(namespace)
        plan = self.tree(namespace).plan(topic)
        known = plan.bound_at == router.generation
        return not plan.groups and (known or router.routes_by_key_only(TOPIC_EXCHANGE))

    def pass_on(self, namespace: str, arrival: Arrival, publisher: Session) -> bool:
        """Send QoS 0 that only subscribers get and nobody keeps; False: it takes ``publish``."""
        plan = self.tree(namespace).plan(arrival.topic)
        if arrival.flags & (FLAG_QOS | FLAG_RETAIN) or plan.groups or plan.bound:
            return False
        if plan.bound_at != self.broker.engine.exchanges.router(namespace).generation:
            return False
        self.counters.received += arrival.count
        for session, wants in plan.sessions.items():
            own = wants.local if session is publisher else wants
            if own is not None:
                self.send(arrival, session, own)
        return True

    def relay_for(self, namespace: str, topic: bytes) -> "Relay":
        router = self.broker.engine.exchanges.router(namespace)
        return Relay(self, self.tree(namespace), router, topic)

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
        self.counters.received += arrival.count
        retained_lsn = self._retain(namespace, arrival) if arrival.retain else None
        plan = self.tree(namespace).plan(arrival.topic)
        queues = [] if from_exchange else self._bound_topics(namespace, arrival, plan)
        again: list[tuple[Topic, int]] = []
        found = self._subscribers(plan, publisher)
        for session, wants in found:
            if not min(arrival.qos, wants.qos):
                self.send(arrival, session, wants)
                continue
            topic = session.outbox.topic()
            if wants.is_part:
                again.append((topic, FLAG_OWN))
            elif topic in queues:
                # A session may match for itself and as its group's choice: those are two copies.
                again.append((topic, 0))
            else:
                queues.append(topic)
        if waiting is not None and len(queues) == 1 and not again and not arrival.retain:
            batch = arrival.batch
            if can_gather(queues[0], batch):
                self.broker.gather(queues[0], arrival.qos > 0, batch, waiting)
                return Routed(None, True, True)
        if queues or again:
            self.broker.settle()
        if before_append is not None:
            before_append(_anchor(queues or [topic for topic, _ in again]))
        lsn = self._append(queues, arrival, arrival.batch) if queues else None
        for topic, flag in again:
            batch = marked(arrival.batch, flag) if flag else copied(arrival.batch)
            lsn = self._append([topic], arrival, batch) or lsn
        return Routed(later(retained_lsn, lsn), bool(queues or found))

    def _subscribers(self, plan: Plan, publisher: Session | None) -> list[tuple[Session, Wants]]:
        found: list[tuple[Session, Wants]] = []
        for session, wants in plan.sessions.items():
            own = wants.local if session is publisher else wants
            if own is not None:
                found.append((session, own))
        for group in plan.groups:
            picked = group.pick(self.settings.share_strategy)
            if picked is not None:
                found.append(picked)
        return found

    def send(self, arrival: Arrival, session: Session, wants: Wants) -> None:
        """QoS 0: to who is connected and keeps up, and to nobody else."""
        connection = session.connection
        if connection is None:
            return
        if connection.is_behind():
            self.counters.dropped += arrival.count
            return
        retain = arrival.retain and wants.retain_as_published
        properties = wants.properties if connection.speaks_v5 else b""
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
            connection.send(data)

    def _retain(self, namespace: str, arrival: Arrival) -> Lsn | None:
        record = arrival.batch.record(arrival.count - 1)
        topic = arrival.topic.decode()
        if not record.value:
            return self.retained.forget(namespace, topic)
        return self.retained.keep(namespace, topic, record)

    def _bound_topics(self, namespace: str, arrival: Arrival, plan: Plan) -> list[Topic]:
        """Queues that are bound to the topic exchange: it and the MQTT tree are one space."""
        engine = self.broker.engine
        router = engine.exchanges.router(namespace)
        if plan.bound_at == router.generation:
            return list(plan.bound)
        key = key_of_topic(arrival.topic)
        found: list[Topic] = []
        if arrival.topic[:1] != b"$" and len(key) <= SHORT_STRING_BYTES_MAX:
            route = router.resolve(TOPIC_EXCHANGE, key, lambda: headers_of(arrival.batch.record(0)))
            for name in route.topics:
                topic = engine.core.topics.get((namespace, name))
                if topic is not None and name != BRIDGE:
                    found.append(topic)
        if router.routes_by_key_only(TOPIC_EXCHANGE):
            plan.bound, plan.bound_at = tuple(found), router.generation
        return found

    def _append(self, queues: Sequence[Topic], arrival: Arrival, batch: RecordBatch) -> Lsn | None:
        """At QoS 0 only queues of other protocols get it, and need not keep it on disk."""
        try:
            published = self.broker.engine.fan_out(
                queues, batch, now_ms=arrival.now_ms, durable=arrival.qos > 0
            )
        except TopicFull as error:
            raise MqttError(Reason.QUOTA_EXCEEDED, str(error)) from None
        self.broker.touch()
        return published.lsn


class Relay:
    """The way of QoS 0 from one connection to the subscribers of one topic, while nothing changes:
    bytes that came go out as they are."""

    def __init__(self, hub: Hub, tree: Tree, router: Router, topic: bytes) -> None:
        self.topic = topic
        self._counters = hub.counters
        self._tree = tree
        self._router = router

    def is_open(self, version: int) -> bool:
        plan = self._tree.plan(self.topic)
        return plan.bound_at == self._router.generation and plan.is_plain(version)

    def pass_on(self, data: bytes, count: int) -> None:
        """After ``is_open``: ``data`` are so many messages."""
        self._counters.received += count
        for session in self._tree.plan(self.topic).sessions:
            connection = session.connection
            if connection is None:
                continue
            if connection.is_behind():
                self._counters.dropped += count
            else:
                self._counters.sent += count
                connection.send_at_once(data)


def _anchor(queues: Sequence[Topic]) -> Anchor:
    for topic in queues:
        if topic.journaled and len(topic.partitions) == 1:
            log = topic.partitions[0].log
            return log.id, log.next_offset
    return NO_ANCHOR


def later(first: Lsn | None, second: Lsn | None) -> Lsn | None:
    if first is None or second is None:
        return first if second is None else second
    return max(first, second)
