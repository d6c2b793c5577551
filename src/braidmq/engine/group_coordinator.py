"""Consumer groups at work: what ``groups.Group`` decides, done to subscriptions and consumers.

A group has one subscription of its own name in each topic its members want, in ``Mode.ASSIGNED``,
and each member has one consumer in each of those:

    join, heartbeat, leave ─► Group ─► effects ─► assignment of the subscription, deliveries taken
    the timer wheel ────────►                     back, consumers detached

A new generation is journaled before anybody can hear of it. Every answer carries the LSN of the
newest: it may be sent once that is durable, which for all but the first after a rebalance it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from braidmq.engine.consumers import Consumers
from braidmq.engine.errors import UnknownGroup, WrongMode
from braidmq.engine.groups import (
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Assigned,
    Effect,
    Group,
    MemberExpired,
    Membership,
    NotYourMember,
    Rebalanced,
    Revoked,
    Revoking,
    Strategy,
    TopicPartition,
)
from braidmq.engine.hooks import Hooks
from braidmq.engine.offsets import Offsets
from braidmq.engine.settling import Settling
from braidmq.engine.state import GROUPS, EngineState, TimerKind
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.timers import Timers
from braidmq.engine.topics import Consumer, Credit, Mode, PartitionView, Subscription, Topic
from braidmq.model.errors import BadRequest
from braidmq.model.ids import Lsn


class Answer(NamedTuple):
    """What a member is told, once ``lsn`` is durable."""

    membership: Membership
    lsn: Lsn | None


@dataclass(slots=True)
class _Coordinated:
    number: int
    namespace: str
    group: Group
    lsn: Lsn | None = None
    timer: int = 0
    consumers: dict[str, dict[str, Consumer]] = field(default_factory=dict)
    """Member → topic → its consumer there."""
    owners: dict[str, str] = field(default_factory=dict)
    """Member → the user it belongs to."""

    @property
    def key(self) -> str:
        return f"{self.namespace}\0{self.group.name}"


class GroupCoordinator:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        subscriptions: Subscriptions,
        consumers: Consumers,
        settling: Settling,
        offsets: Offsets,
    ) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._consumers = consumers
        self._settling = settling
        self._offsets = offsets
        timers.register(TimerKind.GROUP, self._expire)
        hooks.partitions_added.append(self._resized)
        hooks.topic_deleted.append(self._topic_deleted)
        hooks.namespace_deleted.append(self._namespace_deleted)
        self._groups: dict[tuple[str, str], _Coordinated] = {}
        self._by_number: dict[int, _Coordinated] = {}

    def restore(self) -> None:
        """Groups come back without members: those join again, in later generations."""
        for key, value in self._state.store.catalogue.items(GROUPS):
            self._add(key.partition("\0")[0], Group.load(value))

    def _add(self, namespace: str, group: Group) -> _Coordinated:
        found = _Coordinated(self._state.next_id("group"), namespace, group)
        self._groups[namespace, group.name] = self._by_number[found.number] = found
        return found

    # --- questions ---

    def group(self, namespace: str, name: str) -> Group:
        """Raises UnknownGroup."""
        return self._found(namespace, name).group

    def groups(self, namespace: str) -> list[Group]:
        return [each.group for key, each in sorted(self._groups.items()) if key[0] == namespace]

    def consumers(self, namespace: str, name: str, member_id: str) -> list[Consumer]:
        """Where deliveries to a member go, topic by topic. Raises UnknownMember."""
        found = self._found(namespace, name)
        found.group.assignment(member_id)
        return list(found.consumers[member_id].values())

    def consumer(self, namespace: str, name: str, member_id: str, topic: str) -> Consumer:
        """Where deliveries of a topic to a member go. Raises UnknownMember, UnknownTopic."""
        found = self._found(namespace, name)
        found.group.assignment(member_id)
        self._state.topic(namespace, topic)
        consumer = found.consumers[member_id].get(topic)
        if consumer is None:
            raise BadRequest(f"member {member_id} of group {name} did not ask for topic {topic}")
        return consumer

    def owner_of(self, namespace: str, name: str, member_id: str) -> str | None:
        """Whose member it is; None for what is not there."""
        found = self._groups.get((namespace, name))
        return None if found is None else found.owners.get(member_id)

    def members_of(self, namespace: str, owner: str) -> list[tuple[str, str, list[str]]]:
        """Group, member and its topics, of one user's members."""
        return [
            (each.group.name, member, list(each.consumers.get(member, ())))
            for each in self._groups.values()
            if each.namespace == namespace
            for member, user in each.owners.items()
            if user == owner
        ]

    def dismiss(self, namespace: str, name: str, member_id: str, *, now_ms: int) -> None:
        """It may be no member any more: others get what it had."""
        group = self._found(namespace, name).group
        self.leave(namespace, name, member_id, group.generation, now_ms=now_ms)

    def _found(self, namespace: str, name: str) -> _Coordinated:
        found = self._groups.get((namespace, name))
        if found is None:
            raise UnknownGroup(f"there is no group {name!r} in namespace {namespace!r}")
        return found

    # --- what members do ---

    def join(
        self,
        namespace: str,
        name: str,
        member_id: str | None,
        client: str,
        topics: Iterable[str],
        *,
        now_ms: int,
        strategy: Strategy = Strategy.STICKY,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        credits: Sequence[Credit] | None = None,
        owner: str = "",
    ) -> Answer:
        """Become a member, of a new group if there is none; how that is run its first decides.
        A member belongs to its ``owner``: raises NotYourMember for the id of another's."""
        if member_id is not None and self.owner_of(namespace, name, member_id) not in (None, owner):
            raise NotYourMember(f"member {member_id!r} of group {name!r} belongs to another user")
        wanted = [self._state.topic(namespace, topic) for topic in dict.fromkeys(topics)]
        self._check_modes(name, wanted)
        found = self._groups.get((namespace, name))
        if found is None:
            if not wanted:
                raise BadRequest("a member of a group must name at least one topic")
            group = Group(name, strategy, session_timeout_ms, rebalance_timeout_ms)
            found = self._add(namespace, group)
        for topic in wanted:
            self._perform(
                found,
                found.group.set_partitions(topic.name, len(topic.partitions), now_ms),
                now_ms,
            )
        membership, effects = found.group.join(
            member_id, client, [topic.name for topic in wanted], now_ms
        )
        self._dismiss(found, membership.member_id, now_ms)
        found.owners[membership.member_id] = owner
        found.consumers[membership.member_id] = {
            topic.name: self._consumers.attach(
                self._subscriptions.subscribe(topic, name, now_ms=now_ms, mode=Mode.ASSIGNED),
                now_ms,
                credits=credits,
            )
            for topic in wanted
        }
        self._perform(found, effects, now_ms)
        return Answer(membership, found.lsn)

    def _check_modes(self, name: str, topics: Sequence[Topic]) -> None:
        for topic in topics:
            subscription = topic.subscriptions.get(name)
            if subscription is not None and subscription.mode is not Mode.ASSIGNED:
                raise WrongMode(
                    f"subscription {name!r} of topic {topic.name!r} is {subscription.mode}"
                )

    def heartbeat(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        *,
        now_ms: int,
        revoked: Iterable[tuple[str, int]] = (),
        catch_up: bool = False,
    ) -> Answer:
        """Stay a member, and let go of ``revoked``. Only in the current generation, unless the
        member says that it has to catch up."""
        found = self._found(namespace, name)
        verb = found.group.sync if catch_up else found.group.heartbeat
        membership, effects = verb(member_id, generation, now_ms, revoked)
        self._perform(found, effects, now_ms)
        return Answer(membership, found.lsn)

    def leave(
        self, namespace: str, name: str, member_id: str, generation: int, *, now_ms: int
    ) -> None:
        found = self._found(namespace, name)
        effects = found.group.leave(member_id, generation, now_ms)
        self._dismiss(found, member_id, now_ms)
        self._perform(found, effects, now_ms)

    # --- what members answer, fenced by generation ---

    def ack(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        topic: str,
        partition: int,
        start: int,
        stop: int,
    ) -> int:
        """Raises StaleGeneration for a partition that was not, or is no longer, the member's."""
        consumer, view = self._fenced(namespace, name, member_id, generation, topic, partition)
        return self._settling.ack(consumer, view, start, stop)

    def nack(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        now_ms: int,
        error: str = "",
    ) -> int:
        consumer, view = self._fenced(namespace, name, member_id, generation, topic, partition)
        return self._settling.nack(consumer, view, start, stop, now_ms, error=error)

    def commit(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        topic: str,
        partition: int,
        offset: int,
    ) -> None:
        """Settle everything below an offset."""
        _, view = self._fenced(namespace, name, member_id, generation, topic, partition)
        self._offsets.commit(view, offset)

    def committing(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        topic: str,
        partition: int,
    ) -> PartitionView:
        """What a member may commit an offset of: to do it in a transaction."""
        return self._fenced(namespace, name, member_id, generation, topic, partition)[1]

    def _fenced(
        self,
        namespace: str,
        name: str,
        member_id: str,
        generation: int,
        topic: str,
        partition: int,
    ) -> tuple[Consumer, PartitionView]:
        found = self._found(namespace, name)
        self._state.topic(namespace, topic).partition(partition)
        found.group.fence(member_id, generation, topic, partition)
        subscription = self._state.subscription(self._state.topic(namespace, topic), name)
        return found.consumers[member_id][topic], subscription.views[partition]

    # --- what happens to them ---

    def _expire(self, number: int, _a: int, _b: int, now_ms: int) -> None:
        """The group's timer fired."""
        found = self._by_number.get(number)
        if found is not None:
            found.timer = 0
            self._perform(found, found.group.expire(now_ms), now_ms)

    def _resized(self, topic: Topic, now_ms: int) -> None:
        for found in self._of(topic):
            effects = found.group.set_partitions(topic.name, len(topic.partitions), now_ms)
            self._perform(found, effects, now_ms)

    def _topic_deleted(self, topic: Topic) -> None:
        if self._state.has_successor(topic):
            return
        now_ms = self._state.wheel.now_ms
        for found in self._of(topic):
            effects = found.group.set_partitions(topic.name, 0, now_ms)
            for consumers in found.consumers.values():
                consumers.pop(topic.name, None)
            self._perform(found, effects, now_ms)

    def _of(self, topic: Topic) -> list[_Coordinated]:
        return [each for each in self._groups.values() if each.namespace == topic.namespace]

    def forget(self, namespace: str, name: str) -> None:
        """A group that has no members and is not wanted any more; its subscriptions stay."""
        found = self._found(namespace, name)
        if found.group.member_ids:
            raise WrongMode(f"group {name!r} has members", remedy="Let them leave first")
        self._forget([found])

    def _namespace_deleted(self, namespace: str, _now_ms: int) -> None:
        """Their members' consumers go with the topics."""
        self._forget([each for each in self._groups.values() if each.namespace == namespace])

    def _forget(self, groups: Sequence[_Coordinated]) -> None:
        for found in groups:
            self._state.wheel.cancel(found.timer)
            del self._groups[found.namespace, found.group.name]
            del self._by_number[found.number]
        if groups:
            self._state.store.change([(GROUPS, found.key, None) for found in groups])

    # --- doing it ---

    def _perform(self, found: _Coordinated, effects: Sequence[Effect], now_ms: int) -> None:
        if any(isinstance(effect, Rebalanced) for effect in effects):
            value = found.group.dump()
            found.lsn = self._state.store.change([(GROUPS, found.key, value)])
        for effect in effects:
            match effect:
                case MemberExpired(member_id):
                    self._dismiss(found, member_id, now_ms)
                case Revoking(member_id, partitions, _):
                    self._pause(found, member_id, partitions)
                case Revoked(member_id, partitions):
                    self._pause(found, member_id, partitions)
                    self._take_back(found, member_id, partitions, now_ms)
                case Assigned(member_id, partitions, _):
                    self._assign(found, member_id, partitions)
        self._arm(found)

    def _dismiss(self, found: _Coordinated, member_id: str, now_ms: int) -> None:
        found.owners.pop(member_id, None)
        for consumer in found.consumers.pop(member_id, {}).values():
            self._consumers.detach(consumer, now_ms)

    def _pause(
        self, found: _Coordinated, member_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            if subscription.assignment.get(number) is consumer:
                del subscription.assignment[number]

    def _take_back(
        self,
        found: _Coordinated,
        member_id: str,
        partitions: Sequence[TopicPartition],
        now_ms: int,
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            view = subscription.views[number]
            for start, stop in view.state.held_by(consumer.id):
                self._settling.requeue(consumer, view, start, stop, now_ms)

    def _assign(
        self, found: _Coordinated, member_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            subscription.assignment[number] = consumer
            self._state.mark_dirty(subscription)

    def _places(
        self, found: _Coordinated, member_id: str, partitions: Sequence[TopicPartition]
    ) -> list[tuple[Subscription, int, Consumer]]:
        """Where a member's partitions are, in so far as it and its topics are still there."""
        consumers = found.consumers.get(member_id, {})
        return [
            (consumers[topic].subscription, number, consumers[topic])
            for topic, number in partitions
            if topic in consumers and number < len(consumers[topic].subscription.views)
        ]

    def _arm(self, found: _Coordinated) -> None:
        """One timer a group. Heartbeats only move deadlines back, so it may fire in vain."""
        due = found.group.next_deadline_ms()
        wheel = self._state.wheel
        if found.timer:
            set_to = wheel.due_of(found.timer)
            if due is not None and set_to is not None and set_to <= due:
                return
            wheel.cancel(found.timer)
        found.timer = wheel.schedule(due, TimerKind.GROUP, found.number) if due is not None else 0
