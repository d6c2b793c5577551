"""Consumer groups in the engine (catalogue rows C1 to C3): assignment, zombies, rebalancing."""

from typing import cast

import pytest
from engine_worlds import NS, SECOND, SMALL, Got, World

from braidmq.engine.errors import UnknownGroup, UnknownTopic, WrongMode
from braidmq.engine.group_coordinator import Answer
from braidmq.engine.group_plans import Strategy
from braidmq.engine.groups import NotYourMember, StaleGeneration, UnknownMember
from braidmq.engine.topics import Consumer, Mode, Receiver
from braidmq.model.errors import BadRequest
from braidmq.testing.faulty_disk import FaultyDisk, LoseAll

SESSION = 30 * SECOND
G = "g"


class Grouped(World):
    def join(self, member: str | None, *topics: str, **options: object) -> Answer:
        return self.engine.groups.join(
            NS, G, member, "client", topics or ["t"], now_ms=self.now_ms, **options
        )

    def beat(self, member: str, generation: int, **options: object) -> Answer:
        return self.engine.groups.heartbeat(
            NS, G, member, generation, now_ms=self.now_ms, **options
        )

    def sync(self, member: str, generation: int, **options: object) -> Answer:
        return self.beat(member, generation, catch_up=True, **options)

    def owners(self, topic: str = "t") -> dict[int, str]:
        """By what the subscription does, not by what the group says."""
        by_consumer = {
            consumers[topic]: member
            for member, consumers in self.engine.groups._groups[NS, G].consumers.items()
            if topic in consumers
        }
        assignment = self.find(topic).subscriptions[G].assignment
        return {number: by_consumer[consumer] for number, consumer in sorted(assignment.items())}

    def fill(self, topic: str = "t", each: int = 1) -> None:
        for partition in self.find(topic).partitions:
            self.publish(self.find(topic), *[b"x"] * each, partition=partition.number)

    def settle(self, *members: str) -> int:
        """Everybody catches up and lets go of what was asked; returns the generation."""
        for member in members:
            found = self.sync(member, self.engine.groups.group(NS, G).generation)
            wanted = [
                (topic, number)
                for topic, numbers in found.membership.revoking.items()
                for number in numbers
            ]
            self.sync(member, found.membership.generation, revoked=wanted)
        return self.engine.groups.group(NS, G).generation


def partitions(got: list[Got]) -> set[int]:
    return {each.view.partition.number for each in got}


def test_one_member_gets_everything_and_two_share() -> None:
    world = Grouped()
    world.topic(partitions=4)
    world.fill()
    world.join("a")
    assert partitions(world.dispatch()) == {0, 1, 2, 3}
    world.join("b")
    world.settle("a", "b")
    owners = world.owners()
    assert sorted(owners.values()) == ["a", "a", "b", "b"]
    world.fill()
    got = world.dispatch()
    for each in got:
        member = owners[each.view.partition.number]
        assert each.consumer is world.engine.groups.consumer(NS, G, member, "t")


def test_rebalancing_moves_only_what_must_and_nothing_else_pauses() -> None:
    world = Grouped()
    world.topic(partitions=6)
    world.join("a")
    world.join("b")
    generation = world.settle("a", "b")
    before = world.owners()
    world.fill()
    world.dispatch()
    world.join("c")
    # Messages are in flight: nobody gets more, and whoever keeps its partitions never stops.
    kept = world.owners()
    assert len(kept) == 4
    assert kept.items() <= before.items()
    world.fill()
    assert partitions(world.dispatch()) == kept.keys()
    world.settle("a", "b", "c")
    after = world.owners()
    assert {n for n in before if before[n] != after[n]} == before.keys() - kept.keys()
    assert partitions(world.dispatch()) == before.keys() - kept.keys()
    assert generation < world.engine.groups.group(NS, G).generation


