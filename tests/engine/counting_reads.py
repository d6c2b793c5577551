"""What messages cost at a limit, counted: ``python counting_reads.py`` prints a line of JSON.

A process of its own, whose modules are those of the sources: only there can a log be made to count.
"""

import json
import sys

import uncompiled

uncompiled.prefer_sources()

from engine_worlds import World  # noqa: E402

from braidmq.engine import dead_letters  # noqa: E402
from braidmq.engine.envelope import Death, Deaths  # noqa: E402
from braidmq.engine.topics import Topic  # noqa: E402
from braidmq.record.batch import Record  # noqa: E402
from braidmq.storage.partition_log import PartitionLog, Run  # noqa: E402
from braidmq.storage.settings import StorageSettings  # noqa: E402

HELD = 3000
"""Messages in the topic when it is full: far more than any bound on what may be looked at."""
MORE = 200

CASES: dict[str, dict[str, object]] = {
    "messages": {"max_messages": HELD},
    "bytes": {"max_bytes": HELD * 10},
    "both": {"max_messages": HELD, "max_bytes": HELD * 10},
    "partitions": {"max_messages": HELD, "partitions": 4},
    "partitions-bytes": {"max_bytes": HELD * 10, "partitions": 4},
    "priorities": {"max_messages": HELD, "priority": "lanes"},
    "dead-letters": {"max_messages": HELD, "dead_letter": {"topic": "dead"}},
    "reject": {"max_messages": HELD, "overflow": "reject"},
    "reject-bytes": {"max_bytes": HELD * 10, "overflow": "reject"},
    "refused-dead-letters": {
        "max_messages": HELD,
        "overflow": "dead-letter",
        "dead_letter": {"topic": "dead"},
    },
}


class Counted:
    def __init__(self) -> None:
        self.batches = 0
        self.annotated = 0
        read, annotate = PartitionLog.read, dead_letters.annotate

        def counting(
            log: PartitionLog, offset: int, bytes_max: int = 1 << 18, stop: int = 1 << 62
        ) -> list[Run]:
            found = read(log, offset, bytes_max, stop)
            self.batches += len(found)
            return found

        def annotating(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
            self.annotated += 1
            return annotate(record, death)

        PartitionLog.read = counting  # type: ignore[method-assign]
        dead_letters.annotate = annotating  # type: ignore[attr-defined]


def full(world: World, settings: dict[str, object]) -> list[Topic]:
    """Two of them, which share every message: their batches stay as small as they came."""
    common = {"overflow": "drop-head", "dead_letter": {"topic": None}}
    topics = []
    for name in ("a", "b"):
        topic = world.topic(name, **(common | {"retention": {"until_acked": True}} | settings))
        world.engine.subscriptions.subscribe(topic, "s", now_ms=world.now_ms)
        topics.append(topic)
    publish(world, topics, HELD)
    return topics


def publish(world: World, topics: list[Topic], count: int) -> None:
    for number in range(count):
        batch = world.batch(b"0123456789", priority=number % 5)
        world.engine.publishing.fan_out(topics, batch, now_ms=world.now_ms)


def measured(settings: dict[str, object], counted: Counted) -> dict[str, float]:
    world = World(settings=StorageSettings())
    topics = full(world, settings)
    counted.batches, counted.annotated, before = 0, 0, world.lsn()
    publish(world, topics, MORE)
    each = MORE * len(topics)
    result = {
        "batches": counted.batches / each,
        "entries": (world.lsn() - before) / each,
        "depth": float(topics[0].depth),
    }
    # All that a batch displaces goes at once.
    counted.batches, before = 0, world.lsn()
    world.engine.publishing.fan_out(
        topics, world.batch(*[b"0123456789"] * 100), now_ms=world.now_ms
    )
    result["entries of a batch"] = float(world.lsn() - before)
    result["one by one"] = float(counted.annotated)
    return result


def displaced(counted: Counted) -> dict[str, float]:
    """One message that has the bytes of a thousand."""
    world = World(settings=StorageSettings())
    topics = full(world, CASES["bytes"])
    counted.batches, before = 0, world.lsn()
    world.engine.publishing.fan_out(topics, world.batch(bytes(10_000)), now_ms=world.now_ms)
    assert topics[0].depth == HELD - 1000 + 1
    return {"batches": counted.batches / 2000, "entries": float(world.lsn() - before)}


if __name__ == "__main__":
    counter = Counted()
    found = {name: measured(settings, counter) for name, settings in CASES.items()}
    found["displaced"] = displaced(counter)
    sys.stdout.write(json.dumps(found))
