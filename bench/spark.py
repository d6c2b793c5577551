"""The Spark source against the limits of Spark's Python API, on one machine.

A limit is what a toy source reaches that hands over Arrow batches made before; nothing behind the
API can be faster. Both sides read the same columns with the same number of rows and splits into
Spark's ``noop`` sink. The broker serves from segments that were sealed before.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import (
    Benchmark,
    Context,
    Measure,
    alternate,
    at_least,
    at_most,
    main,
    paired_ratio,
    percentile,
    timed,
)
from bench.spark_toys import VALUE_BYTES, BraidTuples, Toy
from braidmq.engine.engine import Engine
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.pipeline.options import parse_options
from braidmq.pipeline.reading import SplitReader
from braidmq.pipeline.source import BatchReader
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import RealDisk
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp.properties import Properties as AmqpProperties
from braidmq.wire.envelopes import AMQP, MQTT, NATIVE, amqp_envelope, encode_headers
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt_properties
from braidmq.wire.mqtt.text import write_string

TOPIC = "bench"
PARTITIONS = 2
BATCH = 1000
START_MS = 1_700_000_000_000


def fill(root: Path, topics: dict[str, int]) -> None:
    """Topics of so many rows, all in segments; a millisecond passes with every batch."""
    engine = Engine.open(RealDisk(root), START_MS)
    settings = {"partitions": PARTITIONS}
    for name, rows in topics.items():
        topic = engine.topics.create("/", name, settings, now_ms=START_MS)
        for number in range(rows // BATCH):
            batch, now_ms = RecordBatch(), START_MS + number
            batch.extend_values([b"x" * VALUE_BYTES] * BATCH, now_ms)
            engine.publishing.publish(topic, batch, now_ms=now_ms, partition=number % PARTITIONS)
            if engine.store.wants_checkpoint():
                engine.store.checkpoint()
    engine.store.checkpoint()
    engine.close()


NUMBER = b"00000000"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXTS = {"attempt": "5", "paid": "true", "tenant": "acme", "traceparent": TRACE}

ENVELOPES = {
    "native": (
        NATIVE,
        encode_headers(
            {
                name: value.encode()
                for name, value in {
                    "content-type": "application/json",
                    "message-id": NUMBER.decode(),
                    **TEXTS,
                }.items()
            }
        ),
    ),
    "amqp": (
        AMQP,
        amqp_envelope(
            b"",
            b"orders",
            AmqpProperties(
                content_type="application/json",
                delivery_mode=2,
                message_id=NUMBER.decode(),
                headers={"attempt": 5, "paid": True, "tenant": "acme", "traceparent": TRACE},
            ),
        ),
    ),
    "mqtt": (
        MQTT,
        b"\1"
        + write_string("orders/new")
        + encode_mqtt_properties(
            MqttProperties(
                content_type="application/json",
                user_properties=(("message-id", NUMBER.decode()), *TEXTS.items()),
            ),
            Kind.PUBLISH,
        ),
    ),
}
"""The same six headers in each protocol; the number is another in every message."""


def fill_with_headers(root: Path, rows: int) -> None:
    """A topic for each protocol, all in segments."""
    engine = Engine.open(RealDisk(root), START_MS)
    for name, (envelope_format, envelope) in ENVELOPES.items():
        settings = {"partitions": PARTITIONS}
        topic = engine.topics.create("/", name, settings, now_ms=START_MS)
        for number in range(rows // BATCH):
            batch = RecordBatch()
            for at in range(BATCH):
                batch.append(
                    b"x" * VALUE_BYTES,
                    key=b"%d" % at,
                    envelope=envelope.replace(NUMBER, b"%08d" % (number * BATCH + at)),
                    envelope_format=envelope_format,
                    timestamp_ms=START_MS,
                )
            partition = number % PARTITIONS
            engine.publishing.publish(topic, batch, now_ms=START_MS, partition=partition)
            if engine.store.wants_checkpoint():
                engine.store.checkpoint()
    engine.store.checkpoint()
    engine.close()


@contextmanager
def spark_session(root: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    here = Path(__file__).parent.parent
    paths = [str(here), str(here / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(root))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    for source in (Toy, BraidTuples):
        session.dataSource.register(source)
    try:
        yield session
    finally:
        session.stop()


@dataclass
class Bench:
    spark: Any
    node: LiveNode
    root: Path
    runs: int = 0

    def batch(self, form: str, **options: object) -> Callable[[], float]:
        def run() -> float:
            reader = self.spark.read.format(form)
            for name, value in options.items():
                reader = reader.option(name, str(value))
            return timed(lambda: reader.load().write.format("noop").mode("overwrite").save())

        return run

    def count(self, form: str, **options: object) -> Callable[[], float]:
        def run() -> float:
            reader = self.spark.read.format(form)
            for name, value in options.items():
                reader = reader.option(name, str(value))
            return timed(lambda: reader.load().count())

        return run

    def stream(self, form: str, **options: object) -> Callable[[], Any]:
        def run() -> Any:
            reader = self.spark.readStream.format(form)
            for name, value in options.items():
                reader = reader.option(name, str(value))
            self.runs += 1
            writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(self.root / f"c{self.runs}")).start()
            query.awaitTermination()
            return query

        return run

    def topic(self, name: str = TOPIC) -> dict[str, object]:
        return {"url": self.node.http_url, "topic": name}

    def splits(self, name: str = TOPIC) -> int:
        options = parse_options({key: str(value) for key, value in self.topic(name).items()})
        return len(BatchReader(options).partitions())


@contextmanager
def world(context: Context, topics: dict[str, int]) -> Iterator[Bench]:
    data = context.directory()
    fill(data, topics)
    with (
        live_node(data, amqp_port=0, mqtt_port=0, ws_port=0) as node,
        spark_session(context.directory()) as spark,
    ):
        yield Bench(spark, node, context.directory())


def rate(
    name: str,
    rows: int,
    samples: dict[str, list[float]],
    bar: float,
    against: str = "toy source",
    guide: str = "",
) -> Measure:
    """Rows a second of the first of two cases that each took turns with, beside the other's."""
    ours, theirs = ([rows / took_s for took_s in taken] for taken in samples.values())
    return Measure(
        name,
        percentile(ours, 50),
        "rows/s",
        at_least(bar),
        paired_ratio(ours, theirs),
        percentile(theirs, 50),
        against,
        guide=guide,
    )