def test_what_has_nothing_in_flight_moves_at_once_and_tells_those_it_concerns() -> None:
    world = Grouped()
    world.topic(partitions=6)
    world.join("a")
    world.join("b")
    before = world.owners()
    world.engine.take_notices()
    joined = world.join("c").membership
    after = world.owners()
    moved = {n for n in before if before[n] != after[n]}
    assert len(moved) == 2
    assert {after[n] for n in moved} == {"c"}
    assert joined.assigned == {"t": tuple(sorted(moved))}
    told = {each.membership.member_id: each.membership for each in world.engine.take_notices()}
    assert told.keys() == {"c", *(before[n] for n in moved)}
    for member, membership in told.items():
        assert membership.revoking == {}
        assert membership.assigned["t"] == tuple(n for n in after if after[n] == member)


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "commit", "timeout"])
def test_what_has_messages_in_flight_moves_with_the_last_answer(how: str) -> None:
    world = Grouped()
    world.topic(partitions=2, visibility_ms=2 * SECOND)
    world.fill(each=2)
    first = world.join("a").membership
    got = world.dispatch()
    world.join("b")
    (moving,) = world.sync("a", first.generation).membership.revoking["t"]
    last, *others = [each for each in got if each.view.partition.number == moving][::-1]
    for each in others:
        world.ack(each)
    world.engine.advance(world.now_ms)
    assert world.owners() == {1 - moving: "a"}
    match how:
        case "ack":
            world.ack(last)
        case "nack":
            world.nack(last)
        case "reject":
            world.reject(last)
        case "commit":
            world.engine.groups.commit(NS, G, "a", first.generation, "t", moving, 2)
        case "timeout":
            world.advance(2 * SECOND)
    assert world.engine.next_due_ms() == world.engine.state.wheel.now_ms or how == "timeout"
    world.engine.advance(world.now_ms)
    assert world.owners() == {moving: "b", 1 - moving: "a"}


def test_an_old_owner_may_finish_what_it_has_before_it_lets_go() -> None:
    world = Grouped()
    world.topic(partitions=2)
    world.fill()
    first = world.join("a").membership
    got = world.dispatch()
    world.join("b")
    ((topic, numbers),) = world.sync("a", first.generation).membership.revoking.items()
    moving = next(each for each in got if each.view.partition.number == numbers[0])
    acked = world.engine.groups.ack(
        NS, G, "a", first.generation, topic, numbers[0], moving.offset, moving.offset + 1
    )
    assert acked == 1
    world.settle("a", "b")
    assert world.dispatch() == []


def test_what_an_owner_did_not_finish_goes_to_the_next_when_its_time_is_up() -> None:
    world = Grouped()
    world.topic(partitions=2)
    world.fill()
    first = world.join("a", rebalance_timeout_ms=5 * SECOND).membership
    world.dispatch()
    world.join("b")
    moved = world.sync("a", first.generation).membership.revoking["t"][0]
    world.advance(5 * SECOND + 10)
    (again,) = world.dispatch()
    assert again.view.partition.number == moved
    assert again.consumer is world.engine.groups.consumer(NS, G, "b", "t")
    for call in (
        lambda: world.engine.groups.ack(NS, G, "a", first.generation, "t", moved, 0, 1),
        lambda: world.engine.groups.commit(NS, G, "a", first.generation, "t", moved, 1),
        lambda: world.engine.groups.nack(
            NS, G, "a", first.generation, "t", moved, 0, 1, now_ms=world.now_ms
        ),
    ):
        before = world.lsn()
        with pytest.raises(StaleGeneration):
            call()
        assert world.lsn() == before
    assert world.find().subscriptions[G].in_flight == 2


def test_a_member_that_goes_silent_loses_everything_on_time() -> None:
    world = Grouped()
    world.topic(partitions=3, visibility_ms=0)
    world.fill()
    world.join("a")
    assert len(world.dispatch()) == 3
    generation = world.join("b").membership.generation
    for _ in range(10):
        world.advance(3 * SECOND - 1)
        world.beat("b", generation)
    assert set(world.engine.groups.group(NS, G).member_ids) == {"a", "b"}
    world.advance(20)
    assert world.engine.groups.group(NS, G).member_ids == ("b",)
    assert world.owners() == dict.fromkeys(range(3), "b")
    assert len(world.dispatch()) == 3
    with pytest.raises(UnknownMember):
        world.beat("a", 1)
    with pytest.raises(StaleGeneration):
        world.beat("b", generation)


def test_leaving_hands_over_at_once() -> None:
    world = Grouped()
    world.topic(partitions=3)
    world.fill()
    world.join("a")
    world.dispatch()
    world.join("b")
    generation = world.settle("a", "b")
    world.engine.groups.leave(NS, G, "a", generation, now_ms=world.now_ms)
    assert set(world.owners().values()) == {"b"}
    assert len(world.find().subscriptions[G].consumers) == 1
    assert len(world.dispatch()) == 2 or world.find().subscriptions[G].in_flight == 3


