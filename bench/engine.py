"""The engine against a plain queue and against itself: ``python -m bench.engine``.

The plain queue is what anybody would write in ten lines: a ``deque`` of messages ready and a
``dict`` of those in flight. It keeps nothing, routes nothing and times nothing out.
bench/README.md says what each bar compares.
"""

import gc
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.harness import (
    Context,
    Measure,
    alternate,
    at_least,
    at_most,
    in_fresh_process,
    main,
    paired_ratio,
)
from braidmq.engine.engine import Engine
from braidmq.engine.state import TimerKind
from braidmq.engine.timer_wheel import TimerWheel
from braidmq.engine.topics import Consumer, Credit, Topic
from braidmq.model.limits import MIB
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import MemoryDisk, RealDisk
from braidmq.storage.settings import StorageSettings
from braidmq.testing.recording_disk import RecordingDisk

NOW = 1_700_000_000_000
NS = "bench"
VALUE = bytes(128)
BATCH = 1000


# --- what the benchmarks are made of ---


def batch_of(count: int) -> RecordBatch:
    batch = RecordBatch()
    batch.extend_values([VALUE] * count, NOW)
    return batch


def opened(settings: StorageSettings | None = None) -> Engine:
    return Engine.open(MemoryDisk(), NOW, settings)


def queue(engine: Engine, name: str = "q", **settings: object) -> tuple[Topic, Consumer]:
    """A queue as AMQP has them, and a consumer with credit for a batch."""
    wanted = {"partitions": 1, "retention": {"until_acked": True}} | settings
    topic = engine.topics.create(NS, name, wanted, now_ms=NOW)
    subscription = engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    consumer = engine.consumers.attach(subscription, now_ms=NOW, credits=[Credit(1 << 40)])
    return topic, consumer


def checkpoint_if_wanted(engine: Engine) -> None:
    if engine.store.wants_checkpoint():
        engine.store.checkpoint()


def take_and_ack(engine: Engine) -> int:
    """Everything that is ready, delivered and acknowledged."""
    count = 0
    while deliveries := engine.dispatching.dispatch(NOW):
        for each in deliveries:
            count += engine.settling.ack(
                each.consumer, each.view, each.start_offset, each.end_offset
            )
    return count


