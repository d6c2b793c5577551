"""Lakes beside what Spark does with Parquet by itself, and the shipped pipeline ``archive``.

Reading: the same files, once as a lake and once as plain Parquet. Writing: the same rows, which
Spark has in memory, once as a lake and once as a directory of Parquet files. A lake is done when
its files and its commit are on disk; Spark's own writer leaves that to the operating system.

Messages are JSON of about 200 bytes that differ, with keys, as AMQP messages with six headers.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
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
    main,
    percentile,
    timed,
)
from bench.spark import (
    BATCH,
    ENVELOPES,
    NUMBER,
    PARTITIONS,
    START_MS,
    grown,
    rate,
    sizes_of,
)
from braidmq.engine.engine import Engine
from braidmq.pipeline.definition import find, load
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.session import session
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import RealDisk
from braidmq.testing.live import LiveNode, live_node

SPLITS = 2
COMMITS = 10
SMALL = 10_000
"""Rows of a first run, after which everything is warm."""

NOTE, NOTE_BYTES = b"<note>", 32
"""Another in every message: what repeats, compression would take for nothing."""

COLUMNS = (
    "binary(concat('customer-', id % 1000)) AS key",
    "binary(to_json(named_struct('order', id, 'customer', md5(binary(string(id))),"
    " 'amount', id % 9973, 'note', sha2(binary(string(id)), 256)))) AS value",
    "array(named_struct('key', 'content-type', 'value', binary('application/json')),"
    " named_struct('key', 'tenant', 'value', binary(concat('t', id % 50)))) AS headers",
    "concat('topic-', id % 4) AS topic",
    "int(id % 2) AS partition",
    "id AS offset",
    "timestamp_millis(1700000000000 + id) AS timestamp",
    "int(id % 5) AS priority",
)


@contextmanager
def spark_session(context: Context) -> Iterator[Any]:
    """As ``braid pipeline run`` makes it."""
    settings = {"spark.local.dir": str(context.directory()), "spark.driver.memory": "2g"}
    with session("bench", "local[2]", settings=settings) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield spark


def orders(spark: Any, rows: int, first: int = 0) -> Any:
    return spark.range(first, first + rows, 1, SPLITS).selectExpr(*COLUMNS)


def discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- reading ---


def reading(context: Context) -> Iterator[Measure]:
    from braidmq.pipeline import lake

    rows = context.size(4_000_000, 200_000)
    with spark_session(context) as spark:
        path = str(context.directory() / "lake")
        for number in range(COMMITS):
            part = rows // COMMITS
            lake.write(orders(spark, part, number * part), path)

        def grouped(frame: Any) -> None:
            discard(frame.groupBy("topic", "partition").avg("offset"))

        for name, query in (("all columns", discard), ("a group-by of three columns", grouped)):
            cases = {
                "ours": lambda query=query: timed(lambda: query(lake.read(spark, path))),
                "parquet": lambda query=query: timed(lambda: query(spark.read.parquet(path))),
            }
            for each in cases.values():
                each()
            samples = alternate(cases, context.rounds(9))
            yield rate(f"lake read, {name}", rows, samples, 0.9, "spark.read.parquet, same files")


# --- writing ---


def anew(root: Path, write: Callable[[str], object]) -> Callable[[], float]:
    """To a place where there is nothing."""

    def run() -> float:
        took = timed(lambda: write(str(root / "new")))
        shutil.rmtree(root / "new")
        return took

    return run


def writing(context: Context) -> Iterator[Measure]:
    from braidmq.pipeline import lake

    rows = context.size(1_000_000, 100_000)
    with spark_session(context) as spark:
        frame = orders(spark, rows).cache()
        assert frame.count() == rows
        root = context.directory()
        cases = {
            "ours": anew(root, lambda path: lake.write(frame, path)),
            "parquet": anew(root, lambda path: frame.write.parquet(path)),
            "zstd": anew(
                root, lambda path: frame.write.option("compression", "zstd").parquet(path)
            ),
        }
        for each in cases.values():
            each()
        samples = alternate(cases, context.rounds(9))
        for other, against in (
            ("parquet", "Spark's Parquet writer"),
            ("zstd", "Spark's Parquet writer with zstd"),
        ):
            pair = {"ours": samples["ours"], other: samples[other]}
            name = "lake write" if other == "parquet" else "lake write, the same codec"
            yield rate(name, rows, pair, 0.9, against)


# --- the pipeline ---


def fill(root: Path, topics: Mapping[str, int]) -> None:
    """Topics of so many orders, all in segments; those whose name begins with plain have neither
    headers nor properties."""
    engine = Engine.open(RealDisk(root), START_MS)
    values, chance = _values(), random.Random(8)
    for name, rows in topics.items():
        envelope_format, envelope = (0, b"") if name.startswith("plain") else ENVELOPES["amqp"]
        topic = engine.topics.create("/", name, {"partitions": PARTITIONS}, now_ms=START_MS)
        for number in range(rows // BATCH):
            batch = RecordBatch()
            notes = chance.randbytes(BATCH * NOTE_BYTES).hex().encode()
            for at in range(BATCH):
                order = b"%08d" % (number * BATCH + at)
                note = notes[2 * NOTE_BYTES * at : 2 * NOTE_BYTES * (at + 1)]
                value = values[(number + at) % len(values)].replace(NUMBER, order)
                batch.append(
                    value.replace(NOTE, note),
                    key=b"customer-%d" % ((number * BATCH + at) % 1000),
                    envelope=envelope.replace(NUMBER, order),
                    envelope_format=envelope_format,
                    timestamp_ms=START_MS + number,
                )
            engine.publishing.publish(
                topic, batch, now_ms=START_MS + number, partition=number % PARTITIONS
            )
            if engine.store.wants_checkpoint():
                engine.store.checkpoint()
    engine.store.checkpoint()
    engine.close()


def _values() -> list[bytes]:
    chance = random.Random(7)
    return [
        json.dumps(
            {
                "order": NUMBER.decode(),
                "customer": f"{chance.getrandbits(64):016x}",
                "amount": chance.randrange(1, 100_000) / 100,
                "city": chance.choice(["Zürich", "Lisboa", "Kraków", "Oslo", "Graz"]),
                "note": NOTE.decode(),
                "paid": chance.random() < 0.5,
            },
            ensure_ascii=False,
        ).encode()
        for _ in range(997)
    ]


@dataclass
class Archive:
    """The shipped pipeline, each time from the beginning into a new lake."""

    spark: Any
    node: LiveNode
    root: Path
    runs: int = 0

    def case(self, topic: str, rows: int) -> Callable[[], float]:
        from braidmq.pipeline.runner import Runner

        def run() -> float:
            self.runs += 1
            place = self.root / f"lake{self.runs}"
            path = find("archive")
            definition = load(path, {"topic": topic, "lake": str(place)})
            broker = BrokerOptions(url=self.node.http_url)
            runner = Runner(definition, self.spark, broker, path.parent)
            done: list[Progress] = []
            took = timed(lambda: done.append(runner.run(lambda _: False)))
            assert done[0].rows == rows, done
            shutil.rmtree(place)
            return took

        return run

    def by_spark(self, topic: str) -> Callable[[], float]:
        """The same columns as a directory of Parquet files, without a stream and unsynced."""
        given = {"topic": topic, "lake": str(self.root)}
        columns = load(find("archive"), given).sources[0].options["columns"]

        def run(path: str) -> None:
            options = {"url": self.node.http_url, "topic": topic, "columns": columns}
            frame = self.spark.read.format("braid").options(**options).load()
            frame.write.option("compression", "zstd").parquet(path)

        return anew(self.root, run)


@contextmanager
def archives(context: Context, topics: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    data = context.directory()
    fill(data, {**topics, "small": SMALL})
    with (
        live_node(data, amqp_port=0, mqtt_port=0, ws_port=0) as node,
        spark_session(context) as spark,
    ):
        archive = Archive(spark, node, context.directory())
        archive.case("small", SMALL)()
        # Each once before it counts.
        archive.case(*next(iter(topics.items())))()
        ours = {name: archive.case(name, rows) for name, rows in topics.items()}
        theirs = {f"{name} by Spark": archive.by_spark(name) for name in topics}
        yield {**ours, **theirs}


def archiving(context: Context) -> Iterator[Measure]:
    """Beside what Spark takes to write plain Parquet of the same columns from the same source,
    through its JVM, without a stream, a commit and a sync. An absolute figure needs a machine that
    has nothing else to do; the ratio needs it less."""
    rows = context.size(2_000_000, 50_000)
    with archives(context, {"amqp": rows, "plain": rows}) as cases:
        samples = alternate(cases, context.rounds(5))
        for name, text in (("amqp", "AMQP with six headers"), ("plain", "without properties")):
            rates = [rows / each for each in samples[name]]
            bar = at_least(150_000)
            yield Measure(f"archive, warm, {text}", percentile(rates, 50), "rows/s", bar)
            pair = {"ours": samples[name], "spark": samples[f"{name} by Spark"]}
            title = f"archive beside Parquet, {text}"
            yield rate(title, rows, pair, 0.8, "Spark's Parquet writer from the same source")


# --- sixteen times as much ---


def growth(context: Context) -> Iterator[Measure]:
    from braidmq.pipeline import lake

    sizes = sizes_of(context.size(400_000, 50_000))
    with spark_session(context) as spark:
        root = context.directory()
        cases = {
            name: anew(root, lambda path, rows=rows: lake.write(orders(spark, rows), path))
            for name, rows in sizes.items()
        }
        cases["x4"]()
        samples = alternate(cases, context.rounds(5))
        yield grown("writing a lake, time for a row from 4× to 16× the data", samples)


def archive_growth(context: Context) -> Iterator[Measure]:
    sizes = sizes_of(context.size(400_000, 50_000))
    with archives(context, sizes) as cases:
        samples = alternate({name: cases[name] for name in sizes}, context.rounds(5))
        yield grown("archive, time for a row from 4× to 16× the data", samples)


BENCHMARKS: dict[str, Benchmark] = {
    "reading": reading,
    "writing": writing,
    "archiving": archiving,
    "growth": growth,
    "archive_growth": archive_growth,
}

if __name__ == "__main__":
    main("spark_lake", BENCHMARKS)
