"""Time that passes only when a test says so."""

from braidmq.model.ids import TimestampMs


class FakeClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def advance(self, ms: int) -> None:
        assert ms >= 0, "a Clock never runs backwards"
        self._now_ms += ms
