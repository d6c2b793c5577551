"""The engine's model with a group whose partitions are assigned: members join, leave, answer, let
go and come back after crashes, among all else that the model does."""

from typing import Any

import pytest
from engine_model_world import HERE, EngineWorld, crashes, picks, rarely
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from test_engine_model import EngineMachine

from braidmq.engine.groups import Group, StaleGeneration
from braidmq.engine.topics import Consumer, Credit, Delivery, Mode

TEAM = "team"
NEVER_MS = 1 << 40
"""Sessions and revocations do not end by themselves: what ends them is told to the model."""

Owners = dict[tuple[str, int], int]


class GroupWorld(EngineWorld):
    def __init__(self) -> None:
        super().__init__()
        self.owners: Owners = {}
        """Partition → the consumer that has it, or still has, while it is to let go."""

    @property
    def group(self) -> Group | None:
        found = [each for each in self.engine.groups.groups(HERE) if each.name == TEAM]
        return found[0] if found else None

    def members(self) -> tuple[str, ...]:
        return self.group.member_ids if self.group is not None else ()

    def join(self, member: str | None, limit: int) -> None:
        self.credits.append(Credit(limit))
        topics = list(self.model.topics)
        for name in topics:
            if TEAM not in self.model.topics[name].subs:
                self.subscribe(name, TEAM, Mode.ASSIGNED)
        self.engine.groups.join(
            HERE,
            TEAM,
            member,
            "m",
            topics,
            now_ms=self.now_ms,
            session_timeout_ms=NEVER_MS,
            rebalance_timeout_ms=NEVER_MS,
            credits=[self.credits[-1]],
        )
        self.follow()

    def leave(self, member: str) -> None:
        self.engine.groups.dismiss(HERE, TEAM, member, now_ms=self.now_ms)
        self.follow()

    def consumers_of(self, member: str) -> list[Consumer]:
        return self.engine.groups.consumers(HERE, TEAM, member)

    def follow(self) -> None:
        """Who lost a partition has nothing of it any more: it is ready again."""
        self.engine.groups.hand_over_quiet(self.now_ms)
        theirs = {each.id: each for name in self.members() for each in self.consumers_of(name)}
        now = self._owners_now()
        for place, holder in self.owners.items():
            topic = self.model.topics[place[0]]
            if (
                now.get(place) != holder
                and TEAM in topic.subs
                and place[1] < len(topic.subs[TEAM].views)
            ):
                view = topic.subs[TEAM].views[place[1]]
                self.model.fail(view, self.model.held(view, holder), self.now_ms, 0)
        self.owners = now
        others = [each for each in self.consumers if each.subscription.name != TEAM]
        self.consumers = [*others, *theirs.values()]

    def _owners_now(self) -> Owners:
        found: Owners = {}
        for member in self.members():
            for consumer in self.consumers_of(member):
                topic = consumer.subscription.topic
                assert self.group is not None
                for partition in topic.partitions:
                    if self.group.owner_of(topic.name, partition.number) == member:
                        found[topic.name, partition.number] = consumer.id
        return found

    # --- what the world does, with a group in it ---

    def attach_all(self) -> None:
        super().attach_all()
        self.join("first", 100)

    def delivered(self, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            if each.view.subscription.name == TEAM:
                assert self.group is not None
                place = each.view.partition.topic.name, each.view.partition.number
                assert self.owners[place] == each.consumer.id, "it is another's partition"
                revoking = [self.group.revoking(name).get(place[0], ()) for name in self.members()]
                assert not any(place[1] in numbers for numbers in revoking), "it is to let go"
        super().delivered(deliveries)

    def advance(self, by_ms: int) -> None:
        super().advance(by_ms)
        self.follow()

    def crash(self, choice: Any, outage_ms: int) -> None:
        before = self.members(), self.group.generation if self.group is not None else 0
        super().crash(choice, outage_ms)
        self.owners = {}
        assert (self.members(), self.group.generation if self.group is not None else 0) == before
        for member in self.members():
            for consumer in self.consumers_of(member):
                self.engine.consumers.resume(consumer)
        self.follow()

    def check(self) -> None:
        self.follow()
        super().check()
        self._check_group()

    def _check_group(self) -> None:
        """Every partition is somebody's, and those that are to move have messages in flight."""
        if self.group is None:
            return
        for topic in self.engine.state.topics_of(HERE):
            if TEAM not in topic.subscriptions or not self.members():
                continue
            assignment = topic.subscriptions[TEAM].assignment
            for view in topic.subscriptions[TEAM].views:
                place = topic.name, view.partition.number
                assert place in self.owners
                serving = assignment.get(view.partition.number)
                assert serving is None or serving.id == self.owners[place]
                assert serving is not None or view.state.in_flight, f"{place} could go"

    def drain(self) -> None:
        if not self.members():
            self.join(None, 100)
        super().drain()


class GroupMachine(EngineMachine):
    world: GroupWorld
    # They take the group's topics and places away: the coordinator's own tests do that.
    recreate = None
    resubscribe = None
    unsubscribe = None

    def make_world(self) -> GroupWorld:
        return GroupWorld()

    @rule(name=st.sampled_from([None, "a", "b", "c"]), limit=st.sampled_from([1, 3, 100]))
    def join(self, name: str | None, limit: int) -> None:
        if len(self.world.members()) < 5:
            self.world.join(name, limit)

    @precondition(lambda self: len(self.world.members()) > 1)
    @rule(pick=picks, really=rarely)
    def leave(self, pick: int, really: bool) -> None:
        if really:
            self.world.leave(self.world.members()[pick % len(self.world.members())])

    @precondition(lambda self: self.world.members())
    @rule(pick=picks)
    def let_go(self, pick: int) -> None:
        """A member gives up what it is asked for, with what it has of it."""
        world = self.world
        member = world.members()[pick % len(world.members())]
        assert world.group is not None
        asked = world.group.revoking(member).items()
        world.engine.groups.heartbeat(
            HERE,
            TEAM,
            member,
            world.group.generation,
            now_ms=world.now_ms,
            revoked=[(topic, number) for topic, numbers in asked for number in numbers],
        )
        world.follow()
        assert world.group.revoking(member) == {}

    @precondition(lambda self: self.world.members())
    @rule(pick=picks, place=picks, at=picks)
    def commit_as_a_member(self, pick: int, place: int, at: int) -> None:
        """Only of a partition that it has."""
        world = self.world
        member = world.members()[pick % len(world.members())]
        topic, number = sorted(world.owners)[place % len(world.owners)]
        view = world.model.topics[topic].subs[TEAM].views[number]
        theirs = world.theirs(view)
        offset = at % (theirs.state.end + 1)
        assert world.group is not None
        mine = world.group.owner_of(topic, number) == member
        try:
            generation = world.group.generation
            world.engine.groups.commit(HERE, TEAM, member, generation, topic, number, offset)
        except StaleGeneration:
            assert not mine
        else:
            assert mine
            cells = [cell for where, cell in view.cells.items() if where < offset]
            world.model.settle(view, cells)
            world.follow()

    @rule(choice=crashes, really=rarely)
    def crash_again(self, choice: Any, really: bool) -> None:
        if really:
            self.world.crash(choice, 10)


GroupMachine.TestCase.settings = settings(EngineMachine.TestCase.settings, max_examples=100)
# To make a failure small takes longer than to find it.
TestGroups = pytest.mark.timeout(600)(GroupMachine.TestCase)
