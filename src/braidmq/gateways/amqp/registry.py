"""What ties queues to connections: exclusive owners, auto-delete, and who to tell when one goes."""

from typing import TYPE_CHECKING

from braidmq.engine.effects import (
    ConsumerCancelled,
    ConsumerFailed,
    DeliveriesTimedOut,
    Effect,
    MemberNotice,
)
from braidmq.engine.topics import Topic
from braidmq.gateways.amqp.consumers import AmqpConsumer
from braidmq.gateways.amqp.queues import SUBSCRIPTION
from braidmq.runtime.node_loop import NodeLoop

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection


class Registry:
    def __init__(self, node_loop: NodeLoop) -> None:
        self._node_loop = node_loop
        self._owners: dict[tuple[str, str], AmqpConnection] = {}
        self._owned: dict[AmqpConnection, set[str]] = {}
        node_loop.listeners.append(self._on_effect)

    def own(self, connection: "AmqpConnection", queue: str) -> None:
        self._owners[connection.vhost, queue] = connection
        self._owned.setdefault(connection, set()).add(queue)

    def owner(self, vhost: str, queue: str) -> "AmqpConnection | None":
        return self._owners.get((vhost, queue))

    def disown(self, vhost: str, queue: str) -> None:
        connection = self._owners.pop((vhost, queue), None)
        if connection is not None:
            self._owned.get(connection, set()).discard(queue)

    def forget_connection(self, connection: "AmqpConnection") -> None:
        """Exclusive queues go with their connection."""
        engine = self._node_loop.engine()
        for queue in self._owned.pop(connection, set()):
            self._owners.pop((connection.vhost, queue), None)
            topic = engine.state.topics.get((connection.vhost, queue))
            if topic is not None:
                engine.topics.delete(topic)

    def consumer_gone(self, vhost: str, queue: str) -> None:
        """An auto-delete queue goes with its last consumer, but not one that damage drove away."""
        engine = self._node_loop.engine()
        topic = engine.state.topics.get((vhost, queue))
        if topic is None or not is_auto_delete(topic) or topic.quarantined:
            return
        subscription = topic.subscriptions.get(SUBSCRIPTION)
        if subscription is not None and not subscription.consumers:
            self.disown(vhost, queue)
            engine.topics.delete(topic)

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, MemberNotice):
            for consumer in effect.consumers:
                receiver = consumer.receiver
                if isinstance(receiver, AmqpConsumer):
                    receiver.consumers.notify(receiver, effect.group, effect.membership)
        if not isinstance(effect, ConsumerCancelled | ConsumerFailed | DeliveriesTimedOut):
            return
        target = effect.consumer.receiver
        if not isinstance(target, AmqpConsumer):
            return
        if isinstance(effect, DeliveriesTimedOut):
            target.consumers.timed_out(target, effect)
        elif isinstance(effect, ConsumerFailed):
            target.consumers.failed(target, effect.error)
        else:
            target.consumers.cancelled(target)


def is_auto_delete(topic: Topic) -> bool:
    return bool(topic.attributes.get("amqp", {}).get("auto_delete"))
