"""Tables and plot of docs/PERFORMANCE.md from the history: ``python -m bench.report``.

A row names a measure of ``bench/results/``; the newest run that has it is shown. The text around
the tables is written by hand and has no figures.
"""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.history import Entry, entries, newest

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "PERFORMANCE.md"
PLOT = DOCS / "performance.svg"
HEADINGS = ("what", "promise: here; there", "BraidMQ", "compared with", "ratio", "bar", "measured")
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    benchmark: str
    measure: str
    text: str
    promise: str = ""
    against: str = ""


# --- what is shown ---

SYNC_GROUPS = "fdatasync; synced in groups"
NOTHING = "nothing; nothing"
SYNC_MEMORY = "fdatasync; in memory"
MEMORY = "in memory; in memory"
SYNC = "fdatasync; the same"

TABLES: dict[str, tuple[Row, ...]] = {
    "amqp": (
        Row("amqp", "A deliveries", "A: 128 B persistent, window 1000, ack every 100", SYNC_GROUPS),
        Row("amqp", "A broker processor time", "A, processor time", SYNC_GROUPS),
        Row("amqp", "B deliveries", "B: transient, no confirms, auto-ack", NOTHING),
        Row("amqp", "E deliveries", "E: 1 KB, as A", SYNC_GROUPS),
        Row("amqp", "D3 deliveries", "D3: 200 producers, window 1", SYNC_GROUPS),
        Row("amqp", "D3 broker processor time", "D3, processor time", SYNC_GROUPS),
        Row("amqp", "topic deliveries", "topic exchange, 1000 bindings, 1000 keys", SYNC_GROUPS),
        Row("amqp", "topic-1 deliveries", "the same, one key", SYNC_GROUPS),
        Row("amqp", "backlog publish", "a million queued: publish", SYNC_GROUPS),
        Row("amqp", "backlog drain", "… drain", SYNC_GROUPS),
        Row("amqp", "backlog memory, 1 M queued", "… memory", SYNC_GROUPS),
        Row("amqp", "C end to end p50", "C: 2000 msg/s, ack each: end to end, p50", SYNC_GROUPS),
        Row("amqp", "C end to end p99", "… p99", SYNC_GROUPS),
        Row("amqp", "C confirm p50", "… its confirm, p50", SYNC_GROUPS),
        Row("amqp", "C confirm p99", "… its confirm, p99", SYNC_GROUPS),
        Row("amqp", "D1 end to end p50", "D1: 200 producers × 50/s, one queue, p50", SYNC_GROUPS),
        Row("amqp", "D1 end to end p99", "… p99", SYNC_GROUPS),
        Row("amqp", "D2 end to end p50", "D2: the same, 200 queues, p50", SYNC_GROUPS),
        Row("amqp", "D2 end to end p99", "… p99", SYNC_GROUPS),
    ),
    "mqtt": (
        Row("mqtt", "qos0 deliveries", "QoS 0, 1:1", NOTHING),
        Row("mqtt", "qos1 deliveries", "QoS 1, 1:1, window 1000, persistent", SYNC_MEMORY),
        Row("mqtt", "qos2 deliveries", "QoS 2, 1:1, window 1000, persistent", SYNC_MEMORY),
        Row("mqtt", "qos1-clean deliveries", "QoS 1, sessions in memory", MEMORY),
        Row("mqtt", "qos2-clean deliveries", "QoS 2, sessions in memory", MEMORY),
        Row("mqtt", "fan-out deliveries", "QoS 0, 1:50, deliveries", NOTHING),
        Row("mqtt", "fan-in deliveries", "QoS 1, 50:1, window 1000 each, persistent", SYNC_MEMORY),
        Row("mqtt", "fan-in-20 deliveries", "QoS 1, 50:1, window 20 each", SYNC_MEMORY),
        Row("mqtt", "paced0 end to end p50", "QoS 0, 2000 msg/s: end to end, p50", NOTHING),
        Row("mqtt", "paced0 end to end p99", "… p99", NOTHING),
        Row("mqtt", "paced1-clean end to end p50", "QoS 1, in memory, 2000 msg/s, p50", MEMORY),
        Row("mqtt", "paced1-clean end to end p99", "… p99", MEMORY),
        Row("mqtt", "paced1 end to end p50", "QoS 1, persistent, 2000 msg/s, p50 ¹", SYNC_MEMORY),
        Row("mqtt", "paced1 end to end p99", "… p99 ¹", SYNC_MEMORY),
        Row(
            "mqtt",
            "paced1, both with disks end to end p50",
            "the same, both with disks, p50 ¹",
            "fdatasync; saved after every change, PUBACK before",
        ),
        Row("mqtt", "match among 100000, a topic not seen before", "matching a new topic"),
        Row("mqtt", "match among 100000, a topic seen before", "matching a topic seen before"),
        Row("mqtt", "subscribe, up to 100000", "one of 100 000 subscriptions"),
    ),
    "revisions": tuple(
        Row("revisions", measure, text, promise)
        for measure, text, promise in (
            ("A deliveries", "AMQP A", SYNC),
            ("D3 deliveries", "AMQP D3", SYNC),
            ("qos0 deliveries", "MQTT QoS 0", NOTHING),
            ("qos1 deliveries", "MQTT QoS 1, persistent", SYNC),
            ("qos1-clean deliveries", "MQTT QoS 1, in memory", MEMORY),
            ("qos2 deliveries", "MQTT QoS 2, persistent", SYNC),
            ("qos2-clean deliveries", "MQTT QoS 2, in memory", MEMORY),
            ("fan-out deliveries", "MQTT QoS 0, 1:50", NOTHING),
            ("fan-in deliveries", "MQTT QoS 1, 50:1, window 1000", SYNC),
            ("fan-in-20 deliveries", "MQTT QoS 1, 50:1, window 20", SYNC),
            (
                "paced1 end to end p50",
                "QoS 1, persistent, 2000 msg/s, p50",
                "when written; ahead of it",
            ),
            ("paced1 end to end p99", "… p99", "when written; ahead of it"),
        )
    ),
    "http": (
        Row(
            "http", "JSON batches of 1000 × 128 B, confirmed", "JSON, 1000 × 128 B a request", SYNC
        ),
        Row("http", "the node's CPU for one message", "the node's processor time a message"),
        Row("http", "a request, p50, 4 at once", "a request, four at once, p50", "fdatasync"),
        Row("http", "a request, p99, 4 at once", "… p99", "fdatasync"),
    ),
    "client": (
        Row("client", "braidmq, one by one", "a call a message", SYNC, "pika"),
        Row("client", "braidmq, one by one", "the same", SYNC, "aio-pika"),
        Row("client", "braidmq, batches", "`put_many` and `batches()`", SYNC, "pika"),
        Row("client", "braidmq, sync", "`connect_sync`, a call a message", "fdatasync"),
    ),
    "transactions": (
        Row("transactions", "plain, confirmed", "plain publishing, confirmed", "fdatasync"),
        Row("transactions", "idempotent", "numbered by their producer", "once; plain"),
        Row("transactions", "transactions of 1000", "transactions of 1000", "all or none; plain"),
        Row(
            "revisions",
            "A deliveries",
            "what plain AMQP pays for it",
            SYNC,
            "the same without the checks of transactions",
        ),
        Row(
            "exactly_once", "over the client: lost or twice", "under kills, over the client", "once"
        ),
        Row("exactly_once", "over HTTP: lost or twice", "under kills, over HTTP", "once"),
        Row("exactly_once", "through Spark: lost or twice", "under kills, through Spark", "once"),
    ),
    "storage": (
        Row(
            "storage",
            "group commit, 64 KiB batches, 8 in flight",
            "group commit, 64 KiB batches, 8 in flight ²",
            SYNC,
            "pwrite + fdatasync, a sync for each batch",
        ),
        Row(
            "storage",
            "group commit, 64 KiB batches, 8 in flight",
            "the same with as many syncs on both sides",
            SYNC,
            "pwrite + fdatasync, a sync for 8 batches",
        ),
        Row("storage", "one record to its confirm, p50", "one record to its confirm, p50", SYNC),
        Row("storage", "one record to its confirm, p99", "… p99", SYNC),
        Row("storage", "encode, 128 B records by 1000", "encode, 128 B values by 1000"),
        Row("storage", "verify, 128 B records by 1000", "verify them"),
        Row("storage", "recovery of 1 GiB of journal", "recovery of a 1 GiB journal, cache warm"),
        Row("storage", "cold segment to Arrow, 200 B records", "cold 64 MiB segment to Arrow"),
        Row("storage", "opening 10,000 partitions", "opening 10 000 partitions"),
        Row(
            "storage",
            "fdatasyncs for 10,000 topics, in one turn of the loop",
            "syncs for a record to each of 10 000 topics",
            "fdatasync",
        ),
        Row("storage", "memory of an idle partition", "memory of an idle partition"),
        Row(
            "storage",
            "begin_checkpoint, 10,000 partitions, all dirty",
            "a checkpoint of 10 000 partitions blocks the loop, first for",
        ),
        Row("storage", "finish_checkpoint, 10,000 partitions, all dirty", "… and at its end for"),
        Row(
            "storage",
            "bytes in segments, 100,000 JSON messages of 209 bytes, zstd",
            "a JSON message of 209 B in segments, `compression: zstd`",
        ),
        Row("storage", "Checkpoint.carry_out, zstd", "… writing it, beside the loop"),
        Row("storage", "reading all of it, zstd", "… reading all of them"),
        Row(
            "storage",
            "reading one message that nobody read before, zstd",
            "… reading one that nobody read before",
        ),
    ),
    "engine": (
        Row("engine", "publish, deliver, ack: 128 B by 1000", "publish, deliver, ack, by 1000"),
        Row(
            "engine", "publish, deliver, ack: one message, commit each", "the same for one message"
        ),
        Row("engine", "publishing a delayed message, 1,000,000 pending", "delay one, 1 M waiting"),
        Row("engine", "cancelling a delayed message, 1,000,000 pending", "cancel one, 1 M waiting"),
        Row(
            "engine",
            "bytes written for 100 000 to 1000 topics",
            "bytes written for one body of 100 000 to 1000 topics",
        ),
        Row("engine", "memory of a queue of 5,000,000, at most", "memory of a queue of 5 M"),
        Row("engine", "draining it", "draining it from disk"),
        Row(
            "engine",
            "requeue 100,000 scattered messages and deliver them again",
            "requeue 100 000 scattered, deliver again",
        ),
        Row(
            "engine",
            "memory of an idle topic with a subscription, 10,000 of them",
            "memory of an idle topic with a subscription",
        ),
        Row(
            "engine",
            "publishing 128 B by 100 with retention by time, bytes and count",
            "publishing by 100 with retention",
        ),
        Row("engine", "a turn of the loop with 10,000 idle topics", "a turn, 10 000 idle topics"),
    ),
    "spark": (
        Row("spark", "batch read of sealed segments, 200 B values", "batch read, all ten columns"),
        Row("spark", "the same, keys and values alone", "batch read, `columns=key,value`"),
        Row("spark", "count of a topic, no value decoded", "count, `columns=offset`"),
        Row(
            "spark",
            "batch read of AMQP messages with six headers, all columns",
            "batch read, AMQP with six headers",
        ),
        Row(
            "spark",
            "batch read of MQTT messages with six headers, all columns",
            "batch read, MQTT with six headers",
        ),
        Row("spark", "the broker's CPU meanwhile", "the broker's processor meanwhile"),
        Row("spark", "batch read beside tuples", "batch read"),
        Row("spark", "availableNow stream in one batch", "availableNow stream, one batch"),
        Row("spark", "a micro-batch of 200,000 rows", "a micro-batch of 200 000 rows"),
        Row("spark_sink", "exactly-once sink, 200 B values", "sink, exactly once", "once; nothing"),
        Row(
            "spark_sink",
            "at-least-once sink, 200 B values",
            "sink, at least once",
            "at least once; nothing",
        ),
        Row(
            "spark_sink",
            "exactly-once sink, three headers, 200 B values",
            "sink, exactly once, three headers",
            "once; nothing",
        ),
        Row("spark_lake", "lake read, all columns", "lake read, all columns"),
        Row(
            "spark_lake",
            "lake read, a group-by of three columns",
            "lake read, a group-by of three columns",
        ),
        Row("spark_lake", "lake write", "lake write", "fsync; nothing"),
        Row(
            "spark_lake",
            "lake write, the same codec",
            "lake write, the same codec",
            "fsync; nothing",
        ),
        Row(
            "spark_lake",
            "archive, warm, AMQP with six headers",
            "pipeline `archive`, AMQP with six headers",
            "fsync",
        ),
        Row(
            "spark_lake",
            "archive beside Parquet, AMQP with six headers",
            "the same in the same rounds",
            "fsync; nothing",
        ),
        Row(
            "spark_lake",
            "archive, warm, without properties",
            "pipeline `archive`, messages without properties",
            "fsync",
        ),
        Row(
            "spark_lake",
            "archive beside Parquet, without properties",
            "the same in the same rounds",
            "fsync; nothing",
        ),
        Row("spark", "bytes read for 1 % of a topic's time", "bytes read for 1 % of the time"),
        Row("spark", "time for a row, from 4× to 16× the data", "time for a row at 4× to 16×"),
        Row("spark", "memory of Spark and its workers at 16×", "memory of Spark at 16×"),
    ),
    "connections": (
        Row("connections", "AMQP: connect, log in and leave", "AMQP: connect, log in, leave"),
        Row("connections", "MQTT: connect, log in and leave", "MQTT: connect, log in, leave"),
        Row("connections", "AMQP: memory of an idle connection", "AMQP: each of 5 000 idle ones"),
        Row(
            "connections",
            "confirmed publish beside 5000 connections",
            "a confirmed publish beside them",
            SYNC,
        ),
        Row("connections", "MQTT: memory of an idle connection", "MQTT: each of 10 000 idle ones"),
        Row("connections", "processor of 10000 connections", "the processor for all of them"),
        Row("connections", "AMQP: connections lost", "AMQP: lost"),
        Row("connections", "MQTT: connections lost", "MQTT: lost"),
    ),
    "limits": tuple(
        Row("limits", f"{case}: one queue, batches of {size}", f"{text}, by {size}", promise)
        for case, text, promise in (
            ("drop-head", "the oldest is dropped", ""),
            ("drop-head, bytes", "the same, limit in bytes", ""),
            ("drop-head, dead letters", "the oldest becomes a dead letter", "written twice; once"),
            ("reject", "the publish is refused", "not written; once"),
            ("refused, dead letters", "the new one becomes a dead letter", ""),
        )
        for size in (1, 100)
    ),
}

