"""Crashes of an engine at any time: what was durable holds, what was not may have happened."""

import itertools
import sys
from collections import Counter
from typing import Any

from engine_model_world import HERE, PROFILES, QUEUE, SMALL, crashes, delays, picks, read_all
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from braidmq.engine.engine import Engine
from braidmq.engine.envelope import decode_headers
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, PartitionView
from braidmq.record.batch import RecordBatch
from braidmq.testing.faulty_disk import FaultyDisk


class CrashMachine(RuleBasedStateMachine):
    """Crashes come at any time. What was durable holds; what was not may have happened or not."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.now_ms = 1_000_000
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.numbers = itertools.count()
        self.published: dict[tuple[str, bytes], int] = {}
        """Topic and value → the LSN that makes it durable."""
        self.settled: dict[tuple[str, str, bytes], int] = {}
        """Acknowledged or rejected: topic, subscription and value → LSN."""
        self.arrived: Counter[tuple[str, str, bytes]] = Counter()
        self.held: dict[tuple[str, str, bytes], tuple[Consumer, PartitionView, int]] = {}
        self.attempts: dict[tuple[str, str, bytes], int] = {}
        for name, profile, subs in (("q", QUEUE, "a"), ("t", PROFILES[4], "ab")):
            topic = self.engine.topics.create(HERE, name, profile, now_ms=self.now_ms)
            for each in subs:
                self.engine.subscriptions.subscribe(topic, each, now_ms=self.now_ms)
        self.engine.store.commit()
        self.attach()

    @property
    def lsn(self) -> int:
        return self.engine.store.journal.next_lsn - 1

    def topics(self) -> list[Any]:
        return [self.engine.state.topic(HERE, name) for name in "qt"]

    def attach(self) -> None:
        for topic in self.topics():
            for subscription in topic.subscriptions.values():
                for _ in range(2):
                    self.engine.consumers.attach(
                        subscription, now_ms=self.now_ms, credits=[Credit(5)]
                    )

    # --- rules ---

    @rule(count=st.integers(1, 12), fan_out=st.booleans(), delay=delays, padding=st.booleans())
    def publish(self, count: int, fan_out: bool, delay: int, padding: bool) -> None:
        batch = RecordBatch()
        for _ in range(count):
            batch.append(
                b"m%d." % next(self.numbers) + b"x" * 100 * padding,
                timestamp_ms=self.now_ms,
                due_at_ms=self.now_ms + delay if delay else 0,
            )
        topics = self.topics()[: 1 + fan_out]
        values = [record.value for record in batch.records()]
        self.engine.publishing.fan_out(topics, batch, now_ms=self.now_ms)
        self.published |= {(topic.name, v): self.lsn for topic in topics for v in values}

    @rule()
    def dispatch(self) -> None:
        for delivery in self.engine.dispatching.dispatch(self.now_ms):
            view = delivery.view
            for index in range(delivery.first_index, delivery.stop_index):
                record = delivery.batch.record(index)
                where = (view.partition.topic.name, view.subscription.name, record.value)
                assert where not in self.settled, "settled, and here again"
                assert where not in self.held, "in flight twice"
                self.arrived[where] += 1
                assert 1 <= delivery.attempts <= self.arrived[where]
                assert delivery.attempts == self.attempts.get(where, delivery.attempts - 1) + 1
                self.attempts[where] = delivery.attempts
                self.held[where] = (delivery.consumer, view, record.offset)

    @precondition(lambda self: self.held)
    @rule(pick=picks, answer=st.sampled_from(["ack", "ack", "ack", "nack", "requeue", "reject"]))
    def answer(self, pick: int, answer: str) -> None:
        where = list(self.held)[pick % len(self.held)]
        consumer, view, at = self.held.pop(where)
        timed = {} if answer == "ack" else {"now_ms": self.now_ms}
        assert getattr(self.engine.settling, answer)(consumer, view, at, at + 1, **timed) == 1
        if answer in ("ack", "reject") or view.state.look(at) is None:
            self.settled[where] = self.lsn

    @rule(by_ms=st.sampled_from([10, 200, 600]))
    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.engine.advance(self.now_ms)
        for where, (consumer, view, at) in list(self.held.items()):
            entry = view.state.look(at)
            if entry is None:
                self.settled[where] = self.lsn
            if entry is None or (entry[0], entry[2]) != (State.IN_FLIGHT, consumer.id):
                del self.held[where]

    @rule()
    def commit(self) -> None:
        self.engine.store.commit()

    @rule()
    def checkpoint(self) -> None:
        self.engine.store.checkpoint()

    @rule(choice=crashes)
    def crash(self, choice: Any) -> None:
        durable = self.engine.store.journal.durable_lsn
        self.disk = self.disk.crash(choice)
        self.engine = Engine.open(self.disk, self.now_ms, SMALL)
        self.held.clear()
        self.attempts.clear()
        self.published = {key: 0 for key, lsn in self.published.items() if lsn <= durable}
        self.settled = {key: 0 for key, lsn in self.settled.items() if lsn <= durable}
        self.attach()

    @invariant()
    def dead_once(self) -> None:
        if self.engine.store.wants_checkpoint():
            self.engine.store.checkpoint()
        dead = self.dead()
        assert max(dead.values(), default=1) == 1
        assert not dead.keys() & self.held.keys()

    def dead(self) -> Counter[tuple[str, str, bytes]]:
        found: Counter[tuple[str, str, bytes]] = Counter()
        for topic in self.engine.state.topics_of(HERE):
            if topic.name.endswith(".dlq"):
                for record in read_all(self.engine, topic, 0):
                    headers = dict(decode_headers(record.envelope))
                    sub = headers["x-death-subscription"].decode()
                    found[topic.name.removesuffix(".dlq"), sub, record.value or b""] += 1
        return found

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return
        for _ in range(200):
            self.dispatch()
            while self.held:
                self.answer(0, "ack")
            if not any(s.depth for topic in self.topics() for s in topic.subscriptions.values()):
                break
            self.advance(500)
        for topic in self.topics():
            for sub in topic.subscriptions.values():
                assert sub.depth == 0
                for name, value in self.published:
                    assert name != topic.name or self.arrived[name, sub.name, value], "never came"


CrashMachine.TestCase.settings = settings(
    settings.get_profile("models"),
    deadline=None,
    max_examples=120,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestCrash = CrashMachine.TestCase
