"""Time that passes only when a test says so."""

from braidmq.model.ids import TimestampMs


class FakeClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = self._wall_ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(self._wall_ms)

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time never runs backwards"
        self._now_ms += ms
        self._wall_ms += ms

    def set(self, by_ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._wall_ms += by_ms