class PlainQueue:
    """The least a queue with acknowledgements can be."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, bytes]] = deque()
        self.in_flight: dict[int, bytes] = {}
        self.number = 0

    def publish(self, value: bytes) -> None:
        self.number += 1
        self.ready.append((self.number, value))

    def deliver(self) -> tuple[int, bytes]:
        number, value = self.ready.popleft()
        self.in_flight[number] = value
        return number, value

    def ack(self, number: int) -> None:
        del self.in_flight[number]


# --- publish, deliver, acknowledge ---


def engine_round(
    engine: Engine, topic: Topic, rounds: int, size: int, *, encoded: bool = False
) -> float:
    values = [VALUE] * size
    ready = [batch_of(size) for _ in range(rounds)] if encoded else []
    started = time.perf_counter()
    for index in range(rounds):
        if encoded:
            batch = ready[index]
        else:
            batch = RecordBatch()
            batch.extend_values(values, NOW)
        engine.publishing.publish(topic, batch, now_ms=NOW)
        take_and_ack(engine)
        engine.store.commit()
    elapsed = time.perf_counter() - started
    assert topic.depth == 0
    checkpoint_if_wanted(engine)  # in a thread of its own in a node
    return elapsed


def plain_round(plain: PlainQueue, rounds: int) -> float:
    values = [VALUE] * BATCH
    started = time.perf_counter()
    for _ in range(rounds):
        for value in values:
            plain.publish(value)
        taken = [plain.deliver() for _ in range(BATCH)]
        for number, _ in taken:
            plain.ack(number)
    return time.perf_counter() - started


def throughput(context: Context) -> Iterator[Measure]:
    engine, plain = opened(), PlainQueue()
    topic, _ = queue(engine)
    rounds = context.size(100, 20)
    engine_round(engine, topic, rounds, BATCH)
    samples = alternate(
        {
            "engine": lambda: engine_round(engine, topic, rounds, BATCH),
            "plain": lambda: plain_round(plain, rounds),
            "encoded": lambda: engine_round(engine, topic, rounds, BATCH, encoded=True),
        },
        context.rounds(15),
    )
    count = rounds * BATCH
    yield Measure(
        "publish, deliver, ack: 128 B by 1000",
        statistics.median(samples["engine"]) / count * 1e9,
        "ns/message",
        bar=at_least(5),
        ratio=paired_ratio(samples["plain"], samples["engine"]),
        baseline=statistics.median(samples["plain"]) / count * 1e9,
        against="deque + dict, rate",
        guide="300 ns",
        note="storage in memory, a commit a batch; built from values; checkpoints not counted",
    )
    yield Measure(
        "the same, batches encoded beforehand",
        statistics.median(samples["encoded"]) / count * 1e9,
        "ns/message",
        ratio=paired_ratio(samples["plain"], samples["encoded"]),
        baseline=statistics.median(samples["plain"]) / count * 1e9,
        against="deque + dict, rate",
        note="as gateways do while they read from the wire",
    )
    singles = context.size(5000, 1000)
    each = [engine_round(engine, topic, singles, 1) for _ in range(context.rounds(7))]
    yield Measure(
        "publish, deliver, ack: one message, commit each",
        statistics.median(each) / singles * 1e6,
        "µs/message",
        guide="15 µs",
    )


# --- delays ---


def wheel_cost(pending: int, operations: int) -> tuple[float, float]:
    """Seconds for scheduling and for cancelling, with so many pending."""
    rng = random.Random(pending)
    wheel = TimerWheel(NOW)
    filled = [
        wheel.schedule(NOW + rng.randrange(1, 30 * 86_400_000), TimerKind.DUE, 1)
        for _ in range(pending + operations)
    ]
    # So that it does not grow within what is measured; that is a figure of its own.
    for handle in filled[pending:]:
        wheel.cancel(handle)
    due = [NOW + rng.randrange(1, 30 * 86_400_000) for _ in range(operations)]
    gc.collect()
    started = time.perf_counter()
    handles = [wheel.schedule(each, 3, 1, 5) for each in due]
    scheduled = time.perf_counter()
    rng.shuffle(handles)
    cancelling = time.perf_counter()
    for handle in handles:
        wheel.cancel(handle)
    return scheduled - started, time.perf_counter() - cancelling


def longest_growth(pending: int) -> float:
    """Seconds of the slowest schedule on the way to so many."""
    wheel = TimerWheel(NOW)
    slowest = 0.0
    for number in range(pending):
        started = time.perf_counter()
        wheel.schedule(NOW + 60_000 + number, 3, 1)
        slowest = max(slowest, time.perf_counter() - started)
    return slowest


class DelayedTopic:
    """An engine with so many delayed messages pending."""

    def __init__(self, pending: int) -> None:
        # Records in the tail, as they are before a checkpoint.
        self.engine = opened(StorageSettings(journal_file_bytes=1024 * MIB))
        self.topic, _ = queue(self.engine)
        self.rng = random.Random(pending)
        left = pending
        while left:
            count = min(left, 10_000)
            self.publish(count)
            left -= count

    def publish(self, count: int) -> None:
        batch = RecordBatch()
        for _ in range(count):
            due = NOW + self.rng.randrange(1, 30 * 86_400_000)
            batch.append(b"x" * 16, due_at_ms=due, timestamp_ms=NOW)
        self.engine.publishing.publish(self.topic, batch, now_ms=NOW)
        self.engine.store.commit()

    def round(self, operations: int) -> tuple[float, float]:
        """Seconds for publishing delayed messages one by one, and for cancelling them."""
        batches = []
        for _ in range(operations):
            batch = RecordBatch()
            due = NOW + self.rng.randrange(1, 30 * 86_400_000)
            batch.append(b"x" * 16, due_at_ms=due, timestamp_ms=NOW)
            batches.append(batch)
        first = self.topic.partitions[0].log.next_offset
        gc.collect()
        started = time.perf_counter()
        for batch in batches:
            self.engine.publishing.publish(self.topic, batch, now_ms=NOW)
        scheduled = time.perf_counter()
        offsets = list(range(first, first + operations))
        self.rng.shuffle(offsets)
        cancelling = time.perf_counter()
        for offset in offsets:
            self.engine.delayed.cancel(self.topic, 0, offset)
        cancelled = time.perf_counter()
        self.engine.store.commit()
        return scheduled - started, cancelled - cancelling


def delays(context: Context) -> Iterator[Measure]:
    many = context.size(1_000_000, 100_000)
    operations = context.size(5_000, 2_000)
    topics = {"many": DelayedTopic(many), "few": DelayedTopic(1000)}
    assert topics["many"].engine.delayed.count(topics["many"].topic) == many
    cancels: dict[str, list[float]] = {"many": [], "few": []}

    def case(name: str) -> Callable[[], float]:
        def run() -> float:
            scheduled, cancelled = topics[name].round(operations)
            cancels[name].append(cancelled)
            return scheduled

        return run

    schedules = alternate({name: case(name) for name in topics}, context.rounds(9))
    for title, samples in (("publishing", schedules), ("cancelling", cancels)):
        yield Measure(
            f"{title} a delayed message, {many:,} pending",
            statistics.median(samples["many"]) / operations * 1e6,
            "µs",
            bar=at_most(2),
            ratio=paired_ratio(samples["many"], samples["few"]),
            baseline=statistics.median(samples["few"]) / operations * 1e6,
            against="1,000 pending",
        )
    pairs = [(wheel_cost(many, 50_000), wheel_cost(1000, 50_000)) for _ in range(context.rounds(5))]
    for index, title in ((0, "schedule"), (1, "cancel")):
        large, small = ([pair[side][index] for pair in pairs] for side in (0, 1))
        yield Measure(
            f"the timer wheel alone: {title}, {many:,} pending",
            statistics.median(large) / 50_000 * 1e9,
            "ns",
            ratio=paired_ratio(large, small),
            baseline=statistics.median(small) / 50_000 * 1e9,
            against="1,000 pending",
            bar=at_most(2),
            note="without its growth",
        )
    yield Measure(
        f"the longest schedule on the way to {many * 11 // 10:,}",
        longest_growth(many * 11 // 10) * 1e3,
        "ms",
        note="one more chunk of 2 MiB: blocks the loop",
    )


# --- fan-out ---


def fan_out(context: Context) -> Iterator[Measure]:
    disk = RecordingDisk(MemoryDisk())
    engine = Engine.open(disk, NOW)
    topics = [queue(engine, f"q{number}")[0] for number in range(1000)]
    engine.store.commit()
    body = os.urandom(100_000)
    written, elapsed = [], []
    for _ in range(context.rounds(5)):
        batch = RecordBatch()
        batch.append(body, timestamp_ms=NOW)
        disk.clear()
        started = time.perf_counter()
        engine.publishing.fan_out(topics, batch, now_ms=NOW)
        engine.store.commit()
        elapsed.append(time.perf_counter() - started)
        data = b"".join(each.data for each in disk.operations if each.kind == "write")
        assert data.count(body) == 1
        written.append(len(data))
        take_and_ack(engine)
        engine.store.commit()
    yield Measure(
        "bytes written for 100 000 to 1000 topics",
        statistics.median(written),
        "bytes",
        bar=at_most(1.5),
        ratio=statistics.median(written) / len(body),
        against="the body",
        note=f"once in the journal; {statistics.median(elapsed) * 1e3:.1f} ms with its commit",
    )


# --- a long queue ---


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


SAMPLE = 200_000


def fill(engine: Engine, topic: Topic, count: int) -> Iterator[int]:
    """Publish so many; yields now and then how many there are."""
    for number in range(count // 5000):
        engine.publishing.publish(topic, batch_of(5000), now_ms=NOW)
        engine.store.commit()
        checkpoint_if_wanted(engine)
        if number % 20 == 0:
            yield number * 5000


def drain(engine: Engine, consumer: Consumer, count: int) -> int:
    """Pull and acknowledge about so many, with a commit for each pull."""
    drained = 0
    while drained < count and (deliveries := engine.dispatching.pull(consumer, 4096, now_ms=NOW)):
        for each in deliveries:
            drained += engine.settling.ack(
                each.consumer, each.view, each.start_offset, each.end_offset
            )
        engine.store.commit()
        checkpoint_if_wanted(engine)
    return drained


def long_engine(root: Path) -> tuple[Engine, Topic, Consumer]:
    """With a queue whose consumer asks in rounds."""
    engine = Engine.open(RealDisk(root), NOW, StorageSettings(tail_bytes_max=256 * MIB))
    topic, consumer = queue(engine)
    consumer.paused = True
    return engine, topic, consumer


def queue_memory(root: Path, count: int) -> tuple[int, int, int]:
    """RSS before, at the end of filling, and at most until all is drained again."""
    engine, topic, consumer = long_engine(root)
    before = peak = resident()
    for _ in fill(engine, topic, count):
        peak = max(peak, resident())
    filled = resident()
    engine.consumers.resume(consumer)
    left = count
    while left > 0:
        left -= drain(engine, consumer, SAMPLE)
        peak = max(peak, resident())
    assert left == 0, left
    engine.close()
    return before, filled, max(peak, filled)


def drain_times(root: Path, count: int) -> tuple[list[float], list[float]]:
    """Seconds a message from a queue that was paged out, and from one that never left memory, by
    turns: what else the machine does hits both."""
    engine, topic, consumer = long_engine(root)
    tail, reader = queue(engine, "tail")
    reader.paused = True
    for _ in fill(engine, topic, count):
        pass
    engine.consumers.resume(consumer)

    def timed(who: Consumer) -> float:
        started = time.perf_counter()
        drained = drain(engine, who, SAMPLE)
        return (time.perf_counter() - started) / drained

    paged: list[float] = []
    fresh: list[float] = []
    # The last of it may still be in memory.
    for _ in range(count // SAMPLE * 3 // 4):
        paged.append(timed(consumer))
        for _ in fill(engine, tail, SAMPLE):
            pass
        reader.paused = False
        fresh.append(timed(reader))
        reader.paused = True
    engine.close()
    return paged, fresh


def backlog(context: Context) -> Iterator[Measure]:
    count = context.size(5_000_000, 1_000_000)
    before, filled, peak = in_fresh_process(queue_memory, context.directory(), count)
    yield Measure(
        f"memory of a queue of {count:,}, at most",
        (peak - before) / MIB,
        "MiB",
        bar=at_most(256),
        note=f"resident, beyond an empty engine; {(filled - before) / MIB:.0f} when filled",
    )
    paged, fresh = in_fresh_process(drain_times, context.directory(), count)
    yield Measure(
        "draining it",
        1e-3 / statistics.median(paged),
        "k/s",
        bar=at_least(0.5),
        ratio=paired_ratio(fresh, paged),
        baseline=1e-3 / statistics.median(fresh),
        against="from the tail, by turns",
        note="real disk, a commit for each 4096, checkpoints in line",
    )


# --- requeueing ---


def requeue_scattered(count: int) -> float:
    """Every second message of twice as many goes back, in random order."""
    engine = opened(StorageSettings(journal_file_bytes=512 * MIB))
    topic, consumer = queue(engine, ordering="none", retry={"attempts": 0}, visibility_ms=0)
    for _ in range(2 * count // BATCH):
        engine.publishing.publish(topic, batch_of(BATCH), now_ms=NOW)
    while engine.dispatching.pull(consumer, 4096, now_ms=NOW):
        pass
    view = topic.partitions[0].views[0]
    assert view.state.in_flight == 2 * count
    offsets = list(range(0, 2 * count, 2))
    random.Random(1).shuffle(offsets)
    gc.collect()
    started = time.perf_counter()
    for offset in offsets:
        engine.settling.requeue(consumer, view, offset, offset + 1, now_ms=NOW)
    taken = 0
    while found := engine.dispatching.pull(consumer, 4096, now_ms=NOW):
        taken += sum(each.stop_index - each.first_index for each in found)
    elapsed = time.perf_counter() - started
    assert taken == count, taken
    return elapsed


def requeue(context: Context) -> Iterator[Measure]:
    count = context.size(100_000, 20_000)
    samples = alternate(
        {
            "all": lambda: requeue_scattered(count),
            "half": lambda: requeue_scattered(count // 2),
        },
        context.rounds(5),
    )
    yield Measure(
        f"requeue {count:,} scattered messages and deliver them again",
        statistics.median(samples["all"]) / count * 1e6,
        "µs/message",
        bar=at_most(2.3),
        ratio=paired_ratio(samples["all"], samples["half"]),
        against="half as many, total time",
    )


# --- idle topics ---


def topics_memory(count: int) -> tuple[int, int]:
    engine = opened()
    engine.topics.create(NS, "first", {"partitions": 1}, now_ms=NOW)
    engine.store.checkpoint()
    before = resident()
    for number in range(count):
        topic = engine.topics.create(NS, f"topic-{number}", {"partitions": 1}, now_ms=NOW)
        engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
        if number % 1000 == 999:
            engine.store.commit()
    return before, resident()


def idle(context: Context) -> Iterator[Measure]:
    count = context.size(10_000, 2_000)
    before, after = in_fresh_process(topics_memory, count)
    yield Measure(
        f"memory of an idle topic with a subscription, {count:,} of them",
        (after - before) / count,
        "bytes",
        bar=at_most(4096),
        note="resident; one partition each",
    )
    engine = opened()
    for number in range(count):
        topic = engine.topics.create(NS, f"topic-{number}", {"partitions": 1}, now_ms=NOW)
        engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
    started = time.perf_counter()
    for turn in range(1000):
        engine.next_due_ms()
        engine.advance(NOW + turn * 10)
        engine.dispatching.dispatch(NOW + turn * 10)
    yield Measure(
        f"a turn of the loop with {count:,} idle topics",
        (time.perf_counter() - started) / 1000 * 1e6,
        "µs",
        note="next_due_ms, advance, dispatch",
    )


# --- retention ---


def retention(context: Context) -> Iterator[Measure]:
    """Publishing with retention by time, bytes and count against publishing without."""
    limited = {"time_ms": 3_600_000, "bytes": 32 * MIB, "messages": 100_000}
    cases: dict[str, Callable[[], float]] = {}
    rounds = context.size(200, 50)

    def publisher(engine: Engine, topic: Topic) -> Callable[[], float]:
        def run() -> float:
            elapsed = 0.0
            values = [VALUE] * 100
            for _ in range(rounds):
                started = time.perf_counter()
                batch = RecordBatch()
                batch.extend_values(values, NOW)
                engine.publishing.publish(topic, batch, now_ms=NOW)
                engine.advance(NOW)
                engine.store.commit()
                elapsed += time.perf_counter() - started
                checkpoint_if_wanted(engine)
            return elapsed

        return run

    for name, rule in (("with", limited), ("without", {})):
        engine = opened()
        topic = engine.topics.create(NS, "t", {"partitions": 1, "retention": rule}, now_ms=NOW)
        cases[name] = publisher(engine, topic)
        for _ in range(context.size(8, 1)):
            cases[name]()
    samples = alternate(cases, context.rounds(15))
    yield Measure(
        "publishing 128 B by 100 with retention by time, bytes and count",
        statistics.median(samples["with"]) / rounds / 100 * 1e9,
        "ns/message",
        bar=at_most(1.05),
        ratio=paired_ratio(samples["with"], samples["without"]),
        baseline=statistics.median(samples["without"]) / rounds / 100 * 1e9,
        against="without",
        note="looked at after every 100; commits in memory",
    )


# --- limits ---


def full_topics(engine: Engine, held: int, limit: int) -> list[Topic]:
    """As kept sessions of MQTT that are offline: they share what is published, and lose the oldest
    when they have ``limit``."""
    topics = []
    for number in range(4):
        settings = {
            "partitions": 1,
            "retention": {"until_acked": True},
            "overflow": "drop-head",
            "max_messages": limit,
            "dead_letter": {"topic": None},
        }
        topic = engine.topics.create(NS, f"s{number}", settings, now_ms=NOW)
        engine.subscriptions.subscribe(topic, "s", now_ms=NOW)
        topics.append(topic)
    for _ in range(held):
        engine.publishing.fan_out(topics, batch_of(1), now_ms=NOW)
    engine.store.commit()
    return topics


def limits(context: Context) -> Iterator[Measure]:
    """What a message to four topics costs when each of them loses one for it."""
    held, rounds = context.size(100_000, 10_000), context.size(2_000, 500)
    for size in (1, 50):
        cases: dict[str, Callable[[], float]] = {}
        for name, limit in (("at", held), ("below", 1 << 40)):
            engine = opened(StorageSettings(journal_file_bytes=1024 * MIB))
            cases[name] = publishing_to(engine, full_topics(engine, held, limit), rounds, size)
        samples = alternate(cases, context.rounds(9))
        yield Measure(
            f"publishing by {size} to 4 topics that have {held:,} messages, their limit",
            statistics.median(samples["at"]) / rounds / size * 1e6,
            "µs/message",
            bar=at_most(5),
            ratio=paired_ratio(samples["at"], samples["below"]),
            baseline=statistics.median(samples["below"]) / rounds / size * 1e6,
            against="below their limit",
            note="the oldest is dropped: an entry of the journal for each topic and batch",
        )


def publishing_to(
    engine: Engine, topics: list[Topic], rounds: int, size: int
) -> Callable[[], float]:
    def run() -> float:
        batches = [batch_of(size) for _ in range(rounds)]
        started = time.perf_counter()
        for batch in batches:
            engine.publishing.fan_out(topics, batch, now_ms=NOW)
        engine.store.commit()
        elapsed = time.perf_counter() - started
        checkpoint_if_wanted(engine)
        return elapsed

    return run


if __name__ == "__main__":
    main(
        "engine",
        {
            "throughput": throughput,
            "delays": delays,
            "fan-out": fan_out,
            "backlog": backlog,
            "requeue": requeue,
            "idle": idle,
            "retention": retention,
            "limits": limits,
        },
    )
