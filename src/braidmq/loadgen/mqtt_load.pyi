from braidmq.loadgen.arrivals import Arrivals, Histogram
from braidmq.record.buffer import Buffer

class Publisher:
    qos: int
    published: int
    confirmed: int
    nacked: int
    strange: int
    window: int
    def __init__(
        self,
        topic: bytes,
        qos: int,
        version: int,
        body_bytes: int,
        run: int,
        producer: int,
        window: int,
        latency: Histogram,
    ) -> None: ...
    @property
    def room(self) -> int: ...
    @property
    def outstanding(self) -> int: ...
    def render(self, count: int, now_ns: int) -> bytes: ...
    def answers(self) -> bytes: ...

class Subscriber:
    arrivals: Arrivals
    version: int
    strange: int
    def __init__(self, arrivals: Arrivals, version: int) -> None: ...
    def answers(self) -> bytes: ...

def scan(
    data: Buffer,
    size: int,
    publisher: Publisher | None,
    subscriber: Subscriber | None,
    now_ns: int,
) -> tuple[int, list[tuple[int, int, bytes]]]: ...
