BODY_BYTES_MIN: int

class Histogram:
    total: int
    max_ns: int
    def clear(self) -> None: ...
    def add(self, ns: int) -> None: ...
    def percentile(self, percent: float) -> int: ...

class Arrivals:
    received: int
    duplicated: int
    reordered: int
    redelivered: int
    foreign: int
    def __init__(self, run: int, producers: int, latency: Histogram) -> None: ...
