"""From the topic exchange to MQTT subscribers.

The exchange ``amq.topic`` and the tree of MQTT topics are one space. Each namespace with MQTT
subscriptions has one queue, bound to the exchange with the pattern of each filter; what comes there
over another protocol is published to the subscribers as if it had come over MQTT. The queue is
durable, so that a message that was confirmed to its publisher reaches persistent sessions after a
crash, too.
"""

from braidmq.engine.policy import QUEUE_SETTINGS
from braidmq.engine.routing.bindings import topic as to_topic
from braidmq.engine.topics import Delivery
from braidmq.gateways.mqtt.message import Arrival, batch_of
from braidmq.gateways.mqtt.own_queue import OwnQueue
from braidmq.gateways.mqtt.router import BRIDGE, MqttRouter
from braidmq.gateways.translation import (
    MQTT_QOS_OF_OTHERS,
    TOPIC_EXCHANGE,
    mqtt_record,
    pattern_of_filter,
)
from braidmq.runtime.node_loop import NodeLoop
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.text import split_share

SUBSCRIPTION = "bridge"


class Bridge(OwnQueue):
    """The queue of one namespace, and its consumer."""

    def __init__(self, node_loop: NodeLoop, router: MqttRouter, namespace: str) -> None:
        super().__init__(node_loop, namespace, BRIDGE, SUBSCRIPTION, QUEUE_SETTINGS)
        self._router = router
        self._wanted: dict[bytes, int] = {}
        """Binding keys, and how many subscriptions want each."""

    @property
    def is_unused(self) -> bool:
        return not self._wanted

    def want(self, key: bytes) -> None:
        self._wanted[key] = self._wanted.get(key, 0) + 1
        if self._wanted[key] == 1:
            self._bind(key)

    def forget(self, key: bytes) -> None:
        self._wanted[key] -= 1
        if self._wanted[key]:
            return
        del self._wanted[key]
        self._node_loop.engine().exchanges.unbind(
            self._namespace, TOPIC_EXCHANGE, to_topic(BRIDGE), key
        )
        if self.is_unused:
            self.delete()

    def cancelled(self) -> None:
        """The queue was deleted by somebody else, and its bindings with it."""
        if self._wanted and not self.exists:
            for key in self._wanted:
                self._bind(key)

    def _bind(self, key: bytes) -> None:
        topic = self.open()
        self._node_loop.engine().exchanges.bind(
            self._namespace, TOPIC_EXCHANGE, to_topic(topic.name), key, durable=False
        )

    def hand_on(self, delivery: Delivery, index: int) -> None:
        topic, record = mqtt_record(delivery.batch.record(index), BRIDGE)
        now_ms = self._node_loop.now_ms()
        arrival = Arrival.of_batch(topic, MQTT_QOS_OF_OTHERS, batch_of(record), now_ms)
        try:
            self._router.publish(self._namespace, arrival, from_exchange=True)
        except MqttError:
            self._router.counters.dropped += 1  # nobody would be helped by trying it again


class Bridges:
    def __init__(self, node_loop: NodeLoop, router: MqttRouter) -> None:
        self._node_loop = node_loop
        self._router = router
        self._bridges: dict[str, Bridge] = {}

    def want(self, namespace: str, pattern: str) -> None:
        key = _binding_key(pattern)
        if key is None:
            return
        bridge = self._bridges.get(namespace)
        if bridge is None:
            bridge = self._bridges[namespace] = Bridge(self._node_loop, self._router, namespace)
        bridge.want(key)

    def forget(self, namespace: str, pattern: str) -> None:
        key = _binding_key(pattern)
        if key is not None:
            self._bridges[namespace].forget(key)
            if self._bridges[namespace].is_unused:
                del self._bridges[namespace]

    def restored(self) -> None:
        """Queues of a former run that nobody subscribes through any more."""
        for topic in self._node_loop.view.state.topics_of():
            if topic.name == BRIDGE and topic.namespace not in self._bridges:
                self._node_loop.engine().topics.delete(topic)


def _binding_key(pattern: str) -> bytes | None:
    """None for filters that no message of an exchange can match."""
    shared = split_share(pattern)
    key = pattern_of_filter((shared.filter if shared is not None else pattern).encode())
    return None if key[:1] == b"$" or len(key) > SHORT_STRING_BYTES_MAX else key
