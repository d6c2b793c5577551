"""Looking for dead letters: so much is looked at for one answer, and who goes on misses nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from braidmq.api import letters
from braidmq.api.letters import Cursor, Search, Wanted
from braidmq.engine.engine import Engine
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import MemoryDisk

NOW = 1_700_000_000_000
NS = "/"


class Everything:
    """Somebody who may read all."""

    def may_read(self, name: str) -> bool:
        return True


@pytest.fixture
def engine() -> Engine:
    """Three topics, of whose messages some died, and a queue with others' messages among them."""
    engine = Engine.open(MemoryDisk(), NOW)
    for name in ("a", "b", "c"):
        topic = engine.topics.create(
            NS, name, {"partitions": 1, "dead_letter": {"topic": "dead"}}, now_ms=NOW
        )
        subscription = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
        publish(engine, name, 5)
        consumer = engine.consumers.attach(subscription, now_ms=NOW, passive=True)
        engine.dispatching.pull(consumer, 5, now_ms=NOW)
        view = topic.partitions[0].views[0]
        engine.settling.reject(consumer, view, 0, 5, now_ms=NOW)
        publish(engine, "dead", 4)
    return engine


def publish(engine: Engine, topic: str, count: int) -> None:
    batch = RecordBatch()
    batch.extend_values([b"x"] * count, NOW)
    engine.publishing.publish(engine.state.topic(NS, topic), batch, now_ms=NOW)


def search(engine: Engine, **wanted: Any) -> Search:
    access = SimpleNamespace(enter=lambda user, namespace: Everything())
    context: Any = SimpleNamespace(engine=lambda: engine, access=access)
    call: Any = SimpleNamespace(user=None)
    return Search(context, call, [NS], Wanted(**wanted))


def offsets(engine: Engine, stop_after: int, **wanted: Any) -> tuple[list[int], int]:
    """All that is found in answers of so many letters, and how many answers it took."""
    found: list[int] = []
    cursor, answers = Cursor(), 0
    while True:
        looking, got = search(engine, **wanted), 0
        answers += 1
        for letter in looking.go_on(cursor):
            if letter is not None:
                found.append(letter.record.offset)
                got += 1
                if got == stop_after:
                    break
        if looking.at is None:
            return found, answers
        cursor = Cursor.read(looking.at.text)


DEAD = [*range(5), *range(9, 14), *range(18, 23)]


@pytest.mark.parametrize("stop_after", [1, 2, 5, 100])
def test_who_goes_on_misses_nothing(engine: Engine, stop_after: int) -> None:
    assert offsets(engine, stop_after)[0] == DEAD
    assert offsets(engine, stop_after, topic="b")[0] == DEAD[5:10]
    assert offsets(engine, stop_after, queue="dead", offset=10)[0] == [10]


@pytest.mark.parametrize("most", [1, 3, 27])
def test_only_so_much_is_looked_at(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also where nothing is found: the queue has 27 messages."""
    monkeypatch.setattr(letters, "EXAMINED_MAX", most)
    found, answers = offsets(engine, 100)
    assert found == DEAD
    assert answers >= 27 // most
    found, answers = offsets(engine, 100, topic="c")
    assert found == DEAD[10:]
    assert answers >= 27 // most
