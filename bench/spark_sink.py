"""The exactly-once sink against a toy that takes Arrow batches and throws them away.

Both sides write the same rows, which a toy source has in memory, as one batch of a stream. Ours is
done when the transaction is committed on disk, staged and copied. Only keys and values, and headers
in rows of their own: what Spark does with more columns would hide what the sink does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.harness import (
    Benchmark,
    Context,
    Measure,
    alternate,
    at_least,
    main,
    paired_ratio,
    percentile,
    timed,
)
from bench.spark import Bench, world
from bench.spark_toys import VALUE_BYTES
from braidmq.loadgen.broker_process import BrokerProcess

SPLITS = 2
HEADERS = (
    "array(named_struct('key', 'content-type', 'value', binary('application/json')),"
    " named_struct('key', 'tenant', 'value', binary('acme')),"
    " named_struct('key', 'attempt', 'value', binary('1'))) AS headers"
)


class DiscardWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        pass


class Discard(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "discard"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return DiscardWriter()


def written(bench: Bench, rows: int, sink: str, *more: str, **options: str) -> Callable[[], float]:
    def run() -> float:
        reader = bench.spark.readStream.format("toy").option("rows", rows).option("splits", SPLITS)
        frame = reader.load().selectExpr("key", "value", *more)
        bench.runs += 1
        writer = frame.writeStream.format(sink).options(**options).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(bench.root / f"s{bench.runs}"))
        return timed(lambda: writer.start().awaitTermination())

    return run


def writing(context: Context) -> Iterator[Measure]:
    rows = context.size(1_000_000, 100_000)
    with world(context, {"written": 0}) as bench:
        bench.spark.dataSource.register(Discard)
        target = {"url": bench.node.http_url, "topic": "written"}
        process = BrokerProcess(bench.node.process.pid)
        cpu_us: list[float] = []
        once = written(bench, rows, "braid", **target)

        def watched() -> float:
            before = process.cpu_s()
            took = once()
            cpu_us.append((process.cpu_s() - before) / rows * 1e6)
            return took

        cases = {
            "once": watched,
            "least": written(bench, rows, "braid", delivery="at_least_once", **target),
            "limit": written(bench, rows, "discard"),
            "once with headers": written(bench, rows, "braid", HEADERS, **target),
            "limit with headers": written(bench, rows, "discard", HEADERS),
        }
        for each in cases.values():
            each()
        samples = alternate(cases, context.rounds(5))
        rates = {name: [rows / each for each in took] for name, took in samples.items()}
        for name, limit, text, bar in (
            ("once", "limit", "exactly-once sink", at_least(0.6)),
            (
                "once with headers",
                "limit with headers",
                "exactly-once sink, three headers",
                at_least(0.6),
            ),
            ("least", "limit", "at-least-once sink", None),
        ):
            yield Measure(
                f"{text}, {VALUE_BYTES} B values",
                percentile(rates[name], 50),
                "rows/s",
                bar,
                paired_ratio(rates[name], rates[limit]),
                percentile(rates[limit], 50),
                "a sink that discards",
            )
        yield Measure("the broker's CPU for a row", percentile(cpu_us, 50), "µs")


BENCHMARKS: dict[str, Benchmark] = {"writing": writing}

if __name__ == "__main__":
    main("spark_sink", BENCHMARKS)
