"""What a message costs at a limit, beside the same below it: ``python -m bench.limits [rounds]``.

The engine alone, as its gateways use it, in turns; times are the processor's. A dead letter is one
more message, so it is held against twice the cost below the limit.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Sequence

from braidmq.engine.engine import Engine
from braidmq.engine.errors import TopicFull
from braidmq.engine.routing.bindings import topic as topic_destination
from braidmq.engine.topics import Topic
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import MemoryDisk
from braidmq.wire.amqp.properties import Properties
from braidmq.wire.envelopes import AMQP, amqp_envelope

NOW = 1_700_000_000_000
NS = "bench"
HELD = 10_000
MESSAGES = 5_000
VALUE = bytes(100)
SESSIONS = 4
ALIKE = [amqp_envelope(b"", b"q", Properties(delivery_mode=2))] * MESSAGES
NUMBERED = [
    amqp_envelope(b"", b"q", Properties(delivery_mode=2, message_id=f"m{number}"))
    for number in range(MESSAGES)
]

DEAD = {"topic": None, "exchange": "graves"}
BELOW: dict[str, object] = {"overflow": "drop-head", "max_messages": 1 << 40}
CASES: dict[str, tuple[dict[str, object], int]] = {
    "drop-head": ({"overflow": "drop-head", "max_messages": HELD}, 1),
    "drop-head, bytes": ({"overflow": "drop-head", "max_bytes": HELD * len(VALUE)}, 1),
    "drop-head, dead letters": (
        {"overflow": "drop-head", "max_messages": HELD, "dead_letter": DEAD},
        2,
    ),
    "reject": ({"overflow": "reject", "max_messages": HELD}, 1),
    "refused, dead letters": (
        {"overflow": "dead-letter", "max_messages": HELD, "dead_letter": DEAD},
        1,
    ),
}
"""Settings, and how often each message is written there."""


class Case:
    def __init__(
        self, settings: dict[str, object], envelopes: Sequence[bytes], topics: int, size: int
    ) -> None:
        self.engine = Engine.open(MemoryDisk(), NOW)
        self.envelopes = envelopes
        self.dead = self.queue("dead", {})
        self.engine.exchanges.declare(NS, "graves", "fanout")
        self.engine.exchanges.bind(NS, "graves", topic_destination("dead"))
        self.topics = [self.queue(f"q{number}", settings) for number in range(topics)]
        # As it will go on: what was published together leaves together.
        self.size = size
        for _ in range(HELD // MESSAGES):
            self.cost()

    def queue(self, name: str, settings: dict[str, object]) -> Topic:
        wanted = {"partitions": 1, "retention": {"until_acked": True}} | settings
        topic = self.engine.topics.create(NS, name, wanted, now_ms=NOW, kind="classic")
        self.engine.subscriptions.subscribe(topic, "queue", now_ms=NOW)
        return topic

    def publish(self, batch: RecordBatch) -> None:
        with contextlib.suppress(TopicFull):
            self.engine.publishing.fan_out(self.topics, batch, now_ms=NOW)

    def tidy(self) -> None:
        while self.engine.has_more:
            self.engine.advance(NOW)
            self.engine.dispatching.dispatch(NOW)
        self.engine.retention.purge(self.dead)
        self.engine.store.commit()
        self.engine.store.checkpoint()

    def cost(self) -> float:
        """Microseconds for a message."""
        batches, size = [], self.size
        for at in range(0, MESSAGES, size):
            batch = RecordBatch()
            for envelope in self.envelopes[at : at + size]:
                batch.append(VALUE, envelope=envelope, envelope_format=AMQP, timestamp_ms=NOW)
            batches.append(batch)
        began = time.process_time()
        for batch in batches:
            self.publish(batch)
            while self.engine.has_more:
                self.engine.advance(NOW)
                self.engine.dispatching.dispatch(NOW)
        spent = time.process_time() - began
        self.tidy()
        return spent / MESSAGES * 1e6


def main(rounds: int = 5) -> None:
    say = sys.stdout.write
    for envelopes, kind in ((ALIKE, "alike"), (NUMBERED, "each with its id")):
        for topics in (1, SESSIONS):
            for size in (1, 100):
                below = Case(BELOW, envelopes, topics, size)
                cases = {
                    name: (Case(settings, envelopes, topics, size), times)
                    for name, (settings, times) in CASES.items()
                }
                say(f"\n{kind}, {topics} queue(s), batches of {size}\n")
                costs: dict[str, list[float]] = {name: [] for name in cases}
                base: list[float] = []
                for _ in range(rounds):
                    base.append(below.cost())
                    for name, (case, _) in cases.items():
                        costs[name].append(case.cost())
                middle = statistics.median(base)
                say(f"{'below the limit':28} {middle:8.2f} us\n")
                for name, (_, times) in cases.items():
                    each = statistics.median(costs[name])
                    ratio = statistics.median(
                        one / (times * other) for one, other in zip(costs[name], base, strict=True)
                    )
                    say(f"{name:28} {each:8.2f} us   {ratio:5.2f} x {times}\n")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
