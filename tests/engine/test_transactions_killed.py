"""A commit over five topics that is killed anywhere is whole or absent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_worlds import NOW, NS, SMALL, World, all_records

from braidmq.engine.engine import Engine
from braidmq.engine.transactions.publishing import Origin
from braidmq.storage.disk import RealDisk
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, KeepAll, LoseAll

TOPICS = ["a", "b", "c", "d", "e"]


def prepare(world: World) -> None:
    """An open transaction with two messages in each topic, and one acknowledged from a queue."""
    queue = world.topic("queue", retention={"until_acked": True})
    world.engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    world.publish(queue, b"job")
    transactions = world.engine.transactions
    transaction, _ = transactions.begin(NS, "t", now_ms=NOW)
    branch = transactions.branch(transaction)
    for name in TOPICS:
        topic = world.topic(name)
        world.engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
        batch = world.batch(b"1", b"2")
        world.engine.publishing.publish(topic, batch, now_ms=NOW, origin=Origin(branch, 0))
    consumer = world.consumer(queue, visibility_ms=0)
    (got,) = world.dispatch()
    transactions.acknowledge(transaction, consumer, got.view, 0, 1)
    world.engine.store.commit()


def outcome(world: World) -> bool:
    """Whether it is committed; fails when it is neither whole nor absent."""
    seen = [[each.value for each in all_records(world, world.find(name))] for name in TOPICS]
    delivered = [[each.value for each in world.drain(world.find(name))] for name in TOPICS]
    assert delivered == seen
    still_open = [each.begun.name for each in world.engine.transactions.transactions()]
    jobs = world.drain(world.find("queue"))
    if seen == [[b"1", b"2"]] * 5:
        assert still_open == []
        assert jobs == []
        return True
    assert seen == [[]] * 5
    assert still_open == ["t"]
    assert jobs == []  # it is the transaction's, which may still be committed
    world.engine.transactions.end(NS, "t", commit=True, now_ms=world.now_ms)
    assert outcome(world)
    return False


@pytest.mark.parametrize("commit", [True, False])
def test_a_torn_write_of_the_end_leaves_all_or_nothing(commit: bool) -> None:
    disk = FaultyDisk()
    world = World(disk)
    prepare(world)
    world.engine.transactions.end(NS, "t", commit=commit, now_ms=NOW)
    cuts = []

    def crash_everywhere() -> None:
        cuts.extend(disk.crash(CutAt(cut)) for cut in range(0, disk.unsynced_bytes + 1, 8))

    disk.slow_sync = crash_everywhere
    world.engine.store.commit()
    found = set()
    for moment in cuts:
        reopened = World(moment)
        if commit:
            found.add(outcome(reopened))
        else:
            seen = [all_records(reopened, reopened.find(name)) for name in TOPICS]
            assert seen == [[]] * 5
            found.add(bool(reopened.engine.transactions.transactions()))
        reopened.engine.close()
    assert found == {True, False}


def commit_on_a_channel(world: World) -> None:
    """What tx.commit does: one transaction that has no name, from its beginning to its end."""
    queue, job = world.topic("queue", retention={"until_acked": True}), b"job"
    world.engine.subscriptions.subscribe(queue, "s", now_ms=NOW)
    world.publish(queue, job)
    topics = [world.topic(name) for name in TOPICS]
    for topic in topics:
        world.engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    consumer = world.consumer(queue, visibility_ms=0)
    (got,) = world.dispatch()
    world.engine.store.commit()
    transactions = world.engine.transactions
    transaction, _ = transactions.begin(NS, now_ms=NOW)
    transactions.acknowledge(transaction, consumer, got.view, 0, 1)
    origin = Origin(transactions.branch(transaction))
    for topic in topics:
        world.engine.publishing.publish(topic, world.batch(b"1", b"2"), now_ms=NOW, origin=origin)
    transactions.commit(transaction, now_ms=NOW)


def decided(world: World) -> bool:
    """Whether it is committed. Nobody can go on with it, so nothing may wait for that."""
    assert world.engine.transactions.transactions() == []
    for name in TOPICS:
        world.publish(world.find(name), b"later")
    delivered = [[each.value for each in world.drain(world.find(name))] for name in TOPICS]
    jobs = [each.value for each in world.drain(world.find("queue"))]
    if delivered == [[b"1", b"2", b"later"]] * 5:
        assert jobs == []
        return True
    assert delivered == [[b"later"]] * 5
    assert jobs == [b"job"]
    return False


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_commit_nobody_can_go_on_with_is_decided_when_the_node_is_back(restarts: int) -> None:
    disk = FaultyDisk()
    world = World(disk)
    commit_on_a_channel(world)
    cuts: list[FaultyDisk] = []

    def crash_everywhere() -> None:
        cuts.extend(disk.crash(CutAt(cut)) for cut in range(0, disk.unsynced_bytes + 1, 8))

    disk.slow_sync = crash_everywhere
    world.engine.store.commit()
    found = set()
    for moment in cuts:
        reopened = World(moment)
        if restarts == 2:
            # It goes down again before what it decided is on disk, or just after.
            reopened = World(moment.crash(LoseAll()))
        found.add(decided(reopened))
        reopened.engine.close()
    assert found == {True, False}


def test_a_commit_nobody_can_go_on_with_is_decided_from_a_snapshot_too() -> None:
    disk = FaultyDisk()
    world = World(disk)
    topic = world.topic("a")
    world.engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    transactions = world.engine.transactions
    transaction, _ = transactions.begin(NS, now_ms=NOW)
    origin = Origin(transactions.branch(transaction))
    world.engine.publishing.publish(topic, world.batch(b"1"), now_ms=NOW, origin=origin)
    world.engine.store.checkpoint()
    reopened = World(disk.crash(KeepAll()))
    assert reopened.engine.transactions.transactions() == []
    reopened.publish(reopened.find("a"), b"later")
    assert [each.value for each in reopened.drain(reopened.find("a"))] == [b"later"]


CHILD = """
import sys, uncompiled
uncompiled.prefer_sources()
from test_transactions_killed import child
child(sys.argv[1], int(sys.argv[2]))
"""


def child(directory: str, entries: int) -> None:
    """Commit with every journal entry on disk before the next, and die after so many."""
    engine = Engine.open(RealDisk(Path(directory)), NOW, SMALL)
    coordinator = engine.transactions
    written = 0

    def durable() -> None:
        nonlocal written
        engine.store.commit()
        written += 1
        if written == entries:
            os.kill(os.getpid(), signal.SIGKILL)

    class DurableAppending:
        decided = coordinator._appending.decided

        def append(self, *args: object, **named: object) -> object:
            lsn = appending.append(*args, **named)  # type: ignore[arg-type]
            durable()
            return lsn

    appending, note = coordinator._appending, coordinator.note
    coordinator._appending = DurableAppending()  # type: ignore[assignment]

    def noting(entry: object) -> object:
        lsn = note(entry)  # type: ignore[arg-type]
        durable()
        return lsn

    coordinator.note = noting  # type: ignore[method-assign, assignment]
    coordinator.end(NS, "t", commit=True, now_ms=NOW)
    sys.stdout.write(str(written))
    engine.close()


def test_killed_after_any_entry_of_a_commit(tmp_path: Path) -> None:
    entries = 0
    outcomes = []
    while True:
        entries += 1
        directory = tmp_path / str(entries)
        directory.mkdir()
        world = World(RealDisk(directory))
        prepare(world)
        world.engine.close()
        command = [sys.executable, "-c", CHILD, str(directory), str(entries)]
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        reopened = World(RealDisk(directory))
        outcomes.append(outcome(reopened))
        reopened.engine.close()
        if done.returncode == 0:
            assert int(done.stdout) == entries - 1
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    # The decision is the first of three entries: whoever finds it carries it out.
    assert outcomes == [True] * 4
