"""Leases: what somebody reads in bulk does not go meanwhile."""

import pytest
from engine_worlds import MINUTE, NS, SECOND, SMALL, World, all_records, crashes
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.errors import UnknownLease
from braidmq.engine.leases import Lease
from braidmq.engine.topics import Topic


def offsets(world: World, topic: Topic) -> list[int]:
    return [record.offset for record in all_records(world, topic)]


def hold(world: World, topic: Topic, offset: int, name: str = "job", **more: int) -> Lease:
    return world.engine.leases.hold(
        NS,
        name,
        {topic.partitions[0]: offset},
        now_ms=world.now_ms,
        **{"ttl_ms": MINUTE, **more},
    )


def fill(world: World, topic: Topic, count: int = 100) -> None:
    for number in range(count):
        world.publish(topic, b"%d" % number, key=b"k%d" % (number % 3))
        if number % 30 == 29:
            world.checkpoint()


@pytest.mark.parametrize("rule", [{"messages": 10}, {"bytes": 500}, {"time_ms": SECOND}])
def test_retention_stops_at_a_lease(rule: dict[str, int]) -> None:
    world = World(settings=SMALL)
    topic = world.topic()
    fill(world, topic)
    lease = hold(world, topic, 40, ttl_ms=60 * MINUTE)
    world.engine.topics.alter(topic, {"retention": rule}, now_ms=world.now_ms)
    world.advance(6 * MINUTE)
    assert offsets(world, topic) == list(range(40, 100))
    world.engine.leases.end(lease, world.now_ms)
    assert topic.partitions[0].log.start_offset > 40


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_keeps_what_is_acknowledged_but_leased(restarted: bool) -> None:
    world = World(settings=SMALL)
    topic = world.topic(retention={"until_acked": True})
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    fill(world, topic)
    hold(world, topic, 20)
    assert len(world.drain(topic)) == 100
    world.checkpoint()
    if restarted:
        world = world.reopen()
        topic = world.find()
    assert offsets(world, topic)[-80:] == list(range(20, 100))
    assert topic.depth == 0
    world.engine.leases.end(world.engine.leases.lease(NS, "job"), world.now_ms)
    assert offsets(world, topic) == []


def test_compaction_leaves_what_is_leased() -> None:
    world = World(settings=SMALL)
    topic = world.topic(compaction={"enabled": True, "lag_ms": 0})
    fill(world, topic)
    hold(world, topic, 50, ttl_ms=60 * MINUTE)
    world.advance(20 * MINUTE)
    world.checkpoint()
    kept = offsets(world, topic)
    assert kept[-50:] == list(range(50, 100))
    assert len(kept) < 100
    world.advance(60 * MINUTE)
    world.checkpoint()
    assert len(offsets(world, topic)) < 50


def test_a_lease_ends_when_nobody_renews_it() -> None:
    world = World()
    topic = world.topic()
    lease = hold(world, topic, 0, ttl_ms=MINUTE)
    for _ in range(5):
        world.advance(50 * SECOND)
        world.engine.leases.renew(lease, world.now_ms)
    assert world.engine.leases.list(NS) == [lease]
    world.advance(61 * SECOND)
    assert world.engine.leases.list(NS) == []
    with pytest.raises(UnknownLease):
        world.engine.leases.lease(NS, "job")


def test_a_lease_ends_with_its_last_part() -> None:
    world = World()
    lease = hold(world, world.topic(), 0, parts=3)
    world.engine.leases.renew(lease, world.now_ms, (0, 1, 1, 7))
    assert world.engine.leases.list(NS) == [lease]
    world.engine.leases.renew(lease, world.now_ms, (2,))
    assert world.engine.leases.list(NS) == []


def test_after_a_restart_a_lease_has_its_whole_time_again() -> None:
    world = World()
    hold(world, world.topic(), 0, ttl_ms=MINUTE)
    world.advance(50 * SECOND)
    world = world.reopen()
    world.advance(50 * SECOND)
    assert [each.name for each in world.engine.leases.list(NS)] == ["job"]
    world.advance(20 * SECOND)
    assert world.engine.leases.list(NS) == []


def test_what_is_gone_already_stays_gone_and_orders_go_first() -> None:
    world = World()
    topic = world.topic(retention={"messages": 10})
    fill(world, topic)
    world.advance(6 * MINUTE)
    log = topic.partitions[0].log
    lease = hold(world, topic, 3, ttl_ms=60 * MINUTE)
    assert lease.positions == {log.id: log.start_offset}
    world.engine.retention.purge(topic)
    assert offsets(world, topic) == []
    world.engine.topics.delete(topic)
    world.engine.leases.end(lease, world.now_ms)


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 30)),
            st.tuples(st.just("hold"), st.sampled_from("abc"), st.integers(0, 120)),
            st.tuples(st.just("end"), st.sampled_from("abc")),
            st.tuples(st.just("checkpoint")),
            st.tuples(st.just("restart")),
        ),
        max_size=25,
    )
)
def test_nothing_at_or_after_a_lease_is_ever_missing(steps: list[tuple]) -> None:
    world = World(settings=SMALL)
    topic = world.topic(retention={"messages": 20})
    held: dict[str, int] = {}
    for step in steps:
        match step:
            case ("publish", count):
                for _ in range(count):
                    world.publish(topic, b"x" * 50)
                world.engine.advance(world.now_ms)
            case ("hold", name, offset):
                start = topic.partitions[0].log.start_offset
                hold(world, topic, offset, name, ttl_ms=60 * MINUTE)
                held[name] = max(offset, start)
            case ("end", name) if name in held:
                world.engine.leases.end(world.engine.leases.lease(NS, name), world.now_ms)
                del held[name]
            case ("checkpoint",):
                world.checkpoint()
            case ("restart",):
                world = world.reopen()
                topic = world.find()
        log = topic.partitions[0].log
        lowest = min([*held.values(), log.next_offset])
        kept = [offset for offset in offsets(world, topic) if offset >= lowest]
        assert kept == list(range(lowest, log.next_offset))


def test_a_crash_keeps_leases_that_were_made() -> None:
    def prepare(world: World) -> None:
        topic = world.topic()
        fill(world, topic, 10)
        hold(world, topic, 5)

    def act(world: World) -> None:
        world.checkpoint()

    for world in crashes(prepare, act):
        assert [each.name for each in world.engine.leases.list(NS)] == ["job"]
        assert world.find().partitions[0].log.pinned_offset == 5
