"""The state of queues as tables: how deep, how far behind, what is at consumers, what died, what
waits. Each is one look at the broker, when the query runs."""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from braidmq.pipeline.broker import Broker
from braidmq.pipeline.options import SourceOptions
from braidmq.pipeline.planning import find_topics

PAGE = 1000

Row = tuple[Any, ...]
Document = dict[str, Any]


DDL = {
    "depth": (
        "topic STRING, partitions INT, durable BOOLEAN, subscriptions INT, consumers INT,"
        " depth BIGINT, depth_bytes BIGINT, published BIGINT"
    ),
    "lag": (
        "topic STRING, subscription STRING, mode STRING, consumers INT, partition INT,"
        " committed BIGINT, end BIGINT, lag BIGINT, in_flight BIGINT"
    ),
    "inflight": (
        "topic STRING, subscription STRING, partition INT, offset BIGINT, attempts INT,"
        " consumer BIGINT, deadline TIMESTAMP"
    ),
    "deadletters": (
        "topic STRING, dead_letter_topic STRING, offset BIGINT, reason STRING, partition INT,"
        " original_offset BIGINT, subscription STRING, attempts INT, error STRING, died TIMESTAMP,"
        " key BINARY, value BINARY"
    ),
    "delayed": (
        "topic STRING, partition INT, offset BIGINT, deliver_at TIMESTAMP, key BINARY, value BINARY"
    ),
}


def rows_of(options: SourceOptions) -> Iterator[Row]:
    """The rows of the table that the options name, of the topics they name or of all."""
    read = _READERS[options.table]
    with Broker(options) as broker:
        for topic in _topics(broker, options):
            yield from read(broker, topic)


def _topics(broker: Broker, options: SourceOptions) -> list[Document]:
    if options.topic:
        # It has to be there: a misspelt name is no empty table.
        broker.get("topics", options.topic, wanted=dict)
    wanted = None
    if options.topic or options.topic_pattern:
        wanted = set(find_topics(broker, options))
    found: list[Document] = []
    after = ""
    while True:
        page = broker.get("topics", wanted=list[Document], after=after, limit=PAGE)
        found += [each for each in page if wanted is None or each["name"] in wanted]
        if len(page) < PAGE:
            return found
        after = page[-1]["name"]


def _depth(broker: Broker, topic: Document) -> Iterator[Row]:
    names = ("partitions", "durable", "subscriptions", "consumers", "depth", "depth_bytes")
    yield (topic["name"], *(topic[name] for name in names), topic["published"])


def _subscriptions(broker: Broker, topic: Document) -> list[Document]:
    return broker.get("topics", topic["name"], "subscriptions", wanted=list[Document])


def _lag(broker: Broker, topic: Document) -> Iterator[Row]:
    for each in _subscriptions(broker, topic):
        for at in each["partitions"]:
            yield (
                topic["name"],
                each["name"],
                each["mode"],
                each["consumers"],
                *(at[name] for name in ("partition", "committed", "end", "lag", "in_flight")),
            )


def _in_flight(broker: Broker, topic: Document) -> Iterator[Row]:
    for subscription in _subscriptions(broker, topic):
        name = subscription["name"]
        path = ("topics", topic["name"], "subscriptions", name, "in-flight")
        partition, after = 0, -1
        while True:
            page = broker.get(
                *path, wanted=list[Document], partition=partition, after=after, limit=PAGE
            )
            for each in page:
                yield (
                    topic["name"],
                    name,
                    *(each[column] for column in ("partition", "offset", "attempts", "consumer")),
                    _time(each["deadline_ms"]),
                )
            if len(page) < PAGE:
                break
            partition, after = page[-1]["partition"], page[-1]["offset"]


def _dead_letters(broker: Broker, topic: Document) -> Iterator[Row]:
    start = 0
    while True:
        page = broker.get(
            "topics", topic["name"], "dead-letters", wanted=dict[str, Any], start=start, limit=PAGE
        )
        for each in page["letters"]:
            yield (
                topic["name"],
                page["topic"],
                each["offset"],
                each["reason"],
                *(each.get(name) for name in ("partition", "original_offset", "subscription")),
                each.get("attempts"),
                each.get("error"),
                _time(each.get("at_ms")),
                *_content(each["message"]),
            )
        if len(page["letters"]) < PAGE:
            return
        start = page["next_offset"]


def _delayed(broker: Broker, topic: Document) -> Iterator[Row]:
    partition, after = 0, -1
    while True:
        page = broker.get(
            "topics",
            topic["name"],
            "delayed",
            wanted=dict[str, Any],
            partition=partition,
            after=after,
            limit=PAGE,
        )["messages"]
        for each in page:
            yield (
                topic["name"],
                each["partition"],
                each["offset"],
                _time(each.get("deliver_at_ms")),
                *_content(each),
            )
        if len(page) < PAGE:
            return
        partition, after = page[-1]["partition"], page[-1]["offset"]


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


_READERS: dict[str, Callable[[Broker, Document], Iterator[Row]]] = {
    "depth": _depth,
    "lag": _lag,
    "inflight": _in_flight,
    "deadletters": _dead_letters,
    "delayed": _delayed,
}