def reading(context: Context) -> Iterator[Measure]:
    rows = context.size(4_000_000, 200_000)
    with world(context, {TOPIC: rows}) as bench:
        splits = bench.splits()
        ours = bench.batch("braid", **bench.topic())
        limit = bench.batch("toy", rows=rows, splits=splits)
        for each in (ours, limit):
            each()  # workers start, files come into memory
        process = BrokerProcess(bench.node.process.pid)
        busy: list[float] = []

        def watched() -> float:
            before = process.cpu_s()
            took = ours()
            busy.append(100 * (process.cpu_s() - before) / took)
            return took

        samples = alternate({"ours": watched, "limit": limit}, context.rounds(7))
        name = f"batch read of sealed segments, {VALUE_BYTES} B values"
        yield rate(name, rows, samples, 0.7, guide="2 000 000")
        yield Measure(
            "the broker's CPU meanwhile", percentile(busy, 50), "% of a core", at_most(10)
        )
        few = {"columns": "key,value"}
        cases = {
            "ours": bench.batch("braid", **bench.topic(), **few),
            "limit": bench.batch("toy", rows=rows, splits=splits, **few),
        }
        samples = alternate(cases, context.rounds(7))
        yield rate("the same, keys and values alone", rows, samples, 0.9, guide="2 000 000")
        cases = {"count": bench.count("braid", **bench.topic(), columns="offset"), "all": ours}
        samples = alternate(cases, context.rounds(7))
        yield rate("count of a topic, no value decoded", rows, samples, 2, "reading all columns")


def headers(context: Context) -> Iterator[Measure]:
    rows = context.size(1_000_000, 50_000)
    data = context.directory()
    fill_with_headers(data, rows)
    with (
        live_node(data, amqp_port=0, mqtt_port=0, ws_port=0) as node,
        spark_session(context.directory()) as spark,
    ):
        bench = Bench(spark, node, context.directory())
        cases = {name: bench.batch("braid", **bench.topic(name)) for name in ENVELOPES}
        for each in cases.values():
            each()
        samples = alternate(cases, context.rounds(7))
        for name in ("amqp", "mqtt"):
            pair = {name: samples[name], "native": samples["native"]}
            title = f"batch read of {name.upper()} messages with six headers, all columns"
            yield rate(title, rows, pair, 0.7, "the same as native headers")


def tuples(context: Context) -> Iterator[Measure]:
    """A benchmark of its own, because it takes most of a minute a round."""
    rows = context.size(4_000_000, 200_000)
    with world(context, {TOPIC: rows}) as bench:
        cases = {
            "ours": bench.batch("braid", **bench.topic()),
            "tuples": bench.batch("braid_tuples", **bench.topic()),
        }
        cases["ours"]()
        samples = alternate(cases, context.rounds(3, 2))
        yield rate("batch read beside tuples", rows, samples, 5, "the topic through tuples")


