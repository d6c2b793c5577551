"""What looks like a pause delays time-outs, and never for ever."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from braidmq.engine.engine import Engine
from braidmq.model.ids import TimestampMs
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.pauses import BEAT_S, PAUSE_S, Pauses
from braidmq.storage.disk import MemoryDisk

LONG_S = 1.05 * PAUSE_S
"""A round of the loop that looks like a pause."""
ROUNDS_MAX = 3000
MOMENT_S = 0.01
VISIBILITY_MS = 100


class SlowLoop(asyncio.SelectorEventLoop):
    """Every round of it takes ``round_s`` by its own clock, and no time: for what is read, before
    its timers, or for what one of those does, between others of them."""

    round_s = 0.0
    is_in_timers = False
    rounds = 0
    _passed_s = 0.0

    def time(self) -> float:
        return self._passed_s

    def begin(self) -> None:
        self._passed_s += MOMENT_S if self.is_in_timers else self.round_s
        self.rounds += 1
        self.call_soon(self.begin)

    def work(self) -> None:
        self._passed_s += self.round_s
        self.call_later(BEAT_S / 2, self.work)


@pytest.fixture(params=[False, True], ids=["reading", "timers"])
def loop(request: pytest.FixtureRequest) -> Iterator[SlowLoop]:
    made = SlowLoop()
    made.round_s = LONG_S
    made.is_in_timers = request.param
    made.begin()
    if made.is_in_timers:
        made.work()
    yield made
    made.close()


def run_until(loop: SlowLoop, done: Callable[[], object]) -> None:
    async def look() -> None:
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0)
            if done():
                return
        raise AssertionError(f"not within {ROUNDS_MAX} rounds")

    loop.run_until_complete(look())


def test_silence_counts_though_every_round_looks_like_a_pause(loop: SlowLoop) -> None:
    counted: list[int] = []
    pauses = Pauses(loop, lambda: None)

    def beat() -> None:
        if not pauses.is_catching_up(loop.time()):
            counted.append(loop.rounds)
        loop.call_later(BEAT_S, beat)

    beat()
    for wanted in (2, 4, 6):
        run_until(loop, lambda wanted=wanted: len(counted) >= wanted)  # type: ignore[misc]


def test_a_pause_is_believed_in_again_once_silence_has_counted(loop: SlowLoop) -> None:
    pauses = Pauses(loop, lambda: None)
    for _ in range(3):
        loop.round_s = LONG_S
        run_until(loop, lambda: pauses.is_catching_up(loop.time()))
        loop.round_s = BEAT_S
        run_until(loop, lambda: not pauses.is_catching_up(loop.time()))
        run_until(loop, lambda seen=loop.rounds: loop.rounds > seen + 2)  # type: ignore[misc]


class LoopClock:
    def __init__(self, loop: SlowLoop) -> None:
        self._loop = loop

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self._loop.time() * 1000))

    wall_ms = now_ms


class Receiver:
    def __init__(self) -> None:
        self.deliveries = 0

    def deliver(self, delivery: object) -> None:
        self.deliveries += 1


def test_times_to_answer_end_though_every_round_looks_like_a_pause(loop: SlowLoop) -> None:
    clock, receiver = LoopClock(loop), Receiver()
    engine = Engine.open(MemoryDisk(), clock.now_ms())
    node_loop = NodeLoop(engine, clock, loop)
    topic = engine.topics.create(
        "n", "t", {"partitions": 1, "visibility_ms": VISIBILITY_MS}, now_ms=clock.now_ms()
    )
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=clock.now_ms())
    engine.consumers.attach(subscription, now_ms=clock.now_ms(), receiver=receiver)
    batch = RecordBatch()
    batch.append(b"x", timestamp_ms=clock.now_ms())
    engine.publishing.publish(topic, batch, now_ms=clock.now_ms())
    node_loop.schedule_turn()
    try:
        for wanted in (1, 2, 3):
            run_until(loop, lambda wanted=wanted: receiver.deliveries >= wanted)  # type: ignore[misc]
    finally:
        node_loop.stop()
        engine.close()