def test_joining_again_is_a_new_life() -> None:
    world = Grouped()
    world.topic(partitions=2)
    world.fill()
    old = world.join("a").membership
    world.dispatch()
    world.join("a")
    again = world.dispatch()
    assert [each.attempts for each in again] == [2, 2]
    with pytest.raises(StaleGeneration):
        world.engine.groups.ack(NS, G, "a", old.generation, "t", 0, 0, 1)
    assert len(world.find().subscriptions[G].consumers) == 1


def test_commits_move_the_cursor_and_survive() -> None:
    world = Grouped()
    world.topic(partitions=1)
    world.fill(each=10)
    member = world.join("a").membership
    world.dispatch()
    world.engine.groups.commit(NS, G, "a", member.generation, "t", 0, 7)
    world.reopen()
    world.join("a")
    assert [each.offset for each in world.dispatch()] == [7, 8, 9]


def test_several_topics_and_members_that_want_different_ones() -> None:
    world = Grouped()
    for name in ("t", "u"):
        world.topic(name, partitions=3)
    world.join("a", "t", "u")
    world.join("b", "u")
    world.settle("a", "b")
    assert set(world.owners("t").values()) == {"a"}
    assert world.owners("u").keys() == {0, 1, 2}
    assert "b" in world.owners("u").values()
    with pytest.raises(BadRequest):
        world.engine.groups.consumer(NS, G, "b", "t")


@pytest.mark.parametrize("strategy", Strategy)
def test_new_partitions_are_given_out(strategy: Strategy) -> None:
    world = Grouped()
    topic = world.topic(partitions=2)
    world.join("a", strategy=strategy)
    world.join("b")
    world.settle("a", "b")
    world.engine.topics.alter(topic, {"partitions": 6}, now_ms=world.now_ms)
    world.settle("a", "b")
    owners = world.owners()
    assert owners.keys() == set(range(6))
    assert sorted(owners.values()) == ["a"] * 3 + ["b"] * 3
    world.fill()
    assert partitions(world.dispatch()) == set(range(6))


def test_a_deleted_topic_leaves_the_group() -> None:
    world = Grouped()
    for name in ("t", "u"):
        world.topic(name, partitions=2)
    member = world.join("a", "t", "u").membership
    world.engine.topics.delete(world.find("u"))
    found = world.sync("a", member.generation).membership
    assert found.assigned == {"t": (0, 1)}
    with pytest.raises(UnknownTopic):
        world.engine.groups.commit(NS, G, "a", found.generation, "u", 0, 0)
    world.advance(SESSION + 10)
    assert world.engine.groups.group(NS, G).member_ids == ()


# --- generations are never given out twice ---


def test_a_generation_is_durable_before_its_answer_may_be_sent() -> None:
    world = Grouped(FaultyDisk())
    world.topic(partitions=1)
    world.engine.store.commit()
    seen = 0
    for _ in range(5):
        answer = world.join("a")
        assert answer.lsn is not None
        assert answer.lsn > world.engine.store.journal.durable_lsn
        world.engine.store.commit()
        seen = answer.membership.generation
        world.join("lost")  # never answered
        assert isinstance(world.disk, FaultyDisk)
        survivor = Grouped(world.disk.crash(LoseAll()), SMALL)
        assert survivor.join("a").membership.generation > seen
        survivor.engine.store.commit()
        world = survivor


def test_members_go_on_after_a_restart_with_what_they_had() -> None:
    world = Grouped()
    world.topic(partitions=5)
    one = world.join("a").membership
    two = world.join("b").membership
    before = world.owners()
    world.checkpoint()
    world.reopen(after_ms=SESSION - 1)
    assert world.owners() == before
    assert world.engine.groups.group(NS, G).generation == two.generation
    world.advance(SESSION - 1)
    world.beat("b", two.generation)
    world.fill(each=3)
    world.engine.groups.commit(NS, G, "a", one.generation, "t", 0, 1)
    with pytest.raises(NotYourMember):
        world.join("a", owner="another")
    world.advance(2)
    assert world.engine.groups.group(NS, G).member_ids == ("b",)
    assert set(world.owners().values()) == {"b"}
    world.reopen()
    assert world.owners() == dict.fromkeys(range(5), "b")


