"""Making, changing and removing topics, templates, subscriptions and consumers."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from braidmq.engine.core import SUBSCRIPTIONS, TEMPLATES, TOPICS, Core, Timer
from braidmq.engine.delivery import DeliveryState
from braidmq.engine.dispatching import Dispatching
from braidmq.engine.effects import ConsumerCancelled, TopicDeleted
from braidmq.engine.errors import (
    BadPartitionCount,
    BadPosition,
    ExclusiveConsumer,
    TopicExists,
    UnknownTemplate,
)
from braidmq.engine.lanes import LaneScheduler
from braidmq.engine.policy import Template, TopicPolicy, choose_template, make_policy, make_template
from braidmq.engine.settling import Settling
from braidmq.engine.topics import (
    Consumer,
    Credit,
    Mode,
    PartitionView,
    Subscription,
    Topic,
    TopicPartition,
)
from braidmq.model.ids import SubscriptionId
from braidmq.storage.offset_set import OffsetSet
from braidmq.storage.partition_log import PartitionLog

Position = int | str
"""An offset, ``earliest``, ``latest``, or ``@`` and a time in ms."""

IN_FLIGHT_MAX = 1000
"""Messages in flight at one consumer unless it says otherwise (catalogue row D7)."""


class Administration:
    def __init__(
        self,
        core: Core,
        settling: Settling,
        dispatching: Dispatching,
        rebuild: Callable[[PartitionView, int], None],
    ) -> None:
        self._core = core
        self._settling = settling
        self._dispatching = dispatching
        self._rebuild = rebuild

    # --- topics ---

    def create_topic(
        self,
        namespace: str,
        name: str,
        settings: dict[str, Any],
        now_ms: int,
        *,
        durable: bool = True,
    ) -> Topic:
        if (namespace, name) in self._core.topics:
            raise TopicExists(f"there is a topic {name!r} in namespace {namespace!r} already")
        policy = self.policy(namespace, name, settings)
        topic = Topic(
            self._core.next_id("topic"),
            namespace,
            name,
            settings,
            policy,
            durable=durable,
            now_ms=now_ms,
        )
        self._add_partitions(topic, policy.partitions)
        self.register(topic)
        self._core.save_topic(topic)
        self._arm_idle(topic, now_ms)
        return topic

    def register(self, topic: Topic) -> None:
        core = self._core
        core.topics[topic.namespace, topic.name] = topic
        core.topics_by_id[topic.id] = topic
        core.seen_id("topic", topic.id)
        for partition in topic.partitions:
            core.partitions[partition.log.id] = partition

    def _add_partitions(self, topic: Topic, count: int) -> None:
        for number in range(len(topic.partitions), count):
            label = f"{topic.namespace}/{topic.name}/{number}"
            log = self._core.store.create_partition(label, durable=topic.durable)
            self.add_partition(topic, log)

    def add_partition(self, topic: Topic, log: PartitionLog) -> TopicPartition:
        partition = TopicPartition(topic, len(topic.partitions), log)
        topic.partitions.append(partition)
        self._core.partitions[log.id] = partition
        return partition

    def delete_topic(self, topic: Topic) -> None:
        """With its records and subscriptions; its consumers are told."""
        core = self._core
        for subscription in list(topic.subscriptions.values()):
            self.delete_subscription(subscription)
        topic.deleted = True
        del core.topics[topic.namespace, topic.name]
        del core.topics_by_id[topic.id]
        if topic.durable:
            core.store.change([(TOPICS, str(topic.id), None)])
        for partition in topic.partitions:
            del core.partitions[partition.log.id]
            core.store.delete_partition(partition.log.id)
        core.effects.append(TopicDeleted(topic))

    def alter_topic(self, topic: Topic, settings: dict[str, Any], now_ms: int) -> None:
        """Replace a topic's own settings. Partitions can be added, never taken away."""
        policy = self.policy(topic.namespace, topic.name, settings)
        if policy.partitions < len(topic.partitions):
            raise BadPartitionCount(
                f"topic {topic.name!r} has {len(topic.partitions)} partitions; "
                f"it can't go back to {policy.partitions}"
            )
        topic.settings = settings
        self._apply_policy(topic, policy, now_ms)
        self._core.save_topic(topic)

    def policy(self, namespace: str, name: str, settings: dict[str, Any]) -> TopicPolicy:
        mine = {key[1]: each for key, each in self._core.templates.items() if key[0] == namespace}
        template = choose_template(mine, name)
        return make_policy(template.settings if template else {}, settings)

    def _apply_policy(self, topic: Topic, policy: TopicPolicy, now_ms: int) -> None:
        lanes_change = (policy.priority, policy.priority_levels) != (
            topic.policy.priority,
            topic.policy.priority_levels,
        )
        before = len(topic.partitions)
        topic.set_policy(policy)
        self._add_partitions(topic, policy.partitions)
        for partition in topic.partitions:
            self.set_wanted(partition)
            if policy.ttl_ms and not partition.head_timer:
                partition.head_timer = self._core.wheel.schedule(
                    now_ms, Timer.HEAD, partition.log.id
                )
        for subscription in topic.subscriptions.values():
            for partition in topic.partitions[before:]:
                self._add_view(subscription, partition, partition.log.start_offset, now_ms)
            if lanes_change:
                for view in subscription.views:
                    self._rebuild(view, now_ms)
            self._core.touch(subscription)
        self._settling.drop_overflow(topic, now_ms)
        for partition in topic.partitions:
            self._settling.release(partition)
        self._arm_idle(topic, now_ms)

    def _arm_idle(self, topic: Topic, now_ms: int) -> None:
        if topic.policy.idle_expires_ms and not topic.idle_timer:
            due = now_ms + topic.policy.idle_expires_ms
            topic.idle_timer = self._core.wheel.schedule(due, Timer.IDLE, topic.id)

    def idle(self, topic: Topic, now_ms: int) -> None:
        """The idle timer fired: delete the topic if nobody used it meanwhile."""
        topic.idle_timer = 0
        limit = topic.policy.idle_expires_ms
        if not limit:
            return
        used = any(subscription.consumers for subscription in topic.subscriptions.values())
        due = (now_ms if used else topic.last_used_ms) + limit
        if due <= now_ms:
            self.delete_topic(topic)
        else:
            topic.idle_timer = self._core.wheel.schedule(due, Timer.IDLE, topic.id)

    # --- templates ---

    def set_template(
        self,
        namespace: str,
        name: str,
        pattern: str,
        settings: dict[str, Any],
        priority: int,
        now_ms: int,
    ) -> Template:
        template = make_template(name, pattern, settings, priority)
        value = msgspec.msgpack.encode(template)
        self._core.store.change([(TEMPLATES, f"{namespace}\0{name}", value)])
        self._core.templates[namespace, name] = template
        self._reapply(namespace, now_ms)
        return template

    def delete_template(self, namespace: str, name: str, now_ms: int) -> None:
        if self._core.templates.pop((namespace, name), None) is None:
            raise UnknownTemplate(f"there is no template {name!r} in namespace {namespace!r}")
        self._core.store.change([(TEMPLATES, f"{namespace}\0{name}", None)])
        self._reapply(namespace, now_ms)

    def _reapply(self, namespace: str, now_ms: int) -> None:
        for topic in [t for t in self._core.topics.values() if t.namespace == namespace]:
            policy = self.policy(namespace, topic.name, topic.settings)
            # A template never takes partitions away.
            if policy.partitions < len(topic.partitions):
                policy = msgspec.structs.replace(policy, partitions=len(topic.partitions))
            if policy != topic.policy:
                self._apply_policy(topic, policy, now_ms)

    # --- subscriptions ---

    def subscribe(
        self,
        topic: Topic,
        name: str,
        now_ms: int,
        *,
        mode: Mode = Mode.SHARED,
        start: Position = "earliest",
        durable: bool = True,
    ) -> Subscription:
        """The subscription of that name, made if there is none."""
        found = topic.subscriptions.get(name)
        if found is not None:
            return found
        subscription = Subscription(
            SubscriptionId(self._core.next_id("subscription")),
            topic,
            name,
            mode,
            durable=durable and topic.durable,
        )
        starts = [self.position(partition.log, start) for partition in topic.partitions]
        self._core.save_subscription(subscription, starts)
        self.register_subscription(subscription)
        for partition, offset in zip(topic.partitions, starts, strict=True):
            self._add_view(subscription, partition, offset, now_ms)
        topic.last_used_ms = now_ms
        return subscription

    def register_subscription(self, subscription: Subscription) -> None:
        self._core.seen_id("subscription", subscription.id)
        self._core.subscriptions[subscription.id] = subscription
        subscription.topic.subscriptions[subscription.name] = subscription

    def _add_view(
        self, subscription: Subscription, partition: TopicPartition, start: int, now_ms: int
    ) -> None:
        store = self._core.store
        if subscription.durable:
            if start:
                store.acknowledge(subscription.id, partition.log.id, [(0, start)])
            settled = store.offsets_of(subscription.id, partition.log.id)
        else:
            settled = OffsetSet(start)
        state = DeliveryState(settled, start, partition.log.next_offset)
        view = self.attach_view(subscription, partition, state, now_ms)
        self._rebuild(view, now_ms)

    def attach_view(
        self,
        subscription: Subscription,
        partition: TopicPartition,
        state: DeliveryState,
        now_ms: int,
    ) -> PartitionView:
        view = PartitionView(self._core.next_id("view"), subscription, partition, state)
        self._core.views[view.id] = view
        subscription.views.append(view)
        partition.views.append(view)
        self.set_wanted(partition)
        self.set_lanes(view, now_ms)
        return view

    def set_lanes(self, view: PartitionView, now_ms: int) -> None:
        policy = view.partition.topic.policy
        view.lanes = None if policy.priority == "none" else LaneScheduler(policy, now_ms)

    def set_wanted(self, partition: TopicPartition) -> None:
        """Tell storage which records a checkpoint need not keep."""
        until_acked = partition.topic.policy.retention.until_acked
        partition.log.acknowledged = (
            tuple(view.state.settled for view in partition.views) if until_acked else ()
        )

    def delete_subscription(self, subscription: Subscription) -> None:
        core = self._core
        for consumer in subscription.consumers:
            core.consumers.pop(consumer.id, None)
            core.effects.append(ConsumerCancelled(consumer))
        subscription.consumers.clear()
        for view in subscription.views:
            del core.views[view.id]
            view.partition.views.remove(view)
            self.set_wanted(view.partition)
        del core.subscriptions[subscription.id]
        del subscription.topic.subscriptions[subscription.name]
        core.dirty.pop(subscription, None)
        if subscription.durable:
            core.store.change([(SUBSCRIPTIONS, str(subscription.id), None)])
            core.store.forget_subscription(subscription.id)
        for view in subscription.views:
            self._settling.release(view.partition)

    def position(self, log: PartitionLog, wanted: Position) -> int:
        """An offset from what a caller may say; clamped to what the log has."""
        if wanted == "earliest":
            return log.start_offset
        if wanted == "latest":
            return log.next_offset
        if isinstance(wanted, int):
            if not 0 <= wanted <= log.next_offset:
                raise BadPosition(
                    f"{log.label}: offset {wanted} is not between 0 and {log.next_offset}"
                )
            return max(wanted, log.start_offset)
        if wanted[:1] == "@" and wanted[1:].isdecimal():
            return log.find_time(int(wanted[1:]))
        raise BadPosition(
            f"{wanted!r} is no position",
            remedy="Say an offset, 'earliest', 'latest', or '@' and a time in milliseconds",
        )

    # --- consumers ---

    def attach(
        self,
        subscription: Subscription,
        now_ms: int,
        *,
        credits: Sequence[Credit] | None = None,
        priority: int = 0,
        auto_ack: bool = False,
        exclusive: bool = False,
        visibility_ms: int | None = None,
        tag: object = None,
    ) -> Consumer:
        if subscription.consumers and (exclusive or subscription.mode is Mode.EXCLUSIVE):
            raise ExclusiveConsumer(
                f"subscription {subscription.name!r} of topic {subscription.topic.name!r} "
                f"has a consumer already"
            )
        if exclusive:
            subscription.mode = Mode.EXCLUSIVE
        if visibility_ms is None:
            visibility_ms = subscription.topic.policy.visibility_ms
        consumer = Consumer(
            self._core.next_id("consumer"),
            subscription,
            tuple(credits) if credits is not None else (Credit(IN_FLIGHT_MAX),),
            priority=priority,
            auto_ack=auto_ack,
            visibility_ms=visibility_ms,
            tag=tag,
        )
        self._core.consumers[consumer.id] = consumer
        subscription.consumers.append(consumer)
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._core.touch(subscription)
        return consumer

    def detach(self, consumer: Consumer, now_ms: int, *, requeue: bool = True) -> None:
        """A consumer is gone; what it had becomes ready again, unless it is kept for its owner
        (a cancelled AMQP consumer may still acknowledge: ``requeue=False``)."""
        subscription = consumer.subscription
        if consumer in subscription.consumers:
            subscription.consumers.remove(consumer)
            if subscription.mode is Mode.EXCLUSIVE and not subscription.consumers:
                subscription.mode = Mode.SHARED
            numbers = [n for n, owner in subscription.assignment.items() if owner is consumer]
            for number in numbers:
                del subscription.assignment[number]
        if requeue:
            self._core.consumers.pop(consumer.id, None)
            if subscription.keys is not None:
                subscription.keys.gone(consumer)
            self._settling.disconnect(consumer, now_ms)
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._core.touch(subscription)