PLOTTED: dict[str, tuple[tuple[str, str], ...]] = {
    "AMQP A": (("amqp", "A deliveries"), ("revisions", "A deliveries")),
    "AMQP B": (("amqp", "B deliveries"),),
    "AMQP D3": (("amqp", "D3 deliveries"), ("revisions", "D3 deliveries")),
    "MQTT QoS 0": (("mqtt", "qos0 deliveries"), ("revisions", "qos0 deliveries")),
    "MQTT QoS 1, persistent": (("mqtt", "qos1 deliveries"), ("revisions", "qos1 deliveries")),
    "MQTT QoS 2, persistent": (("mqtt", "qos2 deliveries"), ("revisions", "qos2 deliveries")),
    "engine, one message": (("engine", "publish, deliver, ack: one message, commit each"),),
    "engine, by 1000": (("engine", "publish, deliver, ack: 128 B by 1000"),),
    "client, a call a message": (("client", "braidmq, one by one"),),
}


# --- tables ---


def figure(value: float | None, unit: str) -> str:
    """Three digits that matter, in thousands or millions where it is a rate."""
    if value is None:
        return "–"
    if unit.endswith("/s") and unit != "k/s":
        for size, letter in ((1e6, "M "), (1e3, "k ")):
            if value >= size:
                return f"{value / size:.3g} {letter}{unit}"
    text = f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def cells(row: Row) -> tuple[str, ...]:
    entry = newest(row.benchmark, row.measure, row.against)
    compared = entry.against
    if entry.baseline is not None:
        compared += f": {figure(entry.baseline, entry.unit)}"
    ratio = "" if entry.ratio is None else f"{entry.ratio:.{2 if entry.ratio < 10 else 1}f}"
    bar = entry.bar + ("" if entry.met is not False else ", **missed**")
    value = figure(entry.value, entry.unit)
    if entry.value is None:
        value = before(row)
    return (row.text, row.promise, value, compared, ratio, bar, f"{entry.revision}, {day(entry)}")


