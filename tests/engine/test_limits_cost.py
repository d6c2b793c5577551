"""At a limit only what goes is looked at, however much there is, and what goes together is one
journal entry. Counted, not timed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engine_worlds import World, values

from braidmq.record.batch import RecordBatch

CHILD = Path(__file__).parent / "counting_reads.py"

Counts = dict[str, dict[str, float]]

LOOKED_AT_MAX = {
    "messages": 1.1,
    "bytes": 1.1,
    "both": 1.1,
    "priorities": 1.1,
    # Which partition has the oldest is asked of the next record of the one that lost its own.
    "partitions": 2.1,
    "partitions-bytes": 2.1,
    # Read once more to be written elsewhere.
    "dead-letters": 2.1,
    "reject": 0,
    "reject-bytes": 0,
    "refused-dead-letters": 0,
}
"""Batches read from the log for each message that is too many, of the 3000 that are there."""


@pytest.fixture(scope="module")
def counts() -> Counts:
    done = subprocess.run([sys.executable, CHILD], capture_output=True, text=True, check=True)
    found: Counts = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", LOOKED_AT_MAX)
def test_a_full_topic_looks_only_at_what_it_drops(counts: Counts, case: str) -> None:
    assert counts[case]["depth"] == 3000
    assert counts[case]["batches"] <= LOOKED_AT_MAX[case]


@pytest.mark.parametrize("case", ["messages", "bytes", "both", "priorities", "dead-letters"])
def test_what_a_batch_displaces_is_one_entry(counts: Counts, case: str) -> None:
    # The batch itself, once for both topics, and for each topic what it dropped.
    assert counts[case]["entries of a batch"] == 3


@pytest.mark.parametrize("case", ["dead-letters", "refused-dead-letters"])
def test_no_death_is_written_one_by_one(counts: Counts, case: str) -> None:
    assert counts[case]["one by one"] == 0


def test_a_thousand_small_ones_make_room_for_a_large_one_in_one_entry(counts: Counts) -> None:
    assert counts["displaced"]["entries"] == 3
    assert counts["displaced"]["batches"] <= 1.1


@pytest.mark.parametrize("sizes", [[10] * 8, [10, 20, 0, 5, 0, 30, 1, 1], [0] * 4])
def test_reach_is_the_fewest_records_with_so_many_bytes(sizes: list[int]) -> None:
    batch = RecordBatch()
    for size in sizes:
        batch.append(bytes(size))
    for first in range(len(sizes) + 1):
        for wanted in range(-1, sum(sizes) + 3):
            expected = first
            while expected < len(sizes) and sum(sizes[first:expected]) < wanted:
                expected += 1
            assert batch.reach(first, len(sizes), wanted) == expected


def test_a_limit_in_bytes_takes_as_many_as_fit() -> None:
    world = World()
    topic = world.topic(max_bytes=25)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    assert world.publish(topic, b"x" * 10, b"y" * 14, b"", b"z" * 2, b"") == 3
    assert world.publish(topic, b"1", b"2") == 1


def test_partitions_lose_their_oldest_in_the_order_of_time() -> None:
    """Several of one partition at once where they come before all that others have."""
    world = World()
    dead = {"topic": "dead"}
    topic = world.topic(partitions=3, overflow="drop-head", max_messages=6, dead_letter=dead)
    world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
    for partition, names in ((1, b"abc"), (0, b"d"), (1, b"e"), (2, b"f")):
        world.publish(topic, *[bytes([each]) for each in names], partition=partition)
        world.advance(10)
    world.publish(topic, *[bytes([each]) for each in b"ghijk"], partition=2)
    assert sorted(values(world.drain(world.find("dead")))) == [b"a", b"b", b"c", b"d", b"e"]
    assert sorted(values(world.drain(topic))) == [b"f", b"g", b"h", b"i", b"j", b"k"]