def test_what_was_to_move_when_the_node_stopped_moves() -> None:
    world = Grouped()
    world.topic(partitions=2)
    world.fill()
    world.join("a")
    world.dispatch()
    world.join("b")
    assert len(world.owners()) == 1
    world.reopen()
    assert sorted(world.owners().values()) == ["a", "b"]


def test_a_topic_that_grew_and_one_that_is_gone_while_it_was_not_told() -> None:
    """As after a crash between two entries of the journal."""
    world = Grouped()
    for name in ("t", "u"):
        world.topic(name, partitions=2)
    world.join("a", "t", "u")
    coordinator = world.engine.groups
    coordinator._groups, kept = {}, coordinator._groups
    world.engine.topics.alter(world.find("t"), {"partitions": 4}, now_ms=world.now_ms)
    world.engine.topics.delete(world.find("u"))
    coordinator._groups = kept
    world.reopen()
    assert world.owners() == dict.fromkeys(range(4), "a")
    found = world.engine.groups.group(NS, G)
    assert found.membership("a").assigned == {"t": (0, 1, 2, 3)}


def test_who_is_there_with_a_connection_comes_back_only_under_an_id_of_its_own() -> None:
    world = Grouped()
    world.topic(partitions=3)
    receiver = cast(Receiver, object())
    world.join("a", receiver=receiver)
    unnamed = world.join(None, receiver=receiver).membership.member_id
    world.join("c", receiver=receiver)
    before = world.owners()
    world.advance(10 * SESSION)
    assert world.owners() == before
    for member in ("a", unnamed):
        consumer = world.engine.groups.consumer(NS, G, member, "t")
        world.engine.groups.detach(NS, G, member, consumer, now_ms=world.now_ms)
    assert world.engine.groups.group(NS, G).member_ids == ("a", "c")
    world.reopen()
    assert world.engine.groups.group(NS, G).member_ids == ("a", "c")
    world.advance(SESSION + 10)
    assert world.engine.groups.group(NS, G).member_ids == ()


# --- commits left to the broker ---


def test_what_a_member_came_back_for_is_committed_once_an_interval() -> None:
    world = Grouped()
    topic = world.topic(partitions=1, visibility_ms=0)
    world.fill(each=3)
    world.join("a", auto_commit_ms=5 * SECOND)
    settled = topic.subscriptions[G].views[0].state.settled
    assert len(world.dispatch()) == 3
    world.advance(6 * SECOND)
    assert settled.floor == 0, "it has not come back for them"
    world.engine.groups.came_back(NS, G, "a", now_ms=world.now_ms)
    assert settled.floor == 3
    world.fill(each=2)
    assert len(world.dispatch()) == 2
    world.engine.groups.came_back(NS, G, "a", now_ms=world.now_ms)
    world.fill(each=1)
    assert len(world.dispatch()) == 1
    assert settled.floor == 3
    world.advance(5 * SECOND - 10)
    assert settled.floor == 3
    world.advance(20)
    assert settled.floor == 5, "by the timer, and not what was given since"


def test_what_failed_since_is_not_committed() -> None:
    world = Grouped()
    topic = world.topic(partitions=1, visibility_ms=0)
    world.fill(each=2)
    world.join("a", auto_commit_ms=5 * SECOND)
    first, _ = world.dispatch()
    world.engine.groups.came_back(NS, G, "a", now_ms=world.now_ms)
    world.requeue(first)
    (again,) = world.dispatch()
    assert again.offset == first.offset
    world.advance(6 * SECOND)
    state = topic.subscriptions[G].views[0].state
    assert (state.settled.floor, state.in_flight) == (0, 1)


@pytest.mark.parametrize("how", ["leaves", "loses it"])
def test_what_is_done_with_is_committed_before_it_goes_to_another(how: str) -> None:
    world = Grouped()
    topic = world.topic(partitions=1, visibility_ms=0)
    world.fill(each=2)
    generation = world.join("a", auto_commit_ms=3600 * SECOND).membership.generation
    world.dispatch()
    world.engine.groups.came_back(NS, G, "a", now_ms=world.now_ms)
    if how == "leaves":
        world.engine.groups.leave(NS, G, "a", generation, now_ms=world.now_ms)
    else:
        world.join("a")
    assert topic.subscriptions[G].views[0].state.settled.floor == 2


