import time

import pytest

from braidmq.model.clock import SystemClock
from braidmq.testing.clock import FakeClock

DAY_MS = 86_400_000


@pytest.mark.parametrize("by_ms", [-DAY_MS, -1000, 1000, DAY_MS])
def test_time_goes_on_when_the_wall_clock_is_set(
    by_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    before, real = clock.now_ms(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + by_ms * 1_000_000)
    began = time.monotonic()
    while clock.now_ms() == before:
        assert time.monotonic() - began < 5, "the time stands still"
    assert clock.now_ms() - before < DAY_MS / 2
    # Both are read one after the other, and the wall clock is slewed now and then.
    assert abs(clock.wall_ms() - clock.now_ms() - by_ms) < 100


def test_the_fake_one_does_as_it_is_told() -> None:
    clock = FakeClock(1000)
    clock.set(-500)
    clock.advance(10)
    assert (clock.now_ms(), clock.wall_ms()) == (1010, 510)
