"""A queue of a namespace that is the gateway's own, and its one consumer."""

from typing import Any

from braidmq.engine.topics import Consumer, Credit, Delivery, Topic
from braidmq.runtime.node_loop import NodeLoop

IN_FLIGHT_MAX = 4096


class OwnQueue:
    def __init__(
        self,
        node_loop: NodeLoop,
        namespace: str,
        name: str,
        subscription: str,
        settings: dict[str, Any],
    ) -> None:
        self._node_loop = node_loop
        self._namespace = namespace
        self._name = name
        self._subscription = subscription
        self._settings = settings
        self._consumer: Consumer | None = None

    @property
    def exists(self) -> bool:
        return (self._namespace, self._name) in self._node_loop.view.state.topics

    def open(self) -> Topic:
        """The queue, made if there is none, with us as its consumer."""
        now_ms = self._node_loop.now_ms()
        topic = self._node_loop.view.state.topics.get((self._namespace, self._name))
        if topic is None:
            topic = self._node_loop.engine().topics.create(
                self._namespace, self._name, self._settings, now_ms=now_ms
            )
        if self._subscription not in topic.subscriptions:
            self._node_loop.engine().subscriptions.subscribe(
                topic, self._subscription, now_ms=now_ms
            )
        subscription = topic.subscriptions[self._subscription]
        if self._consumer is None or self._consumer.subscription is not subscription:
            self._consumer = self._node_loop.engine().consumers.attach(
                subscription,
                now_ms=now_ms,
                credits=[Credit(IN_FLIGHT_MAX)],
                visibility_ms=0,
                receiver=self,
            )
        return topic

    def replace(self, settings: dict[str, Any]) -> None:
        """Of the queue that is there, and of those that are made from now on."""
        self._settings = settings
        topic = self._node_loop.view.state.topics.get((self._namespace, self._name))
        if topic is not None:
            now_ms = self._node_loop.now_ms()
            self._node_loop.engine().topics.alter(topic, settings, now_ms=now_ms)

    def delete(self) -> None:
        self._node_loop.engine().topics.delete(self.open())
        self._consumer = None

    def cancelled(self) -> None:
        """The queue was deleted by somebody else."""
        self._consumer = None

    def deliver(self, delivery: Delivery) -> None:
        """Publish first and acknowledge then: the journal has them in this order, too."""
        for index in range(delivery.first_index, delivery.stop_index):
            self.hand_on(delivery, index)
        self._node_loop.engine().settling.ack(
            delivery.consumer, delivery.view, delivery.start_offset, delivery.end_offset
        )

    def hand_on(self, delivery: Delivery, index: int) -> None:
        raise NotImplementedError