def test_idle_groups_need_one_timer() -> None:
    world = Grouped()
    world.topic(partitions=4)
    members = [world.join(f"m{number}").membership.member_id for number in range(8)]
    generation = world.settle(*members)
    before = len(world.engine.state.wheel)
    for _ in range(50):
        for member in members:
            world.beat(member, generation)
        world.advance(SECOND)
    assert len(world.engine.state.wheel) <= before
    assert len(world.engine.groups.group(NS, G).member_ids) == 8


def test_errors_change_nothing() -> None:
    world = Grouped()
    topic = world.topic()
    world.engine.subscriptions.subscribe(topic, G, now_ms=world.now_ms, mode=Mode.SHARED)
    before = world.lsn()
    with pytest.raises(WrongMode):
        world.join("a")
    with pytest.raises(UnknownTopic):
        world.join("a", "missing")
    with pytest.raises(BadRequest):
        world.engine.groups.join(NS, "other", "a", "c", [], now_ms=world.now_ms)
    with pytest.raises(UnknownGroup):
        world.beat("a", 1)
    with pytest.raises(UnknownGroup):
        world.engine.groups.commit(NS, "other", "a", 1, "t", 0, 0)
    assert world.lsn() == before


def test_a_group_can_be_forgotten_once_it_is_empty() -> None:
    world = Grouped()
    world.topic()
    member = world.join("a").membership
    with pytest.raises(WrongMode):
        world.engine.groups.forget(NS, G)
    world.engine.groups.leave(NS, G, "a", member.generation, now_ms=world.now_ms)
    world.engine.groups.forget(NS, G)
    world.reopen()
    with pytest.raises(UnknownGroup):
        world.engine.groups.group(NS, G)


def test_each_gets_what_is_assigned_to_it() -> None:
    world = World()

    def assign(*assigned: Consumer) -> None:
        one.subscription.assignment = dict(enumerate(assigned))
        world.engine.state.mark_dirty(one.subscription)

    topic = world.topic(partitions=2)
    one = world.consumer(topic, mode=Mode.ASSIGNED)
    two = world.consumer(topic, mode=Mode.ASSIGNED)
    assign(one)
    for number in range(2):
        world.publish(topic, b"x", partition=number)
    assert [(each.consumer, each.view.partition.number) for each in world.dispatch()] == [(one, 0)]
    assign(one, two)
    assert [(each.consumer, each.view.partition.number) for each in world.dispatch()] == [(two, 1)]


# --- more and fewer partitions ---


def alter_partitions(world: Grouped, count: int) -> None:
    topic = world.find()
    settings = {**topic.settings, "partitions": count}
    world.engine.topics.alter(topic, settings, now_ms=world.now_ms)


def test_members_get_added_partitions_and_lose_closed_ones() -> None:
    world = Grouped()
    world.topic("t", partitions=2, retention={"until_acked": True})
    members = [world.join(None).membership.member_id for _ in range(2)]
    world.settle(*members)
    alter_partitions(world, 4)
    world.settle(*members)
    world.settle(*members)
    assert {*world.owners().values()} == {*members}
    assert list(world.owners()) == [0, 1, 2, 3]
    world.fill()
    alter_partitions(world, 1)
    assert list(world.owners()) == [0, 1, 2, 3], "they are read to their end"
    for member in members:
        consumer = world.engine.groups._groups[NS, G].consumers[member]["t"]
        while got := world.pull(consumer):
            for each in got:
                world.ack(each)
    world.advance(SECOND)
    assert len(world.find().partitions) == 1
    world.settle(*members)
    assert list(world.owners()) == [0]
    world.reopen()
    assert len(world.find().subscriptions[G].views) == 1


def test_who_waits_for_another_member_is_woken_when_that_has_settled() -> None:
    world = Grouped()
    world.topic("t", partitions=1)
    members = [world.join(None).membership.member_id for _ in range(2)]
    world.settle(*members)
    world.publish(world.find(), b"old", partition=0)
    alter_partitions(world, 2)
    world.settle(*members)
    world.settle(*members)
    world.publish(world.find(), b"new", partition=1)
    consumers = world.engine.groups._groups[NS, G].consumers
    first, second = (consumers[world.owners()[number]]["t"] for number in (0, 1))
    assert first is not second
    (old,) = world.pull(first)
    assert world.pull(second) == []
    assert world.engine.dispatching.with_ready(second.subscription) == []
    world.ack(old)
    assert world.engine.dispatching.with_ready(second.subscription) == [second]
    assert [each.value for each in world.pull(second)] == [b"new"]