def before(row: Row) -> str:
    """The value of an older run that has one: of the newest the ratio alone was noted."""
    known = [each for each in entries(row.benchmark, row.measure) if each.value is not None]
    alike = [each for each in known if row.against in ("", each.against)]
    if not alike:
        return "–"
    return f"{figure(alike[-1].value, alike[-1].unit)} ({alike[-1].revision}, {day(alike[-1])})"


def day(entry: Entry) -> str:
    return entry.date.removesuffix(" UTC")


def table(name: str) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(cells, TABLES[name])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str) -> str:
    return MARKED.sub(lambda found: found[1] + table(found[2]) + found[3], text)


# --- plot ---

COLUMNS, WIDTH, HEIGHT, PADDING = 3, 250, 110, 14


def panel(title: str, sources: tuple[tuple[str, str], ...], left: int, top: int) -> str:
    """A dot for each run, in order, from zero up."""
    found = [entry for source in sources for entry in entries(*source) if entry.value is not None]
    found = sorted({(each.date, each.value): each for each in found}.values(), key=lambda e: e.date)
    values = [entry.value or 0.0 for entry in found]
    wide, high = WIDTH - 2 * PADDING, HEIGHT - 3 * PADDING
    points = [
        (
            left + PADDING + wide * at / max(1, len(values) - 1),
            top + 2.2 * PADDING + high * (1 - value / max(values)),
        )
        for at, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>'
        f"{escape(f'{entry.revision}, {day(entry)}: {figure(entry.value, entry.unit)}')}"
        "</title></circle>\n"
        for (x, y), entry in zip(points, found, strict=True)
    )
    last = figure(found[-1].value, found[-1].unit)
    floor = top + HEIGHT - 0.8 * PADDING
    return (
        f'<text x="{left + PADDING}" y="{top + PADDING}">{escape(title)}: {escape(last)}</text>\n'
        f'<path class="floor" d="M{left + PADDING} {floor:.1f}h{wide}"/>\n'
        f'<polyline points="{line}"/>\n{dots}'
    )


def plot() -> str:
    rows = -(-len(PLOTTED) // COLUMNS)
    wide, high = COLUMNS * WIDTH, rows * HEIGHT
    panels = "".join(
        panel(title, sources, at % COLUMNS * WIDTH, at // COLUMNS * HEIGHT)
        for at, (title, sources) in enumerate(PLOTTED.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}">\n'
        "<style>text{font:12px sans-serif;fill:#222}polyline{fill:none;stroke:#36c}"
        "circle{fill:#36c}.floor{stroke:#ccc}</style>\n"
        f'<rect width="{wide}" height="{high}" fill="#fff"/>\n{panels}</svg>\n'
    )


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))
    PLOT.write_text(plot())


if __name__ == "__main__":
    main()
