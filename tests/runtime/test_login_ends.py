"""Ends of log-ins on the timer wheel, with a clock that can be set."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from braidmq.engine.engine import Engine
from braidmq.model.ids import TimestampMs
from braidmq.runtime.login_ends import LOOK_MS_MAX, NEVER, LoginEnds
from braidmq.runtime.node_loop import NodeLoop
from braidmq.storage.disk import MemoryDisk

START_MS = 1_800_000_000_000


class Time:
    def __init__(self) -> None:
        self.ms = self.wall = START_MS

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.ms)

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(self.wall)

    def run(self, ms: int) -> None:
        self.ms += ms
        self.wall += ms


class World:
    def __init__(self) -> None:
        self.clock = Time()
        self.engine = Engine.open(MemoryDisk(), START_MS)
        self.node_loop = NodeLoop(self.engine, self.clock, asyncio.get_running_loop())
        self.ends: LoginEnds = self.node_loop.login_ends
        self.over: list[str] = []

    def add(self, name: str, in_ms: int | None) -> int:
        ends_ms = None if in_ms is None else self.clock.wall + in_ms
        return self.ends.add(ends_ms, lambda: self.over.append(name))

    async def run(self, ms: int) -> list[str]:
        """In steps that no timer is longer than."""
        while ms:
            step = min(ms, LOOK_MS_MAX // 2)
            ms -= step
            self.clock.run(step)
            self.engine.advance(self.clock.ms)
        await asyncio.sleep(0)
        found, self.over = self.over, []
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.node_loop.stop()
    made.engine.close()


async def test_they_end_in_time_and_once(world: World) -> None:
    world.add("short", 1000)
    world.add("long", 10 * LOOK_MS_MAX)
    assert world.add("never", None) == NEVER
    assert await world.run(999) == []
    assert await world.run(20) == ["short"]
    assert await world.run(10 * LOOK_MS_MAX - 1100) == []
    assert await world.run(200) == ["long"]
    assert len(world.ends) == 0
    assert await world.run(10 * LOOK_MS_MAX) == []


async def test_what_is_renewed_does_not_end(world: World) -> None:
    first = world.add("first", 1000)
    world.ends.cancel(first)
    world.ends.cancel(first)
    world.ends.cancel(NEVER)
    world.add("second", 5000)
    assert await world.run(2000) == []
    assert await world.run(4000) == ["second"]


async def test_a_clock_that_is_set_is_noticed(world: World) -> None:
    world.add("forward", 100 * LOOK_MS_MAX)
    world.clock.wall += 100 * LOOK_MS_MAX
    assert await world.run(LOOK_MS_MAX + 1000) == ["forward"]
    world.add("back", LOOK_MS_MAX)
    world.clock.wall -= LOOK_MS_MAX
    assert await world.run(LOOK_MS_MAX + 1000) == []
    assert await world.run(LOOK_MS_MAX) == ["back"]


async def test_what_is_over_already_ends_at_once(world: World) -> None:
    world.add("past", -5000)
    assert await world.run(20) == ["past"]
