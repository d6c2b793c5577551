"""Consumer groups at work: what ``groups.Group`` decides, done to subscriptions and consumers.

A group has one subscription of its own name in each topic its members want, in ``Mode.ASSIGNED``,
and each member has one consumer in each of those:

    join, heartbeat, leave ─► Group ─► effects ─► assignment of the subscription, deliveries taken
    the timer wheel ────────►                     back, consumers detached

A new generation is journaled before anybody can hear of it, and so is who has what: after a
restart members go on. Every answer carries the LSN of the newest change: it may be sent once that
is durable, which for all but the first after one it is. Members that a change concerns get a
notice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from braidmq.engine.auto_commit import AutoCommit
from braidmq.engine.consumers import Consumers
from braidmq.engine.effects import ConsumerCancelled, MemberNotice
from braidmq.engine.errors import UnknownGroup, WrongMode
from braidmq.engine.group_plans import Strategy, TopicPartition
from braidmq.engine.groups import (
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Assigned,
    Effect,
    Effects,
    Group,
    MemberExpired,
    MemberRecord,
    Membership,
    NotYourMember,
    Rebalanced,
    Revoked,
    Revoking,
)
from braidmq.engine.hooks import Hooks
from braidmq.engine.offsets import Offsets
from braidmq.engine.reading import Position
from braidmq.engine.settling import Settling
from braidmq.engine.state import GROUP_MEMBERS, GROUPS, EngineState, TimerKind
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.timers import Timers
from braidmq.engine.topics import (
    Consumer,
    Credit,
    Mode,
    PartitionView,
    Receiver,
    Subscription,
    Topic,
)
from braidmq.model.errors import BadRequest
from braidmq.model.ids import Lsn
from braidmq.storage.catalogue import Change


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
    commits: dict[str, AutoCommit] = field(default_factory=dict)
    """Of members that leave committing to the broker."""

    @property
    def key(self) -> str:
        return f"{self.namespace}\0{self.group.name}"

    @property
    def due_ms(self) -> int | None:
        commits = (each.due_ms for each in self.commits.values() if each.due_ms is not None)
        deadline = self.group.next_deadline_ms()
        return min(commits if deadline is None else (deadline, *commits), default=None)


class _Kept(msgspec.Struct, array_like=True):
    """A member, in the catalogue."""

    namespace: str
    group: str
    user: str
    auto_commit_ms: int
    record: MemberRecord


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
        hooks.partitions_changed.append(self._resized)
        hooks.topic_deleted.append(self._topic_deleted)
        hooks.namespace_deleted.append(self._namespace_deleted)
        self._groups: dict[tuple[str, str], _Coordinated] = {}
        self._by_number: dict[int, _Coordinated] = {}

    def restore(self, now_ms: int) -> None:
        """Members go on with what they had. Those that were there with their connection do not come
        back, unless they had an id to do it under."""
        catalogue = self._state.store.catalogue
        for key, value in catalogue.items(GROUPS):
            self._add(key.partition("\0")[0], Group.load(value))
        for _, value in catalogue.items(GROUP_MEMBERS):
            kept = msgspec.msgpack.decode(value, type=_Kept)
            self._restore_member(self._groups[kept.namespace, kept.group], kept, now_ms)
        for found in list(self._groups.values()):
            for topic in found.group.topics:
                known = self._state.topics.get((found.namespace, topic))
                count = len(known.partitions) if known is not None else 0
                self._perform(found, found.group.set_partitions(topic, count, now_ms), now_ms)
            self._perform(found, found.group.resume(now_ms), now_ms)
            self._perform(found, self._quiet(found, found.group.all_revoking()), now_ms)

    def _restore_member(self, found: _Coordinated, kept: _Kept, now_ms: int) -> None:
        found.group.restore(kept.record, now_ms)
        member_id, name = kept.record.member_id, found.group.name
        found.owners[member_id] = kept.user
        if kept.auto_commit_ms:
            found.commits[member_id] = AutoCommit(kept.auto_commit_ms, now_ms)
        consumers = found.consumers[member_id] = {}
        for topic in kept.record.topics:
            known = self._state.topics.get((found.namespace, topic))
            subscription = known.subscriptions.get(name) if known is not None else None
            if subscription is not None:
                consumers[topic] = self._consumers.attach(subscription, now_ms)
                # Nothing is pushed to it, whoever it was, until it joins again.
                consumers[topic].paused = True

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

    def members_at(self, subscription: Subscription) -> dict[Consumer, tuple[str, str]]:
        """Of consumers that are members: which, and whose."""
        topic = subscription.topic
        found = self._groups.get((topic.namespace, subscription.name))
        if found is None:
            return {}
        return {
            by_topic[topic.name]: (member, found.owners.get(member, ""))
            for member, by_topic in found.consumers.items()
            if topic.name in by_topic
        }

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
        """It is no member any more, whatever it knows: others get what it had."""
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
        start: Position = "earliest",
        auto_commit_ms: int = 0,
        auto_ack: bool = False,
        receiver: Receiver | None = None,
    ) -> Answer:
        """Become a member, of a new group if there is none; how that is run its first decides.
        A member belongs to its ``owner``: raises NotYourMember for the id of another's.

        ``receiver``: deliveries are pushed to it while its connection is there. Without one it
        polls, and its session is over when it is not heard of.
        """
        if member_id is not None and self.owner_of(namespace, name, member_id) not in (None, owner):
            raise NotYourMember(f"member {member_id!r} of group {name!r} belongs to another user")
        wanted = [self._state.topic(namespace, topic) for topic in dict.fromkeys(topics)]
        self._check_modes(name, wanted)
        found = self._groups.get((namespace, name))
        earlier = found.consumers.get(member_id or "", {}) if found is not None else {}
        if len(wanted) > len(earlier):
            self._state.quotas.require(namespace, "max_consumers", len(wanted) - len(earlier))
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
        subscriptions = [
            self._subscriptions.subscribe(
                topic, name, now_ms=now_ms, mode=Mode.ASSIGNED, start=start
            )
            for topic in wanted
        ]
        membership, effects = found.group.join(
            member_id,
            client,
            [topic.name for topic in wanted],
            now_ms,
            attached=receiver is not None,
        )
        member_id = membership.member_id
        self._dismiss(found, member_id, now_ms)
        found.owners[member_id] = owner
        if auto_commit_ms:
            found.commits[member_id] = AutoCommit(auto_commit_ms, now_ms)
        found.consumers[member_id] = {
            each.topic.name: self._consumers.attach(
                each,
                now_ms,
                credits=credits,
                auto_ack=auto_ack,
                visibility_ms=0 if receiver is not None else None,
                receiver=receiver,
            )
            for each in subscriptions
        }
        self._perform(found, effects, now_ms)
        return Answer(found.group.membership(member_id), found.lsn)

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
        _, effects = verb(member_id, generation, now_ms, revoked)
        self._perform(found, effects, now_ms)
        return Answer(found.group.membership(member_id), found.lsn)

    def came_back(self, namespace: str, name: str, member_id: str, *, now_ms: int) -> None:
        """A member asks for more: what it had before is done with, if it leaves that to us."""
        found = self._found(namespace, name)
        commit = found.commits.get(member_id)
        if commit is not None:
            commit.came_back(found.consumers[member_id].values(), now_ms)
            self._commit_due(found, now_ms)
            self._arm(found)

    def leave(
        self, namespace: str, name: str, member_id: str, generation: int, *, now_ms: int
    ) -> None:
        found = self._found(namespace, name)
        effects = found.group.leave(member_id, generation, now_ms)
        self._dismiss(found, member_id, now_ms)
        self._perform(found, effects, now_ms)

    def detach(
        self, namespace: str, name: str, member_id: str, consumer: Consumer, *, now_ms: int
    ) -> None:
        """The connection that a member's deliveries went to is lost."""
        if not self._is_served_by(namespace, name, member_id, consumer):
            return
        found = self._found(namespace, name)
        self._detach_consumers(found, member_id, now_ms)
        self._perform(found, found.group.detach(member_id, now_ms), now_ms)
        if member_id in found.group.member_ids:
            found.consumers[member_id] = {}
        else:
            self._dismiss(found, member_id, now_ms)

    def end(
        self, namespace: str, name: str, member_id: str, consumer: Consumer, *, now_ms: int
    ) -> None:
        """A member leaves by the connection that its deliveries went to."""
        if self._is_served_by(namespace, name, member_id, consumer):
            self.dismiss(namespace, name, member_id, now_ms=now_ms)

    def _is_served_by(self, namespace: str, name: str, member_id: str, consumer: Consumer) -> bool:
        """Not when it was replaced by a new life of the member, or went with its topic."""
        found = self._groups.get((namespace, name))
        return found is not None and consumer in found.consumers.get(member_id, {}).values()

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
            self._commit_due(found, now_ms)
            self._perform(found, found.group.expire(now_ms), now_ms)

    def _commit_due(self, found: _Coordinated, now_ms: int) -> None:
        for commit in found.commits.values():
            if commit.due_ms is not None and commit.due_ms <= now_ms:
                commit.commit(self._settling, now_ms)

    def hand_over_quiet(self, now_ms: int) -> None:
        """Messages were answered for in partitions that are to move: those where none is left
        in flight do so."""
        quiet, self._state.quiet = self._state.quiet, {}
        for subscription in quiet:
            topic = subscription.topic
            found = self._groups.get((topic.namespace, subscription.name))
            if found is not None:
                moving = [TopicPartition(topic.name, each) for each in subscription.revoking]
                self._perform(found, self._quiet(found, moving), now_ms)

    def _quiet(self, found: _Coordinated, moving: Iterable[TopicPartition]) -> Effects:
        """What follows from there being nothing in flight in some of these."""
        idle: list[TopicPartition] = []
        for each in moving:
            topic = self._state.topics.get((found.namespace, each.topic))
            subscription = topic.subscriptions.get(found.group.name) if topic is not None else None
            views = subscription.views[each.partition : each.partition + 1] if subscription else []
            if not any(view.state.in_flight for view in views):
                idle.append(each)
        return found.group.quiet(idle)

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
            self._perform(found, effects, now_ms)  # those who wait for its messages are told, too
            served = [
                (member_id, consumers.pop(topic.name))
                for member_id, consumers in found.consumers.items()
                if topic.name in consumers
            ]
            for member_id, consumer in served:
                # Its connection is told that the topic is gone, and has no other for this member.
                if consumer.receiver is not None:
                    self.dismiss(found.namespace, found.group.name, member_id, now_ms=now_ms)

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
            changes: list[Change] = [(GROUPS, found.key, None) for found in groups]
            changes += [
                (GROUP_MEMBERS, _member_key(found, member_id), None)
                for found in groups
                for member_id in found.group.member_ids
            ]
            self._state.store.change(changes)

    # --- doing it ---

    def _perform(self, found: _Coordinated, effects: Sequence[Effect], now_ms: int) -> None:
        self._save(found, any(isinstance(effect, Rebalanced) for effect in effects))
        concerned: dict[str, None] = {}
        moving: list[TopicPartition] = []
        for effect in effects:
            match effect:
                case MemberExpired(member_id):
                    self._dismiss(found, member_id, now_ms)
                case Revoking(member_id, partitions, _):
                    self._pause(found, member_id, partitions)
                    self._commit_done(found, member_id, now_ms)
                    moving += partitions
                    concerned[member_id] = None
                case Revoked(member_id, partitions):
                    self._pause(found, member_id, partitions)
                    self._commit_done(found, member_id, now_ms)
                    self._take_back(found, member_id, partitions, now_ms)
                    concerned[member_id] = None
                case Assigned(member_id, partitions, _):
                    self._assign(found, member_id, partitions)
                    concerned[member_id] = None
        for member_id in concerned:
            self._notify(found, member_id)
        if quiet := self._quiet(found, moving):
            self._perform(found, quiet, now_ms)
        self._arm(found)

    def _save(self, found: _Coordinated, rebalanced: bool) -> None:
        changes: list[Change] = []
        if rebalanced:
            changes.append((GROUPS, found.key, found.group.dump()))
        for member_id in found.group.take_changed():
            record, key = found.group.record(member_id), _member_key(found, member_id)
            if record is not None:
                commit = found.commits.get(member_id)
                interval_ms = commit.interval_ms if commit is not None else 0
                kept = _Kept(
                    found.namespace,
                    found.group.name,
                    found.owners.get(member_id, ""),
                    interval_ms,
                    record,
                )
                changes.append((GROUP_MEMBERS, key, msgspec.msgpack.encode(kept)))
            elif self._state.store.catalogue.get(GROUP_MEMBERS, key) is not None:
                changes.append((GROUP_MEMBERS, key, None))
        if changes:
            found.lsn = self._state.store.change(changes)

    def _notify(self, found: _Coordinated, member_id: str) -> None:
        consumers = found.consumers.get(member_id)
        if consumers and member_id in found.group.member_ids:
            membership = found.group.membership(member_id)
            notice = MemberNotice(found.group.name, membership, tuple(consumers.values()))
            self._state.notices.append(notice)

    def _commit_done(self, found: _Coordinated, member_id: str, now_ms: int) -> None:
        commit = found.commits.get(member_id)
        if commit is not None:
            commit.commit(self._settling, now_ms)

    def _dismiss(self, found: _Coordinated, member_id: str, now_ms: int) -> None:
        self._detach_consumers(found, member_id, now_ms)
        found.owners.pop(member_id, None)
        found.commits.pop(member_id, None)

    def _detach_consumers(self, found: _Coordinated, member_id: str, now_ms: int) -> None:
        self._commit_done(found, member_id, now_ms)
        for consumer in found.consumers.pop(member_id, {}).values():
            self._state.effects.append(ConsumerCancelled(consumer))
            self._consumers.detach(consumer, now_ms)

    def _pause(
        self, found: _Coordinated, member_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            if subscription.assignment.get(number) is consumer:
                del subscription.assignment[number]
            subscription.revoking |= {number}

    def _take_back(
        self,
        found: _Coordinated,
        member_id: str,
        partitions: Sequence[TopicPartition],
        now_ms: int,
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            view = subscription.views[number]
            subscription.revoking -= {number}
            for start, stop in view.state.held_by(consumer.id):
                self._settling.requeue(consumer, view, start, stop, now_ms)

    def _assign(
        self, found: _Coordinated, member_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        for subscription, number, consumer in self._places(found, member_id, partitions):
            subscription.assignment[number] = consumer
            subscription.revoking -= {number}
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
        due = found.due_ms
        wheel = self._state.wheel
        if found.timer:
            set_to = wheel.due_of(found.timer)
            if due is not None and set_to is not None and set_to <= due:
                return
            wheel.cancel(found.timer)
        found.timer = wheel.schedule(due, TimerKind.GROUP, found.number) if due is not None else 0


def _member_key(found: _Coordinated, member_id: str) -> str:
    return f"{found.key}\0{member_id}"
