"""A namespace is deleted in steps: a crash between any two leaves nothing behind that was to
go, and takes nothing that was not."""

import pytest
from engine_worlds import NS, World, crashes

OTHER = "other"


def prepare(world: World) -> None:
    for number in range(4):
        topic = world.topic(f"t{number}")
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        world.publish(topic, b"x")
    world.engine.templates.put(NS, "p", ".*", {"max_messages": 9}, now_ms=world.now_ms)
    kept = world.engine.topics.create(OTHER, "kept", {"partitions": 1}, now_ms=world.now_ms)
    world.publish(kept, b"y")


def test_after_any_crash_all_is_there_or_nothing() -> None:
    def act(world: World) -> None:
        for _ in world.engine.namespaces.deleting(NS, now_ms=world.now_ms):
            world.engine.store.commit()

    left = set()
    for world in crashes(prepare, act):
        topics = world.engine.state.topics_of(NS)
        left.add(len(topics))
        assert len(topics) == len(world.engine.templates.of(NS)) * 4
        assert len(world.engine.store.logs) == len(topics) + 1
        assert [topic.depth for topic in topics] == [1] * len(topics)
        assert [topic.name for topic in world.engine.state.topics_of(OTHER)] == ["kept"]
    assert left == {0, 4}


@pytest.mark.parametrize("stop_after", [1, 3])
def test_what_was_made_since_in_a_namespace_of_that_name_stays(stop_after: int) -> None:
    world = World()
    prepare(world)
    steps = world.engine.namespaces.deleting(NS, now_ms=world.now_ms)
    for _ in range(stop_after):
        next(steps)
    world.topic("t2")
    steps.close()  # type: ignore[attr-defined]
    world.reopen()
    assert [topic.name for topic in world.engine.state.topics_of(NS)] == ["t2"]
    assert len(world.engine.store.logs) == 2


def test_groups_and_leases_go_with_their_namespace() -> None:
    world = World()
    prepare(world)
    topic = world.engine.state.topic(NS, "t0")
    for namespace, name in ((NS, "t1"), (OTHER, "kept")):
        world.engine.groups.join(namespace, "g", None, "c", [name], now_ms=world.now_ms)
    world.engine.leases.hold(
        NS, "l", {topic.partitions[0]: 0}, now_ms=world.now_ms, ttl_ms=1_000_000
    )
    world.engine.namespaces.delete(NS, now_ms=world.now_ms)
    for _ in range(2):
        assert not world.engine.groups.groups(NS)
        assert not world.engine.leases.list(NS)
        assert [group.name for group in world.engine.groups.groups(OTHER)] == ["g"]
        world.reopen()
