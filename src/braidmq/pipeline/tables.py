"""The broker's state as tables for SQL: who reads what and how far, what consumers have, what died,
what waits, what was used, who did what.

Each is one look at the broker, taken when the query runs and a page at a time, and has what its
user may read: of all topics, those; of a topic that is named, or not at all.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from braidmq.model.errors import AccessRefused, NotFound, StorageError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import BrokerOptions, SourceOptions, option_names
from braidmq.pipeline.planning import find_topics

PAGE = 1000
MESSAGES_PAGE = 100
"""Where rows have messages of any size, and the broker counts rows alone."""

Row = tuple[Any, ...]
Document = dict[str, Any]

TIME = pa.timestamp("us", tz="UTC")
TEXT, TRUTH, INT, LONG, DATA = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.binary()

_SUBSCRIPTION_COUNTS = (
    *("lag", "ready", "in_flight"),
    *("delivered", "redelivered", "acked", "expired", "dead_lettered"),
)

SCHEMAS: dict[str, pa.Schema] = {
    name: pa.schema(columns)
    for name, columns in {
        "depth": [
            *(("topic", TEXT), ("partitions", INT), ("durable", TRUTH), ("subscriptions", INT)),
            *(("consumers", INT), ("depth", LONG), ("depth_bytes", LONG), ("published", LONG)),
        ],
        "subscriptions": [
            *(("topic", TEXT), ("subscription", TEXT), ("mode", TEXT), ("durable", TRUTH)),
            *(("partitions", INT), ("consumers", INT), ("waiting", INT)),
            *((name, LONG) for name in _SUBSCRIPTION_COUNTS),
        ],
        "lag": [
            *(("topic", TEXT), ("subscription", TEXT), ("mode", TEXT), ("consumers", INT)),
            *(("partition", INT), ("committed", LONG), ("end", LONG), ("lag", LONG)),
            ("in_flight", LONG),
        ],
        "inflight": [
            *(("topic", TEXT), ("subscription", TEXT), ("partition", INT), ("offset", LONG)),
            *(("attempts", INT), ("consumer", LONG), ("deadline", TIME)),
        ],
        "deadletters": [
            *(("topic", TEXT), ("dead_letter_topic", TEXT), ("offset", LONG), ("reason", TEXT)),
            *(("partition", INT), ("original_offset", LONG), ("subscription", TEXT)),
            *(("attempts", INT), ("error", TEXT), ("died", TIME), ("key", DATA), ("value", DATA)),
        ],
        "delayed": [
            *(("topic", TEXT), ("partition", INT), ("offset", LONG), ("deliver_at", TIME)),
            *(("key", DATA), ("value", DATA)),
        ],
        "usage": [
            *(("start", TIME), ("namespace", TEXT), ("protocol", TEXT)),
            *(("published", LONG), ("published_bytes", LONG)),
            *(("delivered", LONG), ("delivered_bytes", LONG)),
        ],
        "audit": [
            *(("at", TIME), ("kind", TEXT), ("operation", TEXT), ("protocol", TEXT)),
            *(("user", TEXT), ("peer", TEXT), ("namespace", TEXT), ("object", TEXT)),
            *(("count", LONG), ("facts", TEXT)),
        ],
    }.items()
}

OF_NO_TOPIC = {
    "usage": "is counted by namespace: it knows no topics",
    "audit": "is of the whole node: choose by its columns object and namespace",
}

_CHOOSING = {"table", "topic", "topic_pattern"}


def check(options: SourceOptions) -> None:
    """Raises BadOption for what a table would have to ignore."""
    if options.topic and options.topic_pattern:
        raise BadOption("topic and topicPattern can't both be given")
    if options.table in OF_NO_TOPIC and (options.topic or options.topic_pattern):
        raise BadOption(f"{options.table} {OF_NO_TOPIC[options.table]}")
    if options.kafka_columns:
        raise BadOption("tables are no messages of Kafka", remedy='Use format("braid")')
    names = option_names()
    heard = {each.name for each in fields(BrokerOptions)} | _CHOOSING
    for each in fields(SourceOptions):
        if each.name not in heard and getattr(options, each.name) != each.default:
            raise BadOption(
                f"{names[each.name]} is for messages, and table {options.table!r} has none to read",
                remedy="A table takes topic, topicPattern, and what names the broker and the user",
            )


def batches_of(options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of the table that the options name, of the topics they name or of all."""
    schema = SCHEMAS[options.table]
    with Broker(options) as broker:
        for rows in _pages(broker, options):
            columns = zip(*rows, strict=True)
            arrays = [
                pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


Pages = Iterator[list[Row]]


def _pages(broker: Broker, options: SourceOptions) -> Pages:
    """Without empty ones."""
    if options.table == "usage":
        pages = _usage(broker)
    elif options.table == "audit":
        pages = _audit(broker)
    elif options.table == "deadletters":
        pages = _dead_letters(broker, options)
    else:
        pages = _by_topic(broker, options, _READERS[options.table])
    return (page for page in pages if page)


def _by_topic(
    broker: Broker, options: SourceOptions, read: Callable[[Broker, Document], Pages]
) -> Pages:
    rows: list[Row] = []
    for topic in _topics(broker, options):
        try:
            for page in read(broker, topic):
                rows += page
                if len(rows) >= PAGE:
                    yield rows
                    rows = []
        except NotFound:
            continue  # deleted since it was listed
        except AccessRefused:
            if options.topic:
                raise
            # Listed for whoever may write to it: of all topics, those that may be read.
    yield rows


def _topics(broker: Broker, options: SourceOptions) -> Iterator[Document]:
    if options.topic:
        # It has to be there: a misspelt name is no empty table.
        broker.get("topics", options.topic, wanted=dict[str, Any])
        # Of those that begin so it is the first.
        yield from broker.get("topics", wanted=list[Document], prefix=options.topic, limit=1)
        return
    wanted = set(find_topics(broker, options)) if options.topic_pattern else None
    for page in broker.pages("topics", wanted=list[Document], limit=PAGE):
        yield from (each for each in page if wanted is None or each["name"] in wanted)


def _depth(broker: Broker, topic: Document) -> Pages:
    columns = SCHEMAS["depth"].names[1:]
    yield [(topic["name"], *(topic[name] for name in columns))]


def _subscriptions_of(broker: Broker, topic: Document) -> list[Document]:
    if not topic["subscriptions"]:
        return []
    path = ("topics", topic["name"], "subscriptions")
    return [each for page in broker.pages(*path, wanted=list[Document]) for each in page]


def _subscriptions(broker: Broker, topic: Document) -> Pages:
    yield [
        (
            topic["name"],
            *(each[name] for name in ("name", "mode", "durable")),
            len(each["partitions"]),
            *(each[name] for name in ("consumers", "waiting", *_SUBSCRIPTION_COUNTS)),
        )
        for each in _subscriptions_of(broker, topic)
    ]


def _lag(broker: Broker, topic: Document) -> Pages:
    for each in _subscriptions_of(broker, topic):
        yield [
            (
                topic["name"],
                each["name"],
                each["mode"],
                each["consumers"],
                *(at[name] for name in ("partition", "committed", "end", "lag", "in_flight")),
            )
            for at in each["partitions"]
        ]


def _in_flight(broker: Broker, topic: Document) -> Pages:
    for subscription in _subscriptions_of(broker, topic):
        if subscription["in_flight"]:
            yield from _in_flight_of(broker, topic["name"], subscription["name"])


def _in_flight_of(broker: Broker, topic: str, name: str) -> Pages:
    path = ("topics", topic, "subscriptions", name, "in-flight")
    for page in broker.pages(*path, wanted=list[Document], limit=PAGE):
        yield [
            (
                topic,
                name,
                *(each[column] for column in ("partition", "offset", "attempts", "consumer")),
                _time(each["deadline_ms"]),
            )
            for each in page
        ]


def _dead_letters(broker: Broker, options: SourceOptions) -> Pages:
    """Wherever they lie. A page ends where it gets large, and may be short, or empty, and not the
    last."""
    if options.topic:
        broker.get("topics", options.topic, wanted=dict[str, Any])
    wanted = set(find_topics(broker, options)) if options.topic_pattern else None
    pages = broker.pages(
        "dead-letters", wanted=dict[str, Any], topic=options.topic or None, limit=PAGE
    )
    for page in pages:
        if page["unreadable"]:
            raise StorageError(
                f"dead letters in {page['unreadable'][0]!r} can't be read: it is quarantined",
                remedy="`braid doctor` says why; name topics that lie elsewhere",
            )
        yield [
            (
                each["topic"],
                each["queue"],
                each["offset"],
                each["reason"],
                *(each.get(name) for name in ("partition", "original_offset", "subscription")),
                each.get("attempts"),
                each.get("error"),
                _time(each.get("at_ms")),
                *_content(each["message"]),
            )
            for each in page["letters"]
            if wanted is None or each["topic"] in wanted
        ]


def _delayed(broker: Broker, topic: Document) -> Pages:
    path = ("topics", topic["name"], "delayed")
    for page in broker.pages(*path, wanted=dict[str, Any], limit=MESSAGES_PAGE):
        yield [
            (
                topic["name"],
                each["partition"],
                each["offset"],
                _time(each.get("deliver_at_ms")),
                *_content(each),
            )
            for each in page["messages"]
        ]


def _usage(broker: Broker) -> Pages:
    """Of the namespace, by hour and protocol: not of topics, of which the broker keeps none."""
    columns = SCHEMAS["usage"].names[1:]
    for page in broker.pages("usage", wanted=dict[str, Any], limit=PAGE):
        yield [
            (_time(each["start_ms"]), *(each[name] for name in columns)) for each in page["rows"]
        ]


def _audit(broker: Broker) -> Pages:
    """The newest first. What else is known of an event is JSON: each kind has its own."""
    columns = SCHEMAS["audit"].names[1:-1]
    for page in broker.pages("audit", wanted=dict[str, Any], limit=PAGE):
        yield [
            (
                _time(each["at_ms"]),
                *(each[name] for name in columns),
                json.dumps(each["facts"], ensure_ascii=False),
            )
            for each in page["events"]
        ]


def _content(message: Document) -> tuple[bytes | None, bytes | None]:
    """Key and value, which JSON has as text or in base64."""
    return _bytes(message, "key"), _bytes(message, "value")


def _bytes(message: Document, name: str) -> bytes | None:
    coded = message.get(f"{name}_base64")
    if coded is not None:
        return base64.b64decode(coded)
    text = message.get(name)
    return None if text is None else str(text).encode()


def _time(time_ms: int | None) -> datetime | None:
    return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else None


_READERS: dict[str, Callable[[Broker, Document], Pages]] = {
    "depth": _depth,
    "subscriptions": _subscriptions,
    "lag": _lag,
    "inflight": _in_flight,
    "delayed": _delayed,
}
