"""Making, changing and removing topics."""

import logging
from typing import Any

import msgspec

from braidmq.engine.barriers import raise_barriers
from braidmq.engine.effects import TopicDeleted
from braidmq.engine.errors import StorageIsFixed, TopicExists
from braidmq.engine.hooks import Hooks
from braidmq.engine.makers import SetBy, name_of
from braidmq.engine.policy import (
    IllegalPolicy,
    Template,
    TopicKind,
    TopicPolicy,
    choose_template,
    layered,
    make_policy,
    make_whole_policy,
)
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.records import TopicRecord
from braidmq.engine.references import SET_BY, References, names_target
from braidmq.engine.resizing import Resizing
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import STAGING, TOPICS, EngineState, TimerKind
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.timers import Timers
from braidmq.engine.topics import QUEUE_SUBSCRIPTION, Consumer, Topic, TopicPartition
from braidmq.storage.catalogue import PARTITIONS, SUBSCRIPTIONS
from braidmq.storage.partition_log import PartitionLog

logger = logging.getLogger(__name__)

SHARED_POLICIES_MAX = 1024

ROOT_NAMESPACE = "/"
RECOVERED = ".recovered"
"""After the name of a topic when there is another of that name."""


class TopicAdministration:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        references: References,
        settlement: Settlement,
        rebuilding: Rebuilding,
        subscriptions: Subscriptions,
        resizing: Resizing,
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._references = references
        self._settlement = settlement
        self._rebuilding = rebuilding
        self._subscriptions = subscriptions
        self._resizing = resizing
        self._shared: dict[TopicPolicy, TopicPolicy] = {}
        """Thousands of topics are alike: they share one policy."""
        timers.register(TimerKind.IDLE, self._idle)
        hooks.unattended.append(subscriptions.set_stand_in)

    def create(
        self,
        namespace: str,
        name: str,
        settings: dict[str, Any] | None = None,
        *,
        now_ms: int,
        durable: bool = True,
        kind: TopicKind = "topic",
        attributes: dict[str, Any] | None = None,
        set_by: SetBy = "",
    ) -> Topic:
        """``set_by``: whose rights count for what the settings name; raises AccessRefused."""
        settings = settings or {}
        if (namespace, name) in self._state.topics:
            raise TopicExists(f"there is a topic {name!r} in namespace {namespace!r} already")
        policy = self.policy(namespace, name, settings, kind)
        if set_by and names_target(settings):
            self._references.require_target(set_by, namespace, name, policy)
            attributes = {**(attributes or {}), SET_BY: name_of(set_by)}
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
        topic.width = policy.partitions
        self.register(topic)
        self._references.judge(topic)
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
            log = self._state.store.create_partition(
                label, durable=topic.durable, in_memory=topic.in_memory
            )
            if topic.closed is not None and number in topic.closed:
                self._begin_at(log, topic.closed.pop(number))
            self.add_partition(topic, log)

    def _begin_at(self, log: PartitionLog, offset: int) -> None:
        store = self._state.store
        log.pass_over(offset)
        if log.durable:
            store.advance_start(log, offset)
        else:
            store.state.advance_start(log, offset)

    def add_partition(self, topic: Topic, log: PartitionLog) -> TopicPartition:
        partition = TopicPartition(topic, len(topic.partitions), log, self._state.clock)
        topic.partitions.append(partition)
        log.compressed = topic.policy.compression != "none"
        self._state.partitions[log.id] = partition
        if log.damage is not None:
            topic.look_at_quarantine()
        return partition

    def alter(
        self, topic: Topic, settings: dict[str, Any], *, now_ms: int, set_by: SetBy | None = None
    ) -> None:
        """Replace a topic's own settings. Partitions are taken away only by who says how many
        there are to be. ``set_by``: who named where dead letters go, if that is what changes."""
        topic.require_existing()
        wanted = settings.get("durability")
        if wanted is not None and (wanted == "memory") != topic.in_memory:
            raise StorageIsFixed(
                f"topic {topic.name!r} keeps its records"
                f" {'in memory' if topic.in_memory else 'on disk'}: that can't be changed"
            )
        policy = self.policy_of(topic, self._state.templates_of(topic.namespace), settings)
        if "partitions" not in settings:
            policy = at_least_as_wide(topic, policy)
        self._resizing.check(topic, policy.partitions)
        if set_by is not None:
            if set_by:
                self._references.require_target(set_by, topic.namespace, topic.name, policy)
            topic.attributes[SET_BY] = name_of(set_by)
        topic.settings = settings
        self.apply_policy(topic, policy, now_ms)

    def delete(self, topic: Topic) -> None:
        """With its records and subscriptions; its consumers are told."""
        topic.require_existing()
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
        self._subscriptions.set_stand_in(topic, state.wheel.now_ms)
        holders = self._consumers_by_subscription(topic)
        for partition in topic.partitions:
            # At once: taking thousands out one by one takes longer with each.
            partition.views.clear()
            self._subscriptions.set_wanted(partition)
        for subscription in list(topic.subscriptions.values()):
            self._subscriptions.forget(subscription, holders.get(subscription.id, []))
        del state.topics_by_id[topic.id]
        for partition in topic.partitions:
            del state.partitions[partition.log.id]
            if not topic.durable:
                state.store.delete_partition(partition.log.id)
        state.totals.keep_topic(topic)
        state.effects.append(TopicDeleted(topic))
        for deleted in self._hooks.topic_deleted:
            deleted(topic)
        _log_topic("topic deleted", topic)

    def _consumers_by_subscription(self, topic: Topic) -> dict[int, list[Consumer]]:
        found: dict[int, list[Consumer]] = {}
        for consumer in self._state.consumers.values():
            if consumer.subscription.topic is topic:
                found.setdefault(consumer.subscription.id, []).append(consumer)
        return found

    def _idle(self, owner: int, _a: int, _b: int, now_ms: int) -> None:
        """The idle timer fired: delete the topic if nobody used it meanwhile."""
        topic = self._state.topics_by_id.get(owner)
        if topic is None:
            return
        topic.idle_timer = 0
        limit = topic.policy.idle_expires_ms
        if not limit or topic.deleted:
            return
        used = any(subscription.consumers for subscription in topic.subscriptions.values())
        # Nobody can use what is quarantined: that is no reason to delete it.
        used = used or topic.quarantined > 0
        due = (now_ms if used else topic.last_used_ms) + limit
        if due <= now_ms:
            self.delete(topic)
        else:
            topic.idle_timer = self._state.wheel.schedule(due, TimerKind.IDLE, topic.id)

    def policy(
        self, namespace: str, name: str, settings: dict[str, Any], kind: TopicKind = "topic"
    ) -> TopicPolicy:
        templates = self._state.templates_of(namespace)
        merged = self._merged(templates, name, settings, kind)
        if self._state.is_in_memory(namespace):
            if merged.get("durability", "memory") != "memory":
                raise IllegalPolicy(
                    f"topic {name!r} can't have durability {merged['durability']!r}: namespace"
                    f" {namespace!r} keeps its records in memory",
                    remedy="Leave durability out, or use a namespace on disk",
                )
            merged["durability"] = "memory"
        return self._share(make_whole_policy(merged))

    def policy_of(
        self, topic: Topic, templates: dict[str, Template], settings: dict[str, Any] | None = None
    ) -> TopicPolicy:
        """Of one that is there, with the storage that it has: templates never move records."""
        own = topic.settings if settings is None else settings
        merged = self._merged(templates, topic.name, own, topic.kind)
        return self._with_storage(merged, in_memory=topic.in_memory)

    def restored_policy(self, record: TopicRecord, *, in_memory: bool) -> TopicPolicy:
        templates = self._state.templates_of(record.namespace)
        merged = self._merged(templates, record.name, record.settings, record.kind)
        return self._with_storage(merged, in_memory=in_memory)

    def _with_storage(self, merged: dict[str, Any], *, in_memory: bool) -> TopicPolicy:
        if in_memory:
            merged["durability"] = "memory"
        elif merged.get("durability") == "memory":
            merged["durability"] = "disk"
        return self._share(make_whole_policy(merged))

    def _merged(
        self, templates: dict[str, Template], name: str, settings: dict[str, Any], kind: TopicKind
    ) -> dict[str, Any]:
        template = choose_template(templates.values(), name, kind)
        return layered(kind, template.settings if template else {}, settings)

    def _share(self, policy: TopicPolicy) -> TopicPolicy:
        if len(self._shared) >= SHARED_POLICIES_MAX:
            self._shared.clear()
        return self._shared.setdefault(policy, policy)

    def apply_policy(self, topic: Topic, policy: TopicPolicy, now_ms: int) -> None:
        old = topic.policy
        lanes_change = (policy.priority, policy.priority_levels, policy.starvation_ms) != (
            old.priority,
            old.priority_levels,
            old.starvation_ms,
        )
        before, by_key = len(topic.partitions), topic.by_key
        topic.set_policy(policy)
        self._references.judge(topic)
        self._add_partitions(topic, policy.partitions)
        if policy.partitions != topic.width or topic.by_key != by_key:
            self._resizing.follow_layout(topic, policy.partitions, by_key=by_key)
        if policy.partitions != topic.width:
            self._resizing.switch(topic, policy.partitions)
        rule = policy.retention
        if old.retention.until_acked and (not rule.until_acked or rule.keeps_acked):
            for partition in topic.partitions:
                self._state.store.keep_start(partition.log)
        self._state.save_topic(topic)
        for partition in topic.partitions:
            self._subscriptions.set_wanted(partition)
            if old.retention.until_acked:
                # Settled records that no flush has written are in memory only: gone, from now on.
                partition.log.evict()
            if policy.ttl_ms != old.ttl_ms:
                self._state.arm_head(partition, now_ms, changed=True)
        for subscription in topic.subscriptions.values():
            for partition in topic.partitions[before:]:
                self._subscriptions.add_view(
                    subscription, partition, partition.log.start_offset, now_ms
                )
            if lanes_change:
                for view in subscription.views:
                    for hook in self._hooks.recounting:
                        hook(view)
                    self._rebuilding.rebuild(view, now_ms)
            raise_barriers(subscription)
            self._state.mark_dirty(subscription)
        self._subscriptions.set_stand_in(topic, now_ms)
        for policy_changed in self._hooks.policy_changed:
            policy_changed(topic, now_ms)
        for partition in topic.partitions:
            self._settlement.release(partition)
        if policy.idle_expires_ms != old.idle_expires_ms:
            self._state.wheel.cancel(topic.idle_timer)
            topic.idle_timer = 0
            self.arm_idle(topic, now_ms)
        if policy.compaction != old.compaction:
            self._state.wheel.cancel(topic.compaction_timer)
            topic.compaction_timer = 0
            self.arm_compaction(topic, now_ms)
        self._resizing.watch(topic, now_ms)
        if len(topic.partitions) > before:
            for changed in self._hooks.partitions_changed:
                changed(topic, now_ms)

    def hold(self, topic: Topic) -> None:
        """A queue is about to be none any more: what it let go stays so, and it lets go of nothing
        more, whatever policy a restart finds."""
        topic.until_acked = False
        for partition in topic.partitions:
            self._state.store.keep_start(partition.log)

    def hold_no_more(self, topic: Topic) -> None:
        """It stays one after all."""
        if topic.until_acked != topic.policy.retention.until_acked:
            topic.set_policy(topic.policy)
            for partition in topic.partitions:
                self._settlement.release(partition)

    def arm_idle(self, topic: Topic, now_ms: int) -> None:
        if topic.policy.idle_expires_ms and not topic.idle_timer:
            due = now_ms + topic.policy.idle_expires_ms
            topic.idle_timer = self._state.wheel.schedule(due, TimerKind.IDLE, topic.id)

    def arm_compaction(self, topic: Topic, now_ms: int) -> None:
        rule = topic.policy.compaction
        if rule.enabled and not topic.compaction_timer:
            due = now_ms + self._state.upkeep.first_compaction_ms(rule.interval_ms)
            topic.compaction_timer = self._state.wheel.schedule(due, TimerKind.COMPACTION, topic.id)

    def drop_orphans(self) -> None:
        """Partitions whose topic a crash kept from being made, or from learning of them: nobody
        can have published to them. One that has records is not such."""
        store = self._state.store
        for number in [each for each in store.logs if each not in self._state.partitions]:
            log = store.logs[number]
            if log.next_offset > log.start_offset or log.segments:
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
        topic.width = count
        self.register(topic)
        self._state.save_topic(topic)
        self._subscriptions.subscribe(topic, QUEUE_SUBSCRIPTION, now_ms)
        _log_topic("topic recovered", topic)


def at_least_as_wide(topic: Topic, policy: TopicPolicy) -> TopicPolicy:
    """A default or a template never takes partitions away."""
    if policy.partitions >= topic.width:
        return policy
    return make_policy(msgspec.to_builtins(policy), {"partitions": topic.width})


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
    # Those that are not durable come and go with connections, those that are staged with
    # transactions: no news to most.
    is_news = topic.durable and topic.namespace != STAGING
    level = logging.INFO if is_news else logging.DEBUG
    facts = {"topic": topic.name, "namespace": topic.namespace}
    logger.log(level, what, extra=facts)
