from braidmq.loadgen.arrivals import Arrivals, Histogram
from braidmq.record.buffer import Buffer

class Publisher:
    published: int
    confirmed: int
    nacked: int
    strange: int
    window: int
    def __init__(
        self,
        channel: int,
        exchange: bytes,
        keys: list[bytes],
        properties: bytes,
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

class Consumer:
    channel: int
    delivered: int
    acked: int
    strange: int
    ack_every: int
    def __init__(self, channel: int, ack_every: int) -> None: ...
    def acks(self, all: bool = False) -> bytes: ...

def scan(
    data: Buffer,
    size: int,
    publisher: Publisher | None,
    consumer: Consumer | None,
    arrivals: Arrivals | None,
    now_ns: int,
) -> tuple[int, list[tuple[int, int, bytes]]]: ...
