"""AMQP's workloads, as a table: each is one way in which a broker is used."""

from dataclasses import dataclass, replace

from braidmq.loadgen.driver import Workload

TOPIC_BINDINGS = 1000
BACKLOG_MESSAGES = 1_000_000


@dataclass(frozen=True)
class AmqpWorkload(Workload):
    queues: int = 1
    persistent: bool = True
    prefetch: int = 1000
    ack_every: int = 100
    """0: the broker takes a delivery for acknowledged."""
    topic_keys: int = 0
    """Through a topic exchange with ``TOPIC_BINDINGS`` bindings, these many keys in turn."""
    backlog: int = 0
    """Publish these first, then drain them; 0: both at once, for a time."""


_A = AmqpWorkload(
    "A", "128 B persistent, confirm window 1000, prefetch 1000, ack every 100, one queue"
)
_D1 = AmqpWorkload(
    "D1",
    "200 producers × 50/s into one queue, persistent, confirms, ack each",
    producers=200,
    per_second=50,
    ack_every=1,
)

WORKLOADS = {
    each.name: each
    for each in (
        _A,
        AmqpWorkload(
            "B", "128 B transient, no confirms, auto-ack", persistent=False, window=0, ack_every=0
        ),
        AmqpWorkload(
            "C", "2000 msg/s persistent, confirms, ack each", per_second=2000, ack_every=1
        ),
        _D1,
        replace(_D1, name="D2", about=_D1.about.replace("one queue", "200 queues"), queues=200),
        AmqpWorkload(
            "D3", "200 producers, window 1, unthrottled, one queue", producers=200, window=1
        ),
        replace(_A, name="E", about=_A.about.replace("128 B", "1 KB"), body_bytes=1024),
        replace(
            _A,
            name="topic",
            about="A through a topic exchange with 1000 bindings, 1000 keys in turn",
            topic_keys=TOPIC_BINDINGS,
        ),
        replace(
            _A,
            name="topic-1",
            about="A through a topic exchange with 1000 bindings, always one key",
            topic_keys=1,
        ),
        replace(
            _A,
            name="backlog",
            about="1 M of A's messages published, then drained",
            backlog=BACKLOG_MESSAGES,
        ),
    )
}
