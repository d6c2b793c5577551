"""Making, changing and removing topics, templates, subscriptions and consumers."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.dispatching import Dispatching
from braidmq.engine.effects import ConsumerCancelled, ConsumerFailed, TopicDeleted
from braidmq.engine.errors import (
    BadPartitionCount,
    BadPosition,
    ExclusiveConsumer,
    TopicExists,
    UnknownSubscription,
    UnknownTemplate,
    UnknownTopic,
)
from braidmq.engine.lanes import LaneScheduler
from braidmq.engine.policy import (
    IllegalPolicy,
    Template,
    TopicKind,
    TopicPolicy,
    check_template,
    choose_template,
    layered,
    make_policy,
)
from braidmq.engine.references import SET_BY, References, names_target
from braidmq.engine.settling import Settling
from braidmq.engine.state import SUBSCRIPTIONS, TEMPLATES, TOPICS, EngineState, TimerKind
from braidmq.engine.states import Event
from braidmq.engine.topics import (
    QUEUE_SUBSCRIPTION,
    Consumer,
    Credit,
    Mode,
    PartitionView,
    Subscription,
    Topic,
    TopicPartition,
)
from braidmq.model.ids import SubscriptionId
from braidmq.record.offset_set import OffsetSet
from braidmq.storage.catalogue import PARTITIONS
from braidmq.storage.partition_log import PartitionLog

logger = logging.getLogger(__name__)

Position = int | str
"""An offset, ``earliest``, ``latest``, or ``@`` and a time in ms."""

TIME_MAX_MS = (1 << 63) - 1
FIRST_COMPACTION_MS = 5 * 60 * 1000
"""After a topic is made or the node starts, however long its interval."""
SHARED_POLICIES_MAX = 1024

ROOT_NAMESPACE = "/"
RECOVERED = ".recovered"
"""After the name of a topic when there is another of that name."""

IN_FLIGHT_MAX = 1000
"""Messages in flight at one consumer unless it says otherwise (catalogue row D7)."""


class Administration:
    references: References

    def __init__(
        self,
        state: EngineState,
        settling: Settling,
        dispatching: Dispatching,
        rebuild: Callable[[PartitionView, int], None],
    ) -> None:
        self._state = state
        self._settling = settling
        self._dispatching = dispatching
        self._rebuild = rebuild
        self._shared: dict[TopicPolicy, TopicPolicy] = {}
        """Thousands of topics are alike: they share one policy."""
        self.on_policy: Callable[[Topic], None] = lambda topic: None
        self.on_resized: Callable[[Topic, int], None] = lambda topic, now_ms: None
        """A topic has more partitions than before."""
        self.on_deleted: Callable[[Topic], None] = lambda topic: None

    # --- topics ---

    def create_topic(
        self,
        namespace: str,
        name: str,
        settings: dict[str, Any],
        now_ms: int,
        *,
        durable: bool = True,
        kind: TopicKind = "topic",
        attributes: dict[str, Any] | None = None,
        set_by: str = "",
    ) -> Topic:
        if (namespace, name) in self._state.topics:
            raise TopicExists(f"there is a topic {name!r} in namespace {namespace!r} already")
        policy = self.policy(namespace, name, settings, kind)
        if set_by and names_target(settings):
            self.references.require_target(set_by, namespace, name, policy)
            attributes = {**(attributes or {}), SET_BY: set_by}
        topic = Topic(
            self._state.next_id("topic"),
            namespace,
            name,
            settings,
            policy,
            durable=durable,
            now_ms=now_ms,
            kind=kind,
            attributes=attributes,
        )
        self._add_partitions(topic, policy.partitions)
        self.register(topic)
        self.references.judge(topic)
        self._state.save_topic(topic)
        self.arm_idle(topic, now_ms)
        self.arm_compaction(topic, now_ms)
        _log_topic("topic created", topic)
        return topic

    def register(self, topic: Topic) -> None:
        state = self._state
        state.topics[topic.namespace, topic.name] = topic
        state.topics_by_id[topic.id] = topic
        state.seen_id("topic", topic.id)
        for partition in topic.partitions:
            state.partitions[partition.log.id] = partition

    def _add_partitions(self, topic: Topic, count: int) -> None:
        for number in range(len(topic.partitions), count):
            label = f"{topic.namespace}/{topic.name}/{number}"
            log = self._state.store.create_partition(label, durable=topic.durable)
            self.add_partition(topic, log)

    def add_partition(self, topic: Topic, log: PartitionLog) -> TopicPartition:
        partition = TopicPartition(topic, len(topic.partitions), log, self._state.clock)
        topic.partitions.append(partition)
        self._state.partitions[log.id] = partition
        if log.damage is not None:
            topic.look_at_quarantine()
        return partition

    def delete_topic(self, topic: Topic) -> None:
        """With its records and subscriptions; its consumers are told."""
        self.require(topic)
        self.hide(topic)
        self.remove(topic)

    def hide(self, topic: Topic) -> None:
        """Nobody finds it any more, and its name is free."""
        topic.deleted = True
        topics, key = self._state.topics, (topic.namespace, topic.name)
        if topics.get(key) is topic:
            del topics[key]

    def remove(self, topic: Topic) -> None:
        """What there is of a hidden one."""
        state = self._state
        if topic.durable:
            subscriptions = [each for each in topic.subscriptions.values() if each.durable]
            # One step: a crash never leaves a topic without some of its partitions.
            state.store.change(
                [
                    *((SUBSCRIPTIONS, str(each.id), None) for each in subscriptions),
                    (TOPICS, str(topic.id), None),
                    *((PARTITIONS, str(each.log.id), None) for each in topic.partitions),
                ]
            )
        holders = self._consumers_by_subscription(topic)
        for partition in topic.partitions:
            # At once: taking thousands out one by one takes longer with each.
            partition.views.clear()
            self.set_wanted(partition)
        for subscription in list(topic.subscriptions.values()):
            self._forget(subscription, holders.get(subscription.id, []))
        del state.topics_by_id[topic.id]
        for partition in topic.partitions:
            del state.partitions[partition.log.id]
            if not topic.durable:
                state.store.delete_partition(partition.log.id)
        state.totals.keep_topic(topic)
        state.effects.append(TopicDeleted(topic))
        self.on_deleted(topic)
        _log_topic("topic deleted", topic)

    def require(self, topic: Topic) -> None:
        """Callers may hold on to a topic that is gone."""
        if topic.deleted:
            raise UnknownTopic(f"topic {topic.name!r} of namespace {topic.namespace!r} is deleted")

    def require_subscription(self, subscription: Subscription) -> None:
        if self._state.subscriptions.get(subscription.id) is not subscription:
            raise UnknownSubscription(
                f"subscription {subscription.name!r} of {subscription.topic.name!r} is deleted"
            )

    def drop_orphans(self) -> None:
        """Partitions whose topic a crash kept from being made, or from learning of them: nobody
        can have published to them. One that has records is not such."""
        store = self._state.store
        for number in [each for each in store.logs if each not in self._state.partitions]:
            log = store.logs[number]
            if log.next_offset or log.segments:
                logger.error("partition without a topic", extra={"partition": log.label})
            else:
                store.delete_partition(number)

    def adopt_orphans(self, now_ms: int) -> None:
        """Make topics of partitions that have records and whose topics nobody knows any more: by
        their labels, with a subscription that has everything, and nothing goes before that has."""
        store = self._state.store
        found: dict[tuple[str, str], dict[int, PartitionLog]] = {}
        for number in [each for each in store.logs if each not in self._state.partitions]:
            namespace, name, place = split_label(store.logs[number].label)
            if (namespace, name) in self._state.topics:
                name += RECOVERED
            found.setdefault((namespace, name), {})[place] = store.logs[number]
        for (namespace, name), logs in found.items():
            self._adopt(namespace, name, logs, now_ms)

    def _adopt(self, namespace: str, name: str, logs: dict[int, PartitionLog], now_ms: int) -> None:
        count = max(logs) + 1
        settings = {"partitions": count, "retention": {"until_acked": True}}
        policy = self.policy(namespace, name, settings)
        topic = Topic(
            self._state.next_id("topic"),
            namespace,
            name,
            settings,
            policy,
            durable=True,
            now_ms=now_ms,
        )
        for place in range(count):
            log = logs.get(place)
            if log is None:
                log = self._state.store.create_partition(f"{namespace}/{name}/{place}")
            self.add_partition(topic, log)
        self.register(topic)
        self._state.save_topic(topic)
        self.subscribe(topic, QUEUE_SUBSCRIPTION, now_ms)
        _log_topic("topic recovered", topic)

    def alter_topic(
        self, topic: Topic, settings: dict[str, Any], now_ms: int, set_by: str | None = None
    ) -> None:
        """Replace a topic's own settings. Partitions can be added, never taken away."""
        self.require(topic)
        policy = self.policy(topic.namespace, topic.name, settings, topic.kind)
        if policy.partitions < len(topic.partitions):
            raise BadPartitionCount(
                f"topic {topic.name!r} has {len(topic.partitions)} partitions; "
                f"it can't go back to {policy.partitions}"
            )
        if set_by is not None:
            if set_by:
                self.references.require_target(set_by, topic.namespace, topic.name, policy)
            topic.attributes[SET_BY] = set_by
        topic.settings = settings
        self._apply_policy(topic, policy, now_ms)

    def policy(
        self, namespace: str, name: str, settings: dict[str, Any], kind: TopicKind = "topic"
    ) -> TopicPolicy:
        return self._policy_under(self._templates(namespace), name, settings, kind)

    def _templates(self, namespace: str) -> dict[str, Template]:
        return {key[1]: each for key, each in self._state.templates.items() if key[0] == namespace}

    def _policy_under(
        self, templates: dict[str, Template], name: str, settings: dict[str, Any], kind: TopicKind
    ) -> TopicPolicy:
        template = choose_template(templates.values(), name, kind)
        policy = make_policy(layered(kind, template.settings if template else {}, settings))
        if len(self._shared) >= SHARED_POLICIES_MAX:
            self._shared.clear()
        return self._shared.setdefault(policy, policy)

    def _apply_policy(self, topic: Topic, policy: TopicPolicy, now_ms: int) -> None:
        old = topic.policy
        lanes_change = (policy.priority, policy.priority_levels, policy.starvation_ms) != (
            old.priority,
            old.priority_levels,
            old.starvation_ms,
        )
        before = len(topic.partitions)
        topic.set_policy(policy)
        self.references.judge(topic)
        self.on_policy(topic)
        self._add_partitions(topic, policy.partitions)
        self._state.save_topic(topic)
        for partition in topic.partitions:
            self.set_wanted(partition)
            if old.retention.until_acked:
                # Settled records that no flush has written are in memory only: gone, from now on.
                partition.log.evict()
            if policy.ttl_ms != old.ttl_ms:
                self.arm_head(partition, now_ms, changed=True)
        for subscription in topic.subscriptions.values():
            for partition in topic.partitions[before:]:
                self._add_view(subscription, partition, partition.log.start_offset, now_ms)
            if lanes_change:
                for view in subscription.views:
                    self._settling.finish_burials(view)
                    self._rebuild(view, now_ms)
            self._state.mark_dirty(subscription)
        if policy.max_messages is not None or policy.max_bytes is not None:
            self._settling.drop_overflow(topic, now_ms)
        for partition in topic.partitions:
            self._settling.release(partition)
        if policy.idle_expires_ms != old.idle_expires_ms:
            self._state.wheel.cancel(topic.idle_timer)
            topic.idle_timer = 0
            self.arm_idle(topic, now_ms)
        if policy.compaction != old.compaction:
            self._state.wheel.cancel(topic.compaction_timer)
            topic.compaction_timer = 0
            self.arm_compaction(topic, now_ms)
        if len(topic.partitions) > before:
            self.on_resized(topic, now_ms)

    def arm_head(self, partition: TopicPartition, now_ms: int, *, changed: bool = False) -> None:
        """Look at once for what outlived the topic's TTL, which may have changed; from then on it
        is looked after."""
        self._state.wheel.cancel(partition.head_timer)
        partition.head_timer = 0
        if partition.topic.policy.ttl_ms:
            partition.head_timer = self._state.wheel.schedule(
                now_ms, TimerKind.HEAD, partition.log.id, changed
            )

    def arm_idle(self, topic: Topic, now_ms: int) -> None:
        if topic.policy.idle_expires_ms and not topic.idle_timer:
            due = now_ms + topic.policy.idle_expires_ms
            topic.idle_timer = self._state.wheel.schedule(due, TimerKind.IDLE, topic.id)

    def arm_compaction(self, topic: Topic, now_ms: int) -> None:
        """The first time soon: a node that starts often is to compact at all."""
        rule = topic.policy.compaction
        if rule.enabled and not topic.compaction_timer:
            due = now_ms + min(rule.period_ms, FIRST_COMPACTION_MS)
            topic.compaction_timer = self._state.wheel.schedule(due, TimerKind.COMPACTION, topic.id)

    def idle(self, topic: Topic, now_ms: int) -> None:
        """The idle timer fired: delete the topic if nobody used it meanwhile."""
        topic.idle_timer = 0
        limit = topic.policy.idle_expires_ms
        if not limit or topic.deleted:
            return
        used = any(subscription.consumers for subscription in topic.subscriptions.values())
        # Nobody can use what is quarantined: that is no reason to delete it.
        used = used or topic.quarantined > 0
        due = (now_ms if used else topic.last_used_ms) + limit
        if due <= now_ms:
            self.delete_topic(topic)
        else:
            topic.idle_timer = self._state.wheel.schedule(due, TimerKind.IDLE, topic.id)

    # --- templates ---

    def set_template(self, namespace: str, template: Template, now_ms: int) -> Iterator[None]:
        """In steps of a topic each: first whether all of them can follow, and only then they do.
        Who is made meanwhile, or after a crash, has it from the moment it is kept."""
        check_template(template)
        name = template.name
        yield from self._check_policies(namespace, name, template)
        value = msgspec.msgpack.encode(template)
        self._state.store.change([(TEMPLATES, f"{namespace}\0{name}", value)])
        self._state.templates[namespace, name] = template
        yield from self._reapply(namespace, now_ms)

    def delete_template(self, namespace: str, name: str, now_ms: int) -> Iterator[None]:
        if name not in self._templates(namespace):
            raise UnknownTemplate(f"there is no template {name!r} in namespace {namespace!r}")
        yield from self._check_policies(namespace, name, None)
        self._state.store.change([(TEMPLATES, f"{namespace}\0{name}", None)])
        self._state.templates.pop((namespace, name), None)
        yield from self._reapply(namespace, now_ms)

    def _topics_of(self, namespace: str) -> list[Topic]:
        return [each for each in self._state.topics.values() if each.namespace == namespace]

    def _check_policies(
        self, namespace: str, name: str, template: Template | None
    ) -> Iterator[None]:
        """Raises before anything is changed."""
        templates = self._templates(namespace)
        templates.pop(name, None)
        if template is not None:
            templates[name] = template
        names = False
        if template is not None and template.set_by:
            self.references.require_template(namespace, template)
            names = names_target(template.settings)
        for topic in self._topics_of(namespace):
            policy = self._policy_for(topic, templates)
            if names and template is not None and template.matches(topic.name, topic.kind):
                self.references.require_target(template.set_by, namespace, topic.name, policy)
            yield

    def _policy_for(self, topic: Topic, templates: dict[str, Template]) -> TopicPolicy:
        policy = self._policy_under(templates, topic.name, topic.settings, topic.kind)
        # A template never takes partitions away.
        if policy.partitions < len(topic.partitions):
            policy = make_policy(msgspec.to_builtins(policy), {"partitions": len(topic.partitions)})
        return policy

    def _reapply(self, namespace: str, now_ms: int) -> Iterator[None]:
        for topic in self._topics_of(namespace):
            if not topic.deleted:
                # Others may have changed templates since the last step, or this topic.
                self._follow_templates(topic, max(now_ms, self._state.wheel.now_ms))
            yield

    def _follow_templates(self, topic: Topic, now_ms: int) -> None:
        try:
            policy = self._policy_for(topic, self._templates(topic.namespace))
        except IllegalPolicy:
            logger.exception("a topic keeps its policy: what templates want of it is illegal")
            return
        if policy != topic.policy:
            self._apply_policy(topic, policy, now_ms)
        else:
            # It may be another's who names the same target now.
            self.references.judge(topic)

    def alternate_exchange(self, namespace: str, exchange: str) -> tuple[str, str] | None:
        """What a template gives an exchange that has no alternate of its own, and whose it is."""
        template = choose_template(self._templates(namespace).values(), exchange, "exchange")
        if template is None or template.alternate_exchange is None:
            return None
        return template.alternate_exchange, template.set_by

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
        uncommitted: bool = False,
    ) -> Subscription:
        """The subscription of that name, made if there is none."""
        self.require(topic)
        found = topic.subscriptions.get(name)
        if found is not None:
            return found
        subscription = Subscription(
            SubscriptionId(self._state.next_id("subscription")),
            topic,
            name,
            mode,
            durable=durable and topic.durable,
            uncommitted=uncommitted,
        )
        starts = [self.position(partition.log, start) for partition in topic.partitions]
        self.register_subscription(subscription)
        for partition, offset in zip(topic.partitions, starts, strict=True):
            self._add_view(subscription, partition, offset, now_ms)
        # After its offsets: without them a crash would let it begin at the beginning.
        self._state.save_subscription(subscription, starts)
        topic.last_used_ms = now_ms
        return subscription

    def register_subscription(self, subscription: Subscription) -> None:
        self._state.seen_id("subscription", subscription.id)
        self._state.subscriptions[subscription.id] = subscription
        subscription.topic.subscriptions[subscription.name] = subscription

    def _add_view(
        self, subscription: Subscription, partition: TopicPartition, start: int, now_ms: int
    ) -> None:
        store = self._state.store
        if subscription.durable:
            if start:
                store.acknowledge(subscription.id, partition.log.id, [(0, start)])
            settled = store.offsets_of(subscription.id, partition.log.id)
        else:
            settled = OffsetSet(start)
        self.settle_cancelled(subscription, partition, settled)
        cursor = max(start, settled.floor)
        end = partition.log.next_offset if subscription.uncommitted else partition.stable_offset
        state = DeliveryState(settled, cursor, max(cursor, end))
        view = self.attach_view(subscription, partition, state, now_ms)
        self._rebuild(view, now_ms)
        if not partition.head_timer:
            self.arm_head(partition, now_ms)

    def settle_cancelled(
        self,
        subscription: Subscription,
        partition: TopicPartition,
        settled: OffsetSet,
        *,
        journaled: bool = True,
    ) -> None:
        """What was cancelled is delivered to nobody, whenever they come."""
        store, cancelled = self._state.store, self._state.cancelled(partition)
        if cancelled is None:
            return
        ranges = [
            (max(start, settled.floor), stop)
            for start, stop in [(0, cancelled.floor), *cancelled.ranges_above_floor()]
            if stop > settled.floor
        ]
        if ranges and journaled and subscription.durable:
            store.acknowledge(subscription.id, partition.log.id, ranges)
        for start, stop in ranges:
            settled.add(start, stop)

    def attach_view(
        self,
        subscription: Subscription,
        partition: TopicPartition,
        state: DeliveryState,
        now_ms: int,
    ) -> PartitionView:
        view = PartitionView(self._state.next_id("view"), subscription, partition, state)
        self._state.views[view.id] = view
        subscription.views.append(view)
        partition.views.append(view)
        if partition.topic.until_acked:
            # The others stand there already, and may be thousands.
            partition.log.acknowledged += (state.settled,)
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
        self.require_subscription(subscription)
        if subscription.durable:
            self._state.store.change([(SUBSCRIPTIONS, str(subscription.id), None)])
        self._forget(
            subscription,
            [c for c in self._state.consumers.values() if c.subscription is subscription],
        )
        for view in subscription.views:
            view.partition.views.remove(view)
            self.set_wanted(view.partition)
            self._settling.release(view.partition)

    def _consumers_by_subscription(self, topic: Topic) -> dict[int, list[Consumer]]:
        found: dict[int, list[Consumer]] = {}
        for consumer in self._state.consumers.values():
            if consumer.subscription.topic is topic:
                found.setdefault(consumer.subscription.id, []).append(consumer)
        return found

    def _forget(self, subscription: Subscription, holders: Sequence[Consumer]) -> None:
        """``holders``: all its consumers, also those that were cancelled."""
        state = self._state
        state.mark_dirty(subscription)  # whoever watches it learns that it is gone
        state.effects += [ConsumerCancelled(each) for each in subscription.consumers]
        # Cancelled ones may still have messages, and share their credit with others.
        for consumer in holders:
            del state.consumers[consumer.id]
            for view in subscription.views:
                _, count, size = view.state.apply(Event.ACK, 0, view.state.end, consumer.id)
                self._settling.give_back(consumer, count, size)
        subscription.consumers.clear()
        subscription.assignment.clear()
        for view in subscription.views:
            del state.views[view.id]
        del state.subscriptions[subscription.id]
        state.totals.keep_subscription(subscription)
        del subscription.topic.subscriptions[subscription.name]
        state.dirty.pop(subscription, None)
        state.crowded.pop(subscription, None)
        if subscription.durable:
            for view in subscription.views:
                state.store.forget_offsets(subscription.id, view.partition_id)

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
            return log.find_time(min(int(wanted[1:]), TIME_MAX_MS))
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
        passive: bool = False,
        tag: object = None,
    ) -> Consumer:
        self.require_subscription(subscription)
        alone = exclusive or subscription.exclusive or subscription.mode is Mode.EXCLUSIVE
        if subscription.consumers and alone and not passive:
            raise ExclusiveConsumer(
                f"subscription {subscription.name!r} of topic {subscription.topic.name!r} "
                f"has a consumer already"
            )
        if not passive:
            subscription.exclusive = exclusive
        if visibility_ms is None:
            visibility_ms = subscription.topic.policy.visibility_ms
        consumer = Consumer(
            self._state.next_id("consumer"),
            subscription,
            tuple(credits) if credits is not None else (Credit(IN_FLIGHT_MAX),),
            priority=priority,
            auto_ack=auto_ack,
            visibility_ms=visibility_ms,
            passive=passive,
            tag=tag,
        )
        self._state.consumers[consumer.id] = consumer
        if passive:
            return consumer
        subscription.consumers[consumer] = None
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._state.mark_dirty(subscription)
        if subscription.topic.is_quarantined:
            error = subscription.topic.partitions[0].log.quarantined()
            self._state.effects.append(ConsumerFailed(consumer, error))
        return consumer

    def detach(self, consumer: Consumer, now_ms: int, *, requeue: bool = True) -> None:
        """A consumer is gone; what it had becomes ready again, unless it is kept for its owner
        (a cancelled AMQP consumer may still acknowledge: ``requeue=False``)."""
        subscription = consumer.subscription
        if consumer in subscription.consumers:
            del subscription.consumers[consumer]
            subscription.exclusive = False
            # It may keep what it has, but gets no more, not even of a key that is still its own.
            consumer.paused = True
            numbers = [n for n, owner in subscription.assignment.items() if owner is consumer]
            for number in numbers:
                del subscription.assignment[number]
        if requeue:
            self._state.consumers.pop(consumer.id, None)
            if subscription.keys is not None:
                subscription.keys.gone(consumer)
            self._settling.disconnect(consumer, now_ms)
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._state.mark_dirty(subscription)


def split_label(label: str) -> tuple[str, str, int]:
    """Namespace, topic and number of a partition. Names may have slashes of their own: a namespace
    ends at the first one that it does not begin with."""
    rest, _, number = label.rpartition("/")
    if not number.isdecimal():
        return ROOT_NAMESPACE, label, 0
    if rest.startswith(f"{ROOT_NAMESPACE}/"):
        return ROOT_NAMESPACE, rest[2:], int(number)
    cut = rest.find("/", 1)
    if cut < 0:
        return ROOT_NAMESPACE, rest, int(number)
    return rest[:cut], rest[cut + 1 :], int(number)


def _log_topic(what: str, topic: Topic) -> None:
    # Those that are not durable come and go with connections: no news to most.
    level = logging.INFO if topic.durable else logging.DEBUG
    facts = {"topic": topic.name, "namespace": topic.namespace}
    logger.log(level, what, extra=facts)