def streaming(context: Context) -> Iterator[Measure]:
    rows = context.size(4_000_000, 200_000)
    with world(context, {TOPIC: rows}) as bench:
        splits = bench.splits()
        ours = bench.stream("braid", startingOffsets="earliest", **bench.topic())
        limit = bench.stream("toy", rows=rows, splits=splits)
        cases = {"ours": lambda: timed(ours), "limit": lambda: timed(limit)}
        for each in cases.values():
            each()
        samples = alternate(cases, context.rounds(7))
        yield rate("availableNow stream in one batch", rows, samples, 0.7)
        small = context.size(20, 4)
        per_trigger = rows // small
        few = bench.stream(
            "braid", startingOffsets="earliest", maxRecordsPerTrigger=per_trigger, **bench.topic()
        )
        toys = bench.stream("toy", rows=small * 10, splits=2, perTrigger=10)
        took = [each["durationMs"]["triggerExecution"] for each in few().recentProgress]
        least = [each["durationMs"]["triggerExecution"] for each in toys().recentProgress]
        yield Measure(
            f"a micro-batch of {per_trigger:,} rows",
            percentile(took, 50),
            "ms",
            baseline=percentile(least, 50),
            against="a toy's of 10 rows",
            ratio=percentile(took, 50) / percentile(least, 50),
            note="what a micro-batch costs before it reads anything is the toy's",
        )


def window(context: Context) -> Iterator[Measure]:
    rows = context.size(4_000_000, 400_000)
    data = context.directory()
    fill(data, {TOPIC: rows})
    size = sum(path.stat().st_size for path in data.glob("segments/*.segment"))
    batches = rows // BATCH
    low = START_MS + batches // 2
    with live_node(data, amqp_port=0, mqtt_port=0, ws_port=0) as node:
        options = parse_options(
            {
                "url": node.http_url,
                "topic": TOPIC,
                "startingTimestamp": str(low),
                "endingTimestamp": str(low + batches // 100),
            }
        )
        readers = [SplitReader(each.value, options) for each in BatchReader(options).partitions()]
        found = sum(batch.num_rows for each in readers for batch in each.read())
        assert found == batches // 100 * BATCH, found
    looked_at = sum(each.bytes_read for each in readers)
    yield Measure(
        "bytes read for 1 % of a topic's time", 100 * looked_at / size, "% of it", at_most(5)
    )


def sizes_of(rows: int) -> dict[str, int]:
    return {f"x{factor}": rows * factor for factor in (1, 4, 16)}


def grown(name: str, samples: dict[str, list[float]]) -> Measure:
    """Of sizes_of(): time for a row that is added. What it costs whatever the size is no part."""
    marginal = [
        (big - middle) / 12 / ((middle - small) / 3)
        for small, middle, big in zip(*samples.values(), strict=True)
    ]
    took_s, ratio = percentile(samples["x16"], 50), percentile(marginal, 50)
    return Measure(name, took_s, "s", at_most(1.15), ratio, against="from 1× to 4×")


def growth(context: Context) -> Iterator[Measure]:
    sizes = sizes_of(context.size(500_000, 50_000))
    with world(context, sizes) as bench:
        cases = {name: bench.batch("braid", **bench.topic(name)) for name in sizes}
        peaks: dict[str, int] = {}
        for name, case in cases.items():
            with memory_watch() as peak:
                case()
            peaks[name] = peak[0]
        samples = alternate(cases, context.rounds(5))
        yield grown("time for a row, from 4× to 16× the data", samples)
        yield Measure(
            "memory of Spark and its workers at 16×",
            peaks["x16"] / 2**20,
            "MiB",
            at_most(1.15),
            peaks["x16"] / peaks["x4"],
            peaks["x4"] / 2**20,
            "at 4×",
        )


@contextmanager
def memory_watch() -> Iterator[list[int]]:
    """The most that all processes below this one had resident, but for the broker."""
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], resident_below(os.getpid()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def resident_below(root: int) -> int:
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if b"braidmq.cli" not in command:
            parents[int(entry.name)] = int(fields[1])
            resident[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(resident[pid] for pid in below - {root})


BENCHMARKS: dict[str, Benchmark] = {
    "reading": reading,
    "headers": headers,
    "tuples": tuples,
    "streaming": streaming,
    "window": window,
    "growth": growth,
}

if __name__ == "__main__":
    main("spark", BENCHMARKS)
