"""Placement, against a cluster whose leaders carry wishes out at once."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.placement import Cluster, PlacedNode, PlacedShard, Shard, wishes
from braidmq.cluster.shard import DirectoryId, Incarnation, ShardState, Term, Wish

STEPS_MAX = 200


def node(machine: int, number: int = 0) -> PlacedNode:
    name = f"n{machine}-{number}"
    return PlacedNode(DirectoryId(f"{name}.1"), name, f"m{machine}")


def empty(machines: int, nodes_each: int, shards: int) -> Cluster:
    nodes = tuple(
        node(machine, number) for machine in range(machines) for number in range(nodes_each)
    )
    none = PlacedShard(None, None)
    return Cluster(nodes, {}, {Shard(number): none for number in range(shards)})


def led(replicas: tuple[DirectoryId, ...], leader: DirectoryId, minimum: int = 2) -> ShardState:
    return ShardState(Term(1), leader, Incarnation(1), replicas, replicas, minimum)


def carried_out(cluster: Cluster, number: Shard, wish: Wish) -> Cluster:
    """As leaders do: those that run are in sync, and the preferred one leads if it can."""
    alive = {each.directory for each in cluster.nodes if each.alive}
    in_sync = tuple(each for each in wish.replicas if each in alive)
    state = cluster.shards[number].state
    leader = state.leader if state is not None else None
    if wish.preferred in in_sync:
        leader = wish.preferred
    elif leader not in in_sync:
        leader = in_sync[0]
    done = ShardState(Term(1), leader, Incarnation(1), in_sync, wish.replicas, wish.min_in_sync)
    return replace(cluster, shards={**cluster.shards, number: PlacedShard(done, wish)})


def settled(cluster: Cluster) -> tuple[Cluster, int]:
    for step in range(STEPS_MAX):
        wanted = wishes(cluster)
        if not wanted:
            return cluster, step
        assert len(wanted) == 1  # one move at a time
        ((number, wish),) = wanted.items()
        check(cluster, number, wish)
        cluster = carried_out(cluster, number, wish)
    raise AssertionError("it never ends")


def check(cluster: Cluster, number: Shard, wish: Wish) -> None:
    machines = {each.directory: each.machine for each in cluster.nodes}
    where = [machines[each] for each in wish.replicas if each in machines]
    assert len(where) == len(set(where)), "two replicas on a machine"
    others = {
        each
        for other, shard in cluster.shards.items()
        if other != number and shard.wish is not None
        for each in shard.wish.replicas
    }
    assert not others & set(wish.replicas), "two replicas on a node"
    before = cluster.shards[number].wish
    assert before is None or not before.by_operator
    assert wish.preferred is None or wish.preferred in wish.replicas


def leader_counts(cluster: Cluster) -> Counter[str]:
    machines = {each.directory: each.machine for each in cluster.nodes}
    counts = Counter(dict.fromkeys(machines.values(), 0))
    for shard in cluster.shards.values():
        if shard.state is not None and shard.state.leader in machines:
            counts[machines[shard.state.leader]] += 1
    return counts


def fewest_on_the_fullest(cluster: Cluster) -> int:
    """By trying every way to lead every shard."""
    machines = {each.directory: each.machine for each in cluster.nodes}
    choices = [
        [machines[each] for each in shard.state.in_sync]
        for shard in cluster.shards.values()
        if shard.state is not None
    ]
    return min(max(Counter(way).values()) for way in product(*choices))


@given(machines=st.integers(3, 6), nodes_each=st.integers(1, 6), shards=st.integers(1, 8))
def test_shards_are_spread_over_machines(machines: int, nodes_each: int, shards: int) -> None:
    shards = min(shards, machines * nodes_each // 3)
    placed, _ = settled(empty(machines, nodes_each, shards))
    loads: Counter[str] = Counter()
    for shard in placed.shards.values():
        assert shard.wish is not None
        assert len(shard.wish.replicas) == 3
        assert shard.wish.min_in_sync == 2
        loads.update(each.rpartition("-")[0] for each in shard.wish.replicas)
    assert max(loads.values()) - min(loads[f"n{each}"] for each in range(machines)) <= 1
    counts = leader_counts(placed)
    assert max(counts.values()) - min(counts.values()) <= 1


@given(data=st.data(), machines=st.integers(3, 5), shards=st.integers(1, 6))
def test_leaders_end_as_even_as_replicas_allow(
    data: st.DataObject, machines: int, shards: int
) -> None:
    cluster = empty(machines, shards, shards)
    free = {each: [f"n{each}-{number}.1" for number in range(shards)] for each in range(machines)}
    placed = {}
    for number in range(shards):
        where = data.draw(
            st.lists(st.sampled_from(range(machines)), min_size=3, max_size=3, unique=True)
        )
        replicas = tuple(DirectoryId(free[each].pop()) for each in where)
        placed[Shard(number)] = PlacedShard(led(replicas, replicas[0]), Wish(replicas, 2))
    even, steps = settled(replace(cluster, shards=placed))
    assert max(leader_counts(even).values()) == fewest_on_the_fullest(even)
    assert steps <= shards * machines


@given(data=st.data())
def test_nodes_come_and_go(data: st.DataObject) -> None:
    cluster, _ = settled(empty(4, 3, 3))
    for event in range(data.draw(st.integers(1, 6))):
        gone = data.draw(st.sampled_from(cluster.nodes))
        what = data.draw(st.sampled_from(["wiped", "forgotten", "stops", "drains", "returns"]))
        cluster = changed(cluster, gone, what, event)
        cluster, _ = settled(cluster)
        directories = {each.directory for each in cluster.nodes}
        short = [each for each in cluster.shards.values() if each.wish is not None]
        missing = [
            each for shard in short for each in shard.wish.replicas if each not in directories
        ]
        used = {each for shard in short for each in shard.wish.replicas}
        free = [each for each in cluster.nodes if each.alive and not each.draining]
        spare_machines = {each.machine for each in free if each.directory not in used}
        assert not missing or len(spare_machines) < 3


def changed(cluster: Cluster, node: PlacedNode, what: str, event: int) -> Cluster:
    others = tuple(each for each in cluster.nodes if each is not node)
    lost = {**cluster.replaced, node.directory: node.name}
    if what == "wiped":
        new = replace(node, directory=DirectoryId(f"{node.name}.{event + 2}"))
        return replace(cluster, nodes=(*others, new), replaced=lost)
    if what == "forgotten" and len(others) > 5:
        return replace(cluster, nodes=others, replaced=lost)
    after = replace(node, alive=what != "stops", draining=what == "drains")
    shards = dict(cluster.shards)
    for number, shard in shards.items():  # who stops falls out, who runs comes back
        state = shard.state
        if state is not None and node.directory in state.replicas:
            in_sync = [each for each in state.in_sync if each != node.directory]
            if after.alive or not in_sync:
                in_sync.append(node.directory)
            leader = state.leader if state.leader in in_sync else in_sync[0]
            state = replace(state, in_sync=tuple(in_sync), leader=leader)
            shards[number] = replace(shard, state=state)
    return replace(cluster, nodes=(*others, after), shards=shards)


@pytest.fixture
def three() -> Cluster:
    return settled(empty(3, 2, 1))[0]


def test_a_wiped_node_gets_its_replica_back_and_not_another(three: Cluster) -> None:
    shard = three.shards[Shard(0)]
    assert shard.wish is not None
    old = shard.wish.replicas[1]
    wiped = next(each for each in three.nodes if each.directory == old)
    after = changed(three, wiped, "wiped", 7)
    ((_, wish),) = wishes(after).items()
    assert wish.replicas[1] == f"{wiped.name}.9"
    assert (wish.replicas[0], wish.replicas[2]) == (shard.wish.replicas[0], shard.wish.replicas[2])


def test_a_node_that_is_only_away_is_waited_for(three: Cluster) -> None:
    nodes = tuple(replace(each, alive=False) for each in three.nodes)
    assert wishes(replace(three, nodes=nodes)) == {}


def test_what_an_operator_wished_for_stays(three: Cluster) -> None:
    shard = three.shards[Shard(0)]
    assert shard.wish is not None
    by_hand = replace(shard.wish, replicas=shard.wish.replicas[:2], by_operator=True)
    after = replace(three, shards={Shard(0): replace(shard, wish=by_hand)})
    assert wishes(after) == {}


def test_nothing_else_is_begun_while_something_moves() -> None:
    cluster, _ = settled(empty(3, 2, 2))
    shard = cluster.shards[Shard(0)]
    assert shard.state is not None
    behind = replace(shard, state=replace(shard.state, in_sync=shard.state.in_sync[:2]))
    moving = replace(cluster, shards={**cluster.shards, Shard(0): behind})
    lost = next(
        each
        for each in cluster.nodes
        if cluster.shards[Shard(1)].wish.replicas[2] == each.directory  # type: ignore[union-attr]
    )
    assert wishes(changed(moving, lost, "wiped", 1)) == {}
    assert wishes(changed(cluster, lost, "wiped", 1)) != {}


def test_a_shard_that_had_too_few_nodes_is_filled_up_when_there_are_more() -> None:
    alone, _ = settled(empty(1, 1, 1))
    assert alone.shards[Shard(0)].wish == Wish(
        (alone.nodes[0].directory,), 1, alone.nodes[0].directory
    )
    joined, _ = settled(replace(alone, nodes=(*alone.nodes, node(1), node(2))))
    wish = joined.shards[Shard(0)].wish
    assert wish == Wish(tuple(each.directory for each in joined.nodes), 2, alone.nodes[0].directory)


def test_nothing_is_led_by_who_is_to_stop() -> None:
    cluster, _ = settled(empty(3, 2, 2))
    nodes = tuple(replace(each, draining=each.machine == "m2") for each in cluster.nodes)
    leaders = Counter({"m0": 2, "m1": 0})
    shards = {}
    for number, shard in cluster.shards.items():
        assert shard.state is not None
        assert shard.wish is not None
        first = next(each for each in shard.wish.replicas if each.startswith("n0-"))
        shards[number] = PlacedShard(
            replace(shard.state, leader=first), replace(shard.wish, preferred=first)
        )
    even, _ = settled(replace(cluster, nodes=nodes, shards=shards))
    leaders = leader_counts(even)
    assert leaders["m0"] == leaders["m1"] == 1
